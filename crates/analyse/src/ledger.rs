//! The ledger: everything a report needs, built from rows.

mod counted;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use vmtax_events::observed::Observed;
use vmtax_events::{
    AccessKey, AccessRow, CallRow, Cause, DetailKind, ExitKey, ExitRow, Isa, Level, Losses,
    NO_VCPU, Outcome, PreemptedRow, Profile, ProfileOrigin, Recording, Sample, ScheduledRow, Stat,
    Tally, TimeRow,
};

use crate::calls::CallTree;
use crate::cause::cause_of;
use crate::emulation::by_speed;
use crate::timeline::Timeline;
pub use counted::ACCESSES_ALONE;

/// Which VMs and vCPUs to look at. Empty lists mean all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// [`vmtax_events::Vm::id`]s.
    pub vms: BTreeSet<u32>,
    /// KVM vCPU ids.
    pub vcpus: BTreeSet<u32>,
}

impl Filter {
    /// Whether rows of this vCPU are wanted.
    pub fn wants(&self, vm: u32, vcpu: u32) -> bool {
        (self.vms.is_empty() || self.vms.contains(&vm))
            && (self.vcpus.is_empty() || self.vcpus.contains(&vcpu))
    }
}

/// The time split of one vCPU over the whole recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuTime {
    /// Sums; `interval_start_ns` is the first interval's.
    pub sum: TimeRow,
}

impl VcpuTime {
    /// See [`tax`].
    pub fn tax(&self) -> Option<f64> {
        tax(&self.sum)
    }

    /// See [`contention`].
    pub fn contention(&self) -> Option<f64> {
        contention(&self.sum)
    }
}

/// Wall time less halted and unknown time, ns: what shares of running time are shares of. What happened in the unknown time (events
/// were lost) is no part of either.
pub fn running_ns(t: &TimeRow) -> u64 {
    t.wall_ns.saturating_sub(t.halted_ns).saturating_sub(t.unknown_ns)
}

/// The exit tax if the unknown time held no exits, and if it held nothing else. `None` without unknown time.
pub fn tax_range(t: &TimeRow) -> Option<[f64; 2]> {
    let exits = t.exit_kernel_ns.saturating_add(t.exit_user_ns);
    let running = running_ns(t);
    let all = running.saturating_add(t.unknown_ns) as f64;
    let most = exits.saturating_add(t.unknown_ns) as f64;
    (t.unknown_ns > 0 && running > 0).then(|| [exits as f64 / all, most / all])
}

fn of_running(part_ns: u64, t: &TimeRow) -> Option<f64> {
    let base = running_ns(t);
    (base > 0).then(|| part_ns as f64 / base as f64)
}

/// The exit tax, what being a VM costs: (exit-kernel + exit-user) / (wall - halted - unknown). `None` without
/// running time.
pub fn tax(t: &TimeRow) -> Option<f64> {
    of_running(t.exit_kernel_ns.saturating_add(t.exit_user_ns), t)
}

/// Time in exits without preempted time, ns: the sum of the times of exits.
pub fn handled_ns(t: &TimeRow) -> u64 {
    t.exit_kernel_ns.saturating_add(t.exit_user_ns).saturating_add(t.halted_ns)
}

/// Contention, what sharing the processor costs: preempted / (wall - halted - unknown). It is never added to the exit tax. `None`
/// without running time.
pub fn contention(t: &TimeRow) -> Option<f64> {
    of_running(t.preempted_ns, t)
}

/// How often, and for how long, a thread had the CPU that a vCPU waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenTime {
    /// How often it was given the CPU.
    pub count: u64,
    pub time_ns: u64,
}

impl TakenTime {
    pub fn add(&mut self, other: TakenTime) {
        self.count = self.count.saturating_add(other.count);
        self.time_ns = self.time_ns.saturating_add(other.time_ns);
    }
}

