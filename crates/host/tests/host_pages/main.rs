//! The probe's chains and the judgement, on simulated processors and page sizes; and on this machine.

mod simulated;
mod soak;

use vmtax_analyse::host_pages::{Doubt, Judged, PagesVerdict, judge};
use vmtax_events::setting::host_pages::{ConfidentialSigns, HostPages, SystemKind};
use vmtax_host::host_pages::probe;

use simulated::Replacement::{Fifo, Lru, Random, Tree};
use simulated::{KIB, MIB, Noise, Processor, SimulatedVm};

const fn processor(
    name: &'static str,
    first: simulated::TlbSize,
    second: simulated::TlbSize,
    times: [f64; 3],
) -> Processor {
    Processor { name, first, first_large: None, second, joins: 4 * KIB, times }
}

const fn with_large(of: Processor, first_large: simulated::TlbSize) -> Processor {
    Processor { first_large: Some(first_large), ..of }
}

const fn joining(of: Processor, joins: usize) -> Processor {
    Processor { joins, ..of }
}

const SKYLAKE: Processor =
    processor("64 of 4 ways", (64, 4, Tree), (1536, 12, Lru), [1.3, 2.3, 8.0]);
const GOLDEN_COVE: Processor =
    processor("96 of 6 ways", (96, 6, Tree), (2048, 16, Lru), [1.4, 1.9, 8.0]);
const ZEN_4: Processor = processor("72", (72, 72, Lru), (3072, 24, Lru), [1.1, 1.9, 10.0]);
const ZEN_5: Processor = processor("96", (96, 96, Lru), (4096, 16, Tree), [1.0, 1.8, 10.0]);
const NEOVERSE: Processor = processor("48", (48, 48, Random), (2048, 8, Lru), [1.3, 1.6, 9.0]);

/// First TLBs of 10 to 160 entries, of one to all ways, of four replacements; some with another for large pages, some that join.
fn processors() -> Vec<Processor> {
    vec![
        with_large(SKYLAKE, (32, 4, Lru)),
        with_large(Processor { first: (64, 4, Random), ..SKYLAKE }, (32, 4, Random)),
        with_large(GOLDEN_COVE, (32, 4, Tree)),
        ZEN_4,
        joining(ZEN_4, 16 * KIB),
        Processor { first: (72, 72, Fifo), ..ZEN_4 },
        Processor { first: (72, 72, Random), ..ZEN_4 },
        ZEN_5,
        joining(ZEN_5, 16 * KIB),
        NEOVERSE,
        Processor { first: (48, 48, Lru), ..NEOVERSE },
        processor("32", (32, 32, Tree), (1024, 4, Lru), [1.6, 2.2, 12.0]),
        processor("10", (10, 10, Random), (512, 4, Random), [2.0, 2.0, 20.0]),
        processor("160", (160, 160, Random), (3072, 12, Random), [1.0, 1.5, 9.0]),
    ]
}

const QUIET: Noise = Noise { interrupted: 0.02, disturbed: 0.0, clock: 0.0 };
const BUSY: Noise = Noise { interrupted: 0.25, disturbed: 0.25, clock: 0.3 };

/// Page and huge page of x86 and arm64 guests, bytes.
const GUESTS: [(usize, usize); 3] =
    [(4 * KIB, 2 * MIB), (16 * KIB, 32 * MIB), (64 * KIB, 512 * MIB)];

/// What is too noisy is measured again, as by the program.
fn judged(mut vm: SimulatedVm, machine: SystemKind) -> Judged {
    let mut once = || {
        judge(&HostPages {
            machine: machine.clone(),
            measured: Some(Ok(probe(&mut vm))),
            confidential: ConfidentialSigns::default(),
            took_ns: 0,
        })
    };
    (0..2).map(|_| once()).find(|judged| !judged.is_noisy()).unwrap_or_else(&mut once)
}

fn of_vm(vm: SimulatedVm) -> Judged {
    judged(vm, SystemKind::Vm("/proc/cpuinfo"))
}

