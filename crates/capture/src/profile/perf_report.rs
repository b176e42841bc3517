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
/// Rows that make a text without titles.
const ENOUGH: usize = 3;

/// Whether these first bytes are such a text.
pub fn recognise(head: &[u8]) -> bool {
    is_text(head) && {
        let text = String::from_utf8_lossy(head);
        text.lines().any(|line| heading(line).is_some())
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

pub(super) fn of_no_time(offset: u64, event: &str) -> Error {
    let problem = format!(
        "counts {event:?} by its callers, and shows no time: `perf record -a -g` samples time; its events, as `perf script` prints them, are a recording"
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
    loop {
        let offset = lines.offset();
        let Some(line) = lines.next()? else { break };
        let line = String::from_utf8_lossy(line);
        if let Some(event) = counted_event(&line) {
            return Err(of_no_time(offset, event));
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
            continue;
        }
        let Some(row) = row(&line, titles) else {
            graphs.line(&line);
            continue;
        };
        let name = super::one_frame(row.name);
        let of_thread = row
            .thread
            .map(|thread| format!("{}{}{name}", thread.trim_matches(['_', '/']), Profile::BETWEEN));
        if of_thread.is_some() || !graphs.row(&name, row.whole, row.own) {
            sum.add(&of_thread.unwrap_or(name), row.own);
        }
    }
    graphs.deliver(sum);
    let shown = sum.profile.total();
    if shown > 0 && shown + ROUNDING < WHOLE {
        sum.add(REST, WHOLE - shown);
    }
    sum.losses.undecodable += lines.cut;
    if lines.is_unterminated() && events <= 1 {
        sum.losses.truncated.push(UNTERMINATED.to_owned());
    }
    Ok(())
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

/// A row; without titles the number of shares says which one counts. Lines of call chains have no mark behind a share at their start.
fn row(line: &str, which: Option<usize>) -> Option<ReportRow<'_>> {
    let line = line.trim_start_matches([' ', '\t', '+', '-']);
    if !line.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
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
