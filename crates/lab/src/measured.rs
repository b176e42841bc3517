//! What was measured of an operation.

use vmtax_events::{Better, Sample};
use vmtax_guest::order::{BatchMappings, PerfBatch, PmuCounting};

use crate::exceptions::CountedExits;
use crate::paging::Paging;
use crate::profile::OperationProfile;
use crate::suite::{CountedValue, Definition};

/// An operation that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredOperation {
    /// Its VM in the recording.
    pub vm: u32,
    pub name: &'static str,
    pub(crate) definition: &'static Definition,
    /// 1 or 2.
    pub level: u8,
    /// Operations in a batch.
    pub count: u32,
    /// Instructions of one operation, by batch; empty when waiting is part of it.
    pub paths: Vec<f64>,
    /// Time that a step of a VM's life waited, ns, by batch; empty for other operations.
    pub waited: Vec<u64>,
    /// Where the step of the recorded life waited: the function with its callers, and ns.
    pub places: Vec<(String, u64)>,
    /// When that step began and ended, by the recording's clock, where no marks of a guest tell it.
    pub window: Option<(u64, u64)>,
    /// The step's exits are in the recording.
    pub recorded: bool,
    /// What the guest found with counters of KVM's PMU, by batch, the first included; where that is known beforehand it is equal to it.
    pub counted: Vec<u64>,
    /// What perf of a Linux guest found in these batches.
    pub perf: Vec<PerfBatch>,
    /// Instructions of a batch at EL2, where code there is apart from the host's kernel and was counted.
    pub at_el2: Vec<u64>,
    /// Exits of the recorded batch, counted in the emulator; absent where nobody counted there.
    pub(crate) exceptions: Option<CountedExits>,
    /// What the guest's virtual PMU did in these batches, if it has one.
    pub pmu: Option<PmuCounting>,
    /// What it did with memory, if it is about memory.
    pub memory: Option<MeasuredMemory>,
    /// What its accesses cost simulated processors, if they were recorded.
    pub paging: Option<Paging>,
    /// Its call tree, or why there is none; absent where it was not asked for.
    pub profile: Option<Result<OperationProfile, String>>,
    /// What this kernel lacks for it: it was not run, and that is no failure.
    pub missing: Option<String>,
    /// Why it was not measured.
    pub failure: Option<String>,
}

/// Metrics of a batch of a Linux guest with perf: instructions of its vCPU's thread outside the guest, by a counter of the host's, unit
/// `instructions`; samples, unit `count`; and for how much of its time the event had a counter that had one least, unit `permille`.
const HOST_INSTRUCTIONS: &str = "host-instructions";
const GUEST_SAMPLES: &str = "guest-samples";
const EVENT_RUNNING: &str = "event-running";

/// What a batch did with memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredMemory {
    /// Regions of 2 MiB that it touches.
    pub regions: u64,
    /// It comes from guest_memfd.
    pub guest_memfd: bool,
    /// By the VMM and KVM's counters.
    pub mapping: BatchMappings,
    /// Pages of 4 KiB, 2 MiB and 1 GiB that were mapped, by the recording.
    pub traced: Option<[u64; 3]>,
}

/// `cpuid`, or `cpuid@L2`.
pub(crate) fn workload(name: &str, level: u8) -> String {
    if level < 2 { name.to_owned() } else { format!("{name}@L2") }
}

impl MeasuredOperation {
    /// The workload's name in tables: that of its VM.
    pub fn workload(&self) -> String {
        workload(self.name, self.level)
    }

