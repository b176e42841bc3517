//! `vmtax explain`: a run -> why the VM is slow.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueHint};
use vmtax_analyse::explain::{Explanation, LoadChange};
use vmtax_analyse::{DiffSide, Filter, Ledger};
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::output;
use vmtax_events::setting::System;
use vmtax_report::RunSubject;
use vmtax_report::explain::{Explained, change};
use vmtax_report::html::Html;
use vmtax_runs::evidence::EvidenceInput;
use vmtax_runs::{ReadOptions, input, ledger};

use crate::doctor;
use crate::flags::{Color, OutputArgs, ReadingArgs, TableFormat, color, width};

/// Explain why a VM is slow: a verdict, the findings behind it, and what to change under which conditions.
///
/// A recording contains exits only. Without a recording, these can be read on their own: profiles (perf report, perf top, folded stacks), counters
/// (kvm_stat, perf stat, debugfs), the output of top, mpstat, vmstat and perf sched, cpu.stat, /proc/interrupts, logs, and the name of a clock. A run
/// may also contain profiles, counters and page sizes (`vmtax import --help`). A table of benchmark results (CSV) is explained by kind of VM and
/// option. A VM's configuration is checked as `vmtax doctor` checks it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax explain perf.data
  vmtax explain td.txt --against plain.txt --isa intel --length 10s
  vmtax explain run --vm qemu-system-x86 --format json
  vmtax explain td --against plain --format html -o why.html
  vmtax explain --before ide --after virtio --operations 200     what following an advice changed
  vmtax explain results.csv")]
pub(crate) struct ExplainArgs {
    /// Run folder or recording of the slow VM.
    #[arg(value_name = "RUN|FILE", value_hint = ValueHint::AnyPath, required_unless_present = "before")]
    run: Option<PathBuf>,

    /// Run folder or recording of a fast VM, as the baseline.
    #[arg(long, value_name = "RUN|FILE", value_hint = ValueHint::AnyPath)]
    against: Option<PathBuf>,

    /// Run folder or recording from before a change: what the change removed, what came instead.
    #[arg(long, value_name = "RUN|FILE", value_hint = ValueHint::AnyPath, requires = "after", conflicts_with_all = ["run", "against", "verbose"])]
    before: Option<PathBuf>,

    /// Run folder or recording of the same load after the change.
    #[arg(long, value_name = "RUN|FILE", value_hint = ValueHint::AnyPath, requires = "before")]
    after: Option<PathBuf>,

    /// With --before: operations (requests, reads, ...) of the load in each of the two. [default: those of a lab run, else seconds]
    #[arg(long, value_name = "N", requires = "before", value_parser = clap::value_parser!(u64).range(1..))]
    operations: Option<u64>,

    /// Only these VMs, by id or name, separated by commas.
    #[arg(long, value_name = "VM", value_delimiter = ',')]
    vm: Vec<String>,

    /// Duration of recordings that do not contain it (dumps of counts): 10s, 500ms, ...
    #[arg(long, value_name = "TIME", value_parser = vmtax_cli::flags::duration)]
    length: Option<Duration>,

    /// Also show the evidence, all findings with their conditions, and the questions behind the verdict.
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    to: OutputArgs,

    #[command(flatten)]
    reading: ReadingArgs,
}

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    match (&args.run, &args.before, &args.after) {
        (_, Some(before), Some(after)) => change(args, before, after),
        (Some(run), ..) => explain(args, run),
        // The parser demands one of the two.
        (None, ..) => Ok(()),
    }
}

/// What changed between two recordings of one load.
fn change(args: &ExplainArgs, before: &Path, after: &Path) -> anyhow::Result<()> {
    output::check(&[before, after], args.to.output.as_deref())?;
    input::check_read_once(&[before, after])?;
    let reading = args.reading.reading();
    let read = |path: &Path| {
        let filter = ledger::filter(path, &args.vm, &[], &reading)?;
        let (source, ledger) = checked(path, &reading, filter)?;
        match ledger.exits.is_empty() && !ledger.observed.is_empty() {
            true => fail(Code::Data, format!("{source}: has no exits to compare")),
            false => Ok((source, ledger)),
        }
    };
    let (before, after) = ledger::both(|| read(before), || read(after))?;
    let (labels, seconds) = (BTreeMap::new(), args.length.map(|length| length.as_secs_f64()));
    let [old, new] = [&before, &after].map(|(source, ledger)| DiffSide {
        source,
        ledger,
        labels: &labels,
        seconds,
    });

    let change = LoadChange::new(&old, &new, args.operations);
    let [old, new] = [&before, &after].map(|(source, ledger)| RunSubject { source, ledger });
    args.to.write(&change::tables(&change, old, new)?)
}

