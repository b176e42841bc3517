//! The headline: the tax as one figure, and the findings as sentences.

use maud::{Markup, html};
use vmtax_analyse::Ledger;

use super::figures;
use crate::operations::{are_recorded, factor};
use crate::{Document, headline, names, numbers};

/// The figure, the sentences, and the sums behind them.
pub(super) fn section(doc: &Document) -> Markup {
    let sentences = headline::findings(doc);
    // The page has a banner for emulation.
    let emulation = crate::operations::emulated(&doc.ledger);
    let mut notes = headline::notes(doc);
    notes.retain(|note| Some(note) != emulation.as_ref());
    html! {
        h2 #headline-title { "Headline" }
        div.hero {
            div.tax {
                @if let Some(operations) = doc.operations.as_ref().filter(|o| !o.rows.is_empty()) {
                    @match headline::lab::nested(&operations.rows) {
                        Some((row, times)) => {
                            p.figure { (factor(times)) span.unit { "\u{a0}×" } }
                            p.label { "a nested " (figures::text(&row.name)) }
                            p.formula { "instructions of one at L2, over those of one at L1" }
                        }
                        None => {
                            p.figure { (numbers::count(operations.rows.len() as u64)) }
                            p.label { "operations measured" }
                            p.formula { "exits and instructions are counted per operation" }
                        }
                    }
                } @else { @match taxed(&doc.ledger) {
                    Some(Taxed { of, tax, contention: Some(contention) })
                        if headline::waiting_leads(&doc.ledger) =>
                    {
                        p.figure { (big_percent(contention)) }
                        p.label { "contention" @if let Some(of) = &of { " of VM " (figures::text(of)) } }
                        p.formula { "time preempted, of all time not halted" }
                        p.label { "exit tax: " (numbers::percent(tax)) }
                        p.formula { "exit-kernel and exit-user time, of the same; without preempted time" }
                    }
                    Some(Taxed { of, tax, contention }) => {
                        p.figure { (big_percent(tax)) }
                        p.label { "exit tax" @if let Some(of) = &of { " of VM " (figures::text(of)) } }
                        p.formula { "exit-kernel and exit-user time, of all time not halted" }
                        @if let Some(contention) = contention {
                            p.label { "contention: " (numbers::percent(contention)) }
                            p.formula { "preempted time, of the same; not part of the tax" }
                        }
                    }
                    None => {
                        p.figure.unknown { "?" }
                        p.label { "exit tax not known" }
                        p.formula { (why_unknown(doc)) }
                    }
                } }
            }
            @if sentences.is_empty() {
                p.empty { "Nothing to report." }
            } @else {
                div {
                    ul.sentences {
                        @for sentence in &sentences { li { (figures::text(sentence)) } }
                    }
                    @if !notes.is_empty() {
                        ul.notes {
                            @for note in &notes { li { (figures::text(note)) } }
                        }
                    }
                }
            }
        }
        (sums(doc))
    }
}

/// The figures of the VM that lost most, or of all together.
struct Taxed {
    /// The VM, where there are several. Hostile text.
    of: Option<String>,
    tax: f64,
    contention: Option<f64>,
}

fn taxed(ledger: &Ledger) -> Option<Taxed> {
    let Some(worst) = headline::worst(ledger) else {
        return Some(Taxed { of: None, tax: ledger.tax()?, contention: ledger.contention() });
    };
    Some(Taxed {
        of: Some(names::vm(&ledger.recording, worst.vm)),
        tax: vmtax_analyse::ledger::tax(&worst.time)?,
        contention: vmtax_analyse::ledger::contention(&worst.time),
    })
}

fn why_unknown(doc: &Document) -> &'static str {
    let total = doc.ledger.total();
    if total.count == 0 {
        "The source has no exits."
    } else if total.timed == 0 {
        "The source counts exits but does not time them."
    } else {
        "The source does not separate guest time from exit time."
    }
}

fn sums(doc: &Document) -> Markup {
    let ledger = &doc.ledger;
    let total = ledger.total();
    if let Some(operations) = doc.operations.as_ref().filter(|o| !o.rows.is_empty()) {
        let executed = operations.rows.iter().map(|row| row.count).fold(0, u64::saturating_add);
        if !are_recorded(&operations.rows) {
            return list(&[("exits", "not recorded".to_owned())]);
        }
        return list(&[
            ("executions traced", numbers::count(executed)),
            ("exits", numbers::count(total.count)),
        ]);
    }
    let mut sums: Vec<(&str, String)> = vec![("exits", numbers::count(total.count))];
    if let Some(rate) = ledger.exits_per_second().filter(|_| total.timed > 0) {
        sums.push(("exits per second", rate_text(rate)));
    }
    if total.timed > 0 {
        sums.push(("time in exits", figures::duration(total.time_ns as f64)));
        let mean = total.time_ns as f64 / total.timed as f64;
        sums.push(("mean per exit", figures::duration(mean)));
        sums.push(("longest exit", figures::duration(total.max_ns as f64)));
    }
    let time = ledger.time_total();
    if time.wall_ns > 0 {
        sums.push(("vCPU time seen", figures::duration(time.wall_ns as f64)));
    }
    list(&sums)
}

fn list(sums: &[(&str, String)]) -> Markup {
    html! {
        dl.sums {
            @for (name, value) in sums {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

fn rate_text(rate: f64) -> String {
    if rate >= 99.5 { numbers::count(rate.round() as u64) } else { format!("{rate:.1}") }
}

/// The tax, its sign of percent set smaller by the style sheet.
pub(super) fn big_percent(fraction: f64) -> Markup {
    let digits = numbers::percent_digits(fraction);
    html! { (digits) span.unit { "\u{a0}%" } }
}
