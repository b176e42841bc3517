//! QEMU on an emulated host, with a small Linux VM, and traffic between that VM and its host or a second VM.
//!
//! ```text
//!   vmtax ──mailbox──> emulated host (L0): client, tap ──virtio-net──> VM of QEMU (L1): server
//!                      records KVM's tracepoints and the scheduler's
//! ```
//! With a peer the client is in a second VM, and the host has a bridge of two taps. With `+nested` a VM of QEMU takes the place of the host, which still records: client,
//! tap and QEMU with the server's VM (L2) are in it.
//!
//! The VMM is this computer's QEMU, copied into the host with its libraries and firmware. The host has one processor, as every host whose
//! instructions are counted: vCPUs, VMM, vhost and client take turns on it. Trials of remedies that place threads have a host of two, whose instructions are not
//! counted.
//!
//! Left out: what the exits mean (`vmtax-analyse`), storing and printing.

mod files;
mod parts;
mod site;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use vmtax_events::{Event, EventKind, Sample};
use vmtax_guest::order::{decode, encode};
use vmtax_guest::traffic::{CellOutcome, HostThread, Role, Traffic, TrafficCell, TrafficKind};
use vmtax_machine::kernel::Kernel;
use vmtax_machine::{Machine, Stop};

pub use self::site::{QEMU, commands};
pub use crate::category::Category;
use crate::conversation::{Conversation, strange};
use crate::host::{Booting, HostKind, HostRecord, HostStart, Ready, What};
use crate::profile::{BatchClock, Clocked, OperationMeasure, OperationProfile, RecordReading};
use crate::{Error, trace_dat};

/// Traffic by its name.
#[derive(Clone, Copy, Debug)]
pub struct NetworkWorkload {
    pub name: &'static str,
    pub operation: &'static str,
    traffic: Traffic,
}

const fn workload(
    name: &'static str,
    operation: &'static str,
    kind: TrafficKind,
    [warm_up, count]: [u32; 2],
) -> NetworkWorkload {
    NetworkWorkload { name, operation, traffic: Traffic { kind, warm_up, count } }
}

/// All workloads: the operations before the recording and in it.
pub const WORKLOADS: [NetworkWorkload; 19] = [
    workload(
        "request",
        "request of 64 B and its answer, one after the other",
        TrafficKind::Request { bytes: 64, pause_us: 0 },
        [20, 200],
    ),
    workload(
        "paced",
        "request of 64 B and its answer, 1 ms after the one before",
        TrafficKind::Request { bytes: 64, pause_us: 1000 },
        [10, 100],
    ),
    workload("receive", "KiB of a TCP stream to the VM", TrafficKind::Receive, [1024, 4096]),
    workload("send", "KiB of a TCP stream from the VM", TrafficKind::Send, [1024, 4096]),
    workload(
        "timer",
        "sleep of 1 ms of a thread in the VM",
        TrafficKind::Sleep { us: 1000 },
        [10, 100],
    ),
    workload(
        "short-timer",
        "sleep of 50 us of a thread in the VM",
        TrafficKind::Sleep { us: 50 },
        [20, 200],
    ),
    workload(
        "read",
        "read of 4 KiB from the VM's disk, past its page cache",
        TrafficKind::Read { bytes: 4096 },
        [20, 200],
    ),
    workload(
        "write",
        "write of 4 KiB to the VM's disk, past its page cache",
        TrafficKind::Write { bytes: 4096 },
        [20, 200],
    ),
    workload(
        "clock",
        "reading of the clock by a program in the VM",
        TrafficKind::Clock,
        [100, 1000],
    ),
    workload("cpuid", "CPUID that a program in the VM executes", TrafficKind::Cpuid, [100, 1000]),
    workload(
        "rtc",
        "reading of the time from the VM's real-time clock (needs +pc+rtc)",
        TrafficKind::RealTimeClock,
        [2, 20],
    ),
    workload(
        "console",
        "line of 63 characters that a program writes to the VM's console",
        TrafficKind::Console,
        [2, 20],
    ),
    workload(
        "display",
        "character that a program writes to the text of the VM's display, if it has one",
        TrafficKind::Display,
        [50, 500],
    ),
    workload(
        "touch",
        "MiB of memory that a program in the VM touches for the first time",
        TrafficKind::Touch,
        [0, 32],
    ),
    workload(
        "again",
        "MiB of memory that a program in the VM touches, as it did in the warm-up",
        TrafficKind::Again,
        [16, 16],
    ),
    workload(
        "compute",
        "some milliseconds of computing, each vCPU its part at the same time",
        TrafficKind::Compute,
        [4, 40],
    ),
    workload(
        "protect",
        "page whose right to write a program takes away, while its threads compute on other vCPUs",
        TrafficKind::Protect,
        [2, 20],
    ),
    workload(
        "barrier",
        "memory barrier that a program has its threads pass, which compute on other vCPUs",
        TrafficKind::Barrier,
        [2, 20],
    ),
    workload(
        "boot",
        "boot of the VM, from the start of QEMU to its first answer",
        TrafficKind::Boot,
        [0, 1],
    ),
];

