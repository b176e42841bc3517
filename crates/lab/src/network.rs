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

mod category;
mod files;
mod site;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use vmtax_events::{Event, Kind as EventKind, Sample};
use vmtax_guest::order::{decode, encode};
use vmtax_guest::traffic::{Cell, Kind, Outcome, Role, Thread, Traffic};
use vmtax_machine::Machine;
use vmtax_machine::kernel::Kernel;

pub use self::category::{Category, PARTS, PLAIN, Part};
use crate::conversation::{Conversation, strange};
use crate::host::{Booting, Ready, Start};
use crate::{Error, trace_dat};

/// Traffic by its name.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its word.
    pub name: &'static str,
    /// What one operation is.
    pub operation: &'static str,
    traffic: Traffic,
}

/// All workloads.
pub const WORKLOADS: [Workload; 15] = [
    Workload {
        name: "request",
        operation: "request of 64 B and its answer, one after the other",
        traffic: Traffic {
            kind: Kind::Request { bytes: 64, pause_us: 0 },
            warm_up: 20,
            count: 200,
        },
    },
    Workload {
        name: "paced",
        operation: "request of 64 B and its answer, 1 ms after the one before",
        traffic: Traffic {
            kind: Kind::Request { bytes: 64, pause_us: 1000 },
            warm_up: 10,
            count: 100,
        },
    },
    Workload {
        name: "receive",
        operation: "KiB of a TCP stream to the VM",
        traffic: Traffic { kind: Kind::Receive, warm_up: 1024, count: 4096 },
    },
    Workload {
        name: "send",
        operation: "KiB of a TCP stream from the VM",
        traffic: Traffic { kind: Kind::Send, warm_up: 1024, count: 4096 },
    },
    Workload {
        name: "timer",
        operation: "sleep of 1 ms of a thread in the VM",
        traffic: Traffic { kind: Kind::Sleep { us: 1000 }, warm_up: 10, count: 100 },
    },
    Workload {
        name: "short-timer",
        operation: "sleep of 50 us of a thread in the VM",
        traffic: Traffic { kind: Kind::Sleep { us: 50 }, warm_up: 20, count: 200 },
    },
    Workload {
        name: "read",
        operation: "read of 4 KiB from the VM's disk, past its page cache",
        traffic: Traffic { kind: Kind::Read { bytes: 4096 }, warm_up: 20, count: 200 },
    },
    Workload {
        name: "write",
        operation: "write of 4 KiB to the VM's disk, past its page cache",
        traffic: Traffic { kind: Kind::Write { bytes: 4096 }, warm_up: 20, count: 200 },
    },
    Workload {
        name: "clock",
        operation: "reading of the clock by a program in the VM",
        traffic: Traffic { kind: Kind::Clock, warm_up: 100, count: 1000 },
    },
    Workload {
        name: "touch",
        operation: "MiB of memory that a program in the VM touches for the first time",
        traffic: Traffic { kind: Kind::Touch, warm_up: 0, count: 32 },
    },
    Workload {
        name: "again",
        operation: "MiB of memory that a program in the VM touches, as it did in the warm-up",
        traffic: Traffic { kind: Kind::Again, warm_up: 16, count: 16 },
    },
    Workload {
        name: "compute",
        operation: "some milliseconds of computing, each vCPU its part at the same time",
        traffic: Traffic { kind: Kind::Compute, warm_up: 4, count: 40 },
    },
    Workload {
        name: "protect",
        operation: "page whose right to write a program takes away, while its threads compute on other vCPUs",
        traffic: Traffic { kind: Kind::Protect, warm_up: 2, count: 20 },
    },
    Workload {
        name: "barrier",
        operation: "memory barrier that a program has its threads pass, which compute on other vCPUs",
        traffic: Traffic { kind: Kind::Barrier, warm_up: 2, count: 20 },
    },
    Workload {
        name: "boot",
        operation: "boot of the VM, from the start of QEMU to its first answer",
        traffic: Traffic { kind: Kind::Boot, warm_up: 0, count: 1 },
    },
];

