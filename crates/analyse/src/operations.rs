//! Operations of a lab run: what one CPUID, one hypercall, one page touched costs in exits and in
//! instructions.
//!
//! A lab run executes each operation N times in a traced window, as a separate VM, and measures the path
//! length in batches outside of it. The samples say N and the path lengths; the exits and the time of the
//! window are those of the VM that has the workload's name. `cpuid@L2` is the operation `cpuid`, executed by
//! the guest's guest.
//!
//! Left out on purpose: whether a count is the expected one. That is the business of a budget.

use std::collections::BTreeMap;

use vmtax_events::{Detail, ExitKey, Level, Outcome, Reason, Sample, Simulated, TimeRow};

use crate::nested::is_cpuid;
use crate::{Ledger, samples};

/// What a workload's name ends with when the operation ran as L2.
pub const L2_SUFFIX: &str = "@L2";

/// The operation that executes CPUID.
pub const CPUID: &str = "cpuid";

/// The largest count that a sample can hold exactly.
const MAX_EXACT: f64 = (1u64 << 53) as f64;

/// The operations of a lab run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operations {
    /// In the order of their samples, which is the suite's. Empty for anything but a lab run.
    pub rows: Vec<OperationRow>,
}

/// One operation at one level.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationRow {
    /// The operation, without [`L2_SUFFIX`]. Hostile text.
    pub name: String,
    /// The VM that has its exits; `None` when the recording names none. Of several the first.
    pub vm: Option<u32>,
    /// Who executed it; unknown when the samples' category is neither `L1` nor `L2`.
    pub level: Level,
    /// How often it was executed in the traced window; 0 when the samples do not say.
    pub count: u64,
    /// Its exits were recorded. They are not when an observer ran beside the suite: then they are unknown, not 0.
    pub recorded: bool,
    /// Its exits: those of L2, those of L1, ancillary ones last; most first within each.
    pub exits: Vec<OperationExit>,
    /// Exits of the traced window that have no event, by the name of their reason, counted in the emulator: code at EL2 handled them by itself. `None` where nobody
    /// counted there. Hostile text.
    pub hidden: Option<Vec<(String, u64)>>,
    /// Instructions of one operation at EL2 of arm64, median of the batches; `None` where nobody counted them there.
    pub at_el2: Option<f64>,
    /// Exits of L2 that were forwarded to L1.
    pub to_l1: u64,
    /// Path lengths of the batches; `None` when there are no samples of it.
    pub path: Option<Path>,
    /// The path of an L2 operation over that of the same operation at L1 (medians).
    pub l2_over_l1: Option<f64>,
    /// What it did with memory; `None` for an operation that is not about memory.
    pub memory: Option<BatchMemory>,
    /// What its accesses to memory cost simulated processors; `None` for an operation whose accesses were not recorded.
    pub paging: Option<Paging>,
    /// How long it waited; `None` for an operation that is no step of a VM's life.
    pub waited: Option<Waited>,
    /// Where the time of the traced window went. On a lab's clock 1 ns is 1 instruction.
    pub time: TimeRow,
}

/// Exits of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationExit {
    pub level: Level,
    pub reason: Reason,
    pub detail: Detail,
    /// An exit of L1 while it handled an L2 exit of this reason.
    pub ancillary_of: Option<Reason>,
    /// How many in the traced window.
    pub count: u64,
}

/// What the recorded batch of an operation did with memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchMemory {
    /// Regions of 2 MiB that it touches.
    pub regions: u64,
    /// Page faults by KVM's counter.
    pub faults: Option<u64>,
    /// Pages of 4 KiB, 2 MiB and 1 GiB that were mapped at its end and not before, by KVM's counters.
    pub pages: Option<[u64; 3]>,
    /// The same by the recording.
    pub traced: Option<[u64; 3]>,
    /// Instructions that populated and pre-faulted it before.
    pub prepared: f64,
    /// Conversions between private and shared by hypercall.
    pub conversions: u64,
    /// Conversions at `KVM_EXIT_MEMORY_FAULT`.
    pub memory_faults: u64,
}

impl BatchMemory {
    /// So many of something for each 2 MiB.
    pub fn per_region(&self, count: u64) -> Ratio {
        Ratio { part: count, whole: self.regions }
    }

    /// Pages of 4 KiB.
    pub fn small_pages(&self) -> u64 {
        self.regions.saturating_mul(512)
    }

