//! The memory of this process that is measured, and the loads.

#![expect(unsafe_code, reason = "memory is mapped, and read as a slice")]

use std::ffi::c_void;
use std::fs;
use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};
use vmtax_events::setting::files;
use vmtax_events::setting::host_pages::{HugePageSource, NotMeasured, REGION};
use vmtax_events::setting::{Known, Unknown};

use super::chain::APART;
use super::{Area, LoadChain, Loads};

/// Regions that are measured at most: 256 MiB. A kind of page of which a VM has a tenth is missed by them once in 700,000 times.
const REGIONS: usize = 128;
const FEWEST: usize = 8;
/// Most pages of the guest's smallest size.
const SMALL_PAGES: usize = 8192;
/// Memory that is too fragmented for huge pages makes the kernel compact it at each one: no more are asked for after this CPU time.
const PATIENCE: Duration = Duration::from_millis(150);

const HUGE_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
const HUGETLB_FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
/// Between two huge pages, in huge pages.
const DISTANCE: usize = 3;
/// Bytes of a page of hugetlbfs that is asked for.
const HUGETLB: usize = 2 << 20;

/// A mapping of this process, all zero.
struct ZeroMapping {
    start: *mut c_void,
    bytes: usize,
}

impl ZeroMapping {
    fn new(bytes: usize, flags: MapFlags) -> Result<ZeroMapping, NotMeasured> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | flags;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
        let refused = |errno: Errno| io::Error::from(errno).to_string();
        let start = start.map_err(|errno| NotMeasured::Refused(Unknown::Failed(refused(errno))))?;
        Ok(ZeroMapping { start, bytes })
    }

    /// Advice for some bytes of it. No advice that is given here changes contents.
    fn advise(&self, from: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
        let end = from.checked_add(bytes).filter(|end| *end <= self.bytes);
        end.ok_or(Errno::INVAL)?;
        // SAFETY: the range is inside the mapping, and the advice keeps what is in it.
        unsafe { madvise(self.start.byte_add(from), bytes, advice) }
    }

    fn words(&mut self) -> &mut [u64] {
        let words = self.bytes / size_of::<u64>();
        // SAFETY: the mapping is of this value alone, readable and writable, aligned to a page, and every bit pattern is a number.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), words) }
    }

    fn address(&self) -> usize {
        self.start.addr()
    }
}

impl Drop for ZeroMapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it: slices of it borrow this value.
        // An error leaves the memory until the process ends.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

/// Memory in small and in huge pages of the guest.
pub(super) struct ProbeMemory {
    small: ZeroMapping,
    small_pages: usize,
    large: ZeroMapping,
    huge: usize,
    source: HugePageSource,
    regions: Vec<usize>,
}

impl ProbeMemory {
    /// Takes memory, at most `room` bytes.
    pub(super) fn new(room: u64) -> Result<ProbeMemory, NotMeasured> {
        let page = page_size();
        let few = NotMeasured::Memory { room };
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let small_pages = SMALL_PAGES.min(room / 4 / page);
        let asked = REGIONS.min(room / 4 * 3 / REGION);
        if small_pages < 2 * super::LINES || asked < FEWEST {
            return Err(few);
        }
        let small = ZeroMapping::new(SMALL_PAGES * APART * page, MapFlags::empty())?;
        // Kernels without huge pages do not know the advice.
        let _ = small.advise(0, small.bytes, Advice::LinuxNoHugepage);
        let (thp, huge) = transparent(asked, room / 4 * 3)?;
        let (large, regions, source, huge) = match thp {
            (large, regions) if regions.len() >= FEWEST => {
                (large, regions, HugePageSource::Thp, huge)
            }
            (_, regions) => match reserved(asked) {
                Some((large, of_hugetlb)) => (large, of_hugetlb, HugePageSource::Hugetlb, HUGETLB),
                None => return Err(why_not(regions.len(), asked)),
            },
        };
        Ok(ProbeMemory { small, small_pages, large, huge, source, regions })
    }
}

