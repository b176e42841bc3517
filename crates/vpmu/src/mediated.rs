//! The costs of KVM's mediated PMU: which of a guest's accesses exit, and how many MSRs are read and written to save and load its
//! counters.
//!
//! It is off by default (the parameter `enable_mediated_pmu`). Sources: arch/x86/kvm/pmu.c of torvalds/linux at commit
//! 67f8bc848ee3, and vmx/pmu_intel.c of a merged kernel (raspberrypi/linux, commit 032d037c42c0), were read. Of svm/pmu.c
//! is_mediated_pmu_supported was read at torvalds/linux commit 02918f007792, and the other functions, with svm/svm.c's, as posted
//! to the mailing list; amd_mediated_pmu_load, amd_mediated_pmu_put, intel_mediated_pmu_load, intel_mediated_pmu_put and
//! svm_vcpu_run access the same MSRs under the same conditions in the machine code of a released kernel (Debian's 7.3.4).
//! Reads of counters are RDPMC there, not RDMSR; both count as reads here.
//!
//! | fact | place |
//! |---|---|
//! | Needs Intel's version 4 with writes of full width, or AMD's version 2 | vmx/pmu_intel.c, svm/pmu.c: is_mediated_pmu_supported |
//! | Counters, global status, control and overflow control, and RDPMC do not exit, if the guest has all counters of the host | vmx/vmx.c: vmx_recalc_pmu_msr_intercepts; svm/svm.c: svm_recalc_pmu_msr_intercepts; pmu.c: kvm_need_perf_global_ctrl_intercept, kvm_need_rdpmc_intercept |
//! | Event selects and fixed control exit, since KVM filters events | pmu.c: kvm_mediated_pmu_refresh_event_filter; in neither list above |
//! | Counters are loaded before and saved after the loop that enters the guest; only exits that KVM handles in that loop do without | x86.c: vcpu_enter_guest |
//! | Loading: global control and LVTPC are written; of each counter the value is read, and written if it differs, and the event select is written | pmu.c: kvm_mediated_pmu_load, kvm_pmu_load_guest_pmcs |
//! | Saving: each counter is read; what is not zero, counter or event select, is written to zero; LVTPC is written | pmu.c: kvm_mediated_pmu_put, kvm_pmu_put_guest_pmcs |
//! | Intel: status is read at both, set and cleared if it is not zero; fixed control is written, and cleared if it is not zero; global control is switched by the VMCS | vmx/pmu_intel.c: intel_mediated_pmu_load, intel_mediated_pmu_put |
//! | AMD: status is read at both, set, and cleared if it is not zero; global control is written at both, and read at each exit | svm/pmu.c: amd_mediated_pmu_load, amd_mediated_pmu_put; svm/svm.c: svm_vcpu_run |
//! | The host's events are switched off while the guest's counters are loaded. There must be none that counts guests: else the VM is refused (EBUSY); while it lives such an event is (EOPNOTSUPP) | kernel/events/core.c: perf_load_guest_context, perf_create_mediated_pmu, mediated_pmu_account_event |
//!
//! Places without a folder are in arch/x86/kvm.

use crate::event::Counter;
use crate::host::MsrAccesses;
use crate::model::PmuModel;
use crate::msr::MsrRegister;
use crate::state::GuestRegisters;

/// Whether an access of a register exits.
pub(crate) fn exits(register: MsrRegister) -> bool {
    match register {
        MsrRegister::Counter { .. }
        | MsrRegister::Status
        | MsrRegister::Control
        | MsrRegister::StatusClear => false,
        MsrRegister::Select(_)
        | MsrRegister::FixedControl
        | MsrRegister::Capabilities
        | MsrRegister::StatusSet
        | MsrRegister::InUse
        | MsrRegister::DebugControl => true,
    }
}

/// MSR accesses of a save and the following load. `counts`: whether a counter is nonzero, as those that count are.
pub(crate) fn world_switch(
    model: &PmuModel,
    registers: &GuestRegisters,
    counts: impl Fn(usize) -> bool,
) -> MsrAccesses {
    let (mut read, mut write) = (0, 0);
    for (slot, counter) in model.counters().iter().enumerate() {
        // To save it, and to see whether it has to be loaded.
        read += 2;
        // To zero and back.
        write += if counts(slot) { 2 } else { 0 };
        if let Counter::General(i) = counter {
            write += 1 + u64::from(registers.selects[usize::from(*i)] != 0);
        }
    }
    // LVTPC to the guest's and back, global control to zero before loading, status before loading and when saving.
    write += 3;
    read += 2;
    let status = u64::from(registers.global_status != 0);
    match model {
        PmuModel::Intel(_) => {
            write += 2 * status;
            write += 1 + u64::from(registers.fixed_control != 0);
        }
        PmuModel::Amd(_) => {
            read += 1;
            write += 1 + status;
            write += 2;
        }
    }
    MsrAccesses { reads: read, writes: write }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Amd, Intel};

    fn of(model: &PmuModel, change: impl Fn(&mut GuestRegisters)) -> MsrAccesses {
        let mut registers = GuestRegisters::reset(model);
        change(&mut registers);
        world_switch(model, &registers, |slot| registers.values[slot] != 0)
    }

    #[test]
    fn zero_counters_are_not_written() {
        let intel = PmuModel::Intel(Intel::default());
        // Idle: seven counters and the status read twice. LVTPC twice, global control, four event selects, fixed control.
        let idle = of(&intel, |_| {});
        assert_eq!(idle, MsrAccesses { reads: 16, writes: 8 });
        // Six of the seven counters are on: each is written twice, four event selects and fixed control once more.
        let six = of(&intel, |registers| {
            registers.values[..6].fill(1);
            registers.selects.fill(0x53_003c);
            registers.fixed_control = 0xbb;
        });
        assert_eq!(six, MsrAccesses { reads: 16, writes: 8 + 12 + 4 + 1 });
        let overflowed = of(&intel, |registers| registers.global_status = 1);
        assert_eq!(overflowed.writes, idle.writes + 2);
    }

    #[test]
    fn amd_switches_global_control_itself() {
        let amd = PmuModel::Amd(Amd { counters: 6, perfmon_v2: true });
        // Six counters and the status read twice, global control once. LVTPC twice, global control to zero, to the guest's
        // and to zero, six event selects, status set.
        assert_eq!(of(&amd, |_| {}), MsrAccesses { reads: 15, writes: 12 });
    }
}
