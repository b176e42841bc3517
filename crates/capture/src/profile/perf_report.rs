//! The text of `perf report --stdio`: functions with their shares, most first, and call graphs below them (`report_graph`).
//!
//! ```text
//! # Samples: 31  of event 'cpu-clock'
//! # Children      Self  Command  Shared Object         Symbol
//!     87.10%    48.39%  hot      hot                   [.] compute
//! ```
//!
//! A share becomes a weight in hundredths of a percent. `Self` counts where there is `Children`, else `Overhead`. What the text leaves out is a
//! weight of its own, [`REST`]: shares stay shares of everything that ran.
//!
//! Copies of the screens of `perf report` and `perf top` have no `#`, marks of open and closed entries (`+`, `-`), and often no titles: two
//! shares in a row are `Children` and `Self`.

use std::io::Read;

use vmtax_events::Profile;

use super::StackSum;
use super::report_graph::ReportGraphs;
use crate::Error;
use crate::import::text::lines::TextLines;
use crate::import::text::{UNTERMINATED, is_text};

/// How a symbol is marked: kernel, user, guest kernel, guest user, hypervisor, none.
pub(super) const MARKS: [&str; 6] = ["[k] ", "[.] ", "[g] ", "[u] ", "[H] ", "[!] "];

/// The part of the samples that is in no row, where that is more than rounding.
pub const REST: &str = vmtax_events::Profile::UNLISTED;
/// All shares together, in hundredths of a percent, and what rounding of rows can take of it.
pub(super) const WHOLE: u64 = 100 * 100;
const ROUNDING: u64 = 50;
/// Rows of one share that make a text without titles; of two one is enough.
const ENOUGH: usize = 3;

/// Whether these first bytes are such a text.
pub fn recognise(head: &[u8]) -> bool {
    is_text(head) && {
        let text = String::from_utf8_lossy(head);
        text.lines().any(|line| heading(line).is_some())
            || text.lines().filter_map(|line| row(line, None)).any(|row| row.whole.is_some())
            || text.lines().filter(|line| row(line, None).is_some()).take(ENOUGH).count() == ENOUGH
    }
}

/// Modifiers of events: what stands behind the colon of cycles:P.
const MODIFIERS: &str = "ukhGHpPSDIWebR";

/// The tracepoint or probe whose samples these are, by the line above the titles: a sample of it is one event, and no time.
pub(super) fn counted_event(line: &str) -> Option<&str> {
    let text = line.trim_start_matches(['#', ' ']);
    let (_, rest) = text.strip_prefix("Samples:")?.split_once("of event")?;
    let event = rest.trim_start().strip_prefix('\'')?.split('\'').next()?;
    let (_, name) = event.split_once(':')?;
    (!name.chars().all(|c| MODIFIERS.contains(c))).then_some(event)
}

/// Where a guest notifies a virtio device (Linux drivers/virtio/virtio_pci_common.c, virtio_mmio.c): each time is an exit.
const NOTIFIES: [&str; 4] = ["vp_notify", "vm_notify", "virtqueue_notify", "virtqueue_kick"];
/// Lines of the text that are looked at for callers.
const MOST_CALLERS: usize = 1000;

/// Refuses samples of an event; what its callers in the rest of the text are for is said.
pub(super) fn of_no_time(offset: u64, event: &str, rest: &mut TextLines<'_>) -> Error {
    let mut notifies = false;
    for _ in 0..MOST_CALLERS {
        let Ok(Some(line)) = rest.next() else { break };
        let line = String::from_utf8_lossy(line);
        notifies |= NOTIFIES.iter().any(|name| line.contains(name));
    }
    let callers =
        if notifies { " (notifications of virtio devices, each of which is an exit)" } else { "" };
    let problem = format!(
        "counts {event:?} by its callers{callers}, and shows no time: `perf record -a -g` samples time; its events, as `perf script` prints them, are a recording"
    );
    Error::malformed(offset, "perf report", problem)
}

