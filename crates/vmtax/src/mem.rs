//! `vmtax mem`: scan, save and restore a VM's memory; measure page operations.

mod accel;
mod bench;
mod flags;
mod guard;
mod restore;
mod save;
mod saved;
mod scan;

pub(crate) use flags::MemArgs;
use flags::MemCommand;

pub(crate) fn run(args: &MemArgs) -> anyhow::Result<()> {
    match &args.command {
        MemCommand::Scan(args) => scan::run(args),
        MemCommand::Save(args) => save::run(args),
        MemCommand::Restore(args) => restore::run(args),
        MemCommand::Verify(args) => restore::verify(args),
        MemCommand::Bench(args) => bench::run(args),
        MemCommand::GuardPause(args) => guard::run(args),
    }
}
