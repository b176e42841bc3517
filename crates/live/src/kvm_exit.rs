//! Loads `kvm_exit.bpf.c` and reads what it counts.
//!
//! ```text
//!   half A │ programs add │      read, cleared │ programs add │
//!   half B │     cleared  │ programs add ...   │      read, cleared ...
//!                         ▲ the half is switched, and every program that still saw the old one is waited for
//! ```

use std::collections::{BTreeSet, HashMap};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use libbpf_rs::{Link, MapCore, MapFlags, Object, RingBufferBuilder};
use rustix::time::{ClockId, clock_gettime};
use vmtax_events::{Coverage, Event, Isa, Losses};

use crate::layout::{Cell, Config, Key, Sent, Spans, Taken, TakenKey, Thread, Totals};
use crate::load::{self, WantedPrograms, map, refused};
use crate::mapped_array::MappedArray;
use crate::rows::{IntervalRows, LiveTaker, LiveVcpu, exit_key};
use crate::vmcs;
use crate::{Error, LiveOptions, Raw, kernel, mapped_array, privileges, raw};

/// Counts exits for as long as it lives.
pub struct ExitRecorder {
    isa: Isa,
    coverage: Coverage,
    config: Config,
    totals: MappedArray<Totals>,
    threads: MappedArray<Thread>,
    cells: MappedArray<Cell>,
    keys: MappedArray<Key>,
    /// What is known of each thread that was seen, by its index.
    seen: HashMap<usize, SeenExit>,
    /// VMs of the threads that live: KVM's own address of one, in its process.
    vms: HashMap<(u32, u64), ExitGroup>,
    /// Readable when single events are there.
    ring: Option<OwnedFd>,
    /// Single events that came after the time up to which all are there.
    pending: Vec<Event>,
    /// Of those, how many were said to be lost.
    told_lost: u64,
    /// Which exits the single events are of.
    choice: Option<String>,
    /// Why VMCS fields are not named, if so, and whether there was one.
    nameless: Option<String>,
    had_nameless: bool,
    /// Links come off before the programs and maps go.
    links: Vec<Link>,
    object: Object,
}

#[derive(Clone, Copy)]
struct SeenExit {
    id: u64,
    vm: u32,
    vcpu: u32,
    group: (u32, u64),
    /// Intervals since it ended.
    ended: u32,
}

struct ExitGroup {
    vm: u32,
    threads: u32,
}

impl ExitRecorder {
    /// Loads the programs for KVM's exits of this kind, and has them called. They count from [`ExitRecorder::start`] on.
    ///
    /// # Errors
    /// One sentence on what is missing.
    pub fn new(root: &Path, isa: Isa, options: &LiveOptions) -> Result<ExitRecorder, Error> {
        privileges::check()?;
        let mut config = kernel::config(root, isa)?;
        config.exact = options.most_keys.clamp(1, 1 << 20);
        // Exact keys of exits and of accesses, as many coarse ones as of one of them, the coarsest, and the one place
        // that stands for none.
        config.cells = 3 * config.exact + 256;
        config.threads = options.most_threads.clamp(1, 1 << 16);
        config.filtered = u32::from(options.processes.is_some());
        if let Some(raw) = &options.raw {
            config.raw = 1;
            config.sample = raw.sample;
            config.slower_ns = u64::try_from(raw.slower.as_nanos()).unwrap_or(u64::MAX);
        }
        let places = options.vmcs.as_deref().map_err(Clone::clone);
        let planned = places.and_then(|places| vmcs::plan(places, &mut config));
        let (probes, mut nameless) = match planned {
            Ok(probes) => (probes, None),
            Err(problem) => (vmcs::Planned::default(), Some(problem)),
        };
        let wanted = WantedPrograms { isa, config: &config, probes: &probes, options };
        let object = load::load(&wanted)?;
        // Before the exits that they tell of.
        let mut links = probes.attach(&object).unwrap_or_else(|problem| {
            nameless = Some(problem);
            Vec::new()
        });
        let (others, coverage) = load::attach(&object)?;
        links.extend(others);
        let totals = MappedArray::new(map(&object, ".bss")?.as_fd(), "totals", 1)?;
        let count = config.cells as usize;
        Ok(ExitRecorder {
            isa,
            coverage,
            totals,
            threads: MappedArray::new(
                map(&object, "threads")?.as_fd(),
                "threads",
                config.threads as usize + 1,
            )?,
            cells: MappedArray::new(map(&object, "cells")?.as_fd(), "cells", 2 * count)?,
            keys: MappedArray::new(map(&object, "keys")?.as_fd(), "keys", count)?,
            config,
            seen: HashMap::new(),
            vms: HashMap::new(),
            ring: match options.raw {
                None => None,
                Some(_) => Some(descriptor(map(&object, "ring")?.as_fd())?),
            },
            pending: Vec::new(),
            told_lost: 0,
            choice: options.raw.as_ref().and_then(Raw::choice),
            nameless,
            had_nameless: false,
            links,
            object,
        })
    }