impl Workload {
    /// The workload of this name.
    pub fn named(name: &str) -> Option<&'static Workload> {
        WORKLOADS.iter().find(|workload| workload.name == name)
    }

    /// Whether a client takes part, which can be elsewhere. (In the others the VM is only told to begin.)
    pub fn has_client(&self) -> bool {
        matches!(self.traffic.kind, Kind::Request { .. } | Kind::Receive | Kind::Send)
    }
}

/// Where the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// On the VM's host.
    Host,
    /// In a second, plain VM of that host.
    Peer,
}

impl Client {
    /// The client of this name.
    pub fn named(name: &str) -> Option<Client> {
        match name {
            "host" => Some(Client::Host),
            "peer" => Some(Client::Peer),
            _ => None,
        }
    }
}

/// A VM with its traffic.
#[derive(Clone, Debug)]
pub struct PlannedCell {
    /// The VM.
    pub category: Category,
    /// Where its client is.
    pub client: Client,
    /// The traffic.
    pub workload: &'static Workload,
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct NetworkPlan {
    /// The VMs with their traffic, each once.
    pub cells: Vec<PlannedCell>,
    /// Operations in each recording, if not the workload's own number; a tenth of it is the warm-up.
    pub operations: Option<u32>,
    /// Processors of the host: 1, or 2, whose instructions are not counted: exits then vary, and times are those of the emulator.
    pub processors: u32,
}

/// Configuration of the host.
#[derive(Clone, Debug)]
pub struct NetworkSetup {
    /// Its kernel, and that of its VMs.
    pub kernel: Kernel,
    /// Folder for saved states.
    pub cache: PathBuf,
    /// Boot again, and replace the saved state.
    pub fresh: bool,
    /// The file for the console.
    pub console: PathBuf,
    /// Wall-clock limit of the start of the host, and of each cell.
    pub limit: Duration,
}

impl NetworkPlan {
    /// Each workload with each VM, its client in each place.
    pub fn of_all(
        categories: &[Category],
        clients: &[Client],
        workloads: &[&'static Workload],
    ) -> NetworkPlan {
        let mut cells = Vec::new();
        for category in categories {
            for client in clients {
                let cell = |workload: &&'static Workload| PlannedCell {
                    category: category.clone(),
                    client: *client,
                    workload,
                };
                cells.extend(workloads.iter().map(cell));
            }
        }
        NetworkPlan { cells, operations: None, processors: 1 }
    }
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
    /// Threads of the host that take part.
    threads: Vec<Thread>,
}

/// A VM of the run.
#[derive(Debug)]
pub struct PassageVm {
    /// Its id: from 1 on.
    pub id: u32,
    /// Its name in tables: `request plain+vhost`.
    pub name: String,
    is_peer: bool,
}

/// Results of a run.
#[derive(Debug)]
pub struct Passages {
    /// In order of categories, then workloads.
    pub done: Vec<Passage>,
    /// Cells that were not measured: name and reason.
    pub failures: Vec<String>,
    /// How the host came up.
    pub start: Start,
    /// Version of the VMM.
    pub vmm: String,
}

impl Passage {
    /// The name of the VM under test.
    pub fn name(&self) -> &str {
        self.vms.first().map_or("", |vm| &vm.name)
    }

    /// Whether an event belongs to this VM. Context switches belong to VM and peer, other events to one of them by their thread.
    pub fn is_of(&self, vm: &PassageVm, event: &Event) -> bool {
        let is_other = |thread: &Thread| thread.tid == event.tid && thread.of_peer != vm.is_peer;
        matches!(event.kind, EventKind::Switch { .. }) || !self.threads.iter().any(is_other)
    }

