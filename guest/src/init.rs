//! The first steps: file systems, modules, kernel command line.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::channel::{Channel, Io};
use crate::disk::BlockMailbox;
use crate::vmm::backing::HostBacking;
use crate::vmm::linux;
use crate::vmm::relay::Relay;
use crate::{Result, options, ports, system, trace};
use vmtax_guest::job::CardAddress;
use vmtax_guest::order::PmuOrder;

/// The role of this program.
pub(crate) enum InitRole {
    /// A host of emulated guests, or such a guest.
    Host(Host),
    /// The agent of a benchmark's VM, and the channel of its jobs.
    Agent(Channel),
    /// A guest that runs a program whose accesses are recorded, and the channel of its orders.
    Process(Channel),
    /// A host that forwards jobs to such an agent.
    Relay(Relay),
    /// A host that starts QEMU and sends traffic to its VM.
    Network {
        /// The channel of its cells.
        channel: Channel,
        /// KiB of trace buffer.
        buffer_kib: u32,
    },
    /// That VM, with its address.
    Server(CardAddress),
    /// A VM of that QEMU that carries out its host's commands.
    Driver(CardAddress),
}

/// A host, or a guest that takes its orders from one.
pub(crate) struct Host {
    /// The channel of orders.
    pub(crate) channel: Channel,
    /// Boot L1.
    pub(crate) nested: bool,
    /// KiB of trace buffer.
    pub(crate) buffer_kib: u32,
}

/// Makes the machine ready for [`crate::serve`].
pub(crate) fn start() -> Result<InitRole> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        system::mount(kind, target)?;
    }
    system::folder("/tmp")?;
    let line =
        std::fs::read_to_string("/proc/cmdline").map_err(|e| format!("/proc/cmdline: {e}"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let refused = options::load(&modules()?, &words)?;
    if words.contains(&"vmtax.online") {
        start_processors()?;
    }
    if let Some(us) = value(&words, "vmtax.later=").and_then(|us| us.parse().ok()) {
        let began = Instant::now();
        // It does not sleep: that would end with a tick of this kernel.
        while began.elapsed() < Duration::from_micros(us) {
            std::hint::spin_loop();
        }
    }
    huge_pages();
    ports::open()?;
    system::leave_console()?;
    let role = value(&words, "vmtax.role=").unwrap_or("host");
    match role {
        "server" => return Ok(InitRole::Server(own_address(&words)?)),
        "driver" => return Ok(InitRole::Driver(own_address(&words)?)),
        _ => {}
    }
    let channel = match matches!(role, "guest" | "process") || words.contains(&"vmtax.port") {
        true if words.contains(&"vmtax.private") => Channel::Port(Io::Registers),
        true => Channel::Port(Io::Strings),
        false => Channel::Mailbox(BlockMailbox::open(&words)?),
    };
    if let Some(problem) = refused.or_else(|| options::unknown(&words)) {
        channel.misused(&problem);
        return Err(problem);
    }
    match role {
        "agent" => return Ok(InitRole::Agent(channel)),
        "process" => return Ok(InitRole::Process(channel)),
        _ => {}
    }
    if let Channel::Mailbox(_) = channel {
        trace::mount()?;
    }
    if !Path::new("/dev/kvm").exists() {
        let problem = "the kernel offers no /dev/kvm: KVM did not find virtualization in this emulated processor";
        channel.fail(0, problem);
        return Err(problem.into());
    }
    let buffer_kib =
        value(&words, "vmtax.buffer=").and_then(|v| v.parse().ok()).unwrap_or(16 << 10);
    if role == "network" {
        return Ok(InitRole::Network { channel, buffer_kib });
    }
    if role == "relay" {
        let memory_mib = value(&words, "vmtax.memory=").and_then(|v| v.parse().ok());
        let memory_mib = memory_mib.unwrap_or(linux::MEMORY_MIB);
        let cpus = value(&words, "vmtax.cpus=").and_then(|v| v.parse().ok()).unwrap_or(1);
        let pmu = value(&words, "vmtax.pmu=").and_then(PmuOrder::of_word);
        let backing = value(&words, "vmtax.backing=").and_then(HostBacking::of_word);
        let backing = backing.unwrap_or(HostBacking::Anonymous);
        return Ok(InitRole::Relay(Relay { channel, buffer_kib, memory_mib, backing, cpus, pmu }));
    }
    Ok(InitRole::Host(Host { channel, nested: words.contains(&"vmtax.nested"), buffer_kib }))
}

/// Starts the processors that the kernel has left off.
fn start_processors() -> Result<()> {
    for number in 1.. {
        let path = format!("/sys/devices/system/cpu/cpu{number}/online");
        if !Path::new(&path).exists() {
            break;
        }
        std::fs::write(&path, "1").map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

/// Linux switches transparent huge pages off in small machines; an operation that wants one looks whether this worked.
fn huge_pages() {
    for file in ["enabled", "defrag"] {
        let _ = std::fs::write(format!("/sys/kernel/mm/transparent_hugepage/{file}"), "madvise");
    }
    // It is off with them, and on in every machine of 512 MiB and more; memory that is pre-faulted has it.
    let _ = std::fs::write("/sys/kernel/mm/transparent_hugepage/use_zero_page", "1");
}

/// Modules in the order of their file names: `00-irqbypass.ko`, `01-kvm.ko`.
fn modules() -> Result<Vec<PathBuf>> {
    let Ok(folder) = std::fs::read_dir("/modules") else { return Ok(Vec::new()) };
    let mut paths: Vec<PathBuf> = folder.filter_map(|entry| entry.ok().map(|e| e.path())).collect();
    paths.sort();
    Ok(paths)
}

/// The address that the command line gives this VM.
fn own_address(words: &[&str]) -> Result<CardAddress> {
    let word = value(words, "vmtax.address=").ok_or("vmtax.address= is not on the command line")?;
    let address: std::net::Ipv4Addr =
        word.parse().map_err(|_| format!("vmtax.address={word}: is no IPv4 address"))?;
    Ok(CardAddress { address: address.octets(), prefix: 24 })
}

fn value<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(key))
}
