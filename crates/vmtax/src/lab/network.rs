//! `vmtax lab network`: traffic with VMs of QEMU on an emulated host.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use serde_json::Value;
use vmtax_analyse::Ledger;
use vmtax_cli::exit::{Code, Fault, fail};
use vmtax_cli::output;
use vmtax_lab::network::{Category, Client, NetworkPlan, PARTS, PLAIN, WORKLOADS, Workload};
use vmtax_report::tables::{Section, Tables};
use vmtax_report::traffic;
use vmtax_runs::lab::{Done, measure_network};
use vmtax_runs::{Input, ledger, write_fault};
use vmtax_store::Claim;

use super::args::VmHostArgs;
use crate::flags::{OutputArgs, TableFormat};

/// Count the exits of each request, KiB, sleep and disk access of VMs of QEMU on an emulated host, by cause.
///
/// This computer's QEMU is copied into the emulated AMD host and runs a small Linux VM there with a virtio network card on a tap and a virtio disk. The host is
/// the client, the VM the server; with `--client peer` a second VM is the client. KVM's tracepoints are recorded meanwhile. Counts are those of the real KVM, QEMU and Linux; times are the
/// emulator's and do not reflect hardware.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax lab network                                       five VMs, requests and timers
  vmtax lab network --vm plain,plain+vhost --workload send
  vmtax lab network --vm plain,plain+iothread,plain-ioeventfd --workload read,write
  vmtax lab network --vm plain,plain+nested               a guest's guest beside a guest
  vmtax lab network --client peer --vm plain --workload request,send,receive
  vmtax lab network -o run && vmtax report run            every exit, with its MSR or address
  vmtax lab network --show run")]
pub(crate) struct NetworkArgs {
    /// VMs, separated by commas: `plain`, and parts added to it.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Category::read, long_help = vms(),
          default_value = "plain,plain+vhost,plain+swiotlb,plain-tsc-deadline,plain-x2apic")]
    vm: Vec<Category>,

    /// Workloads, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = workload, long_help = workloads(),
          default_value = "request,timer")]
    workload: Vec<&'static Workload>,

    /// Where the clients of the VMs are, separated by commas: `host`, on the VM's host; `peer`, in a second, plain VM of that host, over a bridge of two taps.
    #[arg(long, value_name = "PLACES", value_delimiter = ',', value_parser = client, default_value = "host")]
    client: Vec<Client>,

    /// Operations that are recorded with each VM, in place of the workload's own number (100 to 4096); a tenth of it is the warm-up. For VMs that are slow in
    /// the emulator, as those with +smp+poll.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    operations: Option<u32>,

    #[command(flatten)]
    host: VmHostArgs,

    /// Keep the run in this folder; with --show, write the table to this file.
    #[arg(short, long, value_name = "RUN", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,

    /// Show a run that was kept with -o, and measure nothing. Repeatable: the rows of several runs are one table.
    #[arg(long, value_name = "RUN", value_hint = ValueHint::DirPath, conflicts_with_all = ["vm", "workload", "client", "operations", "kernel", "modules", "fresh"])]
    show: Vec<PathBuf>,

    /// Output format.
    #[arg(long, value_enum, default_value_t = TableFormat::Text)]
    format: TableFormat,
}

fn vms() -> String {
    let mut text = format!(
        "VMs, separated by commas: `{PLAIN}`, and parts added to it (plain+vhost-x2apic)\n"
    );
    for part in PARTS {
        text.push_str(&format!("\n- {}: {}", part.name, part.about));
    }
    text
}

fn workloads() -> String {
    let mut text = "Workloads, separated by commas; the operation of each\n".to_owned();
    for workload in &WORKLOADS {
        text.push_str(&format!("\n- {}: {}", workload.name, workload.operation));
    }
    text
}

fn workload(name: &str) -> Result<&'static Workload, String> {
    let known = WORKLOADS.map(|workload| workload.name).join(", ");
    Workload::named(name).ok_or_else(|| format!("the workloads are {known}"))
}

fn client(name: &str) -> Result<Client, String> {
    Client::named(name).ok_or_else(|| "the places are host, peer".to_owned())
}

