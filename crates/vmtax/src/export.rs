//! `vmtax export`: the running kernel's exits, or a run's, as OpenMetrics for a server that asks for them.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};
use tiny_http::{Header, Method, Response, Server, StatusCode};
use vmtax_analyse::Ledger;
use vmtax_report::openmetrics;

use crate::cli::ReadingArgs;
use crate::exit::{Code, Fault};
use crate::record::{Stop, Watch, WhichArgs};
use crate::report;

/// Serve the running kernel's exits as OpenMetrics: http://ADDRESS/metrics.
///
/// Exits are counted by eBPF, as `vmtax record` does; docs/record.md says what that needs and costs. Series are by VM, level,
/// cause and reason, and their number is bounded. Nothing but this computer can ask, unless --listen says otherwise: what
/// is served has names of VMs, and there is no encryption and no password.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax export
  vmtax export --vm web1 --listen 127.0.0.1:9500
  vmtax export --replay run                        a run that was recorded
  curl http://127.0.0.1:9435/metrics")]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    which: WhichArgs,

    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9435")]
    listen: SocketAddr,

    /// How often what was counted is read.
    #[arg(long = "interval", value_name = "TIME", default_value = "5s", value_parser = crate::cli::duration)]
    every: Duration,

    /// Serve this run or recording, as it is.
    #[arg(long, value_name = "RUN|FILE", value_hint = ValueHint::AnyPath, conflicts_with_all = ["pid", "vm", "all", "every"])]
    replay: Option<PathBuf>,

    #[command(flatten)]
    reading: ReadingArgs,
}

/// What is served.
#[derive(Clone, Default)]
struct Metrics(Arc<Mutex<Vec<u8>>>);

impl Metrics {
    fn set(&self, ledger: &Ledger) -> anyhow::Result<()> {
        let mut text = Vec::new();
        openmetrics::write(ledger, env!("CARGO_PKG_VERSION"), &mut text)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
        Ok(())
    }

    fn get(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let stop = Stop::new()?;
    let metrics = Metrics::default();
    let mut watch = match &args.replay {
        Some(path) => {
            metrics.set(&report::ledger(path, &args.reading, Default::default())?)?;
            None
        }
        None => {
            let mut watch = Watch::new(&args.which)?;
            metrics.set(&watch.advance()?)?;
            Some(watch)
        }
    };
    let server = Server::http(args.listen).map_err(|error| {
        Fault::new(Code::Output, format!("--listen {}: cannot listen there: {error}", args.listen))
    })?;
    let server = Arc::new(server);
    // Where nobody reads it, it is not missed.
    let _ = writeln!(
        io::stderr(),
        "vmtax: serving http://{}/metrics until Ctrl-C",
        server.server_addr()
    );
    let answers = std::thread::spawn({
        let (server, metrics) = (Arc::clone(&server), metrics.clone());
        move || server.incoming_requests().for_each(|request| answer(request, &metrics))
    });
    loop {
        // A run stays as it is.
        let rest = if watch.is_some() { args.every } else { Duration::from_secs(3600) };
        if stop.wait(Instant::now() + rest)? {
            break;
        }
        if let Some(watch) = &mut watch {
            metrics.set(&watch.advance()?)?;
        }
    }
    server.unblock();
    answers.join().map_err(|_| anyhow::anyhow!("the server failed"))
}

/// One request. Who went away meanwhile misses the answer, and that is all.
fn answer(request: tiny_http::Request, metrics: &Metrics) {
    let path = request.url().split('?').next().unwrap_or_default();
    let is_reading = matches!(request.method(), Method::Get | Method::Head);
    let (status, body) = match (is_reading, path) {
        (true, "/metrics") => (200, metrics.get()),
        (true, _) => (404, b"there is /metrics here, and nothing else\n".to_vec()),
        (false, _) => (405, b"metrics can be read, and nothing else\n".to_vec()),
    };
    let kind = match status {
        200 => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    };
    let mut response = Response::from_data(body).with_status_code(StatusCode(status));
    if let Ok(header) = Header::from_bytes("Content-Type", kind) {
        response = response.with_header(header);
    }
    let _ = request.respond(response);
}
