//! `vmtax report`: a run or a recording -> a report.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use vmtax_analyse::calls::profiled;
use vmtax_analyse::{
    Accountant, Exit, Filter, Ledger, LedgerBuilder, Nested, Operations, RowSink, Table, TableKind,
};
use vmtax_analyse::{Arranged, By, CallTree, Profiled};
use vmtax_events::{
    AccessRow, CallRow, ExitRow, Isa, PreemptedRow, Profile, Sample, Stat, TimeRow, Vm,
};
use vmtax_report::calls;
use vmtax_report::csv::Csv;
use vmtax_report::html::Html;
use vmtax_report::json::Json;
use vmtax_report::openmetrics::OpenMetrics;
use vmtax_report::perfetto::PerfettoWriter;
use vmtax_report::text::Text;
use vmtax_report::{Document, Renderer};
use vmtax_store::Run;

use crate::cli::{Color, EventTable, Format, ReadingArgs, ReportArgs};
use crate::convert::{self, Rows};
use crate::exit::{Code, fail};
use crate::input::{Input, Recording, run_fault};
use crate::output;

pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    check_by(args)?;
    output::check(&[args.input.as_path()], args.output.as_deref())?;
    let filter = filter(&args.input, &args.vm, &args.vcpu, &args.reading)?;
    let input = Input::open(&args.input)?;
    check_reading(&args.reading, &input)?;
    if args.format == Format::Perfetto {
        return perfetto(args, input, &filter);
    }
    let ledger = of_input(input, &args.reading, filter.clone())?;
    check_filter(&filter, &ledger)?;
    render(args, ledger)
}

/// A ledger as the flags want it.
pub(crate) fn render(args: &ReportArgs, ledger: Ledger) -> anyhow::Result<()> {
    if let Format::Folded | Format::Callgrind | Format::Speedscope = args.format {
        return call_trees(args, &ledger);
    }
    let document = document(args, ledger);
    let renderer: Box<dyn Renderer> = match args.format {
        Format::Json => Box::new(Json),
        Format::Csv => Box::new(Csv),
        Format::Html => Box::new(Html),
        Format::Prometheus => Box::new(OpenMetrics),
        _ => {
            let output = args.output.as_deref();
            Box::new(Text { color: color(args.color, output), width: width(output) })
        }
    };
    output::write(args.output.as_deref(), |out| Ok(renderer.render(&document, out)?))
}

/// Call trees in a format of another program.
fn call_trees(args: &ReportArgs, ledger: &Ledger) -> anyhow::Result<()> {
    let source = || vmtax_report::names::printable(&args.input.display().to_string());
    let (all, problems) = profiled(ledger);
    for problem in problems {
        crate::exit::say(&problem);
    }
    let all: Vec<(Profiled<'_>, CallTree)> = all
        .into_iter()
        .map(|one| {
            let tree = one.tree.arranged(arranged(args));
            (one, tree)
        })
        .collect();
    if all.is_empty() {
        return fail(
            Code::Data,
            format!(
                "{}: holds no call trees; `vmtax lab run --profile -o RUN` makes them",
                source()
            ),
        );
    }
    if let (Format::Callgrind, [_, _, ..]) = (args.format, all.as_slice()) {
        return fail(
            Code::Usage,
            format!(
                "--format callgrind: a file holds one operation, and {} has {}; name one, such as --vm {}",
                source(),
                all.len(),
                vmtax_report::names::printable(&all[0].0.name)
            ),
        );
    }
    output::write(args.output.as_deref(), |out| {
        match args.format {
            Format::Callgrind => calls::callgrind::write(&all[0].0, &all[0].1, out)?,
            Format::Speedscope => calls::speedscope::write(&all, out)?,
            _ => calls::folded::write(&all, out)?,
        }
        Ok(())
    })
}

/// How `--by` arranges call trees.
fn arranged(args: &ReportArgs) -> Arranged {
    if args.by.contains(&By::Level) { Arranged::ByLevel } else { Arranged::ByCause }
}

/// Functions of each operation, where few or many operations are shown, and where they were asked for.
const FUNCTIONS: [usize; 3] = [12, 3, 40];
const FEW: usize = 4;

/// A word of `--by` that no asked-for table knows is a mistake.
fn check_by(args: &ReportArgs) -> anyhow::Result<()> {
    let kinds: Vec<TableKind> = match args.event.as_slice() {
        [] => TableKind::ALL.to_vec(),
        events => events.iter().filter_map(|e| e.kind()).collect(),
    };
    let functions = args.event.contains(&EventTable::Functions);
    for by in &args.by {
        if functions && matches!(by, By::Level | By::Cause) {
            continue;
        }
        if !kinds.iter().any(|kind| kind.allows(*by)) {
            let others = TableKind::ALL.into_iter().filter(|kind| kind.allows(*by));
            let others: Vec<&str> = others.map(TableKind::name).collect();
            return fail(
                Code::Usage,
                format!(
                    "--by {}: none of the tables asked for has it; add one of --event {}",
                    by.name(),
                    others.join(",")
                ),
            );
        }
    }
    Ok(())
}

/// A flag that could not have any effect is a mistake.
pub(crate) fn check_reading(reading: &ReadingArgs, input: &Input) -> anyhow::Result<()> {
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

/// A report of nothing at all would look as if there had been no exits.
pub(crate) fn check_filter(filter: &Filter, ledger: &Ledger) -> anyhow::Result<()> {
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
            format!(
                "--vcpu {id}: there are no exits of such a vCPU; `--by vm,vcpu` lists those there are"
            ),
        ),
        None => Ok(()),
    }
}