/// A thread that had the CPU which a vCPU waited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taker {
    /// Its name; hostile text.
    pub name: Arc<str>,
    /// The VM and the vCPU that it runs, if that is known.
    pub vcpu: Option<(u32, u32)>,
    /// It runs another vCPU of the VM that waited.
    pub is_own: bool,
}

impl Taker {
    /// The thread of a row.
    pub fn of(row: &PreemptedRow) -> Taker {
        let is_own = row.by_vcpu.is_some_and(|(vm, _)| vm == row.key.vm);
        Taker { name: row.by.clone(), vcpu: row.by_vcpu, is_own }
    }

    /// One for all threads of its kind, so that there are few: vCPUs of the VM that waited, of others, and names without the
    /// processor (`kworker/3:1-events`, `ksoftirqd/3`).
    #[must_use]
    pub fn group(&self) -> Taker {
        let name = match self.vcpu {
            Some(_) if self.is_own => "vCPU of the same VM",
            Some(_) => "vCPU of another VM",
            None => match self.name.split_once('/') {
                Some((kind, rest))
                    if rest.starts_with(|c: char| c.is_ascii_digit() || c == 'u') =>
                {
                    kind
                }
                _ => &self.name,
            },
        };
        Taker { name: Arc::from(name), vcpu: None, is_own: self.is_own }
    }

    /// It is the program that made the recording: what it takes is a cost of recording. (`vmtax`, perf, trace-cmd and bpftrace run under
    /// their own names.)
    pub fn is_recorder(&self, recording: &Recording) -> bool {
        let tools =
            [("live", "vmtax"), ("perf", "perf"), ("trace", "trace-cmd"), ("bpftrace", "bpftrace")];
        let name = tools.iter().find(|(format, _)| recording.format.starts_with(format));
        self.vcpu.is_none() && name.is_some_and(|(_, name)| *self.name == **name)
    }

    /// The vCPU that it runs, else its name, and whether it is the recorder. Hostile text.
    pub fn who(&self, recording: &Recording) -> String {
        let Some((vm, vcpu)) = self.vcpu else {
            let recorder = if self.is_recorder(recording) { " (the recorder)" } else { "" };
            return format!("{}{recorder}", self.name);
        };
        let vcpu = match vcpu {
            NO_VCPU => "a vCPU".to_owned(),
            vcpu => format!("vCPU {vcpu}"),
        };
        if self.is_own {
            return format!("{vcpu} of the same VM");
        }
        let named = recording.vms.iter().find(|known| known.id == vm && !known.name.is_empty());
        let vm = named.map_or_else(|| vm.to_string(), |known| format!("{} {vm}", known.name));
        format!("{vcpu} of VM {vm}")
    }

    /// The same with the thread's name. Hostile text.
    pub fn label(&self, recording: &Recording) -> String {
        match self.vcpu {
            Some(_) => format!("{} ({})", self.who(recording), self.name),
            None => self.who(recording),
        }
    }
}

/// What a VM of several lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VmLoss {
    /// [`vmtax_events::Vm::id`].
    pub vm: u32,
    /// The time split of its vCPUs together.
    pub time: TimeRow,
}

impl VmLoss {
    /// Part of its wall time that exits and waiting for a processor took. A VM that is idle lost little by it, whatever the
    /// share of its running time.
    pub fn lost(&self) -> f64 {
        let t = &self.time;
        let lost = t.exit_kernel_ns.saturating_add(t.exit_user_ns).saturating_add(t.preempted_ns);
        lost as f64 / t.wall_ns.max(1) as f64
    }

    /// It ran less than a tenth of the time.
    pub fn is_idle(&self) -> bool {
        running_ns(&self.time) < self.time.wall_ns / 10
    }
}

