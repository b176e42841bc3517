//! Description of a matrix besides its numbers: categories, cells, missing requirements, data that is not captured.

use std::io::{self, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use vmtax_events::setting::cpuinfo;
use vmtax_events::{Recording, printable};
use vmtax_guest::job::EVENTS;
use vmtax_machine::{Tool, ToolLimits};

use crate::category::{MatrixCategory, tap_missing};
use crate::launch::plan;
use crate::link::{Link, Netdev, NetdevEnd, Network, Side};
use crate::matrix::{Matrix, Where};
use crate::plan::BenchCell;
use crate::system::{host, host_options, why_not};
use crate::target::{Accel, Platform, Target};
use crate::vm::{arguments, command_line, emulator};
use crate::workload::Workload;

/// How long a program may take to say its version.
const VERSION: ToolLimits = ToolLimits { time: Duration::from_secs(5), output: 1 << 20 };

/// What a matrix would run here, and what is missing for it, as text.
pub(crate) fn dry_run(matrix: &Matrix, cells: &[BenchCell], out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{}: {} categories x {} workloads x {} repeats; {} cells here",
        printable(&matrix.name),
        matrix.categories.len(),
        matrix.workloads.len(),
        matrix.repeats,
        cells.len()
    )?;
    for place in &matrix.categories {
        writeln!(out, "\ncategory {}", printable(place.name()))?;
        match place {
            Where::Host => writeln!(out, "  this computer, without a VM")?,
            Where::Ssh { address, .. } => writeln!(out, "  reached by ssh: {address}")?,
            Where::Vm(category) => {
                for platform in matrix.platforms() {
                    vm(matrix, category, platform, out)?;
                }
            }
        }
    }
    writeln!(out, "\norder of the cells")?;
    for cell in cells {
        let workload = &matrix.workloads[cell.workload];
        let place = &matrix.categories[cell.category];
        writeln!(
            out,
            "  repeat {} {} {}",
            cell.repeat,
            printable(place.name()),
            printable(&workload.name)
        )?;
    }
    writeln!(out, "\ncommands")?;
    for workload in &matrix.workloads {
        let job = workload.job(matrix.warmup, matrix.counters, matrix.limit_ms);
        if let Some(link) = workload.link {
            writeln!(out, "  {} path: {}", printable(&workload.name), link.path())?;
        }
        for (what, words) in [("server", &job.server), ("client", &job.client)] {
            if !words.is_empty() {
                writeln!(
                    out,
                    "  {} {what}: {}",
                    printable(&workload.name),
                    printable(&words.join(" "))
                )?;
            }
        }
    }
    for sentence in matrix.left_out() {
        writeln!(out, "\nleft out: {}", printable(&sentence))?;
    }
    for missing in missing(matrix) {
        writeln!(out, "\nmissing: {}", printable(&missing))?;
    }
    Ok(())
}

fn vm(
    matrix: &Matrix,
    category: &MatrixCategory,
    Platform { accel, cpus, link }: Platform,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let target = &matrix.target;
    let label = accel.emulator().map_or(String::new(), |name| format!(" (EMULATED: {name})"));
    writeln!(out, "  is{label}: {}", category.about().join("; "))?;
    let baseline = category.baseline().map_or("none".to_owned(), |baseline| baseline.name.clone());
    writeln!(out, "  baseline: {baseline}")?;
    match host(accel) {
        Some(host) if target.is_inside() => {
            for words in vmtax_lab::network::commands(host, category) {
                writeln!(out, "  qemu on the emulated host: {}", words.join(" "))?;
            }
        }
        None => here(target, accel, category, (link, has_disk(matrix, accel)), out)?,
        Some(host) => {
            let plan = plan(host, target, category, cpus);
            let processors = target.processors;
            let vcpus = match (processors, cpus) {
                (1, 1) => "vCPU",
                (1, _) => "vCPUs, which share it",
                (..) => "vCPUs, each pinned to one; processors take turns",
            };
            writeln!(out, "  processors: {processors} of the emulated host, {cpus} {vcpus}")?;
            writeln!(out, "  emulated host's command line: {}", plan.command_line(0))?;
            for level in 1..=plan.levels.len() {
                let whose = if level == 1 { "guest" } else { "guest's guest" };
                writeln!(out, "  {whose} command line: {}", plan.command_line(level))?;
            }
            let options = host_options(category).join(" ");
            let options = if options.is_empty() { "none".to_owned() } else { options };
            writeln!(out, "  settings of the emulated host: {options}")?;
        }
    }
    for missing in category.missing(accel, target, Path::new("/")) {
        writeln!(out, "  missing here: {missing}")?;
    }
    Ok(())
}

/// A VM of this computer.
fn here(
    target: &Target,
    accel: Accel,
    category: &MatrixCategory,
    (link, disk): (Option<Link>, bool),
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let netdev = link.map(|link| Network::described(link, category.queues())).unwrap_or_default();
    let end = NetdevEnd { netdev, ..NetdevEnd::default() };
    let words = arguments(target, accel, category, (&end, disk)).join(" ");
    if let Some(link) = link {
        writeln!(out, "  path: {}", link.path())?;
    }
    writeln!(out, "  qemu: qemu-system-x86_64 {words}")?;
    writeln!(out, "  guest command line: {}", command_line(category))?;
    let settings: Vec<String> =
        category.host_settings().iter().map(|(file, value)| format!("{file} = {value}")).collect();
    let mut settings = if settings.is_empty() { "none".to_owned() } else { settings.join("; ") };
    if category.is_pinned() {
        settings.push_str("; each vCPU thread (query-cpus-fast) pinned to its own processor");
    }
    writeln!(out, "  host settings: {settings}")
}