    /// Whose exits they are.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// What can be counted.
    pub fn coverage(&self) -> Coverage {
        self.coverage
    }

    /// Which exits the single events are of, when not of all.
    pub fn choice(&self) -> Option<&str> {
        self.choice.as_deref()
    }

    /// From now on exits are counted.
    pub fn start(&mut self) {
        self.totals.write_part(0, offset_of!(Totals, on), 1_u32);
    }

    /// What was counted since the last call.
    pub fn interval(&mut self) -> Result<IntervalRows, Error> {
        let half = (self.totals.read(0).half & 1) as usize;
        self.totals.write_part(0, offset_of!(Totals, half), 1 - half as u32);
        wait_for_programs();
        let mut rows = IntervalRows::default();
        self.read_threads(half, &mut rows);
        let totals = self.totals.read(0);
        for index in 1..=self.within_cells(totals.cells_used) {
            let at = half * self.config.cells as usize + index;
            let cell = self.cells.read(at);
            if cell.is_empty() {
                continue;
            }
            self.cells.write(at, Cell::default());
            let key = self.keys.read(index);
            let vm = self.seen.get(&(key.thread as usize)).map_or(key.thread, |seen| seen.vm);
            rows.add(self.isa, vm, &key, &cell);
            self.had_nameless |= is_nameless(self.isa, &key);
        }
        self.read_taken(half, &mut rows)?;
        self.give_back()?;
        Ok(rows)
    }

    /// Takes who had the CPU of preempted vCPUs.
    fn read_taken(&mut self, half: usize, rows: &mut IntervalRows) -> Result<(), Error> {
        let taken = map(&self.object, "taken")?;
        let count = self.config.cells as usize;
        // What runs a vCPU, by thread id.
        let vcpus: HashMap<u32, (u32, u32)> =
            self.seen.values().map(|seen| (seen.id as u32, (seen.vm, seen.vcpu))).collect();
        // Entries that go while the kernel looks for the next make it begin again.
        let keys: Vec<Vec<u8>> = taken.keys().collect();
        for bytes in keys {
            let Some(of) = mapped_array::read::<TakenKey>(&bytes) else { continue };
            let Some(index) = (of.cell as usize).checked_sub(half * count) else { continue };
            if index >= count {
                continue;
            }
            let found = taken.lookup(&bytes, MapFlags::ANY).map_err(refused("taken", "read"))?;
            // One that is not there any more, or stays, was counted or will be.
            let _ = taken.delete(&bytes);
            let Some(sum) = found.and_then(|bytes| mapped_array::read::<Taken>(&bytes)) else {
                continue;
            };
            let key = self.keys.read(index);
            let vm = self.seen.get(&(key.thread as usize)).map_or(key.thread, |seen| seen.vm);
            let by = LiveTaker { name: name(of.tid, &sum), vcpu: vcpus.get(&of.tid).copied() };
            rows.add_taken(exit_key(self.isa, vm, &key), by, &sum);
        }
        Ok(())
    }

    /// What could not be counted so far.
    pub fn losses(&self) -> Losses {
        let totals = self.totals.read(0);
        Losses {
            recorder_lost: totals.lost + self.missed(),
            unpaired_exits: totals.unpaired_exits,
            unpaired_entries: totals.unpaired_entries,
            details_dropped: totals.details_dropped[0],
            accesses_dropped: totals.details_dropped[1],
            notes: self.notes(totals.raw_lost),
            ..Losses::default()
        }
    }

