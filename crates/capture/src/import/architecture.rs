//! Recordings of KVM on other architectures than x86 and arm64: recognised, so that they are refused by name.
//!
//! A recording says its architecture itself (perf's ARCH, trace-cmd's UNAME) or shows it in the fields and names of
//! its tracepoints. All but s390 have an event `kvm_exit`, with fields and texts of their own.

use crate::Error;
use crate::import::text::words::find;

/// An architecture whose exits are not read.
struct UnreadArchitecture {
    name: &'static str,
    /// How `uname -m` begins there.
    machines: &'static [&'static str],
    /// Fields that `kvm_exit` (or `kvm_guest_exit`) has there, and neither on x86 nor on arm64: all of one list.
    fields: &'static [&'static [&'static str]],
    /// Names of tracepoints that KVM has nowhere else; with `_` at its end, how names begin. x86 has `kvm_enter_smm` until 5.13.
    events: &'static [&'static str],
    /// A word of the text of `kvm_exit` there.
    texts: &'static [&'static str],
    /// Names that `perf kvm stat` gives exits there alone.
    reasons: &'static [&'static str],
}

/// Linux `arch/arm/kvm/trace.h` (until 5.6),
/// `arch/riscv/kvm/trace.h`, `arch/s390/kvm/trace.h` and `trace-s390.h`, `arch/powerpc/kvm/trace_{hv,pr,booke}.h`,
/// `arch/mips/kvm/trace.h`, `arch/loongarch/kvm/trace.h`. Fields and texts of the last two are the same.
static ARCHITECTURES: &[UnreadArchitecture] = &[
    // Linux runs no VMs on 32-bit Arm since 5.7. Fields of `kvm_exit` had these names on arm64 too, once.
    UnreadArchitecture {
        name: "32-bit Arm (or arm64, by an old kernel)",
        machines: &["armv"],
        fields: &[&["exit_reason", "vcpu_pc"]],
        events: &["kvm_emulate_cp15_imp", "kvm_wfx", "kvm_hvc"],
        texts: &["vcpu_pc="],
        reasons: &[],
    },
    UnreadArchitecture {
        name: "RISC-V",
        machines: &["riscv"],
        fields: &[&["scause"]],
        events: &[],
        texts: &["SCAUSE:", "scause="],
        // tools/perf/util/kvm-stat-arch/riscv_trap_types.h.
        reasons: &[
            "INST_GUEST_PAGE_FAULT",
            "LOAD_GUEST_PAGE_FAULT",
            "STORE_GUEST_PAGE_FAULT",
            "VIRTUAL_INST_FAULT",
            "SUPERVISOR_SYSCALL",
            "HYPERVISOR_SYSCALL",
            "INST_ILLEGAL",
        ],
    },
    UnreadArchitecture {
        name: "s390",
        machines: &["s390"],
        fields: &[],
        events: &["kvm_s390_"],
        texts: &[],
        // arch/s390/include/uapi/asm/sie.h: sie_intercept_code.
        reasons: &["Host interruption", "External request", "Wait state", "Stop request"],
    },
    UnreadArchitecture {
        name: "PowerPC",
        machines: &["ppc", "powerpc"],
        fields: &[&["exit_nr"], &["trap"]],
        events: &[
            "kvm_guest_enter",
            "kvm_guest_exit",
            "kvm_book3s_",
            "kvm_booke_",
            "kvm_booke206_",
            "kvmppc_",
            "kvm_ppc_",
        ],
        texts: &["exit_nr=", " | pc=0x"],
        // arch/powerpc/kvm/trace_book3s.h: kvm_trace_symbol_exit.
        reasons: &[
            "H_DATA_STORAGE",
            "H_INST_STORAGE",
            "H_EMUL_ASSIST",
            "HV_DECREMENTER",
            "DATA_SEGMENT",
        ],
    },
    UnreadArchitecture {
        name: "MIPS",
        machines: &["mips"],
        fields: &[],
        events: &["kvm_asid_change", "kvm_guestid_change", "kvm_hwr"],
        texts: &[],
        reasons: &[],
    },
    UnreadArchitecture {
        name: "LoongArch",
        machines: &["loongarch"],
        fields: &[],
        events: &["kvm_exit_", "kvm_vpid_change"],
        texts: &[],
        // tools/perf/arch/loongarch/util/kvm-stat.c: loongarch_exception_type.
        reasons: &[
            "Privilege Error",
            "Memory store",
            "Memory read",
            "Memory modify",
            "FP Disabled",
        ],
    },
    UnreadArchitecture {
        name: "MIPS or LoongArch",
        machines: &[],
        fields: &[&["pc"], &["reason"]],
        events: &["kvm_enter", "kvm_reenter", "kvm_out"],
        texts: &["]PC: 0x", "] PC: 0x", "pc="],
        reasons: &[],
    },
];