    /// From the samples of one workload.
    fn of(figures: &BTreeMap<&str, f64>) -> Option<BatchMemory> {
        let value = |metric: &str| figures.get(metric).copied();
        let whole = |metric: &str| {
            let value = value(metric)?;
            ((0.0..=MAX_EXACT).contains(&value) && value.fract() == 0.0).then_some(value as u64)
        };
        let pages = |[small, large, largest]: [&str; 3]| {
            Some([whole(small)?, whole(large)?, whole(largest)?])
        };
        Some(BatchMemory {
            regions: whole(Sample::REGIONS)?,
            faults: whole(Sample::FAULTS),
            pages: pages(Sample::PAGES),
            traced: pages(Sample::TRACED),
            prepared: value(Sample::PREPARED).filter(|n| n.is_finite()).unwrap_or(0.0),
            conversions: whole(Sample::CONVERSIONS).unwrap_or(0),
            memory_faults: whole(Sample::MEMORY_FAULTS).unwrap_or(0),
        })
    }
}

/// What the accesses of one batch cost simulated processors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paging {
    /// Loads and stores.
    pub accesses: u64,
    /// Instructions that the operation's code executed, and branches among them; 0 in runs before they were counted.
    pub executed: [u64; 2],
    /// Different pages of 4 KiB that were accessed, by the sizes of guest and host pages that map them: `4K on 2M`. Hostile text.
    pub pages: BTreeMap<String, u64>,
    /// By processor. Hostile text.
    pub processors: BTreeMap<String, Simulated>,
    /// By instruction: its offset in the code. Texts are hostile.
    pub instructions: BTreeMap<u64, InstructionPaging>,
    /// What the guest's kernel accessed meanwhile, if it has one. It has no instructions of its own, and its branches are not counted.
    pub kernel: Option<Box<Paging>>,
}

/// What an instruction accessed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstructionPaging {
    /// It, in Intel's syntax.
    pub text: String,
    /// Loads and stores.
    pub accesses: u64,
    pub processors: BTreeMap<String, Simulated>,
}

/// `paging-walks zen4`: puts a count where it belongs; `None` for another metric.
fn put(processors: &mut BTreeMap<String, Simulated>, metric: &str, count: u64) -> Option<()> {
    let (metric, processor) = metric.split_once(' ')?;
    let is_known = Simulated::default().set(metric, count);
    is_known.then(|| processors.entry(processor.to_owned()).or_default().set(metric, count))?;
    Some(())
}

impl InstructionPaging {
    /// `+0x9d mulss xmm0,dword ptr [rdi]; paging-walks zen4`, behind [`Sample::PAGING_AT`].
    fn add(all: &mut BTreeMap<u64, InstructionPaging>, named: &str, count: u64) -> Option<()> {
        let (place, metric) = named.rsplit_once("; ")?;
        let (offset, text) = place.split_once(' ')?;
        let offset = u64::from_str_radix(offset.strip_prefix("+0x")?, 16).ok()?;
        let one = all.entry(offset).or_default();
        one.text = text.to_owned();
        if metric == Sample::PAGING_ACCESSES {
            one.accesses = count;
            return Some(());
        }
        put(&mut one.processors, metric, count)
    }
}

impl Paging {
    /// From the samples of one workload.
    fn of(figures: &BTreeMap<&str, f64>) -> Option<Paging> {
        let mut found = Paging::default();
        let mut of_kernel = BTreeMap::new();
        let is_count = |value: f64| (0.0..=MAX_EXACT).contains(&value) && value.fract() == 0.0;
        for (metric, value) in figures.iter().filter(|(_, value)| is_count(**value)) {
            let count = *value as u64;
            if let Some(metric) = metric.strip_prefix(Sample::PAGING_KERNEL) {
                of_kernel.insert(metric, *value);
            } else if *metric == Sample::PAGING_ACCESSES {
                found.accesses = count;
            } else if let Some(at) = Sample::PAGING_EXECUTED.iter().position(|one| one == metric) {
                found.executed[at] = count;
            } else if let Some(sizes) = metric.strip_prefix(Sample::PAGING_PAGES) {
                found.pages.insert(sizes.to_owned(), count);
            } else if let Some(named) = metric.strip_prefix(Sample::PAGING_AT) {
                InstructionPaging::add(&mut found.instructions, named, count);
            } else {
                put(&mut found.processors, metric, count);
            }
        }
        // Nested no deeper, whatever a run says.
        of_kernel.retain(|metric, _| !metric.starts_with(Sample::PAGING_KERNEL));
        if !of_kernel.is_empty() {
            found.kernel = Paging::of(&of_kernel).map(Box::new);
        }
        (found.accesses > 0).then_some(found)
    }
}

