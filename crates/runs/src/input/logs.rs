//! Logs of benchmark programs, one or a folder of them -> a table of results.
//!
//! The path of a log in a folder names workload and kind of VM, in any order, such as
//! `network/iperf/snp-direct-medium-vhost/udp/2025-04-21-13-25-03/1460.log`. The part that names a kind of VM is the category;
//! a date, and a small number at the end, is the repetition; the rest is the workload.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use vmtax_analyse::explain::is_category;
use vmtax_capture::import::logs::{LogText, read};
use vmtax_capture::program::ProgramReading;
use vmtax_capture::source::{RandomFile, ReadAt};

use vmtax_cli::exit::{Code, CodedError, say};
use vmtax_cli::output::cannot_read;

/// Limits: longer logs, more logs and deeper folders are not read.
const MOST_BYTES: u64 = 16 << 20;
const MOST_LOGS: usize = 20_000;
const DEEPEST: usize = 10;
/// A number as a file's name is a repetition up to this, and a size from there on.
const REPEATS: u32 = 63;

/// The same as [`of_text`] of a file.
pub(super) fn of_file(
    file: &RandomFile,
    name: &str,
) -> io::Result<Option<Result<String, CodedError>>> {
    let mut text = vec![0; usize::try_from(file.len().min(MOST_BYTES)).unwrap_or(0)];
    let got = file.read_at(0, &mut text)?;
    text.truncate(got);
    Ok(of_text(&text, name))
}

/// The same of a pipe, of which `head` was read.
pub(super) fn of_stream(
    head: Vec<u8>,
    rest: &mut dyn Read,
    name: &str,
) -> io::Result<Option<Result<String, CodedError>>> {
    let mut text = head;
    // Other data is not read to its end to be refused.
    if std::str::from_utf8(&text).is_err_and(|e| e.error_len().is_some()) {
        return Ok(None);
    }
    rest.take(MOST_BYTES).read_to_end(&mut text)?;
    Ok(of_text(&text, name))
}

/// A table of the results of one log; its category is what its path says, else its name. `None` if it is no log that is known.
pub(super) fn of_text(text: &[u8], name: &str) -> Option<Result<String, CodedError>> {
    let log = match read(&String::from_utf8_lossy(text)) {
        Some(Ok(log)) if !log.program.is_empty() => log,
        Some(Err(problem)) => {
            let text = format!("{name}: this log cannot be used: {problem}");
            return Some(Err(CodedError::new(Code::Data, text)));
        }
        _ => return None,
    };
    let path = Path::new(name);
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let mut place = LogPath::of(&parts);
    if place.category.is_empty() {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        place.category = stem.unwrap_or_default();
    }
    // Two logs are compared whatever folders they lie in.
    log.program.clone_into(&mut place.workload);
    let mut table = LogTable::default();
    table.add(&place, log);
    Some(Ok(table.csv()))
}

/// A table of the results in a folder of logs; `None` if no log is in it.
pub(super) fn of_folder(folder: &Path) -> Result<Option<String>, CodedError> {
    // Opening it as a run gives the error.
    if fs::read_dir(folder).is_err() {
        return Ok(None);
    }
    let mut files = Vec::new();
    walk(folder, 0, &mut files)?;
    files.sort();
    let (mut table, mut others, mut damaged) = (LogTable::default(), Vec::new(), Vec::new());
    for path in &files {
        let name = path.display().to_string();
        let mut text = Vec::new();
        let file = File::open(path).map_err(|e| cannot_read(&name, &e))?;
        file.take(MOST_BYTES).read_to_end(&mut text).map_err(|e| cannot_read(&name, &e))?;
        let text = String::from_utf8_lossy(&text);
        let parts: Vec<&str> = path
            .strip_prefix(folder)
            .unwrap_or(path)
            .iter()
            .filter_map(|part| part.to_str())
            .collect();
        let place = LogPath::of(&parts);
        match read(&text) {
            Some(Ok(log)) if !place.category.is_empty() => table.add(&place, log),
            Some(Err(problem)) => damaged.push(format!("{name} ({problem})")),
            _ => others.push(name),
        }
    }
    table.shorten();
    if table.rows.is_empty() {
        return match damaged.first() {
            Some(first) => Err(CodedError::new(
                Code::Data,
                format!("{}: none of its logs can be used: {first}", folder.display()),
            )),
            None => Ok(None),
        };
    }
    let left_out = [
        ("logs that cannot be used", damaged),
        ("files that are no logs or in no folder that names a kind of VM", others),
    ];
    for (what, names) in left_out {
        let Some(first) = names.first() else { continue };
        let more =
            if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
        say(&format!("{}: left out, {what}: {first}{more}", folder.display()));
    }
    Ok(Some(table.csv()))
}

