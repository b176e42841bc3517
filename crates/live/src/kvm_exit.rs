//! Loads `kvm_exit.bpf.c` and reads what it counts.
//!
//! ```text
//!   half A │ programs add │      read, cleared │ programs add │
//!   half B │     cleared  │ programs add ...   │      read, cleared ...
//!                         ▲ the half is switched, and every program that still saw the old one is waited for
//! ```

use std::collections::{BTreeSet, HashMap};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libbpf_rs::{
    ErrorKind, Link, MapCore, MapFlags, Object, ObjectBuilder, OpenObject, PrintLevel,
};
use vmtax_events::{Coverage, Isa, Losses};

use crate::layout::{Cell, Config, Key, Spans, Thread, Totals};
use crate::memory::Mapped;
use crate::rows::{Rows, Vcpu};
use crate::{Error, kernel, privileges};

/// The programs, compiled with this crate for each processor.
const OF_VMX: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kvm_exit.vmx.o"));
const OF_SVM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kvm_exit.svm.o"));

/// Tracepoints, in the order in which they are attached: what tells of an exit before the exit itself. Without those
/// needed nothing can be counted; others may be missing in a kernel.
const TRACEPOINTS: [&str; 23] = [
    "sched_process_exit",
    "sched_switch",
    "kvm_nested_vmrun",
    "kvm_nested_vmenter",
    "kvm_nested_vmexit",
    "kvm_nested_vmexit_inject",
    "kvm_vcpu_wakeup",
    "kvm_userspace_exit",
    "kvm_vmgexit_enter",
    "kvm_vmgexit_msr_protocol_enter",
    "kvm_apic",
    "kvm_cr",
    "kvm_cpuid",
    "kvm_page_fault",
    "kvm_xen_hypercall",
    "kvm_hv_hypercall",
    "kvm_hypercall",
    "kvm_fast_mmio",
    "kvm_mmio",
    "kvm_pio",
    "kvm_msr",
    "kvm_entry",
    "kvm_exit",
];
const NEEDED: [&str; 3] = ["sched_switch", "kvm_entry", "kvm_exit"];

/// What is to be recorded.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only VMs of these processes.
    pub processes: Option<BTreeSet<u32>>,
    /// So many keys of exits, and as many of accesses, are told apart exactly; beyond, details are dropped and counted.
    pub most_keys: u32,
    /// So many vCPU threads at a time.
    pub most_threads: u32,
}

impl Default for Options {
    /// All processes, and as many keys as the accounting of recordings has: 35 MB of the kernel's memory.
    fn default() -> Self {
        Options { processes: None, most_keys: 16_384, most_threads: 4096 }
    }
}

/// Counts exits for as long as it lives.
pub struct Recorder {
    isa: Isa,
    coverage: Coverage,
    config: Config,
    totals: Mapped<Totals>,
    threads: Mapped<Thread>,
    cells: Mapped<Cell>,
    keys: Mapped<Key>,
    /// What is known of each thread that was seen, by its index.
    seen: HashMap<usize, Seen>,
    /// VMs of the threads that live: KVM's own address of one, in its process.
    vms: HashMap<(u32, u64), Group>,
    /// Links come off before the programs and maps go.
    links: Vec<Link>,
    object: Object,
}

#[derive(Clone, Copy)]
struct Seen {
    id: u64,
    vm: u32,
    group: (u32, u64),
    /// Intervals since it ended.
    ended: u32,
}

struct Group {
    vm: u32,
    threads: u32,
}

