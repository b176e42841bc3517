//! `vmtax export`: the exits of the running kernel, or of a run, served as OpenMetrics.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};
use vmtax_analyse::Ledger;
use vmtax_cli::exit::{Code, Fault};
use vmtax_cli::output;
use vmtax_cli::signals::Signals;
use vmtax_report::openmetrics::{self, Dialect};
use vmtax_runs::ledger;
use vmtax_runs::record::Watch;
use vmtax_serve::{Hosts, Server};

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
        Some(path) => Sink::File(path),
        None => Sink::Server(Box::new(
            Server::new(args.listen, Hosts::new(&args.allow_host))
                .map_err(|error| cannot_listen(args.listen, &error))?,
        )),
    };
    let mut watch = match &args.replay {
        Some(path) => {
            // A pipe without a writer is waited for, and a signal ends that.
            sink.put(&ledger::of_path(path, &args.reading.reading(), Default::default())?)?;
            None
        }
        None => {
            args.reading.check_live()?;
            let mut watch = Watch::new(&args.which.which())?;
            watch.step()?;
            sink.put(&watch.ledger())?;
            Some(watch)
        }
    };
    if let Sink::Server(server) = &sink {
        say(server.address()?);
    }
    let every = match (&watch, &sink) {
        (Some(_), _) => args.reading.interval.unwrap_or(Duration::from_secs(5)),
        // A run does not change.
        (None, Sink::File(_)) => return Ok(()),
        (None, Sink::Server(_)) => NEVER,
    };
    let stop = Signals::new()?;
    let mut next = Instant::now();
    loop {
        next = (next + every).max(Instant::now());
        if sink.wait(&stop, next)? {
            return Ok(());
        }
        if let Some(watch) = &mut watch {
            watch.step()?;
            sink.put(&watch.ledger())?;
        }
    }
}

/// Where metrics are read from.
enum Sink<'a> {
    Server(Box<Server>),
    File(&'a Path),
}

impl Sink<'_> {
    fn put(&mut self, ledger: &Ledger) -> anyhow::Result<()> {
        match self {
            Sink::Server(server) => {
                let mut page = Vec::new();
                openmetrics::write(ledger, VERSION, Dialect::OpenMetrics, &mut page)?;
                server.set_page(page);
                Ok(())
            }
            Sink::File(path) => output::write(Some(path), |out| {
                Ok(openmetrics::write(ledger, VERSION, Dialect::Text, out)?)
            }),
        }
    }

    /// Waits until then, or for a signal. Whether it is a request to stop.
    fn wait(&mut self, stop: &Signals, until: Instant) -> io::Result<bool> {
        match self {
            Sink::Server(server) => server.serve(stop, until),
            Sink::File(_) => stop.wait(until),
        }
    }
}

fn say(address: SocketAddr) {
    let reach = if address.ip().is_loopback() { "" } else { " to all hosts that can connect," };
    // Continue even if stderr is closed.
    let _ = writeln!(io::stderr(), "vmtax: serving http://{address}/metrics{reach} until Ctrl-C");
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> Fault {
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
    Fault::new(Code::Output, format!("--listen {address}: {why}"))
}

fn prom(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension == "prom" => Ok(path),
        _ => Err("node_exporter reads only files whose names end in .prom".to_owned()),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "use an IP address and a port, such as 127.0.0.1:9435".to_owned())
}
