//! `vmtax bench`: benchmark matrices.

pub(crate) mod args;
mod compare;
mod list;

use vmtax_bench::merge;
use vmtax_cli::output;

use args::{BenchArgs, BenchVerb, MergeArgs, RunArgs};

pub(crate) fn main(args: &BenchArgs) -> anyhow::Result<()> {
    match &args.verb {
        BenchVerb::Run(args) => run(args),
        BenchVerb::Compare(args) => compare::run(args),
        BenchVerb::List(args) => list::run(args),
        BenchVerb::Merge(args) => merge_runs(args),
        BenchVerb::Import(args) => compare::import(args),
    }
}

fn run(args: &RunArgs) -> anyhow::Result<()> {
    let request = args.request();
    match args.output.as_deref().filter(|_| !args.dry_run) {
        None => output::write(None, |out| request.dry_run(out)),
        Some(folder) => {
            request.run(folder)?;
            compare::show_run(folder)
        }
    }
}

fn merge_runs(args: &MergeArgs) -> anyhow::Result<()> {
    merge::merge(&args.runs, &args.output)?;
    compare::show_run(&args.output)
}
