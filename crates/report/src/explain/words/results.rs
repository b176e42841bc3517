//! Results of benchmarks in words.

use vmtax_analyse::explain::{CategoryResult, ENOUGH, LOSS, MOST, WorkloadResults};
use vmtax_events::Better;

use super::phrases::part;
use crate::numbers::{fixed, percent};

/// A workload's verdict, a sentence without its full stop. Hostile text.
pub(crate) fn workload(workload: &WorkloadResults) -> String {
    if workload.better == Better::Neither {
        return without_better(workload, &|name| name.to_owned());
    }
    let Some(worst) = &workload.worst else { return without_loss(workload) };
    let mut says = loss(workload, worst);
    for one in workload.recovered.iter().filter(|one| one.category == worst.category) {
        says += &format!("; {} gets back {} of it", one.option, part(one.part));
    }
    // Options tried in other categories are listed if none was tried for the worst.
    if let Some(one) = workload.recovered.first().filter(|one| one.category != worst.category) {
        says += &format!(
            "; of what {} loses, {} gets back {}",
            one.category,
            one.option,
            part(one.part)
        );
    }
    if let Some(share) = workload.bounce {
        let verdict = if share >= MOST { "explains most of it" } else { "does not explain it" };
        says += &format!("; the bounce buffer alone {verdict} ({})", percent(share));
    }
    says
}

/// The loss of the worst category.
fn loss(workload: &WorkloadResults, worst: &CategoryResult) -> String {
    let plain = worst.plain.as_ref().map_or("", |plain| plain.category.as_str());
    format!(
        "{}: {} {} ({}{})",
        workload.name,
        worst.category,
        lost_by(workload, workload.loss(), plain),
        figures(workload),
        runs(worst.runs)
    )
}

/// A loss of a workload against this category: of set-ups with names of their own a cost is a factor always.
fn lost_by(workload: &WorkloadResults, loss: f64, other: &str) -> String {
    match loss {
        loss if !workload.has_kinds && workload.better == Better::Lower => {
            format!("takes {:.1} times as much as {other}", 1.0 + loss)
        }
        loss => lost(loss, other),
    }
}

/// A loss against a plain VM. Of a cost, such as a time, that more than doubles there is nothing to lose so much of.
fn lost(loss: f64, plain: &str) -> String {
    match loss {
        loss if loss < 0.0 => format!("gains {} of {plain}", percent(-loss)),
        loss if loss < 1.0 => format!("loses {} of {plain}", percent(loss)),
        loss => format!("takes {:.1} times as much as {plain}", 1.0 + loss),
    }
}

/// The worst category's value and the plain VM's: `591 Mbit/s of 3.4 Gbit/s`.
pub(crate) fn figures(workload: &WorkloadResults) -> String {
    let Some(worst) = &workload.worst else { return String::new() };
    let plain = worst.plain.as_ref().map_or(0.0, |plain| plain.value);
    format!("{} of {}", figure(worst.value, &workload.unit), figure(plain, &workload.unit))
}

/// Without kinds to compare: what an option does.
fn without_loss(workload: &WorkloadResults) -> String {
    let name = &workload.name;
    if let Some((row, plain)) = workload.unproven() {
        let (worse, best) = shortened_pair(&row.category, &plain.category);
        let lost = lost_by(workload, plain.loss, &best);
        return format!("{}: {worse} {lost}, not proven: their runs overlap", shortened(name));
    }
    if workload.rows.iter().any(|row| row.plain.is_some()) {
        let what = if workload.has_kinds { "kind of VM" } else { "setup" };
        return format!("{name}: no {what} loses 5 % and more");
    }
    let changed = workload.changed.as_ref().and_then(|row| Some((row, row.baseline.as_ref()?)));
    let Some((row, baseline)) = changed else {
        return format!("{name}: no category differs by 5 % and more from its baseline");
    };
    format!(
        "{name}: {} {} ({} of {}{})",
        row.category,
        lost(baseline.loss, &baseline.category),
        figure(row.value, &workload.unit),
        figure(baseline.value, &workload.unit),
        runs(row.runs)
    )
}

/// Changes, and values of which the text does not say whether small or large ones are good.
fn without_better(workload: &WorkloadResults, short: &dyn Fn(&str) -> String) -> String {
    let Some((least, most)) = workload.ends() else { return short(&workload.name) };
    let name = short(&workload.name);
    let (low, high) = (short(&least.category), short(&most.category));
    let of = |value: f64| match workload.unit.strip_prefix("times") {
        Some(how) => format!("{} times{how}", fixed_short(value)),
        None if workload.unit == "%" => {
            format!("{}{} %", if value > 0.0 { "+" } else { "" }, fixed_short(value))
        }
        None => format!("{} {}", fixed_short(value), workload.unit),
    };
    match workload.is_relative {
        true if workload.rows.len() == 1 => {
            format!("{name}: {high} {}, by the text's own words", of(most.value))
        }
        true => {
            format!("{name} changes by {} ({low}) to {} ({high})", of(least.value), of(most.value))
        }
        false if least.value > 0.0 => format!(
            "{name}: {high} has {:.2} times the value of {low}; which is better the text does not say",
            most.value / least.value
        ),
        false => {
            format!("{name}: {high} differs from {low}; which is better the text does not say")
        }
    }
}

