//! Causes: what the guest was doing at an exit, in one word, the same for every vendor.
//!
//! Reasons cannot be compared between kinds of VM: a plain VM arms its timer by writing an MSR and
//! leaves for PREEMPTION_TIMER, a TDX guest arms it by TDCALL, an SNP guest by a register in memory.
//! Causes can ("Performance tuning for oneDNN on TDX": compare by cause, not by reason).
//!
//! `RULES` below is the one place where an exit gets its cause. An exit's detail decides where it says
//! anything; the rule of its reason decides otherwise. Nothing is guessed: an MSR without its number is an MSR, an
//! interrupt without its vector an interrupt of the host. [`Cause::missing`] says what the recording lacks.
//!
//! Left out on purpose: anything that needs more than the one exit.

use crate::detail::{hypercall, table};
use crate::words::words;
use crate::{Detail, DetailKind, Isa, Reason, apic, ghcb, interrupt, msr, svm, tdx, vmx};

words! {
    /// What the guest was doing.
    pub enum Cause {
        /// Arming its timer.
        TimerArm = "timer-arm",
        /// Its own timer expired, which KVM runs on VMX's preemption timer.
        TimerTick = "timer-tick",
        /// The host's timer interrupted it: the host's tick, or a timer of the guest that KVM runs on it.
        HostTick = "host-tick",
        /// Another CPU of the host interrupted it.
        HostIpi = "host-ipi",
        /// A device of the host interrupted it.
        HostDevice = "host-device",
        /// The host interrupted it; the vector is not known.
        HostInterrupt = "host-interrupt",
        /// Sending an interrupt between vCPUs.
        Ipi = "ipi",
        /// Going idle or spinning.
        Idle = "idle",
        /// Touching memory that the host had not mapped.
        MemoryFault = "memory-fault",
        /// Touching memory that the host had not mapped, or a device register: which is not known.
        MemoryOrDevice = "memory-or-device",
        /// Reading or writing a device register in memory.
        DeviceMmio = "device-mmio",
        /// Reading or writing an I/O port.
        DevicePio = "device-pio",
        /// Using its local APIC, other than for timers and IPIs.
        Apic = "apic",
        /// Reading or writing another MSR.
        Msr = "msr",
        /// Executing CPUID.
        Cpuid = "cpuid",
        /// Using its performance counters.
        Pmu = "pmu",
        /// As a hypervisor, entering its own guest.
        NestedEntry = "nested-entry",
        /// As a hypervisor, handling an exit of its own guest.
        NestedAncillary = "nested-ancillary",
        /// Becoming able to take an interrupt that was waiting.
        IrqWindow = "irq-window",
        /// Calling the host.
        Hypercall = "hypercall",
        /// Anything else.
        Other = "other",
    }
}

impl Cause {
    /// What the guest was doing, to follow "The guest was": `arming its timer`.
    pub fn describe(self) -> &'static str {
        match self {
            Cause::TimerArm => "arming its timer",
            Cause::TimerTick => "taking a timer tick",
            Cause::HostTick => "interrupted by the host's timer",
            Cause::HostIpi => "interrupted by another CPU of the host",
            Cause::HostDevice => "interrupted by a device of the host",
            Cause::HostInterrupt => "interrupted by the host; the recording does not say by what",
            Cause::Ipi => "sending an interrupt between vCPUs",
            Cause::Idle => "going idle",
            Cause::MemoryFault => "touching memory that the host had not mapped",
            Cause::MemoryOrDevice => {
                "touching memory that the host had not mapped, or a device register"
            }
            Cause::DeviceMmio => "accessing a device register in memory",
            Cause::DevicePio => "accessing an I/O port",
            Cause::Apic => "using its interrupt controller",
            Cause::Msr => "reading or writing an MSR",
            Cause::Cpuid => "executing CPUID",
            Cause::Pmu => "using its performance counters",
            Cause::NestedEntry => "entering its own guest",
            Cause::NestedAncillary => "handling an exit of its own guest",
            Cause::IrqWindow => "becoming ready for a waiting interrupt",
            Cause::Hypercall => "calling the hypervisor",
            Cause::Other => "doing something else",
        }
    }

    /// The cause of an exit.
    ///
    /// `ancillary`: the exit is one that L1 took between being handed an exit of L2 and entering L2
    /// again. All such exits are nested work, whatever their reason.
    pub fn of(reason: Reason, detail: Detail, ancillary: bool) -> Cause {
        let rule = rule_of(reason.isa, reason.code);
        if ancillary {
            let entry = rule.is_some_and(|r| r.cause == Cause::NestedEntry);
            return if entry { Cause::NestedEntry } else { Cause::NestedAncillary };
        }
        match rule {
            None => of_detail(detail).unwrap_or(Cause::Other),
            Some(rule) if rule.final_ => rule.cause,
            Some(rule) => of_detail(detail).unwrap_or(rule.cause),
        }
    }

    /// What the recording lacks to say more of this exit, and what to record for it; `None` where it lacks nothing.
    pub fn missing(reason: Reason, detail: Detail) -> Option<&'static str> {
        let is_bare = detail.kind == DetailKind::None;
        rule_of(reason.isa, reason.code).filter(|_| is_bare).and_then(|rule| rule.missing)
    }
}

