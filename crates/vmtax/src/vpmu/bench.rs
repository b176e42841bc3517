//! `vmtax vpmu bench`.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;
use vmtax_cli::exit::{Code, fail};
use vmtax_lab::{HostKind, HostSetup};
use vmtax_machine::kernel::Architecture;
use vmtax_runs::kernels;
use vmtax_runs::lab::{DoneKernel, HostWork, measure, suite};
use vmtax_vpmu_bench::bench::PolicyBench;
use vmtax_vpmu_bench::emulated::{EmulatedHost, EmulatedRecording, plan};
use vmtax_vpmu_bench::in_kernel::{self, KernelRecording, MeasuredKernel};

use super::args::VpmuBenchArgs;

pub(super) fn run(args: &VpmuBenchArgs) -> anyhow::Result<()> {
    let hosts: Vec<HostKind> = args.emulated.iter().map(|word| word.host()).collect();
    if let Some(host) = hosts.iter().find(|host| !matches!(host, HostKind::Amd | HostKind::Intel)) {
        return fail(
            Code::Usage,
            format!("--emulated {host}: measures on the hosts amd and intel; --kvm on arm64"),
        );
    }
    if args.record.is_some() && !hosts.is_empty() && !args.kvm.is_empty() {
        return fail(
            Code::Usage,
            "--record takes the measurements of --emulated or of --kvm, not both",
        );
    }
    let measured = match hosts.as_slice() {
        [] => None,
        hosts => Some(measured(hosts, args.batches)?),
    };
    let in_kernel = match args.kvm.as_slice() {
        [] => None,
        kernels => Some(measured_in_kernel(kernels, args.batches)?),
    };
    if let Some(path) = &args.record {
        measured.iter().try_for_each(|recording| record(path, recording))?;
        in_kernel.iter().try_for_each(|recording| record(path, recording))?;
    }
    let bench = PolicyBench::new(measured, in_kernel, args.turns)?;
    args.to.write(&bench.tables())
}

fn record(path: &Path, recording: &impl Serialize) -> anyhow::Result<()> {
    let text = format!("{:#}\n", serde_json::to_value(recording)?);
    vmtax_cli::output::write(Some(path), |out| Ok(out.write_all(text.as_bytes())?))
}

fn measured(hosts: &[HostKind], batches: u32) -> anyhow::Result<EmulatedRecording> {
    let measure = |host: &HostKind| Ok(EmulatedHost::new(*host, &suite(*host, &plan(batches))?));
    let hosts = hosts.iter().map(measure).collect::<anyhow::Result<_>>()?;
    Ok(EmulatedRecording::new(hosts, today()))
}

fn measured_in_kernel(kernels: &[PathBuf], batches: u32) -> anyhow::Result<KernelRecording> {
    let plan = in_kernel::plan(batches);
    let one = |name: &PathBuf| {
        let kernel = kernels::named(Architecture::Arm64, name, &mut std::iter::empty())?;
        let setup = |cache, console| HostSetup::plain(HostKind::Arm, kernel, cache, console);
        let done = measure(HostKind::Arm, setup, HostWork::Operations(&plan), None)?;
        let DoneKernel { ledger, failures, .. } = done;
        let emulator = ledger.recording.emulated.clone().unwrap_or_default();
        Ok(MeasuredKernel::new(&ledger, format!("emulated:{emulator}"), failures))
    };
    let kernels = kernels.iter().map(one).collect::<anyhow::Result<_>>()?;
    Ok(KernelRecording::new(kernels, today()))
}

/// UTC, as in 2026-01-31.
fn today() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.chars().take(10).collect()
}
