//! QEMU's monitor protocol, as much as saving and restoring takes.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::exit::{Code, Fault};

/// How long an answer may take. Stopping a VM waits for its disks.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the greeting may take. It does not come while another client is connected.
const GREETING: Duration = Duration::from_secs(10);

/// A connection to one QEMU.
#[derive(Debug)]
pub(super) struct Qmp {
    name: String,
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Qmp {
    pub(super) fn connect(path: &Path) -> anyhow::Result<Qmp> {
        let name = path.display().to_string();
        let wrap = |error: io::Error| {
            let hint = match error.kind() {
                io::ErrorKind::PermissionDenied => "run vmtax as the user of the VM, or as root",
                _ => "is a QEMU with `-qmp unix:...,server=on,wait=off` running there?",
            };
            Fault::new(Code::Input, format!("{name}: {}; {hint}", error.kind())).answered(&error)
        };
        let stream = UnixStream::connect(path).map_err(wrap)?;
        stream.set_read_timeout(Some(GREETING)).map_err(wrap)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(wrap)?;
        let reader = BufReader::new(stream.try_clone().map_err(wrap)?);
        let mut qmp = Qmp { name: name.clone(), stream, reader };
        let greeting = qmp.receive()?;
        if greeting.get("QMP").is_none() {
            return Err(qmp.fault("does not speak QEMU's monitor protocol"));
        }
        qmp.stream.set_read_timeout(Some(PATIENCE)).map_err(wrap)?;
        qmp.run("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// The process at the other end.
    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream).map_err(io::Error::from)?;
        Ok(peer.pid.as_raw_nonzero().get().cast_unsigned())
    }

    /// Runs a command and gives what it returned.
    pub(super) fn run(&mut self, command: &str, arguments: Value) -> anyhow::Result<Value> {
        let request = match arguments.as_object() {
            Some(map) if map.is_empty() => json!({ "execute": command }),
            _ => json!({ "execute": command, "arguments": arguments }),
        };
        let sent = self.stream.write_all(format!("{request}\n").as_bytes());
        sent.map_err(|e| self.fault(&format!("the monitor took no command: {}", e.kind())))?;
        loop {
            let mut answer = self.receive()?;
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = answer.get("error") {
                let why = error["desc"].as_str().unwrap_or("no reason given").to_owned();
                return Err(self.fault(&format!("QEMU refused {command}: {why}")));
            }
        }
    }

    /// Run state: running, paused, inmigrate, ...
    pub(super) fn status(&mut self) -> anyhow::Result<String> {
        let status = self.run("query-status", json!({}))?;
        Ok(status["status"].as_str().unwrap_or("unknown").to_owned())
    }

    /// Whether migration leaves out memory that is a shared file.
    pub(super) fn ignore_shared(&mut self, state: bool) -> anyhow::Result<()> {
        let capability = json!({ "capability": "x-ignore-shared", "state": state });
        self.run("migrate-set-capabilities", json!({ "capabilities": [capability] }))?;
        Ok(())
    }

    pub(super) fn fault(&self, what: &str) -> anyhow::Error {
        Fault::new(Code::Input, format!("{}: {what}", self.name)).into()
    }

    fn receive(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => {
                Err(self
                    .fault("QEMU closed its monitor; is another client connected, or did it end?"))
            }
            Ok(_) => serde_json::from_str(&line)
                .map_err(|_| self.fault("does not speak QEMU's monitor protocol")),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Err(self.fault("QEMU does not answer; another client may hold its monitor"))
            }
            Err(error) => Err(self.fault(&format!("cannot read its monitor: {}", error.kind()))),
        }
    }
}