/// The cause by an exit's reason.
struct Rule {
    isa: Isa,
    code: u32,
    /// When the detail does not decide.
    cause: Cause,
    /// The reason alone decides, whatever the detail.
    final_: bool,
    /// What is not known without a detail.
    missing: Option<&'static str>,
}

impl Rule {
    const fn new(isa: Isa, code: u32, cause: Cause) -> Rule {
        Rule { isa, code, cause, final_: false, missing: None }
    }

    /// The detail plays no part.
    const fn only(mut self) -> Rule {
        self.final_ = true;
        self
    }

    const fn missing(mut self, what: &'static str) -> Rule {
        self.missing = Some(what);
        self
    }
}

const fn intel(code: u32, cause: Cause) -> Rule {
    Rule::new(Isa::Vmx, code, cause)
}

const fn amd(code: u32, cause: Cause) -> Rule {
    Rule::new(Isa::Svm, code, cause)
}

const VECTORS: &str =
    "what interrupted the guest: intr_info (older kernels: info2) of kvm:kvm_exit has the vector";
/// SVM has no "acknowledge interrupt on exit": AMD APM volume 2, "External interrupts".
const VECTORS_OF_AMD: &str = "what interrupted the guest, which AMD's exits never say: `perf record -a -e irq_vectors:*,irq:irq_handler_entry` does";
const MSR_NUMBERS: &str =
    "which MSR, of a timer, an IPI, an EOI or another: kvm:kvm_msr has the number";
const LEAVES: &str = "what the guest requests by TDCALL: kvm:kvm_vm_set_mem_attributes tells MapGPA; before Linux 6.16 kvm:kvm_msr, kvm:kvm_pio, kvm:kvm_mmio and the like tell the rest";
const ADDRESSES: &str = "which of the nested page faults are accesses of devices: kvm:kvm_page_fault and kvm:kvm_mmio have the addresses";

