//! Remedies: the one table of what can be changed, with the conditions under which it helps.
//!
//! `explain` and `doctor` read it: a remedy that its condition rules out for a kind of VM, a vendor or a VMM is shown by
//! neither. A condition has three answers ([`Applies`]): what is not known is shown as a condition and not as a fact.

use vmtax_events::setting::files;
use vmtax_events::{ExitKey, Isa, svm, vmx};

/// What kind of VM it is, as far as something shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmKind {
    /// Exits that no confidential VM takes were seen, or its command line says so.
    Plain,
    /// SEV: encrypted, mapped like any other.
    Sev,
    /// SEV-ES or SEV-SNP; which is not known.
    Encrypted,
    /// SEV-SNP.
    Snp,
    /// A TD.
    Tdx,
    /// Nothing shows it.
    Unknown,
}

impl VmKind {
    /// For people and programs.
    pub fn name(self) -> &'static str {
        match self {
            VmKind::Plain => "plain",
            VmKind::Sev => "SEV",
            VmKind::Encrypted => "SEV-ES or SEV-SNP",
            VmKind::Snp => "SEV-SNP",
            VmKind::Tdx => "TDX",
            VmKind::Unknown => "unknown",
        }
    }

    /// Its registers are closed to the host, so that its exits are requests.
    pub fn is_confidential(self) -> bool {
        matches!(self, VmKind::Encrypted | VmKind::Snp | VmKind::Tdx)
    }
}

/// What is known of the VM that a remedy is for.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Its kind.
    pub kind: VmKind,
    /// Whose processor.
    pub vendor: Isa,
    /// KVM's APIC virtualization was seen at work (APIC_WRITE, EOI_INDUCED or AVIC exits).
    pub has_virtual_apic: bool,
    /// vCPUs wait for processors that others have.
    pub is_contended: bool,
    /// A halt ended while KVM polled.
    pub polls: bool,
    /// Memory of the VM is known to come from guest_memfd.
    pub guest_memfd: bool,
    /// Writes are tracked page by page: a migration or a checkpoint runs.
    pub logs_writes: bool,
    /// The guest converts memory between private and shared.
    pub converts: bool,
    /// The guest runs guests, and how its memory is mapped is not known: its faults may be those of tables that KVM
    /// write-protects to shadow them.
    pub may_shadow: bool,
    /// The guest uses Hyper-V's interface, as Windows does and Linux on KVM does not.
    pub is_windows: bool,
}

/// Whether a remedy helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// It does.
    Yes,
    /// Under this condition, which is not known.
    If(&'static str),
    /// It does not, for this reason.
    No(&'static str),
}

/// Where a remedy is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the host.
    Host,
    /// In the VM's configuration.
    Vmm,
    /// In the guest.
    Guest,
}

impl Place {
    /// `host`, `VM` or `guest`.
    pub fn name(self) -> &'static str {
        match self {
            Place::Host => "host",
            Place::Vmm => "VM",
            Place::Guest => "guest",
        }
    }
}

/// The setting that a remedy changes, in the words of the file, module or option: `doctor` gives it as a fix, and the action
/// names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// A value in a file, now.
    File {
        /// The file.
        path: &'static str,
        /// What is written.
        value: &'static str,
    },
    /// An option of a kernel module.
    Module {
        /// The module.
        module: &'static str,
        /// The option.
        option: &'static str,
    },
    /// A word on the kernel's command line.
    Kernel(&'static str),
    /// Words of QEMU's command line.
    Qemu {
        /// All that is needed.
        words: &'static str,
        /// The one that matters.
        option: &'static str,
    },
}

/// A row of the table.
pub struct Remedy {
    /// Its word. These words never change.
    pub id: &'static str,
    /// Where it is carried out.
    pub place: Place,
    /// What to do.
    pub action: &'static str,
    /// Exits that it removes; `None`: it makes them cheaper, or helps beside them.
    pub removes: Option<fn(&ExitKey) -> bool>,
    /// It takes away contention.
    pub of_contention: bool,
    /// The one setting that it comes to, where there is one.
    pub setting: Option<Setting>,
    /// Under which conditions.
    pub applies: fn(&Context) -> Applies,
}