    fn notes(&self, raw_lost: u64) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(problem) = self.nameless.as_ref().filter(|_| self.had_nameless) {
            notes.push(format!("VMCS fields are not named: {problem}"));
        }
        if raw_lost > 0 {
            notes.push(format!(
                "{raw_lost} single events found no room on their way and are missing among the events"
            ));
        }
        notes
    }

    /// What becomes readable when there are single events; nothing where none are recorded.
    pub fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().map(AsFd::as_fd)
    }

    /// Single events that are complete up to now, in order of time. Also where none are recorded.
    pub fn events(&mut self) -> Result<Vec<Event>, Error> {
        if self.config.raw == 0 {
            return Ok(Vec::new());
        }
        // Programs give an event its time and then send it: those that began before this are waited for.
        let until = now_ns();
        wait_for_programs();
        self.receive()?;
        self.pending.sort_by_key(|event| event.time_ns);
        let later = self.pending.partition_point(|event| event.time_ns <= until);
        let rest = self.pending.split_off(later);
        Ok(std::mem::replace(&mut self.pending, rest))
    }

    fn receive(&mut self) -> Result<(), Error> {
        let (isa, pending, told) = (self.isa, &mut self.pending, &mut self.told_lost);
        let failed = refused("ring", "receive events");
        let ring = map(&self.object, "ring")?;
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&ring, |bytes| {
                if let Some(event) = Sent::read(bytes).and_then(|sent| raw::event(isa, &sent)) {
                    if let vmtax_events::EventKind::Lost { count } = event.kind {
                        *told += count;
                    }
                    pending.push(event);
                }
                0
            })
            .map_err(&failed)?;
        builder.build().and_then(|ring| ring.consume()).map_err(&failed)
    }

    /// All single events that are left, and at their end what was lost since the last of its CPU.
    fn last_events(&mut self) -> Result<Vec<Event>, Error> {
        let mut events = self.events()?;
        events.append(&mut self.pending);
        let count = self.totals.read(0).raw_lost.saturating_sub(self.told_lost);
        if count > 0 {
            let kind = vmtax_events::EventKind::Lost { count };
            let vcpu = vmtax_events::NO_VCPU;
            events.push(Event { time_ns: now_ns(), pid: 0, tid: 0, cpu: 0, vcpu, kind });
        }
        Ok(events)
    }

    /// Stops counting, and gives what was counted since the last interval, the single events that are left, and all losses.
    pub fn finish(mut self) -> Result<(IntervalRows, Vec<Event>, Losses), Error> {
        self.links.clear();
        let rows = self.interval()?;
        let events = self.last_events()?;
        let mut losses = self.losses();
        // What is still open has no entry any more.
        losses.unpaired_exits +=
            self.seen.keys().filter(|&&index| self.is_open(index)).count() as u64;
        Ok((rows, events, losses))
    }

    fn is_open(&self, index: usize) -> bool {
        let thread = self.threads.read(index);
        thread.id != 0 && thread.flags & Thread::OPEN != 0
    }

    fn within_cells(&self, used: u64) -> usize {
        (used as usize).min(self.config.cells as usize - 1)
    }

    /// Learns of new threads, and takes everybody's time.
    fn read_threads(&mut self, half: usize, rows: &mut IntervalRows) {
        let used = (self.totals.read(0).threads_used as usize).min(self.config.threads as usize);
        for index in 1..=used {
            let thread = self.threads.read(index);
            let id = if thread.id == 0 { thread.ended } else { thread.id };
            // One that has not yet said which VM's vCPU it runs has nothing counted either, but for its first access.
            if id == 0 || (thread.kvm == 0 && thread.id != 0) {
                continue;
            }
            let vm = match self.seen.get(&index) {
                Some(seen) if seen.id == id => seen.vm,
                _ => self.appeared(index, id, &thread, rows),
            };
            if thread.id == 0
                && let Some(seen) = self.seen.get_mut(&index)
            {
                seen.ended += 1;
            }
            rows.add_time(vm, thread.vcpu, &thread.spans[half]);
            let place = offset_of!(Thread, spans) + half * size_of::<Spans>();
            self.threads.write_part(index, place, Spans::default());
        }
    }

    /// A VM is known by its process, unless that runs several at a time.
    fn appeared(&mut self, index: usize, id: u64, thread: &Thread, rows: &mut IntervalRows) -> u32 {
        let (pid, tid) = ((id >> 32) as u32, id as u32);
        let (kvm, vcpu) = (thread.kvm, thread.vcpu);
        let is_taken = self.vms.values().any(|group| group.vm == pid);
        let group = self
            .vms
            .entry((pid, kvm))
            .or_insert_with(|| ExitGroup { vm: if is_taken { tid } else { pid }, threads: 0 });
        group.threads += 1;
        let vm = group.vm;
        self.seen.insert(index, SeenExit { id, vm, vcpu, group: (pid, kvm), ended: 0 });
        let state_protected = thread.state_protected();
        rows.appeared.push(LiveVcpu { vm, pid, tid, state_protected });
        vm
    }

    /// Threads that ended before both halves were last read are over: their places can be taken again.
    fn give_back(&mut self) -> Result<(), Error> {
        let over: BTreeSet<usize> =
            self.seen.iter().filter(|(_, seen)| seen.ended >= 2).map(|(&index, _)| index).collect();
        if over.is_empty() {
            return Ok(());
        }
        for index in 1..=self.within_cells(self.totals.read(0).cells_used) {
            let key = self.keys.read(index);
            if !over.contains(&(key.thread as usize)) {
                continue;
            }
            // Two cells may have had the same key when a place for it could not be written.
            let _ = map(&self.object, "cell_of_key")?.delete(mapped_array::bytes(&key));
            self.keys.write(index, Key::default());
            let kind = usize::from(key.flags & Key::ACCESS != 0);
            let is_coarse = key.kind == vmtax_events::DetailKind::Overflow as u8;
            let counter = if is_coarse {
                offset_of!(Totals, coarse_used)
            } else {
                offset_of!(Totals, exact_used)
            };
            self.totals.subtract(0, counter + 8 * kind, 1);
            self.push("free_cells", index)?;
        }
        for index in over {
            if let Some(seen) = self.seen.remove(&index)
                && let Some(group) = self.vms.get_mut(&seen.group)
            {
                group.threads -= 1;
                if group.threads == 0 {
                    self.vms.remove(&seen.group);
                }
            }
            self.threads.write(index, Thread::default());
            self.push("free_threads", index)?;
        }
        Ok(())
    }

    fn push(&self, name: &'static str, index: usize) -> Result<(), Error> {
        let value = (index as u32).to_le_bytes();
        map(&self.object, name)?
            .update(&[], &value, MapFlags::ANY)
            .map_err(refused(name, "give back a place"))
    }

    /// Calls that the kernel left out because the same program was at work on that CPU.
    fn missed(&self) -> u64 {
        self.object.progs().map(|program| missed(program.as_fd().as_raw_fd())).sum()
    }
}

