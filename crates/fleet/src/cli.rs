//! Flags as the user writes them.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};

use crate::show::Format;

/// Ask the runs of many hosts one question, and look after them.
#[derive(Debug, Parser)]
#[command(name = "vmtax-fleet", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "`vmtax query ...` is `vmtax-fleet query ...`, and `vmtax fleet ...` is `vmtax-fleet ...`.

Exit codes: 0 done, 1 unexpected, 2 usage, 3 input, 4 data, 5 output; see docs/exit-codes.md."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Query(QueryArgs),
    Compact(CompactArgs),
    #[cfg(feature = "cluster")]
    Check(CheckArgs),
    #[cfg(feature = "cluster")]
    Scheduler(SchedulerArgs),
    #[cfg(feature = "cluster")]
    Executor(ExecutorArgs),
}

/// Ask runs with SQL, or by the name of a question.
///
/// Tables: runs, vms, exits, accesses, time, preempted, stats, bench, events; reasons, details and detail_kinds say what numbers
/// stand for. Every row of a run carries run, host, date, kernel, cpu_model, labels and emulated. A PATH is a run, or a
/// tree of runs such as host=H/date=D/RUN, here or in a store such as s3://BUCKET/FOLDER, whose credentials are taken from
/// the environment (AWS_ACCESS_KEY_ID, ...; see docs/fleet.md). A run that is damaged or was never finished is left out
/// and named on standard error.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax query --list
  vmtax query 'SELECT host, sum(count) AS exits FROM exits GROUP BY host ORDER BY exits DESC' fleet/
  vmtax query 'SELECT cause, sum(count) AS exits FROM exits_named GROUP BY cause ORDER BY exits DESC' run/
  vmtax query --question tax-rose --param since=2026-01-15 fleet/
  vmtax query --question top-causes --param class=rack fleet/ --format html -o causes.html
  vmtax query --question nested 's3://bucket/fleet/host=web*/date=2026-01-*'
  vmtax query 'SELECT * FROM runs' fleet/ --cluster df://scheduler:50050")]
pub(crate) struct QueryArgs {
    /// The SQL, then runs or trees of runs. After --question and --list there is no SQL.
    #[arg(value_name = "SQL|PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) words: Vec<String>,

    /// Ask the question of this name.
    #[arg(long, value_name = "NAME", conflicts_with = "list")]
    pub(crate) question: Option<String>,

    /// A value in place of $NAME; may be given several times.
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) parameters: Vec<(String, String)>,

    /// Say which questions there are, and what can be set in them.
    #[arg(long)]
    pub(crate) list: bool,

    /// Print SQL that gives DuckDB the words of exits: exits_named('RUN/exits/*.parquet').
    #[arg(long, conflicts_with_all = ["list", "question", "words"])]
    pub(crate) duckdb: bool,

    /// How to write the rows.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,

    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// Runs that had to be left out are an error, exit code 4, after the rows.
    #[arg(long)]
    pub(crate) strict: bool,

    /// Read every file that the query needs and compare its checksum first. Without it damage that changes no
    /// file's size is seen only where a file cannot be decoded.
    #[arg(long)]
    pub(crate) verify: bool,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    /// Have this Ballista scheduler carry the query out: df://HOST:PORT.
    #[cfg(feature = "cluster")]
    #[arg(long, value_name = "URL")]
    pub(crate) cluster: Option<String>,
}

/// What a query may take.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// Memory that sorting, joining and grouping may hold before they spill to the disk: 512M, 2G, ...
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub(crate) memory: usize,

    /// Parts of a query that run at the same time. [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
}

/// Make few sorted files of the many that the runs of a day have.
///
/// TREE/compacted/date=D then holds the rows of all runs of that day, and queries read them there. The runs stay where
/// they are unless --remove is given; then a run is removed when what was written of it has been read again and is
/// the same. It can be killed at any moment, and goes on when it is started again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax fleet compact fleet/ --date 2026-01-31
  vmtax fleet compact fleet/ --date 2026-01-31 --remove")]
pub(crate) struct CompactArgs {
    /// A tree of runs.
    #[arg(value_name = "TREE", value_hint = ValueHint::DirPath)]
    pub(crate) tree: PathBuf,

    /// The day, as 2026-01-31. [default: every day that there is]
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub(crate) date: Option<String>,

    /// Remove the runs whose rows are in it. Runs with profiles are kept: they have more than rows.
    #[arg(long)]
    pub(crate) remove: bool,
}

/// Say whether a cluster can carry queries out: its version, its executors, and whether they see the files.
#[cfg(feature = "cluster")]
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax fleet check fleet/ --cluster df://scheduler:50050")]
pub(crate) struct CheckArgs {
    /// Runs or trees of runs.
    #[arg(value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,

    /// The scheduler: df://HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub(crate) cluster: String,
}

/// Run a Ballista scheduler of the version that this program speaks to.
#[cfg(feature = "cluster")]
#[derive(Debug, Args)]
pub(crate) struct SchedulerArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:50050")]
    pub(crate) listen: std::net::SocketAddr,

    /// Seconds without a sign of an executor after which it counts as lost.
    #[arg(long, default_value_t = 180, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) timeout: u64,
}

/// Run a Ballista executor of the version that this program speaks to.
#[cfg(feature = "cluster")]
#[derive(Debug, Args)]
pub(crate) struct ExecutorArgs {
    /// The scheduler: HOST:PORT.
    #[arg(long, default_value = "127.0.0.1:50050")]
    pub(crate) scheduler: String,

    /// Address to listen on for results.
    #[arg(long, default_value = "127.0.0.1:50051")]
    pub(crate) listen: std::net::SocketAddr,

    /// Port to listen on for the scheduler.
    #[arg(long, default_value_t = 50052)]
    pub(crate) control_port: u16,

    /// The name by which others reach this host. [default: the address of --listen]
    #[arg(long, value_name = "HOST")]
    pub(crate) external_host: Option<String>,

    /// Tasks at the same time. [default: one for each processor]
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) tasks: usize,

    /// Memory of all tasks together: 512M, 2G, ...
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = size)]
    pub(crate) memory: usize,

    /// Folder for what is passed between tasks. It is made if needed.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) work: Option<PathBuf>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("use NAME=VALUE".to_owned()),
    }
}

fn day(text: &str) -> Result<String, String> {
    match vmtax_fleet::question::is_date(text) {
        true => Ok(text.to_owned()),
        false => Err("use a day such as 2026-01-31".to_owned()),
    }
}

fn size(text: &str) -> Result<usize, String> {
    let help = || "use a number of at least 16M with K, M or G, such as 512M".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: usize = text[..digits].parse().map_err(|_| help())?;
    let unit = match &text[digits..] {
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "" => 1,
        _ => return Err(help()),
    };
    number.checked_mul(unit).filter(|&bytes| bytes >= 16 << 20).ok_or_else(help)
}