/// The result of an analysis.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// What the recording says of itself, and its VMs.
    pub recording: Recording,
    pub losses: Losses,
    /// The recording or run ended as it should.
    pub complete: bool,
    /// Start of the first interval with an exit or time, on the recorder's clock.
    pub start_ns: u64,
    /// End of the last one.
    pub end_ns: u64,
    /// Exits, added up over time.
    pub exits: BTreeMap<ExitKey, Tally>,
    /// Accesses, added up over time.
    pub accesses: BTreeMap<AccessKey, Tally>,
    /// Time split by (VM, vCPU).
    pub time: BTreeMap<(u32, u32), VcpuTime>,
    /// The part of the time of exits in which their vCPU was preempted, ns, where the recording has who ran meanwhile.
    pub preempted: BTreeMap<ExitKey, u64>,
    /// Who had the CPU of preempted vCPUs: (VM, vCPU, thread).
    pub taken_by: BTreeMap<(u32, u32, Taker), TakenTime>,
    /// Exits over time by cause.
    pub timeline: Timeline,
    /// Measured values of a lab or benchmark run, as stored.
    pub samples: Vec<Sample>,
    /// Counters that were read now and then, as stored.
    pub stats: Vec<Stat>,
    /// What texts of ordinary tools show.
    pub observed: Vec<Observed>,
    /// Profiles, at most one of a place.
    pub profiles: BTreeMap<ProfileOrigin, Profile>,
    /// Call trees of a lab run's operations, by workload.
    pub calls: BTreeMap<String, CallTree>,
    /// What the exits, accesses and times were limited to.
    pub filter: Filter,
}

impl Ledger {
    /// Whose exits these are, by the first reason that says it.
    pub fn isa(&self) -> Isa {
        let known = self.exits.keys().map(|key| key.reason.isa).find(|isa| *isa != Isa::Unknown);
        known.unwrap_or(Isa::Unknown)
    }

    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        for tally in self.exits.values() {
            total.merge(tally);
        }
        total
    }

    /// How long was recorded, ns; 0 when nothing says.
    ///
    /// The ledger's own span is rounded out to whole intervals. The longest wall time of a vCPU is exact,
    /// and is used where it fills the span.
    pub fn duration_ns(&self) -> u64 {
        let span = self.end_ns.saturating_sub(self.start_ns);
        let wall = self.time.values().map(|t| t.sum.wall_ns).max().unwrap_or(0);
        let rounding = self.timeline.step_ns.saturating_mul(2);
        if wall > 0 && span.saturating_sub(wall) <= rounding { wall } else { span }
    }

    /// Exits per second; `None` when nothing says how long was recorded.
    pub fn exits_per_second(&self) -> Option<f64> {
        let seconds = self.duration_ns() as f64 / 1e9;
        (seconds > 0.0).then(|| self.total().count as f64 / seconds)
    }

    /// How long was recorded, ns; `None` where nothing says: a dump of counts has exits and no length.
    pub fn length_ns(&self) -> Option<u64> {
        Some(self.duration_ns()).filter(|ns| *ns > 0)
    }

    /// The time split of all vCPUs together.
    pub fn time_total(&self) -> TimeRow {
        let mut sum = TimeRow::default();
        for t in self.time.values() {
            sum.add(&t.sum);
        }
        sum
    }

    /// The exit tax of all vCPUs together.
    pub fn tax(&self) -> Option<f64> {
        tax(&self.time_total())
    }

    /// The contention of all vCPUs together; `None` where the recording cannot tell.
    pub fn contention(&self) -> Option<f64> {
        contention(&self.time_total()).filter(|_| self.recording.coverage.sched)
    }

    /// Each VM by what it lost, the worst first.
    pub fn vms_by_loss(&self) -> Vec<VmLoss> {
        let mut sums: BTreeMap<u32, TimeRow> = BTreeMap::new();
        for ((vm, _), time) in &self.time {
            sums.entry(*vm).or_default().add(&time.sum);
        }
        let mut all: Vec<VmLoss> = sums.into_iter().map(|(vm, time)| VmLoss { vm, time }).collect();
        all.sort_by(|a, b| b.lost().total_cmp(&a.lost()).then(a.vm.cmp(&b.vm)));
        all
    }

    /// What concerns this VM, and what concerns none.
    #[must_use]
    pub fn of_vm(&self, vm: u32) -> Ledger {
        let mut only = self.clone();
        only.exits.retain(|key, _| key.vm == vm);
        only.accesses.retain(|key, _| key.vm == vm);
        only.time.retain(|key, _| key.0 == vm);
        only.preempted.retain(|key, _| key.vm == vm);
        only.taken_by.retain(|key, _| key.0 == vm);
        only.stats.retain(|stat| stat.vm == vm || stat.vm == Stat::HOST);
        only.filter.vms = BTreeSet::from([vm]);
        only
    }

    /// Who had the CPU of preempted vCPUs, most time first.
    pub fn takers(&self) -> Vec<(&Taker, TakenTime)> {
        let mut sums: BTreeMap<&Taker, TakenTime> = BTreeMap::new();
        for ((_, _, taker), taken) in &self.taken_by {
            sums.entry(taker).or_default().add(*taken);
        }
        let mut takers: Vec<_> = sums.into_iter().collect();
        takers.sort_by_key(|(taker, taken)| (std::cmp::Reverse(taken.time_ns), *taker));
        takers
    }

    /// Time that vCPUs waited while the recorder had their processors, ns: a part of their contention.
    pub fn recorder_ns(&self) -> u64 {
        let own =
            self.taken_by.iter().filter(|((.., taker), _)| taker.is_recorder(&self.recording));
        own.fold(0, |sum, (_, taken)| sum.saturating_add(taken.time_ns))
    }

    /// Exits by cause, most time first.
    pub fn causes(&self) -> Vec<(Cause, Tally)> {
        let mut causes: BTreeMap<Cause, Tally> = BTreeMap::new();
        for (key, tally) in &self.exits {
            causes.entry(cause_of(key)).or_default().merge(tally);
        }
        let mut causes: Vec<_> = causes.into_iter().collect();
        causes.sort_by(|(a, x), (b, y)| {
            (y.time_ns, y.count).cmp(&(x.time_ns, x.count)).then(a.cmp(b))
        });
        causes
    }

    /// Some exit came from L2, or a VM nests without the recording telling the levels apart.
    pub fn has_nesting(&self) -> bool {
        self.exits.keys().any(|k| k.level != Level::L1)
    }
}