/// The rules, by vendor and code. Others are [`Cause::Other`] unless the detail decides:
/// exceptions, CR and DR accesses, descriptor tables, cache and TLB instructions, XSETBV, RDTSC,
/// shutdown, failed entries.
const RULES: &[Rule] = &[
    intel(vmx::EXTERNAL_INTERRUPT, Cause::HostInterrupt).missing(VECTORS),
    intel(vmx::INTERRUPT_WINDOW, Cause::IrqWindow).only(),
    intel(vmx::NMI_WINDOW, Cause::IrqWindow).only(),
    intel(vmx::CPUID, Cause::Cpuid).only(),
    intel(vmx::HLT, Cause::Idle).only(),
    intel(vmx::RDPMC, Cause::Pmu).only(),
    intel(vmx::VMCALL, Cause::Hypercall),
    intel(vmx::VMCLEAR, Cause::NestedAncillary).only(),
    intel(vmx::VMLAUNCH, Cause::NestedEntry).only(),
    intel(vmx::VMPTRLD, Cause::NestedAncillary).only(),
    intel(vmx::VMPTRST, Cause::NestedAncillary).only(),
    intel(vmx::VMREAD, Cause::NestedAncillary).only(),
    intel(vmx::VMRESUME, Cause::NestedEntry).only(),
    intel(vmx::VMWRITE, Cause::NestedAncillary).only(),
    intel(vmx::VMOFF, Cause::NestedAncillary).only(),
    intel(vmx::VMON, Cause::NestedAncillary).only(),
    intel(vmx::IO_INSTRUCTION, Cause::DevicePio),
    intel(vmx::MSR_READ, Cause::Msr).missing(MSR_NUMBERS),
    intel(vmx::MSR_WRITE, Cause::Msr).missing(MSR_NUMBERS),
    intel(vmx::MWAIT_INSTRUCTION, Cause::Idle).only(),
    // MONITOR is the first half of an MWAIT.
    intel(vmx::MONITOR_INSTRUCTION, Cause::Idle).only(),
    // Spinning is idleness: the guest has nothing to do until someone else acts.
    intel(vmx::PAUSE_INSTRUCTION, Cause::Idle).only(),
    // The task priority register is the APIC's.
    intel(vmx::TPR_BELOW_THRESHOLD, Cause::Apic).only(),
    intel(vmx::APIC_ACCESS, Cause::Apic),
    intel(vmx::EOI_INDUCED, Cause::Apic).only(),
    intel(vmx::EPT_VIOLATION, Cause::MemoryFault),
    // KVM makes entries misconfigured for emulated devices only (mmio caching in the MMU), and
    // mainline Linux reports TDVMCALL MMIO under this reason.
    intel(vmx::EPT_MISCONFIG, Cause::DeviceMmio),
    intel(vmx::INVEPT, Cause::NestedAncillary).only(),
    // KVM runs the guest's own APIC timer on it.
    intel(vmx::PREEMPTION_TIMER, Cause::TimerTick).only(),
    intel(vmx::INVVPID, Cause::NestedAncillary).only(),
    intel(vmx::APIC_WRITE, Cause::Apic),
    intel(vmx::UMWAIT, Cause::Idle).only(),
    intel(vmx::TPAUSE, Cause::Idle).only(),
    intel(vmx::TDCALL, Cause::Hypercall).missing(LEAVES),
    intel(vmx::RDMSRLIST, Cause::Msr),
    intel(vmx::WRMSRLIST, Cause::Msr),
    intel(vmx::URDMSR, Cause::Msr),
    intel(vmx::UWRMSR, Cause::Msr),
    intel(vmx::MSR_READ_IMM, Cause::Msr).missing(MSR_NUMBERS),
    intel(vmx::MSR_WRITE_IMM, Cause::Msr).missing(MSR_NUMBERS),
    // CR8 is the task priority register.
    amd(svm::READ_CR8, Cause::Apic).only(),
    amd(svm::WRITE_CR8, Cause::Apic).only(),
    amd(svm::INTR, Cause::HostInterrupt).missing(VECTORS_OF_AMD),
    amd(svm::VINTR, Cause::IrqWindow).only(),
    amd(svm::RDPMC, Cause::Pmu).only(),
    amd(svm::CPUID, Cause::Cpuid).only(),
    // KVM traps IRET to learn when the next NMI can be delivered: SVM's NMI window.
    amd(svm::IRET, Cause::IrqWindow).only(),
    amd(svm::PAUSE, Cause::Idle).only(),
    amd(svm::HLT, Cause::Idle).only(),
    amd(svm::INVLPGA, Cause::NestedAncillary).only(),
    amd(svm::IOIO, Cause::DevicePio),
    amd(svm::MSR, Cause::Msr).missing(MSR_NUMBERS),
    amd(svm::VMRUN, Cause::NestedEntry).only(),
    amd(svm::VMMCALL, Cause::Hypercall),
    amd(svm::VMLOAD, Cause::NestedAncillary).only(),
    amd(svm::VMSAVE, Cause::NestedAncillary).only(),
    amd(svm::STGI, Cause::NestedAncillary).only(),
    amd(svm::CLGI, Cause::NestedAncillary).only(),
    amd(svm::MONITOR, Cause::Idle).only(),
    amd(svm::MWAIT, Cause::Idle).only(),
    amd(svm::MWAIT_COND, Cause::Idle).only(),
    amd(svm::CR8_WRITE_TRAP, Cause::Apic).only(),
    amd(svm::IDLE_HLT, Cause::Idle).only(),
    // A device's register faults like memory (mmio caching in the MMU marks its entry by a reserved bit).
    amd(svm::NPF, Cause::MemoryOrDevice).missing(ADDRESSES),
    amd(svm::AVIC_INCOMPLETE_IPI, Cause::Ipi).only(),
    amd(svm::AVIC_UNACCELERATED_ACCESS, Cause::Apic),
    amd(svm::VMGEXIT, Cause::Hypercall),
    amd(svm::VMGEXIT_MMIO_READ, Cause::DeviceMmio),
    amd(svm::VMGEXIT_MMIO_WRITE, Cause::DeviceMmio),
    // A vCPU that the guest has parked until it brings it up again.
    amd(svm::VMGEXIT_AP_HLT_LOOP, Cause::Idle),
];

