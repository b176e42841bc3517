//! The options: facts of the recording and, in version 7, where everything else is.
//!
//! Left out on purpose: CPU maps of processes (PROCMAPS), event hooks (HOOK), the strings that only
//! describe sections (STRINGS), kallsyms and printk formats: no exit is decoded with them.

use std::collections::HashMap;

use vmtax_events::{Losses, RecordedGuest, Recording, Together};

use super::damage::say;
use super::header::tgids;
use crate::Error;
use crate::import::cursor::{Cursor, text};

/// The largest option that is read.
const MAX_OPTION: u64 = 16 << 20;
/// Options of a file: some for each CPU and instance.
const MAX_OPTIONS: u32 = 1 << 16;
/// Bytes of all options together. A small file can hold a lot of them if it is compressed.
const MAX_OPTIONS_SIZE: u64 = 64 << 20;
/// Pairs of buffer and CPU in a file.
pub(super) const MAX_DATA: usize = 1 << 18;
/// More CPUs than a kernel can have.
pub(super) const MAX_CPUS: u32 = 1 << 16;

/// Option numbers (trace-cmd.dat.v7(5)).
pub(super) mod id {
    pub(in super::super) const DONE: u16 = 0;
    pub(super) const DATE: u16 = 1;
    pub(super) const CPUSTAT: u16 = 2;
    pub(super) const BUFFER: u16 = 3;
    pub(super) const TRACECLOCK: u16 = 4;
    pub(super) const UNAME: u16 = 5;
    pub(super) const OFFSET: u16 = 7;
    pub(super) const CPUCOUNT: u16 = 8;
    pub(super) const VERSION: u16 = 9;
    pub(super) const TRACEID: u16 = 11;
    pub(super) const TIME_SHIFT: u16 = 12;
    pub(super) const GUEST: u16 = 13;
    pub(super) const TSC2NSEC: u16 = 14;
    pub(super) const HEADER_INFO: u16 = 16;
    pub(super) const EVENT_FORMATS: u16 = 18;
    pub(super) const CMDLINES: u16 = 21;
    pub(super) const BUFFER_TEXT: u16 = 22;
    /// Not trace-cmd's own: gpuvis' recorder saves `saved_tgids` so.
    pub(super) const SAVED_TGIDS: u16 = 32;
}

/// Cycles of the TSC -> nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tsc2Nsec {
    mult: u32,
    shift: u32,
}

impl Tsc2Nsec {
    /// The kernel's `mul_u64_u32_shr`.
    pub(super) fn apply(self, cycles: u64) -> u64 {
        let product = u128::from(cycles) * u128::from(self.mult);
        product.checked_shr(self.shift).and_then(|ns| u64::try_from(ns).ok()).unwrap_or(u64::MAX)
    }
}

/// A ring buffer that was saved: the top one or an instance's.
#[derive(Debug, Default)]
pub(super) struct BufferOption {
    /// Version 6: of the table of CPUs. Version 7: of the section.
    pub(super) offset: u64,
    /// Empty for the top instance.
    pub(super) name: String,
    /// Version 7 only.
    pub(super) clock: String,
    /// Version 7 only: size of a sub-buffer.
    pub(super) page_size: u32,
    /// Version 6 only: CPUs of this buffer, if their number was given.
    pub(super) cpus: Option<u32>,
    /// Version 7 only: CPU, offset and size of its data.
    pub(super) data: Vec<(u32, u64, u64)>,
}

/// Everything that the options say.
#[derive(Debug, Default)]
pub(super) struct TraceDatOptions {
    pub(super) clock: String,
    pub(super) tgids: HashMap<u32, u32>,
    pub(super) tsc2nsec: Option<Tsc2Nsec>,
    pub(super) buffers: Vec<BufferOption>,
    /// Instances whose trace is text: there is no binary data to decode.
    pub(super) text_buffers: u32,
    /// Offsets of sections (version 7).
    pub(super) header_info: Vec<u64>,
    pub(super) event_formats: Vec<u64>,
    pub(super) cmdlines: Vec<u64>,
    uname: String,
    version: String,
    /// CPUs of the top-level buffer, 0 if it is not said.
    pub(super) cpus: u32,
    pub(super) together: Together,
    offset: String,
    date: bool,
    /// Sums of the rings' own counters at the end of the recording.
    overrun: u64,
    dropped: u64,
    /// Options taken so far, and their bytes.
    count: u32,
    size: u64,
    /// The option before was a BUFFER: in version 6 a CPUCOUNT then belongs to it.
    after_buffer: bool,
}

impl TraceDatOptions {
    /// No more options can be taken.
    pub(super) fn is_full(&self) -> bool {
        self.count > MAX_OPTIONS || self.size > MAX_OPTIONS_SIZE
    }

