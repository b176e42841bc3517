//! Traffic with VMs of QEMU on an emulated host -> rows; and of the cells of a plan a run folder and a ledger.

use std::path::PathBuf;

use vmtax_cli::progress::Progress;
use vmtax_events::{Better, Losses, Recording as Facts, RowSink, Sample, Vm};
use vmtax_lab::network::{NetworkHost, NetworkPlan, NetworkSetup, Passage, PassageVm, Turns};
use vmtax_lab::{Window, console_text};
use vmtax_store::{Claim, RunWriter};

use super::{
    Consoles, DoneKernel, cache_folder, fault, in_memory, keep_console, lab_options, of_stored,
    open_trace, put, sentence,
};
use crate::convert::{self, Assigned, Assignment, Converted};
use crate::{ReadOptions, ToRun, write_fault};

/// The metric of [`Turns::vcpu_ns`].
pub(super) const VCPU_TIME: &str = "time of vCPUs on a processor";

/// The rows of a VM of a passage, as those of a VM with this number and name, and the turns of its threads.
pub fn rows_of_passage<R: RowSink>(
    passage: &Passage,
    vm: &PassageVm,
    (id, name): (u32, &str),
    rows: R,
) -> anyhow::Result<(Converted<R>, Turns)> {
    let mut turns = Turns::default();
    let mut window = Window::new(id, false);
    let (names, threads) = ([(id, name.to_owned())], passage.threads(vm));
    let assign = &mut |event: &_, each: &mut Assigned<'_>| {
        turns.count(&threads, event);
        if let Some(placed) = window.place(event).filter(|_| passage.is_of(vm, event)) {
            each(event, &placed);
        }
    };
    let recording = open_trace(&passage.trace, format!("the recording of {name}"))?;
    let assignment = Assignment { names: &names, assign };
    let read = convert::run_assigned(recording, &ReadOptions::default(), assignment, rows)?;
    Ok((read, turns))
}

/// Results of a plan.
struct Passages {
    done: Vec<(String, Passage)>,
    failures: Vec<String>,
    notes: Vec<String>,
    emulator: String,
    vmm: String,
}

fn run(
    setup: &NetworkSetup,
    plan: &NetworkPlan,
    say: &dyn Fn(&str),
) -> Result<Passages, vmtax_lab::Error> {
    let mut host = NetworkHost::start(setup, plan, say)?;
    let (mut done, mut failures) = (Vec::new(), Vec::new());
    for cell in &plan.cells {
        say(&format!("running {}", cell.name()));
        match host.carry_out(cell)? {
            Ok(passage) => done.push((cell.name(), passage)),
            Err(problem) => failures.push(format!("{}: {problem}", cell.name())),
        }
    }
    let vmtax_lab::HostStart { notes, emulator, .. } = host.start.clone();
    Ok(Passages { done, failures, notes, emulator, vmm: host.vmm.clone() })
}

/// Carries out a plan on the emulated AMD host and keeps the run in the folder of `claim`, if there is one. `setup` is given the cache
/// and the file for the console.
pub fn measure_network(
    setup: impl FnOnce(PathBuf, PathBuf) -> NetworkSetup,
    plan: &NetworkPlan,
    claim: Option<Claim>,
) -> anyhow::Result<DoneKernel> {
    let cache = cache_folder()?;
    let consoles = Consoles::new(&cache)?;
    let console = consoles.0.join("network.txt");
    let setup = setup(cache, console);
    vmtax_machine::check(setup.host.emulator()).map_err(|e| fault(e.into(), None))?;
    let spinner = Progress::spinner();
    let passages = run(&setup, plan, &|what| spinner.say(what));
    drop(spinner);
    let passages = match passages {
        Ok(passages) => passages,
        Err(error) => return Err(keep_console(error, claim, &setup.console)),
    };
    let failures = passages.failures.clone();
    let ledger = match claim {
        None => in_memory(|rows| into_rows(&setup, &passages, rows))?,
        Some(claim) => of_stored(claim, |claim| store(&setup, &passages, claim))?,
    };
    consoles.remove();
    Ok(DoneKernel { ledger, failures, program: None })
}

fn store(setup: &NetworkSetup, passages: &Passages, claim: Claim) -> anyhow::Result<()> {
    let folder = &claim.folder().to_owned();
    let labels = [
        ("host", setup.host.to_string()),
        ("vmm", format!("QEMU {}", passages.vmm)),
        ("modules", setup.kernel.modules_label().unwrap_or_default()),
    ];
    let mut writer = RunWriter::begin(claim, &lab_options(labels)).map_err(write_fault)?;
    writer.describe(&facts(setup, passages, Facts::default()), &Losses::default());
    for (name, passage) in &passages.done {
        put(folder, &format!("traces/{}.dat", name.replace(' ', "-")), &passage.trace)?;
    }
    put(folder, "console.txt", &console_text(&setup.console))?;
    let (facts, losses, rows) = into_rows(setup, passages, ToRun::new(writer))?;
    rows.finish(&facts, &losses)
}

/// The rows of all recordings, each of its own VM.
fn into_rows<R: RowSink>(
    setup: &NetworkSetup,
    passages: &Passages,
    mut rows: R,
) -> anyhow::Result<(Facts, Losses, R)> {
    let mut facts_of_all = Facts::default();
    let mut losses = Losses::default();
    losses.notes.extend(passages.notes.iter().map(|note| sentence(note)));
    losses.notes.extend(setup.kernel.modules_label().map(|label| format!("modules: {label}")));
    losses.notes.extend(
        passages.failures.iter().map(|failure| format!("not measured: {}", sentence(failure))),
    );
    let mut vms: Vec<Vm> = Vec::new();
    for (index, (name, passage)) in passages.done.iter().enumerate() {
        let Some(vm) = passage.vms.first() else { continue };
        let id = index as u32 + 1;
        let (read, turns) = rows_of_passage(passage, vm, (id, name), rows)?;
        rows = read.rows;
        samples(name, passage, &turns).iter().for_each(|sample| rows.sample(sample));
        losses.merge(&read.losses);
        losses.recorder_lost += passage.lost;
        vms.extend(read.facts.vms.iter().cloned());
        facts_of_all = read.facts;
    }
    facts_of_all.vms = vms;
    Ok((facts(setup, passages, facts_of_all), losses, rows))
}

fn samples(name: &str, passage: &Passage, turns: &Turns) -> Vec<Sample> {
    let sample = |metric: &str, unit: &str, value: f64| Sample {
        workload: name.to_owned(),
        category: if passage.is_nested { "L2" } else { "L1" }.to_owned(),
        repeat: 0,
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        value,
        better: Better::Neither,
    };
    vec![
        sample(Sample::OPERATIONS, "count", f64::from(passage.count)),
        sample(Sample::VMM_TURNS, "count", turns.vmm as f64),
        sample(Sample::VHOST_TURNS, "count", turns.vhost as f64),
        sample(Sample::IO_TURNS, "count", turns.io as f64),
        sample(Sample::ELAPSED, "ns", passage.elapsed_ns as f64),
        sample(VCPU_TIME, "ns", turns.vcpu_ns as f64),
    ]
}

fn facts(setup: &NetworkSetup, passages: &Passages, of_traces: Facts) -> Facts {
    Facts {
        format: "lab".to_owned(),
        tool: format!("vmtax lab {}", env!("CARGO_PKG_VERSION")),
        kernel: setup.kernel.release.clone(),
        arch: "x86_64".to_owned(),
        clock: "x86-tsc".to_owned(),
        emulated: Some(passages.emulator.clone()),
        ..of_traces
    }
}
