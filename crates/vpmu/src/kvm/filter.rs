//! The filter of MSR accesses that exit to user space: those of the PMU, and those that the VMM wants.
//!
//! KVM has one filter and one mask of exit reasons for a VM. Setting one replaces the previous one, and neither can be read. So the VMM
//! passes its own filter, and both are set together.

use kvm_bindings::{
    KVM_CAP_PMU_CAPABILITY, KVM_CAP_X86_USER_SPACE_MSR, KVM_MAX_CPUID_ENTRIES,
    KVM_MSR_EXIT_REASON_FILTER, KVM_MSR_FILTER_MAX_RANGES, KVM_PMU_CAP_DISABLE, kvm_enable_cap,
};
use kvm_ioctls::{
    Kvm, MsrExitReason, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VmFd,
};

use super::{KvmError, failed};
use crate::model::PmuModel;
use crate::msr::DEBUG_CONTROL;

/// Options of a VM.
#[derive(Clone, Copy, Debug)]
pub struct VmOptions<'a> {
    /// The VMM knows that its guests read counters by RDMSR and not by RDPMC, which KVM never sends to a VMM. A Linux
    /// guest does so with the module in `guest-module`. Without this [`filter`] fails: such a guest's perf would fault, or
    /// read zeros.
    pub guests_read_by_rdmsr: bool,
    /// Default action of the VMM's own filter.
    pub default: MsrFilterDefaultAction,
    /// The VMM's own filter. The PMU's MSRs come to user space even if one of these ranges has them.
    pub ranges: &'a [MsrFilterRange<'a>],
    /// Further reasons for which an access exits to user space.
    pub exits: MsrExitReason,
}

impl Default for VmOptions<'_> {
    /// For a VMM without its own filter.
    fn default() -> Self {
        VmOptions {
            guests_read_by_rdmsr: false,
            default: MsrFilterDefaultAction::ALLOW,
            ranges: &[],
            exits: MsrExitReason::empty(),
        }
    }
}

/// Makes KVM forward accesses of a model's MSRs to user space, and switches its own PMU off. Call it before vCPUs are created, instead
/// of `KVM_X86_SET_MSR_FILTER` and `KVM_CAP_X86_USER_SPACE_MSR`; a VMM's own use of these goes into `options`. Exits of the VMM's own
/// filter are returned by [`super::VcpuPmu::read`].
///
/// # Errors
/// If guests are not known to read by RDMSR, if there are more ranges than KVM takes, or if KVM is too old.
pub fn filter(
    kvm: &Kvm,
    vm: &VmFd,
    model: &PmuModel,
    options: &VmOptions<'_>,
) -> Result<(), KvmError> {
    let all = compose(&ranges(model), options)?;
    let enable = |cap: u32, argument: u32| {
        let mut cap = kvm_enable_cap { cap, ..Default::default() };
        cap.args[0] = argument.into();
        vm.enable_cap(&cap)
    };
    if vm.check_extension_raw(KVM_CAP_PMU_CAPABILITY.into()) & KVM_PMU_CAP_DISABLE as i32 != 0 {
        enable(KVM_CAP_PMU_CAPABILITY, KVM_PMU_CAP_DISABLE)
            .map_err(failed("KVM_CAP_PMU_CAPABILITY"))?;
    } else if has_own_pmu(kvm)? {
        return Err(KvmError::OwnPmu);
    }
    enable(KVM_CAP_X86_USER_SPACE_MSR, KVM_MSR_EXIT_REASON_FILTER | options.exits.bits())
        .map_err(failed("KVM_CAP_X86_USER_SPACE_MSR"))?;
    vm.set_msr_filter(options.default, &all).map_err(failed("KVM_X86_SET_MSR_FILTER"))
}

/// Ranges that keep a model's MSRs from KVM.
fn ranges(model: &PmuModel) -> Vec<MsrFilterRange<'static>> {
    let mut rows = model.msrs();
    if model.has_global() {
        rows.push((DEBUG_CONTROL, 1));
    }
    // A bit that is clear keeps the access from KVM. The longest row is AMD's of 12.
    const DENY: [u8; 4] = [0; 4];
    let range = |&(base, msr_count): &(u32, u32)| MsrFilterRange {
        flags: MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE,
        base,
        msr_count,
        bitmap: &DENY,
    };
    rows.iter().map(range).collect()
}