/// A line of titles: which of a row's shares counts, and whether symbols are in it.
pub(super) fn heading(line: &str) -> Option<(usize, bool)> {
    let line = line.trim_start();
    let titles = match line.strip_prefix('#') {
        Some(titles) => titles,
        // Of a screen: not any line that begins with these words.
        None if line.starts_with(['O', 'C']) && line.contains("Symbol") => line,
        None => return None,
    };
    let mut words = titles.split_whitespace();
    let shares = match (words.next()?, words.next()?) {
        ("Overhead", next) if next != "sys" => 0,
        ("Children", "Self") => 1,
        _ => return None,
    };
    Some((shares, line.contains("Symbol")))
}

pub(super) fn read(input: &mut dyn Read, sum: &mut StackSum) -> Result<(), Error> {
    let mut lines = TextLines::new(input);
    let mut titles: Option<usize> = None;
    let mut events = 0;
    let mut graphs = ReportGraphs::default();
    let mut tables = ReportTables::default();
    let mut outer: Option<(String, u64)> = None;
    loop {
        let offset = lines.offset();
        let Some(line) = lines.next()? else { break };
        let line = String::from_utf8_lossy(line);
        if let Some(event) = counted_event(&line).map(str::to_owned) {
            return Err(of_no_time(offset, &event, &mut lines));
        }
        if line.starts_with("# Samples: ") {
            events += 1;
        }
        if events > 1 {
            sum.losses.notes.push("only the first event of the report is used".to_owned());
            break;
        }
        if let Some((share, has_symbols)) = heading(&line) {
            if !has_symbols {
                let problem =
                    "has no column Symbol: run `perf report --stdio --sort comm,dso,symbol`";
                return Err(Error::malformed(offset, "perf report", problem));
            }
            titles = Some(share);
            tables.other("");
            continue;
        }
        let Some(row) = row(&line, titles) else {
            graphs.line(&line);
            tables.other(&line);
            continue;
        };
        let name = super::one_frame(row.name);
        match row.whole {
            Some(whole) if outer.as_ref().is_none_or(|(_, most)| whole > *most) => {
                outer = Some((name.clone(), whole));
            }
            Some(_) => {}
            None => tables.row(&name, row.own),
        }
        let of_thread = row
            .thread
            .map(|thread| format!("{}{}{name}", thread.trim_matches(['_', '/']), Profile::BETWEEN));
        if of_thread.is_some() || !graphs.row(&name, row.whole, row.own) {
            sum.add(&of_thread.unwrap_or(name), row.own);
        }
    }
    if let Some(several) = tables.several() {
        return Err(Error::malformed(0, "perf report", several));
    }
    graphs.deliver(sum);
    let shown = sum.profile.total();
    if let Some((name, whole)) = outer.filter(|_| shown == 0) {
        let problem = format!(
            "lists no function with samples of its own ({name} has {}.{:02} % with what it calls): `perf report --stdio --no-children` lists them",
            whole / 100,
            whole % 100
        );
        return Err(Error::malformed(0, "perf report", problem));
    }
    if shown > 0 && shown + ROUNDING < WHOLE {
        sum.add(REST, WHOLE - shown);
    }
    sum.losses.undecodable += lines.cut;
    if lines.is_unterminated() && events <= 1 {
        sum.losses.truncated.push(UNTERMINATED.to_owned());
    }
    Ok(())
}

/// Flat tables of one text, each with its first row: their shares are of different samples, so that they are no one profile.
#[derive(Default)]
struct ReportTables {
    /// The first row and the number of rows of each.
    all: Vec<(String, u64, usize)>,
    last: u64,
    is_apart: bool,
}

/// Tables that are named.
const MOST_TABLES: usize = 4;

