//! The host of `vmtax lab network`: starts QEMU with a VM, sends traffic to it through a tap, and records KVM meanwhile.
//!
//! Left out on purpose: the meaning of QEMU's arguments, which vmtax chooses.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vmtax_guest::order::{File as Named, decode, encode};
use vmtax_guest::traffic::{Cell, DISK, HOST, Kind, Outcome, PORT, Role, TAP, Thread, Traffic, VM};

use crate::channel::{Attachment, Channel};
use crate::trace::{self, Tracer};
use crate::{Result, system, tap};

/// Console of QEMU and of the VM.
const CONSOLE: &str = "/tmp/qemu.txt";
/// Most bytes of it that are sent.
const CONSOLE_MOST: usize = 4 << 10;
/// Timeout of one attempt to connect.
const ATTEMPT: Duration = Duration::from_millis(500);
/// Time between attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Time without traffic before a recording: delayed acknowledgements and timers of the connection have passed.
const QUIET: Duration = Duration::from_millis(100);
/// KiB of a stream that are written at once.
pub(crate) const CHUNK_KIB: u32 = 16;

/// Carries out cells until the machine ends.
pub(crate) fn serve(channel: &Channel, buffer_kib: u32) -> Result<()> {
    let prepared = trace::prepare(buffer_kib).and_then(|()| tap::make(TAP, HOST));
    prepared.inspect_err(|problem| channel.fail(0, problem))?;
    let mut last = 0;
    loop {
        let (number, bytes) = channel.hear(last)?;
        last = number;
        let cell: Cell = decode(&bytes)
            .ok_or("the cell cannot be read: this program and vmtax do not belong together")?;
        let mut outcome = Outcome::default();
        let mut files = Vec::new();
        if let Err(problem) = carry_out(&cell, &mut outcome, &mut files) {
            outcome.problem = problem;
        }
        outcome.console = console();
        outcome.files = files
            .iter()
            .map(|file| Named { name: file.name.clone(), length: file.bytes.len() as u32 })
            .collect();
        channel.say(number, &encode(&outcome), &files)?;
    }
}

/// QEMU, which ends with this value.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        system::kill_group(self.0.id());
        let _ = self.0.wait();
    }
}

impl Qemu {
    fn start(words: &[String]) -> Result<Qemu> {
        let (program, rest) = words.split_first().ok_or("a cell without a VMM was ordered")?;
        let out = File::create(CONSOLE).map_err(|e| format!("{CONSOLE}: {e}"))?;
        let errors = out.try_clone().map_err(|e| format!("{CONSOLE}: {e}"))?;
        let mut command = Command::new(program);
        command.args(rest).env_clear().env("LC_ALL", "C").current_dir("/tmp");
        command.stdin(Stdio::null()).stdout(out).stderr(errors);
        system::bind_to_parent(&mut command);
        command.spawn().map(Qemu).map_err(|e| format!("{program} does not start: {e}"))
    }

