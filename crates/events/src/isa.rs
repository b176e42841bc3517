//! ISAs: which extension or architecture an exit belongs to, and the facts of each behind one interface.
//!
//! An ISA is a module of tables ([`vmx`](crate::vmx), [`svm`](crate::svm), [`arm`](crate::arm)) and its implementation of
//! [`IsaFacts`]. Whoever needs to know what an exit means asks [`Isa::facts`]; the match there is the only one.

use crate::arm::Arm;
use crate::cause::CauseRule;
use crate::svm::Svm;
use crate::vmx::Vmx;
use crate::words::words;
use crate::{Detail, DetailKind, Device, device};

words! {
    /// The instruction set of an exit: of x86 as the `isa` field of `kvm_exit` gives it.
    pub enum Isa {
        /// Intel VMX (`isa` 1), TDX included.
        Vmx = "vmx",
        /// AMD SVM (`isa` 2), SEV-SNP included.
        Svm = "svm",
        /// arm64: exception classes.
        Arm = "arm64",
        /// None was given, or the number is unknown: reasons stay numbers.
        Unknown = "unknown",
    }
}

impl Isa {
    /// The trace's `isa` field: `KVM_ISA_VMX` is 1, `KVM_ISA_SVM` is 2 (Linux `arch/x86/kvm/trace.h`).
    pub fn from_trace(isa: u32) -> Isa {
        match isa {
            1 => Isa::Vmx,
            2 => Isa::Svm,
            _ => Isa::Unknown,
        }
    }

    /// The number of [`Isa::from_trace`], 0 for others: their traces have no such field.
    pub fn as_trace(self) -> u32 {
        match self {
            Isa::Vmx => 1,
            Isa::Svm => 2,
            Isa::Arm | Isa::Unknown => 0,
        }
    }

    /// What is particular to it.
    #[inline]
    pub fn facts(self) -> &'static dyn IsaFacts {
        match self {
            Isa::Vmx => &Vmx,
            Isa::Svm => &Svm,
            Isa::Arm => &Arm,
            Isa::Unknown => &NoIsa,
        }
    }
}

/// How a recording shows that an exit is one of L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelMarks {
    /// An event behind it says so (`kvm_nested_vmexit`).
    Said,
    /// It is, between an event by which L1 enters L2 and one by which an exit is handed to L1.
    Delimited,
}

/// The facts of an ISA. What an ISA does not say is as on an unknown one, which is taken for x86.
pub trait IsaFacts: Sync {
    /// Whose processors: `Intel`, `AMD`, `arm64`. Empty when unknown.
    fn vendor(&self) -> &'static str;

    /// It is x86, or not known to be another: settings of x86 can be meant.
    fn is_x86(&self) -> bool {
        true
    }

    /// The name of a reason, as the kernel prints it.
    fn name(&self, _code: u32) -> Option<&'static str> {
        None
    }

    /// The reason of this name.
    fn code(&self, _name: &str) -> Option<u32> {
        None
    }

    /// All reasons with a name.
    fn codes(&self) -> &'static [(u32, &'static str)] {
        &[]
    }

    /// Reasons without a name are written in hexadecimal.
    fn numbers_are_hex(&self) -> bool {
        false
    }

    /// Bits of a trace's reason that are flags beside it.
    fn flags(&self) -> u32 {
        0
    }

    /// The code of a bare number, as the key of a map of counts (`@[args->esr_ec]`) or a trace has it.
    fn code_of_number(&self, number: u32) -> u32 {
        number & !self.flags()
    }

    /// The code of two numbers, where an exit has two (`@[args->ret, args->esr_ec]`).
    fn code_of_pair(&self, _first: u32, _second: u32) -> Option<u32> {
        None
    }

    /// Causes by code, sorted.
    fn rules(&self) -> &'static [CauseRule] {
        &[]
    }

    /// What kinds of access exits of a code make.
    fn accesses(&self) -> &'static [(u32, &'static [DetailKind])] {
        &[]
    }

    /// What an exit was about, from its own information words.
    fn information(&self, _code: u32, _info1: u64, _info2: u64) -> Detail {
        Detail::NONE
    }

    /// The kind of a fault on guest memory.
    fn fault(&self, _code: u32, _error_code: u64) -> DetailKind {
        DetailKind::PageFault
    }

    /// A fault is one on memory, unless another event says that it is an access of a device. `false`: each access of a device faults.
    fn faults_are_memory(&self) -> bool {
        true
    }

    /// A fault on an entry that KVM marked as a device's register.
    fn is_of_device(&self, _code: u32, _error_code: u64) -> bool {
        false
    }

    /// The vCPU does nothing until something wakes it.
    fn is_halt(&self, _code: u32, detail: Detail) -> bool {
        detail.is_halt_request()
    }

    /// KVM may go back into the guest from such an exit without passing `kvm_entry`.
    fn is_fast_path(&self, _code: u32, _info1: u64) -> bool {
        false
    }

    /// An entry says which vCPU it is of.
    fn names_vcpus(&self) -> bool {
        true
    }

    /// How exits of L2 are known.
    fn levels(&self) -> LevelMarks {
        LevelMarks::Said
    }

    /// The tracepoint that tells exits of L2 from those of L1.
    fn nested_tracepoint(&self) -> &'static str {
        "kvm_nested_vmexit"
    }

    /// Devices by their guest-physical addresses: first, last; sorted.
    fn devices(&self) -> &'static [(u64, u64, Device)] {
        device::ADDRESSES
    }

    /// Whether an access looks like the notification of a virtio queue.
    fn is_notification(&self, detail: Detail) -> bool {
        device::is_notification_of_pc(detail)
    }

    /// The page tables by which guest memory is mapped.
    fn guest_memory_tables(&self) -> &'static str {
        "the nested page tables"
    }

    /// KVM counts mapped pages by size (`pages_4k` and the like in debugfs).
    fn counts_pages(&self) -> bool {
        true
    }

    /// `perf kvm stat` times exits, from `kvm_exit` to `kvm_entry`.
    fn perf_times_exits(&self) -> bool {
        true
    }

    /// `perf kvm stat` has a name for all exits that KVM hands out.
    fn perf_names_all(&self) -> bool {
        true
    }

    /// The exit of the instruction that identifies the processor.
    fn cpuid(&self) -> Option<u32> {
        None
    }
}

/// No ISA is known.
struct NoIsa;

impl IsaFacts for NoIsa {
    fn vendor(&self) -> &'static str {
        ""
    }
}