fn explain(args: &ExplainArgs, run: &Path) -> anyhow::Result<()> {
    let mut inputs = vec![run];
    inputs.extend(args.against.as_deref());
    let output = args.to.output.as_deref();
    output::check(&inputs, output)?;
    input::check_read_once(&inputs)?;
    let reading = args.reading.reading();
    let filter = ledger::filter(run, &args.vm, &[], &reading)?;
    let read_run = || checked(run, &reading, filter.clone());
    let ((source, ledger), base) = match &args.against {
        None => match read(run, &reading, filter.clone())? {
            ExplainInput::Recording(run) => (*run, None),
            ExplainInput::Configuration(system) => {
                let vm = (!args.vm.is_empty()).then_some("--vm");
                let flag = vm.or(args.length.map(|_| "--length")).or(reading.given());
                return doctor::check(run, &system, flag, &args.to);
            }
        },
        Some(path) => {
            let (run, base) =
                ledger::both(read_run, || checked(path, &reading, Filter::default()))?;
            (run, Some(base))
        }
    };
    // Sums of several VMs describe none of them.
    let is_one = base.is_some() || !filter.vms.is_empty() || ledger.recording.emulated.is_some();
    let vms = if is_one { Vec::new() } else { ledger.vms_by_loss() };
    let ledger = match vms.as_slice() {
        [worst, _, ..] => ledger.of_vm(worst.vm),
        _ => ledger,
    };
    let labels = BTreeMap::new();
    let seconds = args.length.map(|length| length.as_secs_f64());
    let side = DiffSide { source: &source, ledger: &ledger, labels: &labels, seconds };
    let base_side =
        base.as_ref().map(|(source, ledger)| DiffSide { source, ledger, labels: &labels, seconds });
    let explanation = Explanation::new(&side, base_side.as_ref());
    let explained = Explained {
        tool_version: env!("CARGO_PKG_VERSION"),
        run: RunSubject { source: &source, ledger: &ledger },
        base: base.as_ref().map(|(source, ledger)| RunSubject { source, ledger }),
        explanation: &explanation,
        vms: &vms,
    };
    output::write(output, |out| {
        match args.to.format {
            TableFormat::Text => {
                let color = color(Color::Auto, output);
                explained.text(args.verbose, color, width(output), out)?;
            }
            TableFormat::Json => explained.json(out)?,
            TableFormat::Csv => explained.csv(out)?,
            TableFormat::Html => {
                Html.explain(&explained, out)?;
            }
        }
        Ok(())
    })
}

/// What a file holds.
enum ExplainInput {
    /// Its name and its rows.
    Recording(Box<(String, Ledger)>),
    /// Of a VM or of KVM.
    Configuration(System),
}

/// A ledger that can be explained, with the name of its input.
fn checked(path: &Path, reading: &ReadOptions, filter: Filter) -> anyhow::Result<(String, Ledger)> {
    match read(path, reading, filter)? {
        ExplainInput::Recording(run) => Ok(*run),
        ExplainInput::Configuration(_) => {
            let source = path.display();
            let problem = "is a configuration, which has no exits to compare";
            fail(Code::Data, format!("{source}: {problem}: `vmtax explain {source}` checks it"))
        }
    }
}

fn read(path: &Path, reading: &ReadOptions, filter: Filter) -> anyhow::Result<ExplainInput> {
    // A profile or counters alone hold no exits.
    let mut evidence = EvidenceInput::open(path)?;
    let is_plain = filter == Filter::default();
    let source = path.display().to_string();
    if is_plain && let Some(ledger) = evidence.ledger()? {
        return Ok(ExplainInput::Recording(Box::new((source, ledger))));
    }
    // What a post says besides is looked for where it is no recording.
    if is_plain
        && evidence.is_unknown_text()
        && let Some(ledger) = evidence.figures()
    {
        return Ok(ExplainInput::Recording(Box::new((source, ledger))));
    }
    let input = match evidence.input() {
        Ok(input) => input,
        Err(problem) => {
            let configuration = doctor::configuration(path, &evidence);
            let is_other = matches!(configuration, Ok(None));
            let named = || evidence.named_costs().filter(|_| is_other);
            if is_plain && let Some(ledger) = evidence.figures().or_else(named) {
                return Ok(ExplainInput::Recording(Box::new((source, ledger))));
            }
            // Of a broken configuration it is said what is broken.
            return configuration?.map(ExplainInput::Configuration).ok_or(problem);
        }
    };
    let ledger = ledger::of_opened(input, reading, filter.clone())?;
    ledger::check_filter(&filter, &ledger)?;
    ledger::check_isa(&source, &ledger)?;
    ledger::check_exits(&source, &ledger)?;
    Ok(ExplainInput::Recording(Box::new((source, ledger))))
}
