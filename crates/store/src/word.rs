//! The words for kinds of raw events in `kind` of their table, and the columns that hold their fields.

/// Hands the table of kinds to a macro: word, variant of [`vmtax_events::Kind`], the choice that the word includes, and the column of
/// each other field. `reason` is the columns `isa`, `reason` and `reason_flags`.
macro_rules! kinds {
    ($with:ident) => {
        $with! {
            "exit" Exit () reason: reason, info1: a, info2: b;
            "entry" Entry ();
            "msr-read" Msr (write: false) index: a, data: b;
            "msr-write" Msr (write: true) index: a, data: b;
            "port-in" Pio (write: false) port: a, count: b, size: c;
            "port-out" Pio (write: true) port: a, count: b, size: c;
            "mmio-read-unsatisfied" Mmio (access: MmioAccess::UnsatisfiedRead) gpa: a, len: b;
            "mmio-read" Mmio (access: MmioAccess::Read) gpa: a, len: b;
            "mmio-write" Mmio (access: MmioAccess::Write) gpa: a, len: b;
            "fast-mmio" FastMmio () gpa: a;
            "hypercall-kvm" Hypercall (interface: HypercallInterface::Kvm) number: a;
            "hypercall-hyperv" Hypercall (interface: HypercallInterface::HyperV) number: a;
            "hypercall-xen" Hypercall (interface: HypercallInterface::Xen) number: a;
            "hypercall-smccc" Hypercall (interface: HypercallInterface::Smccc) number: a;
            "sysreg-read" Sysreg (write: false) register: a;
            "sysreg-write" Sysreg (write: true) register: a;
            "wait-interrupt" Wait (for_event: false);
            "wait-event" Wait (for_event: true);
            "runs" Runs ();
            "page-fault" PageFault () gpa: a, error_code: b;
            "map-request" MapRequest () gfn: a, level: b;
            "set-attributes" SetAttributes () start: a, end: b, attributes: c;
            "cpuid" Cpuid () function: a, index: b;
            "cr-read" Cr (write: false) number: a, value: b;
            "cr-write" Cr (write: true) number: a, value: b;
            "apic-read" Apic (write: false) register: a, value: b;
            "apic-write" Apic (write: true) register: a, value: b;
            "ghcb-enter" GhcbEnter () code: a, info1: b, info2: c;
            "ghcb-msr" GhcbMsr () value: a;
            "tdvmcall" Tdvmcall () leaf: a;
            "vmcs-read" VmcsField (write: false) field: a;
            "vmcs-write" VmcsField (write: true) field: a;
            "information" Information () info1: a, info2: b;
            "userspace-exit" UserspaceExit () errno: errno, reason: a;
            "nested-exit" NestedExit () reason: reason;
            "nested-inject" NestedInject () reason: reason;
            "nested-enter" NestedEnter ();
            "wakeup" Wakeup (polled: false) ns: a;
            "wakeup-polled" Wakeup (polled: true) ns: a;
            "switch" Switch (preempted: false) next_tid: a;
            "switch-preempted" Switch (preempted: true) next_tid: a;
            "woken" Woken () woken_tid: a;
            "interrupt-gsi" Interrupt (at: InterruptAt::Gsi) number: a, source: b;
            "interrupt-pic" Interrupt (at: InterruptAt::Pic) number: a, source: b;
            "interrupt-ioapic" Interrupt (at: InterruptAt::Ioapic) number: a, source: b;
            "interrupt-msi" Interrupt (at: InterruptAt::Msi) number: a, source: b;
            "interrupt-apic" Interrupt (at: InterruptAt::Apic) number: a, source: b;
            "interrupt-acked" Interrupt (at: InterruptAt::Acknowledged) number: a, source: b;
            "apicv-inhibit" ApicvInhibit (set: true) reason: a, inhibits: b;
            "apicv-allow" ApicvInhibit (set: false) reason: a, inhibits: b;
            "ioctl" Ioctl () descriptor: a, request: b;
            "ioctl-return" IoctlReturn () result: errno;
            "lost" Lost () count: a;
            "thread-end" ThreadEnd ();
            "sampled" Sampled () count: a;
        }
    };
}

pub(crate) use kinds;

macro_rules! words {
    ($($word:literal $kind:ident ($($choice:tt)*) $($field:ident: $column:ident),*;)*) => {
        &[$($word),*]
    };
}

/// A word of the column `kind`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) &'static str);

impl Word {
    pub(crate) fn name(&self) -> &str {
        self.0
    }

    pub(crate) fn from_name(name: &str) -> Option<Word> {
        const ALL: &[&str] = kinds!(words);
        ALL.iter().find(|word| **word == name).map(|word| Word(word))
    }
}