fn no_such_vm(name: &str, vms: &[Vm]) -> anyhow::Result<()> {
    let known: Vec<String> = vms.iter().map(|vm| format!("{} ({})", vm.id, vm.name)).collect();
    let known = if known.is_empty() { "none is known".to_owned() } else { known.join(", ") };
    fail(Code::Data, format!("--vm {name}: there is no such VM; there are: {known}"))
}

/// The filter by id. Names of VMs are looked up first, which takes a reading of its own.
pub(crate) fn filter(
    input: &Path,
    vms: &[String],
    vcpus: &[u32],
    reading: &ReadingArgs,
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

fn document(args: &ReportArgs, ledger: Ledger) -> Document {
    let operations = Operations::new(&ledger);
    let asked: Vec<EventTable> = if args.event.is_empty() {
        default_tables(args.format, &ledger, !operations.rows.is_empty())
    } else {
        args.event.clone()
    };
    let tables =
        asked.iter().filter_map(|e| e.kind()).map(|kind| Table::new(&ledger, kind, &args.by));
    let tables = tables.collect();
    let nested = asked.contains(&EventTable::Nested).then(|| Nested::new(&ledger));
    let operations = asked.contains(&EventTable::Operations).then_some(operations);
    let most = match (args.event.is_empty(), ledger.calls.len() <= FEW) {
        (true, true) => FUNCTIONS[0],
        (true, false) => FUNCTIONS[1],
        (false, _) => FUNCTIONS[2],
    };
    let calls = asked
        .contains(&EventTable::Functions)
        .then(|| calls::Shown { arranged: arranged(args), most });
    Document {
        source: args.input.display().to_string(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        ledger,
        tables,
        operations,
        nested,
        calls,
    }
}

/// A terminal gets the summary, files get everything; neither gets empty tables. Of a lab run all get its
/// operations, which the other tables lump together; a page has room for those too.
fn default_tables(format: Format, ledger: &Ledger, is_lab: bool) -> Vec<EventTable> {
    use EventTable as E;
    let all = [E::Cause, E::Vmexit, E::Msr, E::Ioport, E::Mmio, E::Cpuid, E::Hypercall];
    let wanted = match format {
        Format::Html => &all[..],
        _ if is_lab => &[],
        Format::Text => &all[..2],
        _ => &all[..],
    };
    let mut tables: Vec<EventTable> = wanted
        .iter()
        .copied()
        .filter(|e| matches!(e, E::Cause | E::Vmexit) || has_rows(ledger, *e))
        .collect();
    if is_lab {
        tables.insert(0, E::Operations);
    }
    if !ledger.calls.is_empty() {
        tables.push(E::Functions);
    }
    if ledger.has_nesting() {
        tables.push(E::Nested);
    }
    tables
}

fn has_rows(ledger: &Ledger, event: EventTable) -> bool {
    event.kind().is_some_and(|kind| !Table::new(ledger, kind, &[]).rows.is_empty())
}

/// Whether to colour what goes there.
pub(crate) fn color(color: Color, to: Option<&Path>) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => to.is_none() && output::has_colors(),
    }
}

/// Columns of the terminal, if it goes there.
pub(crate) fn width(to: Option<&Path>) -> Option<usize> {
    to.is_none().then(output::width).flatten()
}

/// The ledger of a run or a recording.
pub(crate) fn ledger(path: &Path, reading: &ReadingArgs, filter: Filter) -> anyhow::Result<Ledger> {
    let input = Input::open(path)?;
    check_reading(reading, &input)?;
    of_input(input, reading, filter)
}

fn of_input(input: Input, reading: &ReadingArgs, filter: Filter) -> anyhow::Result<Ledger> {
    match input {
        Input::Run(run) => of_run(&run, filter),
        Input::Recording(recording) => of_recording(recording, reading, filter),
    }
}