/// MSRs that decide the cause: first, last, cause of (reading, writing). The x2APIC and
/// the PMU are classified by [`apic`] and [`msr`].
const MSRS: &[(u32, u32, (Cause, Cause))] = &[
    (msr::IA32_TSC_DEADLINE, msr::IA32_TSC_DEADLINE, (Cause::Msr, Cause::TimerArm)),
    (msr::HV_X64_MSR_EOI, msr::HV_X64_MSR_EOI, (Cause::Apic, Cause::Apic)),
    (msr::HV_X64_MSR_ICR, msr::HV_X64_MSR_ICR, (Cause::Apic, Cause::Ipi)),
    (msr::HV_X64_MSR_TPR, msr::HV_X64_MSR_TPR, (Cause::Apic, Cause::Apic)),
    (msr::HV_X64_MSR_STIMER0_CONFIG, msr::HV_X64_MSR_STIMER3_COUNT, (Cause::Msr, Cause::TimerArm)),
    (msr::HV_X64_MSR_GUEST_IDLE, msr::HV_X64_MSR_GUEST_IDLE, (Cause::Idle, Cause::Msr)),
];

/// Ports of the PIT. Writing them programs it (a guest without a better timer does so for each tick);
/// reading them only asks for the count, and is a device access like any other.
const PIT: std::ops::RangeInclusive<u64> = 0x40..=0x43;
/// The control register that is the task priority register.
const CR8: u64 = 8;

fn rule_of(isa: Isa, code: u32) -> Option<&'static Rule> {
    let at = RULES.binary_search_by_key(&(isa, code), |r| (r.isa, r.code)).ok()?;
    RULES.get(at)
}

