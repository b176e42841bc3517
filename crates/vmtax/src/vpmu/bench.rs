//! `vmtax vpmu bench`.

use std::time::SystemTime;

use vmtax_cli::exit::{Code, fail};
use vmtax_lab::HostKind;
use vmtax_vpmu_bench::bench::PolicyBench;
use vmtax_vpmu_bench::emulated::{EmulatedHost, EmulatedRecording, plan};

use super::args::VpmuBenchArgs;

pub(super) fn run(args: &VpmuBenchArgs) -> anyhow::Result<()> {
    let hosts: Vec<HostKind> = args.emulated.iter().map(|word| word.host()).collect();
    if let Some(host) = hosts.iter().find(|host| !matches!(host, HostKind::Amd | HostKind::Intel)) {
        return fail(
            Code::Usage,
            format!("--emulated {host}: measures on the hosts amd and intel"),
        );
    }
    let measured = match hosts.as_slice() {
        [] => None,
        hosts => Some(measured(hosts, args.batches)?),
    };
    if let (Some(path), Some(recording)) = (&args.record, &measured) {
        let text = format!("{:#}\n", serde_json::to_value(recording)?);
        vmtax_cli::output::write(Some(path), |out| Ok(out.write_all(text.as_bytes())?))?;
    }
    let bench = PolicyBench::new(measured, args.turns)?;
    args.to.write(&bench.tables())
}

fn measured(hosts: &[HostKind], batches: u32) -> anyhow::Result<EmulatedRecording> {
    let measure = |host: &HostKind| {
        Ok(EmulatedHost::new(*host, &vmtax_runs::lab::suite(*host, &plan(batches))?))
    };
    let hosts = hosts.iter().map(measure).collect::<anyhow::Result<_>>()?;
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    Ok(EmulatedRecording::new(hosts, now.chars().take(10).collect()))
}
