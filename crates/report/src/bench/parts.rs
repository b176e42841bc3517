//! Overheads in parts, and what such parts assume, as sentences.

use vmtax_analyse::bench::OtherPath;
use vmtax_analyse::faults;
use vmtax_analyse::recorded;

use crate::numbers::significant;

/// An overhead as exits and the rest.
pub fn by_exits(parts: &recorded::OverheadParts) -> String {
    let recorded::OverheadParts { workload, category, baseline, difference, unit, exits, cost } =
        parts;
    format!(
        "{workload} in {category}: {} {unit} more than in {baseline}: {} exits more x {} (a CPUID exit here) = {}; the rest: {}",
        significant(*difference),
        significant(*exits),
        significant(*cost),
        significant(parts.of_exits()),
        significant(parts.rest())
    )
}

/// An overhead as page faults and the rest.
pub fn by_faults(parts: &faults::FaultParts) -> String {
    let faults::FaultParts { workload, category, baseline, difference, own, base } = parts;
    let of = |faults: &faults::Faults| {
        format!(
            "{} faults x {} ({})",
            significant(faults.count),
            significant(faults.cost),
            faults.operation
        )
    };
    format!(
        "{workload} in {category}: {} ns more than in {baseline}: {} less {} in {baseline} = {}; the rest: {}",
        significant(*difference),
        of(own),
        of(base),
        significant(parts.of_faults()),
        significant(parts.rest())
    )
}

/// What the parts of page faults assume and leave out.
pub fn of_faults_assume() -> Vec<String> {
    vec![
        "Page faults are counted by KVM during the measured run. Their cost is a model: each fault is taken to cost what the lab measured of one."
            .to_owned(),
        "TLB misses and page walks are in no count of an emulated host, so the lasting cost of small pages is not in these figures; vmtax lab run --suite \
         paging simulates it."
            .to_owned(),
    ]
}

/// Why a cell that is in both runs is not compared.
pub fn other_path(found: &OtherPath<'_>) -> String {
    let word = |path: &str| match path {
        "" => "inside one system".to_owned(),
        path => format!("over {path}"),
    };
    format!(
        "{} in {} ran {} and {}: results over different paths are not compared",
        found.row.workload,
        found.row.category,
        word(found.base_path),
        word(&found.row.path)
    )
}