/// Bare numbers have no cause, and what needs causes would see one.
pub(crate) fn check_isa(source: &str, ledger: &Ledger) -> anyhow::Result<()> {
    let mut reasons = ledger.exits.keys().map(|key| key.reason).peekable();
    if reasons.peek().is_some() && reasons.all(|reason| reason.isa == Isa::Unknown) {
        let source = vmtax_report::names::printable(source);
        return fail(
            Code::Usage,
            format!("{source}: holds bare exit numbers; say whose with --isa intel or --isa amd"),
        );
    }
    Ok(())
}

/// The ledger of a recording.
pub(crate) fn of_recording(
    recording: Recording,
    reading: &ReadingArgs,
    filter: Filter,
) -> anyhow::Result<Ledger> {
    let rows = ToLedger(LedgerBuilder::new(filter, reading.interval_ns()));
    let converted = convert::run(recording, reading, rows)?;
    let complete = converted.losses.truncated.is_empty();
    Ok(converted.rows.0.finish(converted.facts, converted.losses, complete))
}

/// The ledger of a run.
pub(crate) fn of_run(run: &Run, filter: Filter) -> anyhow::Result<Ledger> {
    let manifest = run.manifest();
    let mut rows = ToLedger(LedgerBuilder::new(filter, manifest.interval_ns));
    let read = run.read(&mut rows).map_err(|e| run_fault(&e))?;
    let complete = run.is_complete() && read.losses.truncated.is_empty();
    Ok(rows.0.finish(manifest.recording.clone(), read.losses, complete))
}

pub(crate) struct ToLedger(pub(crate) LedgerBuilder);

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
}

impl Rows for ToLedger {
    fn sample(&mut self, sample: &Sample) {
        self.0.sample(sample);
    }

    fn call(&mut self, row: &CallRow) {
        self.0.call(row);
    }
}

impl vmtax_store::RowSink for ToLedger {
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

/// Every single exit, as a timeline.
fn perfetto(args: &ReportArgs, input: Input, filter: &Filter) -> anyhow::Result<()> {
    if let Input::Run(run) = &input {
        check_raw(run)?;
    }
    let source = args.input.display().to_string();
    output::write(args.output.as_deref(), |out| {
        let writer = PerfettoWriter::new(out, &source)?;
        let timeline = ToTimeline { writer, filter: filter.clone(), failed: None };
        let timeline = match input {
            Input::Recording(recording) => convert::run(recording, &args.reading, timeline)?.rows,
            Input::Run(run) => replay(&run, timeline)?,
        };
        if let Some(error) = timeline.failed {
            return Err(error.into());
        }
        timeline.writer.finish()?;
        Ok(())
    })
}

/// Whether a run holds single events.
pub(crate) fn has_events(run: &Run) -> bool {
    run.manifest().segments_of(vmtax_store::Table::Events).next().is_some()
}

fn check_raw(run: &Run) -> anyhow::Result<()> {
    if has_events(run) {
        return Ok(());
    }
    fail(
        Code::Data,
        format!(
            "{}: holds no single events; make the run with `vmtax import --raw` or `vmtax record --raw`",
            run.folder().display()
        ),
    )
}

/// Raw events of a run go through the same accounting as a recording's.
fn replay<W: Write>(run: &Run, timeline: ToTimeline<W>) -> anyhow::Result<ToTimeline<W>> {
    let manifest = run.manifest();
    let options = vmtax_analyse::Options {
        interval_ns: manifest.interval_ns,
        all_exits: manifest.recording.choice.is_none(),
    };
    let mut accountant = Accountant::new(options, timeline);
    for vm in &manifest.recording.vms {
        accountant.thread_name(vm.id, &vm.name);
    }
    run.read_events(&mut |events| events.iter().for_each(|event| accountant.event(event)))
        .map_err(|e| run_fault(&e))?;
    Ok(accountant.finish().0)
}

struct ToTimeline<W: Write> {
    writer: PerfettoWriter<W>,
    filter: Filter,
    failed: Option<io::Error>,
}

impl<W: Write> RowSink for ToTimeline<W> {
    fn exit(&mut self, _: &ExitRow) {}

    fn access(&mut self, _: &AccessRow) {}

    fn time(&mut self, _: &TimeRow) {}

    fn appeared(&mut self, vm: &Vm) {
        if let Err(error) = self.writer.vm(vm) {
            self.failed.get_or_insert(error);
        }
    }

    fn ended(&mut self, exit: &Exit) {
        if self.filter.wants(exit.key.vm, exit.key.vcpu) && self.failed.is_none() {
            self.failed = self.writer.exit(exit).err();
        }
    }
}

impl<W: Write> Rows for ToTimeline<W> {
    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}