    /// Threads of the host that take part for this VM.
    pub fn threads(&self, vm: &PassageVm) -> Vec<Thread> {
        let threads = self.threads.iter().filter(|thread| thread.of_peer == vm.is_peer);
        threads.copied().collect()
    }
}

/// The name of a passage.
pub fn name(workload: &str, category: &str, client: Client) -> String {
    match client {
        Client::Host => format!("{workload} {category}"),
        Client::Peer => format!("{workload} {category}{}", Sample::WITH_PEER),
    }
}

/// How often threads that serve virtio queues got a processor. (QEMU's worker threads, which read and write the disk's file, are not counted.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// QEMU's main loop.
    pub vmm: u64,
    /// The kernel's worker.
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
    pub fn count(&mut self, threads: &[Thread], event: &Event) {
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

/// Boots or restores the host and carries out the plan. A VM that does not start or stops answering is tried once more, and then is a failure of the
/// result.
///
/// # Errors
/// When the host does not come up or ends.
pub fn run_network(
    setup: &NetworkSetup,
    plan: &NetworkPlan,
    progress: &dyn Fn(&str),
) -> Result<Passages, Error> {
    let (spec, archive) = files::spec(setup, plan)?;
    let booting = Booting {
        spec: &spec,
        cache: &setup.cache,
        fresh: setup.fresh,
        marks: None,
        observed: false,
        order: None,
    };
    let say = |doing: &str| progress(&format!("{doing} the host"));
    let ready = booting.start((&archive, &|| Ok(archive.clone())), &say)?;
    let Ready { machine, conversation, start, .. } = ready;
    let vmm = files::version().unwrap_or_default();
    let passages = Passages { done: Vec::new(), failures: Vec::new(), start, vmm };
    let (operations, counted) = (plan.operations, plan.processors == 1);
    let mut run = Run { setup, machine, conversation, passages, operations, counted };
    for cell in &plan.cells {
        progress(&format!("running {}", cell.name()));
        run.carry_out(cell)?;
    }
    Ok(run.passages)
}

impl PlannedCell {
    fn traffic(&self, operations: Option<u32>) -> Traffic {
        let own = self.workload.traffic;
        match operations {
            Some(count) if own.kind != Kind::Boot => {
                Traffic { warm_up: (count / 10).max(1), count, ..own }
            }
            _ => own,
        }
    }

    /// The name of its VM.
    pub fn name(&self) -> String {
        name(self.workload.name, &self.category.name, self.client)
    }

    /// A VM for each workload: what a VM did before changes when the host's scheduler lets it run, and so how often it is idle.
    fn order(&self, operations: Option<u32>) -> Cell {
        let traffic = vec![self.traffic(operations)];
        Cell { site: site::of(&self.category, self.client), traffic }
    }

    /// VMs of the run: the one under test, and its peer, unless both are in one L1, whose exits are those of both.
    fn vms(&self, first: u32) -> Vec<PassageVm> {
        let vm = |id, name, is_peer| PassageVm { id, name, is_peer };
        let mut vms = vec![vm(first, self.name(), false)];
        if self.client == Client::Peer && !self.category.is_nested() {
            let category = format!("{}{}", Sample::PEER_OF, self.category.name);
            vms.push(vm(first + 1, name(self.workload.name, &category, Client::Host), true));
        }
        vms
    }
}

/// A running host.
struct Run<'a> {
    setup: &'a NetworkSetup,
    machine: Machine,
    conversation: Conversation,
    passages: Passages,
    operations: Option<u32>,
    /// The host's time is that of counted instructions.
    counted: bool,
}

impl Run<'_> {
    fn carry_out(&mut self, cell: &PlannedCell) -> Result<(), Error> {
        let mut order = cell.order(self.operations);
        if !self.counted {
            // The host's time is that of this computer.
            order.site.limit_ms = self.setup.limit.as_millis() as u64;
        }
        let mut answer = self.ask(&order)?;
        if !answer.0.problem.is_empty() {
            let note = format!("{}: {}; tried again", cell.name(), told(&answer.0));
            self.passages.start.notes.push(note);
            answer = self.ask(&order)?;
        }
        let (outcome, files) = answer;
        match problem(&outcome, &cell.category) {
            Some(problem) => {
                self.passages.failures.push(format!("{}: {problem}", cell.name()));
                Ok(())
            }
            None => self.keep(cell, outcome, &of_passage(&files, 0)),
        }
    }

