//! Operations whose exits are known exactly, for the KVM of a computer that is not emulated.

use vmtax_events::arm::registers;
use vmtax_events::{Detail, DetailKind, Isa};
use vmtax_guest::layout::{self, arm};
use vmtax_guest::order::Operation;

use crate::Error;
use crate::suite::{Definition, EMPTY, operation};

/// Batches of an operation, and operations in a batch.
const BATCHES: u32 = 20;
const COUNT: u32 = 200;
/// Port writes of a payload beside its operations: three marks of each batch, and the end.
const MARKS: u64 = 3 * BATCHES as u64 + 1;
/// The same on arm64, where they are stores, and the time of a batch is one too.
const ARM_MARKS: u64 = 4 * BATCHES as u64 + 1;

/// An operation of known exits.
#[derive(Clone, Debug)]
pub struct Known {
    pub operation: Operation,
    /// What the guest does, for people.
    pub summary: &'static str,
    /// How its exits are told apart.
    pub by: KnownBy,
    /// KVM's statistic that counts them, and what it counts of other things in this operation's VM.
    pub statistic: Option<(&'static str, u64)>,
}

/// How exits are told apart from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    Reason(&'static str),
    Access(Detail),
}

impl Known {
    /// How many exits it takes in one run.
    pub fn exits(&self) -> u64 {
        u64::from(BATCHES) * u64::from(COUNT)
    }
}

/// Operations of known exits, each for a VM of its own.
///
/// # Errors
/// When a payload does not assemble: a defect.
pub fn known(isa: Isa) -> Result<Vec<Known>, Error> {
    let table = match isa {
        Isa::Arm => on_arm(),
        Isa::Svm | Isa::Vmx | Isa::Unknown => on_x86(isa),
    };
    let one = |(number, (name, by, statistic)): (u16, (&str, KnownBy, _))| {
        let definition = named(name);
        let ordered = definition.order(isa, number, (1, false), BATCHES)?;
        let operation = Operation { count: COUNT, shares: false, ..ordered.operation };
        Ok(Known { operation, summary: definition.summary, by, statistic })
    };
    (0..).zip(table).map(one).collect()
}

/// Name of an operation, how its exits are told apart, and KVM's statistic of them.
type KnownRow = (&'static str, KnownBy, Option<(&'static str, u64)>);

fn on_x86(isa: Isa) -> [KnownRow; 5] {
    let port = Detail::new(DetailKind::PortOut, layout::DEVICE_PORT.into());
    let device = Detail::new(DetailKind::MmioWrite, layout::DEVICE);
    let reason = |svm, vmx| KnownBy::Reason(if isa == Isa::Svm { svm } else { vmx });
    [
        ("cpuid", reason("cpuid", "CPUID"), None),
        ("hypercall", reason("hypercall", "VMCALL"), Some(("hypercalls", 0))),
        ("rdmsr", reason("msr", "MSR_READ"), None),
        ("pio-user", KnownBy::Access(port), Some(("io_exits", MARKS))),
        ("mmio-user", KnownBy::Access(device), Some(("mmio_exits", 0))),
    ]
}

/// Statistics of Linux `arch/arm64/kvm/guest.c`, `kvm_vcpu_stats_desc`.
fn on_arm() -> [KnownRow; 5] {
    let register = |kind, register| KnownBy::Access(Detail::new(kind, register));
    let device = Detail::new(DetailKind::MmioWrite, arm::address(layout::DEVICE_PORT));
    let gic = Detail::new(DetailKind::MmioRead, arm::DISTRIBUTOR + 8);
    [
        ("hvc-psci", KnownBy::Reason("HVC64"), Some(("hvc_exit_stat", 0))),
        ("id-register", register(DetailKind::SysregRead, registers::id(3, 0, 0, 7, 0)), None),
        ("oslar", register(DetailKind::SysregWrite, registers::id(2, 0, 1, 0, 4)), None),
        ("mmio-write", KnownBy::Access(device), Some(("mmio_exit_user", ARM_MARKS))),
        ("gic-read", KnownBy::Access(gic), None),
    ]
}

/// An operation of the suites; a test holds that each is there.
fn named(name: &str) -> &'static Definition {
    operation(name).unwrap_or(&EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_is_there_and_takes_one_exit_a_time() {
        for isa in [Isa::Svm, Isa::Vmx, Isa::Arm] {
            for one in known(isa).unwrap() {
                let least = named(&one.operation.name).least_exits(isa, 1, true).unwrap();
                assert_eq!(least.exits, u64::from(named(&one.operation.name).count));
                if let KnownBy::Reason(reason) = one.by {
                    assert_eq!(least.reason, Some(reason));
                }
            }
        }
    }
}