const fn row(
    id: &'static str,
    place: Place,
    action: &'static str,
    applies: fn(&Context) -> Applies,
) -> Remedy {
    Remedy { id, place, action, removes: None, of_contention: false, setting: None, applies }
}

impl Remedy {
    const fn removes(mut self, exits: fn(&ExitKey) -> bool) -> Remedy {
        self.removes = Some(exits);
        self
    }

    const fn file(mut self, path: &'static str, value: &'static str) -> Remedy {
        self.setting = Some(Setting::File { path, value });
        self
    }

    const fn module(mut self, module: &'static str, option: &'static str) -> Remedy {
        self.setting = Some(Setting::Module { module, option });
        self
    }

    const fn kernel(mut self, word: &'static str) -> Remedy {
        self.setting = Some(Setting::Kernel(word));
        self
    }

    const fn qemu(mut self, words: &'static str, option: &'static str) -> Remedy {
        self.setting = Some(Setting::Qemu { words, option });
        self
    }

    const fn of_contention(mut self) -> Remedy {
        self.of_contention = true;
        self
    }
}

fn always(_: &Context) -> Applies {
    Applies::Yes
}

/// Linux 7.3: guest_memfd.c "TODO: Support huge pages"; tdx_gmem_max_mapping_level returns PG_LEVEL_4K.
const PRIVATE_AT_4K: &str = "its memory comes from guest_memfd, which Linux up to 7.3 maps in pages of 4 KiB; no setting changes that";

/// A condition where only the TLB's misses are known.
pub(crate) const IF_MAPPED_SMALL: &str =
    "`vmtax pages` shows that the host maps this VM in pages of 4 KiB";
/// A condition where only faults are known: they do not tell mapping from tracking of writes.
pub(crate) const IF_NOT_LOGGED: &str =
    "`vmtax pages` shows pages of 4 KiB while no migration or checkpoint runs, which track writes";
/// Why the remedy of a less important finding is refused.
pub(crate) const CONTRADICTED: &str = "it contradicts the remedy of a more important finding";
/// Why an option is refused that benchmarks show to cost more.
pub(crate) const COSTS_MORE: &str = "it costs more in one workload than it recovers in another";

/// Memory that pre-faulting maps for good. TDX and SEV-SNP guests build their memory before they run.
fn memory_to_map_first(context: &Context) -> Applies {
    match context.kind {
        VmKind::Tdx | VmKind::Snp => Applies::No("its private memory is built before it runs"),
        _ if context.guest_memfd => {
            Applies::If("the kernel is Linux 6.11 or later, and the VMM calls it")
        }
        _ => Applies::No(
            "ordinary memory that its host has not touched is mapped as the zero page, and faults again at the first write",
        ),
    }
}

fn ordinary_memory(context: &Context) -> Applies {
    match context.kind {
        VmKind::Tdx | VmKind::Snp => Applies::No(PRIVATE_AT_4K),
        _ if context.guest_memfd => Applies::No(PRIVATE_AT_4K),
        _ if context.converts => Applies::If(
            "the regions of 2 MiB that fault have no private page: KVM maps a region that is private in part in pages of 4 KiB",
        ),
        _ if context.may_shadow => Applies::No(
            "the guest runs guests: KVM write-protects their page tables, and faults do not tell that from small pages; `vmtax pages` does",
        ),
        _ if context.logs_writes => Applies::No(
            "KVM maps memory in pages of 4 KiB while it tracks writes (a migration or a checkpoint)",
        ),
        VmKind::Encrypted => Applies::If(
            "the VM is SEV-ES: memory of SEV-SNP is private, and no setting changes its pages",
        ),
        _ => Applies::Yes,
    }
}

fn not_where_contended(context: &Context) -> Applies {
    if context.is_contended {
        return Applies::No("its processors are shared: polling takes time from what runs there");
    }
    Applies::If("the vCPUs have processors of their own: polling keeps them busy")
}