/// How long a step of VMs' lives waited: the processor was idle. The path has the rest of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Waited {
    /// ns, median of the lives.
    pub median: f64,
    /// Of the life in which it waited least.
    pub min: f64,
    pub max: f64,
    pub lives: u64,
    /// Where it waited in one more life, longest first.
    pub places: Vec<WaitPlace>,
}

/// Where a step waited.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitPlace {
    /// The function that waits, then its callers. Hostile text.
    pub functions: Vec<String>,
    /// ns from there until the thread ran again.
    pub ns: f64,
}

impl Waited {
    fn of(mut waits: Vec<f64>, mut places: Vec<WaitPlace>) -> Option<Waited> {
        waits.retain(|ns| ns.is_finite() && *ns >= 0.0);
        waits.sort_by(f64::total_cmp);
        let (&min, &max) = (waits.first()?, waits.last()?);
        places.retain(|place| place.ns.is_finite());
        places.sort_by(|a, b| b.ns.total_cmp(&a.ns));
        Some(Waited {
            median: samples::median(&waits)?,
            min,
            max,
            lives: waits.len() as u64,
            places,
        })
    }

    /// Whether it waited at all.
    pub fn is_some(&self) -> bool {
        self.max > 0.0
    }

    /// Whether every life of one waited longer than every life of the other. How long a grace period takes depends on when it begins, so that
    /// medians of two kernels differ where their code does not.
    pub fn differs(&self, other: &Waited) -> bool {
        self.min > other.max || other.min > self.max
    }
}

/// Path lengths of one operation, instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// Of the batches.
    pub median: f64,
    /// Shortest.
    pub min: f64,
    /// Longest.
    pub max: f64,
    /// How far the middle half of the batches is from the median at most. A tick of a clock hits one batch, which the median leaves out too.
    pub apart: f64,
    pub batches: u64,
}

/// A quotient of counts, kept exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    pub part: u64,
    pub whole: u64,
}

impl Ratio {
    /// As a number. `None` when there is nothing to divide by.
    pub fn value(self) -> Option<f64> {
        (self.whole > 0).then(|| self.part as f64 / self.whole as f64)
    }

    /// The whole number that it is; `None` when it is none.
    pub fn exact(self) -> Option<u64> {
        (self.whole > 0 && self.part.is_multiple_of(self.whole)).then(|| self.part / self.whole)
    }
}

impl Path {
    fn of(mut lengths: Vec<f64>) -> Option<Path> {
        lengths.retain(|length| length.is_finite() && *length >= 0.0);
        lengths.sort_by(f64::total_cmp);
        let (&min, &max) = (lengths.first()?, lengths.last()?);
        let median = samples::median(&lengths)?;
        let quarter = lengths.len() / 4;
        let (low, high) = (lengths.get(quarter)?, lengths.get(lengths.len() - 1 - quarter)?);
        let apart = (median - low).max(high - median);
        Some(Path { median, min, max, apart, batches: lengths.len() as u64 })
    }

    /// (max - min) / median; `None` for a median of 0.
    pub fn spread(&self) -> Option<f64> {
        over(self.max - self.min, self.median)
    }

    /// How far off the path of another run of the same kernel may be, as a part of the median: [`Path::apart`], and at least [`STEADY`].
    pub fn tolerance(&self) -> f64 {
        over(self.apart, self.median).unwrap_or(0.0).max(STEADY)
    }

    /// The tolerance, where it is larger than that of a steady path and is to be shown with the number.
    pub fn plus_minus(&self) -> Option<f64> {
        Some(self.tolerance()).filter(|tolerance| *tolerance > STEADY)
    }

    /// Whether a path of another run is further away than both runs' tolerances together. Nothing less is a change.
    pub fn differs(&self, other: &Path) -> bool {
        let allowed = self.tolerance() * self.median + other.tolerance() * other.median;
        (self.median - other.median).abs() > allowed
    }
}

/// The tolerance of a path whose batches are alike: half a percent.
pub const STEADY: f64 = 0.005;

