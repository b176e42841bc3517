//! A comparison for a terminal: the set-ups' differences first, then the tables.

use std::io::{self, Write};

use vmtax_analyse::diff::{Conclusion, DiffTable};
use vmtax_analyse::explain::TAX_MATTERS;
use vmtax_analyse::vm_facts::kind;
use vmtax_analyse::{Diff, Ledger, Per};

use super::layout::{Paint, Style};
use super::{TextLayout, TextPage, losses_style};
use crate::calls::difference::ComparedOperation;
use crate::numbers::{duration, of_count, percent};
use crate::{Compares, Comparison, diff as described, losses, names};

impl Compares for TextLayout {
    fn compare(&self, comparison: &Comparison<'_>, out: &mut dyn Write) -> io::Result<()> {
        let mut page = TextPage { paint: Paint { color: self.color }, width: self.width, out };
        let version = names::printable(comparison.tool_version);
        page.paragraph(Style::Heading, "", &format!("vmtax {version}: comparison"))?;
        let sides = [("base", comparison.base), ("other", comparison.other)];
        for (label, side) in sides {
            let mut text = names::printable(side.source);
            if let Some(which) = side.emulated() {
                text += &format!(" (emulated by {}: not hardware)", names::printable(which));
            }
            page.paragraph(Style::Plain, &format!("  {label:<9} "), &text)?;
        }
        page.paragraph(Style::Heading, "", &verdict(comparison))?;
        for (label, side) in sides {
            let text = crate::diff::shares(&comparison.diff, side);
            page.paragraph(Style::Plain, &format!("  {label:<9} "), &text)?;
            for note in crate::headline::missing(side.ledger, &side.ledger.total()) {
                page.paragraph(Style::Faint, "            ", &note)?;
            }
        }
        setup(&mut page, &comparison.diff)?;
        for table in &comparison.diff.tables {
            page.line(Style::Plain, "")?;
            self::table(&mut page, &comparison.diff, table)?;
        }
        functions(&mut page, comparison)?;
        sides.iter().try_for_each(|(label, side)| {
            let style = losses_style(side.ledger);
            page.losses(style, &format!("losses of {label}"), &losses::all(side.ledger))
        })
    }
}

/// The functions by which the instructions of each operation differ.
fn functions(page: &mut TextPage<'_>, comparison: &Comparison<'_>) -> io::Result<()> {
    let said = described::with_trees(comparison, |all| {
        let line = |one: &&ComparedOperation<'_>| {
            let difference = one.sentence().unwrap_or_else(|| "no difference".to_owned());
            format!("{}: {difference}", names::printable(&crate::calls::title(one.after)))
        };
        all.iter().map(line).collect::<Vec<_>>()
    });
    let Some(lines) = said else { return Ok(()) };
    page.line(Style::Plain, "")?;
    page.line(Style::Heading, "Instructions of one operation, other less base, by function")?;
    lines.iter().try_for_each(|line| page.paragraph(Style::Plain, "  ", line))
}

