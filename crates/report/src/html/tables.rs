//! The tables asked for: rows the reader can sort and filter.

use maud::{Markup, html};
use vmtax_analyse::SortedTable;
use vmtax_events::Coverage;

use super::described::{self, TableSection};
use super::frame::PageSection;
use crate::names::TableWords;
use crate::{Document, exits, names, numbers};

/// One section per table, in the order asked for.
pub(super) fn sections(doc: &Document) -> Vec<PageSection> {
    doc.tables
        .iter()
        .enumerate()
        .map(|(index, table)| {
            let id = format!("table-{index}-{}", table.kind.name());
            let words = names::words_of(table);
            let body = html! {
                h2 id={ (id) "-title" } { (names::title(table)) }
                @if table.rows.is_empty() {
                    p.empty { (why_empty(words, &doc.ledger.recording.coverage)) }
                } @else {
                    (filled(doc, table, &id, words.note))
                }
            };
            let twice = doc.tables.iter().filter(|other| other.kind == table.kind).count() > 1;
            let label = if twice { names::title(table) } else { words.label.to_owned() };
            PageSection { id, label, body }
        })
        .collect()
}

fn why_empty(words: TableWords, coverage: &Coverage) -> String {
    match ((words.is_covered)(coverage), words.event) {
        (true, _) => "None happened.".to_owned(),
        (false, "kvm_exit") => "The source holds no kvm_exit events.".to_owned(),
        (false, event) => format!("The source holds no {event} events, so these are not known."),
    }
}

fn filled(doc: &Document, table: &SortedTable, id: &str, note: &str) -> Markup {
    let total = &table.total;
    let note = if total.timed > 0 {
        note
    } else {
        "The source counts without timing: there are no times to show."
    };
    let mut notes = vec![note.to_owned()];
    if total.timed > 0 && total.timed < total.count {
        notes.push(format!(
            "{} of {} have no duration and are only counted.",
            numbers::count(total.count - total.timed),
            numbers::count(total.count)
        ));
    }
    let section = TableSection {
        id,
        title: &names::title(table),
        notes,
        table: &exits::table(&doc.ledger.recording, table),
    };
    described::whole(&section, &format!("--event {} --format csv", table.kind.name()))
}