/// Builds a [`Ledger`] from rows, whether they come from a file or from a run.
#[derive(Debug)]
pub struct LedgerBuilder {
    filter: Filter,
    interval_ns: u64,
    /// Boxed: half of a hash table's places may be free, and tallies are large.
    exits: FxHashMap<ExitKey, Box<Tally>>,
    accesses: FxHashMap<AccessKey, Box<Tally>>,
    time: BTreeMap<(u32, u32), VcpuTime>,
    preempted: BTreeMap<ExitKey, u64>,
    taken_by: BTreeMap<(u32, u32, Taker), TakenTime>,
    timeline: Timeline,
    samples: Vec<Sample>,
    stats: Vec<Stat>,
    observed: Vec<Observed>,
    profiles: BTreeMap<ProfileOrigin, Profile>,
    calls: BTreeMap<String, CallTree>,
    span: Option<(u64, u64)>,
}

impl LedgerBuilder {
    /// `interval_ns` is the length of the rows' intervals.
    pub fn new(filter: Filter, interval_ns: u64) -> LedgerBuilder {
        LedgerBuilder {
            filter,
            interval_ns,
            exits: FxHashMap::default(),
            accesses: FxHashMap::default(),
            time: BTreeMap::new(),
            preempted: BTreeMap::new(),
            taken_by: BTreeMap::new(),
            timeline: Timeline::new(interval_ns),
            samples: Vec::new(),
            stats: Vec::new(),
            observed: Vec::new(),
            profiles: BTreeMap::new(),
            calls: BTreeMap::new(),
            span: None,
        }
    }

