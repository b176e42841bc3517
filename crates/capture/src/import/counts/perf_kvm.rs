//! The text of `perf kvm stat report`: tables of exits by reason, and of accesses, with counts and times.
//!
//! ```text
//!              VM-EXIT    Samples  Samples%     Time%    Min Time    Max Time         Avg time
//!
//!                  hlt         39     0.09%     2.63%     18.39us  12998.04us   3227.76us ( +-  12.79% )
//!
//! Total Samples:43646, Total events handled time:4788567.41us.
//! ```
//!
//! perf from 6.4 on prints `Event name  Samples  Sample%  Time (ns)  Time%  Max Time (ns)  Min Time (ns)  Mean Time (ns)`. With
//! `--event=ioport|mmio|msr` the rows are accesses (`0x70:POUT`, `0xfee00300:W`), and a text may hold these tables beside that of exits.
//!
//! People cut rows out, leave the heading or the line of totals away, and write between the tables: rows are known by their form, a mark of
//! a cut (`[..]`, `....`) is a loss, and other lines are skipped.

mod row;

use vmtax_events::{Detail, Isa, Reason, Tally};

use super::{CountsTable, at_line};
use crate::Error;
use crate::import::architecture;
use crate::import::spelling::{Spelled, spelled};
pub(super) use row::count;
use row::{AccessObject, LONGEST_ROW, PerfKvmRow};

/// Headings of tables of exits.
const EXITS: [&str; 2] = ["VM-EXIT", "Event name"];
/// Headings of tables of accesses.
const ACCESSES: [&str; 3] = ["IO Port Access", "MMIO Access", "MSR Access"];
/// What perf calls an exit that it has no name for; the line before says its number (`unknown kvm exit code:26 on arm64`).
const UNNAMED: &str = "UNKNOWN";
const UNNAMED_LINE: &str = "unknown kvm exit code:";

/// The exit of such a line. perf counts classes and what is no trap by one number, and knows all of the latter.
fn unnamed(text: &str) -> Option<Reason> {
    let (code, isa) = text.strip_prefix(UNNAMED_LINE)?.split_once(" on ")?;
    let isa = match isa {
        "VMX" => Isa::Vmx,
        "SVM" => Isa::Svm,
        "arm64" => Isa::Arm,
        _ => return None,
    };
    Some(Reason { isa, code: code.parse().ok()?, flags: 0 })
}

/// More messages than perf has exits without a name.
const MOST_UNNAMED: usize = 64;
/// What such exits of arm64 are taken for: the class of that name.
const UNKNOWN_CLASS: Reason = Reason { isa: Isa::Arm, code: 0, flags: 0 };
const OF_NO_NAME: &str = "perf has no name for the exits that it calls UNKNOWN, and its messages, which would say their number, are not in the text. Where the VM runs VMs they are ERET.";

/// Said of tables of arm64.
const OTHER_TIMES: &str = "The times of the table are left out: perf measures from kvm_entry to kvm_exit on arm64, which is the guest's time before each exit and not the exit's. Give the recording itself (perf.data) for times of exits.";

/// Rows that make a table without a heading.
const ENOUGH: usize = 2;

/// The first column of a table's heading.
fn head(line: &str) -> Option<&str> {
    if line.len() > LONGEST_ROW {
        return None;
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "Samples")?;
    let is_head = matches!(words.get(at + 1), Some(&("Samples%" | "Sample%")));
    (is_head && line.contains("Time%")).then(|| {
        let end = line.find("Samples").unwrap_or(0);
        line.get(..end).unwrap_or_default().trim().trim_start_matches('#').trim()
    })
}

/// A row that somebody tells of by itself: whole, with most of the time, below a title that names the command.
fn is_told(title: &str, row: &str) -> bool {
    /// Longer lines are sentences, which may say that it is not so.
    const TITLE: usize = 40;
    /// Percent.
    const MOST: f64 = 90.0;
    let is_title = title.len() <= TITLE && title.to_lowercase().contains("perf kvm");
    // Of the samples, then of the time.
    let mut shares = row.split_whitespace().filter_map(|word| word.strip_suffix('%'));
    let has_most =
        shares.nth(1).and_then(|share| share.parse().ok()).is_some_and(|share: f64| share >= MOST);
    is_title && has_most && row.contains("us ( +-")
}