    /// Takes one option. `c` is exactly its data.
    pub(super) fn take(&mut self, option: u16, c: &mut Cursor<'_>, v7: bool) -> Result<(), Error> {
        self.count += 1;
        self.size = self.size.saturating_add(c.left());
        if self.is_full() {
            let problem = format!("more than {MAX_OPTIONS}, or than {MAX_OPTIONS_SIZE} bytes");
            return Err(c.malformed("options", problem));
        }
        let after_buffer = std::mem::replace(&mut self.after_buffer, option == id::BUFFER);
        match option {
            id::DATE => self.date = true,
            id::CPUSTAT => self.stat(&string(c, "CPUSTAT option")?),
            id::BUFFER if v7 => {
                let known: usize = self.buffers.iter().map(|b| b.data.len()).sum();
                self.buffers.push(buffer_v7(c, MAX_DATA.saturating_sub(known))?);
            }
            id::BUFFER => {
                let offset = c.u64("offset in a BUFFER option")?;
                let name = string(c, "name in a BUFFER option")?;
                self.buffers.push(BufferOption { offset, name, ..BufferOption::default() });
            }
            id::BUFFER_TEXT => self.text_buffers += 1,
            id::TRACECLOCK => {
                let clocks = string(c, "TRACECLOCK option")?;
                self.clock = selected_clock(&clocks);
            }
            id::UNAME => self.uname = string(c, "UNAME option")?,
            id::OFFSET => self.offset = string(c, "OFFSET option")?,
            // gpuvis' older recorder used this number for saved_tgids.
            id::CPUCOUNT if c.left() > 8 => self.tgids = tgids(&string(c, "saved tgids")?),
            id::CPUCOUNT => {
                self.cpus = c.u32("CPUCOUNT option")?;
                if let Some(buffer) = self.buffers.last_mut().filter(|_| after_buffer) {
                    buffer.cpus = Some(self.cpus);
                }
            }
            id::VERSION => self.version = string(c, "VERSION option")?,
            id::TRACEID => self.together.id = c.u64("number in a TRACEID option")?,
            // The comparisons of the clocks follow.
            id::TIME_SHIFT => {
                self.together.host = Some(c.u64("number of the host in a TIME_SHIFT option")?);
            }
            id::GUEST => self.together.guests.push(guest(c)?),
            id::TSC2NSEC => {
                let mult = c.u32("multiplier in a TSC2NSEC option")?;
                let shift = c.u32("shift in a TSC2NSEC option")?;
                // The offset that follows moves all times alike.
                self.tsc2nsec = (mult != 0 && shift < 64).then_some(Tsc2Nsec { mult, shift });
            }
            id::HEADER_INFO => self.header_info.push(c.u64("offset in a HEADER_INFO option")?),
            id::EVENT_FORMATS => {
                self.event_formats.push(c.u64("offset in an EVENT_FORMATS option")?)
            }
            id::CMDLINES => self.cmdlines.push(c.u64("offset in a CMDLINES option")?),
            id::SAVED_TGIDS => self.tgids = tgids(&string(c, "saved tgids")?),
            _ => {}
        }
        Ok(())
    }

    /// The name of a buffer, by its number among those with data; empty for the top-level one.
    pub(super) fn name_of(&self, number: usize) -> &str {
        // Version 6 lists instances alone.
        let is_listed = self.buffers.first().is_some_and(|first| first.name.is_empty());
        let at = if is_listed { Some(number) } else { number.checked_sub(1) };
        at.and_then(|at| self.buffers.get(at)).map_or("", |buffer| &buffer.name)
    }