fn kvm_polling(context: &Context) -> Applies {
    if context.polls {
        return Applies::No("KVM polls already: halts ended while it did");
    }
    not_where_contended(context)
}

fn tsc_deadline(context: &Context) -> Applies {
    if context.is_windows {
        return Applies::No("the guest uses Hyper-V's interface: Windows has no driver for it");
    }
    match context.kind {
        VmKind::Snp => Applies::No("QEMU masks the TSC-deadline timer of SEV-SNP guests"),
        VmKind::Encrypted => Applies::If("the VM is not SEV-SNP, from which QEMU masks it"),
        _ => Applies::Yes,
    }
}

fn plain_x2apic(context: &Context) -> Applies {
    match context.kind {
        VmKind::Encrypted | VmKind::Snp => Applies::If("the VMM offers x2APIC to SEV guests"),
        VmKind::Tdx => Applies::No("a TD always has x2APIC"),
        _ => Applies::Yes,
    }
}

fn intel_virtual_apic(context: &Context) -> Applies {
    match (context.vendor, context.has_virtual_apic) {
        (Isa::Svm, _) => Applies::No("the processor is AMD's"),
        (_, true) => Applies::No("APIC virtualization is at work"),
        _ => Applies::If("the processor has it (`vmx flags: apicv`) and nothing inhibits it"),
    }
}

fn amd_virtual_apic(context: &Context) -> Applies {
    match (context.vendor, context.kind, context.has_virtual_apic) {
        (Isa::Vmx, ..) => Applies::No("the processor is Intel's"),
        (_, VmKind::Sev | VmKind::Encrypted | VmKind::Snp, _) => {
            Applies::No("SEV guests inhibit AVIC")
        }
        (.., true) => Applies::No("AVIC is at work"),
        _ => Applies::If(
            "the processor has it (x2AVIC for x2APIC guests) and nothing inhibits it (PIT reinjection, Hyper-V SynIC, nesting)",
        ),
    }
}

fn intel_ipi(context: &Context) -> Applies {
    match (context.vendor, context.kind) {
        (Isa::Svm, _) => Applies::No("the processor is AMD's"),
        (_, VmKind::Tdx) => Applies::No("TDs cannot use it"),
        _ => Applies::If("the processor has it (`vmx flags: ipi_virt`)"),
    }
}

fn on_intel(context: &Context) -> Applies {
    if context.vendor == Isa::Svm { Applies::No("the processor is AMD's") } else { Applies::Yes }
}

fn on_amd(context: &Context) -> Applies {
    if context.vendor == Isa::Vmx { Applies::No("the processor is Intel's") } else { Applies::Yes }
}

fn on_amd_with(context: &Context, feature: &'static str) -> Applies {
    if context.vendor == Isa::Vmx {
        Applies::No("the processor is Intel's")
    } else {
        Applies::If(feature)
    }
}

fn virtual_vmload(context: &Context) -> Applies {
    on_amd_with(context, "the processor has it (/proc/cpuinfo of L0: v_vmsave_vmload)")
}

fn virtual_gif(context: &Context) -> Applies {
    on_amd_with(context, "the processor has it (/proc/cpuinfo of L0: vgif)")
}

fn preemption_timer(context: &Context) -> Applies {
    match (context.vendor, context.kind) {
        (Isa::Svm, _) => Applies::No("the processor is AMD's"),
        (_, VmKind::Tdx) => Applies::No("TDs cannot use it"),
        _ => Applies::Yes,
    }
}

fn one_task(context: &Context) -> Applies {
    if context.is_contended {
        return Applies::No(
            "several tasks share a processor, and the tick stays where more than one is runnable",
        );
    }
    Applies::If("one task runs on each of these CPUs: else the tick stays")
}

fn plain_bounce(context: &Context) -> Applies {
    if context.kind.is_confidential() {
        Applies::No("a confidential VM cannot do without it")
    } else {
        Applies::If("the VM is not confidential and swiotlb=force is on the guest's command line")
    }
}

