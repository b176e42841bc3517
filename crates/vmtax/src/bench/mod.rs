//! `vmtax bench`: benchmark matrices.

pub(crate) mod args;
mod compare;
mod describe;
mod launch;
mod merge;
mod recorded;
mod run;
mod session;
mod system;

use args::{BenchArgs, BenchVerb};

pub(crate) fn main(args: &BenchArgs) -> anyhow::Result<()> {
    match &args.verb {
        BenchVerb::Run(args) => run::run(args),
        BenchVerb::Compare(args) => compare::run(args),
        BenchVerb::List(_) => describe::list(),
        BenchVerb::Merge(args) => merge::run(args),
        BenchVerb::Import(args) => compare::import(args),
    }
}