impl OperationRow {
    /// Exits of L1 for exits of L2 by CPUID.
    pub fn ancillary_of_cpuid(&self) -> impl Iterator<Item = &OperationExit> {
        self.exits.iter().filter(|exit| exit.ancillary_of.is_some_and(is_cpuid))
    }

    /// So many of something, for each operation.
    pub fn per_operation(&self, count: u64) -> Ratio {
        Ratio { part: count, whole: self.count }
    }

    /// All exits of an operation, ancillary ones included; no number when they were not recorded.
    pub fn exits_per_operation(&self) -> Ratio {
        let whole = if self.recorded { self.count } else { 0 };
        Ratio { part: sum(self.exits.iter()), whole }
    }

    /// Exits of L2.
    pub fn l2_exits(&self) -> u64 {
        sum(self.exits.iter().filter(|exit| exit.level == Level::L2))
    }

    /// Exits of L1 on behalf of L2.
    pub fn ancillary(&self) -> u64 {
        sum(self.exits.iter().filter(|exit| exit.ancillary_of.is_some()))
    }

    /// Ancillary exits for each exit of L2 that was forwarded to L1.
    pub fn ancillary_per_exit(&self) -> Ratio {
        Ratio { part: self.ancillary(), whole: self.to_l1 }
    }

    /// Share of the window in which the host ran: handling exits, in the kernel or in the VMM.
    pub fn share_l0(&self) -> Option<f64> {
        let t = &self.time;
        let spent = t.exit_kernel_ns.saturating_add(t.exit_user_ns).saturating_add(t.preempted_ns);
        self.share(spent)
    }

    /// Share in which L1 ran: the guest, or the guest's hypervisor.
    pub fn share_l1(&self) -> Option<f64> {
        self.share(self.time.guest_ns.saturating_sub(self.time.l2_ns))
    }

    /// Share in which L2 ran; `None` for an operation of L1.
    pub fn share_l2(&self) -> Option<f64> {
        self.share(self.time.l2_ns).filter(|_| self.level != Level::L1)
    }

    /// Share in which the vCPUs were halted.
    pub fn share_halted(&self) -> Option<f64> {
        self.share(self.time.halted_ns)
    }

    fn share(&self, part: u64) -> Option<f64> {
        (self.time.wall_ns > 0).then(|| part as f64 / self.time.wall_ns as f64)
    }
}

/// What the samples say of one workload.
#[derive(Default)]
struct WorkloadSamples<'a> {
    /// Its first sample of [`Sample::OPERATIONS`] says so.
    level: Option<Level>,
    /// Which of all samples that is.
    place: usize,
    count: u64,
    lengths: Vec<f64>,
    waits: Vec<f64>,
    places: Vec<WaitPlace>,
    step_is_recorded: bool,
    /// Exits by the name of their reason, counted in the emulator.
    exceptions: Option<BTreeMap<&'a str, u64>>,
    /// Instructions at EL2, by batch.
    at_el2: Vec<f64>,
    /// Value by metric, of other metrics.
    figures: BTreeMap<&'a str, f64>,
}

impl Operations {
    /// From the samples, exits and times of a ledger. Empty when it has no samples of [`Sample::OPERATIONS`].
    pub fn new(ledger: &Ledger) -> Operations {
        let measured = measured(&ledger.samples);
        let mut vms: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for vm in &ledger.recording.vms {
            vms.entry(&vm.name).or_default().push(vm.id);
        }
        vms.values_mut().for_each(|ids| ids.sort_unstable());
        let exits = ExitsByVm::new(ledger);
        let times = times_by_vm(ledger);
        let paths: BTreeMap<&str, Path> = measured
            .iter()
            .filter_map(|(workload, m)| Some((*workload, Path::of(m.lengths.clone())?)))
            .collect();
        let mut rows = Vec::new();
        for (workload, m) in &measured {
            let Some(level) = m.level else { continue };
            let ids = vms.get(workload).map_or(&[][..], Vec::as_slice);
            let wanted = &ledger.filter.vms;
            if !wanted.is_empty() && !ids.iter().any(|id| wanted.contains(id)) {
                continue;
            }
            let name = workload.strip_suffix(L2_SUFFIX).unwrap_or(workload);
            let path = paths.get(workload).copied();
            let at_l1 = paths.get(name).filter(|_| level == Level::L2 && name != *workload);
            let waited = Waited::of(m.waits.clone(), m.places.clone());
            let (exits, to_l1) = exits.of(ids);
            let hidden = m.exceptions.as_ref().map(|counted| hidden(counted, &exits));
            let mut time = TimeRow::default();
            ids.iter().filter_map(|id| times.get(id)).for_each(|t| time.add(t));
            let row = OperationRow {
                name: name.to_owned(),
                vm: ids.first().copied(),
                level,
                count: m.count,
                recorded: ledger.recording.coverage.exits
                    && (waited.is_none() || m.step_is_recorded),
                exits,
                hidden,
                at_el2: Path::of(m.at_el2.clone()).map(|path| path.median),
                to_l1,
                path,
                l2_over_l1: path.zip(at_l1).and_then(|(l2, l1)| over(l2.median, l1.median)),
                memory: BatchMemory::of(&m.figures),
                paging: Paging::of(&m.figures),
                waited,
                time,
            };
            rows.push((m.place, row));
        }
        rows.sort_by_key(|(place, _)| *place);
        Operations { rows: rows.into_iter().map(|(_, row)| row).collect() }
    }
}

