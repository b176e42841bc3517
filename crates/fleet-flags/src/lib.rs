//! The flags of `vmtax-fleet`, in a crate of their own: `vmtax` makes completions and man pages of them without the engine.
//!
//! Left out: anything that a query does.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Command as Described, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};

/// Query and manage the runs of many hosts.
#[derive(Debug, Parser)]
#[command(name = "vmtax-fleet", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "`vmtax query ...` is `vmtax-fleet query ...`, and `vmtax fleet ...` is `vmtax-fleet ...`.

Exit codes: 0 done, 1 unexpected, 2 usage, 3 input, 4 data, 5 output; see docs/commands.md."
)]
pub struct FleetCli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands. Documentation comments of variants would replace the help of the commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Query(QueryArgs),
    Compact(CompactArgs),
    #[cfg(feature = "cluster")]
    Check(CheckArgs),
    #[cfg(feature = "cluster")]
    Scheduler(SchedulerArgs),
    #[cfg(feature = "cluster")]
    Executor(ExecutorArgs),
}

/// `vmtax query` and `vmtax fleet`, as `vmtax` has them: the query, and all other subcommands.
pub fn as_subcommands() -> [Described; 2] {
    let all = FleetCli::command();
    let query = all.find_subcommand("query").cloned().unwrap_or_default();
    let mut fleet = Described::new("fleet")
        .about("Manage the runs of many hosts")
        .after_help("Example:\n  vmtax fleet compact fleet/ --date 2026-01-31")
        .subcommand_required(true);
    for other in all.get_subcommands().filter(|command| command.get_name() != "query") {
        fleet = fleet.subcommand(other.clone());
    }
    [query, fleet]
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RowFormat {
    /// For a terminal.
    Text,
    /// One line per row.
    Csv,
    /// For programs; docs/fleet.md.
    Json,
    /// Parquet, with column types.
    Parquet,
    /// One page that opens offline.
    Html,
}

/// Query the runs of many hosts with SQL, or by a predefined question.
///
/// Tables: runs, vms, exits, accesses, time, preempted, stats, bench, events; exits_named has words for numbers, and reasons,
/// details and detail_kinds are the tables behind it. Each row of a run has the columns run, host, date, kernel, cpu_model,
/// labels and emulated. A PATH is a run or a folder of runs such as host=H/date=D/RUN, local or in a store such as
/// s3://BUCKET/FOLDER, with credentials from the environment (AWS_ACCESS_KEY_ID, ...; see docs/fleet.md). Damaged and
/// unfinished runs are skipped and reported on standard error.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax query --list
  vmtax query 'SELECT host, sum(count) AS exits FROM exits GROUP BY host ORDER BY exits DESC' fleet/
  vmtax query 'SELECT cause, sum(count) AS exits FROM exits_named GROUP BY cause ORDER BY exits DESC' run/
  vmtax query --question tax-rose --param since=2026-01-15 fleet/
  vmtax query --question top-causes --param class=rack fleet/ --format html -o causes.html
  vmtax query --question nested 's3://bucket/fleet/host=web*/date=2026-01-*'
  vmtax query 'SELECT * FROM runs' fleet/ --cluster df://scheduler:50050")]
pub struct QueryArgs {
    /// The SQL (not with --question and --list), then runs or folders of runs.
    #[arg(value_name = "SQL|PATH", value_hint = ValueHint::AnyPath)]
    pub words: Vec<String>,

    /// Run this predefined question.
    #[arg(long, value_name = "NAME", conflicts_with = "list")]
    pub question: Option<String>,

    /// The value of the parameter $NAME; repeatable.
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = pair)]
    pub parameters: Vec<(String, String)>,

    /// List the predefined questions and their parameters.
    #[arg(long)]
    pub list: bool,

    /// Print SQL that defines exits_named('RUN/exits/*.parquet') in DuckDB.
    #[arg(long, conflicts_with_all = ["list", "question", "words"])]
    pub duckdb: bool,

    /// Output format.
    #[arg(long, value_enum, default_value_t = RowFormat::Text)]
    pub format: RowFormat,

    /// Output file. [default: standard output]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    /// Exit with code 4, after the rows, if a run was skipped.
    #[arg(long)]
    pub strict: bool,

    /// First read every file of the query and compare its checksum. Without this, damage that does not change the size of a file
    /// is only noticed if the file cannot be decoded.
    #[arg(long)]
    pub verify: bool,

    /// Memory and threads.
    #[command(flatten)]
    pub limits: LimitArgs,

    /// End the query after this time: 30s, 10min, 2h, ...
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = vmtax_cli::flags::duration)]
    pub timeout: Duration,

    /// Run the query on this Ballista scheduler: df://HOST:PORT.
    #[cfg(feature = "cluster")]
    #[arg(long, value_name = "URL")]
    pub cluster: Option<String>,
}