fn is(key: &ExitKey, on_vmx: u32, on_svm: u32) -> bool {
    match key.reason.isa {
        Isa::Vmx => key.reason.code == on_vmx,
        Isa::Svm => key.reason.code == on_svm,
        Isa::Unknown => false,
    }
}

fn pauses(key: &ExitKey) -> bool {
    is(key, vmx::PAUSE_INSTRUCTION, svm::PAUSE)
}

fn halts(key: &ExitKey) -> bool {
    is(key, vmx::HLT, svm::HLT)
}

/// Every remedy, by word.
pub const REMEDIES: &[Remedy] = &[
    row("vcpu-pinning", Place::Host, "give each vCPU thread a processor of its own (taskset -pc CPU TID, virsh vcpupin)", always)
        .of_contention(),
    row("cpu-isolation", Place::Host, "keep other tasks off the vCPUs' processors: cgroup v2 `cpuset.cpus.partition = isolated` (isolcpus= is deprecated)", always)
        .of_contention(),
    row("iothread-pinning", Place::Host, "run the VMM's I/O and vhost threads on other processors than the vCPUs", always)
        .of_contention(),
    row("fewer-vcpus", Place::Host, "run fewer vCPUs than processors, or move a VM to another host", always).of_contention(),
    row("cpu-quota", Place::Host, "raise the CPU quota of the VM's cgroup, or remove it: cpu.max (libvirt: virsh schedinfo --set vcpu_quota=-1)", |_| {
        Applies::If("cpu.stat of its cgroup counts nr_throttled up")
    })
    .of_contention(),
    row("ksm-off", Place::Host, "stop page merging: echo 2 > /sys/kernel/mm/ksm/run", always).file(files::KSM_RUN, "2").of_contention(),
    row("host-nohz-full", Place::Host, "stop the host's tick on the vCPUs' processors: nohz_full=CPUS on the host's command line", one_task),
    row("guest-nohz-full", Place::Guest, "stop the guest's tick on busy CPUs: nohz_full=CPUS on the guest's command line", one_task),
    row("irq-affinity", Place::Host, "move device interrupts off the vCPUs' processors: /proc/irq/*/smp_affinity_list, irqbalance --banirq", |_| {
        Applies::If("/proc/interrupts shows device interrupts there")
    }),
    row("halt-poll", Place::Host, "let KVM poll before a halted vCPU sleeps: echo 200000 > /sys/module/kvm/parameters/halt_poll_ns", kvm_polling).file(files::HALT_POLL, "200000"),
    row("guest-haltpoll", Place::Guest, "let the guest poll before it halts: cpuidle_haltpoll.force=Y on its command line", not_where_contended).kernel("cpuidle_haltpoll.force=Y")
        .removes(halts),
    row("guest-idle-poll", Place::Guest, "let the guest never halt: idle=poll on its command line", not_where_contended).removes(halts),
    row("no-idle-poll", Place::Guest, "let idle CPUs halt: take idle=poll off the guest's command line (cpuidle_haltpoll polls for a while, then halts)", always),
    row("guest-clocksource", Place::Guest, "use a clock that is read without an exit: clocksource=kvm-clock, or tsc (Windows: -cpu ...,hv-time)", always),
    row("serial-console", Place::Guest, "write less to the serial console (quiet, loglevel=), or use a virtio console (console=hvc0)", always),
    row("release-firmware", Place::Vmm, "use a release build of the firmware: a debug build writes to this port", always),
    row("io-delay", Place::Guest, "do not wait by writing to port 0x80: io_delay=none or io_delay=udelay on the guest's command line", always),
    row("virtio-disk", Place::Vmm, "give the guest a paravirtual disk in place of IDE: virtio-blk or virtio-scsi", always),
    row("virtio-display", Place::Vmm, "give the guest no emulated VGA: virtio-gpu, or no display at all", always),
    row("no-i8042", Place::Vmm, "take the PS/2 controller away, or use virtio-input (QEMU: -machine i8042=off)", always),
    row("no-vmport", Place::Vmm, "take VMware's port away (QEMU: -machine vmport=off)", always),
    row("guest-apic", Place::Guest, "let the guest use its APIC: take noapic or nolapic off its command line", always),
    row("guest-lapic-timer", Place::Guest, "let the guest use its APIC's timer in place of the PIT: take nolapic_timer or noapictimer off its command line", always),
    row("msi", Place::Guest, "let devices signal by MSI: take pci=nomsi off the guest's command line, or use devices that have MSI-X", always),
    row("ioeventfd", Place::Vmm, "let notifications wake a thread in place of the VMM's vCPU loop (QEMU: ioeventfd=on, its default; for disks an iothread)", |_| {
        Applies::If("the register is a virtio queue's notification")
    }).qemu("-device virtio-...,ioeventfd=on", "ioeventfd=on"),
    row("vhost", Place::Vmm, "let the host's kernel serve the network queues (QEMU: -netdev tap,vhost=on)", |_| {
        Applies::If("the queues are virtio-net's")
    }).qemu("-netdev tap,id=n0,vhost=on -device virtio-net-pci,netdev=n0", "vhost=on"),
    row("paravirtual-device", Place::Vmm, "use a virtio model in place of the emulated device", |_| {
        Applies::If("the address is an emulated disk's or network card's: `lspci -v` in the guest names its owner")
    }),
    row("tsc-deadline", Place::Vmm, "give the guest the TSC-deadline timer (QEMU: -cpu ...,+tsc-deadline), and do not boot it with lapic=notscdeadline", tsc_deadline).qemu("-cpu ...,+tsc-deadline", "+tsc-deadline"),
    row("x2apic", Place::Vmm, "give the guest x2APIC (QEMU: -cpu ...,+x2apic), and do not boot it with nox2apic", plain_x2apic).qemu("-cpu ...,+x2apic", "+x2apic"),
    row("apicv", Place::Host, "let the processor virtualize the APIC: kvm_intel.enable_apicv=1", intel_virtual_apic).module("kvm_intel", "enable_apicv=1"),
    row("avic", Place::Host, "let the processor virtualize the APIC: kvm_amd.avic=1", amd_virtual_apic).module("kvm_amd", "avic=1"),
    row("ipiv", Place::Host, "let the processor deliver IPIs: kvm_intel.enable_ipiv=1", intel_ipi).module("kvm_intel", "enable_ipiv=1"),
    row("pv-spin-hint", Place::Vmm, "tell the guest that its vCPUs are not preempted (QEMU: -cpu ...,kvm-hint-dedicated=on)", |context| {
        if context.is_contended {
            Applies::No("its vCPUs are preempted")
        } else {
            Applies::If("each vCPU has a processor of its own")
        }
    }),
    row("huge-pages", Place::Host, "back the memory with huge pages: THP (madvise or always), or hugetlbfs with pages reserved first (vm.nr_hugepages)", ordinary_memory),
    row("pre-fault", Place::Vmm, "map the memory before the guest runs: KVM_PRE_FAULT_MEMORY moves its faults to the start; the pages stay 4 KiB", memory_to_map_first),
    row("convert-regions", Place::Guest, "convert whole regions of 2 MiB, and keep what is shared (swiotlb, rings) in regions of its own", always),
    row("resident-memory", Place::Host, "keep the guest's memory in the host's: more memory, fewer VMs, or lock it (QEMU: -overcommit mem-lock=on)", |_| {
        Applies::If("VmSwap of the VMM's process (/proc/PID/status) is not 0, or its major faults count up")
    }),
    row("ept", Place::Host, "load kvm_intel with ept=1", on_intel),
    row("npt", Place::Host, "load kvm_amd with npt=1", on_amd),
    row("shadow-vmcs", Place::Host, "load L0's kvm_intel with enable_shadow_vmcs=1", on_intel).module("kvm_intel", "enable_shadow_vmcs=1"),
    row("vls", Place::Host, "load L0's kvm_amd with vls=1, its default", virtual_vmload).module("kvm_amd", "vls=1"),
    row("vgif", Place::Host, "load L0's kvm_amd with vgif=1, its default", virtual_gif).module("kvm_amd", "vgif=1"),
    row("preemption-timer", Place::Host, "load kvm_intel with preemption_timer=1", preemption_timer).module("kvm_intel", "preemption_timer=1"),
    row("guest-nmi-watchdog", Place::Guest, "stop the guest's NMI watchdog: sysctl kernel.nmi_watchdog=0", |_| {
        Applies::If("the guest's watchdog is what uses the counters")
    }).file(files::NMI_WATCHDOG, "0"),
    row("fewer-events", Place::Guest, "count fewer events at a time; kernel.nmi_watchdog=0 frees a counter", |_| {
        Applies::If("perf runs in the guest")
    }),
    row("no-forced-bounce", Place::Guest, "take swiotlb=force off the guest's command line", plain_bounce),
    row("bounce-size", Place::Guest, "make the bounce buffer larger: swiotlb=SLOTS on the guest's command line", |_| {
        Applies::If("io_tlb_used_hiwater reached io_tlb_nslabs (debugfs swiotlb/)")
    }),
    row("spin-pinning", Place::Host, "give each vCPU a processor of its own", |context| {
        if context.is_contended {
            Applies::Yes
        } else {
            Applies::If("its vCPUs are preempted: sched:sched_switch beside the exits shows it")
        }
    }).removes(pauses),
];

