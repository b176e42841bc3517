//! Numbers of the paravirtual hypercalls that Linux and Windows guests make.
//!
//! KVM's own are in Linux `include/uapi/linux/kvm_para.h` (`KVM_HC_*`), Hyper-V's in the Hypervisor
//! Top-Level Functional Specification, appendix A (Linux `hyperv-tlfs.h`, `HVCALL_*`).
//! Xen's are left as numbers.

use super::table;

/// Sends IPIs to a set of vCPUs.
pub(crate) const KVM_SEND_IPI: u64 = 10;
/// Sends IPIs to up to 64 vCPUs.
pub(crate) const HYPERV_SEND_IPI: u64 = 0x000b;
/// Sends IPIs to a sparse set of vCPUs.
pub(crate) const HYPERV_SEND_IPI_EX: u64 = 0x0015;

/// Makes memory private or shared.
pub(crate) const KVM_MAP_GPA_RANGE: u64 = 12;

/// KVM's.
const KVM: &[(u64, &str)] = &[
    (1, "KVM_HC_VAPIC_POLL_IRQ"),
    (2, "KVM_HC_MMU_OP"),
    (3, "KVM_HC_FEATURES"),
    (4, "KVM_HC_PPC_MAP_MAGIC_PAGE"),
    (5, "KVM_HC_KICK_CPU"),
    (6, "KVM_HC_MIPS_GET_CLOCK_FREQ"),
    (7, "KVM_HC_MIPS_EXIT_VM"),
    (8, "KVM_HC_MIPS_CONSOLE_OUTPUT"),
    (9, "KVM_HC_CLOCK_PAIRING"),
    (KVM_SEND_IPI, "KVM_HC_SEND_IPI"),
    (11, "KVM_HC_SCHED_YIELD"),
    (KVM_MAP_GPA_RANGE, "KVM_HC_MAP_GPA_RANGE"),
];

/// Hyper-V's, by call code.
const HYPERV: &[(u64, &str)] = &[
    (0x0002, "HVCALL_FLUSH_VIRTUAL_ADDRESS_SPACE"),
    (0x0003, "HVCALL_FLUSH_VIRTUAL_ADDRESS_LIST"),
    (0x0008, "HVCALL_NOTIFY_LONG_SPIN_WAIT"),
    (HYPERV_SEND_IPI, "HVCALL_SEND_IPI"),
    (0x0013, "HVCALL_FLUSH_VIRTUAL_ADDRESS_SPACE_EX"),
    (0x0014, "HVCALL_FLUSH_VIRTUAL_ADDRESS_LIST_EX"),
    (HYPERV_SEND_IPI_EX, "HVCALL_SEND_IPI_EX"),
    (0x005c, "HVCALL_POST_MESSAGE"),
    (0x005d, "HVCALL_SIGNAL_EVENT"),
    (0x0069, "HVCALL_POST_DEBUG_DATA"),
    (0x006a, "HVCALL_RETRIEVE_DEBUG_DATA"),
    (0x006b, "HVCALL_RESET_DEBUG_SESSION"),
];

/// The name of a KVM hypercall.
pub(crate) fn kvm_name(number: u64) -> Option<&'static str> {
    table::name_of(KVM, number)
}

/// The name of a Hyper-V hypercall.
pub(crate) fn hyperv_name(code: u64) -> Option<&'static str> {
    table::name_of(HYPERV, code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_one_to_one() {
        table::check::one_to_one(KVM);
        table::check::one_to_one(HYPERV);
    }

    /// Linux's own header, where the machine has it.
    #[test]
    fn kvm_matches_the_system_header() {
        let path = "/usr/include/linux/kvm_para.h";
        let Ok(header) = std::fs::read_to_string(path) else {
            return vmtax_skipped::package("linux-libc-dev");
        };
        let mut seen = 0;
        for line in header.lines() {
            let mut words = line.split_whitespace();
            let (Some("#define"), Some(name), Some(number)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            if let (true, Ok(number)) = (name.starts_with("KVM_HC_"), number.parse()) {
                assert_eq!(kvm_name(number), Some(name));
                seen += 1;
            }
        }
        assert_eq!(seen, KVM.len());
    }
}
