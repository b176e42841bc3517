//! `vmtax export`: the exits of the running kernel, or of a run, served as OpenMetrics.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};
use vmtax_analyse::Ledger;
use vmtax_cli::exit::{Code, Fault};
use vmtax_cli::signals::Signals;
use vmtax_report::openmetrics;
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

    /// Serve this run or recording.
    #[arg(long, value_name = "RUN|FILE", value_hint = ValueHint::AnyPath, conflicts_with_all = ["pid", "vm", "all"])]
    replay: Option<PathBuf>,

    #[command(flatten)]
    reading: ReadingArgs,
}

const INTERVAL: &str = "Sampling interval: 100ms, 1s, ... [default: 5s]; with --replay of a recording the length of \
    the intervals in which exits are counted [default: 100ms]";

/// A run does not change.
const NEVER: Duration = Duration::from_secs(3600);

pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let stop = Signals::new()?;
    let mut server = Server::new(args.listen, Hosts::new(&args.allow_host))
        .map_err(|error| cannot_listen(args.listen, &error))?;
    let mut watch = match &args.replay {
        Some(path) => {
            server.set_page(page(&ledger::of_path(
                path,
                &args.reading.reading(),
                Default::default(),
            )?)?);
            None
        }
        None => {
            args.reading.check_live()?;
            let mut watch = Watch::new(&args.which.which())?;
            watch.step()?;
            server.set_page(page(&watch.ledger())?);
            Some(watch)
        }
    };
    say(server.address()?);
    let every = match watch {
        Some(_) => args.reading.interval.unwrap_or(Duration::from_secs(5)),
        None => NEVER,
    };
    let mut next = Instant::now();
    loop {
        next = (next + every).max(Instant::now());
        if server.serve(&stop, next)? {
            return Ok(());
        }
        if let Some(watch) = &mut watch {
            watch.step()?;
            server.set_page(page(&watch.ledger())?);
        }
    }
}

fn page(ledger: &Ledger) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    openmetrics::write(ledger, env!("CARGO_PKG_VERSION"), &mut text)?;
    Ok(text)
}

fn say(address: SocketAddr) {
    let who = if address.ip().is_loopback() { "" } else { " to all who can reach it," };
    // A closed stderr is no reason to end.
    let _ = writeln!(io::stderr(), "vmtax: serving http://{address}/metrics{who} until Ctrl-C");
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> Fault {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => "another program listens there; choose another port".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "this user may not listen on that port; choose one from 1024 on".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "this computer does not have that address; choose one of its own".to_owned()
        }
        _ => format!("cannot listen there: {error}"),
    };
    Fault::new(Code::Output, format!("--listen {address}: {why}"))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "use an IP address and a port, such as 127.0.0.1:9435".to_owned())
}
