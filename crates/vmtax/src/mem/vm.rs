//! A QEMU: where its memory lies, its device state in and out.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::qmp::Qmp;
use super::watch::stopping;
use crate::exit::{Code, fail};

/// How long QEMU may take from one step of a migration to the next.
const PATIENCE: Duration = Duration::from_secs(120);
/// Device state above this is memory that is not a shared file.
const STATE: u64 = 4 << 30;

/// A block of memory that is a file.
#[derive(Debug)]
pub(super) struct Ram {
    /// As QEMU names the object.
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) file: File,
}

/// A running QEMU.
#[derive(Debug)]
pub(super) struct Vm {
    pub(super) qmp: Qmp,
    pid: u32,
}

impl Vm {
    pub(super) fn connect(socket: &Path) -> anyhow::Result<Vm> {
        let qmp = Qmp::connect(socket)?;
        let pid = qmp.pid()?;
        Ok(Vm { qmp, pid })
    }

    /// Its memory, in the order of its objects.
    pub(super) fn ram(&mut self, write: bool) -> anyhow::Result<Vec<Ram>> {
        let backends = self.qmp.run("query-memdev", json!({}))?;
        let backends: Vec<(String, u64, bool)> = backends
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .filter_map(|b| {
                let id = b["id"].as_str()?.to_owned();
                Some((id, b["size"].as_u64()?, b["share"].as_bool().unwrap_or(false)))
            })
            .collect();
        let mut memfds = memfds(self.pid)?;
        let mut found = Vec::new();
        for (id, bytes, share) in &backends {
            if !share {
                continue;
            }
            let path = match self.mem_path(id) {
                Some(path) => path,
                None => {
                    let same = |b: &&(String, u64, bool)| b.1 == *bytes && b.2;
                    let at = memfds.iter().position(|(_, len)| len == bytes);
                    match at {
                        Some(at) if backends.iter().filter(same).count() == 1 => {
                            memfds.remove(at).0
                        }
                        Some(_) => {
                            return Err(self.qmp.fault(&format!(
                                "several memory backends of {bytes} bytes, and no telling which memfd is whose; \
                                 use memory-backend-file, or different sizes"
                            )));
                        }
                        None => {
                            let what =
                                format!("the memfd of the memory backend {id:?} was not found");
                            return Err(self.qmp.fault(&what));
                        }
                    }
                }
            };
            let file = File::options().read(true).write(write).open(&path).with_context(|| {
                format!(
                    "{}: the memory of QEMU (process {}) cannot be opened",
                    path.display(),
                    self.pid
                )
            })?;
            if file.metadata()?.len() < *bytes {
                return Err(self
                    .qmp
                    .fault(&format!("{}: shorter than the memory in it", path.display())));
            }
            found.push(Ram { name: id.clone(), bytes: *bytes, file });
        }
        if found.is_empty() {
            return Err(self.qmp.fault(
                "the VM's memory is private to QEMU; start it with \
                 -object memory-backend-memfd,id=mem,size=...,share=on -machine memory-backend=mem",
            ));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The file of a backend that has one.
    fn mem_path(&mut self, id: &str) -> Option<PathBuf> {
        let path = format!("/objects/{id}");
        let value =
            self.qmp.run("qom-get", json!({ "path": path, "property": "mem-path" })).ok()?;
        let path = PathBuf::from(value.as_str()?);
        // A folder is where QEMU made a nameless file; that is found as a memfd is.
        path.is_file().then_some(path)
    }

    /// The state of the devices of a stopped VM.
    pub(super) fn save_state(&mut self) -> anyhow::Result<Vec<u8>> {
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("state");
        let listener = UnixListener::bind(&socket)?;
        listener.set_nonblocking(true)?;
        self.qmp.ignore_shared(true)?;
        let done = self.receive_state(&listener, &socket);
        self.qmp.ignore_shared(false)?;
        done
    }

    /// QEMU writes the state with its main lock held, and answers no command meanwhile: whoever waited for an answer
    /// before reading on would wait for ever. So a thread of its own reads.
    fn receive_state(&mut self, listener: &UnixListener, socket: &Path) -> anyhow::Result<Vec<u8>> {
        let given_up = AtomicBool::new(false);
        let state = std::thread::scope(|scope| {
            let reader = scope.spawn(|| read_state(listener, &given_up));
            let done = self.migrate_to(socket);
            if done.is_err() {
                given_up.store(true, Ordering::Relaxed);
                // The error is what counts; this only ends a migration that may still be under way.
                let _ = self.qmp.run("migrate_cancel", json!({}));
            }
            let state = reader.join();
            done.map(|()| state)
        })?;
        let Ok(state) = state else { bail!("the thread that reads the device state ended") };
        let state = state.context("QEMU's device state ended early")?;
        if state.len() as u64 == STATE {
            return Err(self
                .qmp
                .fault("its device state has more than 4 GiB; is all memory shared?"));
        }
        Ok(state)
    }

    fn migrate_to(&mut self, socket: &Path) -> anyhow::Result<()> {
        self.qmp.run("migrate", json!({ "uri": format!("unix:{}", socket.display()) }))?;
        let start = Instant::now();
        let under_way = ["none", "setup", "active", "device", "pre-switchover", "completed"];
        while self.migration(&under_way)? != "completed" {
            self.patience(start)?;
        }
        Ok(())
    }

    /// State of the migration, which must be among these.
    fn migration(&mut self, expected: &[&str]) -> anyhow::Result<String> {
        let answer = self.qmp.run("query-migrate", json!({}))?;
        let status = answer["status"].as_str().unwrap_or("none").to_owned();
        if expected.contains(&status.as_str()) {
            return Ok(status);
        }
        let why = answer["error-desc"].as_str().unwrap_or("no reason given");
        let what = format!("saving the device state ended with {status:?}: {why}");
        Err(self.qmp.fault(&what))
    }

    fn patience(&self, start: Instant) -> anyhow::Result<()> {
        stopping()?;
        if start.elapsed() > PATIENCE {
            return Err(self.qmp.fault("the migration makes no progress"));
        }
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    }

    /// Gives the state of the devices to a QEMU that waits for it.
    pub(super) fn load_state(&mut self, state: &mut dyn Read) -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("state");
        self.qmp.ignore_shared(true)?;
        self.qmp.run("migrate-incoming", json!({ "uri": format!("unix:{}", socket.display()) }))?;
        let start = Instant::now();
        let mut stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) if start.elapsed() > PATIENCE => return Err(error.into()),
                Err(_) => self.patience(start)?,
            }
        };
        stream.set_write_timeout(Some(PATIENCE))?;
        io::copy(state, &mut stream).context("QEMU took no more of the device state")?;
        stream.flush()?;
        drop(stream);
        let start = Instant::now();
        while self.qmp.status()? == "inmigrate" {
            self.patience(start)?;
        }
        Ok(())
    }
}

