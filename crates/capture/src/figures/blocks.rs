//! The text of a post -> tables, lines with figures, and relative changes, each with the title above it.

use super::is_unmeasured;
use super::programs;
use super::setup::is_setup_word;
use super::spaced;
use super::value::{Value, change, digits, known, number, plain, unit_in, value};

/// More lines than a post has.
pub(super) const LINES: usize = 10_000;
/// A shorter line of dashes is none under a title.
const UNDERLINE: usize = 4;
/// More columns than a table has.
pub(super) const COLUMNS: usize = 64;
/// Longer titles and labels are sentences.
pub(super) const LABEL: usize = 80;

#[derive(Default)]
pub(super) struct PostedTable {
    /// Its columns are apart by blanks alone: it may list anything.
    pub(super) is_spaced: bool,
    pub(super) title: String,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// Values of a line below a title.
pub(super) struct PostedLine {
    pub(super) title: String,
    /// The part of the post, and what stands above it: each is between two fences.
    pub(super) part: usize,
    pub(super) heading: String,
    pub(super) label: String,
    pub(super) unit: String,
    pub(super) values: Vec<f64>,
    /// They are repetitions, and the unit is the title's.
    pub(super) repeats: bool,
}

/// What a post has.
#[derive(Default)]
pub(super) struct Blocks {
    pub(super) tables: Vec<PostedTable>,
    pub(super) lines: Vec<PostedLine>,
    /// Title, label, and a relative change.
    pub(super) changes: Vec<(String, String, f64)>,
}

/// Tables, and lines with figures, each with the title above it.
pub(super) fn blocks(text: &str) -> Blocks {
    let Blocks { mut tables, mut lines, mut changes } = Blocks::default();
    let mut title = String::new();
    let (mut heading, mut part, mut is_fenced) = (String::new(), 0, false);
    let mut in_table = false;
    let mut is_headed = false;
    // The line before is a title that the next one may go on with.
    let mut is_begun = false;
    let mut previous = "";
    let mut at_host = None;
    let all: Vec<&str> = text.lines().take(LINES).collect();
    let mut spaced = spaced::tables(&all);
    let mut of_spaced = 0;
    for (at, &line) in all.iter().enumerate() {
        if at < of_spaced {
            continue;
        }
        if let Some((table, end)) = spaced.remove(&at) {
            tables.push(PostedTable { title: title.clone(), ..table });
            of_spaced = end;
            (in_table, is_begun) = (false, false);
            continue;
        }
        let line = line.trim_start_matches(['>', ' ', '\t']).trim_end();
        let is_item = |rest: &&str| rest.starts_with(char::is_alphabetic);
        let line = ["- ", "* "]
            .iter()
            .find_map(|mark| line.strip_prefix(mark).filter(is_item))
            .unwrap_or(line);
        if in_table && line.len() >= UNDERLINE && is_rule(line) {
            continue;
        }
        let cells = cells(line);
        if cells.len() > 1 {
            let is_rule = cells.iter().all(|cell| cell.is_empty() || is_rule(cell));
            match tables.last_mut().filter(|_| in_table) {
                Some(_) if is_rule => {}
                Some(table) => {
                    // The corner of a head may be blank.
                    if table.rows.is_empty() && table.head.len() + 1 == cells.len() {
                        table.head.insert(0, String::new());
                    }
                    table.rows.push(cells);
                }
                None => {
                    let title = title.clone();
                    tables.push(PostedTable { title, head: cells, ..PostedTable::default() });
                }
            }
            (in_table, is_headed) = (true, false);
            continue;
        }
        in_table = false;
        let before = std::mem::replace(&mut previous, line);
        // A line under a title; what stands above may look like a program's output.
        if line.len() >= UNDERLINE
            && ['#', '=', '-', '~'].iter().any(|mark| line.chars().all(|c| c == *mark))
        {
            let found = as_label(before.trim_matches(['#', '=', ' ', ':', '-']));
            if let Some(found) =
                found.filter(|_| figures(before, "").is_none() && !before.starts_with('$'))
            {
                title = found;
            }
            is_begun = false;
            continue;
        }
        if line.starts_with("```") {
            is_fenced = !is_fenced;
            part += usize::from(is_fenced);
            is_begun = false;
            continue;
        }
        // Commands on another host: its figures are not below the title.
        if let Some(host) = prompt_of(line)
            && at_host.replace(host).is_some_and(|before| before != host)
        {
            title = host.to_owned();
        }
        if !is_fenced && line.chars().any(char::is_alphabetic) {
            heading = as_heading(line);
        }
        let was_headed = is_headed;
        is_headed &= line.is_empty();
        if let Some((before, after)) = two_values(line) {
            for (title, value) in [("before", before.1), ("after", after)] {
                lines.push(PostedLine {
                    title: title.to_owned(),
                    part,
                    heading: heading.clone(),
                    label: before.0.clone(),
                    unit: value.unit.unwrap_or_default(),
                    values: vec![value.number],
                    repeats: false,
                });
            }
        } else if let Some(all) = assigned(line) {
            for (label, value) in all {
                let (title, heading) = (title.clone(), heading.clone());
                let (unit, values) = (value.unit.unwrap_or_default(), vec![value.number]);
                lines.push(PostedLine {
                    title,
                    part,
                    heading,
                    label,
                    unit,
                    values,
                    repeats: false,
                });
            }
        } else if let Some((label, unit, values, repeats)) = figures(line, &title) {
            let (title, heading) = (title.clone(), heading.clone());
            lines.push(PostedLine { title, part, heading, label, unit, values, repeats });
        } else if let Some((label, change)) = change_of(line) {
            changes.push((title.clone(), label, change));
        } else if let Some(found) = as_title(line) {
            // A sentence right under a heading is no other title.
            if was_headed && line.ends_with('.') && !line.ends_with("..") {
                continue;
            }
            is_headed = line.starts_with('#');
            let goes_on = is_begun && found.starts_with(char::is_lowercase);
            title = if goes_on { format!("{title} {found}") } else { found };
            is_begun = line.len() > LABEL / 2 && !line.ends_with(['.', ':']);
            continue;
        }
        is_begun = false;
    }
    lines.retain(|line| programs::is_of_tests(text, &line.label));
    Blocks { tables, lines, changes }
}

/// `-- numjobs=1 : IOPS = 339K, avg latency = 188.33us`: several figures of one load, each with its name. A name may be the unit.
fn assigned(line: &str) -> Option<Vec<(String, Value)>> {
    let line = line.trim_start_matches(['-', ' ', '*']);
    let (load, rest) = line.split_once(" : ").or_else(|| line.split_once(": "))?;
    let load = as_label(load)?;
    let of_part = |part: &str| {
        let (name, found) = part.split_once(" = ")?;
        let found = value(found)?;
        let unit = found.unit.or_else(|| known(name.trim()).map(|_| name.trim().to_owned()))?;
        let label = as_label(&format!("{load}, {}", name.trim()))?;
        Some((label, Value { unit: Some(unit), ..found }))
    };
    let all: Option<Vec<_>> = rest.split(", ").map(of_part).collect();
    all.filter(|all| all.len() > 1)
}

/// What stands above a fence: the beginning of its last sentence.
pub(super) fn as_heading(line: &str) -> String {
    let last = line.trim_end_matches(['.', ' ']).rsplit(". ").next().unwrap_or(line);
    plain(last.trim_matches(['#', '=', ' ', ':', '-'])).chars().take(LABEL).collect()
}

/// `boot: 1.2 s -> 0.9 s (-25 %)`: what was measured, before and after. One of the two has a unit.
pub(super) fn two_values(line: &str) -> Option<((String, Value), Value)> {
    let (before, after) = ARROWS.iter().find_map(|arrow| line.split_once(arrow))?;
    let words: Vec<&str> = before.split_whitespace().collect();
    // The value may be of two words.
    let (label, mut before) = [2, 1].into_iter().find_map(|length| {
        let (label, words) = words.split_at(words.len().checked_sub(length)?);
        Some((label.join(" "), value(&words.join(" "))?))
    })?;
    let words: Vec<&str> = after.split_whitespace().take(2).collect();
    let trimmed = |text: &str| text.trim_end_matches([',', ';', '.']).to_owned();
    let mut after =
        [2, 1].into_iter().find_map(|length| value(&trimmed(&words.get(..length)?.join(" "))))?;
    before.unit = before.unit.or_else(|| after.unit.clone());
    after.unit = after.unit.or_else(|| before.unit.clone());
    let label = as_label(label.trim_end_matches([':', '=', ' ']))?;
    (!is_unmeasured(&label)).then_some(())?;
    before.unit.is_some().then_some(((label, before), after))
}

/// Arrows between two values, or behind a label.
pub(super) const ARROWS: [&str; 5] = ["-->", "->", "=>", "\u{2192}", "\u{21d2}"];

/// A line with a relative change: `2 VMs:  +6.65%`, `boot time  -12 %`.
pub(super) fn change_of(line: &str) -> Option<(String, f64)> {
    if let Some((label, rest)) = line.rsplit_once(':')
        && let Some(found) = change(rest, false)
    {
        return Some((as_label(label)?, found));
    }
    let at = line.rfind(['+', '-', '\u{2212}']).filter(|at| line[..*at].ends_with([' ', '\t']))?;
    Some((as_label(&line[..at])?, change(&line[at..], false)?))
}

/// A rule between the rows of a table: `----+----`, `:---:`.
pub(super) fn is_rule(text: &str) -> bool {
    const MARKS: &str = "-:=+ \u{2500}\u{2501}\u{2550}\u{250c}\u{252c}\u{2510}\u{251c}\u{253c}\u{2524}\u{2514}\u{2534}\u{2518}\u{255e}\u{256a}\u{2561}";
    !text.is_empty() && text.chars().all(|c| MARKS.contains(c))
}

/// Cells of a table's row; none if they are more than a table has.
pub(super) fn cells(line: &str) -> Vec<String> {
    if !line.contains(['|', '\u{2502}']) {
        return Vec::new();
    }
    let line = line.trim_matches(['|', '\u{2502}']);
    let cells: Vec<String> = line.split(['|', '\u{2502}']).take(COLUMNS + 1).map(plain).collect();
    if cells.len() > COLUMNS { Vec::new() } else { cells }
}

/// The values of a line that has some: its label, their unit, and whether they are repetitions.
pub(super) fn figures(line: &str, title: &str) -> Option<(String, String, Vec<f64>, bool)> {
    let single = |label: &str, value: Value| {
        Some((label.to_owned(), value.unit?, vec![value.number], false))
    };
    // fio's groups, and bash's time.
    for label in ["READ", "WRITE"] {
        if let Some(rest) = line.strip_prefix(label).and_then(|rest| rest.strip_prefix(": bw=")) {
            let end = rest.find([' ', ',']).unwrap_or(rest.len());
            return single(label, value(&rest[..end])?);
        }
    }
    if let Some((word, seconds)) = time_of(line) {
        // What of it were a program's own and the kernel's is not what was measured.
        let unit = Some("s".to_owned());
        return (word == "real").then(|| single(word, Value { number: seconds, unit }))?;
    }
    if let Some((label, found)) = programs::read(line) {
        // criterion's longer names are on the line before.
        let is_named = line.starts_with("time:") && !title.is_empty() && !title.contains(' ');
        return single(if is_named { title } else { &label }, found);
    }
    // Intel's Memory Latency Checker, of one node: `0   169.3`.
    if title.starts_with("Measuring idle latencies")
        && let [node, found] = line.split_whitespace().collect::<Vec<_>>()[..]
        && node.parse::<u8>().is_ok()
    {
        let unit = unit_in(title);
        return single("idle latency", Value { number: digits(found)?, unit });
    }
    // Behind a value stands what else the program says of it: `[ 300 IOPS]`, `< 24 us>`.
    let start = line.split(['[', '<']).next().unwrap_or(line).trim();
    if let Some((label, rest)) = start.rsplit_once(": ").or_else(|| start.split_once(':'))
        && let Some(found) = value(rest).filter(|found| found.unit.is_some())
    {
        let label = as_label(label)?;
        return single(&label, found);
    }
    // `LABEL --> 31.33   (93.8%)`, `LABEL  474.69 MB/s`.
    if let Some((label, rest)) = ARROWS.iter().find_map(|arrow| line.split_once(arrow))
        && let Some(found) = value(rest).filter(|found| found.unit.is_some() || is_named(label))
    {
        let unit = found.unit.unwrap_or_default();
        return Some((as_label(label)?, unit, vec![found.number], false));
    }
    if let Some((label, found)) = stated(start).or_else(|| labelled(start)) {
        return single(&label, found);
    }
    // Three values and more, whose unit the title has.
    let unit = unit_in(title)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let first = words.iter().position(|word| number(word).is_some())?;
    let values: Vec<f64> = words[first..].iter().map_while(|word| number(word)).collect();
    let label = as_label(&words[..first].join(" "))?;
    let is_row = values.len() > 2 && first + values.len() == words.len();
    is_row.then_some((label, unit, values, true))
}

/// A label that names a set-up.
pub(super) fn is_named(label: &str) -> bool {
    label.split_whitespace().any(is_setup_word)
}

/// `AES-GCM-256-Go   197.24 MB/s    (selected)`: a label, a value and its unit, and nothing else.
pub(super) fn labelled(line: &str) -> Option<(String, Value)> {
    /// More words are a sentence.
    const WORDS: usize = 6;
    let line = match line.split_once(" (") {
        Some((before, inside)) if inside.ends_with(')') && before.contains(' ') => before,
        _ => line,
    };
    // A row of a table whose columns are apart by blanks has more before its value.
    let cells = line.split("  ").flat_map(|part| part.split('\t'));
    if cells.filter(|cell| !cell.trim().is_empty()).count() > 2 {
        return None;
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let (label, found) = [2, 1].into_iter().find_map(|length| {
        let (label, words) = words.split_at(words.len().checked_sub(length)?);
        let found = value(&words.join(" ")).filter(|found| found.unit.is_some())?;
        Some((label, found))
    })?;
    // `6.1 3 s 2 s` is a row.
    let ends_in_value = [2, 1].into_iter().any(|length| {
        let from = label.len().checked_sub(length);
        let found = from.and_then(|from| value(&label[from..].join(" ")));
        found.is_some_and(|found| found.unit.is_some())
    });
    (label.len() <= WORDS && !ends_in_value).then(|| Some((as_label(&label.join(" "))?, found)))?
}

/// `vm takes 38 seconds`, `mmap - read IOPS ~52`: a label, a verb or the unit, and the value behind it.
fn stated(line: &str) -> Option<(String, Value)> {
    const VERBS: [&str; 4] = [" takes ", " took ", " needs ", " needed "];
    /// More words are a sentence.
    const WORDS: usize = 4;
    let line = line.trim_end_matches('.');
    if let Some((label, found)) = VERBS.iter().find_map(|verb| line.split_once(verb))
        && label.split_whitespace().count() <= WORDS
        && let Some(found) = value(found).filter(|found| found.unit.is_some())
    {
        return Some((as_label(label)?, found));
    }
    let (label, found) = line.rsplit_once(' ')?;
    let (label, unit) = label.rsplit_once(' ')?;
    let found = value(found).filter(|found| found.unit.is_none() && known(unit).is_some())?;
    let found = Value { number: found.number, unit: Some(unit.to_owned()) };
    let has_dash = label.contains(" - ");
    has_dash.then(|| Some((as_label(label)?, found)))?
}

/// A label: short, and with a letter.
pub(super) fn as_label(text: &str) -> Option<String> {
    let text = plain(text).split_whitespace().collect::<Vec<_>>().join(" ");
    let is_short = text.chars().count() <= LABEL;
    (is_short && text.chars().any(char::is_alphabetic)).then_some(text)
}

/// The host of `root@host:~ make`, a prompt without a mark at its end.
fn prompt_of(line: &str) -> Option<&str> {
    let (_, host) = line.split_once(' ')?.0.split_once('@')?;
    host.split_once(":~").or_else(|| host.split_once(":/")).map(|(host, _)| host)
}

/// A line of `time`, in seconds: bash's `real 0m2.5s`, busybox's `real 0m 2.50s`. Some languages have a comma there.
fn time_of(line: &str) -> Option<(&'static str, f64)> {
    let word = ["real", "user", "sys"].into_iter().find(|word| line.starts_with(word))?;
    let (minutes, seconds) = line.get(word.len()..)?.trim().split_once('m')?;
    let seconds = seconds.trim().strip_suffix('s')?.replace(',', ".");
    let seconds = 60.0 * minutes.parse::<f64>().ok()? + seconds.parse::<f64>().ok()?;
    (seconds >= 0.0).then_some((word, seconds))
}

/// A line that may be a title: no command, no output of a program, no long sentence.
pub(super) fn as_title(line: &str) -> Option<String> {
    // An item of a list, `2. 1000 instances`.
    let is_item = line.split_once(". ").is_some_and(|(number, rest)| {
        number.parse::<u8>().is_ok() && rest.starts_with(char::is_alphanumeric)
    });
    if is_item && line.len() <= LABEL / 2 {
        return Some(line.trim_end_matches(':').to_owned());
    }
    let has_value = line
        .split_whitespace()
        .next()
        .is_some_and(|word| value(word.trim_end_matches(',')).is_some());
    let assigns = line
        .match_indices('=')
        .any(|(at, _)| line[at + 1..].starts_with(|c: char| c.is_ascii_digit()));
    let is_command = prompt_of(line).is_some()
        || ["$ ", "# ", " --", "./"]
            .iter()
            .any(|mark| line.trim_start_matches(['#', ' ']).contains(mark));
    let has_value = has_value || time_of(line).is_some();
    // A command may be told of: `make -j4   # host`.
    if is_command
        && let Some((_, comment)) = line.trim_start_matches(['#', ' ']).rsplit_once(" # ")
        && let Some(comment) = as_label(comment)
    {
        return Some(comment);
    }
    let is_output = has_value
        || assigns
        || is_command
        || ["time ", "```", "Numa node", "[ ID]"].iter().any(|start| line.starts_with(start));
    let text = line.trim_matches(['#', '=', ' ', ':', '-']).split("<-").next()?.trim();
    as_label(text).filter(|_| !is_output).map(|text| text.trim_end_matches(':').to_owned())
}
