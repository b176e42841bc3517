//! The probe of `vmtax doctor` in VMs of the lab: its chains, its order of measuring and its verdict are the program's own. The loads are executed in a
//! guest of a real KVM, and take the cycles of simulated processors.

use std::collections::HashMap;

use vmtax_analyse::host_pages::{Judged, PagesVerdict, Reach, judge};
use vmtax_events::setting::host_pages::{
    ConfidentialSigns, HostPages, HugePageSource, REGION, SystemKind,
};
use vmtax_guest::order::Probed;
use vmtax_host::host_pages::{Area, LoadChain, Loads, probe};
use vmtax_lab::suite::chains::{self, Chain};
use vmtax_lab::{HostKind, HostSetup, LabPlan};
use vmtax_machine::kernel;

use crate::run::cache;

const PROCESSORS: [&str; 2] = ["zen4", "zen3"];
/// As many as on a real machine.
const REGIONS: u32 = 128;
/// Small pages, and their distance: what the probe's longest chains need.
const SMALL_PAGES: u32 = 8192;
const APART: u32 = 5;

/// Cycles of a load of each chain that was executed, by processor.
type Executed = HashMap<(Area, Vec<usize>), Vec<(&'static str, f64)>>;

/// A VM of the lab on a simulated processor. Chains that were not executed yet take no time.
struct LabVm<'a> {
    processor: &'static str,
    executed: &'a Executed,
    /// Those, and how often each is followed.
    wanted: Vec<(LoadChain, usize)>,
}

impl Loads for LabVm<'_> {
    fn page(&self) -> usize {
        4096
    }

    fn huge(&self) -> usize {
        REGION
    }

    fn source(&self) -> HugePageSource {
        HugePageSource::Thp
    }

    fn regions(&self) -> Vec<usize> {
        (0..REGIONS as usize).map(|at| at * REGION).collect()
    }

    fn small_pages(&self) -> usize {
        SMALL_PAGES as usize
    }

    fn time(&mut self, chain: &LoadChain, times: usize) -> f64 {
        if let Some(cycles) = self.executed.get(&(chain.area, chain.places.clone())) {
            return cycles.iter().find(|(name, _)| *name == self.processor).unwrap().1;
        }
        if !self.wanted.iter().any(|(one, _)| one == chain) {
            self.wanted.push((chain.clone(), times));
        }
        0.0
    }
}

/// Executes chains in a guest with so many regions in small pages of the host.
fn execute(small: u32, wanted: &[(LoadChain, usize)]) -> Vec<Vec<(&'static str, f64)>> {
    let chain = |(chain, times): &(LoadChain, usize)| Chain {
        huge: chain.area == Area::Huge,
        places: chain.places.clone(),
        times: *times,
    };
    let probed = Probed { regions: REGIONS, small, pages: SMALL_PAGES, apart: APART };
    let all: Vec<Chain> = wanted.iter().map(chain).collect();
    let suite = chains::suite(probed, &all).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cache = cache().join("vmtax");
    std::fs::create_dir_all(&cache).unwrap();
    let kernel = kernel::distribution(&cache).unwrap();
    let setup = HostSetup::plain(HostKind::Amd, kernel, cache, folder.path().join("console"));
    let plan = LabPlan { suites: vec![suite], only: Vec::new(), batches: LabPlan::LEAST_BATCHES };
    let outcomes = vmtax_lab::run(&setup, &plan, &|_| ()).unwrap();
    let [measured] = &outcomes.operations[..] else { panic!("one operation") };
    assert_eq!((&measured.failure, &measured.missing), (&None, &None));
    // The guest's regions are in huge pages, the host's in what was asked for.
    let pages = &measured.paging.as_ref().unwrap().pages;
    assert_eq!(pages.contains_key("2M on 4K"), small > 0, "{pages:?}");
    assert_eq!(pages.contains_key("2M on 2M"), small < REGIONS, "{pages:?}");
    chains::cycles(measured, all.len()).unwrap()
}

/// The verdict on each processor. Which chains the probe measures last depends on the first ones.
fn judged(small: u32) -> Vec<Judged> {
    let mut executed = Executed::new();
    for _ in 0..3 {
        let (mut wanted, mut found) = (Vec::new(), Vec::new());
        for processor in PROCESSORS {
            let mut vm = LabVm { processor, executed: &executed, wanted };
            let pages = HostPages {
                machine: SystemKind::Vm("/proc/cpuinfo"),
                measured: Some(Ok(probe(&mut vm))),
                confidential: ConfidentialSigns::default(),
                took_ns: 0,
            };
            wanted = vm.wanted;
            found.push(judge(&pages));
        }
        if wanted.is_empty() {
            return found;
        }
        let cycles = execute(small, &wanted);
        let keys = wanted.into_iter().map(|(chain, _)| (chain.area, chain.places));
        executed.extend(keys.zip(cycles));
    }
    panic!("the probe asks for other chains each time")
}

#[test]
fn the_probe_finds_the_pages_of_lab_hosts() {
    use PagesVerdict::{Large, Mixed, Small};
    let reach = |fits, exceeds| Reach { fits: Some(fits), exceeds: Some(exceeds) };
    for (small, verdict) in [(128, Small), (13, Mixed), (64, Mixed), (115, Mixed), (0, Large)] {
        for (processor, judged) in PROCESSORS.into_iter().zip(judged(small)) {
            let paging = judged.paging.as_ref().unwrap();
            let wide = (paging.wide.packed.min, paging.wide.spread.min);
            eprintln!(
                "{processor}, {small} of {REGIONS} small: cycles of a load of 1 MiB side by side, and all over: {wide:?}"
            );
            assert_eq!((judged.verdict, &judged.doubt), (verdict, &None), "{small} {paging:?}");
            let found = (paging.regions.small, paging.regions.large, paging.regions.unclear);
            assert_eq!(found, (small as usize, (REGIONS - small) as usize, 0), "{processor}");
            // The TLBs of the processor's file.
            let (first, second) = match processor {
                "zen4" => (reach(64, 80), reach(3072, 4096)),
                _ => (reach(64, 80), reach(2048, 3072)),
            };
            assert_eq!((paging.first, paging.second), (first, second), "{processor}");
            let cycles = (paging.hit.min, paging.first_miss.min);
            assert_eq!(cycles, (4.0, 11.0), "{processor}");
        }
    }
}
