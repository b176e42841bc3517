//! The files and instances of one text of `trace-cmd report`.
//!
//! ```text
//!  report -i host.dat -i guest.dat   host.dat:       CPU 0/KVM-1234 ...      a file each: one is the host's
//!                                    guest.dat:           sshd-77   ...
//!  report -i trace.dat               again:          CPU 0/KVM-1234 ...      an instance of the same host
//! ```

use std::collections::BTreeSet;

use vmtax_events::event::HypercallInterface;
use vmtax_events::{Coverage, Event, EventKind};

use super::checks::tracepoint;
use crate::Error;
use crate::import::Imported;

/// Streams that are told apart.
const MOST: usize = 256;

/// The streams of a text.
#[derive(Default)]
pub(super) struct Streams {
    all: Vec<TextStream>,
    current: usize,
    /// The text is of several files, of which this is the host's.
    of_files: bool,
    host: Option<usize>,
    /// What the host's events are.
    coverage: Coverage,
}

#[derive(Default)]
struct TextStream {
    name: String,
    /// What exits are counted of.
    tracepoints: BTreeSet<&'static str>,
    events: u64,
}

impl Streams {
    /// The text's head names its files.
    pub(super) fn are_files(&mut self) {
        self.of_files = true;
    }

    /// The next events are of this stream.
    pub(super) fn enter(&mut self, name: &[u8]) {
        let name = String::from_utf8_lossy(name);
        let known = self.all.iter().position(|stream| stream.name == name);
        self.current = known.unwrap_or_else(|| {
            if self.all.len() < MOST {
                self.all.push(TextStream { name: name.into_owned(), ..TextStream::default() });
            }
            self.all.len() - 1
        });
    }

    /// Whether the current stream is not the host's.
    pub(super) fn is_guest(&self) -> bool {
        self.of_files && self.host != Some(self.current)
    }

    /// Counts an event of the current stream. Whether it is the host's: of several files, that with the first exit or entry.
    pub(super) fn takes(&mut self, event: &Event) -> bool {
        if let Some(stream) = self.all.get_mut(self.current) {
            stream.events += 1;
            stream.tracepoints.extend(tracepoint(&event.kind));
        }
        if matches!(event.kind, EventKind::Exit { .. } | EventKind::Entry) {
            self.host.get_or_insert(self.current);
        }
        let is_hosts = !self.is_guest();
        if is_hosts {
            self.coverage.add(covered(&event.kind));
        }
        is_hosts
    }

    /// Says which streams are left out.
    ///
    /// # Errors
    /// When two streams have the same events: two hosts, or events that were recorded twice.
    pub(super) fn finish(&self, about: &mut Imported) -> Result<(), Error> {
        let mut seen: Vec<(&TextStream, &str)> = Vec::new();
        for stream in &self.all {
            for name in &stream.tracepoints {
                if let Some((other, _)) = seen.iter().find(|(_, known)| known == name) {
                    return Err(Error::Unsupported {
                        offset: 0,
                        item: "streams",
                        problem: format!(
                            "{name} is in two of them, {:?} and {:?}: report each by itself (trace-cmd report -i FILE)",
                            other.name, stream.name
                        ),
                    });
                }
                seen.push((stream, name));
            }
        }
        if !self.of_files {
            return Ok(());
        }
        about.recording.coverage = self.coverage;
        let host = self.host.and_then(|host| self.all.get(host));
        let guests = self.all.iter().enumerate().filter(|(at, _)| Some(*at) != self.host);
        let guests: Vec<String> = guests
            .map(|(_, stream)| format!("{} ({} events)", stream.name, stream.events))
            .collect();
        if let Some(host) = host {
            let mut note = format!("exits are those of {}", host.name);
            if !guests.is_empty() {
                note += &format!("; events of other files are left out: {}", guests.join(", "));
            }
            about.losses.notes.push(note);
        }
        Ok(())
    }
}

/// The tracepoint of an event that says what a recording covers.
fn covered(kind: &EventKind) -> &'static str {
    match kind {
        EventKind::NestedExit { .. } => "kvm_nested_vmexit",
        EventKind::UserspaceExit { .. } => "kvm_userspace_exit",
        EventKind::Switch { .. } => "sched_switch",
        EventKind::Wakeup { .. } => "kvm_vcpu_wakeup",
        EventKind::Pio { .. } => "kvm_pio",
        EventKind::Mmio { .. } => "kvm_mmio",
        EventKind::PageFault { .. } => "kvm_page_fault",
        EventKind::NestedEnter => "kvm_nested_eret",
        EventKind::Sysreg { .. } => "kvm_handle_sys_reg",
        EventKind::Hypercall { interface: HypercallInterface::Smccc, .. } => "kvm_hvc_arm64",
        other => tracepoint(other).unwrap_or_default(),
    }
}