pub(super) fn recognise(text: &str) -> bool {
    let is_row = |line: &&str| {
        PerfKvmRow::read(line).is_some_and(|row| {
            !row.is_cut && (spelled(&row.name).is_some() || row.access("").is_some())
        })
    };
    let has_total = || text.lines().any(|line| line.trim().starts_with("Total Samples:"));
    text.lines().any(|line| head(line).is_some()) || {
        let rows = text.lines().filter(is_row).take(ENOUGH).count();
        let mut lines = text.lines().zip(text.lines().skip(1));
        let mut has_told = || lines.any(|(title, row)| is_told(title, row) && is_row(&row));
        rows == ENOUGH || rows > 0 && (has_total() || has_told())
    }
}

/// A table of the text.
#[derive(Default)]
struct TextSection {
    /// Whose events: `all VMs, all VCPUs`.
    about: String,
    heading: String,
    /// Its lines, from 1.
    lines: (usize, usize),
    exits: Vec<(Spelled, Tally)>,
    accesses: Vec<(AccessObject, Tally)>,
    /// Percent of the samples that its rows are.
    share: f64,
    /// What the line of totals says.
    claimed: Option<u64>,
    /// Rows were cut out.
    has_gaps: bool,
    /// Rows that end before their times.
    cut_rows: usize,
    /// Rows with their percent of the time, where they have no more of it.
    time_shares: Vec<(String, f64)>,
    /// Exits of the row before it that perf has no name for, by the message that it then writes.
    unnamed: Option<Reason>,
    /// Places of other such exits, and their lines.
    unknown: Vec<(usize, usize)>,
}

impl TextSection {
    fn has_rows(&self) -> bool {
        !self.exits.is_empty() || !self.accesses.is_empty()
    }

    /// Neither exits nor accesses: another architecture's.
    fn is_foreign(&self) -> bool {
        !self.heading.is_empty()
            && !EXITS.contains(&self.heading.as_str())
            && !ACCESSES.contains(&self.heading.as_str())
    }

    fn counted(&self) -> u64 {
        let exits = self.exits.iter().map(|(_, tally)| tally.count);
        let accesses = self.accesses.iter().map(|(_, tally)| tally.count);
        exits.chain(accesses).fold(0, u64::saturating_add)
    }

    fn add(&mut self, row: PerfKvmRow, number: usize) -> Result<(), Error> {
        self.cut_rows += usize::from(row.is_cut);
        self.share += row.share;
        self.time_shares.extend(row.time_share.map(|share| (row.name.clone(), share)));
        self.lines.1 = number + 1;
        if let Some(access) = row.access(&self.heading) {
            self.accesses.push((access, row.tally));
            return Ok(());
        }
        let unnamed = self.unnamed.take().filter(|_| row.name == UNNAMED);
        if row.name == UNNAMED && unnamed.is_none() {
            self.unknown.push((self.exits.len(), number));
            self.exits.push((Spelled::Sure(UNKNOWN_CLASS), row.tally));
            return Ok(());
        }
        let name = unnamed.map(Spelled::Sure).or_else(|| spelled(&row.name)).ok_or_else(|| {
            let name = &row.name;
            match architecture::of_reason(name) {
                Some(architecture) => architecture::refuse(architecture, 0),
                None => at_line(
                    number,
                    &format!("begins with {name:?}, which is no exit reason of x86 or arm64"),
                ),
            }
        })?;
        // perf has the kernel's own spelling: VMX in capitals.
        let name = match name {
            Spelled::Either(..) => Spelled::Sure(name.reason(Isa::Vmx)),
            sure => sure,
        };
        self.exits.push((name, row.tally));
        Ok(())
    }

