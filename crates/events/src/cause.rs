//! Causes: what the guest was doing at an exit, in one word, the same for every vendor.
//!
//! Reasons cannot be compared between kinds of VM: a plain VM arms its timer by writing an MSR and
//! leaves for PREEMPTION_TIMER, a TDX guest arms it by TDCALL, an SNP guest by a register in memory.
//! Causes can ("Performance tuning for oneDNN on TDX": compare by cause, not by reason).
//!
//! An exit's detail decides where it says anything; the rule of its reason, in the module of its ISA, decides otherwise. Nothing is guessed: an MSR without its number is an MSR, an
//! interrupt without its vector an interrupt of the host. [`Cause::missing`] says what the recording lacks.
//!
//! Left out on purpose: anything that needs more than the one exit.

use crate::arm::{registers, smccc};
use crate::detail::{hypercall, table};
use crate::words::words;
use crate::{Detail, DetailKind, Isa, Reason, apic, ghcb, interrupt, msr, svm, tdx};

words! {
    /// What the guest was doing.
    pub enum Cause {
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
        /// Reading or writing another system register of arm64, or executing a system instruction (TLBI, AT, DC).
        Sysreg = "sysreg",
        Cpuid = "cpuid",
        /// Using its performance counters.
        Pmu = "pmu",
        /// As a hypervisor, entering its own guest.
        NestedEntry = "nested-entry",
        /// As a hypervisor, handling an exit of its own guest.
        NestedAncillary = "nested-ancillary",
        /// Becoming able to take an interrupt that was waiting.
        IrqWindow = "irq-window",
        Hypercall = "hypercall",
        /// Anything else.
        Other = "other",
    }
}

impl Cause {
    /// The cause by an exit's detail alone, if it decides.
    pub fn of_detail(detail: Detail) -> Option<Cause> {
        of_detail(detail)
    }

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
            Cause::Sysreg => "reading or writing a system register",
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

/// The cause by an exit's reason, of one ISA.
#[derive(Debug)]
pub struct CauseRule {
    pub(crate) code: u32,
    /// When the detail does not decide.
    cause: Cause,
    /// The reason alone decides, whatever the detail.
    final_: bool,
    /// What is not known without a detail.
    missing: Option<&'static str>,
}

impl CauseRule {
    pub(crate) const fn new(code: u32, cause: Cause) -> CauseRule {
        CauseRule { code, cause, final_: false, missing: None }
    }

    /// The detail plays no part.
    pub(crate) const fn only(mut self) -> CauseRule {
        self.final_ = true;
        self
    }

    pub(crate) const fn missing(mut self, what: &'static str) -> CauseRule {
        self.missing = Some(what);
        self
    }
}

/// What exits of MSRs lack without a detail.
pub(crate) const MSR_NUMBERS: &str =
    "which MSR, of a timer, an IPI, an EOI or another: kvm:kvm_msr has the number";

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

fn rule_of(isa: Isa, code: u32) -> Option<&'static CauseRule> {
    let rules = isa.facts().rules();
    rules.get(rules.binary_search_by_key(&code, |rule| rule.code).ok()?)
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
        DetailKind::SysregRead | DetailKind::SysregWrite => registers::cause(value, write),
        DetailKind::Smccc if smccc::is_idle(value) => Cause::Idle,
        DetailKind::Smccc => Cause::Hypercall,
        DetailKind::Wait => Cause::Idle,
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