/// The comparison in one sentence, and what most of the difference is.
pub(crate) fn verdict(comparison: &Comparison<'_>) -> String {
    let (sentence, conclusion) = conclusions(comparison);
    [Some(sentence), conclusion].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// As [`verdict`], apart.
pub(crate) fn conclusions(comparison: &Comparison<'_>) -> (String, Option<String>) {
    let rows = || comparison.diff.tables.first().into_iter().flat_map(|table| &table.rows);
    let (base, other): (f64, f64) =
        rows().fold((0.0, 0.0), |sum, row| (sum.0 + row.base.rate, sum.1 + row.other.rate));
    let kinds = (kind(comparison.base.ledger), kind(comparison.other.ledger));
    let cost = if kinds.0 != kinds.1 && (kinds.0.is_confidential() || kinds.1.is_confidential()) {
        format!(
            "; the base is a {} VM and the other a {} VM: equal counts do not mean equal cost",
            kinds.0.name(),
            kinds.1.name()
        )
    } else {
        String::new()
    };
    let cost = cost + &preempted(comparison).map_or_else(String::new, |said| format!("; {said}"));
    if base <= 0.0 || other <= 0.0 {
        return (format!("One of the two has no exits to compare{cost}."), None);
    }
    let ratio = other / base;
    let words = if (ratio - 1.0).abs() <= 0.1 {
        "The other takes about as many exits as the base".to_owned()
    } else {
        format!("The other takes {ratio:.2} times the exits of the base")
    };
    let conclusion = comparison.diff.conclusion.as_ref();
    let conclusion = conclusion.map(|one| format!("{}.", concluded(one, comparison.diff.per)));
    (format!("{words} ({}){cost}.", unit(comparison.diff.per)), conclusion)
}

/// What the difference comes to, in one sentence.
fn concluded(conclusion: &Conclusion, per: Per) -> String {
    match conclusion {
        Conclusion::Load(times) => {
            let load = if *times > 1.0 { "more" } else { "less" };
            format!(
                "All causes changed alike, by {times:.2} times: {load} load, and no cause of its own"
            )
        }
        Conclusion::Cause { cause, base, other, detail } => {
            let times = match (base.time_ns, other.time_ns) {
                (Some(a), Some(b)) => format!(
                    "{} {} in place of {}, by {} exits in place of {}",
                    duration(b),
                    unit(per),
                    duration(a),
                    of_count(other.rate),
                    of_count(base.rate)
                ),
                _ => format!(
                    "{} exits {} in place of {}",
                    of_count(other.rate),
                    unit(per),
                    of_count(base.rate)
                ),
            };
            let what = detail.map(|detail| format!(", most of it {}", names::detail(detail)));
            format!(
                "Most of the difference is {}: {times}{}",
                cause.name(),
                what.unwrap_or_default()
            )
        }
    }
}

/// Whose vCPUs were preempted, where that is more than the noise of a busy host.
fn preempted(comparison: &Comparison<'_>) -> Option<String> {
    let sides = [comparison.base.ledger, comparison.other.ledger];
    if sides.iter().any(|ledger| ledger.recording.emulated.is_some()) {
        return None;
    }
    let [base, other] = sides.map(Ledger::contention);
    let apart = (other.unwrap_or(0.0) - base.unwrap_or(0.0)).abs();
    let said = |share: Option<f64>| share.map_or_else(|| "not recorded".to_owned(), percent);
    (apart >= TAX_MATTERS).then(|| {
        format!(
            "vCPUs were preempted for {} of their running time (base: {})",
            said(other),
            said(base)
        )
    })
}

fn setup(page: &mut TextPage<'_>, diff: &Diff) -> io::Result<()> {
    page.line(Style::Plain, "")?;
    if diff.setup.is_empty() {
        page.paragraph(Style::Plain, "", "No difference between the setups was recorded.")?;
    } else {
        page.line(Style::Warning, "The setups differ; this alone may cause the differences below")?;
        described::setup(diff).text((page.paint, page.width), page.out)?;
    }
    let unsaid = format!("Not recorded, and so not compared: {}.", diff.unsaid.join(", "));
    page.paragraph(Style::Faint, "  ", &unsaid)
}

/// What the numbers are of.
pub(crate) fn unit(per: Per) -> &'static str {
    match per {
        Per::Second => "a second",
        Per::L2Exit => "an exit of L2",
        Per::Operation => "an operation",
        Per::Recording => "in the whole recording",
    }
}

fn table(page: &mut TextPage<'_>, diff: &Diff, table: &DiffTable) -> io::Result<()> {
    let by: Vec<&str> = table.by.iter().map(|by| names::heading(*by)).collect();
    page.line(Style::Heading, &format!("Exits by {}, {}", by.join(" and "), unit(diff.per)))?;
    described::exits(diff, table).text((page.paint, page.width), page.out)?;
    if let Some(why) = described::untested(table) {
        let text = format!(
            "x: other / base. Significance is not tested: {why}. About equal: within 10 % of the larger."
        );
        page.paragraph(Style::Faint, "  ", &text)?;
    } else {
        let text = "x: other / base. at 95 %: simultaneous confidence intervals of the differences; block bootstrap over intervals.";
        page.paragraph(Style::Faint, "  ", text)?;
    }
    Ok(())
}
