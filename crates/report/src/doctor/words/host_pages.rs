//! What a guest measured of the pages in which its host maps it, in words.

use vmtax_analyse::audit::{PagesFound, PagesSeen};
use vmtax_analyse::host_pages::{Doubt, PagesVerdict, Reach};
use vmtax_events::setting::host_pages::{GROUP_LINES, NotMeasured};

use crate::numbers::{count, percent, significant, size};

pub(super) const REMEDY: &str = "memory in huge pages (nested: at each level), if it is not private (guest_memfd): transparent huge pages on the host, or hugetlbfs with pages reserved \
    first: QEMU -object memory-backend-file,...,mem-path=/dev/hugepages; libvirt <memoryBacking><hugepages/></memoryBacking>; Firecracker \"huge_pages\": \"2M\" in machine-config; \
    cloud-hypervisor --memory hugepages=on; of a rented VM ask for a type that has it, and measure again";
pub(super) const REMEDY_UNLESS_SNP: &str = "memory in huge pages, if the VM is not SEV-SNP, whose private memory Linux up to 7.3 maps at 4K: transparent huge pages on the host, or hugetlbfs with pages \
    reserved first: QEMU -object memory-backend-file,...,mem-path=/dev/hugepages; libvirt <memoryBacking><hugepages/></memoryBacking>";

/// In one sentence without its full stop.
pub(super) fn found(found: &PagesFound) -> String {
    match found {
        PagesFound::NotTried => {
            "a guest measures it itself: run vmtax doctor --host-pages there".to_owned()
        }
        PagesFound::NoVm => "this is no VM: there is no host to tell of".to_owned(),
        PagesFound::NotMeasured(missing) => not_measured(missing),
        PagesFound::Undecided(doubt) => undecided(doubt),
        PagesFound::Decided { verdict, small, large, share } => {
            decided(*verdict, [*small, *large], *share)
        }
    }
}

fn decided(verdict: PagesVerdict, [small, large]: [usize; 2], (low, high): (u32, u32)) -> String {
    let of = |some: usize| format!("{} of {}", count(some as u64), count((small + large) as u64));
    let part = |thousandths: u32| percent(f64::from(thousandths) / 1000.0);
    match verdict {
        PagesVerdict::Small => format!(
            "the host maps this VM in small pages: {} regions of 2 MiB that were sampled; at most {} of such memory is in large ones",
            of(small),
            part(1000 - low)
        ),
        PagesVerdict::Large => format!(
            "the host maps this VM in large pages: {} regions of 2 MiB that were sampled; at most {} of such memory is in small ones",
            of(large),
            part(high)
        ),
        _ => format!(
            "the host maps this VM in small and large pages: {} regions of 2 MiB that were sampled are in small ones, {} to {} of such memory",
            of(small),
            part(low),
            part(high)
        ),
    }
}

fn undecided(doubt: &Doubt) -> String {
    match doubt {
        Doubt::NoContrast => "undecided: loads that need many TLB entries take no longer than others (an emulator, or a system too busy to measure)".to_owned(),
        Doubt::Reach => format!("undecided: the first TLB has more entries than the {GROUP_LINES} loads of a chain need"),
        Doubt::Unclear => "undecided: loads of some regions take neither as long as in small pages nor as in large ones; repeat it when the system is less busy".to_owned(),
        Doubt::Grain => "undecided between small and mixed: the host has pages of 4 to 64 KiB, of which neighbouring ones share a TLB entry".to_owned(),
        Doubt::FewRegions => "undecided: the guest got too few huge pages".to_owned(),
        Doubt::Rare(few) => format!("undecided: nearly all regions are alike, and {} of the other kind: too few to give a share, too many for none", count(*few as u64)),
        Doubt::NoSignOfVm => "undecided: loads are as fast as in large pages, and nothing shows that this is a VM".to_owned(),
    }
}

fn not_measured(missing: &NotMeasured) -> String {
    match missing {
        NotMeasured::Off { thp: Ok(_), .. } => "the guest has no huge pages to measure with: transparent huge pages are off, and hugetlbfs has no 8 free pages of 2 MiB".to_owned(),
        NotMeasured::Off { thp: Err(why), .. } => format!("the guest has no huge pages to measure with: transparent huge pages: {why}, and hugetlbfs has no 8 free pages of 2 MiB"),
        NotMeasured::Few { got, asked } => format!(
            "the guest has too few huge pages to measure with: its kernel gave {} of {} (its memory is fragmented, or this process may not have them: THP_enabled in /proc/self/status)",
            count(*got as u64),
            count(*asked as u64)
        ),
        NotMeasured::Memory { room } => format!("too little memory is free, or allowed by control groups, to measure: {} could be used", size(*room)),
        NotMeasured::Refused(why) => format!("the kernel refused memory to measure: {why}"),
    }
}

pub(super) fn seen(seen: &PagesSeen) -> String {
    let [small, large, unclear] = seen.regions.map(|n| count(n as u64));
    let [hit, miss, wide, packed] = seen.times.map(|ps| significant(ps as f64 / 1000.0));
    format!(
        "{small} regions small, {large} large, {unclear} unclear; first TLB full {}, second {}; a load takes {hit} ns, {miss} ns with a miss of the first TLB; \
         in much data {wide} ns, {packed} ns side by side",
        full(seen.first),
        full(seen.second)
    )
}

/// Between which lengths a TLB is full.
pub(crate) fn full(reach: Reach) -> String {
    match (reach.fits, reach.exceeds) {
        (Some(fits), Some(exceeds)) => {
            format!("at {} to {} pages", count(fits as u64), count(exceeds as u64))
        }
        (Some(fits), None) => format!("above {} pages", count(fits as u64)),
        (None, Some(exceeds)) => format!("below {} pages", count(exceeds as u64)),
        (None, None) => "at an unknown number of pages".to_owned(),
    }
}