    /// `key: value` lines of `per_cpu/cpuN/stats`.
    fn stat(&mut self, text: &str) {
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let Ok(value) = value.trim().parse::<u64>() else { continue };
            match key.trim() {
                "overrun" | "commit overrun" => self.overrun = self.overrun.saturating_add(value),
                "dropped events" => self.dropped = self.dropped.saturating_add(value),
                _ => {}
            }
        }
    }

    /// The facts for people.
    pub(super) fn describe(&self, recording: &mut Recording) {
        // "3.1.6 not-a-git-repo": the second word is a commit or the lack of one.
        recording.tool = match self.version.split_whitespace().next() {
            Some(version) => format!("trace-cmd {version}"),
            None => "trace-cmd".to_owned(),
        };
        // sysname, nodename, release, machine.
        let mut uname = self.uname.split_whitespace().skip(1);
        let hostname = uname.next().unwrap_or_default();
        if hostname != "(none)" {
            recording.hostname = hostname.to_owned();
        }
        recording.kernel = uname.next().unwrap_or_default().to_owned();
        recording.arch = uname.next().unwrap_or_default().to_owned();
        recording.cpus = self.cpus;
        recording.together = self.together.clone();
        // The clock of the buffer is that of its times. TRACECLOCK is the kernel's setting when the options were written: with
        // guests, before the clock was chosen.
        let top = self.buffers.iter().find(|b| b.name.is_empty() && !b.clock.is_empty());
        recording.clock = top.map_or(&self.clock, |top| &top.clock).clone();
    }

    /// Options that are not applied, and counters of the rings.
    pub(super) fn remark(&self, recording: &Recording, losses: &mut Losses) {
        let clock = recording.clock.as_str();
        if self.tsc2nsec.is_none() && matches!(clock, "x86-tsc" | "tsc2nsec" | "ppc-tb" | "counter")
        {
            losses.notes.push(format!(
                "the time stamps are of the clock {clock:?} and the file does not say how to convert \
                 them: times are not nanoseconds"
            ));
        }
        for buffer in &self.buffers {
            if !buffer.clock.is_empty() && buffer.clock != clock {
                say(&mut losses.notes, || {
                    format!(
                        "the instance {:?} uses the clock {:?}, the rest of the file {clock:?}: \
                         their times cannot be compared",
                        buffer.name, buffer.clock
                    )
                });
            }
        }
        if !self.together.guests.is_empty() {
            let names = self.together.guests.iter().map(|guest| guest.name.as_str());
            losses.notes.push(format!(
                "the recording was made together with guests ({}); their events are in other files \
                 and are not merged",
                names.collect::<Vec<_>>().join(", ")
            ));
        }
        if self.together.host.is_some() {
            losses.notes.push(
                "the recording is a guest's (trace-cmd record -A): times are those of the guest's clock, its \
                 time-shift data is not applied"
                    .to_owned(),
            );
        }
        if self.date || !self.offset.is_empty() {
            losses.notes.push(
                "the file asks for an offset on all times (trace-cmd's --date or --ts-offset); it is \
                 not applied, durations do not depend on it"
                    .to_owned(),
            );
        }
        if self.text_buffers != 0 {
            losses.notes.push(format!(
                "{} buffers hold a latency tracer's text, which is not read",
                self.text_buffers
            ));
        }
        // Overwritten events are marked in the pages, dropped ones (a ring that does not overwrite) are
        // not: their place is unknown.
        if self.dropped != 0 {
            losses.recorder_lost = losses.recorder_lost.saturating_add(self.dropped);
            losses.notes.push(format!(
                "the kernel dropped {} events because a ring was full; where they are missing is not \
                 known",
                self.dropped
            ));
        }
        if self.overrun > losses.recorder_lost && losses.recorder_gaps == 0 {
            losses.notes.push(format!(
                "the kernel's counters say that {} events were overwritten, the pages say {}",
                self.overrun, losses.recorder_lost
            ));
        }
    }
}

/// The guest's name, the number of its recording, then its vCPUs, each with the host's thread.
fn guest(c: &mut Cursor<'_>) -> Result<RecordedGuest, Error> {
    let mut guest =
        RecordedGuest { name: c.string("name in a GUEST option")?, ..RecordedGuest::default() };
    guest.id = c.u64("number of the recording in a GUEST option")?;
    let vcpus = c.u32("vCPU count in a GUEST option")?;
    for _ in 0..vcpus {
        c.u32("vCPU in a GUEST option")?;
        let tid = c.u32("thread in a GUEST option")?;
        // -1: not found, as of every vCPU of a guest over the network.
        if tid != u32::MAX {
            guest.threads.push(tid);
        }
    }
    Ok(guest)
}

fn string(c: &mut Cursor<'_>, item: &'static str) -> Result<String, Error> {
    Ok(text(&c.bytes(c.left(), MAX_OPTION, item)?).trim_end().to_owned())
}

fn buffer_v7(c: &mut Cursor<'_>, most: usize) -> Result<BufferOption, Error> {
    let mut buffer = BufferOption {
        offset: c.u64("offset in a BUFFER option")?,
        name: c.string("name in a BUFFER option")?,
        clock: c.string("clock in a BUFFER option")?,
        page_size: c.u32("page size in a BUFFER option")?,
        ..BufferOption::default()
    };
    let cpus = c.u32("CPU count in a BUFFER option")?;
    if cpus > MAX_CPUS || cpus as usize > most {
        return Err(c.malformed("CPU count in a BUFFER option", format!("{cpus} CPUs")));
    }
    for _ in 0..cpus {
        let cpu = c.u32("CPU in a BUFFER option")?;
        let offset = c.u64("offset of a CPU's data")?;
        let size = c.u64("size of a CPU's data")?;
        buffer.data.push((cpu, offset, size));
    }
    Ok(buffer)
}

/// The word in brackets of `local [global] counter`, or the whole where there is a single word.
pub(super) fn selected_clock(clocks: &str) -> String {
    let mut words = clocks.split_whitespace();
    if let Some(chosen) = words.clone().find_map(|w| w.strip_prefix('[')?.strip_suffix(']')) {
        return chosen.to_owned();
    }
    match (words.next(), words.next()) {
        (Some(only), None) => only.to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::tracepoint::Endian;

    #[test]
    fn options_are_bounded_by_number_and_size() {
        let large = vec![b'a'; MAX_OPTION as usize];
        for (bytes, most) in [(&large[..], 4), (&[][..], MAX_OPTIONS)] {
            let mut options = TraceDatOptions::default();
            let mut take = || {
                options.take(id::UNAME, &mut Cursor::decompressed(&bytes, 0, Endian::Little), true)
            };
            assert!((0..most).all(|_| take().is_ok()));
            assert!(take().is_err());
            assert!(options.is_full());
        }
    }
}
