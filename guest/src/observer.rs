//! A user's program that runs beside the suite, to measure its overhead.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::channel::Attachment;
use crate::{Result, system, trace};

pub(crate) struct Observer(Child);

/// The program has settled when it and its children use less than [`REST`] of this time. Some programs poll twenty times a second forever;
/// a starting one uses all of the processor.
const WINDOW: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_millis(20);
/// Timeout of settling.
const MOST: Duration = Duration::from_secs(60);

impl Observer {
    /// Starts it and waits until it has settled.
    pub(crate) fn start(arguments: &[String]) -> Result<Option<Observer>> {
        let Some((program, rest)) = arguments.split_first() else { return Ok(None) };
        // No mount: its files may lie there already.
        system::folder("/out")?;
        trace::mount()?;
        system::mount("debugfs", "/sys/kernel/debug")?;
        // L1 has just reported that it is up and will wait soon; its processor time until then is not the observer's.
        std::thread::sleep(WINDOW);
        let log =
            File::create("/out/observer.txt").map_err(|e| format!("/out/observer.txt: {e}"))?;
        let errors = log.try_clone().map_err(|e| format!("/out/observer.txt: {e}"))?;
        let child = Command::new(program)
            .args(rest)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/tmp")
            .current_dir("/out")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|e| format!("{program} does not start: {e}"))?;
        let mut observer = Observer(child);
        observer.settle(program)?;
        Ok(Some(observer))
    }

    fn settle(&mut self, program: &str) -> Result<()> {
        let (mut waited, mut before) = (Duration::ZERO, spent());
        loop {
            std::thread::sleep(WINDOW);
            waited += WINDOW;
            if let Ok(Some(status)) = self.0.try_wait() {
                let said = std::fs::read_to_string("/out/observer.txt").unwrap_or_default();
                return Err(format!(
                    "{program} ended before the suite began ({status}): {}",
                    said.trim()
                ));
            }
            let now = spent();
            if now.saturating_sub(before) < REST {
                return Ok(());
            }
            if waited > MOST {
                return Err(format!(
                    "{program} does not come to rest within {} s of emulated time",
                    MOST.as_secs()
                ));
            }
            before = now;
        }
    }

    /// Sends SIGINT and waits until it has written its output.
    pub(crate) fn finish(mut self) -> Result<Vec<Attachment>> {
        std::thread::sleep(WINDOW);
        system::interrupt(self.0.id());
        self.0.wait().map_err(|e| format!("waiting for the observer: {e}"))?;
        let mut files = Vec::new();
        collect("/out", "observer", &mut files)?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }
}

/// Files in a folder and its subfolders.
fn collect(folder: &str, name: &str, files: &mut Vec<Attachment>) -> Result<()> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{folder}: {e}"))?;
    for entry in entries.filter_map(std::result::Result::ok) {
        let Ok(last) = entry.file_name().into_string() else { continue };
        let (path, name) = (format!("{folder}/{last}"), format!("{name}/{last}"));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, &name, files)?;
        } else if let Ok(bytes) = std::fs::read(&path) {
            files.push(Attachment { name, bytes });
        }
    }
    Ok(())
}

/// Processor time of all other programs, including the observer's children. Not the time counted by ticks, which misses short steps between
/// sleeps.
fn spent() -> Duration {
    let own = std::process::id().to_string();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let programs = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && *name != own)
        // Kernel threads have no command line.
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
        });
    let time = |pid: String| {
        let times = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
        times
            .split(' ')
            .next()
            .and_then(|time| time.parse().ok())
            .map_or(Duration::ZERO, Duration::from_nanos)
    };
    programs.map(time).sum()
}
