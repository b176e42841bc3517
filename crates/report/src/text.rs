//! The report for a terminal: a header, the findings, the time split, the tables, the losses.
//!
//! Where the terminal is too narrow the least important columns are left out and long names are cut;
//! rows never wrap. Strings from a recording are made harmless by [`names::printable`].

pub(crate) mod diff;
pub(crate) mod layout;
mod operations;

use std::io::{self, Write};

use vmtax_analyse::{By, Nested, Operations, Table, TableRow, Value, ledger, statistics};
use vmtax_events::{Level, Part, Recording, Tally, TimeRow};

use self::layout::{Column, Grid, Paint, Room, Style, wrap};
use crate::numbers::{count, duration, percent_digits, share};
use crate::operations::is_lab;
use crate::{Document, Renderer, calls, headline, losses, names};

/// Renders aligned tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Text {
    /// Use terminal colours.
    pub color: bool,
    /// Columns of the terminal; `None` when there is none: nothing is left out or wrapped then.
    pub width: Option<usize>,
}

impl Renderer for Text {
    fn render(&self, document: &Document, out: &mut dyn Write) -> io::Result<()> {
        let mut page = Page { paint: Paint { color: self.color }, width: self.width, out };
        page.header(document)?;
        page.findings(document)?;
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
            page.nested(nested)?;
        }
        page.losses("losses", &losses::sentences(&document.ledger))
    }
}

/// Where a report is written, and how.
pub(crate) struct Page<'a> {
    pub(crate) paint: Paint,
    pub(crate) width: Option<usize>,
    pub(crate) out: &'a mut dyn Write,
}

