//! What is known of a VM, and whether a remedy helps it.

use vmtax_events::{Isa, words};

words! {
    /// What kind of VM it is, as far as something shows it.
    pub enum VmKind {
        /// Exits that no confidential VM takes were seen, or its command line says so.
        Plain = "plain",
        /// SEV: encrypted, mapped like any other.
        Sev = "SEV",
        /// SEV-ES: its registers are encrypted too.
        SevEs = "SEV-ES",
        /// SEV-ES or SEV-SNP; which is not known.
        Encrypted = "SEV-ES or SEV-SNP",
        Snp = "SEV-SNP",
        Tdx = "TDX",
        /// A software-protected VM: its memory comes from guest_memfd, and nothing is encrypted.
        Protected = "software-protected",
        /// Nothing shows it.
        Unknown = "unknown",
    }
}

impl VmKind {
    /// Its registers are closed to the host, so that its exits are requests.
    pub fn is_confidential(self) -> bool {
        matches!(self, VmKind::SevEs | VmKind::Encrypted | VmKind::Snp | VmKind::Tdx)
    }

    /// Its memory is encrypted.
    pub(crate) fn is_encrypted(self) -> bool {
        self == VmKind::Sev || self.is_confidential()
    }

    /// Its memory comes from guest_memfd.
    pub fn is_private(self) -> bool {
        matches!(self, VmKind::Snp | VmKind::Tdx | VmKind::Protected)
    }
}

/// What is known of the VM that a remedy is for.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    pub kind: VmKind,
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
    /// The guest arms Hyper-V's synthetic timers.
    pub has_hyperv_timer: bool,
    /// Its host runs another hypervisor than KVM.
    pub is_of_other_host: bool,
}

/// Whether a remedy helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    Yes,
    /// Under this condition, which is not known.
    If(&'static str),
    /// It does not, for this reason.
    No(&'static str),
}