/// Deleted files that a process holds open: (path that opens it, length). QEMU's memory is among them.
fn memfds(pid: u32) -> anyhow::Result<Vec<(PathBuf, u64)>> {
    let folder = format!("/proc/{pid}/fd");
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) => {
            return fail(
                Code::Input,
                format!("{folder}: {}; run vmtax as the user of the VM, or as root", error.kind()),
            );
        }
    };
    let mut found = Vec::new();
    let mut inodes = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(link) = fs::read_link(&path) else { continue };
        let link = link.to_string_lossy().into_owned();
        if !link.starts_with("/memfd:") && !link.ends_with(" (deleted)") {
            continue;
        }
        use std::os::unix::fs::MetadataExt;
        let Ok(metadata) = path.metadata() else { continue };
        if metadata.is_file() && !inodes.contains(&(metadata.dev(), metadata.ino())) {
            inodes.push((metadata.dev(), metadata.ino()));
            found.push((path, metadata.len()));
        }
    }
    found.sort();
    Ok(found)
}

/// A VM that was stopped and goes on when this ends, however it ends.
pub(super) struct Pause<'a> {
    vm: &'a mut Vm,
    goes_on: bool,
}

impl<'a> Pause<'a> {
    pub(super) fn new(vm: &'a mut Vm, leave_stopped: bool) -> anyhow::Result<Pause<'a>> {
        let running = vm.qmp.status()? == "running";
        let pause = Pause { vm, goes_on: running && !leave_stopped };
        pause.vm.qmp.run("stop", Value::Object(serde_json::Map::new()))?;
        Ok(pause)
    }

    pub(super) fn vm(&mut self) -> &mut Vm {
        self.vm
    }

    /// Lets the VM go on, and says if that fails.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        let goes_on = std::mem::take(&mut self.goes_on);
        if goes_on {
            self.vm.qmp.run("cont", json!({}))?;
        }
        Ok(())
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if self.goes_on {
            // An error is being reported already.
            let _ = self.vm.qmp.run("cont", json!({}));
        }
    }
}

/// All that QEMU writes into the socket, until it closes it.
fn read_state(listener: &UnixListener, given_up: &AtomicBool) -> io::Result<Vec<u8>> {
    let start = Instant::now();
    let late = |start: Instant| {
        if given_up.load(Ordering::Relaxed) || start.elapsed() > PATIENCE {
            Err(io::Error::from(io::ErrorKind::TimedOut))
        } else {
            Ok(())
        }
    };
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                late(start)?;
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error),
        }
    };
    stream.set_nonblocking(false)?;
    // How soon it is seen that the other thread has given up.
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut state = Vec::new();
    let mut block = vec![0; 64 << 10];
    let mut last = Instant::now();
    loop {
        match stream.read(&mut block) {
            Ok(0) => return Ok(state),
            Ok(n) => {
                last = Instant::now();
                let room = usize::try_from(STATE).unwrap_or(usize::MAX) - state.len();
                state.extend_from_slice(&block[..n.min(room)]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => late(last)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