    /// Fails if it has ended.
    fn check(&mut self) -> Result<()> {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("QEMU ended ({status})")),
            Err(e) => Err(format!("waiting for QEMU: {e}")),
        }
    }

    /// Waits until the server in the VM accepts a connection.
    fn connect(&mut self, deadline: Instant) -> Result<TcpStream> {
        let address = SocketAddr::from((VM, PORT));
        loop {
            self.check()?;
            match TcpStream::connect_timeout(&address, ATTEMPT) {
                Ok(stream) => return Ok(stream),
                Err(e) if Instant::now() > deadline => {
                    return Err(format!("the VM does not answer within the limit: {e}"));
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Its threads, and those that the kernel has for it.
    fn threads(&self) -> Vec<Thread> {
        let pid = self.0.id();
        let worker = format!("vhost-{pid}");
        let mut threads = Vec::new();
        for folder in [format!("/proc/{pid}/task"), "/proc".to_owned()] {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let tid = entry.file_name().to_str().and_then(|name| name.parse().ok());
                let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                let role = match name.trim() {
                    name if name == worker => Role::Vhost,
                    // QEMU names them so with debug-threads=on.
                    name if name.starts_with("CPU ") => Role::Vcpu,
                    name if name.starts_with("IO ") => Role::Io,
                    _ if tid == Some(pid) => Role::Vmm,
                    _ => continue,
                };
                threads.extend(tid.map(|tid| Thread { tid, role }));
            }
        }
        threads.sort_unstable_by_key(|thread| thread.tid);
        threads.dedup();
        threads
    }
}

fn carry_out(cell: &Cell, outcome: &mut Outcome, files: &mut Vec<Attachment>) -> Result<()> {
    for (path, content) in &cell.settings {
        fs::write(path, content).map_err(|e| format!("{path}: writing {content:?}: {e}"))?;
    }
    // Anew for each VM: what the one before wrote is gone.
    let disk = File::create(DISK).and_then(|file| file.set_len(cell.disk));
    disk.map_err(|e| format!("{DISK}: {e}"))?;
    let limit = Duration::from_millis(cell.limit_ms);
    let mut qemu = Qemu::start(&cell.qemu)?;
    let mut stream = qemu.connect(Instant::now() + limit)?;
    let failed = |e: std::io::Error| format!("the connection to the VM: {e}");
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(limit)).map_err(failed)?;
    stream.set_write_timeout(Some(limit)).map_err(failed)?;
    outcome.facts = facts(&mut stream).map_err(failed)?;
    outcome.threads = qemu.threads();
    for (number, traffic) in cell.traffic.iter().enumerate() {
        if traffic.warm_up > 0 {
            send(&mut stream, *traffic, traffic.warm_up).map_err(failed)?;
        }
        std::thread::sleep(QUIET);
        trace::clear()?;
        let tracer = Tracer::arm(false, false)?;
        tracer.record(true);
        let started = Instant::now();
        let sent = send(&mut stream, *traffic, traffic.count);
        let elapsed = started.elapsed();
        tracer.record(false);
        tracer.disarm()?;
        sent.map_err(failed)?;
        qemu.check()?;
        outcome.elapsed_ns.push(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        let named =
            |file: Attachment| Attachment { name: format!("{number}/{}", file.name), ..file };
        files.extend(trace::collect()?.into_iter().map(named));
    }
    Ok(())
}

/// The facts that the server sends first: a length, and the encoded list.
fn facts(stream: &mut TcpStream) -> std::io::Result<Vec<(String, String)>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut bytes = vec![0; (u32::from_le_bytes(length) as usize).min(1 << 20)];
    stream.read_exact(&mut bytes)?;
    Ok(decode(&bytes).unwrap_or_default())
}

/// So many operations.
fn send(stream: &mut TcpStream, traffic: Traffic, count: u32) -> std::io::Result<()> {
    stream.write_all(&traffic.header(count))?;
    let mut chunk = vec![7; CHUNK_KIB as usize * 1024];
    match traffic.kind {
        Kind::Request { bytes, pause_us } => {
            let pause = Duration::from_micros(u64::from(pause_us));
            let buffer = chunk.get_mut(..bytes as usize).unwrap_or_default();
            for _ in 0..count {
                stream.write_all(buffer)?;
                stream.read_exact(buffer)?;
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
            }
            return Ok(());
        }
        Kind::Receive => pieces(count, |bytes| stream.write_all(&chunk[..bytes]))?,
        Kind::Send => return pieces(count, |bytes| stream.read_exact(&mut chunk[..bytes])),
        Kind::Sleep { .. } | Kind::Read { .. } | Kind::Write { .. } => {}
    }
    stream.read_exact(&mut [0])
}

/// So many KiB in pieces of at most a chunk.
pub(crate) fn pieces(
    mut kib: u32,
    mut one: impl FnMut(usize) -> std::io::Result<()>,
) -> std::io::Result<()> {
    while kib > 0 {
        let now = kib.min(CHUNK_KIB);
        one(now as usize * 1024)?;
        kib -= now;
    }
    Ok(())
}

/// The last of what QEMU and the VM's kernel printed.
fn console() -> String {
    let bytes = fs::read(CONSOLE).unwrap_or_default();
    let tail = bytes.get(bytes.len().saturating_sub(CONSOLE_MOST)..).unwrap_or_default();
    String::from_utf8_lossy(tail).into_owned()
}
