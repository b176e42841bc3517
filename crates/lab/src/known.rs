//! Operations whose exits are known exactly, for the KVM of a computer that is not emulated.

use vmtax_events::{Detail, DetailKind, Isa};
use vmtax_guest::layout;
use vmtax_guest::order::Operation;

use crate::Error;
use crate::suite::{Definition, EMPTY, operation};

/// Batches of an operation, and operations in a batch.
const BATCHES: u32 = 20;
const COUNT: u32 = 200;
/// Port writes of a payload beside its operations: three marks of each batch, and the end.
const MARKS: u64 = 3 * BATCHES as u64 + 1;

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
    let port = Detail::new(DetailKind::PortOut, layout::DEVICE_PORT.into());
    let device = Detail::new(DetailKind::MmioWrite, layout::DEVICE);
    let reason = |svm, vmx| KnownBy::Reason(if isa == Isa::Svm { svm } else { vmx });
    let table = [
        ("cpuid", reason("cpuid", "CPUID"), None),
        ("hypercall", reason("hypercall", "VMCALL"), Some(("hypercalls", 0))),
        ("rdmsr", reason("msr", "MSR_READ"), None),
        ("pio-user", KnownBy::Access(port), Some(("io_exits", MARKS))),
        ("mmio-user", KnownBy::Access(device), Some(("mmio_exits", 0))),
    ];
    let one = |(number, (name, by, statistic)): (u16, (&str, KnownBy, _))| {
        let definition = named(name);
        let ordered = definition.order(isa, number, (1, false), BATCHES)?;
        let operation = Operation { count: COUNT, shares: false, ..ordered.operation };
        Ok(Known { operation, summary: definition.summary, by, statistic })
    };
    (0..).zip(table).map(one).collect()
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
        for isa in [Isa::Svm, Isa::Vmx] {
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