fn measured(samples: &[Sample]) -> BTreeMap<&str, WorkloadSamples<'_>> {
    let mut workloads: BTreeMap<&str, WorkloadSamples<'_>> = BTreeMap::new();
    for (place, sample) in samples.iter().enumerate() {
        let value = sample.value;
        if sample.metric == Sample::OPERATIONS {
            let of = workloads.entry(&sample.workload).or_default();
            if of.level.is_none() {
                of.place = place;
            }
            of.level.get_or_insert(match sample.category.as_str() {
                "L1" => Level::L1,
                "L2" => Level::L2,
                _ => Level::Unknown,
            });
            if (0.0..=MAX_EXACT).contains(&value) && value.fract() == 0.0 {
                of.count = of.count.saturating_add(value as u64);
            }
        } else if sample.metric == Sample::PATH {
            workloads.entry(&sample.workload).or_default().lengths.push(value);
        } else if sample.metric == Sample::WAITED {
            workloads.entry(&sample.workload).or_default().waits.push(value);
        } else if sample.metric == Sample::AT_EL2 {
            workloads.entry(&sample.workload).or_default().at_el2.push(value);
        } else if sample.metric == Sample::STEP_RECORDED {
            workloads.entry(&sample.workload).or_default().step_is_recorded = true;
        } else if sample.metric == Sample::EXCEPTIONS {
            workloads.entry(&sample.workload).or_default().exceptions.get_or_insert_default();
        } else if let Some(reason) = sample.metric.strip_prefix(Sample::EXCEPTIONS_OF) {
            let of = workloads.entry(&sample.workload).or_default();
            let counted = of.exceptions.get_or_insert_default();
            counted.insert(reason, value.clamp(0.0, MAX_EXACT) as u64);
        } else if let Some(place) = sample.metric.strip_prefix(Sample::WAITED_IN) {
            let functions = place.split(" < ").map(str::to_owned).collect();
            let places = &mut workloads.entry(&sample.workload).or_default().places;
            places.push(WaitPlace { functions, ns: value });
        } else if sample.metric.starts_with(Sample::MEMORY)
            || sample.metric.starts_with(Sample::PAGING)
        {
            let of = workloads.entry(&sample.workload).or_default();
            of.figures.insert(&sample.metric, value);
        }
    }
    workloads
}

/// Exits that were counted in the emulator and are not among those of the recording.
fn hidden(counted: &BTreeMap<&str, u64>, exits: &[OperationExit]) -> Vec<(String, u64)> {
    let seen = |name: &str| sum(exits.iter().filter(|exit| exit.reason.name() == name));
    let rest = |(name, count): (&&str, &u64)| (name.to_string(), count.saturating_sub(seen(name)));
    counted.iter().map(rest).filter(|(_, count)| *count > 0).collect()
}

/// Exits of each VM by kind, vCPUs and outcomes added up, and how many were forwarded to L1.
struct ExitsByVm(BTreeMap<u32, (ExitKinds, u64)>);

type ExitKinds = BTreeMap<(Level, Reason, Detail, Option<Reason>), u64>;