    /// Names exits that perf has no name for by what its messages elsewhere in the text say. `true`: nothing says it, and they are of
    /// arm64.
    fn resolve(&mut self, said: &[Reason]) -> Result<bool, Error> {
        let Some(&(_, line)) = self.unknown.first() else { return Ok(false) };
        if let [reason] = *said {
            for &(at, _) in &self.unknown {
                self.exits[at].0 = Spelled::Sure(reason);
            }
            return Ok(false);
        }
        let is_of_arm64 = |name: &Spelled| matches!(name, Spelled::Sure(reason) if !reason.isa.facts().perf_names_all());
        if self.exits.len() > self.unknown.len()
            && self.exits.iter().all(|(name, _)| is_of_arm64(name))
        {
            return Ok(true);
        }
        Err(at_line(
            line,
            &format!("begins with {UNNAMED:?}, which is no exit reason of x86 or arm64"),
        ))
    }

    /// What is missing from it.
    fn gap(&self) -> Option<String> {
        let counted = self.counted();
        match self.claimed {
            Some(all) if all != counted && self.has_gaps => Some(format!(
                "rows are cut out of the table: those that are left have {counted} of {all} samples"
            )),
            Some(all) if all != counted => {
                Some(format!("the table's last line says {all} samples, its rows have {counted}"))
            }
            Some(_) => None,
            None if self.has_gaps => Some(format!(
                "rows are cut out of the table: those that are left are {:.1} % of its samples",
                self.share.min(100.0)
            )),
            // perf from 6.4 on has no such line.
            None if self.heading != "Event name" => {
                Some("the table has no line \"Total Samples\": it ends early".to_owned())
            }
            None => None,
        }
    }
}

/// The tables of a text, as its lines are read.
#[derive(Default)]
struct PerfKvmReader {
    sections: Vec<TextSection>,
    /// What the line above the next table says.
    about: String,
    is_live: bool,
    /// Exits that perf's messages say it has no name for, each once.
    unnamed: Vec<Reason>,
}

pub(super) fn read(text: &str, table: &mut CountsTable) -> Result<(), Error> {
    let mut reader = PerfKvmReader::default();
    // The last line may be cut anywhere, which is said of the whole text.
    let last = if text.ends_with('\n') { None } else { text.lines().count().checked_sub(1) };
    for (number, line) in text.lines().enumerate() {
        reader.line(number, line, Some(number) == last, table)?;
    }
    reader.deliver(table)
}

impl PerfKvmReader {
    fn line(
        &mut self,
        number: usize,
        line: &str,
        is_cut: bool,
        table: &mut CountsTable,
    ) -> Result<(), Error> {
        // Copies may have tabs.
        let text = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = text.as_str();
        if let Some(heading) = head(line) {
            self.begin(heading, number);
        } else if let Some(about) = text.strip_prefix("Analyze events for ") {
            about.trim_end_matches(':').clone_into(&mut self.about);
        } else if let Some(rest) = text.strip_prefix("Lost events: ") {
            table.truncated.push(format!("perf lost events ({rest} times): counts are too low"));
        } else if let Some(rest) = text.strip_prefix("Total Samples:") {
            // Groups of digits have separators in some locales; a space is behind the comma that ends the number.
            let digits = rest.split_whitespace().next().unwrap_or_default();
            self.end(row::count(digits.trim_end_matches(',')));
        } else if let Some(reason) = unnamed(text) {
            if !self.unnamed.contains(&reason) && self.unnamed.len() < MOST_UNNAMED {
                self.unnamed.push(reason);
            }
            self.sections.last_mut().into_iter().for_each(|one| one.unnamed = Some(reason));
        } else if is_time(text) {
            self.is_live = true;
        } else if let Some(row) = PerfKvmRow::read(text) {
            self.row(row, number)?;
        } else if self.is_inside() {
            if is_gap(text) {
                self.sections.last_mut().into_iter().for_each(|section| section.has_gaps = true);
            } else if looks_like_row(text) && !is_cut {
                return Err(at_line(number, "is no row of the table: NAME SAMPLES ..."));
            }
        }
        Ok(())
    }