/// With as many digits as are there, two at most.
fn fixed_short(value: f64) -> String {
    let text = fixed(value, 2);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn runs(n: usize) -> String {
    match n {
        1 => ", one run each".to_owned(),
        n if n < ENOUGH => format!(", medians of {n}"),
        _ => String::new(),
    }
}

/// The verdict: how many workloads lose, the worst, and what got its loss back; figures are in the table. Hostile text.
pub(super) fn verdict<W: AsRef<WorkloadResults>>(workloads: &[W]) -> String {
    let lose = workloads.iter().filter(|workload| workload.as_ref().loss() >= LOSS).count();
    let worst = workloads.first().map(AsRef::as_ref);
    match (worst, worst.and_then(|one| one.worst.as_ref())) {
        (Some(workload), Some(worst)) if lose > 0 => {
            let plain = worst.plain.as_ref().map_or("", |plain| plain.category.as_str());
            let back = workload.recovered.iter().find(|one| one.category == worst.category);
            let back =
                back.map(|one| format!("; {} gets back {} of it", one.option, part(one.part)));
            let many = match workloads.len() {
                1 => String::new(),
                all => format!("{lose} of {all} workloads lose; worst is "),
            };
            let (worst, plain) = shortened_pair(&worst.category, plain);
            format!(
                "{many}{}: {worst} {}{}",
                shortened(&workload.name),
                lost_by(workload, workload.loss(), &plain),
                back.unwrap_or_default()
            )
        }
        (Some(workload), _) if workload.better == Better::Neither => {
            let says = without_better(workload, &shortened);
            match workloads.len() {
                1 => says,
                n => format!("{says}; {} more below", n - 1),
            }
        }
        (Some(workload), _) if workloads.len() == 1 => without_loss(workload),
        (Some(workload), _) => {
            let what = if workload.has_kinds { "kind of VM" } else { "setup" };
            let is_open = workloads.iter().any(|one| one.as_ref().unproven().is_some());
            let loses = if is_open { "is proven to lose" } else { "loses" };
            format!("no {what} {loses} 5 % and more in any of {} workloads", workloads.len())
        }
        (None, _) => String::new(),
    }
}

/// The first words of a name: those that people give set-ups may be sentences.
fn shortened(name: &str) -> String {
    const WORDS: usize = 4;
    let words: Vec<&str> = name.split_whitespace().collect();
    match words.get(..WORDS) {
        Some(first) if words.len() > WORDS => format!("{} ...", first.join(" ")),
        _ => name.to_owned(),
    }
}

/// Two names that are not the same: of long ones that begin alike what differs.
fn shortened_pair(a: &str, b: &str) -> (String, String) {
    let short = (shortened(a), shortened(b));
    if short.0 != short.1 {
        return short;
    }
    let alike = a.split_whitespace().zip(b.split_whitespace()).take_while(|(a, b)| a == b).count();
    let rest = |name: &str| {
        let words: Vec<&str> = name.split_whitespace().skip(alike).collect();
        format!("... {}", shortened(&words.join(" ")))
    };
    (rest(a), rest(b))
}

/// A value with its unit, thousands as a prefix of units that have them.
fn figure(value: f64, unit: &str) -> String {
    let prefixes = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let takes = ["bit/s", "B/s", "1/s", "bps"].contains(&unit);
    let (value, prefix) = prefixes
        .into_iter()
        .find(|(least, _)| takes && value >= *least)
        .map_or((value, ""), |(least, prefix)| (value / least, prefix));
    let digits =
        if value == 0.0 { 0 } else { (2 - value.abs().log10().floor() as i32).clamp(0, 6) };
    let digits = usize::try_from(digits).unwrap_or(0);
    let number = fixed(value, digits);
    let number = if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        &number
    };
    match (unit, prefix) {
        ("", _) => number.to_owned(),
        ("1/s", "") => format!("{number}/s"),
        ("1/s", prefix) => format!("{number}{prefix}/s"),
        _ => format!("{number} {prefix}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_told_apart() {
        let pair = |a: &str, b: &str| shortened_pair(a, b);
        assert_eq!(pair("snp", "VM"), ("snp".to_owned(), "VM".to_owned()));
        assert_eq!(
            pair("a b c d e f", "a b c d e g h i j k"),
            ("... f".to_owned(), "... g h i j ...".to_owned())
        );
        assert_eq!(pair("a b c d e", "x").0, "a b c d ...");
    }

    #[test]
    fn a_cost_that_doubles_is_a_factor() {
        assert_eq!(lost(0.844, "VM"), "loses 84.4 % of VM");
        assert_eq!(lost(5.672, "plain"), "takes 6.7 times as much as plain");
        assert_eq!(lost(-0.1, "plain"), "gains 10.0 % of plain");
    }
}