    /// As samples of a run.
    pub fn samples(&self) -> Vec<Sample> {
        let sample = |repeat: usize, metric: &str, unit: &str, value: f64, better: Better| Sample {
            workload: self.workload(),
            category: format!("L{}", self.level),
            repeat: repeat as u32,
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            value,
            better,
        };
        if self.failure.is_some() || self.missing.is_some() {
            return Vec::new();
        }
        let mut samples =
            vec![sample(0, Sample::OPERATIONS, "count", f64::from(self.count), Better::Neither)];
        for (repeat, path) in self.paths.iter().enumerate() {
            samples.push(sample(repeat, Sample::PATH, "instructions", *path, Better::Lower));
        }
        let counted = match self.definition.counted() {
            Some(CountedValue::Instructions(_)) => self.counted.as_slice(),
            Some(CountedValue::Interrupt(_)) | None => &[],
        };
        for (repeat, counted) in counted.iter().enumerate() {
            let counted = *counted as f64;
            samples.push(sample(repeat, Sample::COUNTED, "instructions", counted, Better::Neither));
        }
        for (repeat, batch) in self.perf.iter().enumerate() {
            for (metric, unit, value) in [
                (HOST_INSTRUCTIONS, "instructions", batch.host),
                (GUEST_SAMPLES, "count", batch.samples),
                (EVENT_RUNNING, "permille", batch.running_permille),
            ] {
                samples.push(sample(repeat, metric, unit, value as f64, Better::Neither));
            }
        }
        for (repeat, waited) in self.waited.iter().enumerate() {
            samples.push(sample(repeat, Sample::WAITED, "ns", *waited as f64, Better::Lower));
        }
        for (place, waited) in &self.places {
            let metric = format!("{}{place}", Sample::WAITED_IN);
            samples.push(sample(0, &metric, "ns", *waited as f64, Better::Neither));
        }
        if self.recorded {
            samples.push(sample(0, Sample::STEP_RECORDED, "count", 1.0, Better::Neither));
        }
        for (repeat, at_el2) in self.at_el2.iter().enumerate() {
            let each = *at_el2 as f64 / f64::from(self.count);
            samples.push(sample(repeat, Sample::AT_EL2, "instructions", each, Better::Neither));
        }
        if let Some(counted) = &self.exceptions {
            let all = counted.values().sum::<u64>() as f64;
            samples.push(sample(0, Sample::EXCEPTIONS, "count", all, Better::Neither));
            for (reason, count) in counted {
                let metric = format!("{}{}", Sample::EXCEPTIONS_OF, reason.name());
                samples.push(sample(0, &metric, "count", *count as f64, Better::Neither));
            }
        }
        for (metric, unit, value) in self.memory.iter().flat_map(MeasuredMemory::figures) {
            samples.push(sample(0, metric, unit, value as f64, Better::Neither));
        }
        for (metric, unit, value, better) in self.paging.iter().flat_map(Paging::figures) {
            samples.push(sample(0, &metric, unit, value as f64, better));
        }
        if let Some(Ok(profile)) = &self.profile {
            for (metric, unit, value) in profile.figures(self.count) {
                samples.push(sample(0, metric, unit, value as f64, Better::Neither));
            }
        }
        samples
    }
}

impl MeasuredMemory {
    /// Metric, unit and value of each thing that is known.
    fn figures(&self) -> Vec<(&'static str, &'static str, u64)> {
        let BatchMappings { counters, prepared, hypercalls, memory_faults } = self.mapping;
        let mut figures = vec![
            (Sample::REGIONS, "count", self.regions),
            (Sample::PREPARED, "instructions", prepared),
            (Sample::CONVERSIONS, "count", hypercalls),
            (Sample::MEMORY_FAULTS, "count", memory_faults),
        ];
        if self.guest_memfd {
            figures.push((Sample::GUEST_MEMFD, "count", 1));
        }
        let mut pages = |metrics: [&'static str; 3], pages: [u64; 3]| {
            figures.extend(metrics.into_iter().zip(pages).map(|(metric, n)| (metric, "count", n)));
        };
        if let Some(traced) = self.traced {
            pages(Sample::TRACED, traced);
        }
        if let Some(counters) = counters {
            pages(Sample::PAGES, counters.pages);
            figures.push((Sample::FAULTS, "count", counters.faults));
        }
        figures
    }
}
