//! `vmtax vpmu`: the virtual PMU's policies side by side, and its gates of precision.

mod bench;
mod emulated;
mod selftest;

use clap::{Args, Subcommand, ValueEnum};

use crate::lab::args::HostWord;

/// Compare how a virtual PMU can use the host's counters, and try how exact it is.
///
/// Two policies count for the same guest: one creates a host event for every change of a guest's counter, as KVM did, the
/// other reuses events.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax vpmu bench
  vmtax vpmu bench --emulated amd,intel            a guest of a real KVM, by instructions
  vmtax vpmu bench --format json
  vmtax vpmu selftest

The virtual PMU is a library too, for VMMs in Rust: crates/vpmu.")]
pub(crate) struct VpmuArgs {
    #[command(subcommand)]
    command: VpmuCommand,
}

#[derive(Debug, Subcommand)]
enum VpmuCommand {
    Bench(BenchArgs),
    Selftest(SelftestArgs),
}

/// Say what a guest's perf costs under both policies, beside what was published.
///
/// One guest script runs on a PMU in virtual time with the published basic costs; then a profiling guest's steady state
/// on this machine's software events; then, if asked for, a guest of a real KVM on emulated hosts.
#[derive(Debug, Args)]
struct BenchArgs {
    /// Turns of both policies on this machine's events; 0 leaves them out.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=100_000))]
    turns: u64,

    /// Emulated hosts, separated by commas: on each a guest programs, samples and switches counters through KVM, under
    /// both policies. The first time of a host boots it, which takes seconds (amd) or minutes (intel).
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', value_enum)]
    emulated: Vec<HostWord>,

    /// Measured batches of each operation on them. Memory that closed events give back comes at the kernel's next tick:
    /// with fewer batches the median under legacy is off by more than half a percent now and then.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(5..=100))]
    batches: u32,

    /// How to write it.
    #[arg(long, value_enum, default_value_t = VpmuFormat::Text)]
    format: VpmuFormat,
}

/// Try the gates of precision: exact counts, conserved counts, shares of samples, interrupts.
///
/// A gate that does not hold is exit code 6.
#[derive(Debug, Args)]
struct SelftestArgs {
    /// How to write it.
    #[arg(long, value_enum, default_value_t = VpmuFormat::Text)]
    format: VpmuFormat,
}

/// How a result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum VpmuFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

pub(crate) fn run(args: &VpmuArgs) -> anyhow::Result<()> {
    match &args.command {
        VpmuCommand::Bench(args) => bench::run(args),
        VpmuCommand::Selftest(args) => selftest::run(args),
    }
}

/// Writes what was found: `text` for people, `json` for programs.
fn print(
    format: VpmuFormat,
    text: impl FnOnce() -> String,
    json: impl FnOnce() -> serde_json::Value,
) -> anyhow::Result<()> {
    let text = match format {
        VpmuFormat::Text => text(),
        VpmuFormat::Json => format!("{:#}\n", json()),
    };
    crate::output::write(None, |out| Ok(out.write_all(text.as_bytes())?))
}