impl ReportTables {
    /// A line that is no row: an empty one, or words between two tables, end a table. Graphs are indented.
    fn other(&mut self, line: &str) {
        self.is_apart |= !line.starts_with([' ', '\t', '#']) || line.trim().is_empty();
    }

    /// Rows stand in the order of their shares, so that a larger one behind an empty line begins the next table.
    fn row(&mut self, name: &str, own: u64) {
        let begins = self.all.is_empty() || self.is_apart && own > self.last;
        if begins && self.all.len() <= MOST_TABLES {
            self.all.push((name.to_owned(), own, 0));
        }
        if let Some(table) = self.all.last_mut() {
            table.2 += 1;
        }
        (self.last, self.is_apart) = (own, false);
    }

    /// What is said of more than one.
    fn several(&self) -> Option<String> {
        let is_several = self.all.len() > 1 && self.all.iter().all(|(_, _, rows)| *rows >= ENOUGH);
        let first = |(name, own, _): &(String, u64, usize)| {
            format!("{name} {}.{:02} %", own / 100, own % 100)
        };
        let firsts: Vec<String> = self.all.iter().take(MOST_TABLES).map(first).collect();
        is_several.then(|| {
            format!(
                "has several profiles below each other, which begin with {}: each is of other samples: give each in a file of its own",
                firsts.join(", ")
            )
        })
    }
}

/// A row of the report: its symbol and its shares, in hundredths of a percent.
struct ReportRow<'l> {
    name: &'l str,
    own: u64,
    /// With what it calls, where there is such a column.
    whole: Option<u64>,
    thread: Option<&'static str>,
}

/// Threads of QEMU whose names say what is done: they stand above the function, as its caller.
const THREADS: [&str; 4] = ["live_migration", "multifdsend_", "multifdrecv_", "/TCG"];

/// A row of `perf top` before Linux 3.2 (tools/perf/util/top.c: `samples  pcnt function  DSO`): `21026.00 51.1% hypercall_page  [kernel.kallsyms]`.
fn old_top_row(line: &str) -> Option<ReportRow<'_>> {
    let mut words = line.split_whitespace();
    let (samples, share) = (words.next()?, words.next()?.strip_suffix('%')?);
    let (name, object) = (words.next()?, words.next()?);
    let is_row = words.next().is_none()
        && samples.contains('.')
        && samples.parse::<f64>().is_ok()
        && object.starts_with(['[', '/'])
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let share =
        share.parse::<f64>().ok().filter(|share| is_row && (0.0..=100.0).contains(share))?;
    Some(ReportRow { name, own: (share * 100.0).round() as u64, whole: None, thread: None })
}

/// A row; without titles the number of shares says which one counts. Lines of call chains have no mark behind a share at their start.
fn row(line: &str, which: Option<usize>) -> Option<ReportRow<'_>> {
    let line = line.trim_start_matches([' ', '\t', '+', '-']);
    if !line.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if let Some(row) = old_top_row(line) {
        return Some(row);
    }
    let shares = || line.split_whitespace().map_while(|word| word.strip_suffix('%'));
    let which = which.unwrap_or_else(|| shares().count().saturating_sub(1).min(1));
    let hundredths = |at: usize| {
        let share: f64 = shares().nth(at)?.replace(',', ".").parse().ok()?;
        (0.0..=100.0).contains(&share).then_some((share * 100.0).round() as u64)
    };
    let own = hundredths(which)?;
    let whole = if which > 0 { Some(hundredths(0)?) } else { None };
    let at = MARKS.iter().filter_map(|mark| Some((line.find(mark)?, mark.len()))).min()?;
    // "foo  -      -" where perf prints more columns behind the symbol.
    let name = line.get(at.0 + at.1..)?.split("  ").next().unwrap_or_default().trim();
    let between = line.get(..at.0)?;
    let thread = THREADS.into_iter().find(|thread| between.contains(thread));
    (!name.is_empty()).then_some(ReportRow { name, own, whole, thread })
}
