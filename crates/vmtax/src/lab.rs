//! `vmtax lab`: emulated KVM hosts.

pub(crate) mod args;
mod compare;
mod list;
mod run;

use args::{LabArgs, LabVerb};

pub(crate) fn main(args: &LabArgs) -> anyhow::Result<()> {
    match &args.verb {
        LabVerb::Run(args) => run::run(args),
        LabVerb::Compare(args) => compare::run(args),
        LabVerb::List(_) => list::run(),
    }
}