/// Both filters combined. KVM uses the first range that has an MSR (arch/x86/kvm/x86.c, kvm_msr_allowed), so the PMU's
/// come first.
fn compose<'a>(
    pmu: &[MsrFilterRange<'a>],
    options: &VmOptions<'a>,
) -> Result<Vec<MsrFilterRange<'a>>, KvmError> {
    if !options.guests_read_by_rdmsr {
        return Err(KvmError::Rdpmc);
    }
    let all = [pmu, options.ranges].concat();
    match all.len() > KVM_MSR_FILTER_MAX_RANGES as usize {
        true => Err(KvmError::Ranges { pmu: pmu.len(), own: options.ranges.len() }),
        false => Ok(all),
    }
}

/// Whether KVM's own PMU is on. If it is disabled by a module parameter, KVM has no capability to switch it off either.
fn has_own_pmu(kvm: &Kvm) -> Result<bool, KvmError> {
    let cpuid = kvm
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(failed("KVM_GET_SUPPORTED_CPUID"))?;
    Ok(cpuid.as_slice().iter().any(|entry| match entry.function {
        0xa => entry.eax & 0xff != 0,
        0x8000_0001 => entry.ecx & 1 << 23 != 0,
        _ => false,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Amd, Intel};

    /// KVM's own rule.
    fn is_allowed(default: bool, ranges: &[MsrFilterRange<'_>], msr: u32) -> bool {
        let found =
            ranges.iter().find(|range| (range.base..range.base + range.msr_count).contains(&msr));
        found.map_or(default, |range| {
            let bit = (msr - range.base) as usize;
            range.bitmap[bit / 8] >> (bit % 8) & 1 != 0
        })
    }

    fn options<'a>(own: &'a [MsrFilterRange<'a>]) -> VmOptions<'a> {
        VmOptions { guests_read_by_rdmsr: true, ranges: own, ..VmOptions::default() }
    }

    #[test]
    fn a_vmms_own_filter_holds_for_all_but_the_pmus_msrs() {
        // It allows 0x180 to 0x1df but for 0x1a0, and denies what it does not name.
        let mut bitmap = [0xff; 12];
        bitmap[4] = 0xfe;
        let flags = MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE;
        let own = [MsrFilterRange { flags, base: 0x180, msr_count: 96, bitmap: &bitmap }];
        for model in [
            PmuModel::Intel(Intel::default()),
            PmuModel::Amd(Amd { counters: 6, perfmon_v2: true }),
        ] {
            let all = compose(&ranges(&model), &options(&own)).expect("few ranges");
            for msr in (0..0x1000).chain(0xc000_0000..0xc000_0400).chain(0xc001_0000..0xc001_0300) {
                let is_pmus = model
                    .msrs()
                    .iter()
                    .any(|(first, count)| (*first..first + count).contains(&msr))
                    || msr == DEBUG_CONTROL;
                let expected = !is_pmus && is_allowed(false, &own, msr);
                assert_eq!(is_allowed(false, &all, msr), expected, "{msr:#x}");
            }
        }
    }

    #[test]
    fn more_ranges_than_kvm_takes_are_refused() {
        let model = PmuModel::Intel(Intel::default());
        let pmu = ranges(&model);
        let one = MsrFilterRange {
            flags: MsrFilterRangeFlags::READ,
            base: 0x10,
            msr_count: 1,
            bitmap: &[0],
        };
        let room = KVM_MSR_FILTER_MAX_RANGES as usize - pmu.len();
        assert!(compose(&pmu, &options(&vec![one; room])).is_ok());
        let error = compose(&pmu, &options(&vec![one; room + 1])).expect_err("one too many");
        let error = error.to_string();
        assert!(error.contains(&format!("{} of the VMM are too many", room + 1)), "{error}");
    }

    #[test]
    fn guests_with_rdpmc_enabled_are_refused() {
        let error =
            compose(&[], &VmOptions::default()).expect_err("nothing is known of its guests");
        let error = error.to_string();
        assert!(error.contains("RDPMC") && error.contains("guest-module"), "{error}");
    }
}