    pub fn exit(&mut self, row: &ExitRow) {
        if !self.filter.wants(row.key.vm, row.key.vcpu) {
            return;
        }
        self.exits.entry(row.key).or_default().merge(&row.tally);
        if row.tally.timed > 0 {
            self.timeline.add(row, cause_of(&row.key));
            self.extend_span(row.interval_start_ns);
        }
    }

    pub fn access(&mut self, row: &AccessRow) {
        if self.filter.wants(row.key.vm, row.key.vcpu) {
            self.accesses.entry(row.key).or_default().merge(&row.tally);
        }
    }

    /// Adds a vCPU's time.
    pub fn time(&mut self, row: &TimeRow) {
        if !self.filter.wants(row.vm, row.vcpu) {
            return;
        }
        self.extend_span(row.interval_start_ns);
        self.time
            .entry((row.vm, row.vcpu))
            .and_modify(|t| t.sum.add(row))
            .or_insert(VcpuTime { sum: *row });
    }

    /// Adds who had the CPU of preempted vCPUs.
    pub fn preempted(&mut self, row: &PreemptedRow) {
        if !self.filter.wants(row.key.vm, row.key.vcpu) {
            return;
        }
        let sum = self.preempted.entry(row.key).or_default();
        *sum = sum.saturating_add(row.time_ns);
        let taken = TakenTime { count: row.count, time_ns: row.time_ns };
        self.taken_by((row.key.vm, row.key.vcpu), Taker::of(row), taken);
    }

    /// Adds the time that a thread had the CPU of a preempted vCPU, where exits are not told apart.
    pub fn taken_by(&mut self, (vm, vcpu): (u32, u32), taker: Taker, taken: TakenTime) {
        self.taken_by.entry((vm, vcpu, taker)).or_default().add(taken);
    }

    /// Adds what vCPUs waited in a recording of the scheduler alone. Which VM they are of is not known.
    pub fn scheduled(&mut self, row: &ScheduledRow) {
        let share = row.waited_ns as f64 / row.ran_ns.saturating_add(row.waited_ns).max(1) as f64;
        self.observed(Observed::Delayed(share));
        let late = &row.wake_ups;
        if let Some(mean_ns) = late.time_ns.checked_div(late.count) {
            let (count, most_ns) = (late.count, late.max_ns);
            self.observed(Observed::LateRuns { count, mean_ns, most_ns });
        }
        for (name, (count, time_ns)) in &row.takers {
            let taker = Taker { name: Arc::from(name.as_str()), vcpu: None, is_own: false };
            self.taken_by((0, NO_VCPU), taker, TakenTime { count: *count, time_ns: *time_ns });
        }
    }

    /// Adds a measured value. Samples belong to workloads, so no filter leaves one out.
    pub fn sample(&mut self, sample: &Sample) {
        self.samples.push(sample.clone());
    }

    /// Adds a counter of a VM that is wanted, or of the host.
    pub fn stat(&mut self, stat: &Stat) {
        let wanted = self.filter.vms.is_empty() || self.filter.vms.contains(&stat.vm);
        if wanted || stat.vm == Stat::HOST {
            self.stats.push(stat.clone());
        }
    }

    /// Adds what a tool shows.
    pub fn observed(&mut self, observed: Observed) {
        self.observed.push(observed);
    }

    /// Adds a profile. It does not tell VMs apart, so no filter leaves one out.
    pub fn profile(&mut self, profile: Profile) {
        self.profiles.insert(profile.place, profile);
    }

    /// Adds a node of a call tree. They belong to workloads, so no filter leaves one out.
    pub fn call(&mut self, row: &CallRow) {
        if let Some(tree) = self.calls.get_mut(&row.workload) {
            tree.push(row);
        } else {
            let mut tree = CallTree::default();
            tree.push(row);
            self.calls.insert(row.workload.clone(), tree);
        }
    }