impl Recorder {
    /// Loads the programs and has them called. They count from [`Recorder::start`] on.
    ///
    /// # Errors
    /// One sentence on what is missing.
    pub fn new(root: &Path, options: &Options) -> Result<Recorder, Error> {
        let isa = kernel::isa(root)?;
        privileges::check()?;
        let mut config = kernel::config(root, isa)?;
        config.exact = options.most_keys.clamp(1, 1 << 20);
        // Exact keys of exits and of accesses, as many coarse ones as of one of them, the coarsest, and the one place
        // that stands for none.
        config.cells = 3 * config.exact + 256;
        config.threads = options.most_threads.clamp(1, 1 << 16) - 1;
        config.filtered = u32::from(options.processes.is_some());
        let object = load(isa, &config, options)?;
        let (links, coverage) = attach(&object)?;
        let totals = Mapped::new(map(&object, ".bss")?.as_fd(), "totals", 1)?;
        let count = config.cells as usize;
        Ok(Recorder {
            isa,
            coverage,
            totals,
            threads: Mapped::new(
                map(&object, "threads")?.as_fd(),
                "threads",
                config.threads as usize + 1,
            )?,
            cells: Mapped::new(map(&object, "cells")?.as_fd(), "cells", 2 * count)?,
            keys: Mapped::new(map(&object, "keys")?.as_fd(), "keys", count)?,
            config,
            seen: HashMap::new(),
            vms: HashMap::new(),
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

    /// From now on exits are counted.
    pub fn start(&mut self) {
        self.totals.write_part(0, offset_of!(Totals, on), 1_u32);
    }

    /// What was counted since the last call.
    pub fn interval(&mut self) -> Result<Rows, Error> {
        let half = (self.totals.read(0).half & 1) as usize;
        self.totals.write_part(0, offset_of!(Totals, half), 1 - half as u32);
        wait_for_programs();
        let mut rows = Rows::default();
        self.read_threads(half, &mut rows);
        let totals = self.totals.read(0);
        for index in 1..=self.within_cells(totals.cells_used) {
            let at = half * self.config.cells as usize + index;
            let cell = self.cells.read(at);
            if cell == Cell::EMPTY {
                continue;
            }
            self.cells.write(at, Cell::EMPTY);
            let key = self.keys.read(index);
            let vm = self.seen.get(&(key.thread as usize)).map_or(key.thread, |seen| seen.vm);
            rows.add(self.isa, vm, &key, &cell);
        }
        self.give_back()?;
        Ok(rows)
    }

    /// What could not be counted so far.
    pub fn losses(&self) -> Losses {
        let totals = self.totals.read(0);
        Losses {
            recorder_lost: totals.lost + self.missed(),
            unpaired_exits: totals.unpaired_exits,
            unpaired_entries: totals.unpaired_entries,
            details_dropped: totals.details_dropped,
            ..Losses::default()
        }
    }

    /// Stops counting, and gives what was counted since the last interval and all losses.
    pub fn finish(mut self) -> Result<(Rows, Losses), Error> {
        self.links.clear();
        let rows = self.interval()?;
        let mut losses = self.losses();
        // What is still open has no entry any more.
        losses.unpaired_exits +=
            self.seen.keys().filter(|&&index| self.is_open(index)).count() as u64;
        Ok((rows, losses))
    }

    fn is_open(&self, index: usize) -> bool {
        let thread = self.threads.read(index);
        thread.id != 0 && thread.flags & Thread::OPEN != 0
    }

    fn within_cells(&self, used: u64) -> usize {
        (used as usize).min(self.config.cells as usize - 1)
    }

    /// Learns of new threads, and takes everybody's time.
    fn read_threads(&mut self, half: usize, rows: &mut Rows) {
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
                _ => self.appeared(index, id, thread.kvm, rows),
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
    fn appeared(&mut self, index: usize, id: u64, kvm: u64, rows: &mut Rows) -> u32 {
        let (pid, tid) = ((id >> 32) as u32, id as u32);
        let is_taken = self.vms.values().any(|group| group.vm == pid);
        let group = self
            .vms
            .entry((pid, kvm))
            .or_insert_with(|| Group { vm: if is_taken { tid } else { pid }, threads: 0 });
        group.threads += 1;
        let vm = group.vm;
        self.seen.insert(index, Seen { id, vm, group: (pid, kvm), ended: 0 });
        rows.appeared.push(Vcpu { vm, pid, tid });
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
            let _ = map(&self.object, "cell_of_key")?.delete(&key.bytes());
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
            self.threads.write(index, Thread::EMPTY);
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

/// What libbpf said: of a refused program the verifier's words.
static SAID: Mutex<String> = Mutex::new(String::new());

fn load(isa: Isa, config: &Config, options: &Options) -> Result<Object, Error> {
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, line| {
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        said.push_str(&line);
    })));
    let programs = if isa == Isa::Svm { OF_SVM } else { OF_VMX };
    let failed = |source| Error::Load { source, said: said() };
    let mut open = ObjectBuilder::default().open_memory(programs).map_err(failed)?;
    size_maps(&mut open, config, options).map_err(failed)?;
    let object = open.load().map_err(failed)?;
    for pid in options.processes.iter().flatten() {
        map(&object, "wanted")?
            .update(&pid.to_le_bytes(), &[1], MapFlags::ANY)
            .map_err(refused("wanted", "add a process"))?;
    }
    Ok(object)
}

fn size_maps(open: &mut OpenObject, config: &Config, options: &Options) -> libbpf_rs::Result<()> {
    let processes = options.processes.as_ref().map_or(0, BTreeSet::len) as u32;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let entries = match name.as_str() {
            "threads" => config.threads + 1,
            "thread_of_tid" | "free_threads" => config.threads,
            "cells" => 2 * config.cells,
            "keys" | "cell_of_key" | "free_cells" => config.cells,
            "wanted" => processes.max(1),
            _ if name.ends_with(".rodata") => {
                let bytes = config.bytes();
                if let Some(value) = map.initial_value_mut() {
                    value[..bytes.len()].copy_from_slice(&bytes);
                }
                continue;
            }
            _ => continue,
        };
        map.set_max_entries(entries)?;
    }
    Ok(())
}

/// The verifier's last word on the program, after a colon: what it says then is about itself.
fn said() -> String {
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let before = said.lines().take_while(|line| !line.starts_with("processed "));
    let word =
        before.map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("-- ")).last();
    word.map_or_else(String::new, |word| format!(": {word}"))
}

fn attach(object: &Object) -> Result<(Vec<Link>, Coverage), Error> {
    let (mut links, mut coverage) = (Vec::new(), Coverage::default());
    for tracepoint in TRACEPOINTS {
        let name = format!("raw_{tracepoint}");
        let program =
            object.progs_mut().find(|program| program.name().to_str() == Some(name.as_str()));
        let Some(program) = program else { continue };
        match program.attach_raw_tracepoint(tracepoint) {
            Ok(link) => {
                coverage.add(tracepoint);
                links.push(link);
            }
            Err(error) if error.kind() == ErrorKind::NotFound && !NEEDED.contains(&tracepoint) => {}
            Err(source) => return Err(Error::Attach { tracepoint, source }),
        }
    }
    Ok((links, coverage))
}

/// A map by its name. libbpf puts the object's name before those of sections.
fn map<'a>(object: &'a Object, name: &'static str) -> Result<libbpf_rs::Map<'a>, Error> {
    object
        .maps()
        .find(|map| {
            let found = map.name().to_string_lossy();
            found == name || (name.starts_with('.') && found.ends_with(name))
        })
        .ok_or(Error::Map {
            map: name,
            what: "find it among those",
            source: std::io::ErrorKind::NotFound.into(),
        })
}

fn refused(map: &'static str, what: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
    move |error| Error::Map { map, what, source: std::io::Error::other(error) }
}