impl Page<'_> {
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

    fn time_split(&mut self, document: &Document) -> io::Result<()> {
        let ledger = &document.ledger;
        if ledger.time.is_empty() {
            return Ok(());
        }
        self.line(Style::Plain, "")?;
        self.line(Style::Heading, "Time of each vCPU, % of its wall time")?;
        let mut columns = vec![
            Column::key("VM"),
            Column::number("vCPU", Room::Keep),
            Column::number("wall", Room::Keep),
            Column::number("guest", Room::Keep),
        ];
        let parts = parts();
        let rooms = rooms(&parts, &ledger.time_total());
        columns.extend(parts.iter().zip(rooms).map(|(part, room)| Column::number(part.name, room)));
        columns.push(Column::number("tax", Room::Keep));
        let mut grid = Grid::new(columns);
        let recording = &ledger.recording;
        for ((vm, vcpu), time) in &ledger.time {
            let who = [vm_cell(recording, *vm), names::vcpu_name(*vcpu)];
            grid.row(Style::Plain, split_cells(recording, who, &time.sum));
        }
        if ledger.time.len() > 1 {
            let who = ["all".to_owned(), String::new()];
            grid.row(Style::Heading, split_cells(recording, who, &ledger.time_total()));
        }
        grid.write(self.out, self.paint, self.width)?;
        self.paragraph(
            Style::Faint,
            "  ",
            "tax: time in exits as % of the time not halted, without time preempted.",
        )
    }

    fn operations(&mut self, document: &Document, operations: &Operations) -> io::Result<()> {
        self.line(Style::Plain, "")?;
        self.line(Style::Heading, "Operations: exits and path length of one of each")?;
        if operations.rows.is_empty() {
            return self.line(Style::Plain, "  none: this is no lab run");
        }
        let emulated = calls::not_on_hardware(&document.ledger);
        let notes = operations::write((operations, &emulated), self.out, self.paint, self.width)?;
        self.paragraph(Style::Faint, "  ", &notes.join(" "))
    }

    fn calls(&mut self, document: &Document, shown: calls::Shown) -> io::Result<()> {
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
            let table = calls::table_of(one, shown);
            table.text(usize::MAX, (self.paint, self.width), self.out)?;
        }
        let mut notes = vec![
            "self: in the function itself; total: and in what it calls; [instruction]: of a guest, with all that handles it.".to_owned(),
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
            let text = "p50, p90, p99: at most this, and more than half of it (log2 histogram).";
            self.paragraph(Style::Faint, "  ", text)?;
        }
        if access_times {
            let text = "Times of accesses run from the access to the next entry of the vCPU (MMIO reads: from the exit to the access).";
            self.paragraph(Style::Faint, "  ", text)?;
        }
        Ok(())
    }

    /// Says whether quantiles are shown.
    fn table(&mut self, document: &Document, table: &Table) -> io::Result<bool> {
        self.line(Style::Plain, "")?;
        self.line(Style::Heading, &names::title(table))?;
        if table.rows.is_empty() {
            self.line(Style::Plain, "  none")?;
            return Ok(false);
        }
        let keys = shown_keys(table);
        let titles = keys.iter().map(|&i| Column::key(names::heading(table.by[i])));
        let numbers = tally_columns(table);
        let width = keys.len() + numbers.len();
        let mut grid = Grid::new(titles.chain(numbers).collect());
        let many_vms = document.ledger.recording.vms.len() > 1;
        for row in &table.rows {
            let words =
                keys.iter().map(|&i| key_cell(&document.ledger.recording, many_vms, row, i));
            let cells = words.chain(tally_cells(&row.tally, &table.total)).take(width);
            grid.row(Style::Plain, cells.collect());
        }
        if table.rows.len() > 1 {
            let words = keys.iter().enumerate().map(|(n, _)| if n == 0 { "all" } else { "" });
            let cells =
                words.map(str::to_owned).chain(tally_cells(&table.total, &table.total)).take(width);
            grid.row(Style::Heading, cells.collect());
        }
        let shown = grid.write(self.out, self.paint, self.width)?;
        let first = keys.len() + QUANTILE_COLUMN;
        Ok(shown.get(first..first + 3).is_some_and(|quantiles| quantiles.contains(&true)))
    }

    fn nested(&mut self, nested: &Nested) -> io::Result<()> {
        self.line(Style::Plain, "")?;
        self.line(Style::Heading, "Exits of L2, and the exits of L1 that handling them took")?;
        if !nested.known {
            return self.paragraph(
                Style::Warning,
                "  ",
                "unknown: kvm_nested_vmexit was not recorded, so exits of L1 and L2 cannot be told apart",
            );
        }
        if nested.rows.is_empty() {
            return self.line(Style::Plain, "  none");
        }
        let mut grid = Grid::new(vec![
            Column::key("L2 exit / L1 exits"),
            Column::number("exits", Room::Keep),
            Column::number("to L1", Room::Keep),
            Column::number("per exit", Room::Keep),
            Column::number("time", Room::Drop(1)),
            Column::number("mean", Room::Drop(2)),
            Column::number("max", Room::Drop(3)),
        ]);
        for row in &nested.rows {
            let per_exit = row.ancillary_per_exit().map_or("-".to_owned(), |n| format!("{n:.2}"));
            let mut cells =
                vec![names::reason(row.reason), count(row.l2.count), count(row.to_l1), per_exit];
            cells.extend(nested_times(&row.l2));
            grid.row(Style::Heading, cells);
            for ancillary in &row.ancillary {
                let mut name = format!("  {}", names::reason(ancillary.reason));
                let detail = names::detail(ancillary.detail);
                if !detail.is_empty() {
                    name += &format!(": {detail}");
                }
                let each = share(ancillary.tally.count, row.to_l1);
                let each = each.map_or("-".to_owned(), |n| format!("{n:.2}"));
                let mut cells = vec![name, count(ancillary.tally.count), String::new(), each];
                cells.extend(nested_times(&ancillary.tally));
                grid.row(Style::Plain, cells);
            }
        }
        grid.write(self.out, self.paint, self.width)?;
        self.paragraph(
            Style::Faint,
            "  ",
            "per exit: exits of L1 for each exit of L2 that was handed to L1; the entry back is one of them.",
        )
    }

    /// What is missing of what the label says.
    pub(crate) fn losses(&mut self, label: &str, losses: &[String]) -> io::Result<()> {
        self.line(Style::Plain, "")?;
        if losses.is_empty() {
            return self.line(Style::Faint, &format!("{label}: none known"));
        }
        self.line(Style::Warning, &format!("{label}:"))?;
        losses.iter().try_for_each(|sentence| self.paragraph(Style::Warning, "- ", sentence))
    }
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

/// The parts of a vCPU's time that have a column beside the guest's.
fn parts() -> Vec<&'static Part> {
    TimeRow::whole_parts().skip(1).collect()
}