    fn begin(&mut self, heading: &str, number: usize) {
        let about = std::mem::take(&mut self.about);
        let lines = (number + 1, number + 1);
        let heading = heading.to_owned();
        self.sections.push(TextSection { about, heading, lines, ..TextSection::default() });
    }

    fn end(&mut self, claimed: Option<u64>) {
        if let Some(section) = self.sections.last_mut().filter(|one| one.claimed.is_none()) {
            section.claimed = claimed;
        }
    }

    /// In a table of exits or accesses whose totals have not come.
    fn is_inside(&self) -> bool {
        self.sections.last().is_some_and(|one| one.claimed.is_none() && !one.is_foreign())
    }

    fn row(&mut self, row: PerfKvmRow, number: usize) -> Result<(), Error> {
        if self.sections.last().is_some_and(TextSection::is_foreign) {
            return Ok(());
        }
        if !self.is_inside() {
            // Without a heading a row must be known by its name: prose has numbers and percents too.
            if row.is_cut || spelled(&row.name).is_none() && row.access("").is_none() {
                return Ok(());
            }
            self.begin("", number);
        }
        match self.sections.last_mut() {
            Some(section) => section.add(row, number),
            None => Ok(()),
        }
    }

    fn deliver(mut self, table: &mut CountsTable) -> Result<(), Error> {
        let foreign: Vec<&str> = self
            .sections
            .iter()
            .filter(|section| section.is_foreign())
            .map(|section| section.heading.as_str())
            .collect();
        if !foreign.is_empty() {
            table.notes.push(format!("other tables are left out: {}", foreign.join(", ")));
        }
        self.sections.retain(TextSection::has_rows);
        let (exits, accesses): (Vec<TextSection>, Vec<TextSection>) =
            self.sections.into_iter().partition(|section| !section.exits.is_empty());
        let mut exits = exits;
        let mut are_unknown = false;
        for section in &mut exits {
            are_unknown |= section.resolve(&self.unnamed)?;
        }
        if are_unknown {
            table.notes.push(OF_NO_NAME.to_owned());
        }
        let frames = exits.len();
        let mut has_other_times = false;
        for section in all_or_one(exits, self.is_live, "exits")? {
            say_gaps(&section, table);
            for (name, tally) in &section.exits {
                match name {
                    Spelled::Sure(reason) if !reason.isa.facts().perf_times_exits() => {
                        table.count(*name, Detail::NONE, tally.count);
                        has_other_times |= tally.timed > 0;
                    }
                    _ => table.add(*name, Detail::NONE, tally),
                }
            }
        }
        if has_other_times {
            table.notes.push(OTHER_TIMES.to_owned());
        }
        if self.is_live && frames > 1 {
            table.notes.push(format!("{frames} tables of `perf kvm stat live` were added up"));
        }
        for of_kind in by_kind(accesses) {
            for section in all_or_one(of_kind, self.is_live, "accesses")? {
                say_gaps(&section, table);
                add_accesses(&section, table)?;
            }
        }
        Ok(())
    }
}

fn say_gaps(section: &TextSection, table: &mut CountsTable) {
    table.truncated.extend(section.gap());
    if section.cut_rows > 0 {
        let lines = section.lines;
        let mut shares: Vec<&(String, f64)> = section.time_shares.iter().collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        let shares: Vec<String> = shares
            .iter()
            .filter(|(_, share)| *share >= 1.0)
            .take(3)
            .map(|(name, share)| format!("{name} has {share:.1} %"))
            .collect();
        let of_time = match shares.is_empty() {
            true => String::new(),
            false => format!("; by Time%, of the time in exits {}", shares.join(", ")),
        };
        table.notes.push(format!(
            "{} rows of the table in lines {} to {} end before their times{of_time}",
            section.cut_rows, lines.0, lines.1
        ));
    }
}

