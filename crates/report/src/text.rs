//! The report for a terminal: a header, the findings, the time split, the tables, the losses.
//!
//! Where the terminal is too narrow the least important columns are left out and long names are cut;
//! rows never wrap. Strings from a recording are made harmless by [`names::printable`].

pub(crate) mod diff;
pub(crate) mod layout;

use std::io::{self, Write};

use vmtax_analyse::{Ledger, Nested, Operations, SortedTable};
use vmtax_events::{Isa, Recording};

pub use self::layout::TextLayout;
use self::layout::{Paint, Style, wrap};
use crate::operations::is_lab;
use crate::{
    Document, Renderer, budget, calls, exits, headline, losses, mapping, names, nested, operations,
    paging, time, transfers,
};

impl Renderer for TextLayout {
    fn render(&self, document: &Document, out: &mut dyn Write) -> io::Result<()> {
        let mut page = TextPage { paint: Paint { color: self.color }, width: self.width, out };
        page.header(document)?;
        page.findings(document)?;
        if let Some(kept) = &document.budget {
            page.budget(kept)?;
        }
        match &document.operations {
            // The shares of its operations stand in their table.
            Some(operations) if !operations.rows.is_empty() => {
                page.operations(document, operations)?;
            }
            Some(operations) => {
                page.time_split(document)?;
                page.operations(document, operations)?;
            }
            None => page.time_split(document)?,
        }
        if let Some(shown) = document.calls {
            page.calls(document, shown)?;
        }
        page.tables(document)?;
        if let Some(nested) = &document.nested {
            page.nested(document.ledger.isa(), nested)?;
        }
        let style = losses_style(&document.ledger);
        page.losses(style, "losses", &losses::sentences(&document.ledger))
    }
}

/// Where a report is written, and how.
pub(crate) struct TextPage<'a> {
    pub(crate) paint: Paint,
    pub(crate) width: Option<usize>,
    pub(crate) out: &'a mut dyn Write,
}