impl ExitsByVm {
    fn new(ledger: &Ledger) -> ExitsByVm {
        let mut vms: BTreeMap<u32, (ExitKinds, u64)> = BTreeMap::new();
        for (key, tally) in &ledger.exits {
            let ExitKey { vm, level, reason, detail, outcome, ancillary_of, .. } = *key;
            let (kinds, to_l1) = vms.entry(vm).or_default();
            let count = kinds.entry((level, reason, detail, ancillary_of)).or_default();
            *count = count.saturating_add(tally.count);
            if level == Level::L2 && outcome == Outcome::L1 {
                *to_l1 = to_l1.saturating_add(tally.count);
            }
        }
        ExitsByVm(vms)
    }

    fn of(&self, ids: &[u32]) -> (Vec<OperationExit>, u64) {
        let mut all = ExitKinds::new();
        let mut all_to_l1 = 0u64;
        for (kinds, to_l1) in ids.iter().filter_map(|id| self.0.get(id)) {
            all_to_l1 = all_to_l1.saturating_add(*to_l1);
            for (kind, count) in kinds {
                let sum = all.entry(*kind).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        let mut exits: Vec<OperationExit> = all
            .into_iter()
            .map(|((level, reason, detail, ancillary_of), count)| OperationExit {
                level,
                reason,
                detail,
                ancillary_of,
                count,
            })
            .collect();
        // Stable: kinds of the same count stay in the order of their keys.
        exits.sort_by_key(|exit| {
            (exit.ancillary_of.is_some(), exit.level != Level::L2, std::cmp::Reverse(exit.count))
        });
        (exits, all_to_l1)
    }
}

fn times_by_vm(ledger: &Ledger) -> BTreeMap<u32, TimeRow> {
    let mut times: BTreeMap<u32, TimeRow> = BTreeMap::new();
    for ((vm, _), time) in &ledger.time {
        times.entry(*vm).or_default().add(&time.sum);
    }
    times
}

fn sum<'a>(exits: impl Iterator<Item = &'a OperationExit>) -> u64 {
    exits.fold(0, |sum, exit| sum.saturating_add(exit.count))
}

/// The quotient, where it is a number.
fn over(part: f64, whole: f64) -> Option<f64> {
    Some(part / whole).filter(|ratio| ratio.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(lengths: &[f64]) -> Path {
        Path::of(lengths.to_vec()).expect("lengths")
    }

    /// Of two exits by the emulator's count one was recorded; a count of zero, and more recorded than counted, hide nothing.
    #[test]
    fn exits_without_events_are_those_that_the_recording_lacks() {
        let exit = |name: &str, count| OperationExit {
            level: Level::L1,
            reason: Reason::from_name(vmtax_events::Isa::Arm, name).expect("known"),
            detail: Detail::NONE,
            ancillary_of: None,
            count,
        };
        let counted = BTreeMap::from([("SYS64", 40), ("IRQ", 1), ("HVC64", 20), ("WFx", 0)]);
        let exits = [exit("SYS64", 20), exit("SYS64", 5), exit("IRQ", 2), exit("HVC64", 20)];
        assert_eq!(hidden(&counted, &exits), [("SYS64".to_owned(), 15)]);
    }

    /// A tick hits one batch; batches that alternate between two lengths are no single number.
    #[test]
    fn a_tolerance_leaves_out_single_batches() {
        let steady = path(&[1000.0, 1000.0, 1001.0, 1000.0, 9000.0]);
        assert_eq!((steady.tolerance(), steady.plus_minus()), (STEADY, None));
        let alternating = path(&[1000.0, 1100.0, 1000.0, 1100.0, 1000.0]);
        assert_eq!((alternating.median, alternating.plus_minus()), (1000.0, Some(0.1)));
        assert_eq!(path(&[0.0, 0.0]).tolerance(), STEADY);
    }

    #[test]
    fn paths_differ_by_more_than_both_tolerances() {
        let steady = |median: f64| path(&[median; 5]);
        for (other, differs) in [(1000.0, false), (1010.0, false), (1010.1, true), (989.0, true)] {
            assert_eq!(steady(1000.0).differs(&steady(other)), differs, "{other}");
            assert_eq!(steady(other).differs(&steady(1000.0)), differs, "{other}");
        }
        let alternating = path(&[1000.0, 1100.0, 1000.0, 1100.0, 1000.0]);
        assert!(!alternating.differs(&steady(1100.0)));
        assert!(alternating.differs(&steady(1200.0)));
    }
}
