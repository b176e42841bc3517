//! Exit reasons as texts spell them -> [`Reason`].
//!
//! A text does not say whose reasons it holds, but the names do: the kernel writes VMX reasons in
//! capitals and SVM codes in small letters. trace-cmd's kvm plugin has other names for SVM
//! (`EXIT_NPF`). A reason without a name in the recorder's tables is a number there; it gets the
//! vendor of the names seen before, or none.

use vmtax_events::{Isa, Reason, svm, vmx};

use super::words::{decimal, hex};

/// Names of SVM codes in trace-cmd's kvm plugin (libtraceevent `plugin_kvm.c`) and, with `SVM_`
/// before them, in Linux `uapi/asm/svm.h`. Control and debug registers are not in it: see [`svm_macro`].
const SVM_MACROS: &[(&str, u32)] = &[
    ("EXIT_EXCP_DE", svm::DE_EXCP),
    ("EXIT_EXCP_DB", svm::DB_EXCP),
    ("EXIT_EXCP_BP", svm::BP_EXCP),
    ("EXIT_EXCP_OF", svm::OF_EXCP),
    ("EXIT_EXCP_BR", svm::BR_EXCP),
    ("EXIT_EXCP_UD", svm::UD_EXCP),
    ("EXIT_EXCP_NM", svm::NM_EXCP),
    ("EXIT_EXCP_DF", svm::DF_EXCP),
    ("EXIT_EXCP_TS", svm::TS_EXCP),
    ("EXIT_EXCP_NP", svm::NP_EXCP),
    ("EXIT_EXCP_SS", svm::SS_EXCP),
    ("EXIT_EXCP_GP", svm::GP_EXCP),
    ("EXIT_EXCP_PF", svm::PF_EXCP),
    ("EXIT_EXCP_MF", svm::MF_EXCP),
    ("EXIT_EXCP_AC", svm::AC_EXCP),
    ("EXIT_EXCP_MC", svm::MC_EXCP),
    ("EXIT_EXCP_XF", svm::XF_EXCP),
    ("EXIT_INTR", svm::INTR),
    ("EXIT_NMI", svm::NMI),
    ("EXIT_SMI", svm::SMI),
    ("EXIT_INIT", svm::INIT),
    ("EXIT_VINTR", svm::VINTR),
    ("EXIT_CR0_SEL_WRITE", svm::CR0_SEL_WRITE),
    ("EXIT_IDTR_READ", svm::IDTR_READ),
    ("EXIT_GDTR_READ", svm::GDTR_READ),
    ("EXIT_LDTR_READ", svm::LDTR_READ),
    ("EXIT_TR_READ", svm::TR_READ),
    ("EXIT_IDTR_WRITE", svm::IDTR_WRITE),
    ("EXIT_GDTR_WRITE", svm::GDTR_WRITE),
    ("EXIT_LDTR_WRITE", svm::LDTR_WRITE),
    ("EXIT_TR_WRITE", svm::TR_WRITE),
    ("EXIT_RDTSC", svm::RDTSC),
    ("EXIT_RDPMC", svm::RDPMC),
    ("EXIT_PUSHF", svm::PUSHF),
    ("EXIT_POPF", svm::POPF),
    ("EXIT_CPUID", svm::CPUID),
    ("EXIT_RSM", svm::RSM),
    ("EXIT_IRET", svm::IRET),
    ("EXIT_SWINT", svm::SWINT),
    ("EXIT_INVD", svm::INVD),
    ("EXIT_PAUSE", svm::PAUSE),
    ("EXIT_HLT", svm::HLT),
    ("EXIT_INVLPG", svm::INVLPG),
    ("EXIT_INVLPGA", svm::INVLPGA),
    ("EXIT_IOIO", svm::IOIO),
    ("EXIT_MSR", svm::MSR),
    ("EXIT_TASK_SWITCH", svm::TASK_SWITCH),
    ("EXIT_FERR_FREEZE", svm::FERR_FREEZE),
    ("EXIT_SHUTDOWN", svm::SHUTDOWN),
    ("EXIT_VMRUN", svm::VMRUN),
    ("EXIT_VMMCALL", svm::VMMCALL),
    ("EXIT_VMLOAD", svm::VMLOAD),
    ("EXIT_VMSAVE", svm::VMSAVE),
    ("EXIT_STGI", svm::STGI),
    ("EXIT_CLGI", svm::CLGI),
    ("EXIT_SKINIT", svm::SKINIT),
    ("EXIT_RDTSCP", svm::RDTSCP),
    ("EXIT_ICEBP", svm::ICEBP),
    ("EXIT_WBINVD", svm::WBINVD),
    ("EXIT_MONITOR", svm::MONITOR),
    ("EXIT_MWAIT", svm::MWAIT),
    ("EXIT_MWAIT_COND", svm::MWAIT_COND),
    ("EXIT_XSETBV", svm::XSETBV),
    ("EXIT_RDPRU", svm::RDPRU),
    ("EXIT_INVPCID", svm::INVPCID),
    ("EXIT_BUS_LOCK", svm::BUS_LOCK),
    ("EXIT_IDLE_HLT", svm::IDLE_HLT),
    ("EXIT_NPF", svm::NPF),
    ("EXIT_AVIC_INCOMPLETE_IPI", svm::AVIC_INCOMPLETE_IPI),
    ("EXIT_AVIC_UNACCELERATED_ACCESS", svm::AVIC_UNACCELERATED_ACCESS),
    ("EXIT_VMGEXIT", svm::VMGEXIT),
    ("EXIT_ERR", u32::MAX),
];

