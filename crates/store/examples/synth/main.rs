//! Makes a tree of synthetic runs from real ones, for benchmarks of `vmtax query`.

mod make;

use std::path::PathBuf;

use clap::Parser;

use make::{SynthOptions, Template, make};

/// Repeat the rows of real runs for many hosts and days, with counts and times scaled by a factor of the seed. Each run is
/// labelled `synthetic`.
#[derive(Parser)]
struct Args {
    /// Runs to make hosts of.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,

    /// Tree to create. It must not exist.
    #[arg(short, long, value_name = "TREE")]
    output: PathBuf,

    /// Number of hosts.
    #[arg(long, default_value_t = 10)]
    hosts: u32,

    /// Number of days.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=366))]
    days: u32,

    /// Exit rows of each run; 0: as many as in the real run.
    #[arg(long, default_value_t = 0)]
    rows: u64,

    /// Segments of each run.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    segments: u32,

    /// The same seed gives the same tree.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let mut templates = Vec::new();
    for run in &args.runs {
        let template = Template::read(run)?;
        if !template.has_exits() {
            return Err(format!("{}: has no exits to repeat", run.display()).into());
        }
        templates.push(template);
    }
    std::fs::create_dir(&args.output)?;
    let Args { hosts, days, rows, segments, seed, .. } = args;
    let command = std::env::args().collect();
    make(&templates, &args.output, &SynthOptions { hosts, days, rows, segments, seed, command })?;
    Ok(())
}
