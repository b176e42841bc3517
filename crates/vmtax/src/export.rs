//! `vmtax export`: the exits of the running kernel, or of a run, served as OpenMetrics.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};
use vmtax_analyse::Ledger;
use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_cli::output;
use vmtax_cli::signals::Signals;
use vmtax_report::openmetrics::{self, MetricsDialect};
use vmtax_runs::frames::{self, Played};
use vmtax_runs::ledger;
use vmtax_runs::record::CountsWatch;
use vmtax_serve::{Hosts, PageServer};

use crate::flags::{ReadingArgs, WhichArgs};

/// Serve the running kernel's exits as OpenMetrics: http://ADDRESS/metrics.
///
/// Exits are counted by eBPF, as by `vmtax record` (requirements and overhead: docs/record.md). Series are by VM, level,
/// cause and reason; their number is limited. By default the server listens on the loopback interface only, because the
/// metrics contain VM names, and there is no encryption and no authentication. Metrics: docs/export.md.
#[derive(Debug, Args)]
#[command(mut_arg("interval", |interval| interval.help(INTERVAL)))]
#[command(after_help = "Examples:
  vmtax export
  vmtax export --vm web1 --listen 127.0.0.1:9500
  vmtax export --listen 0.0.0.0:9435 --allow-host web1.example.org
  vmtax export --replay run                        a recorded run
  vmtax export --replay run --loop                 the same, as if its VMs ran now
  vmtax export --textfile /var/lib/prometheus/node-exporter/vmtax.prom
  curl http://127.0.0.1:9435/metrics")]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    which: WhichArgs,

    /// Address to listen on; port 0 selects a free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9435", value_parser = address)]
    listen: SocketAddr,

    /// Accept this name in the Host header; repeatable. Always accepted are loopback names and the address that the client
    /// connected to.
    #[arg(long, value_name = "NAME", value_parser = vmtax_serve::name)]
    allow_host: Vec<String>,

    /// Write the metrics to this file at each interval, for the textfile collector of node_exporter, and serve nothing. Its
    /// name ends in .prom; it is replaced atomically.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["listen", "allow_host"], value_parser = prom)]
    textfile: Option<PathBuf>,

    /// Serve this run or recording.
    #[arg(long, value_name = "RUN|FILE", value_hint = ValueHint::AnyPath, conflicts_with_all = ["pid", "vm", "all"])]
    replay: Option<PathBuf>,

    /// Play it as it was recorded, again and again, as if its VMs ran now: counters advance, and rates have values.
    #[arg(long = "loop", requires = "replay")]
    repeat: bool,

    /// Speed of --loop: 10 is ten times as fast as recorded.
    #[arg(long, value_name = "FACTOR", requires = "repeat", default_value = "1", value_parser = speed)]
    speed: f64,

    #[command(flatten)]
    reading: ReadingArgs,
}

const INTERVAL: &str = "Sampling interval: 100ms, 1s, ... [default: 5s]; with --replay of a recording the length of \
    the intervals in which exits are counted [default: 100ms]";

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A served run does not change.
const NEVER: Duration = Duration::from_secs(3600);

pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let mut sink = match &args.textfile {
        Some(path) => MetricsInput::File(path),
        None => MetricsInput::Server(Box::new(
            PageServer::new(args.listen, Hosts::new(&args.allow_host))
                .map_err(|error| cannot_listen(args.listen, &error))?,
        )),
    };
    let mut feed = ServedFeed::new(args)?;
    sink.put(&feed.ledger(args)?)?;
    match &sink {
        MetricsInput::Server(server) => say(server.address()?),
        // A run does not change.
        MetricsInput::File(_) if matches!(feed, ServedFeed::Fixed(_)) => return Ok(()),
        MetricsInput::File(_) => {}
    }
    let stop = Signals::new()?;
    let mut next = Instant::now();
    loop {
        next = (next + feed.pause()).max(Instant::now());
        if sink.wait(&stop, next)? {
            return Ok(());
        }
        if feed.step()? {
            sink.put(&feed.ledger(args)?)?;
        }
    }
}

