//! A program of the user's that runs beside the suite, to be measured or to be compared with.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::channel::Attachment;
use crate::{Result, system, trace};

/// The running program.
pub(crate) struct Observer(Child);

/// How long the program must have been asleep to count as set up.
const QUIET: Duration = Duration::from_millis(300);
/// How long it may take for that.
const MOST: Duration = Duration::from_secs(30);

impl Observer {
    /// Starts it and waits until it has settled: it sleeps and uses no more time.
    pub(crate) fn start(arguments: &[String]) -> Result<Option<Observer>> {
        let Some((program, rest)) = arguments.split_first() else { return Ok(None) };
        trace::mount()?;
        system::mount("debugfs", "/sys/kernel/debug")?;
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
        let step = Duration::from_millis(20);
        let (mut quiet, mut waited, mut before) = (Duration::ZERO, Duration::ZERO, String::new());
        while quiet < QUIET {
            if let Ok(Some(status)) = self.0.try_wait() {
                let said = std::fs::read_to_string("/out/observer.txt").unwrap_or_default();
                return Err(format!(
                    "{program} ended before the suite began ({status}): {}",
                    said.trim()
                ));
            }
            if waited > MOST {
                return Err(format!(
                    "{program} does not come to rest within {} s of emulated time",
                    MOST.as_secs()
                ));
            }
            std::thread::sleep(step);
            waited += step;
            let now = self.times();
            quiet = if now == before { quiet + step } else { Duration::ZERO };
            before = now;
        }
        Ok(())
    }

    /// State and processor time of the process.
    fn times(&self) -> String {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<&str> = after.split_whitespace().collect();
        // State, and utime and stime: fields 3, 14 and 15 of proc(5).
        [0, 11, 12].map(|i| fields.get(i).copied().unwrap_or_default()).join(" ")
    }

    /// Interrupts it, as Ctrl-C would, and waits until it has written what it has.
    pub(crate) fn finish(mut self) -> Result<Vec<Attachment>> {
        system::interrupt(self.0.id());
        self.0.wait().map_err(|e| format!("waiting for the observer: {e}"))?;
        let mut files = Vec::new();
        let folder = std::fs::read_dir("/out").map_err(|e| format!("/out: {e}"))?;
        for entry in folder.filter_map(std::result::Result::ok) {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if let Ok(bytes) = std::fs::read(entry.path()) {
                files.push(Attachment { name: format!("observer/{name}"), bytes });
            }
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }
}
