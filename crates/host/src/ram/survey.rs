//! What a VM's memory consists of: zero, filled, duplicate and other pages, how well they compress, how fast they are dirtied; and
//! from that the size of a checkpoint and the time of a migration.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use vmtax_cli::progress::Progress;
use vmtax_pageops::checkpoint::Accelerate;
use vmtax_pageops::{Cpu, PAGE, PageFacts};

use super::RamSource;

/// Pages read at a time: they fit in a core's L2 cache.
const CHUNK: usize = 64;
/// Most hashes kept to count duplicates; of more pages a sample is taken, chosen by hash.
const REMEMBERED: usize = 4 << 20;
/// Groups of pages compressed as a sample.
const SAMPLES: u64 = 64;
/// Pages compressed together, as checkpoints do.
const GROUP: usize = 16;

/// Pages of a memory by content.
#[derive(Debug, Default)]
pub struct Survey {
    pub total: u64,
    /// Pages that are no hole.
    pub data: u64,
    /// Zero pages that are no hole.
    pub zero: u64,
    /// Pages of one repeated word that is not zero.
    pub filled: u64,
    /// Pages whose content an earlier page has too; zero and filled pages are not among them.
    pub duplicate: u64,
    /// Pages that huge pages map; `None` where the kernel does not tell.
    pub huge: Option<u64>,
    /// Bytes compressed as a sample.
    pub sampled: u64,
    /// Bytes they compress to.
    pub compressed: u64,
    /// Rate of dirtied pages, if it was measured.
    pub dirty: Option<Dirty>,
    /// Time of the scan.
    pub seconds: f64,
}

/// Rate of dirtied pages.
#[derive(Debug)]
pub struct Dirty {
    /// Dirtied pages per second.
    pub pages_per_second: f64,
    /// The method: the kernel's record, or comparing content, which misses a page overwritten with its own content.
    pub by: &'static str,
}

impl Survey {
    /// Scans a memory, and watches for the time `dirty` which pages are written.
    pub fn new(
        source: &mut RamSource,
        accel: &mut dyn Accelerate,
        dirty: Option<Duration>,
    ) -> anyhow::Result<Survey> {
        let start = Instant::now();
        let mut survey = scan(source, accel)?;
        survey.seconds = start.elapsed().as_secs_f64();
        survey.huge = source.huge_pages()?;
        survey.dirty = dirty.map(|time| self::dirty(source, time)).transpose()?;
        Ok(survey)
    }

    /// Pages that are neither zero nor filled nor duplicate.
    pub fn other(&self) -> u64 {
        self.data - self.zero - self.filled - self.duplicate
    }
}

/// Distinct contents among pages: of all, or of a sample by hash that is halved whenever there are too many.
#[derive(Default)]
struct DistinctContents {
    seen: HashMap<u64, ()>,
    /// Low bits of the hash that must be zero.
    mask: u64,
    pages: u64,
    duplicates: u64,
}

impl DistinctContents {
    fn add(&mut self, page: &[u8], crc: u32) {
        let hash = hash(page, crc);
        if hash & self.mask != 0 {
            return;
        }
        self.pages += 1;
        if self.seen.insert(hash, ()).is_some() {
            self.duplicates += 1;
        }
        if self.seen.len() > REMEMBERED {
            // Counts so far are of twice the share; they are halved with it.
            self.mask = self.mask << 1 | 1;
            let mask = self.mask;
            self.seen.retain(|hash, ()| hash & mask == 0);
            self.pages /= 2;
            self.duplicates /= 2;
        }
    }

    fn share(&self) -> f64 {
        if self.pages == 0 { 0.0 } else { self.duplicates as f64 / self.pages as f64 }
    }
}

