//! Bochs's log.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bochs's log of panics, in memory.
#[derive(Debug)]
pub(super) struct BochsLog(pub(super) File);

impl BochsLog {
    pub(super) fn panic(&self) -> Option<String> {
        let length = self.0.metadata().ok()?.len().min(64 << 10);
        if length == 0 {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        // "00012345678p[CPU0  ] >>PANIC<< 3rd (13) exception with no resolution"
        let panic = text.lines().find_map(|line| line.split_once(">>PANIC<< "));
        panic.map(|(_, text)| text.trim().to_owned())
    }
}
