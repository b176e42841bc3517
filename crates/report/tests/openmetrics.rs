//! OpenMetrics: labels are bounded whatever the ledger holds, and nothing is lost by it.

use std::collections::BTreeSet;

use vmtax_analyse::{Filter, LedgerBuilder};
use vmtax_events::{
    Coverage, ExitKey, ExitRow, Isa, Losses, Outcome, PreemptedRow, Reason, Recording, Tally,
    TimeRow, Vm,
};
use vmtax_report::openmetrics::{MOST_REASONS, MOST_TAKERS, MOST_VMS, MetricsDialect, write};

#[test]
fn labels_are_bounded() {
    let (vms, reasons) = (MOST_VMS as u32 + 500, MOST_REASONS as u32 + 50);
    let mut builder = LedgerBuilder::new(Filter::default(), 1_000_000_000);
    let mut tally = Tally::default();
    tally.add(1000);
    for vm in 0..vms {
        for code in [vm % reasons, 0] {
            let key = ExitKey {
                outcome: Outcome::Unknown,
                ..ExitKey::of(vm, Reason { isa: Isa::Vmx, code, flags: 0 })
            };
            builder.exit(&ExitRow { interval_start_ns: 0, key, tally: tally.clone() });
        }
    }
    let named =
        |id| Vm { id, name: "one\"\\\n\u{202e}two".to_owned(), inferred: false, ..Vm::default() };
    let recording = Recording { vms: (0..vms).map(named).collect(), ..Recording::default() };
    let ledger = builder.finish(recording, Losses::default(), true);
    let mut out = Vec::new();
    write(&ledger, "1", MetricsDialect::OpenMetrics, &mut out).unwrap();
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

/// Threads that took processors: by kind, with a limit, and nothing is lost by it.
#[test]
fn takers_are_bounded() {
    let key = ExitKey::of(7, Reason { isa: Isa::Vmx, code: 1, flags: 0 });
    let mut builder = LedgerBuilder::new(Filter::default(), 1_000_000_000);
    let mut take = |by: String, by_vcpu| {
        let (interval_start_ns, count, time_ns) = (0, 1, 1_000_000_000);
        let by = by.into();
        builder.preempted(&PreemptedRow { interval_start_ns, key, by, by_vcpu, count, time_ns });
    };
    (0..8).for_each(|cpu| take(format!("kworker/{cpu}:1-mm"), None));
    (1..4).for_each(|vcpu| take(format!("CPU {vcpu}/KVM"), Some((7, vcpu))));
    (0..2).for_each(|vcpu| take(format!("CPU {vcpu}/KVM"), Some((8, vcpu))));
    (0..3 * MOST_TAKERS).for_each(|n| take(format!("job-{n:03}"), None));
    let time = TimeRow { vm: 7, wall_ns: 1, guest_ns: 1, ..TimeRow::default() };
    builder.time(&time);
    let coverage = Coverage { exits: true, sched: true, ..Coverage::default() };
    let recording = Recording { coverage, ..Recording::default() };
    let ledger = builder.finish(recording, Losses::default(), true);
    let mut out = Vec::new();
    write(&ledger, "1", MetricsDialect::OpenMetrics, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> =
        text.lines().filter(|line| line.starts_with("vmtax_preempted_by_seconds_total")).collect();
    for (by, seconds) in [("kworker", 8), ("vCPU of the same VM", 3), ("vCPU of another VM", 2)] {
        let line = format!(
            "vmtax_preempted_by_seconds_total{{vm=\"\",vm_id=\"7\",by=\"{by}\"}} {seconds}"
        );
        assert!(lines.contains(&line.as_str()), "{lines:?}");
    }
    assert_eq!(lines.len(), MOST_TAKERS + 1);
    let all: f64 =
        lines.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
    assert_eq!(all, 13.0 + 3.0 * MOST_TAKERS as f64);
}