impl NetworkWorkload {
    /// The workload of this name.
    pub fn named(name: &str) -> Option<&'static NetworkWorkload> {
        WORKLOADS.iter().find(|workload| workload.name == name)
    }

    /// Whether its VM runs before it begins.
    pub fn has_server(&self) -> bool {
        self.traffic.kind != TrafficKind::Boot
    }

    /// Whether a client takes part, which can be elsewhere. (In the others the VM is only told to begin.)
    pub fn has_client(&self) -> bool {
        matches!(
            self.traffic.kind,
            TrafficKind::Request { .. } | TrafficKind::Receive | TrafficKind::Send
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPlace {
    /// On the VM's host.
    Host,
    /// In a second, plain VM of that host.
    Peer,
}

/// A VM with its traffic.
#[derive(Clone, Debug)]
pub struct PlannedCell {
    pub category: Category,
    pub client: ClientPlace,
    pub workload: &'static NetworkWorkload,
    /// Operations in the recording, if not the workload's own number; a tenth of it is the warm-up.
    pub operations: Option<u32>,
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct NetworkPlan {
    /// The VMs with their traffic, each once.
    pub cells: Vec<PlannedCell>,
    /// Processors of the host: 1, or 2, whose instructions are not counted: exits then vary, and times are those of the emulator.
    pub processors: u32,
}

/// Configuration of the host.
#[derive(Clone, Debug)]
pub struct NetworkSetup {
    /// [`HostKind::Amd`] or [`HostKind::Intel`].
    pub host: HostKind,
    /// Its kernel, and that of its VMs.
    pub kernel: Kernel,
    /// Folder for saved states.
    pub cache: PathBuf,
    /// Boot again, and replace the saved state.
    pub fresh: bool,
    /// Send the traffic of a cell once more, and record all that the machine executes meanwhile. A host carries out one cell then.
    pub profile: bool,
    /// Functions whose instructions that has.
    pub annotate: Vec<String>,
    /// The file for the console.
    pub console: PathBuf,
    /// Wall-clock limit of the start of the host, and of each cell.
    pub limit: Duration,
    pub stop: Stop,
}

/// One workload with one VM, and its peer if it has one.
#[derive(Debug)]
pub struct Passage {
    /// Operations in the recording.
    pub count: u32,
    /// The VM under test is a guest's guest.
    pub is_nested: bool,
    /// VMs of the run: the one under test, then its peer.
    pub vms: Vec<PassageVm>,
    /// Run time by the host's clock.
    pub elapsed_ns: u64,
    /// The recording, a `trace.dat`.
    pub trace: Vec<u8>,
    /// Events lost in its buffers.
    pub lost: u64,
    /// Its call trees, or why there are none, where they were asked for.
    pub profile: Option<Result<OperationProfile, String>>,
    /// Threads of the host that take part.
    threads: Vec<HostThread>,
}

/// A VM of the run.
#[derive(Debug)]
pub struct PassageVm {
    /// Its category: `plain+vhost`, `peer of plain+vhost`.
    pub category: String,
    is_peer: bool,
}

/// A host that carries out cells. It ends when dropped.
#[derive(Debug)]
pub struct NetworkHost {
    host: HostKind,
    machine: Machine,
    conversation: Conversation,
    release: String,
    limit: Duration,
    /// Its time is that of counted instructions.
    counted: bool,
    /// The recorder of its instructions, until a cell was recorded.
    recorded: Option<HostRecord>,
    /// Functions whose instructions the record has.
    annotate: Vec<String>,
    /// How it came up.
    pub start: HostStart,
    /// Version of the VMM.
    pub vmm: String,
}

impl Passage {
    /// Whether an event belongs to this VM. Context switches belong to VM and peer, other events to one of them by their thread.
    pub fn is_of(&self, vm: &PassageVm, event: &Event) -> bool {
        let is_other =
            |thread: &HostThread| thread.tid == event.tid && thread.of_peer != vm.is_peer;
        matches!(event.kind, EventKind::Switch { .. }) || !self.threads.iter().any(is_other)
    }

    /// Threads of the host that take part for this VM.
    pub fn threads(&self, vm: &PassageVm) -> Vec<HostThread> {
        let threads = self.threads.iter().filter(|thread| thread.of_peer == vm.is_peer);
        threads.copied().collect()
    }
}

/// How often threads that serve virtio queues got a processor. (QEMU's worker threads, which read and write the disk's file, are not counted.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    pub vmm: u64,
    pub vhost: u64,
    /// QEMU's thread for the disk's queue.
    pub io: u64,
    /// Time for which vCPUs had a processor, ns: the instructions that their threads executed, in the VM and for it.
    pub vcpu_ns: u64,
    /// Since when each processor has a vCPU.
    since: BTreeMap<u32, u64>,
}

impl Turns {
    /// Counts a switch to one of these threads.
    pub fn count(&mut self, threads: &[HostThread], event: &Event) {
        let EventKind::Switch { next_tid, .. } = event.kind else { return };
        if let Some(since) = self.since.remove(&event.cpu) {
            self.vcpu_ns += event.time_ns.saturating_sub(since);
        }
        match threads.iter().find(|thread| thread.tid == next_tid).map(|thread| thread.role) {
            Some(Role::Vmm) => self.vmm += 1,
            Some(Role::Vhost) => self.vhost += 1,
            Some(Role::Io) => self.io += 1,
            Some(Role::Vcpu) => {
                self.since.insert(event.cpu, event.time_ns);
            }
            None => {}
        }
    }
}

impl NetworkHost {
    /// Boots or restores a host for the cells of a plan.
    pub fn start(
        setup: &NetworkSetup,
        plan: &NetworkPlan,
        progress: &dyn Fn(&str),
    ) -> Result<NetworkHost, Error> {
        let (spec, archive) = files::spec(setup, plan)?;
        let booting = Booting {
            spec: &spec,
            cache: &setup.cache,
            fresh: setup.fresh,
            recorded: setup.profile.then_some(What::Code),
            // The functions are told when the VMs run.
            observed: true,
            order: None,
            // The host itself ends a VM that does not answer, and starts it anew.
            has_guests: false,
        };
        let say = |doing: &str| progress(&format!("{doing} the host"));
        let ready = booting.start((&archive, &|| Ok(archive.clone())), &say)?;
        let Ready { machine, conversation, start, recorded, .. } = ready;
        Ok(NetworkHost {
            host: setup.host,
            machine,
            conversation,
            release: setup.kernel.release.clone(),
            limit: setup.limit,
            annotate: setup.annotate.clone(),
            counted: plan.processors == 1,
            recorded,
            start,
            vmm: files::version().unwrap_or_default(),
        })
    }

    /// Carries out a cell. A VM that does not start or stops answering is tried once more, with a note; the inner error says why it was
    /// not measured.
    pub fn carry_out(&mut self, cell: &PlannedCell) -> Result<Result<Passage, String>, Error> {
        let mut order = cell.order(self.host, self.recorded.is_some());
        if !self.counted {
            // The host's time is that of this computer.
            order.site.limit_ms = self.limit.as_millis() as u64;
        }
        let mut answer = self.ask(&order)?;
        if !answer.outcome.problem.is_empty() && answer.reading.is_none() {
            let note = format!("{}: {}; tried again", cell.name(), told(&answer.outcome));
            self.start.notes.push(note);
            answer = self.ask(&order)?;
        }
        let CellAnswer { outcome, files, reading } = answer;
        if let Some(problem) = problem(&outcome, &cell.category) {
            return Ok(Err(problem));
        }
        let profile = reading.zip(outcome.profiled).map(|(reading, cycles)| {
            let (workload, cycles) = (&*cell.name(), &[cycles][..]);
            reading.finish().profile(&OperationMeasure {
                number: WINDOW,
                workload,
                cycles,
                around: 0,
            })
        });
        Ok(Ok(Passage {
            profile,
            vms: cell.vms(),
            count: cell.traffic().count,
            is_nested: cell.category.is_nested() || cell.category.is_in_xen(),
            elapsed_ns: outcome.elapsed_ns,
            lost: trace_dat::lost(&files),
            trace: trace_dat::assemble(&files, &self.release)?,
            threads: outcome.vms.into_iter().next().unwrap_or_default().threads,
        }))
    }

    fn ask(&mut self, cell: &TrafficCell) -> Result<CellAnswer, Error> {
        self.machine.allow(self.limit);
        let mut reading = None;
        let NetworkHost { machine, conversation, recorded, annotate, .. } = self;
        let bytes = conversation.ask_told(machine, &encode(cell), &mut |kernels| {
            let Some(made) = recorded.take() else { return Ok(()) };
            let made = HostRecord { kernels: kernels.to_vec(), ..made };
            let window = Clocked { level: 0, clock: BatchClock::Workload };
            reading = Some(RecordReading::start(
                made,
                BTreeMap::from([(WINDOW, window)]),
                (&[], annotate.as_slice()),
            )?);
            Ok(())
        })?;
        let outcome: CellOutcome = decode(&bytes).ok_or_else(strange)?;
        let files = self.conversation.files(bytes.len(), &outcome.files)?;
        Ok(CellAnswer { outcome, files, reading })
    }
}

impl PlannedCell {
    fn traffic(&self) -> Traffic {
        let own = self.workload.traffic;
        match self.operations {
            Some(count) if own.kind != TrafficKind::Boot => {
                Traffic { warm_up: (count / 10).max(1), count, ..own }
            }
            _ => own,
        }
    }

    /// The name of its VM.
    pub fn name(&self) -> String {
        let with = if self.client == ClientPlace::Peer { " with peer" } else { "" };
        format!("{} {}{with}", self.workload.name, self.category.name)
    }

    /// A VM for each workload: what a VM did before changes when the host's scheduler lets it run, and so how often it is idle.
    fn order(&self, host: HostKind, profiled: bool) -> TrafficCell {
        let traffic = self.traffic();
        let starts_twice = profiled && traffic.kind == TrafficKind::Boot;
        let site = site::of(host, &self.category, self.client, starts_twice);
        TrafficCell { site, traffic, profiled }
    }

    /// VMs of the run: the one under test, and its peer, unless both are in one L1, whose exits are those of both.
    fn vms(&self) -> Vec<PassageVm> {
        let category = &self.category.name;
        let mut vms = vec![PassageVm { category: category.clone(), is_peer: false }];
        if self.client == ClientPlace::Peer && !self.category.is_nested() {
            let category = format!("{}{category}", Sample::PEER_OF);
            vms.push(PassageVm { category, is_peer: true });
        }
        vms
    }
}

/// Why the cell was not measured, if it was not.
fn problem(outcome: &CellOutcome, category: &Category) -> Option<String> {
    if !outcome.problem.is_empty() {
        return Some(told(outcome));
    }
    parts::missing_of(category, &outcome.vms)
}

/// A cell's problem, with the last line of the VM's console.
fn told(outcome: &CellOutcome) -> String {
    match outcome.console.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => format!("{}; the VM's console ends: {line}", outcome.problem),
        None => outcome.problem.clone(),
    }
}

/// The number between whose marks a recorder in the emulator records traffic.
const WINDOW: u16 = 0;

type NamedFiles = Vec<(String, Vec<u8>)>;

/// What a host says of a cell.
struct CellAnswer {
    outcome: CellOutcome,
    files: NamedFiles,
    /// Reads the record, if the cell was recorded.
    reading: Option<RecordReading>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_those_of_the_threads_that_serve_queues() {
        let threads = [
            HostThread { tid: 5, role: Role::Vmm, of_peer: false },
            HostThread { tid: 6, role: Role::Vcpu, of_peer: false },
            HostThread { tid: 7, role: Role::Vhost, of_peer: false },
            HostThread { tid: 9, role: Role::Io, of_peer: false },
        ];
        let mut turns = Turns::default();
        for next_tid in [5, 6, 7, 7, 8, 9] {
            let kind = EventKind::Switch { next_tid, preempted: false };
            let time_ns = 10 * u64::from(next_tid);
            turns.count(&threads, &Event { time_ns, pid: 0, tid: 1, cpu: 0, vcpu: 0, kind });
        }
        // The vCPU, thread 6, had the processor from 60 to 70.
        let expected = Turns { vmm: 1, vhost: 2, io: 1, vcpu_ns: 10, ..Turns::default() };
        assert_eq!(turns, expected);
    }

    #[test]
    fn a_vm_and_its_peer_have_exits_of_their_own() {
        let category = Category::read("plain").expect("a category");
        let of = |category: &Category| PlannedCell {
            category: category.clone(),
            client: ClientPlace::Peer,
            workload: &WORKLOADS[0],
            operations: None,
        };
        let vms = of(&category).vms();
        let names: Vec<&str> = vms.iter().map(|vm| vm.category.as_str()).collect();
        assert_eq!(names, ["plain", "peer of plain"]);
        let thread = |tid, of_peer| HostThread { tid, role: Role::Vcpu, of_peer };
        let passage = Passage {
            count: 1,
            is_nested: false,
            vms,
            elapsed_ns: 0,
            trace: Vec::new(),
            lost: 0,
            profile: None,
            threads: vec![thread(5, false), thread(6, true)],
        };
        let event = |tid, kind| Event { time_ns: 0, pid: 0, tid, cpu: 0, vcpu: 0, kind };
        let is_of = |event: Event| [0, 1].map(|at| passage.is_of(&passage.vms[at], &event));
        assert_eq!(is_of(event(5, EventKind::Entry)), [true, false]);
        assert_eq!(is_of(event(6, EventKind::Entry)), [false, true]);
        let switch = EventKind::Switch { next_tid: 6, preempted: false };
        assert_eq!(is_of(event(5, switch)), [true, true]);
        let nested = Category::read("plain+nested").expect("a category");
        assert_eq!(of(&nested).vms().len(), 1);
    }
}