/// The smallest parts give way first; the largest stays.
fn rooms(parts: &[&Part], total: &TimeRow) -> Vec<Room> {
    let mut by_size: Vec<usize> = (0..parts.len()).collect();
    by_size.sort_by_key(|&part| std::cmp::Reverse((parts[part].of)(total)));
    let mut rooms = vec![Room::Keep; parts.len()];
    for (rank, &part) in (1..).zip(&by_size[1..]) {
        rooms[part] = Room::Drop(rank);
    }
    rooms
}

fn split_cells(recording: &Recording, [vm, vcpu]: [String; 2], time: &TimeRow) -> Vec<String> {
    let percent = |share: Option<f64>| share.map_or("-".to_owned(), percent_digits);
    let parts = TimeRow::whole_parts().map(|part| {
        let ns = part.told(time, &recording.coverage);
        percent(ns.and_then(|ns| share(ns, time.wall_ns)))
    });
    let mut cells = vec![vm, vcpu, duration(time.wall_ns as f64)];
    cells.extend(parts.chain([percent(ledger::tax(time))]));
    cells
}

/// Which key columns to show: the level goes without saying where nobody asked and all is L1.
fn shown_keys(table: &Table) -> Vec<usize> {
    let asked = table.by != table.kind.default_by();
    let all_l1 = |i: usize| table.rows.iter().all(|row| row.key[i] == Value::Level(Level::L1));
    (0..table.by.len()).filter(|&i| asked || table.by[i] != By::Level || !all_l1(i)).collect()
}

/// A VM, its id first: that is what must stay when the cell is cut.
fn vm_cell(recording: &Recording, id: u32) -> String {
    match names::vm_name(recording, id) {
        Some(name) => format!("{id} {}", names::printable(name)),
        None => id.to_string(),
    }
}

fn key_cell(recording: &Recording, many_vms: bool, row: &TableRow, i: usize) -> String {
    match row.key[i] {
        Value::Vm(vm) => vm_cell(recording, vm),
        Value::Vcpu(vm, vcpu) if many_vms => format!("{vm}/{}", names::vcpu_name(vcpu)),
        other => match names::value(other) {
            empty if empty.is_empty() => "-".to_owned(),
            label => label,
        },
    }
}

/// Index of p50 among the columns of a tally.
const QUANTILE_COLUMN: usize = 7;

/// Columns of counts, and of times where there are any.
fn tally_columns(table: &Table) -> Vec<Column> {
    let counted = if table.kind.is_exits() { "exits" } else { "count" };
    let mut columns = vec![
        Column::number(counted, Room::Keep),
        Column::number("%", Room::Drop(2)).named("% of the count"),
    ];
    if table.total.timed > 0 {
        columns.extend([
            Column::number("time", Room::Keep),
            Column::number("%", Room::Drop(1)).named("% of the time"),
            Column::number("min", Room::Drop(7)),
            Column::number("mean", Room::Drop(3)),
            Column::number("±", Room::Drop(4)),
            Column::number("p50", Room::Drop(9)),
            Column::number("p90", Room::Drop(8)),
            Column::number("p99", Room::Drop(6)),
            Column::number("max", Room::Drop(5)),
        ]);
    }
    columns
}

/// A cell for each of the columns; fewer columns take the first ones.
fn tally_cells(tally: &Tally, total: &Tally) -> [String; 11] {
    let none = || "-".to_owned();
    let timed = tally.timed > 0;
    let percent = |share: Option<f64>| share.map_or_else(none, percent_digits);
    let time = |ns: u64| if timed { duration(ns as f64) } else { none() };
    let mean = statistics::mean_ns(tally);
    let spread = match (mean, statistics::standard_error_ns(tally)) {
        (Some(mean), Some(error)) if mean > 0.0 => format!("{:.1}%", error / mean * 100.0),
        _ => none(),
    };
    let quantile =
        |q: f64| statistics::quantile(tally, q).map_or_else(none, |q| duration(q.high_ns as f64));
    [
        count(tally.count),
        percent(share(tally.count, total.count)),
        time(tally.time_ns),
        percent(share(tally.time_ns, total.time_ns).filter(|_| timed)),
        time(tally.min_ns),
        mean.map_or_else(none, duration),
        spread,
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
        time(tally.max_ns),
    ]
}

fn nested_times(tally: &Tally) -> [String; 3] {
    let none = || "-".to_owned();
    let time = |ns: u64| if tally.timed > 0 { duration(ns as f64) } else { none() };
    let mean = statistics::mean_ns(tally).map_or_else(none, duration);
    [time(tally.time_ns), mean, time(tally.max_ns)]
}