/// The tables of one kind, which are several only where each is of another time, VM or vCPU.
fn all_or_one(
    mut all: Vec<TextSection>,
    is_live: bool,
    what: &str,
) -> Result<Vec<TextSection>, Error> {
    let same = |a: &TextSection, b: &TextSection| a.exits == b.exits && a.accesses == b.accesses;
    all.dedup_by(|second, first| !is_live && same(first, second));
    let are_parts = |all: &[TextSection]| {
        let mut abouts: Vec<&str> = all.iter().map(|one| one.about.as_str()).collect();
        abouts.sort_unstable();
        abouts.dedup();
        abouts.len() == all.len() && !abouts.iter().any(|about| is_of_all(about))
    };
    match all.as_slice() {
        [first, second, ..] if !is_live && !are_parts(&all) => {
            let ((a, b), (c, d)) = (first.lines, second.lines);
            Err(Error::malformed(
                0,
                "perf kvm stat report",
                format!(
                    "has tables of {what} in lines {a} to {b} and {c} to {d}: save each in a file of its own (sed -n {a},{b}p FILE > A; sed -n {c},{d}p FILE > B); `vmtax diff A B` compares them"
                ),
            ))
        }
        _ => Ok(all),
    }
}

/// `all VMs, all VCPUs`, or nothing that tells.
fn is_of_all(about: &str) -> bool {
    about.is_empty() || about.starts_with("all VMs") && about.ends_with("all VCPUs")
}

/// Tables of accesses: those of ports, of MSRs, and of addresses.
fn by_kind(sections: Vec<TextSection>) -> [Vec<TextSection>; 3] {
    let mut kinds: [Vec<TextSection>; 3] = Default::default();
    for section in sections {
        let is_of_ports = section.accesses.iter().all(|(access, _)| access.is_port());
        let [ports, msrs, addresses] = &mut kinds;
        let kind = match (is_of_ports, are_msrs(&section)) {
            (true, _) => ports,
            (false, true) => msrs,
            (false, false) => addresses,
        };
        kind.push(section);
    }
    kinds
}

/// Whether `0x6e0:W` is an MSR where the heading does not say: all numbers are those of MSRs.
fn are_msrs(section: &TextSection) -> bool {
    section.accesses.iter().all(|(access, _)| access.can_be_msr() || access.is_msr())
}

fn add_accesses(section: &TextSection, table: &mut CountsTable) -> Result<(), Error> {
    let are_msrs = are_msrs(section);
    if !are_msrs && section.accesses.iter().any(|(access, _)| access.can_be_msr()) {
        let problem = format!(
            "the table in lines {} to {} has numbers that can be MSRs or addresses: keep its heading (MSR Access, MMIO Access)",
            section.lines.0, section.lines.1
        );
        return Err(Error::malformed(0, "perf kvm stat report", problem));
    }
    for (access, tally) in &section.accesses {
        table.access(access.detail(are_msrs), tally);
    }
    Ok(())
}

/// `14:02:11.123456`, above a table of `perf kvm stat live`.
fn is_time(line: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit();
    line.len() == 15
        && line
            .chars()
            .zip("00:00:00.000000".chars())
            .all(|(c, pattern)| if pattern == '0' { is_digit(c) } else { c == pattern })
}

/// `[..]`, `....`, `[snip]`: rows were left out here.
fn is_gap(line: &str) -> bool {
    let inner = line.trim_matches(|c: char| "[](){}<>*-# ".contains(c)).trim();
    let is_dots = !inner.is_empty() && inner.chars().all(|c| matches!(c, '.' | '\u{2026}'));
    let words = ["snip", "snipped", "cut", "trimmed", "omitted", "truncated", "..snip.."];
    is_dots && (inner.len() > 1) || words.contains(&inner.to_ascii_lowercase().as_str())
}

/// A number behind a name, and two shares or times: no prose.
fn looks_like_row(line: &str) -> bool {
    let second = line.split_whitespace().nth(1).unwrap_or_default();
    if !second.starts_with(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let is_cell =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(['%', 's']);
    line.split_whitespace().filter(is_cell).take(2).count() == 2
}