/// Of 128 regions: all, a tenth, half, nine tenths and none in small pages.
const SHARES: [(usize, PagesVerdict); 5] = [
    (128, PagesVerdict::Small),
    (13, PagesVerdict::Mixed),
    (64, PagesVerdict::Mixed),
    (115, PagesVerdict::Mixed),
    (0, PagesVerdict::Large),
];

/// Where a processor joins small pages to entries that fit its first TLB there may be none.
#[test]
fn every_processor_and_page_gives_the_right_verdict() {
    let mut decided = 0;
    for processor in processors() {
        for guest in GUESTS {
            for (small, expected) in SHARES {
                let vm =
                    SimulatedVm::new(processor, BUSY, guest, (128, small, 4 * KIB), small as u64);
                let judged = of_vm(vm);
                if processor.joins > 4 * KIB && judged.verdict == PagesVerdict::Undecided {
                    continue;
                }
                let regions = judged.paging.as_ref().unwrap().regions;
                let name = processor.name;
                assert_eq!(
                    judged.verdict, expected,
                    "{name} {processor:?} {guest:?} {small} {judged:?}"
                );
                // Noise may leave some unclear, and takes none for the other kind.
                assert!(
                    regions.small <= small
                        && regions.large <= 128 - small
                        && regions.unclear <= 6
                        && regions.small + regions.large + regions.unclear == 128,
                    "{processor:?} {guest:?} {regions:?}"
                );
                decided += 1;
                let (low, high) = regions.share;
                let share = small as f64 / 128.0;
                assert!((low..=high).contains(&share) && high - low < 0.19, "{regions:?}");
            }
        }
    }
    let all = processors().len() * GUESTS.len() * SHARES.len();
    assert!(decided >= all - 2 * GUESTS.len() * SHARES.len(), "{decided} of {all}");
}

/// Hosts with pages of 16 and 64 KiB, which no fine chain of every processor shows: small, or undecided between small and mixed.
#[test]
fn larger_small_pages_are_never_large() {
    for processor in processors() {
        for guest in [GUESTS[0], GUESTS[2]] {
            for host in [16 * KIB, 64 * KIB] {
                for small in [64, 115, 128] {
                    let judged =
                        of_vm(SimulatedVm::new(processor, BUSY, guest, (128, small, host), 7));
                    let expected =
                        if small == 128 { PagesVerdict::Small } else { PagesVerdict::Mixed };
                    let is_doubted = matches!(judged.doubt, Some(Doubt::Grain | Doubt::Unclear));
                    assert!(
                        judged.verdict == expected || is_doubted,
                        "{processor:?} {guest:?} {host} {small} {judged:?}"
                    );
                }
            }
        }
    }
}

/// What docs/doctor.md says of such entries: a first TLB that holds those of one region beside seven huge pages shows nothing.
#[test]
fn a_tenth_in_entries_of_64_kib_is_missed() {
    let joining = joining(ZEN_5, 64 * KIB);
    for (small, verdict, doubt) in [
        (13, PagesVerdict::Large, None),
        (64, PagesVerdict::Undecided, Some(Doubt::Grain)),
        (128, PagesVerdict::Undecided, Some(Doubt::Grain)),
    ] {
        let judged = of_vm(SimulatedVm::new(joining, QUIET, GUESTS[0], (128, small, 4 * KIB), 13));
        assert_eq!((judged.verdict, judged.doubt), (verdict, doubt), "{small}");
    }
}

/// The first TLB is found within one step of the lengths that are measured, if what it replaces is what was used longest ago.
#[test]
fn the_reach_of_both_tlbs_is_found() {
    for (processor, first, second) in [
        (ZEN_4, (64, 80), (2048, 4096)),
        (ZEN_5, (96, 128), (3072, 6144)),
        (Processor { first: (48, 48, Lru), ..NEOVERSE }, (48, 56), (1536, 3072)),
        (
            processor("64 of 4 ways, LRU", (64, 4, Lru), (1536, 12, Lru), [1.3, 2.3, 8.0]),
            (64, 80),
            (1024, 2048),
        ),
    ] {
        for small in [0, 128] {
            let vm = SimulatedVm::new(processor, QUIET, GUESTS[0], (128, small, 4 * KIB), 3);
            let paging = of_vm(vm).paging.unwrap();
            assert_eq!(
                (paging.first.fits, paging.first.exceeds),
                (Some(first.0), Some(first.1)),
                "{processor:?}"
            );
            let (fits, exceeds) = (paging.second.fits.unwrap(), paging.second.exceeds.unwrap());
            assert!(fits >= second.0 && exceeds <= second.1, "{processor:?} {:?}", paging.second);
        }
    }
}

