//! Published figures on nested KVM, stated once, and our own in the same terms.
//!
//! Source: "Where does the time go? Profiling nested KVM", KVM Forum 2017 (Linux 4.13,
//! Broadwell). It runs CPUID in a loop of four instructions for 30 s at L1 and at L2.
//!
//! Counts compare across hosts, emulated or not. Its times do not and are not here; its ratio of cycles at L2
//! to cycles at L1 may stand beside a ratio of instructions when both are called what they are.

use vmtax_events::{Detail, DetailKind, Isa, Level, Reason, svm, vmx};

use crate::nested::is_cpuid;
use crate::operations::CPUID;
use crate::{NestedRow, Operations, Ratio};

/// Where the figures come from, for people.
pub const SOURCE: &str =
    "Where does the time go? Profiling nested KVM, KVM Forum 2017 (Linux 4.13, Broadwell)";

/// Cycles of one CPUID at L2 over those at L1, KVM in KVM.
pub const CYCLES_L2_OVER_L1: f64 = 25.0;

/// The same with VMware's hypervisor as L0 and L1.
pub const CYCLES_L2_OVER_L1_VMWARE: f64 = 11.0;

/// Exits of L1 of one kind, for one CPUID exit of L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedExits {
    pub vmx: u32,
    /// What takes its place on SVM; `None` where nothing does: the VMCB is memory that L1 reads and writes.
    pub svm: Option<u32>,
    /// What the exits were about, as the source explains it.
    pub about: &'static str,
    pub count: u64,
}

/// Ancillary exits of one CPUID exit of L2.
pub const ANCILLARY: [PublishedExits; 5] = [
    PublishedExits {
        vmx: vmx::VMREAD,
        svm: None,
        about: "PML index, guest interrupt status: not in the shadow VMCS",
        count: 2,
    },
    PublishedExits {
        vmx: vmx::VMWRITE,
        svm: None,
        about: "preemption timer value: not in the shadow VMCS",
        count: 1,
    },
    PublishedExits { vmx: vmx::XSETBV, svm: Some(svm::XSETBV), about: "XCR0", count: 1 },
    PublishedExits { vmx: vmx::MSR_READ, svm: Some(svm::MSR), about: "IA32_DEBUGCTL", count: 1 },
    PublishedExits {
        vmx: vmx::VMRESUME,
        svm: Some(svm::VMRUN),
        about: "entering L2 again: the minimum",
        count: 1,
    },
];

/// The published table with another recording's figures beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedComparison {
    /// Whose reasons the recording has.
    pub isa: Isa,
    /// First the published kinds, then what the recording has besides.
    pub rows: Vec<ComparisonRow>,
    /// All ancillary exits for one exit of L2.
    pub total: Ratio,
    /// Instructions of one CPUID at L2 over those at L1, of a lab run.
    pub instructions_l2_over_l1: Option<f64>,
}

/// One kind of ancillary exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparisonRow {
    /// The published figure; `None` for a kind that the source does not have.
    pub published: Option<PublishedExits>,
    /// The reason in the recording; `None` for a kind that its processor does not have.
    pub reason: Option<Reason>,
    /// What the exits of the recording were about, most first.
    pub details: Vec<Detail>,
    /// Exits of L1 for exits of L2 that were forwarded to L1.
    pub here: Ratio,
}

impl PublishedComparison {
    /// From the nested table's row of CPUID and a lab run's operations. `None` without exits of L2 by CPUID
    /// that were forwarded to L1.
    pub fn new(nested: &[NestedRow], operations: &Operations) -> Option<PublishedComparison> {
        let row = nested.iter().find(|row| is_cpuid(row.reason) && row.to_l1 > 0)?;
        let isa = row.reason.isa;
        let kinds = ANCILLARY.map(|published| {
            let code = if isa == Isa::Svm { published.svm } else { Some(published.vmx) };
            (published, code.map(|code| Reason { isa, code, flags: 0 }))
        });
        let published_as = |reason: Reason, detail: Detail| {
            kinds.iter().position(|(_, r)| *r == Some(reason) && !is_write(detail))
        };
        let mut rows: Vec<ComparisonRow> = kinds
            .iter()
            .map(|&(published, reason)| ComparisonRow {
                published: Some(published),
                reason,
                details: Vec::new(),
                here: Ratio { part: 0, whole: row.to_l1 },
            })
            .collect();
        let mut total = 0u64;
        for ancillary in &row.ancillary {
            let (reason, detail) = (ancillary.reason, ancillary.detail);
            let at = published_as(reason, detail).or_else(|| {
                // A read and a write of an MSR are two kinds, though SVM has one reason for both.
                let same = |r: &ComparisonRow| {
                    r.published.is_none()
                        && r.reason == Some(reason)
                        && r.details.iter().all(|d| is_write(*d) == is_write(detail))
                };
                rows.iter().position(same)
            });
            let at = at.unwrap_or_else(|| {
                rows.push(ComparisonRow {
                    published: None,
                    reason: Some(reason),
                    details: Vec::new(),
                    here: Ratio { part: 0, whole: row.to_l1 },
                });
                rows.len() - 1
            });
            let count = ancillary.tally.count;
            total = total.saturating_add(count);
            rows[at].here.part = rows[at].here.part.saturating_add(count);
            if detail != Detail::NONE {
                rows[at].details.push(detail);
            }
        }
        let ratio = operations
            .rows
            .iter()
            .find(|row| row.name == CPUID && row.level == Level::L2)
            .and_then(|row| row.l2_over_l1);
        Some(PublishedComparison {
            isa,
            rows,
            total: Ratio { part: total, whole: row.to_l1 },
            instructions_l2_over_l1: ratio,
        })
    }
}

