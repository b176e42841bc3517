//! The ledger of a run or a recording, and filters of VMs and vCPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use vmtax_analyse::ledger::{ACCESSES_ALONE, TakenTime, Taker, handled_ns};
use vmtax_analyse::{Filter, Ledger, LedgerBuilder};
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::progress::ReadingProgress;
use vmtax_events::{
    AccessRow, CallRow, Detail, Device, ExitKey, ExitRow, Isa, Losses, PreemptedRow, Profile,
    Recording as Facts, RowSink, Sample, ScheduledRow, Stat, Tally, TimeRow, Vm,
};
use vmtax_store::Run;

use crate::convert;
use crate::input::{Input, RecordingInput};
use crate::{ReadOptions, read_fault};

/// The ledger of a run or a recording.
pub fn of_path(path: &Path, reading: &ReadOptions, filter: Filter) -> anyhow::Result<Ledger> {
    of_opened(Input::open(path)?, reading, filter)
}

/// The same of an opened input.
pub fn of_opened(input: Input, reading: &ReadOptions, filter: Filter) -> anyhow::Result<Ledger> {
    check_reading(reading, &input)?;
    of_input(input, reading, filter)
}

/// Two ledgers, read at the same time. Standard input can be one of them. When neither can be read, the error is that of the
/// first.
pub fn both<A: Send, B: Send>(
    first: impl FnOnce() -> anyhow::Result<A> + Send,
    second: impl FnOnce() -> anyhow::Result<B> + Send,
) -> anyhow::Result<(A, B)> {
    std::thread::scope(|scope| {
        let second = scope.spawn(second);
        let first = first();
        let second = second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((first?, second?))
    })
}

/// The ledger of sums, which have no place in time: exits, times of vCPUs, and who had the processors of preempted ones.
pub(crate) fn of_sums<'a>(
    exits: impl IntoIterator<Item = (&'a ExitKey, &'a Tally)>,
    times: impl IntoIterator<Item = &'a TimeRow>,
    taken_by: impl IntoIterator<Item = ((u32, u32), &'a Taker, TakenTime)>,
    (facts, losses, complete): (&Facts, Losses, bool),
) -> Ledger {
    // One interval holds all.
    let mut builder = LedgerBuilder::new(Filter::default(), 1);
    for (key, tally) in exits {
        builder.exit(&ExitRow { interval_start_ns: 0, key: *key, tally: tally.clone() });
    }
    times.into_iter().for_each(|time| builder.time(time));
    for (vcpu, taker, taken) in taken_by {
        builder.taken_by(vcpu, taker.clone(), taken);
    }
    builder.finish(facts.clone(), losses, complete)
}

/// The ledger of an opened input.
pub fn of_input(input: Input, reading: &ReadOptions, filter: Filter) -> anyhow::Result<Ledger> {
    match input {
        Input::Run(run) => of_run(&run, filter, &reading.progress),
        Input::Recording(recording) => of_recording(recording, reading, filter),
    }
}

/// Refuses numeric exit reasons of an unknown vendor: they have no cause.
pub fn check_isa(source: &str, ledger: &Ledger) -> anyhow::Result<()> {
    let mut reasons = ledger.exits.keys().map(|key| key.reason).peekable();
    if reasons.peek().is_some() && reasons.all(|reason| reason.isa == Isa::Unknown) {
        let source = vmtax_events::printable(source);
        return fail(
            Code::Usage,
            format!(
                "{source}: has numeric exit reasons, which differ between Intel, AMD and arm64; add --isa intel, --isa amd or --isa arm64"
            ),
        );
    }
    Ok(())
}

/// The same of a recording.
const EVENTS_ALONE: &str = "The recording has accesses and no exits: record kvm:kvm_exit and kvm:kvm_entry too (`perf record -a -e 'kvm:*'`).";
/// Accesses that are named.
const NAMED: usize = 3;