impl TextPage<'_> {
    fn line(&mut self, style: Style, text: &str) -> io::Result<()> {
        self.paint.line(self.out, style, text)
    }

    fn paragraph(&mut self, style: Style, first: &str, text: &str) -> io::Result<()> {
        let indent = " ".repeat(layout::columns_of(first));
        for line in wrap(text, self.width, first, &indent) {
            self.line(style, &line)?;
        }
        Ok(())
    }

    fn header(&mut self, document: &Document) -> io::Result<()> {
        let recording = &document.ledger.recording;
        let source = names::printable(&document.source);
        let title = format!("vmtax {}: {source}", names::printable(&document.tool_version));
        self.paragraph(Style::Heading, "", &title)?;
        let recorded = join(&[
            ("", &recording.format),
            ("by ", &recording.tool),
            ("clock ", &recording.clock),
        ]);
        let host = host(recording);
        for (label, text) in [("recorded", recorded), ("host", host)] {
            if !text.is_empty() {
                self.paragraph(Style::Faint, &format!("  {label:<9} "), &text)?;
            }
        }
        if let Some(which) = &recording.emulated {
            let mut text = names::printable(which);
            // The findings of a lab run say what else it means.
            if !is_lab(&document.ledger) {
                text += ": not hardware";
            }
            self.paragraph(Style::Warning, "  emulated  ", &text)?;
        }
        Ok(())
    }

    fn findings(&mut self, document: &Document) -> io::Result<()> {
        self.line(Style::Plain, "")?;
        for (i, sentence) in headline::sentences(document).iter().enumerate() {
            let style = if i == 0 { Style::Heading } else { Style::Plain };
            self.paragraph(style, if i == 0 { "" } else { "- " }, sentence)?;
        }
        Ok(())
    }

    fn budget(&mut self, kept: &budget::KeptBudget) -> io::Result<()> {
        self.line(Style::Plain, "")?;
        let is_kept = kept.violations().next().is_none();
        self.line(if is_kept { Style::Heading } else { Style::Warning }, &kept.title())?;
        if !kept.numbers.is_empty() {
            budget::table(kept).text((self.paint, self.width), self.out)?;
        }
        kept.notes.iter().try_for_each(|note| self.paragraph(Style::Warning, "  ", note))
    }

    fn time_split(&mut self, document: &Document) -> io::Result<()> {
        let ledger = &document.ledger;
        if ledger.time.is_empty() {
            return Ok(());
        }
        self.line(Style::Plain, "")?;
        self.line(Style::Heading, "Time of each vCPU, % of its wall time")?;
        time::table(ledger).text((self.paint, self.width), self.out)?;
        self.paragraph(
            Style::Faint,
            "  ",
            "tax: time in exits, without preempted time, in % of known time not halted.",
        )
    }

    fn operations(&mut self, document: &Document, operations: &Operations) -> io::Result<()> {
        let emulated = calls::not_on_hardware(&document.ledger);
        let beside = operations::described::beside(operations, &emulated);
        if let Some(table) = beside {
            let (title, note) = operations::described::BESIDE;
            self.line(Style::Plain, "")?;
            self.line(Style::Heading, title)?;
            table.text((self.paint, self.width), self.out)?;
            self.paragraph(Style::Faint, "  ", note)?;
        }
        self.line(Style::Plain, "")?;
        self.line(Style::Heading, "Operations: exits and path length of one execution")?;
        if operations.rows.is_empty() {
            return self.line(Style::Plain, "  none: this is no lab run");
        }
        let table = operations::described::table(operations, &emulated);
        let shown = table.text((self.paint, self.width), self.out)?;
        let mut notes = vec![
            "exits: per execution. path: instructions from the guest's instruction back to the guest, median of the batches. \
             ±: how far off the path of another run may be, 0.5 % where none is shown.",
        ];
        for (key, note) in [
            (
                "not_on_hardware",
                "not on hw: the part of the path that hardware does not execute, from the call tree.",
            ),
            (
                "waited",
                "waited: time of a step of a VM's life in which it ran nothing; its path is the rest of it, from its beginning to its end.",
            ),
            ("spread", "spread: (max - min) / median."),
            (
                "shares",
                "% L0/L1/L2: share of the traced time in the host, the guest and the nested guest; the rest is halted.",
            ),
        ] {
            notes.extend(shown.contains(&key).then_some(note));
        }
        if operations.rows.iter().any(|row| row.ancillary() > 0) {
            notes.push("→: exits of L1 to handle that exit of L2.");
        }
        if operations::has_hidden(&operations.rows) {
            notes.push(operations::NO_EVENT_MEANS);
        }
        self.paragraph(Style::Faint, "  ", &notes.join(" "))?;
        let further = [
            (mapping::table(operations), mapping::TITLE, mapping::NOTE),
            (paging::table(operations), paging::TITLE, paging::NOTE),
            (paging::by_instruction(operations), paging::BY_INSTRUCTION, paging::OF_INSTRUCTIONS),
            (transfers::table(operations), transfers::TITLE, transfers::NOTE),
        ];
        for (table, title, note) in further {
            let Some(table) = table else { continue };
            self.line(Style::Plain, "")?;
            self.line(Style::Heading, title)?;
            table.text((self.paint, self.width), self.out)?;
            self.paragraph(Style::Faint, "  ", note)?;
        }
        Ok(())
    }

    fn calls(&mut self, document: &Document, shown: calls::ShownCalls) -> io::Result<()> {
        self.line(Style::Plain, "")?;
        self.line(Style::Heading, "Where the instructions go: functions of one operation")?;
        let (all, problems) = vmtax_analyse::calls::profiled(&document.ledger);
        for problem in problems {
            self.paragraph(Style::Warning, "  ", &names::printable(&problem))?;
        }
        if all.is_empty() {
            return self.line(Style::Plain, "  none: `vmtax lab run --profile` makes call trees");
        }
        let emulator = document.ledger.recording.emulated.as_deref();
        for one in &all {
            self.paragraph(Style::Plain, "  ", &calls::heading(one, emulator))?;
            let table = calls::table_of(std::slice::from_ref(one), shown);
            table.text((self.paint, self.width), self.out)?;
        }
        let mut notes = vec![
            "self: in the function itself; total: including its callees; [instruction]: an instruction of a guest, with its handlers.".to_owned(),
        ];
        notes.extend(calls::artefact_notes(&all, emulator));
        self.paragraph(Style::Faint, "  ", &notes.join(" "))
    }

    fn tables(&mut self, document: &Document) -> io::Result<()> {
        let mut quantiles = false;
        let mut access_times = false;
        for table in &document.tables {
            quantiles |= self.table(document, table)?;
            access_times |= !table.kind.is_exits() && table.total.timed > 0;
        }
        if quantiles || access_times {
            self.line(Style::Plain, "")?;
        }
        if quantiles {
            self.paragraph(Style::Faint, "  ", crate::exits::precision(&document.ledger))?;
        }
        if access_times {
            let text = "Times of accesses run from the access to the next entry of the vCPU (MMIO reads: from the exit to the access).";
            self.paragraph(Style::Faint, "  ", text)?;
        }
        Ok(())
    }

    /// Says whether quantiles are shown.
    fn table(&mut self, document: &Document, table: &SortedTable) -> io::Result<bool> {
        self.line(Style::Plain, "")?;
        self.line(Style::Heading, &names::title(table))?;
        if table.rows.is_empty() {
            self.line(Style::Plain, "  none")?;
            return Ok(false);
        }
        let shown = exits::table(&document.ledger.recording, table)
            .text((self.paint, self.width), self.out)?;
        Ok(shown.iter().any(|key| ["p50_ns", "p90_ns", "p99_ns"].contains(key)))
    }

    fn nested(&mut self, isa: Isa, nested: &Nested) -> io::Result<()> {
        self.line(Style::Plain, "")?;
        self.line(Style::Heading, "Exits of L2, and the exits of L1 that handle them")?;
        if !nested.known {
            let tracepoint = isa.facts().nested_tracepoint();
            let said = format!(
                "unknown: {tracepoint} was not recorded, so exits of L1 and L2 cannot be distinguished"
            );
            return self.paragraph(Style::Warning, "  ", &said);
        }
        if nested.rows.is_empty() {
            return self.line(Style::Plain, "  none");
        }
        nested::lines(nested).text((self.paint, self.width), self.out)?;
        self.paragraph(
            Style::Faint,
            "  ",
            "per exit: exits of L1 per forwarded exit of L2, including the entry back to L2.",
        )
    }

    /// What is missing of what the label says.
    pub(crate) fn losses(
        &mut self,
        style: Style,
        label: &str,
        losses: &[String],
    ) -> io::Result<()> {
        self.line(Style::Plain, "")?;
        if losses.is_empty() {
            return self.line(Style::Faint, &format!("{label}: none known"));
        }
        self.line(style, &format!("{label}:"))?;
        losses.iter().try_for_each(|sentence| self.paragraph(style, "- ", sentence))
    }
}

/// An exit that was open when the recording ended is no reason for a warning.
pub(crate) fn losses_style(ledger: &Ledger) -> Style {
    if losses::is_only_ends(ledger) { Style::Faint } else { Style::Warning }
}

/// Parts that are not empty, each behind its prefix.
fn join(parts: &[(&str, &str)]) -> String {
    let said: Vec<String> = parts
        .iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(prefix, text)| format!("{prefix}{}", names::printable(text)))
        .collect();
    said.join(", ")
}

fn host(recording: &Recording) -> String {
    let cpus = match recording.cpus {
        0 => String::new(),
        1 => "1 CPU".to_owned(),
        n => format!("{n} CPUs"),
    };
    join(&[
        ("", &recording.hostname),
        ("kernel ", &recording.kernel),
        ("", &recording.arch),
        ("", &recording.cpu),
        ("", &cpus),
    ])
}
