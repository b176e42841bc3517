//! `vmtax lab bisect-step`: one kernel against two known values, with the exit codes of `git bisect run`.

use std::path::PathBuf;
use std::process::Command;

use vmtax_analyse::operations::Operations;
use vmtax_cli::exit::{self, Code, fail};
use vmtax_cli::output;
use vmtax_lab::{HostSetup, LabPlan};
use vmtax_runs::kernels;
use vmtax_runs::lab::{HostWork, measure};

use super::args::{BisectArgs, Metric};

/// What `git bisect run` understands: 0 is good.
const BAD: i32 = 1;
const CANNOT_TELL: i32 = 125;

pub(crate) fn run(args: &BisectArgs) -> anyhow::Result<()> {
    match step(args) {
        Ok(is_bad) => {
            if is_bad {
                std::process::exit(BAD);
            }
            Ok(())
        }
        Err(error) => {
            exit::report(&error);
            std::process::exit(CANNOT_TELL);
        }
    }
}

/// Whether this kernel is bad.
fn step(args: &BisectArgs) -> anyhow::Result<bool> {
    if let Some(command) = &args.build {
        let status = Command::new("sh").args(["-ec", command]).status()?;
        if !status.success() {
            return fail(Code::Data, format!("the build failed ({status})"));
        }
    }
    let value = value(args)?;
    let (good, bad) = args.between;
    let is_bad = is_nearer_to_bad(value, args.between);
    let what = match args.metric {
        Metric::Path => "path",
        Metric::Exits => "exits",
    };
    let verdict = if is_bad { "bad" } else { "good" };
    output::write(None, |out| {
        Ok(writeln!(
            out,
            "{} L{}: {what} {value}: {verdict} (good {good}, bad {bad})",
            args.operation.name, args.level
        )?)
    })?;
    Ok(is_bad)
}

/// Half-way is bad.
fn is_nearer_to_bad(value: f64, (good, bad): (f64, f64)) -> bool {
    (value - bad).abs() <= (value - good).abs()
}

fn value(args: &BisectArgs) -> anyhow::Result<f64> {
    let kernel =
        kernels::named(args.host.host().architecture(), &args.kernel, &mut args.modules.iter())?;
    let host = args.host.host();
    let setup = |cache: PathBuf, console: PathBuf| HostSetup {
        nested: args.level == 2,
        options: args.option.clone(),
        limit: args.limit,
        ..HostSetup::plain(host, kernel, cache, console)
    };
    let plan = LabPlan {
        suites: vmtax_lab::suite::SUITES.iter().collect(),
        only: vec![args.operation],
        batches: LabPlan::LEAST_BATCHES,
    };
    let done = measure(host, setup, HostWork::Operations(&plan), None)?;
    if let Some(failure) = done.failures.first() {
        return fail(Code::Machine, failure.clone());
    }
    let rows = Operations::new(&done.ledger).rows;
    let level = format!("L{}", args.level);
    let row = rows.iter().find(|row| row.name == args.operation.name && row.level.name() == level);
    let value = row.and_then(|row| match args.metric {
        Metric::Path => row.path.map(|path| path.median),
        Metric::Exits => row.exits_per_operation().value(),
    });
    match value {
        Some(value) => Ok((value * 100.0).round() / 100.0),
        None => fail(
            Code::Data,
            format!("{} has no such number at {level} on this kernel", args.operation.name),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearer_of_two_values() {
        for (value, between, expected) in [
            (100.0, (100.0, 200.0), false),
            (149.9, (100.0, 200.0), false),
            (150.0, (100.0, 200.0), true),
            (500.0, (100.0, 200.0), true),
            // An operation that becomes faster.
            (100.0, (200.0, 100.0), true),
            (190.0, (200.0, 100.0), false),
        ] {
            assert_eq!(is_nearer_to_bad(value, between), expected, "{value} {between:?}");
        }
    }
}