fn is_write(detail: Detail) -> bool {
    detail.kind == DetailKind::MsrWrite
}

#[cfg(test)]
mod tests {
    use vmtax_events::Tally;

    use super::*;
    use crate::Ancillary;

    fn row(isa: Isa, reason: u32, to_l1: u64, kinds: &[(u32, Detail, u64)]) -> NestedRow {
        let ancillary = kinds.iter().map(|&(code, detail, count)| {
            let mut tally = Tally::default();
            tally.add_untimed(count);
            Ancillary { reason: Reason { isa, code, flags: 0 }, detail, tally }
        });
        NestedRow {
            reason: Reason { isa, code: reason, flags: 0 },
            l2: Tally::default(),
            to_l1,
            ancillary: ancillary.collect(),
        }
    }

    /// (published count, reason's name, here) of every row.
    fn shown(comparison: &PublishedComparison) -> Vec<(Option<u64>, String, u64)> {
        let name = |r: &ComparisonRow| r.reason.map_or("-".to_owned(), |r| r.name().into_owned());
        let rows = comparison.rows.iter();
        rows.map(|r| (r.published.map(|p| p.count), name(r), r.here.part)).collect()
    }

    #[test]
    fn vmx_kinds_stand_beside_the_published_ones() {
        let debugctl = Detail::new(DetailKind::MsrRead, 0x1d9);
        let field = |value| Detail::new(DetailKind::VmcsField, value);
        let kinds = [
            (vmx::VMREAD, field(0x681e), 200),
            (vmx::VMREAD, field(0x4402), 100),
            (vmx::MSR_READ, debugctl, 100),
            (vmx::VMRESUME, Detail::NONE, 100),
            (vmx::MSR_WRITE, Detail::new(DetailKind::MsrWrite, 0x6e0), 3),
        ];
        let nested = [row(Isa::Vmx, vmx::CPUID, 100, &kinds)];
        let found = PublishedComparison::new(&nested, &Operations::default()).unwrap();
        let expected = [
            (Some(2), "VMREAD", 300),
            (Some(1), "VMWRITE", 0),
            (Some(1), "XSETBV", 0),
            (Some(1), "MSR_READ", 100),
            (Some(1), "VMRESUME", 100),
            (None, "MSR_WRITE", 3),
        ];
        assert_eq!(shown(&found), expected.map(|(p, name, n)| (p, name.to_owned(), n)));
        assert_eq!(found.rows[0].details, [field(0x681e), field(0x4402)]);
        assert_eq!(
            (found.total, found.rows[0].here.exact()),
            (Ratio { part: 503, whole: 100 }, Some(3))
        );
        assert_eq!(found.instructions_l2_over_l1, None);
    }

    #[test]
    fn svm_kinds_take_the_place_of_vmx_ones_where_there_are_such() {
        let kinds = [
            (svm::VMLOAD, Detail::NONE, 20),
            (svm::MSR, Detail::new(DetailKind::MsrRead, 0x1d9), 10),
            (svm::MSR, Detail::new(DetailKind::MsrWrite, 0xc000_0101), 4),
            (svm::MSR, Detail::new(DetailKind::MsrWrite, 0xc000_0102), 4),
            (svm::VMRUN, Detail::NONE, 10),
        ];
        let nested = [row(Isa::Svm, svm::CPUID, 10, &kinds)];
        let found = PublishedComparison::new(&nested, &Operations::default()).unwrap();
        let expected = [
            (Some(2), "-", 0),
            (Some(1), "-", 0),
            (Some(1), "xsetbv", 0),
            (Some(1), "msr", 10),
            (Some(1), "vmrun", 10),
            (None, "vmload", 20),
            (None, "msr", 8),
        ];
        assert_eq!(shown(&found), expected.map(|(p, name, n)| (p, name.to_owned(), n)));
    }

    #[test]
    fn without_cpuid_exits_there_is_nothing_to_compare() {
        for nested in
            [vec![], vec![row(Isa::Svm, svm::HLT, 5, &[])], vec![row(Isa::Vmx, vmx::CPUID, 0, &[])]]
        {
            assert_eq!(PublishedComparison::new(&nested, &Operations::default()), None);
        }
    }
}