/// Whether VMs of a matrix have a disk.
fn has_disk(matrix: &Matrix, accel: Accel) -> bool {
    let mut workloads = matrix.workloads.iter();
    workloads.any(|workload| workload.has_disk() && matrix.accel(workload) == accel)
}

/// All that this host lacks for the matrix; each is a sentence.
pub(crate) fn missing(matrix: &Matrix) -> Vec<String> {
    let mut missing = Vec::new();
    let accels = matrix.accels();
    for place in &matrix.categories {
        let Where::Vm(category) = place else { continue };
        for accel in &accels {
            let mut found = category.missing(*accel, &matrix.target, Path::new("/"));
            let platforms = matrix.platforms().into_iter();
            let of_accel = platforms.filter(|platform| platform.accel == *accel);
            if !has_disk(matrix, *accel) && !accel.is_emulated_host() {
                found.extend(category.missing_disk());
            }
            // A workload that does not use what it changes is left out, if another does.
            let links: Vec<Option<String>> =
                of_accel.map(|platform| category.missing_link(platform.link)).collect();
            if !matrix.target.is_inside() && links.iter().all(Option::is_some) {
                found.extend(links.into_iter().flatten().take(1));
            }
            let of = if accels.len() > 1 { format!(" on {}", accel.name()) } else { String::new() };
            missing.extend(
                found
                    .into_iter()
                    .map(|problem| format!("category {}{of}: {problem}", category.name)),
            );
        }
    }
    for workload in matrix.workloads.iter().filter(|_| !accels.is_empty()) {
        let problem = workload.impossible(matrix.accel(workload));
        missing.extend(problem.map(|problem| format!("workload {}: {problem}", workload.name)));
    }
    let has_tap =
        |workload: &Workload| workload.link.is_some_and(|link| link.netdev == Netdev::Tap);
    let has_tap = |workload: &Workload| !matrix.target.is_inside() && has_tap(workload);
    if let Some(workload) = matrix.workloads.iter().find(|workload| has_tap(workload)) {
        let problem = tap_missing(Path::new("/"));
        missing.extend(problem.map(|problem| format!("workload {}: {problem}", workload.name)));
    }
    let forwards = |workload: &Workload| {
        workload.link.is_some_and(|link| link.other == Side::Remote && !link.server_there)
    };
    if matrix.workloads.iter().any(forwards) {
        let address = matrix.target.outside().here;
        if let Err(error) = UdpSocket::bind((address, 0)) {
            missing.push(format!("vm.address = {address}: no port of it can be opened here: {error}; give an address of this computer"));
        }
    }
    for accel in accels {
        if let Err(error) = vmtax_machine::check(emulator(accel)) {
            missing.push(error.to_string());
        }
    }
    missing
}

/// What this run does not record, each with its reason.
pub(crate) fn not_captured(matrix: &Matrix) -> Vec<String> {
    let mut notes = matrix.left_out();
    if !matrix.counters {
        notes.push(format!(
            "{}: not captured: the matrix does not ask for them (counters = true)",
            EVENTS.join(", ")
        ));
    }
    for accel in matrix.accels() {
        let whose = format!("of VMs with accel = \"{}\"", accel.name());
        let vm = matrix.categories.iter().find(|place| matches!(place, Where::Vm(_)));
        if let Some(reason) = vm.and_then(|place| why_not(matrix, place, accel)) {
            notes.push(format!("{EXITS} {whose}: not available: {reason}"));
        }
    }
    for place in &matrix.categories {
        let Where::Vm(category) = place else { continue };
        let name = &category.name;
        if category.has_hidden_exits() && matrix.exits {
            notes.push(format!(
                "exits in {name}: those that code at EL2 handles by itself are not recorded, as KVM's tracepoints are in the host's kernel; `vmtax lab run --host arm --suite workloads` counts them"
            ));
        }
        if category.is_protected() {
            notes.push(format!("category {name}: protected VMs are experimental in the kernel"));
        }
    }
    for place in &matrix.categories {
        if matches!(place, Where::Vm(_)) {
            continue;
        }
        if let Some(reason) = why_not(matrix, place, matrix.target.accel) {
            notes.push(format!("{EXITS} in {}: not available: {reason}", place.name()));
        }
    }
    notes
}

/// What is recorded of exits.
const EXITS: &str = "exits, their reasons, addresses of MMIO and MSRs";

/// What the run is of.
pub(crate) fn recording(matrix: &Matrix) -> Recording {
    let name = rustix::system::uname();
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    Recording {
        format: "benchmark".to_owned(),
        tool: format!("vmtax {}", env!("CARGO_PKG_VERSION")),
        hostname: name.nodename().to_string_lossy().into_owned(),
        kernel: name.release().to_string_lossy().into_owned(),
        arch: name.machine().to_string_lossy().into_owned(),
        cpu: cpuinfo::model(&info).to_owned(),
        cpus: u32::try_from(cpuinfo::count(&info)).unwrap_or(u32::MAX),
        emulated: matrix.emulated(),
        ..Recording::default()
    }
}

/// The first line that a workload's program says of its version, where it is installed here.
pub(crate) fn version(workload: &Workload) -> Option<String> {
    let words = workload.version()?;
    let (program, rest) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(rest);
    let output = Tool::new(command, VERSION).run().ok()?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .map(|line| line.chars().take(200).collect())
}