/// The cause by an exit's detail, if it decides.
fn of_detail(detail: Detail) -> Option<Cause> {
    let value = detail.value;
    let write = detail.is_write() == Some(true);
    let cause = match detail.kind {
        DetailKind::None
        | DetailKind::Halt
        | DetailKind::Overflow
        | DetailKind::ToPrivate
        | DetailKind::ToShared
        | DetailKind::PreFault
        | DetailKind::Gsi
        | DetailKind::PicPin
        | DetailKind::IoapicPin
        | DetailKind::MsiVector
        | DetailKind::ApicVector
        | DetailKind::AckedPin
        | DetailKind::ApicvInhibit
        | DetailKind::ApicvChange => return None,
        DetailKind::MsrRead | DetailKind::MsrWrite => of_msr(value, write),
        DetailKind::PortOut if PIT.contains(&value) => Cause::TimerArm,
        DetailKind::PortIn | DetailKind::PortOut => Cause::DevicePio,
        DetailKind::MmioRead | DetailKind::MmioWrite => match apic::register_of_gpa(value) {
            Some(register) => of_apic(register, write),
            None => Cause::DeviceMmio,
        },
        DetailKind::PageFault
        | DetailKind::MappedFault
        | DetailKind::MappedFetch
        | DetailKind::MemoryFault => Cause::MemoryFault,
        DetailKind::Hypercall if value == hypercall::KVM_SEND_IPI => Cause::Ipi,
        DetailKind::HypervHypercall
            if matches!(value, hypercall::HYPERV_SEND_IPI | hypercall::HYPERV_SEND_IPI_EX) =>
        {
            Cause::Ipi
        }
        DetailKind::Hypercall | DetailKind::HypervHypercall | DetailKind::XenHypercall => {
            Cause::Hypercall
        }
        DetailKind::Cpuid => Cause::Cpuid,
        DetailKind::CrRead | DetailKind::CrWrite if value == CR8 => Cause::Apic,
        DetailKind::CrRead | DetailKind::CrWrite => Cause::Other,
        DetailKind::ApicRead | DetailKind::ApicWrite => match u32::try_from(value) {
            Ok(register) => of_apic(register, write),
            Err(_) => Cause::Apic,
        },
        DetailKind::Ghcb => of_ghcb(value),
        DetailKind::GhcbMsr => match value {
            ghcb::CPUID_REQ => Cause::Cpuid,
            ghcb::AP_RESET_HOLD_REQ => Cause::Idle,
            _ => Cause::Hypercall,
        },
        DetailKind::Tdvmcall => of_tdvmcall(value),
        DetailKind::Interrupt => of_interrupt(value),
        DetailKind::VmcsField => Cause::NestedAncillary,
    };
    Some(cause)
}

fn of_interrupt(vector: u64) -> Cause {
    match interrupt::sender(vector) {
        interrupt::Sender::Timer => Cause::HostTick,
        interrupt::Sender::Cpu => Cause::HostIpi,
        interrupt::Sender::Device => Cause::HostDevice,
    }
}

fn of_msr(index: u64, write: bool) -> Cause {
    let Ok(index) = u32::try_from(index) else {
        return Cause::Msr;
    };
    if let Some(register) = apic::x2apic_register(index) {
        return of_apic(register, write);
    }
    if msr::is_pmu(index) {
        return Cause::Pmu;
    }
    match table::range_of(MSRS, index) {
        Some(&(_, _, (_, on_write))) if write => on_write,
        Some(&(_, _, (on_read, _))) => on_read,
        None => Cause::Msr,
    }
}

fn of_apic(register: u32, write: bool) -> Cause {
    match register {
        apic::TMICT if write => Cause::TimerArm,
        // ICR2 is the destination of the IPI that the next write sends: half of sending it.
        apic::ICR | apic::ICR2 | apic::SELF_IPI if write => Cause::Ipi,
        _ => Cause::Apic,
    }
}

/// A request through the GHCB is the exit that the guest would have had, or a call of the host.
fn of_ghcb(code: u64) -> Cause {
    let Ok(code) = u32::try_from(code) else {
        return Cause::Hypercall;
    };
    match rule_of(Isa::Svm, code) {
        Some(rule) => rule.cause,
        None if code >= svm::VMGEXIT_FIRST => Cause::Hypercall,
        None => Cause::Other,
    }
}

/// A leaf without a more precise detail (of `kvm_msr` and similar events).
fn of_tdvmcall(leaf: u64) -> Cause {
    match leaf {
        tdx::LEAF_CPUID => Cause::Cpuid,
        tdx::LEAF_HLT => Cause::Idle,
        tdx::LEAF_IO => Cause::DevicePio,
        tdx::LEAF_RDMSR | tdx::LEAF_WRMSR => Cause::Msr,
        tdx::LEAF_MMIO => Cause::DeviceMmio,
        tdx::LEAF_WBINVD | tdx::LEAF_PCONFIG => Cause::Other,
        _ => Cause::Hypercall,
    }
}

#[cfg(test)]
#[path = "cause_tests.rs"]
mod tests;
