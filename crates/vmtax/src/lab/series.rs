//! `vmtax lab series`: kernels, hosts and options -> a folder of runs, and a page of what changes between them.

use std::io::Write;

use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_cli::output;
use vmtax_lab::{Ability, HostKind};
use vmtax_report::series::{KernelSeries as Shown, SeriesPoint};
use vmtax_report::text::TextLayout;
use vmtax_runs::budget;
use vmtax_runs::kernels::is_image;
use vmtax_runs::lab::fault;
use vmtax_runs::series::{GitTree, Series, SeriesSpec, slug};

use super::args::{SeriesArgs, able, chosen, countable, measurable};
use crate::flags::{Color, TableFormat, color, width};

/// The files that are written beside the runs.
const PAGE: &str = "index.html";
const CSV: &str = "series.csv";
const JSON: &str = "series.json";

pub(crate) fn run(args: &SeriesArgs) -> anyhow::Result<()> {
    check(args)?;
    let spec = spec(args);
    let mut series = Series::open(&spec)?;
    if !args.no_run {
        series.run()?;
    }
    show(args, &series)?;
    match series.failures.len() {
        0 => Ok(()),
        many => {
            let what = format!(
                "{many} of the series could not be measured; the same command tries again:"
            );
            Err(CodedError::new(Code::Machine, what).detailed(series.failures).into())
        }
    }
}

fn spec(args: &SeriesArgs) -> SeriesSpec {
    let build = args.build.clone().unwrap_or_default();
    SeriesSpec {
        folder: args.output.clone(),
        kernels: args.kernel.clone(),
        modules: args.modules.clone(),
        tree: args.tree.clone().map(|folder| GitTree { folder, build }),
        hosts: args.host.iter().map(|host| host.host()).collect(),
        suites: args.suite.clone(),
        operations: args.operation.clone(),
        nested: args.nested,
        profile: args.profile,
        options: args.option.clone(),
        vary: args.vary.clone(),
        processors: args.processors,
        batches: args.batches,
        limit: args.limit,
    }
}

fn check(args: &SeriesArgs) -> anyhow::Result<()> {
    let images = args.kernel.iter().filter(|kernel| is_image(kernel)).count();
    if args.tree.is_none() && !args.modules.is_empty() && args.modules.len() != images {
        return fail(
            Code::Usage,
            format!(
                "--modules was given {} times for {images} kernel images; give one for each image",
                args.modules.len()
            ),
        );
    }
    if args.no_run {
        return Ok(());
    }
    let hosts: Vec<HostKind> = args.host.iter().map(|host| host.host()).collect();
    let asked =
        [(args.nested, "--nested", Ability::Nest), (args.profile, "--profile", Ability::Profile)];
    for host in &hosts {
        able(*host, &asked)?;
        measurable(*host, (args.profile, args.nested), (&args.suite, &args.operation))?;
    }
    countable(args.processors, &hosts, chosen(&args.suite, &args.operation))?;
    if hosts.iter().any(|host| host.architecture() != hosts[0].architecture()) {
        return fail(
            Code::Usage,
            "--host: a series has kernels of one architecture; give hosts of arm64 a series of their own",
        );
    }
    for host in &args.host {
        vmtax_machine::check(host.host().emulator()).map_err(|e| fault(e.into(), None))?;
    }
    Ok(())
}

/// Writes the files of the series, and prints it.
fn show(args: &SeriesArgs, series: &Series<'_>) -> anyhow::Result<()> {
    let points = series.points()?;
    if points.is_empty() {
        if series.failures.is_empty() {
            return fail(Code::Data, format!("{}: has no run of a series", args.output.display()));
        }
        return Ok(());
    }
    let missing = series.missing(&points);
    let shown = points.iter().map(|point| SeriesPoint {
        kernel: point.run.kernel.clone(),
        host: point.run.host.clone(),
        options: point.run.options.clone(),
        folder: point.run.run.clone(),
        ledger: &point.ledger,
    });
    let shown = Shown::new(shown.collect(), missing, budget::steady_exits);
    let version = env!("CARGO_PKG_VERSION");
    let write = |name: &str, text: &dyn Fn(&mut dyn Write) -> std::io::Result<()>| {
        output::write(Some(&args.output.join(name)), |out| Ok(text(out)?))
    };
    write(PAGE, &|out| shown.html(out, version))?;
    write(CSV, &|out| shown.csv(out))?;
    write(JSON, &|out| shown.json(out))?;
    for (name, page) in shown.steps(version)? {
        write(&slug(&name), &|out| out.write_all(&page))?;
    }
    let configurations = series.configurations()?;
    output::write(None, |out| {
        match args.format {
            TableFormat::Text => {
                let look = TextLayout { color: color(Color::Auto, None), width: width(None) };
                shown.text(out, look)?;
                if !configurations.is_empty() {
                    writeln!(out, "\nConfigurations")?;
                }
                for line in configurations.iter().flat_map(|line| look.wrapped(line, "  ")) {
                    writeln!(out, "{line}")?;
                }
                writeln!(out, "\n{}", args.output.join(PAGE).display())?;
            }
            TableFormat::Csv => shown.csv(out)?,
            TableFormat::Html => shown.html(out, version)?,
            TableFormat::Json => shown.json(out)?,
        }
        Ok(())
    })
}