/// By `uname -m`. `None` for x86, arm64 and unknown ones.
pub(super) fn of_machine(machine: &str) -> Option<&'static str> {
    name(|a| a.machines.iter().any(|start| machine.starts_with(start)))
}

/// By the name of a tracepoint of KVM.
pub(super) fn of_event(event: &[u8]) -> Option<&'static str> {
    name(|a| {
        a.events.iter().any(|known| match known.ends_with('_') {
            true => event.starts_with(known.as_bytes()),
            false => event == known.as_bytes(),
        })
    })
}

/// By the fields of `kvm_exit`.
pub(super) fn of_exit_fields<'a>(
    fields: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'static str> {
    let has = |wanted: &&str| fields.clone().any(|field| field == *wanted);
    name(|a| a.fields.iter().any(|list| list.iter().all(has)))
}

/// By the text of `kvm_exit`.
pub(super) fn of_exit_text(text: &[u8]) -> Option<&'static str> {
    name(|a| a.texts.iter().any(|part| find(text, part.as_bytes()).is_some()))
}

/// By the name of an exit in a table of `perf kvm stat`.
pub(super) fn of_reason(reason: &str) -> Option<&'static str> {
    name(|a| a.reasons.contains(&reason))
}

fn name(is: impl Fn(&UnreadArchitecture) -> bool) -> Option<&'static str> {
    ARCHITECTURES.iter().find(|a| is(a)).map(|a| a.name)
}

/// The error for a recording of this architecture, which shows at byte `offset`.
pub(super) fn refuse(name: &str, offset: u64) -> Error {
    Error::Unsupported {
        offset,
        item: "architecture",
        problem: format!(
            "the recording is of KVM on {name}, whose exits are not supported; recordings of x86 (Intel VMX, AMD SVM) and arm64 are read"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_of_one_architecture() {
        let of = |reason| of_reason(reason).unwrap_or_default();
        assert_eq!(of("STORE_GUEST_PAGE_FAULT"), "RISC-V");
        assert_eq!(of("Privilege Error"), "LoongArch");
        assert_eq!(of("Wait state"), "s390");
        assert_eq!(of("H_DATA_STORAGE"), "PowerPC");
        for reason in ["EPT_VIOLATION", "npf", "DABT_LOW", "EXTERNAL_INTERRUPT", ""] {
            assert_eq!(of_reason(reason), None, "{reason}");
        }
    }

    /// Each recording of all of x86's KVM events has it before Linux 5.14.
    #[test]
    fn an_event_of_x86_that_begins_as_one_of_mips() {
        for event in ["kvm_enter_smm", "kvm_exit", "kvm_entry", "kvm_outside", "kvm_hwreset"] {
            assert_eq!(of_event(event.as_bytes()), None, "{event}");
        }
        for (event, expected) in [
            ("kvm_enter", "MIPS or LoongArch"),
            ("kvm_out", "MIPS or LoongArch"),
            ("kvm_hwr", "MIPS"),
            ("kvm_booke206_ref_release", "PowerPC"),
            ("kvm_booke_queue_irqprio", "PowerPC"),
            ("kvm_exit_idle", "LoongArch"),
        ] {
            assert_eq!(of_event(event.as_bytes()), Some(expected), "{event}");
        }
    }

    #[test]
    fn machines() {
        for (machine, expected) in [
            ("x86_64", None),
            ("i686", None),
            ("", None),
            ("aarch64", None),
            ("armv7l", Some("32-bit Arm (or arm64, by an old kernel)")),
            ("riscv64", Some("RISC-V")),
            ("s390x", Some("s390")),
            ("ppc64le", Some("PowerPC")),
            ("mips64", Some("MIPS")),
            ("loongarch64", Some("LoongArch")),
        ] {
            assert_eq!(of_machine(machine), expected, "{machine}");
        }
    }

    /// What each kernel prints, by its print format.
    #[test]
    fn texts() {
        for (text, expected) in [
            (
                &b"exit_reason=36 vcpu_pc=0xffff8000"[..],
                Some("32-bit Arm (or arm64, by an old kernel)"),
            ),
            (b"SEPC:0x80200000, SCAUSE:0x15, STVAL:0x0, HTVAL:0x0, HTINST:0x0", Some("RISC-V")),
            (
                b"exit=DATA_STORAGE | pc=0xc000 | msr=0x80 | dar=0x0 | srr1=0x0 | last_inst=0x0",
                Some("PowerPC"),
            ),
            (b"[TLB Miss (LD)]PC: 0x80001000", Some("MIPS or LoongArch")),
            (b"vcpu 0 [GPSI] PC: 0x90001000", Some("MIPS or LoongArch")),
            (b"reason EXIT_NPF rip 0xfff0 info 14 0", None),
            (b"vcpu 0 reason EPT_VIOLATION rip 0xfff0 info1 0x184", None),
        ] {
            assert_eq!(of_exit_text(text), expected, "{}", text.escape_ascii());
        }
    }
}
