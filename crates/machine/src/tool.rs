//! Small programs that are run to their end: what they print, or why they failed in one line.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::mailbox::memory;
use crate::process::{Handed, Process, describe};

/// apt may fetch 100 MB over a slow line.
const PATIENCE: Duration = Duration::from_secs(600);
const LONGEST_OUTPUT: u64 = 16 << 20;

/// A program that is about to run.
pub(crate) struct Tool {
    /// Its name, for messages.
    pub(crate) program: &'static str,
    pub(crate) command: Command,
    pub(crate) handed: Handed,
}

impl Tool {
    /// Runs it: what it prints, or the last line that it says about its failure.
    pub(crate) fn run(mut self) -> Result<String, String> {
        let text = |e: std::io::Error| e.to_string();
        let output = memory("vmtax-output").map_err(|e| text(e.into()))?;
        let complaints = memory("vmtax-complaints").map_err(|e| text(e.into()))?;
        self.command.env("LC_ALL", "C").stdin(Stdio::null());
        self.command.stdout(output.try_clone().map_err(text)?);
        self.command.stderr(complaints.try_clone().map_err(text)?);
        let mut process =
            Process::spawn(self.command, self.handed).map_err(|e| match e.kind() {
                std::io::ErrorKind::NotFound => format!("{} is not installed", self.program),
                _ => text(e),
            })?;
        let Some(status) = process.wait_until(Instant::now() + PATIENCE).map_err(text)? else {
            return Err(format!("it was not done after {} s", PATIENCE.as_secs()));
        };
        if status.success() {
            return content(&output).map_err(text);
        }
        let complaints = content(&complaints).map_err(text)?;
        let mut lines = complaints.lines().map(str::trim).filter(|line| !line.is_empty());
        // apt marks its errors; other programs say the last thing last.
        let error = lines.clone().find_map(|line| line.strip_prefix("E: ").map(str::to_owned));
        Err(error.or(lines.next_back().map(str::to_owned)).unwrap_or_else(|| describe(status)))
    }
}

fn content(file: &File) -> std::io::Result<String> {
    let length = file.metadata()?.len().min(LONGEST_OUTPUT);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
