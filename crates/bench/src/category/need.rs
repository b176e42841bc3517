//! What a category needs of its host.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use vmtax_lab::category::Need;
use vmtax_machine::{Tool, ToolLimits};

use crate::target::Accel;

/// The host's properties that requirements are checked against.
pub(super) struct HostView<'a> {
    pub(super) root: &'a Path,
    pub(super) accel: Accel,
    pub(super) cpus: u32,
    pub(super) memory_mib: u32,
}

impl HostView<'_> {
    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.root.join(file)).ok().map(|text| text.trim().to_owned())
    }

    /// Whether a module's switch is on.
    fn is_on(&self, file: &str) -> bool {
        self.read(file).is_some_and(|value| ["Y", "1"].contains(&value.as_str()))
    }
}

/// Of a kind of VM of arm64.
pub(super) const ON_ARM: &str = "is a VM of the emulated arm64 host (accel = \"arm\")";

/// What is missing, as a sentence without its end; `None` when it is there.
pub(super) fn missing(need: Need, host: &HostView<'_>) -> Option<String> {
    let unless = |there: bool, problem: &str| (!there).then(|| problem.to_owned());
    match need {
        Need::Kvm => unless(
            host.accel == Accel::Kvm,
            "needs KVM: QEMU's emulator alone offers nothing of it (accel = \"kvm\", or \"amd\" for an emulated host)",
        ),
        Need::Nested => Some(
            "vmtax bench starts a guest in its guest on an emulated host only (accel = \"amd\" or \"intel\"); on \
             hardware start one of your own and name it under [ssh]"
                .to_owned(),
        ),
        Need::GuestMemfd => Some(
            "QEMU gives no ordinary VM memory of guest_memfd; vmtax's own VMM does, on an emulated host (accel = \"amd\" or \"intel\")"
                .to_owned(),
        ),
        Need::Protected => Some(
            "QEMU makes no software-protected VMs; vmtax's own VMM does, on an emulated host (accel = \"amd\" or \"intel\") with KVM of ./x kvm-modules"
                .to_owned(),
        ),
        Need::Snp => unless(
            host.is_on("sys/module/kvm_amd/parameters/sev_snp"),
            "/sys/module/kvm_amd/parameters/sev_snp is not Y: the processor, its firmware or the kernel has no SEV-SNP",
        ),
        Need::Tdx => unless(
            host.is_on("sys/module/kvm_intel/parameters/tdx"),
            "/sys/module/kvm_intel/parameters/tdx is not Y: the processor, its firmware or the kernel has no TDX",
        )
        .or_else(|| {
            unless(qemu_has_object("tdx-guest"), "this QEMU has no object tdx-guest: QEMU 10.1 is the first with it")
        }),
        Need::Inside => Some(
            "is a part of VMs of QEMU on an emulated host (accel = \"amd\", vmm = \"qemu\")".to_owned(),
        ),
        Need::Arm => Some(ON_ARM.to_owned()),
        Need::Vhost => unless(
            host.root.join("dev/vhost-net").exists(),
            "/dev/vhost-net is missing: load vhost_net",
        ),
        Need::Tap => tap_missing(host.root),
        Need::VhostUser => Some(
            "vmtax starts no program that works on queues of a network card (vhost-user); use +vhost".to_owned(),
        ),
        Need::HugePages => huge_pages(host),
        Need::Processors => {
            let there = processors().len();
            (there < host.cpus as usize).then(|| {
                format!(
                    "{} vCPUs need as many processors, and this host offers {there}",
                    host.cpus
                )
            })
        }
        Need::HaltPoll => unless(
            fs::OpenOptions::new()
                .write(true)
                .open(host.root.join("sys/module/kvm/parameters/halt_poll_ns"))
                .is_ok(),
            "/sys/module/kvm/parameters/halt_poll_ns cannot be written: load kvm, and run as root",
        ),
    }
}

/// The processors that this process may use, in order.
pub(crate) fn processors() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    let is_in = |number: &usize| set.as_ref().is_ok_and(|set| set.is_set(*number));
    (0..rustix::thread::CpuSet::MAX_CPU).filter(is_in).collect()
}

/// Why no tap can be made; `None` if one can.
pub(crate) fn tap_missing(root: &Path) -> Option<String> {
    if !root.join("dev/net/tun").exists() {
        return Some("/dev/net/tun is missing: load tun".to_owned());
    }
    (!rustix::process::geteuid().is_root())
        .then(|| "a tap and its network namespace need root".to_owned())
}

/// Whether the QEMU on the PATH knows an object. One that does not answer is reported elsewhere.
fn qemu_has_object(name: &str) -> bool {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-object", "help"]);
    let limits = ToolLimits { time: Duration::from_secs(10), output: 1 << 20 };
    let Ok(output) = Tool::new(command, limits).run() else { return true };
    String::from_utf8_lossy(&output.stdout).lines().any(|line| line.trim() == name)
}

fn huge_pages(host: &HostView<'_>) -> Option<String> {
    let text = host.read("proc/meminfo").unwrap_or_default();
    let number = |key: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    let (free, size) = (number("HugePages_Free:"), number("Hugepagesize:").max(1));
    let wanted = (u64::from(host.memory_mib) << 10).div_ceil(size);
    (free < wanted)
        .then(|| format!("{wanted} free huge pages are needed and {free} are there: sysctl vm.nr_hugepages={wanted}"))
}
