//! What a benchmark's table proves, and what it only indicates, as sentences.

use vmtax_analyse::conclusions::{CategoryDifference, Conclusions};

use super::{Benchmark, overhead, percent};
use crate::numbers::counted;

/// The heading of what is not proven.
pub(crate) const INDICATIONS: &str = "Indications, not proven: fewer than five runs of each";
/// The heading of overheads in parts.
pub(crate) const PARTS: &str = "Overheads in parts";
/// Most differences that are sentences; the table has all.
const MOST: usize = 10;

/// The differences that are proven, the largest first; then how many comparisons prove none. Hostile text.
pub(crate) fn sentences(shown: &Benchmark<'_>) -> Vec<String> {
    let groups = shown.groups();
    let found = Conclusions::new(groups.into_iter().flatten());
    let differences = found.differences.iter().take(MOST);
    let mut says: Vec<String> = differences.map(|one| difference(one, shown.of_runs)).collect();
    let more = found.differences.len().saturating_sub(MOST);
    if more > 0 {
        says.push(format!("{more} smaller differences are proven, too: * in the table."));
    }
    says.extend(shown.results.proven.iter().cloned());
    says.extend(not_proven(&found));
    says
}

fn difference(found: &CategoryDifference<'_>, of_runs: bool) -> String {
    let CategoryDifference { row, against, overhead: worse, p } = found;
    let how = match overhead(worse.value).as_str() {
        "equal" => "less than 0.1 % different from".to_owned(),
        other => format!("{other} than"),
    };
    let base = &against.baseline;
    let base = if of_runs { format!("in {base}") } else { base.clone() };
    let interval = if worse.is_bounded() {
        let [low, high] = [worse.low, worse.high].map(percent);
        format!("95 % interval {low} to {high} %, ")
    } else {
        String::new()
    };
    let chance = if *p < 0.0001 { "p < 0.0001".to_owned() } else { format!("p {p:.4}") };
    format!(
        "{} {}: {} is {how} {base} ({interval}{chance}; {} and {} runs)",
        row.workload,
        row.metric,
        row.category,
        row.values.len(),
        against.runs
    )
}

fn not_proven(found: &Conclusions<'_>) -> Option<String> {
    let all = found.compared();
    let Conclusions { open, thin, .. } = found;
    let no_more = match (open + thin, all) {
        (0, _) => return None,
        (none, all) if none == all => {
            format!("No conclusion from {}", counted(all as u64, "comparison"))
        }
        (none, all) => format!("No conclusion from {none} of {all} comparisons"),
    };
    let why = match (open, thin) {
        (_, 0) => "the difference can be chance (p of 5 % and more)".to_owned(),
        (0, _) => "fewer than five runs of each".to_owned(),
        _ => format!(
            "{thin} have fewer than five runs of each; of {open} the difference can be chance (p of 5 % and more)"
        ),
    };
    Some(format!("{no_more}: {why}."))
}