/// Regular files of a folder. Links are not followed.
fn walk(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), CodedError> {
    let unreadable = |e: io::Error| cannot_read(&folder.display().to_string(), &e);
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let kind = entry.file_type().map_err(unreadable)?;
        if kind.is_dir() && depth < DEEPEST {
            walk(&entry.path(), depth + 1, files)?;
        } else if kind.is_file() && files.len() < MOST_LOGS {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Workload, category and repetition of a path.
#[derive(Clone)]
struct LogPath {
    workload: String,
    category: String,
    /// Date, and the number at the end of the file's name.
    repeat: (String, u32),
}

impl LogPath {
    fn of(parts: &[&str]) -> LogPath {
        let (mut workload, mut category) = (Vec::new(), String::new());
        let mut repeat = (String::new(), 0);
        let last = parts.len().saturating_sub(1);
        for (at, part) in parts.iter().enumerate() {
            let stem = if at == last {
                part.rsplit_once('.').map_or(*part, |(stem, _)| stem)
            } else {
                part
            };
            let (rest, number) = numbered(stem);
            if is_date(stem) || at < last && is_repetition(stem) {
                repeat.0 = stem.to_owned();
            } else if is_category(stem) {
                category = stem.to_owned();
            } else if at == last && number.is_some() {
                repeat.1 = number.unwrap_or_default();
                workload.extend((!rest.is_empty()).then(|| rest.to_owned()));
            } else {
                workload.push(stem.to_owned());
            }
        }
        LogPath { workload: workload.join("-"), category, repeat }
    }
}

/// A name without the small number at its end.
fn numbered(stem: &str) -> (&str, Option<u32>) {
    let digits = stem.len() - stem.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (rest, number) = stem.split_at(stem.len() - digits);
    match number.parse::<u32>() {
        Ok(number) if number <= REPEATS && (rest.is_empty() || rest.ends_with(['-', '.', '_'])) => {
            (rest.trim_end_matches(['-', '.', '_']), Some(number))
        }
        _ => (stem, None),
    }
}

/// A date such as `2025-04-21-13-25-03`.
fn is_date(part: &str) -> bool {
    part.len() >= 8
        && part.starts_with("20")
        && part.bytes().all(|b| b.is_ascii_digit() || b"-_:T".contains(&b))
}

/// `run1`, `rep-2`, `trial_03`: a folder for each repetition.
fn is_repetition(part: &str) -> bool {
    let (name, digits) = part.split_at(part.trim_end_matches(|c: char| c.is_ascii_digit()).len());
    let name = name.trim_end_matches(['-', '_', '.']).to_ascii_lowercase();
    !digits.is_empty() && ["run", "rep", "repeat", "trial", "iter", "iteration"].contains(&&*name)
}

/// Results to be written as a table.
#[derive(Default)]
struct LogTable {
    rows: Vec<(LogPath, ProgramReading)>,
}

impl LogTable {
    fn add(&mut self, place: &LogPath, log: LogText) {
        for (part, reading) in log.readings {
            let mut place = place.clone();
            if !part.is_empty() {
                let between = if place.workload.is_empty() { "" } else { "-" };
                place.workload = format!("{}{between}{part}", place.workload);
            }
            self.rows.push((place, reading));
        }
    }

    /// Drops the folders that the names of all workloads begin with.
    fn shorten(&mut self) {
        let folders = |(place, _): &(LogPath, ProgramReading)| {
            place.workload.split_once('-').map(|(first, _)| format!("{first}-"))
        };
        while let Some(first) = self.rows.first().and_then(folders) {
            let has_it =
                |(place, _): &(LogPath, ProgramReading)| place.workload.starts_with(&first);
            let several =
                self.rows.iter().any(|(place, _)| place.workload != self.rows[0].0.workload);
            if !several || !self.rows.iter().all(has_it) {
                return;
            }
            for (place, _) in &mut self.rows {
                place.workload.drain(..first.len());
            }
        }
    }

    fn csv(&self) -> String {
        let mut text = String::from("workload,category,repeat,metric,unit,value,better\n");
        let mut repeats: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        let mut rows: Vec<&(LogPath, ProgramReading)> = self.rows.iter().collect();
        rows.sort_by(|(a, _), (b, _)| a.repeat.cmp(&b.repeat));
        for (place, reading) in rows {
            let repeat = repeats.entry((&place.workload, &place.category)).or_default();
            let cell = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
            let ProgramReading { metric, unit, value, better, .. } = reading;
            let _ = writeln!(
                text,
                "{},{},{repeat},{metric},{unit},{value},{}",
                cell(&place.workload),
                cell(&place.category),
                better.name()
            );
            *repeat += 1;
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_all_workloads_are_not_in_their_names() {
        let shortened = |paths: &[&str]| {
            let mut table = LogTable::default();
            for path in paths {
                let log = read("Time: 7.30 seconds\n").unwrap().unwrap();
                table.add(&LogPath::of(&path.split('/').collect::<Vec<_>>()), log);
            }
            table.shorten();
            table.rows.into_iter().map(|(place, _)| place.workload).collect::<Vec<_>>()
        };
        assert_eq!(
            shortened(&["network/iperf/snp/udp/1460.log", "network/ping/snp/64.log"]),
            ["iperf-udp-1460", "ping-64"]
        );
        let one = "network/iperf/snp/udp/1460.log";
        assert_eq!(shortened(&[one, &one.replace("snp", "amd")]), ["network-iperf-udp-1460"; 2]);
    }

    #[test]
    fn a_path_says_what_ran_where() {
        let of = |path: &str| {
            let place = LogPath::of(&path.split('/').collect::<Vec<_>>());
            (place.workload, place.category, place.repeat.1)
        };
        let place = |workload: &str, category: &str, repeat| {
            (workload.to_owned(), category.to_owned(), repeat)
        };
        assert_eq!(
            of("network/iperf/snp-direct-medium-vhost/udp/2025-04-21-13-25-03/1460.log"),
            place("network-iperf-udp-1460", "snp-direct-medium-vhost", 0)
        );
        assert_eq!(of("ping/amd/2025-04-21/64.log"), place("ping-64", "amd", 0));
        assert_eq!(
            of("tensorflow/tdx-direct/x/thread_8-2.log"),
            place("tensorflow-x-thread_8", "tdx-direct", 2)
        );
        assert_eq!(of("blender/tdx/3.log"), place("blender", "tdx", 3));
        assert_eq!(of("run-2/ping/tdx/64.log"), place("ping-64", "tdx", 0));
        assert_eq!(of("vmexit/snp.txt"), place("vmexit", "snp", 0));
        assert_eq!(of("notes/readme.txt").1, "");
    }
}
