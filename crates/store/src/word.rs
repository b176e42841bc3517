//! The words for kinds of raw events in `kind` of their table.

/// A word of the column `kind`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) &'static str);

impl Word {
    #[rustfmt::skip]
    const ALL: [&'static str; 37] = [
        "exit", "entry", "msr-read", "msr-write", "port-in", "port-out", "mmio-read-unsatisfied",
        "mmio-read", "mmio-write", "fast-mmio", "hypercall-kvm", "hypercall-hyperv", "hypercall-xen", "page-fault", "map-request", "set-attributes",
        "cpuid", "cr-read", "cr-write", "apic-read", "apic-write", "ghcb-enter", "ghcb-msr",
        "tdvmcall", "vmcs-read", "vmcs-write", "information", "userspace-exit", "nested-exit", "nested-inject",
        "nested-enter", "wakeup", "wakeup-polled", "switch", "switch-preempted", "lost", "thread-end",
    ];

    pub(crate) fn name(&self) -> &str {
        self.0
    }

    pub(crate) fn from_name(name: &str) -> Option<Word> {
        Word::ALL.into_iter().find(|word| *word == name).map(Word)
    }
}