/// A VMREAD or VMWRITE (Intel SDM volume 3, appendix C) of which nothing more is known.
fn is_nameless(isa: Isa, key: &Key) -> bool {
    let is_vmcs = matches!(key.reason & 0xffff, 23 | 25);
    isa == Isa::Vmx && is_vmcs && key.kind == 0 && key.flags & (Key::ACCESS | Key::NESTED) == 0
}

/// Who had a CPU. One that was never seen leaving it may run still.
fn name(tid: u32, taken: &Taken) -> String {
    if tid == TakenKey::OTHERS {
        return "others".to_owned();
    }
    let name = match taken.name() {
        name if name.is_empty() => {
            std::fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default()
        }
        name => name,
    };
    match name.trim_end_matches('\n') {
        "" => format!("thread {tid}"),
        name => name.to_owned(),
    }
}

fn descriptor(of: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    of.try_clone_to_owned().map_err(|source| Error::Map {
        map: "ring",
        what: "keep a descriptor",
        source,
    })
}

/// Time as the programs have it.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Waits until every program that began before has ended.
fn wait_for_programs() {
    use rustix::thread::{MembarrierCommand, membarrier};
    // Programs on tracepoints run without preemption, and this waits for all that does.
    if membarrier(MembarrierCommand::Global).is_err() {
        // A kernel with nohz_full CPUs refuses. Programs take a microsecond.
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn missed(program: i32) -> u64 {
    let mut info = libbpf_rs::libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `length` bytes into `info`; the descriptor is a program's.
    #[expect(unsafe_code, reason = "libbpf-rs lists all programs of the system or none")]
    let answer = unsafe {
        libbpf_rs::libbpf_sys::bpf_prog_get_info_by_fd(program, &raw mut info, &raw mut length)
    };
    if answer == 0 { info.recursion_misses } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selection_of_events_is_stored() {
        let choice = |sample, slower| Raw { sample, slower, ..Raw::default() }.choice();
        assert_eq!(choice(1, Duration::ZERO), None);
        assert_eq!(
            choice(10, Duration::from_millis(2)).as_deref(),
            Some("of one exit in 10 and of exits that took at least 2ms")
        );
    }
}
