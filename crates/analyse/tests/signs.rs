//! Signs in recordings of known exits: how many there have to be, and of what.

use std::collections::BTreeMap;

use vmtax_analyse::explain::Explanation;
use vmtax_analyse::{Filter, LedgerBuilder, Side};
use vmtax_events::{
    Coverage, Detail, ExitKey, ExitRow, Isa, Level, Losses, Outcome, Reason, Recording, Tally, vmx,
};

/// The signs of a recording with so many of these exits.
fn signs(exits: &[(ExitKey, u64)]) -> Vec<&'static str> {
    let mut builder = LedgerBuilder::new(Filter::default(), 1_000_000_000);
    for (key, count) in exits {
        let mut tally = Tally::default();
        (0..*count).for_each(|_| tally.add(1_000));
        builder.exit(&ExitRow { interval_start_ns: 0, key: *key, tally });
    }
    let coverage = Coverage { exits: true, ..Coverage::default() };
    let recording = Recording { coverage, ..Recording::default() };
    let ledger = builder.finish(recording, Losses::default(), true);
    let labels = BTreeMap::new();
    let side = Side { source: "it", ledger: &ledger, labels: &labels, seconds: None };
    Explanation::new(&side, None).findings.iter().map(|finding| finding.id).collect()
}

#[test]
fn accesses_of_the_vmcs_that_leave_l1() {
    let reason = |code| Reason { isa: Isa::Vmx, code, flags: 0 };
    let key = |code, level, outcome, ancillary_of| ExitKey {
        vm: 1,
        vcpu: 0,
        level,
        reason: reason(code),
        detail: Detail::NONE,
        outcome,
        ancillary_of,
    };
    let of_cpuid = Some(reason(vmx::CPUID));
    let handled = |count| (key(vmx::CPUID, Level::L2, Outcome::L1, None), count);
    let reads = |count| (key(vmx::VMREAD, Level::L1, Outcome::Kernel, of_cpuid), count);
    let writes = |count| (key(vmx::VMWRITE, Level::L1, Outcome::Kernel, of_cpuid), count);
    // Emulated hosts record five operations: seven reads and a write each, without shadowing.
    assert_eq!(signs(&[handled(5), reads(35), writes(5)]), ["no-vmcs-shadowing"]);
    assert_eq!(signs(&[handled(1000), reads(7000)]), ["no-vmcs-shadowing"]);
    // One each is a field that is not shadowed.
    assert_eq!(signs(&[handled(1000), reads(1000)]), [""; 0]);
    // Too few to say, and none that L1 handled.
    assert_eq!(signs(&[handled(2), reads(14)]), [""; 0]);
    assert_eq!(signs(&[reads(7000)]), [""; 0]);
    // Those of setting a VMCS up belong to no exit of L2.
    let set_up = (key(vmx::VMWRITE, Level::L1, Outcome::Kernel, None), 7000);
    assert_eq!(signs(&[handled(5), set_up]), [""; 0]);
}