/// What is served.
enum ServedFeed<'a> {
    /// The running kernel, sampled so often.
    Live(Box<CountsWatch>, Duration),
    /// A recording that is played so many times as fast.
    Played(Box<Played>, f64),
    /// A recording as a whole.
    Fixed(&'a Path),
}

impl ServedFeed<'_> {
    fn new(args: &ExportArgs) -> anyhow::Result<ServedFeed<'_>> {
        Ok(match &args.replay {
            Some(path) if args.repeat => {
                let replay = frames::of_path(path, &args.reading.reading())?;
                if !replay.frames.is_timed() {
                    let path = path.display();
                    return fail(
                        Code::Usage,
                        format!(
                            "{path}: cannot be played, because it has no times; leave out --loop"
                        ),
                    );
                }
                ServedFeed::Played(Box::new(Played::new(replay)), args.speed)
            }
            Some(path) => ServedFeed::Fixed(path),
            None => {
                args.reading.check_live()?;
                let mut watch = CountsWatch::new(&args.which.which())?;
                watch.step()?;
                let every = args.reading.interval.unwrap_or(Duration::from_secs(5));
                ServedFeed::Live(Box::new(watch), every)
            }
        })
    }

    fn ledger(&self, args: &ExportArgs) -> anyhow::Result<Ledger> {
        match self {
            ServedFeed::Live(watch, _) => Ok(watch.ledger()),
            ServedFeed::Played(played, _) => Ok(played.ledger()),
            // A pipe without a writer is waited for, and a signal ends that.
            ServedFeed::Fixed(path) => {
                ledger::of_path(path, &args.reading.reading(), Default::default())
            }
        }
    }

    /// Until there is more to count.
    fn pause(&self) -> Duration {
        match self {
            ServedFeed::Live(_, every) => *every,
            ServedFeed::Played(played, speed) => {
                played.length().map_or(NEVER, |length| length.div_f64(*speed))
            }
            ServedFeed::Fixed(_) => NEVER,
        }
    }

    /// Counts on. Whether there was anything to count.
    fn step(&mut self) -> anyhow::Result<bool> {
        match self {
            ServedFeed::Live(watch, _) => watch.step().map(|_| true),
            ServedFeed::Played(played, _) => {
                played.step();
                Ok(true)
            }
            ServedFeed::Fixed(_) => Ok(false),
        }
    }
}

/// Where metrics are read from.
enum MetricsInput<'a> {
    Server(Box<PageServer>),
    File(&'a Path),
}

impl MetricsInput<'_> {
    fn put(&mut self, ledger: &Ledger) -> anyhow::Result<()> {
        match self {
            MetricsInput::Server(server) => {
                let mut page = Vec::new();
                openmetrics::write(ledger, VERSION, MetricsDialect::OpenMetrics, &mut page)?;
                server.set_page(page);
                Ok(())
            }
            MetricsInput::File(path) => output::write(Some(path), |out| {
                Ok(openmetrics::write(ledger, VERSION, MetricsDialect::Text, out)?)
            }),
        }
    }

    /// Waits until then, or for a signal. Whether it is a request to stop.
    fn wait(&mut self, stop: &Signals, until: Instant) -> io::Result<bool> {
        match self {
            MetricsInput::Server(server) => server.serve(stop, until),
            MetricsInput::File(_) => stop.wait(until),
        }
    }
}

fn say(address: SocketAddr) {
    let reach = if address.ip().is_loopback() { "" } else { " to all hosts that can connect," };
    // Continue even if stderr is closed.
    let _ = writeln!(io::stderr(), "vmtax: serving http://{address}/metrics{reach} until Ctrl-C");
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> CodedError {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => "another program listens there; choose another port".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "permission denied; choose a port from 1024 on".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "this computer does not have that address; choose one that it has".to_owned()
        }
        _ => format!("cannot listen there: {error}"),
    };
    CodedError::new(Code::Output, format!("--listen {address}: {why}"))
}

fn prom(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension == "prom" => Ok(path),
        _ => Err("node_exporter reads only files whose names end in .prom".to_owned()),
    }
}

fn speed(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (0.01..=100.0).contains(factor));
    factor.ok_or_else(|| "use a factor from 0.01 to 100".to_owned())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "use an IP address and a port, such as 127.0.0.1:9435".to_owned())
}