type ProbeRegions = (ZeroMapping, Vec<usize>);

/// Transparent huge pages, and their size.
fn transparent(asked: usize, room: usize) -> Result<(ProbeRegions, usize), NotMeasured> {
    let size = fs::read_to_string(HUGE_SIZE).ok().and_then(|text| text.trim().parse().ok());
    let huge = size
        .filter(|size: &usize| *size >= REGION && size.is_multiple_of(REGION))
        .unwrap_or(REGION);
    let pages = (asked * REGION).div_ceil(huge).min(room / huge);
    if is_off() {
        return Ok(((ZeroMapping::new(huge, MapFlags::empty())?, Vec::new()), huge));
    }
    // Two are left out after each, so that each is a mapping of its own in smaps; an odd distance uses all sets of a TLB.
    let large = ZeroMapping::new((DISTANCE * pages + 1) * huge, MapFlags::empty())?;
    let first = large.address().next_multiple_of(huge) - large.address();
    let starts = (0..pages).map(|at| first + DISTANCE * at * huge);
    let start = cpu_time();
    let touched: Vec<usize> = starts
        .take_while(|_| cpu_time().saturating_sub(start) < PATIENCE)
        .filter(|from| large.advise(*from, huge, Advice::LinuxHugepage).is_ok())
        .filter(|from| populate(&large, *from, huge).is_ok())
        .collect();
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let whole = whole_mappings(&smaps);
    let is_huge = |from: &usize| whole.contains(&(large.address() + from));
    let regions = touched.into_iter().filter(is_huge);
    let regions = regions.flat_map(|from| (from..from + huge).step_by(REGION)).take(REGIONS);
    let regions = regions.collect();
    Ok(((large, regions), huge))
}

/// Transparent huge pages are off: for this process, for 2 MiB alone in kernels that tell sizes apart, or for all sizes.
fn is_off() -> bool {
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let of_2m = text(files::THP_2M);
    let is_left_to_all = of_2m.is_empty() || of_2m.contains("[inherit]");
    let is_barred = text("/proc/self/status").contains("THP_enabled:\t0");
    is_barred || of_2m.contains("[never]") || is_left_to_all && text(files::THP).contains("[never]")
}

/// CPU time of this thread: other threads and VMs do not shorten what it can do.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap_or_default()
}

/// Reserved huge pages, if there are enough.
fn reserved(asked: usize) -> Option<ProbeRegions> {
    let free = usize::try_from(hugetlb_free().ok()?).ok()?.min(asked);
    let large = ZeroMapping::new(free * HUGETLB, MapFlags::HUGETLB | MapFlags::HUGE_2MB).ok()?;
    // Touching a page that a control group refuses would end the process: the kernel is asked first.
    let is_there = |from: &usize| large.advise(*from, HUGETLB, Advice::LinuxPopulateWrite).is_ok();
    let regions: Vec<usize> = (0..large.bytes).step_by(HUGETLB).filter(is_there).collect();
    (regions.len() >= FEWEST).then_some((large, regions))
}

/// Has memory mapped before it is measured. Kernels before 5.14 map it when the chain is laid out.
fn populate(large: &ZeroMapping, from: usize, bytes: usize) -> Result<(), Errno> {
    match large.advise(from, bytes, Advice::LinuxPopulateWrite) {
        Err(Errno::INVAL) => {
            // SAFETY: the byte is inside the mapping, which this process alone uses.
            unsafe { large.start.byte_add(from).cast::<u8>().write_volatile(0) };
            Ok(())
        }
        answer => answer,
    }
}

fn hugetlb_free() -> Known<u64> {
    let text = fs::read_to_string(HUGETLB_FREE).map_err(|_| Unknown::Missing)?;
    text.trim().parse().map_err(|_| Unknown::NotText)
}