    /// Whether times of exits include the time that their vCPU was preempted, as those of older runs do.
    fn has_gross_times(&self) -> bool {
        let time = self.time.values().fold(TimeRow::default(), |mut sum, time| {
            sum.add(&time.sum);
            sum
        });
        let exits = self.exits.values().fold(0u64, |sum, tally| sum.saturating_add(tally.time_ns));
        let net = handled_ns(&time);
        let gross = net.saturating_add(time.preempted_ns);
        exits.abs_diff(gross) < exits.abs_diff(net)
    }

    fn extend_span(&mut self, start: u64) {
        let end = start.saturating_add(self.interval_ns);
        self.span = Some(match self.span {
            Some((a, b)) => (a.min(start), b.max(end)),
            None => (start, end),
        });
    }

    /// The ledger. What the recording could not see is turned into "unknown" here, for files and
    /// runs alike.
    pub fn finish(self, mut recording: Recording, mut losses: Losses, complete: bool) -> Ledger {
        let nesting_vms: BTreeSet<u32> =
            self.exits.keys().filter(|k| enters_guest(k)).map(|k| k.vm).collect();
        let coverage = recording.coverage;
        let known = |mut key: ExitKey| {
            if !coverage.nested && nesting_vms.contains(&key.vm) {
                key.level = Level::Unknown;
            }
            // Without kvm_mmio an address is known from kvm_fast_mmio alone: an ioeventfd of the kernel took the write. Nested page
            // faults have it themselves.
            let by_fast_mmio = !coverage.mmio
                && key.detail.kind == DetailKind::MmioWrite
                && key.reason.isa != Isa::Svm;
            if !coverage.userspace && key.outcome == Outcome::Kernel && !by_fast_mmio {
                key.outcome = Outcome::Unknown;
            }
            key
        };
        let is_gross = self.has_gross_times();
        let mut exits: BTreeMap<ExitKey, Tally> = BTreeMap::new();
        for (key, mut tally) in self.exits {
            let away = self.preempted.get(&key).filter(|_| is_gross);
            tally.time_ns = tally.time_ns.saturating_sub(away.copied().unwrap_or(0));
            exits.entry(known(key)).or_default().merge(&tally);
        }
        if recording.emulated.is_none() {
            recording.emulated = by_speed(&exits);
        }
        let mut preempted: BTreeMap<ExitKey, u64> = BTreeMap::new();
        for (key, time_ns) in self.preempted {
            let sum = preempted.entry(known(key)).or_default();
            *sum = sum.saturating_add(time_ns);
        }
        let mut accesses: BTreeMap<AccessKey, Tally> = BTreeMap::new();
        for (mut key, tally) in self.accesses {
            if !coverage.nested && nesting_vms.contains(&key.vm) {
                key.level = Level::Unknown;
            }
            accesses.entry(key).or_default().merge(&tally);
        }
        // Of counts that another tool printed nothing says how long they took: the interval of their rows is no length.
        let is_counted = self.time.is_empty() && recording.is_table();
        if is_counted {
            counted::split(&mut exits, &accesses, &mut losses);
        }
        let (start_ns, end_ns) = self.span.filter(|_| !is_counted).unwrap_or_default();
        let timeline = if is_counted { Timeline::new(self.interval_ns) } else { self.timeline };
        Ledger {
            recording,
            losses,
            complete,
            start_ns,
            end_ns,
            exits,
            accesses,
            time: self.time,
            preempted,
            taken_by: self.taken_by,
            timeline,
            samples: self.samples,
            stats: self.stats,
            observed: self.observed,
            profiles: self.profiles,
            calls: self.calls.into_iter().map(|(name, tree)| (name, tree.summed())).collect(),
            filter: self.filter,
        }
    }
}

/// An exit by which a hypervisor inside the VM starts its own guest.
fn enters_guest(key: &ExitKey) -> bool {
    Cause::of(key.reason, key.detail, false) == Cause::NestedEntry
}