/// Two pages with the same hash count as equal; with 64 bits the error is negligible.
fn hash(page: &[u8], crc: u32) -> u64 {
    let mut sums = [0x9e37_79b9_7f4a_7c15u64 ^ u64::from(crc), 2, 3, 5];
    for words in page.as_chunks::<32>().0 {
        for (sum, word) in sums.iter_mut().zip(words.as_chunks::<8>().0) {
            *sum = (*sum ^ u64::from_le_bytes(*word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            *sum ^= *sum >> 29;
        }
    }
    let mut hash = 0u64;
    for sum in sums {
        hash = (hash ^ sum).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 32;
    }
    hash
}

fn scan(source: &mut RamSource, accel: &mut dyn Accelerate) -> anyhow::Result<Survey> {
    let extents = source.extents()?;
    let data: u64 = extents.iter().map(|e| e.end - e.start).sum();
    let mut found = Survey { total: source.pages(), data: data / PAGE as u64, ..Survey::default() };
    let watch = Progress::bytes(data);
    let every = (data / (CHUNK * PAGE) as u64 / SAMPLES).max(1);
    let mut contents = DistinctContents::default();
    let mut compressor = zstd::bulk::Compressor::new(1)?;
    let mut buffer = vec![0; CHUNK * PAGE];
    let mut facts = vec![PageFacts::default(); CHUNK];
    let (mut done, mut chunks) = (0, 0);
    for extent in extents {
        let mut at = extent.start;
        while at < extent.end {
            let step = (extent.end - at).min(buffer.len() as u64) as usize;
            let bytes = &mut buffer[..step];
            // Pages given back since `extents` read as zeros.
            source.read(at, bytes)?;
            let facts = &mut facts[..step / PAGE];
            accel.scan(bytes, facts);
            let mut sample = Vec::new();
            for (page, facts) in bytes.chunks_exact(PAGE).zip(facts.iter()) {
                if facts.zero {
                    found.zero += 1;
                } else if page[..8] == page[8..16] && Cpu::best().same_fill(page).is_some() {
                    found.filled += 1;
                } else {
                    contents.add(page, facts.crc);
                    if chunks % every == 0 && sample.len() < GROUP * PAGE {
                        sample.extend_from_slice(page);
                    }
                }
            }
            if !sample.is_empty() {
                found.sampled += sample.len() as u64;
                let compressed = compressor.compress(&sample)?.len();
                found.compressed += compressed.min(sample.len()) as u64;
            }
            chunks += 1;
            done += step as u64;
            watch.at(done);
            at += step as u64;
        }
    }
    let plain = found.data - found.zero - found.filled;
    found.duplicate = (plain as f64 * contents.share()).round() as u64;
    Ok(found)
}

/// The rate at which pages are written during `time`.
fn dirty(source: &mut RamSource, time: Duration) -> anyhow::Result<Dirty> {
    if source.forget_dirty()? {
        let start = Instant::now();
        std::thread::sleep(time);
        let pages = source.dirty_pages()?;
        return Ok(Dirty {
            pages_per_second: pages as f64 / start.elapsed().as_secs_f64(),
            by: "the kernel's record",
        });
    }
    let before = checksums(source)?;
    let start = Instant::now();
    std::thread::sleep(time);
    let after = checksums(source)?;
    let changed = after.iter().filter(|(page, crc)| before.get(page) != Some(crc)).count();
    Ok(Dirty {
        pages_per_second: changed as f64 / start.elapsed().as_secs_f64(),
        by: "content (this kernel keeps no record: CONFIG_MEM_SOFT_DIRTY, or not of this memory)",
    })
}

fn checksums(source: &mut RamSource) -> anyhow::Result<HashMap<u64, u32>> {
    let mut checksums = HashMap::new();
    let mut buffer = vec![0; CHUNK * PAGE];
    let mut facts = vec![PageFacts::default(); CHUNK];
    for extent in source.extents()? {
        let mut at = extent.start;
        while at < extent.end {
            let step = (extent.end - at).min(buffer.len() as u64) as usize;
            source.read(at, &mut buffer[..step])?;
            let facts = &mut facts[..step / PAGE];
            Cpu::best().scan(&buffer[..step], facts);
            let first = at / PAGE as u64;
            checksums.extend(facts.iter().zip(first..).map(|(f, page)| (page, f.crc)));
            at += step as u64;
        }
    }
    Ok(checksums)
}

/// What a survey means for a checkpoint and a migration.
#[derive(Debug)]
pub struct Estimates {
    /// Bytes of an uncompressed checkpoint.
    pub checkpoint: u64,
    /// Bytes of a compressed checkpoint.
    pub compressed: u64,
    /// Seconds of a pre-copy migration; `None` if pages are dirtied faster than they are sent.
    pub migration: Option<f64>,
}

impl Estimates {
    /// With a network of this many Gb/s.
    pub fn new(found: &Survey, gbits: f64) -> Estimates {
        /// Bytes of a page's checksum in a checkpoint.
        const CHECKSUM: u64 = 4;
        /// Bytes of a page's header in a migration.
        const HEADER: u64 = 8;
        let page = PAGE as u64;
        let stored = found.data - found.zero - found.filled;
        let checkpoint = stored * (page + CHECKSUM) + found.filled * 12;
        let ratio = match found.sampled {
            0 => 1.0,
            sampled => found.compressed as f64 / sampled as f64,
        };
        let compressed = (checkpoint as f64 * ratio) as u64;
        let wire = gbits * 1e9 / 8.0;
        let first = ((stored + found.filled) * (page + HEADER)
            + (found.total - stored) * (HEADER + 1)) as f64;
        let dirty =
            found.dirty.as_ref().map_or(0.0, |d| d.pages_per_second * (page + HEADER) as f64);
        // Each pass sends what was written during the one before.
        let migration = (dirty < wire).then(|| first / (wire - dirty));
        Estimates { checkpoint, compressed, migration }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn page(byte: u8) -> [u8; PAGE] {
        let mut page = [byte; PAGE];
        // Not one repeated word.
        page[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, byte]);
        page
    }

    #[test]
    fn pages_are_counted_by_content() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        for one in [page(1), page(2), page(1), page(1), [0; PAGE], [7; PAGE]] {
            file.write_all(&one).expect("written");
        }
        // Two pages of a hole.
        file.as_file().set_len(8 * PAGE as u64).expect("made longer");
        let mut source = RamSource::open(&file.path().display().to_string()).expect("an image");
        let found = Survey::new(&mut source, &mut Cpu::best(), None).expect("scanned");
        assert_eq!((found.total, found.zero + found.total - found.data), (8, 3));
        assert_eq!((found.filled, found.duplicate, found.other()), (1, 2, 2));
        assert!(found.sampled >= 4 * PAGE as u64 && found.compressed < found.sampled);
    }

    #[test]
    fn estimates_of_a_checkpoint_and_a_migration() {
        let dirty = |rate| Some(Dirty { pages_per_second: rate, by: "" });
        let survey = Survey { total: 1000, data: 600, zero: 100, ..Survey::default() };
        let found = Estimates::new(&survey, 1.0);
        assert_eq!((found.checkpoint, found.compressed), (500 * 4100, 500 * 4100));
        let bytes = 500.0 * 4104.0 + 500.0 * 9.0;
        assert_eq!(found.migration, Some(bytes / 125e6));
        // Half of the network's rate is dirtied: twice the time.
        let half = Survey { dirty: dirty(125e6 / 4104.0 / 2.0), ..survey };
        let time = Estimates::new(&half, 1.0).migration.expect("it ends");
        assert!((time / (2.0 * bytes / 125e6) - 1.0).abs() < 1e-9, "{time}");
        let more = Survey { dirty: dirty(125e6), ..half };
        assert_eq!(Estimates::new(&more, 1.0).migration, None);
        // A sample that compresses to a quarter.
        let sampled = Survey { sampled: 400, compressed: 100, ..more };
        assert_eq!(Estimates::new(&sampled, 1.0).compressed, 500 * 4100 / 4);
    }
}