/// However much disturbs it, no run contradicts another: right, or undecided.
#[test]
fn noise_leads_to_no_wrong_verdict() {
    let mut decided = 0;
    for seed in 0..100 {
        let processor = processors()[seed as usize % processors().len()];
        let (small, expected) = SHARES[seed as usize % SHARES.len()];
        let part = 0.2 + 0.006 * seed as f64;
        let noise = Noise { interrupted: part, disturbed: part, clock: 0.5 };
        let vm = SimulatedVm::new(processor, noise, GUESTS[0], (128, small, 4 * KIB), seed);
        let verdict = of_vm(vm).verdict;
        assert!(
            [expected, PagesVerdict::Undecided].contains(&verdict),
            "{processor:?} {small} {verdict}"
        );
        decided += usize::from(verdict == expected);
    }
    assert!((25..100).contains(&decided), "{decided}");
}

/// An emulator has TLBs of its own or none, and no steps in time that are those of hardware.
#[test]
fn a_machine_without_tlbs_is_undecided() {
    let flat = Processor { times: [5.0, 0.2, 0.4], ..ZEN_4 };
    for small in [0, 128] {
        let judged = of_vm(SimulatedVm::new(flat, BUSY, GUESTS[0], (64, small / 2, 4 * KIB), 5));
        assert_eq!(
            (judged.verdict, judged.doubt),
            (PagesVerdict::Undecided, Some(Doubt::NoContrast))
        );
    }
    let endless = processor("400", (400, 400, Lru), (3072, 24, Lru), [1.0, 2.0, 9.0]);
    let judged = of_vm(SimulatedVm::new(endless, QUIET, GUESTS[0], (64, 0, 4 * KIB), 5));
    assert_eq!((judged.verdict, judged.doubt), (PagesVerdict::Undecided, Some(Doubt::Reach)));
}

/// An arm64 processor does not say whether it is virtual: quick chains on a computer without a host prove nothing.
#[test]
fn large_pages_prove_no_vm() {
    let vm = |small| SimulatedVm::new(NEOVERSE, QUIET, GUESTS[1], (64, small, 4 * KIB), 9);
    let large = judged(vm(0), SystemKind::Unknown);
    assert_eq!((large.verdict, large.doubt), (PagesVerdict::Undecided, Some(Doubt::NoSignOfVm)));
    assert_eq!(judged(vm(64), SystemKind::Unknown).verdict, PagesVerdict::Small);
}

/// Samples of a VM of which 2.6 % is small, the worst share: "large" and "mixed" are rare beside each other.
#[test]
fn few_pages_of_a_kind_are_undecided() {
    let vm = |small| SimulatedVm::new(ZEN_4, QUIET, GUESTS[0], (128, small, 4 * KIB), 11);
    for (small, expected) in [
        (0, (PagesVerdict::Large, None)),
        (1, (PagesVerdict::Undecided, Some(Doubt::Rare(1)))),
        (5, (PagesVerdict::Undecided, Some(Doubt::Rare(5)))),
        (6, (PagesVerdict::Mixed, None)),
        (126, (PagesVerdict::Undecided, Some(Doubt::Unclear))),
        (127, (PagesVerdict::Undecided, Some(Doubt::Unclear))),
        (128, (PagesVerdict::Small, None)),
    ] {
        let judged = of_vm(vm(small));
        assert_eq!((judged.verdict, judged.doubt), expected, "{small}");
    }
}