/// The VMs and traffic that the arguments ask for.
fn plan(args: &NetworkArgs) -> anyhow::Result<NetworkPlan> {
    let without = args.workload.iter().find(|workload| !workload.has_client());
    if let Some(workload) = without.filter(|_| args.client.contains(&Client::Peer)) {
        let can: Vec<&str> =
            WORKLOADS.iter().filter(|one| one.has_client()).map(|one| one.name).collect();
        let (name, can) = (workload.name, can.join(", "));
        return fail(
            Code::Usage,
            format!(
                "--client peer: the workload {name} has no client; the workloads with one are {can}"
            ),
        );
    }
    let plan = NetworkPlan::of_all(&args.vm, &args.client, &args.workload);
    Ok(NetworkPlan { operations: args.operations, ..plan })
}

pub(super) fn run(args: &NetworkArgs) -> anyhow::Result<()> {
    if !args.show.is_empty() {
        let runs: Vec<&Path> = args.show.iter().map(PathBuf::as_path).collect();
        output::check(&runs, args.output.as_deref())?;
        let kept =
            args.show.iter().map(|folder| kept(folder)).collect::<anyhow::Result<Vec<_>>>()?;
        return show(args, &kept);
    }
    let plan = plan(args)?;
    let claim = args.output.as_deref().map(Claim::new).transpose().map_err(write_fault)?;
    let Done { ledger, failures, .. } = measure_network(args.host.setup()?, &plan, claim)?;
    show(args, &[ledger])?;
    match failures.len() {
        0 => Ok(()),
        count => Err(Fault::new(
            Code::Machine,
            format!("{count} of {} VMs were not measured:", plan.cells.len()),
        )
        .detailed(failures)
        .into()),
    }
}

fn kept(folder: &Path) -> anyhow::Result<Ledger> {
    let name = folder.display();
    let Input::Run(run) = Input::open(folder)? else {
        return fail(
            Code::Usage,
            format!(
                "--show {name}: is a recording; give the folder of a run of `vmtax lab network`"
            ),
        );
    };
    let ledger = ledger::of_whole_run(&run)?;
    if traffic::is_traffic(&ledger) {
        return Ok(ledger);
    }
    fail(Code::Usage, format!("--show {name}: is not a run of `vmtax lab network`"))
}

/// What the columns are.
const NOTES: [&str; 2] = [
    "Exits for each operation, by cause. notify: the VM tells its network card or its disk of new buffers. EOI, APIC: ends of interrupts, and other uses of \
     the interrupt controller. window: the VM becomes ready for an interrupt that waits. host intr: an interrupt of the host arrives while the VM \
     runs; one that wakes a polling vCPU is among them.",
    "to VMM: exits that QEMU handled. VMM turns, vhost turns, I/O turns: how often QEMU's main loop, vhost's thread and QEMU's thread for the disk got a processor.",
];

const EMULATED: &str = "Counted on an emulated AMD host. Counts are those of the real KVM, QEMU and Linux; rates and times are the emulator's and are not shown.";

fn show(args: &NetworkArgs, ledgers: &[Ledger]) -> anyhow::Result<()> {
    let mut facts: Vec<(&'static str, String)> = Vec::new();
    for Ledger { recording, losses, .. } in ledgers {
        let emulator = recording.emulated.clone().unwrap_or_default();
        let host = format!("Linux {} on {emulator}", recording.kernel);
        let notes = losses.notes.iter().map(|note| ("Note", note.clone()));
        for fact in std::iter::once(("Host", host)).chain(notes) {
            if !facts.contains(&fact) {
                facts.push(fact);
            }
        }
    }
    let tables = Tables {
        command: "lab network",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts,
        answer: traffic::answer(ledgers),
        emulation: Some(EMULATED.to_owned()),
        sections: sections(ledgers),
        json: Value::default(),
    };
    let file = args.output.clone().filter(|_| !args.show.is_empty());
    let to = OutputArgs { format: args.format, output: file };
    to.write(&tables.with_rows_as_json("vmtax-lab-network-1")?)
}

/// The table, and if a VM is nested, that of both levels.
fn sections(ledgers: &[Ledger]) -> Vec<Section> {
    let about = |name: &str| Workload::named(name).map(|workload| workload.operation);
    let levels = traffic::levels_table(ledgers);
    let mut sections = vec![Section {
        id: "traffic",
        title: "Exits by cause".to_owned(),
        notes: NOTES.map(str::to_owned).to_vec(),
        table: traffic::table(ledgers, about),
    }];
    sections.extend((!levels.rows.is_empty()).then(|| Section {
        id: "levels",
        title: traffic::LEVELS_TITLE.to_owned(),
        notes: vec![traffic::LEVELS_NOTE.to_owned()],
        table: levels,
    }));
    sections
}
