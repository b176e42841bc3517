//! Whether a host was emulated, where its recording has no name of a processor that says so.
//!
//! Exits that the kernel answers by itself take 1 to 3 us on hardware, tracing included, and so do those of L2 that it hands to L1.
//! Under QEMU's TCG or Bochs they take 9 us or more (captures/amd-*, captures/intel-*). On a host that is a VM itself CPUID may take
//! as long, and where every such exit does, the two cannot be told apart.

use std::collections::BTreeMap;

use vmtax_events::{Cause, ExitKey, Isa, Outcome, Tally, svm, vmx};

use crate::cause::cause_of;

/// Fewer exits may be slow by chance.
const ENOUGH: u64 = 50;
/// The last bucket of durations below 8.2 us. The first is of no time at all, which an exit only seems to take where a clock is coarse.
const FAST: usize = 13;
/// At most this part of an emulated host's exits is fast.
const FAST_PART: u64 = 20;

/// What is said of a host whose exits are too slow for hardware.
const SLOW: &str = "an emulator or a nested host, by the speed of its exits";

/// Exits that KVM answers without waiting for anything.
fn is_cheap(key: &ExitKey) -> bool {
    let by_kernel = matches!(key.outcome, Outcome::Kernel | Outcome::Unknown | Outcome::L1);
    by_kernel
        && matches!(
            cause_of(key),
            Cause::Cpuid
                | Cause::Msr
                | Cause::TimerArm
                | Cause::Apic
                | Cause::Ipi
                | Cause::IrqWindow
                | Cause::NestedEntry
        )
}

/// Exits of TDs and of SEV-ES and SEV-SNP guests, which QEMU's TCG and Bochs cannot run.
fn is_confidential(key: &ExitKey) -> bool {
    match key.reason.isa {
        Isa::Vmx => key.reason.code == vmx::TDCALL,
        Isa::Svm => key.reason.code == svm::VMGEXIT,
        Isa::Arm | Isa::Unknown => false,
    }
}

/// The emulator that the speed of exits shows.
pub(crate) fn by_speed(exits: &BTreeMap<ExitKey, Tally>) -> Option<String> {
    if exits.keys().any(is_confidential) {
        return None;
    }
    let (mut all, mut fast) = (0u64, 0u64);
    for (_, tally) in exits.iter().filter(|(key, _)| is_cheap(key)) {
        let octaves = tally.durations.octaves();
        let timed = octaves.iter().skip(1);
        all = timed.clone().fold(all, |sum, n| sum.saturating_add(*n));
        fast = timed.take(FAST).fold(fast, |sum, n| sum.saturating_add(*n));
    }
    (all >= ENOUGH && fast <= all / FAST_PART).then(|| SLOW.to_owned())
}

#[cfg(test)]
mod tests {
    use vmtax_events::Reason;

    use super::*;

    fn exits(code: u32, durations: &[u64]) -> BTreeMap<ExitKey, Tally> {
        let key = ExitKey::of(1, Reason { isa: Isa::Svm, code, flags: 0 });
        let mut tally = Tally::default();
        durations.iter().for_each(|ns| tally.add(*ns));
        BTreeMap::from([(key, tally)])
    }

    #[test]
    fn only_many_slow_exits_that_should_be_fast_show_an_emulator() {
        let coarse = [vec![0; 50], vec![9_000; 50]].concat();
        for durations in [vec![9_000; 50], coarse] {
            assert_eq!(by_speed(&exits(svm::CPUID, &durations)).as_deref(), Some(SLOW));
        }
        for (code, durations) in [
            (svm::CPUID, vec![9_000; 49]),
            (svm::CPUID, vec![8_000; 100]),
            (svm::CPUID, [vec![2_000; 10], vec![40_000; 90]].concat()),
            // Pages are cleared, and devices are slow.
            (svm::NPF, vec![150_000; 100]),
            (svm::IOIO, vec![20_000; 100]),
        ] {
            assert_eq!(by_speed(&exits(code, &durations)), None, "{code:#x}");
        }
    }
}