/// Registers in the names of SVM's intercepts of control and debug registers, and their first code.
const SVM_REGISTERS: &[(&str, u32)] = &[
    ("EXIT_READ_CR", svm::READ_CR0),
    ("EXIT_WRITE_CR", svm::WRITE_CR0),
    ("EXIT_READ_DR", svm::READ_DR0),
    ("EXIT_WRITE_DR", svm::WRITE_DR0),
];

/// The SVM code that trace-cmd calls `name`.
pub(crate) fn svm_macro(name: &str) -> Option<u32> {
    let register = SVM_REGISTERS.iter().find_map(|&(prefix, first)| {
        let number = decimal(name.strip_prefix(prefix)?.as_bytes())?;
        (number < 16).then(|| first + number as u32)
    });
    register.or_else(|| SVM_MACROS.iter().find(|(n, _)| *n == name).map(|&(_, code)| code))
}

/// The reason of this name, in any spelling of any ISA; not for numbers.
pub(crate) fn by_name(name: &str) -> Option<Reason> {
    let of_vmx = vmx::code(name.strip_prefix("EXIT_REASON_").unwrap_or(name));
    if let Some(code) = of_vmx {
        return Some(Reason { isa: Isa::Vmx, code, flags: 0 });
    }
    let of_svm = svm::code(name);
    if let Some(code) = of_svm.or_else(|| svm_macro(name.strip_prefix("SVM_").unwrap_or(name))) {
        return Some(Reason { isa: Isa::Svm, code, flags: 0 });
    }
    // These two are words of many texts.
    Reason::from_name(Isa::Arm, name).filter(|_| !matches!(name, "UNKNOWN" | "OTHER"))
}

/// Name of a flag of a VMX reason, by its bit. A flag without a name is a number.
pub(crate) fn vmx_flag(word: &[u8]) -> Option<u32> {
    match word {
        b"FAILED_VMENTRY" => Some(vmx::FAILED_ENTRY),
        b"ENCLAVE_MODE" | b"SGX_ENCLAVE_MODE" => Some(vmx::ENCLAVE_MODE),
        _ => {
            let bits = u32::try_from(hex(word.strip_prefix(b"0x")?)?).ok()?;
            (bits & 0xffff == 0).then_some(bits)
        }
    }
}

const CACHE: usize = 64;
const LONGEST_NAME: usize = 32;

/// A name met before.
#[derive(Clone, Copy)]
struct KnownName {
    len: u8,
    name: [u8; LONGEST_NAME],
    reason: Reason,
}

/// Reads the exit reasons of one block of a text, and remembers their vendor.
pub(crate) struct Reasons {
    isa: Isa,
    /// A reason of this block identified the vendor.
    is_own: bool,
    /// A bare number was read before that.
    used_given_isa: bool,
    numbers_assumed: bool,
    known: Box<[Option<KnownName>; CACHE]>,
}

impl Default for Reasons {
    fn default() -> Reasons {
        Reasons {
            isa: Isa::Unknown,
            is_own: false,
            used_given_isa: false,
            numbers_assumed: false,
            known: Box::new([None; CACHE]),
        }
    }
}

impl Reasons {
    /// Begins a block. `isa` is the vendor of the reasons before it.
    pub(crate) fn begin(&mut self, isa: Isa) {
        (self.isa, self.is_own, self.used_given_isa, self.numbers_assumed) =
            (isa, false, false, false);
    }

    /// Vendor of the block's last reason that identifies one.
    pub(crate) fn last_isa(&self) -> Option<Isa> {
        self.is_own.then_some(self.isa)
    }

    /// Whether the result depends on the vendor given to [`Reasons::begin`].
    pub(crate) fn used_given_isa(&self) -> bool {
        self.used_given_isa
    }

    /// Whether a bare number was read as a reason of a known vendor.
    pub(crate) fn assumed_numbers(&self) -> bool {
        self.numbers_assumed
    }

    fn set(&mut self, isa: Isa) {
        (self.isa, self.is_own) = (isa, true);
    }

    /// A reason as the kernel or trace-cmd writes it: a name, or `0x` and a number.
    pub(crate) fn read(&mut self, word: &[u8]) -> Option<Reason> {
        if let Some(digits) = word.strip_prefix(b"0x") {
            return Some(self.number(u32::try_from(hex(digits)?).ok()?));
        }
        let slot =
            word.iter().fold(word.len(), |h, &b| h.wrapping_mul(31) ^ usize::from(b)) % CACHE;
        let cached = self.known.get(slot).copied().flatten();
        if let Some(known) = cached.filter(|k| k.name.get(..usize::from(k.len)) == Some(word)) {
            self.set(known.reason.isa);
            return Some(known.reason);
        }
        let reason = by_name(std::str::from_utf8(word).ok()?)?;
        self.set(reason.isa);
        let mut name = [0; LONGEST_NAME];
        if let (Some(to), Some(slot)) = (name.get_mut(..word.len()), self.known.get_mut(slot)) {
            to.copy_from_slice(word);
            *slot = Some(KnownName { len: word.len() as u8, name, reason });
        }
        Some(reason)
    }

    /// A reason given as the number that the trace holds.
    pub(crate) fn number(&mut self, raw: u32) -> Reason {
        self.used_given_isa |= !self.is_own;
        self.numbers_assumed |= self.isa != Isa::Unknown;
        Reason::from_trace(self.isa, raw)
    }

    /// A reason that says its ISA itself.
    pub(crate) fn given(&mut self, reason: Reason) -> Reason {
        self.set(reason.isa);
        reason
    }

    /// A reason given as a number, with the trace's `isa` field.
    pub(crate) fn number_of(&mut self, isa: Isa, raw: u32) -> Reason {
        self.set(isa);
        Reason::from_trace(isa, raw)
    }
}
