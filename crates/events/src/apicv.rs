//! What inhibits APICv and AVIC, by the numbers that KVM's tracepoint has for it.

use crate::words::words;

words! {
    /// A reason of KVM's `enum kvm_apicv_inhibit`, by the words that newer kernels print.
    pub enum ApicvInhibit {
        /// A parameter of the module, or the processor lacks it.
        Disabled = "DISABLED",
        /// The guest uses AutoEOI of Hyper-V's SynIC.
        Hyperv = "HYPERV",
        /// The VMM emulates the APIC.
        Absent = "ABSENT",
        /// A debugger of the VMM blocks interrupts.
        BlockIrq = "BLOCKIRQ",
        /// vCPUs share an APIC id.
        PhysicalIdAliased = "PHYSICAL_ID_ALIASED",
        /// The guest changed an APIC id.
        ApicIdModified = "APIC_ID_MODIFIED",
        /// The guest moved the APIC's page.
        ApicBaseModified = "APIC_BASE_MODIFIED",
        /// AVIC: the vCPU runs a nested guest.
        Nested = "NESTED",
        /// AVIC: KVM waits until the guest takes interrupts.
        IrqWindow = "IRQWIN",
        /// AVIC: KVM's PIT reinjects ticks that were lost.
        PitReinject = "PIT_REINJ",
        /// AVIC: the guest has x2APIC.
        X2apic = "X2APIC",
        /// AVIC: the guest's memory is encrypted.
        Sev = "SEV",
        /// AVIC: vCPUs share a logical APIC id.
        LogicalIdAliased = "LOGICAL_ID_ALIASED",
        /// AVIC: a vCPU's APIC id is larger than AVIC has.
        PhysicalIdTooBig = "PHYSICAL_ID_TOO_BIG",
    }
}

use ApicvInhibit as A;

/// The reasons by number, and the first version of Linux whose arch/x86/include/asm/kvm_host.h has this order. Newer kernels append.
const ORDERS: [((u32, u32), &[ApicvInhibit]); 3] = [
    (
        (5, 18),
        &[
            A::Disabled,
            A::Hyperv,
            A::Nested,
            A::IrqWindow,
            A::PitReinject,
            A::X2apic,
            A::BlockIrq,
            A::Absent,
            A::Sev,
        ],
    ),
    (
        (6, 0),
        &[
            A::Disabled,
            A::Hyperv,
            A::Absent,
            A::BlockIrq,
            A::ApicIdModified,
            A::ApicBaseModified,
            A::Nested,
            A::IrqWindow,
            A::PitReinject,
            A::Sev,
        ],
    ),
    (
        (6, 3),
        &[
            A::Disabled,
            A::Hyperv,
            A::Absent,
            A::BlockIrq,
            A::PhysicalIdAliased,
            A::ApicIdModified,
            A::ApicBaseModified,
            A::Nested,
            A::IrqWindow,
            A::PitReinject,
            A::Sev,
            A::LogicalIdAliased,
            A::PhysicalIdTooBig,
        ],
    ),
];

/// Added to a number: the kernel prints names, so it numbers as Linux 6.3 does.
pub const NAMED: u32 = 1 << 16;

impl ApicvInhibit {
    /// The reason of this number in a kernel of this release; without a release, if all kernels agree.
    pub fn of(number: u64, release: &str) -> Option<ApicvInhibit> {
        let at = |order: &[ApicvInhibit]| order.get(usize::try_from(number).ok()?).copied();
        if number & u64::from(NAMED) != 0 {
            return ApicvInhibit::of(number & !u64::from(NAMED), "6.3");
        }
        let Some(version) = version(release) else {
            let mut all = ORDERS.iter().map(|(_, order)| at(order));
            let first = all.next()?;
            return first.filter(|_| all.all(|other| other == first));
        };
        let order = ORDERS.iter().rev().find(|(first, _)| version >= *first)?;
        at(order.1)
    }
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    numbers.next()?.ok().zip(numbers.next()?.ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `enum kvm_apicv_inhibit` of Linux 5.18, 6.1.192 and 6.15.
    #[test]
    fn numbers_follow_the_kernel() {
        for (number, release, expected) in [
            (0, "", Some(A::Disabled)),
            (1, "", Some(A::Hyperv)),
            (2, "", None),
            (8, "5.19.0", Some(A::Sev)),
            (8, "6.1.0-56-amd64", Some(A::PitReinject)),
            (9, "6.1.0-56-amd64", Some(A::Sev)),
            (9, "6.12.41+deb13-amd64", Some(A::PitReinject)),
            (2, "5.15.0", None),
            (9 | u64::from(NAMED), "", Some(A::PitReinject)),
            (13, "7.3.0", None),
            (u64::MAX, "7.3.0", None),
        ] {
            assert_eq!(ApicvInhibit::of(number, release), expected, "{number} {release}");
        }
    }
}