/// Refuses accesses without exits: nothing can be concluded of them alone. What is accessed most is said.
///
/// # Errors
/// When the input holds such accesses.
pub fn check_exits(source: &str, ledger: &Ledger) -> anyhow::Result<()> {
    if !ledger.exits.is_empty() || ledger.accesses.is_empty() {
        return Ok(());
    }
    let alone = if ledger.recording.is_table() { ACCESSES_ALONE } else { EVENTS_ALONE };
    let mut counts: BTreeMap<Detail, u64> = BTreeMap::new();
    for (key, tally) in &ledger.accesses {
        *counts.entry(key.detail).or_default() += tally.count;
    }
    let mut counts: Vec<(Detail, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let most = counts.iter().take(NAMED).map(|(detail, count)| {
        let device =
            Device::of(ledger.isa(), *detail).map(|device| format!(" ({})", device.name()));
        format!("{}{} x {count}", vmtax_report::names::detail(*detail), device.unwrap_or_default())
    });
    let most = most.collect::<Vec<_>>().join(", ");
    let source = vmtax_events::printable(source);
    fail(Code::Data, format!("{source}: {alone} Most are: {most}"))
}

/// The ledger of a recording.
pub fn of_recording(
    recording: RecordingInput,
    reading: &ReadOptions,
    filter: Filter,
) -> anyhow::Result<Ledger> {
    let rows = ToLedger(LedgerBuilder::new(filter, reading.interval_ns()));
    let converted = convert::run(recording, reading, rows)?;
    let complete = converted.losses.truncated.is_empty();
    Ok(converted.rows.0.finish(converted.facts, converted.losses, complete))
}

/// The ledger of a run.
pub fn of_run(run: &Run, filter: Filter, progress: &ReadingProgress) -> anyhow::Result<Ledger> {
    let manifest = run.manifest();
    let mut rows = ToLedger(LedgerBuilder::new(filter, manifest.interval_ns));
    let share = progress.begin(Some(run.bytes()));
    let read = run.read_watched(&mut rows, &|bytes| share.advance(bytes));
    let read = read.map_err(|e| read_fault(&e))?;
    let complete = run.is_complete() && read.losses.truncated.is_empty();
    let ledger = rows.0.finish(manifest.recording.clone(), read.losses, complete);
    if complete {
        check_sums(run, &ledger)?;
    }
    Ok(ledger)
}

/// Refuses a run whose exits took another time than its vCPUs spent in exits: rows of one of the two tables are missing.
fn check_sums(run: &Run, ledger: &Ledger) -> anyhow::Result<()> {
    let time = ledger.time_total();
    let (spent, took) = (handled_ns(&time), ledger.total().time_ns);
    let agree = |spent: u64| took.abs_diff(spent) <= spent.max(took) / 100;
    // A table of counts has no times of vCPUs; of older runs, preempted time is in those of exits.
    if ledger.time.is_empty() || agree(spent) || agree(spent.saturating_add(time.preempted_ns)) {
        return Ok(());
    }
    let folder = run.folder().display();
    let seconds = |ns: u64| ns as f64 / 1e9;
    fail(
        Code::Data,
        format!(
            "{folder}: its exits took {:.6} s, and its vCPUs spent {:.6} s in exits: a part of the run is missing (segments in run.json?); copy the run again, or import again",
            seconds(took),
            seconds(spent)
        ),
    )
}

/// The ledger of a run whose counts are compared exactly.
pub fn of_whole_run(run: &Run) -> anyhow::Result<Ledger> {
    whole(of_run(run, Filter::default(), &ReadingProgress::default())?)
}

/// Refuses what is damaged: its counts are too low.
///
/// # Errors
/// Where the damage is.
pub fn whole(ledger: Ledger) -> anyhow::Result<Ledger> {
    if ledger.losses.truncated.is_empty() {
        return Ok(ledger);
    }
    let damage = ledger.losses.truncated.join("; ");
    fail(Code::Data, format!("{damage}; copy the run again, or measure again"))
}

/// A sink that makes a ledger of rows.
#[derive(Debug)]
pub struct ToLedger(pub LedgerBuilder);

impl RowSink for ToLedger {
    fn exit(&mut self, row: &ExitRow) {
        self.0.exit(row);
    }

    fn access(&mut self, row: &AccessRow) {
        self.0.access(row);
    }

    fn time(&mut self, row: &TimeRow) {
        self.0.time(row);
    }

    fn preempted(&mut self, row: &PreemptedRow) {
        self.0.preempted(row);
    }

    fn scheduled(&mut self, row: &ScheduledRow) {
        self.0.scheduled(row);
    }

    fn sample(&mut self, sample: &Sample) {
        self.0.sample(sample);
    }

    fn stat(&mut self, stat: &Stat) {
        self.0.stat(stat);
    }

    fn call(&mut self, row: &CallRow) {
        self.0.call(row);
    }

    fn profile(&mut self, profile: Profile) {
        self.0.profile(profile);
    }
}

/// Whether a run holds single events.
pub fn has_events(run: &Run) -> bool {
    run.manifest().segments_of(vmtax_store::StoredTable::Events).next().is_some()
}

/// Refuses flags for recordings if the input is a run, which was read when it was imported.
pub fn check_reading(reading: &ReadOptions, input: &Input) -> anyhow::Result<()> {
    match (input, reading.given()) {
        (Input::Run(run), Some(flag)) => fail(
            Code::Usage,
            format!(
                "{flag}: {} is a run, counted when it was imported; give the flag to `vmtax import`",
                run.folder().display()
            ),
        ),
        _ => Ok(()),
    }
}

/// Refuses a filter with an unknown VM or vCPU: an empty report would look as if there had been no exits.
pub fn check_filter(filter: &Filter, ledger: &Ledger) -> anyhow::Result<()> {
    let vms = &ledger.recording.vms;
    for id in &filter.vms {
        // The list of an incomplete run may be short of VMs that its rows have.
        let has_rows = ledger.exits.keys().any(|key| key.vm == *id);
        if !has_rows && !vms.iter().any(|vm| vm.id == *id) {
            return no_such_vm(&id.to_string(), vms);
        }
    }
    let seen: BTreeSet<u32> = ledger.exits.keys().map(|key| key.vcpu).collect();
    match filter.vcpus.iter().find(|id| !seen.contains(id)) {
        Some(id) => fail(
            Code::Data,
            format!("--vcpu {id}: no exits of this vCPU; `--by vm,vcpu` lists the vCPUs"),
        ),
        None => Ok(()),
    }
}

fn no_such_vm(name: &str, vms: &[Vm]) -> anyhow::Result<()> {
    let known: Vec<String> = vms.iter().map(|vm| format!("{} ({})", vm.id, vm.name)).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    fail(Code::Data, format!("--vm {name}: no such VM; known VMs: {known}"))
}

/// The filter by id. Names of VMs are looked up first, in a pass of their own over the input.
pub fn filter(
    input: &Path,
    vms: &[String],
    vcpus: &[u32],
    reading: &ReadOptions,
) -> anyhow::Result<Filter> {
    let mut filter = Filter { vms: BTreeSet::new(), vcpus: vcpus.iter().copied().collect() };
    let mut names = Vec::new();
    for vm in vms {
        match vm.parse() {
            Ok(id) => {
                filter.vms.insert(id);
            }
            Err(_) => names.push(vm),
        }
    }
    if names.is_empty() {
        return Ok(filter);
    }
    if input.as_os_str() == "-" {
        return fail(Code::Usage, "--vm: standard input can be read only once; give the VM's id");
    }
    let vms = match Input::open(input)? {
        Input::Run(run) => run.manifest().recording.vms.clone(),
        Input::Recording(recording) => {
            of_recording(recording, reading, Filter::default())?.recording.vms
        }
    };
    for name in names {
        let ids: Vec<u32> = vms.iter().filter(|vm| vm.name == *name).map(|vm| vm.id).collect();
        if ids.is_empty() {
            no_such_vm(name, &vms)?;
        }
        filter.vms.extend(ids);
    }
    Ok(filter)
}