    fn ask(&mut self, cell: &Cell) -> Result<(Outcome, Named), Error> {
        self.machine.allow(self.setup.limit);
        let bytes = self.conversation.ask(&mut self.machine, &encode(cell))?;
        let outcome: Outcome = decode(&bytes).ok_or_else(strange)?;
        let files = self.conversation.files(bytes.len(), &outcome.files)?;
        Ok((outcome, files))
    }

    fn keep(&mut self, cell: &PlannedCell, outcome: Outcome, files: &Named) -> Result<(), Error> {
        let done = &mut self.passages.done;
        let first = done.iter().flat_map(|passage| &passage.vms).count() as u32 + 1;
        done.push(Passage {
            vms: cell.vms(first),
            count: cell.traffic(self.operations).count,
            is_nested: cell.category.is_nested(),
            elapsed_ns: outcome.elapsed_ns.first().copied().unwrap_or_default(),
            lost: trace_dat::lost(files),
            trace: trace_dat::assemble(files, &self.setup.kernel.release)?,
            threads: outcome.vms.into_iter().next().unwrap_or_default().threads,
        });
        Ok(())
    }
}

/// Why the cell was not measured, if it was not.
fn problem(outcome: &Outcome, category: &Category) -> Option<String> {
    if !outcome.problem.is_empty() {
        return Some(told(outcome));
    }
    if outcome.elapsed_ns.len() != 1 {
        return Some("the host did not carry out the traffic".to_owned());
    }
    category.missing(&outcome.vms)
}

/// A cell's problem, with the last line of the VM's console.
fn told(outcome: &Outcome) -> String {
    match outcome.console.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => format!("{}; the VM's console ends: {line}", outcome.problem),
        None => outcome.problem.clone(),
    }
}

/// Files by name.
type Named = Vec<(String, Vec<u8>)>;

/// The files of one traffic: `2/trace/cpu0` of number 2 is `trace/cpu0`.
fn of_passage(files: &[(String, Vec<u8>)], number: usize) -> Vec<(String, Vec<u8>)> {
    let own = format!("{number}/");
    let mine = files
        .iter()
        .filter_map(|(name, bytes)| Some((name.strip_prefix(&own)?.to_owned(), bytes.clone())));
    mine.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_those_of_the_threads_that_serve_queues() {
        let threads = [
            Thread { tid: 5, role: Role::Vmm, of_peer: false },
            Thread { tid: 6, role: Role::Vcpu, of_peer: false },
            Thread { tid: 7, role: Role::Vhost, of_peer: false },
            Thread { tid: 9, role: Role::Io, of_peer: false },
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
            client: Client::Peer,
            workload: &WORKLOADS[0],
        };
        let vms = of(&category).vms(3);
        let names: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["request plain with peer", "request peer of plain"]);
        let thread = |tid, of_peer| Thread { tid, role: Role::Vcpu, of_peer };
        let passage = Passage {
            count: 1,
            is_nested: false,
            vms,
            elapsed_ns: 0,
            trace: Vec::new(),
            lost: 0,
            threads: vec![thread(5, false), thread(6, true)],
        };
        let event = |tid, kind| Event { time_ns: 0, pid: 0, tid, cpu: 0, vcpu: 0, kind };
        let is_of = |event: Event| [0, 1].map(|at| passage.is_of(&passage.vms[at], &event));
        assert_eq!(is_of(event(5, EventKind::Entry)), [true, false]);
        assert_eq!(is_of(event(6, EventKind::Entry)), [false, true]);
        let switch = EventKind::Switch { next_tid: 6, preempted: false };
        assert_eq!(is_of(event(5, switch)), [true, true]);
        let nested = Category::read("plain+nested").expect("a category");
        assert_eq!(of(&nested).vms(1).len(), 1);
    }
}
