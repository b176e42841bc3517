//! OpenMetrics: labels are bounded whatever the ledger holds, and nothing is lost by it.

use std::collections::BTreeSet;

use vmtax_analyse::{Filter, LedgerBuilder};
use vmtax_events::{
    Detail, ExitKey, ExitRow, Isa, Level, Losses, Outcome, Reason, Recording, Tally, Vm,
};
use vmtax_report::openmetrics::{Dialect, MOST_REASONS, MOST_VMS, write};

#[test]
fn labels_are_bounded() {
    let (vms, reasons) = (MOST_VMS as u32 + 500, MOST_REASONS as u32 + 50);
    let mut builder = LedgerBuilder::new(Filter::default(), 1_000_000_000);
    let mut tally = Tally::default();
    tally.add(1000);
    for vm in 0..vms {
        for code in [vm % reasons, 0] {
            let key = ExitKey {
                vm,
                vcpu: 0,
                level: Level::L1,
                reason: Reason { isa: Isa::Vmx, code, flags: 0 },
                detail: Detail::NONE,
                outcome: Outcome::Unknown,
                ancillary_of: None,
            };
            builder.exit(&ExitRow { interval_start_ns: 0, key, tally: tally.clone() });
        }
    }
    let named = |id| Vm { id, name: "one\"\\\n\u{202e}two".to_owned(), inferred: false };
    let recording = Recording { vms: (0..vms).map(named).collect(), ..Recording::default() };
    let ledger = builder.finish(recording, Losses::default(), true);
    let mut out = Vec::new();
    write(&ledger, "1", Dialect::OpenMetrics, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let exits: Vec<&str> =
        text.lines().filter(|line| line.starts_with("vmtax_exits_total")).collect();
    let label = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!(",{name}=\"")).unwrap();
        rest.split_once('"').unwrap().0.to_owned()
    };
    let distinct =
        |name: &str| exits.iter().map(|line| label(line, name)).collect::<BTreeSet<_>>().len();
    assert_eq!(distinct("vm_id"), MOST_VMS + 1);
    assert_eq!(distinct("reason"), MOST_REASONS + 1);
    let all: u64 =
        exits.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(all, u64::from(vms) * 2);
    assert!(
        exits.iter().any(|line| line.contains(r#"vm="one\"\\\\u{a}\\u{202e}two""#)),
        "{}",
        exits[0]
    );
    assert!(text.ends_with("# EOF\n"));
}
