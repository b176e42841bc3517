//! Traffic between an emulated host and VMs of QEMU on it: what vmtax orders, and what comes back.
//!
//! ```text
//!   vmtax ──mailbox──> host (client, tap0) ──virtio-net──> VM of QEMU (server)
//!
//!   vmtax ──mailbox──> host ──TCP──> peer (client) ──bridge of two taps──> VM (server)
//!
//!   vmtax ──mailbox──> host ──TCP──> L1, a VM of QEMU: the same with a VM of its own (L2)
//! ```
//! A [`TrafficCell`] is the VMs of a host ([`Site`]) and the traffic to send. The VM's disk is a file on its host; requests to it are traffic too. A peer and an L1 are commanded: [`PeerCommand`].

use serde::{Deserialize, Serialize};

use crate::functions::LoadedAddresses;
use crate::order::FollowingFile;

/// TCP port of the server in a VM, and of a VM that is commanded.
pub const PORT: u16 = 7;
/// The tap of a host that is the client, or that commands an L1.
pub const TAP: &str = "tap0";
/// The taps of a VM and of its peer.
pub const TAPS: [&str; 2] = ["tap1", "tap2"];
/// The file on the host that is the VM's disk.
pub const DISK: &str = "/tmp/disk";

/// VMs, and the traffic with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficCell {
    pub site: Site,
    pub traffic: Traffic,
    /// It is sent once more between two marks of a recorder in the emulator, after [`crate::functions::HostKernels`] have been told.
    pub profiled: bool,
}

/// A host and its VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Number of its network: `10.0.NUMBER.0/24`.
    pub network: u8,
    /// Files of the host to write before it starts: path and content.
    pub settings: Vec<(String, String)>,
    /// QEMU with its arguments: the VM under test, or the one with it inside.
    pub qemu: Vec<String>,
    /// Bytes of the VM's disk, a file without content.
    pub disk: u64,
    pub client: Client,
    /// What the host does beside running its VMs.
    pub pressure: Pressure,
    /// The VM is a guest of Xen, which QEMU starts.
    pub in_xen: bool,
    /// Timeout of the start and of the traffic, in ms of the host's time.
    pub limit_ms: u64,
}

/// What a host does to its VMs beside running them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// Its free memory is in pieces of less than 64 KiB.
    pub fragmented: bool,
    /// It writes the VM's memory to swap (zram) between warm-up and recording.
    pub swaps: bool,
    /// Threads that compute all the time.
    pub rivals: u32,
    /// Threads and their only processor.
    pub pins: Vec<Pin>,
    /// The processor that a device interrupts four thousand times a second, if one does.
    pub interrupted: Option<u32>,
    /// The part of a processor that the VMM may use, percent, if there is a limit.
    pub quota: Option<u32>,
}

/// Threads of QEMU or rivals, by how their names start (`CPU 0/`), and their only processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// How their names start.
    pub name: String,
    pub cpu: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Client {
    Host,
    /// In a second VM, which QEMU starts with these arguments.
    Peer(Vec<String>),
    /// The VM is a host (L1), and this is its site.
    Inside(Box<Site>),
}

/// An address in the network of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteAddress {
    Host = 1,
    Vm = 2,
    Peer = 3,
}

impl SiteAddress {
    /// The IPv4 address in this network.
    pub fn address(self, network: u8) -> [u8; 4] {
        [10, 0, network, self as u8]
    }
}

/// What a host has its VM do: a peer, or an L1. Each is answered with a [`Reply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerCommand {
    /// Connect to the server at this address, within this many ms.
    Connect([u8; 4], u64),
    Start(Box<Site>),
    /// So many operations of this traffic.
    Send(Traffic, u32),
    /// Say what is loaded here and in the server.
    Loaded,
}

/// The answer to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Why it failed; empty if it did not.
    pub problem: String,
    /// Of starting and of what is loaded: this VM and those in it; of connecting: the server.
    pub vms: Vec<SeenVm>,
}

/// A VM as its host sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenVm {
    /// Its facts: name and value.
    pub facts: Vec<(String, String)>,
    /// Threads of its host that take part, those of a peer too.
    pub threads: Vec<HostThread>,
    /// Its modules, where they were asked for.
    pub loaded: LoadedAddresses,
}

/// Traffic of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// What one operation is.
    pub kind: TrafficKind,
    /// Operations before the recording.
    pub warm_up: u32,
    /// Operations in the recording.
    pub count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrafficKind {
    /// The host sends a request, and the VM answers with as many bytes. The host pauses before the next one.
    Request {
        /// Bytes of request and of answer.
        bytes: u32,
        /// Pause, microseconds.
        pause_us: u32,
    },
    /// The VM receives 1 KiB of a stream.
    Receive,
    /// The VM sends 1 KiB of a stream.
    Send,
    /// A thread in the VM sleeps.
    Sleep {
        /// For so long, microseconds.
        us: u32,
    },
    /// A program in the VM reads from its disk, past its page cache.
    Read {
        /// Bytes of a request.
        bytes: u32,
    },
    /// The same, and it writes.
    Write {
        /// Bytes of a request.
        bytes: u32,
    },
    /// A program in the VM reads the clock.
    Clock,
    /// A program in the VM executes CPUID, which its host handles.
    Cpuid,
    /// A program in the VM reads the time from its real-time clock.
    RealTimeClock,
    /// A program in the VM writes a line of 63 characters to its console.
    Console,
    /// A program in the VM writes a character to its display's text, if it has a display.
    Display,
    /// A program in the VM touches a MiB of new memory, page by page.
    Touch,
    /// A program in the VM touches a MiB of memory that it has touched in the warm-up.
    Again,
    /// A program in the VM computes for some milliseconds, its part on each vCPU.
    Compute,
    /// A program in the VM takes the right to write from a page, while its threads compute on other vCPUs.
    Protect,
    /// The same program has all its threads pass a memory barrier: membarrier(2).
    Barrier,
    /// The VM starts, from QEMU's first moment to the server's answer: nothing is sent to it.
    Boot,
    /// No traffic: the server says what its kernel has loaded.
    Loaded,
}

/// Result of a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellOutcome {
    /// Why it failed; empty if it did not.
    pub problem: String,
    /// The end of what QEMU and the VM's kernel printed.
    pub console: String,
    /// The VM, and if that is an L1, the VM in it.
    pub vms: Vec<SeenVm>,
    /// Time of the traffic.
    pub elapsed_ns: u64,
    /// Cycles between the two marks.
    pub profiled: Option<u64>,
    /// Files that follow, in this order: those of the recording.
    pub files: Vec<FollowingFile>,
}

/// A thread of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostThread {
    pub tid: u32,
    pub role: Role,
    /// It is one of the peer's.
    pub of_peer: bool,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// QEMU's main loop, which serves virtio queues in user space.
    Vmm,
    /// A vCPU of QEMU.
    Vcpu,
    /// The kernel's worker of vhost.
    Vhost,
    /// QEMU's thread for the disk's queue alone.
    Io,
}
