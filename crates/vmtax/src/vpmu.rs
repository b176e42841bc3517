//! `vmtax vpmu`: compare the virtual PMU's policies, check their precision, run a Linux guest with it.

mod args;
mod bench;
mod linux;
mod module;
mod selftest;

pub(crate) use args::VpmuArgs;
use args::VpmuCommand;

pub(crate) fn run(args: &VpmuArgs) -> anyhow::Result<()> {
    match &args.command {
        VpmuCommand::Bench(args) => bench::run(args),
        VpmuCommand::Selftest(args) => selftest::run(args),
        VpmuCommand::Run(args) => linux::run(args),
        VpmuCommand::Module(args) => module::run(args),
    }
}
