//! Flags of `vmtax bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use vmtax_bench::BenchRequest;
use vmtax_bench::plan::Shard;

use crate::flags::OutputArgs;

/// Run benchmarks in several categories of VM and show the overhead of each, with repeats and statistics.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) verb: BenchVerb,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchVerb {
    Run(RunArgs),
    Compare(CompareArgs),
    List(ListArgs),
    Merge(MergeArgs),
    Import(BenchImportArgs),
}

/// Run a matrix: categories x workloads x repeats. Each result is saved immediately; --resume continues a stopped run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax bench run matrix.toml --dry-run            print what would run, and what this host lacks
  vmtax bench run matrix.toml -o run
  vmtax bench run matrix.toml -o run --resume      after a crash or a kill
  vmtax bench run matrix.toml -o part2 --shard 2/4
  vmtax bench run examples/bench/emulated-qemu.toml --profile -o run    functions at all levels

The matrix file is described in docs/bench.md.")]
pub(crate) struct RunArgs {
    /// Matrix file.
    #[arg(value_name = "MATRIX", value_hint = ValueHint::FilePath)]
    pub(crate) matrix: PathBuf,

    /// Run folder to create.
    #[arg(short, long, value_name = "RUN", required_unless_present = "dry_run", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,

    /// Continue a stopped run: only missing cells are run.
    #[arg(long, requires = "output")]
    pub(crate) resume: bool,

    /// Only these categories and workloads, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Run part K of N: every Nth workload, with all its categories and repeats.
    #[arg(long, value_name = "K/N", value_parser = shard)]
    pub(crate) shard: Option<Shard>,

    /// Boot emulated hosts again, and replace their saved states.
    #[arg(long)]
    pub(crate) fresh: bool,

    /// Run each cell once more, and count all that the emulated host (amd or intel) executes meanwhile, by function at all levels.
    #[arg(long)]
    pub(crate) profile: bool,

    /// Count each instruction of this function of a kernel, in call trees and below the functions of vmtax report. Repeatable.
    #[arg(long, value_name = "FUNCTION", requires = "profile")]
    pub(crate) annotate: Vec<String>,

    /// Print categories, cells and missing requirements; run nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl RunArgs {
    pub(crate) fn request(&self) -> BenchRequest {
        BenchRequest {
            matrix: self.matrix.clone(),
            resume: self.resume,
            only: self.only.clone(),
            shard: self.shard,
            fresh: self.fresh,
            profile: self.profile,
            annotate: self.annotate.clone(),
        }
    }
}

/// Compare the categories of a run with their baselines, or two runs cell by cell.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax bench compare run
  vmtax bench compare before after
  vmtax bench compare run --faults lab-run
  vmtax bench compare run --format html -o bench.html")]
pub(crate) struct CompareArgs {
    /// The run.
    #[arg(value_name = "RUN", value_hint = ValueHint::AnyPath)]
    pub(crate) run: PathBuf,

    /// Another run, to compare with the first.
    #[arg(value_name = "OTHER", value_hint = ValueHint::AnyPath)]
    pub(crate) other: Option<PathBuf>,

    /// Show all metrics. [default: the first of each workload]
    #[arg(long)]
    pub(crate) all: bool,

    /// Show recorded exits by reason, each category beside its baseline: plain+nested (L2) beside plain (L1). With --format csv that table alone.
    #[arg(long, conflicts_with = "other")]
    pub(crate) exits: bool,

    /// Show instructions by function of a run with --profile, each category beside its baseline. With --format csv that table alone.
    #[arg(long, conflicts_with_all = ["other", "exits"])]
    pub(crate) functions: bool,

    /// Decompose the overhead of plain+gmem and private into page faults x cost and the rest; the cost of a fault is that of this lab
    /// run (suite memory), of the same kernel on the same emulated host.
    #[arg(long, value_name = "LAB_RUN", conflicts_with = "other", value_hint = ValueHint::DirPath)]
    pub(crate) faults: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) to: OutputArgs,
}

/// List categories and workloads.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax bench list
  vmtax bench list --format csv")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) to: OutputArgs,
}

/// Merge the parts of a matrix that ran on several machines.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax bench merge part1 part2 part3 -o whole")]
pub(crate) struct MergeArgs {
    /// Runs of parts of one matrix.
    #[arg(value_name = "RUN", required = true, num_args = 2.., value_hint = ValueHint::DirPath)]
    pub(crate) runs: Vec<PathBuf>,

    /// Run folder to create.
    #[arg(short, long, value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) output: PathBuf,
}

/// Import a table of results (CSV: workload,category,repeat,metric,unit,value,better).
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax bench import table.csv -o run && vmtax bench compare run")]
pub(crate) struct BenchImportArgs {
    /// The table.
    #[arg(value_name = "TABLE", value_hint = ValueHint::FilePath)]
    pub(crate) table: PathBuf,

    /// Run folder to create. Without it the table is only shown.
    #[arg(short, long, value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,
}

fn shard(text: &str) -> Result<Shard, String> {
    Shard::read(text).ok_or_else(|| "use K/N with K from 1 to N, such as 2/4".to_owned())
}