fn why_not(got: usize, asked: usize) -> NotMeasured {
    let thp = fs::read_to_string(files::THP).map_err(|_| Unknown::Missing);
    let thp = thp.map(|text| text.trim().to_owned());
    let is_on = thp.as_ref().is_ok_and(|text| !text.contains("[never]"));
    if is_on {
        NotMeasured::Few { got, asked }
    } else {
        NotMeasured::Off { thp, hugetlb: hugetlb_free() }
    }
}

/// Where mappings begin that are of transparent huge pages alone.
fn whole_mappings(smaps: &str) -> Vec<usize> {
    let mut whole = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for line in smaps.lines() {
        let Some((key, rest)) = line.split_once(':') else { continue };
        let kib =
            || rest.trim().strip_suffix(" kB").and_then(|kib| kib.trim().parse::<usize>().ok());
        match key {
            "AnonHugePages" if bytes > 0 && kib() == Some(bytes / 1024) => whole.push(start),
            // `7f00-7f01 rw-p 00000000 00:00 0`
            _ if key.contains(' ') => {
                let range = key.split(' ').next().and_then(|range| range.split_once('-'));
                let number = |text: &str| usize::from_str_radix(text, 16).unwrap_or_default();
                (start, bytes) = match range {
                    Some((from, to)) => (number(from), number(to).saturating_sub(number(from))),
                    None => (0, 0),
                };
            }
            _ => {}
        }
    }
    whole
}

impl Loads for ProbeMemory {
    fn page(&self) -> usize {
        page_size()
    }

    fn huge(&self) -> usize {
        self.huge
    }

    fn source(&self) -> HugePageSource {
        self.source
    }

    fn regions(&self) -> Vec<usize> {
        self.regions.clone()
    }

    fn small_pages(&self) -> usize {
        self.small_pages
    }

    fn time(&mut self, chain: &LoadChain, times: usize) -> f64 {
        let words = match chain.area {
            Area::Small => self.small.words(),
            Area::Huge => self.large.words(),
        };
        let word = |place: usize| place / size_of::<u64>();
        let next = chain.places.iter().cycle().skip(1);
        chain.places.iter().zip(next).for_each(|(at, to)| words[word(*at)] = word(*to) as u64);
        let first = chain.places.first().map_or(0, |place| word(*place));
        let loads = chain.places.len();
        let start = follow(words, first, loads);
        let clock = Instant::now();
        black_box(follow(words, start, times * loads));
        clock.elapsed().as_nanos() as f64 / (times * loads) as f64
    }
}

/// Follows a chain. Each load needs the one before; indices and no addresses, which some prefetchers follow.
#[inline(never)]
fn follow(words: &[u64], first: usize, loads: usize) -> usize {
    let mut at = first;
    for _ in 0..loads {
        at = words[at] as usize;
    }
    black_box(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_huge_pages_alone_are_told_apart() {
        let smaps = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nSize: 2048 kB\nAnonHugePages:      2048 kB\n\
                     7f0000400000-7f0000600000 rw-p 00000000 00:00 0 \nAnonHugePages:         0 kB\n\
                     7f0000800000-7f0000c00000 rw-p 00000000 00:00 0 \nAnonHugePages:      2048 kB\n\
                     x-y rw-p\nAnonHugePages: 0 kB\n";
        assert_eq!(whole_mappings(smaps), [0x7f00_0000_0000]);
        assert!(whole_mappings("").is_empty());
    }

    /// A chain is a circle through all of its places.
    #[test]
    fn chains_are_circles() {
        let mut memory = ZeroMapping::new(1 << 20, MapFlags::empty()).unwrap();
        let words = memory.words();
        let places = [5, 100, 7, 64_000];
        for (at, to) in places.iter().zip(places.iter().cycle().skip(1)) {
            words[*at] = *to as u64;
        }
        assert_eq!((1..=4).map(|n| follow(words, 5, n)).collect::<Vec<_>>(), [100, 7, 64_000, 5]);
    }
}