/// Limits of a query.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Memory for sorting, joining and grouping, which spill to disk beyond it: 512M, 2G, ...
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub memory: usize,

    /// Threads of a query. [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// Merge the files of all runs of a day into few sorted files.
///
/// The rows of the day are written to TREE/compacted/date=D, where queries read them. The runs are kept. With --remove a run is
/// removed after its rows were read back and compared. The command can be killed at any moment, and continues when it is run
/// again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax fleet compact fleet/ --date 2026-01-31
  vmtax fleet compact fleet/ --date 2026-01-31 --remove")]
pub struct CompactArgs {
    /// A folder of runs.
    #[arg(value_name = "TREE", value_hint = ValueHint::DirPath)]
    pub tree: PathBuf,

    /// The day, such as 2026-01-31. [default: all days]
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub date: Option<String>,

    /// Remove the runs that were compacted. Runs with profiles are kept, because profiles are not rows.
    #[arg(long)]
    pub remove: bool,
}

/// Check a cluster: its version, its executors, and whether they can read the files.
#[cfg(feature = "cluster")]
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax fleet check fleet/ --cluster df://scheduler:50050")]
pub struct CheckArgs {
    /// Runs or folders of runs.
    #[arg(value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,

    /// The scheduler: df://HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub cluster: String,
}

/// Run a Ballista scheduler of the version that this program uses.
#[cfg(feature = "cluster")]
#[derive(Debug, Args)]
pub struct SchedulerArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:50050")]
    pub listen: std::net::SocketAddr,

    /// Seconds without a heartbeat after which an executor counts as lost.
    #[arg(long, default_value_t = 180, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(2..))]
    pub timeout: u64,
}

/// Run a Ballista executor of the version that this program uses.
#[cfg(feature = "cluster")]
#[derive(Debug, Args)]
pub struct ExecutorArgs {
    /// The scheduler: HOST:PORT.
    #[arg(long, default_value = "127.0.0.1:50050")]
    pub scheduler: String,

    /// Address to listen on for results.
    #[arg(long, default_value = "127.0.0.1:50051")]
    pub listen: std::net::SocketAddr,

    /// Port to listen on for the scheduler.
    #[arg(long, default_value_t = 50052)]
    pub control_port: u16,

    /// Name of this host for other hosts. [default: the address of --listen]
    #[arg(long, value_name = "HOST")]
    pub external_host: Option<String>,

    /// Concurrent tasks. [default: one per processor]
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub tasks: usize,

    /// Memory of all tasks together: 512M, 2G, ...
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = size)]
    pub memory: usize,

    /// Folder for data passed between tasks; it is created if needed.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub work: Option<PathBuf>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("use NAME=VALUE".to_owned()),
    }
}

fn day(text: &str) -> Result<String, String> {
    match is_date(text) {
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

/// Whether a text has the form `2026-01-31`.
pub fn is_date(text: &str) -> bool {
    let number = |part: &str, digits: usize, most: u32| {
        part.len() == digits
            && part.bytes().all(|b| b.is_ascii_digit())
            && part.parse::<u32>().is_ok_and(|n| n <= most)
    };
    matches!(text.split('-').collect::<Vec<_>>()[..], [y, m, d] if number(y, 4, 9999) && number(m, 2, 12) && number(d, 2, 31))
}