/// Settings of Linux guests, most of them words of the kernel's command line.
const OF_LINUX: &[&str] = &[
    "guest-nohz-full",
    "guest-haltpoll",
    "guest-idle-poll",
    "no-idle-poll",
    "io-delay",
    "guest-apic",
    "guest-lapic-timer",
    "msi",
    "guest-nmi-watchdog",
    "fewer-events",
    "no-forced-bounce",
    "bounce-size",
];

impl Remedy {
    /// Whether it helps, the guest's system considered.
    pub fn applies_to(&self, context: &Context) -> Applies {
        if context.is_windows && OF_LINUX.contains(&self.id) {
            return Applies::No(
                "it is a setting of Linux guests, and this one uses Hyper-V's interface as Windows does",
            );
        }
        (self.applies)(context)
    }
}

/// Remedies that undo each other, or of which one is wrong where the other is right.
const OPPOSITES: &[(&str, &str)] = &[
    ("guest-idle-poll", "no-idle-poll"),
    ("guest-haltpoll", "no-idle-poll"),
    ("halt-poll", "no-idle-poll"),
    // A guest with the hint that its vCPUs are never preempted spins where it should yield.
    ("pv-spin-hint", "fewer-vcpus"),
    ("pv-spin-hint", "cpu-quota"),
    // Polling takes processor time, which a quota counts and others lack.
    ("guest-idle-poll", "cpu-quota"),
    ("guest-haltpoll", "cpu-quota"),
    ("halt-poll", "cpu-quota"),
    ("guest-idle-poll", "fewer-vcpus"),
    ("guest-haltpoll", "fewer-vcpus"),
    ("halt-poll", "fewer-vcpus"),
    // Memory that is locked or waits for its content is not what larger pages help.
    ("huge-pages", "resident-memory"),
];

