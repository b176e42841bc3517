//! `vmtax lab`: emulated KVM hosts.

pub(crate) mod args;
mod bisect;
mod compare;
mod flat;
mod layout;
mod list;
mod measure;
mod remedy;
mod run;
mod series;

use args::{LabArgs, LabVerb};

pub(crate) fn main(args: &LabArgs) -> anyhow::Result<()> {
    match &args.verb {
        LabVerb::Run(args) => run::run(args),
        LabVerb::Compare(args) => compare::run(args),
        LabVerb::Series(args) => series::run(args),
        LabVerb::BisectStep(args) => bisect::run(args),
        LabVerb::Remedy(args) => remedy::run(args),
        LabVerb::List(args) => list::run(args),
        LabVerb::Layout(args) => layout::run(args),
    }
}