/// Whether two remedies contradict each other.
pub fn are_opposites(a: &str, b: &str) -> bool {
    OPPOSITES.iter().any(|(x, y)| (*x, *y) == (a, b) || (*x, *y) == (b, a))
}

/// The remedy of this word.
pub fn find(id: &str) -> Option<&'static Remedy> {
    REMEDIES.iter().find(|remedy| remedy.id == id)
}

/// The remedy behind a check of `doctor`, where it has one in the table.
pub fn of_check(check: &str) -> Option<&'static Remedy> {
    let id = match check {
        "thp-enabled" | "thp-defrag" | "thp-shmem" | "thp-backing" | "mapped-pages" => "huge-pages",
        "nohz-full" => "host-nohz-full",
        "isolcpus" => "cpu-isolation",
        "guest-clocksource" => "guest-clocksource",
        "shadow-vmcs" => "shadow-vmcs",
        other => other,
    };
    find(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts() -> Vec<Context> {
        let kinds = [
            VmKind::Plain,
            VmKind::Sev,
            VmKind::Encrypted,
            VmKind::Snp,
            VmKind::Tdx,
            VmKind::Unknown,
        ];
        let mut all = Vec::new();
        for kind in kinds {
            for vendor in [Isa::Vmx, Isa::Svm, Isa::Unknown] {
                for bits in 0..256 {
                    let bit = |n: u32| bits >> n & 1 == 1;
                    all.push(Context {
                        kind,
                        vendor,
                        has_virtual_apic: bit(0),
                        is_contended: bit(1),
                        polls: bit(2),
                        guest_memfd: bit(3),
                        logs_writes: bit(4),
                        converts: bit(5),
                        is_windows: bit(6),
                        may_shadow: bit(7),
                    });
                }
            }
        }
        all
    }

    #[test]
    fn words_are_unique() {
        let ids: std::collections::BTreeSet<&str> = REMEDIES.iter().map(|row| row.id).collect();
        assert_eq!(ids.len(), REMEDIES.len());
    }

    /// The setting that doctor gives as a fix is the one that the action names.
    #[test]
    fn actions_name_their_settings() {
        let count = REMEDIES.iter().filter(|row| row.setting.is_some()).count();
        assert!(count >= 15, "{count}");
        for row in REMEDIES {
            let words: Vec<&str> = match row.setting {
                Some(Setting::Module { module, option }) => vec![module, option],
                Some(Setting::Kernel(word)) => vec![word],
                Some(Setting::Qemu { words, option }) => {
                    assert!(words.contains(option), "{words}");
                    vec![option]
                }
                // A sysctl is the file's path with other separators.
                Some(Setting::File { path, value }) => {
                    vec![path.rsplit('/').next().unwrap_or(path), value]
                }
                None => continue,
            };
            for word in words {
                assert!(row.action.contains(word), "{}: {} lacks {word}", row.id, row.action);
            }
        }
    }

    #[test]
    fn opposites_are_remedies() {
        for id in OF_LINUX {
            assert!(find(id).is_some(), "{id}");
        }
        for (a, b) in OPPOSITES {
            assert!(find(a).is_some() && find(b).is_some() && a != b, "{a} {b}");
        }
        assert!(are_opposites("no-idle-poll", "halt-poll") && !are_opposites("vhost", "ioeventfd"));
    }

    /// What is known to be false is ruled out, whatever else holds.
    #[test]
    fn false_remedies_cannot_be_had() {
        let no = |id: &str, context: &Context| {
            matches!(find(id).unwrap().applies_to(context), Applies::No(_))
        };
        for context in &contexts() {
            match context.kind {
                VmKind::Snp => {
                    assert!(no("tsc-deadline", context) && no("huge-pages", context));
                    assert!(no("avic", context));
                }
                VmKind::Tdx => {
                    assert!(no("huge-pages", context) && no("preemption-timer", context));
                    assert!(no("ipiv", context));
                }
                _ => {}
            }
            if context.is_windows {
                assert!(OF_LINUX.iter().all(|id| no(id, context)) && no("tsc-deadline", context));
            }
            if context.guest_memfd {
                assert!(no("huge-pages", context));
            }
            if context.is_contended {
                assert!(no("halt-poll", context) && no("guest-idle-poll", context));
                assert!(no("host-nohz-full", context) && no("guest-nohz-full", context));
            }
            if context.vendor == Isa::Svm {
                assert!(no("apicv", context) && no("ept", context) && no("ipiv", context));
            }
            if context.vendor == Isa::Vmx {
                assert!(no("avic", context) && no("npt", context) && no("vls", context));
            }
            if context.kind.is_confidential() {
                assert!(no("no-forced-bounce", context));
            }
        }
    }
}
