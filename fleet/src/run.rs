//! One run: its `run.json` and its files.
//!
//! Only the size of a segment is checked: if it differs from `run.json`, the file is damaged and the whole run is skipped, because the rest of
//! the run would give too small counts without notice.

use std::fmt::Write as _;
use std::path::Path;

use vmtax_store::{Accelerator, Error, MANIFEST, Manifest, Segment};

use crate::folder::Folder;
use crate::unread::Unread;

/// Manifests larger than this are not read, as `vmtax-store` has it.
const MAX_BYTES: u64 = 256 << 20;
/// Bytes read at a time: in a store each read is a request.
const BLOCK: u64 = 8 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct FleetRun {
    pub folder: Folder,
    /// [`crate::schema::ATTRIBUTES`], without the mark.
    pub attributes: RunAttributes,
    /// The content of `run.json`.
    pub manifest: Manifest,
}

/// The attributes of a run. An empty text: unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunAttributes {
    /// Its path relative to the user's path, or that path.
    pub run: String,
    /// The host that was recorded.
    pub host: String,
    /// The day, `2026-01-31`.
    pub date: String,
    pub kernel: String,
    pub cpu_model: String,
    /// Its labels, see [`labels`].
    pub labels: String,
    /// It ran on an emulator.
    pub emulated: bool,
}

impl RunAttributes {
    /// The texts, in the order of [`crate::schema::ATTRIBUTES`].
    pub fn texts(&self) -> [&str; 6] {
        [&self.run, &self.host, &self.date, &self.kernel, &self.cpu_model, &self.labels]
    }
}

/// Host and day of a path with `host=H/date=D`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDay {
    pub host: Option<String>,
    pub date: Option<String>,
}

impl HostDay {
    /// Host and day of a path; the last occurrence counts.
    pub fn of(folder: &Folder) -> HostDay {
        let mut place = HostDay::default();
        for part in folder.parts() {
            if let Some(host) = part.strip_prefix("host=") {
                place.host = Some(host.to_owned());
            } else if let Some(date) = part.strip_prefix("date=") {
                place.date = Some(date.to_owned());
            }
        }
        place
    }
}

/// Why a run is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The run, or the unreadable folder.
    pub path: String,
    /// To follow "it".
    pub why: String,
}

/// Reads a run's manifest and checks its files. `name` is its path in rows.
///
/// # Errors
/// When the run is unusable.
pub fn open(folder: &Folder, name: &str) -> Result<FleetRun, Skipped> {
    let skip = |why: String| Skipped { path: folder.to_string(), why };
    let bytes = folder.whole(MANIFEST, MAX_BYTES).map_err(|unread| skip(no_manifest(&unread)))?;
    let manifest = Manifest::from_bytes(Path::new(MANIFEST), &bytes).map_err(|e| skip(why(&e)))?;
    if !manifest.complete {
        return Err(skip("was never finished: later rows are missing".to_owned()));
    }
    check_sizes(folder, &manifest.segments).map_err(&skip)?;
    Ok(FleetRun {
        attributes: attributes(folder, name, &manifest),
        folder: folder.clone(),
        manifest,
    })
}

fn why(error: &Error) -> String {
    match error {
        Error::Newer { found, supported, .. } => {
            format!(
                "is of format version {found}, and {supported} is the newest that this vmtax reads"
            )
        }
        Error::Manifest { problem, .. } => format!("is damaged: its run.json {problem}"),
        other => format!("cannot be read: {other}"),
    }
}

fn no_manifest(unread: &Unread) -> String {
    match unread {
        Unread::Closed => "may not be read by you: its run.json is closed to you".to_owned(),
        Unread::Strange => "is damaged: its run.json is not a regular file".to_owned(),
        other => format!("cannot be read: its run.json: {other}"),
    }
}

/// Checks that each listed file exists in the folder and has its size.
pub(crate) fn check_sizes(folder: &Folder, segments: &[Segment]) -> Result<(), String> {
    let mut looked = "";
    for segment in segments {
        let table = segment.path.split('/').next().unwrap_or_default();
        if table != looked {
            // A link would lead out of the run.
            if !folder.join(table).is_there() {
                return Err(format!("is damaged: {table} is no folder in it"));
            }
            looked = table;
        }
        check_size(folder, segment)?;
    }
    Ok(())
}

fn check_size(folder: &Folder, segment: &Segment) -> Result<(), String> {
    let name = &segment.path;
    match folder.size(name) {
        Ok(size) if size == segment.bytes => Ok(()),
        Ok(size) => Err(format!(
            "is damaged: {name} has {size} bytes where run.json says {}",
            segment.bytes
        )),
        Err(unread) => Err(no_file(name, &unread)),
    }
}

fn no_file(name: &str, unread: &Unread) -> String {
    match unread {
        Unread::Missing => format!("is damaged: {name} is missing"),
        Unread::Strange => format!("is damaged: {name} is not a regular file"),
        Unread::Closed => format!("may not be read by you: its {name} is closed to you"),
        other => format!("cannot be read: {name}: {other}"),
    }
}

/// Reads a listed file to its end and compares its checksum.
///
/// # Errors
/// The problem, to follow the run's name.
pub fn verify(folder: &Folder, segment: &Segment) -> Result<(), String> {
    check_size(folder, segment)?;
    let name = &segment.path;
    let mut hasher = crc32fast::Hasher::new();
    let mut start = 0;
    while start < segment.bytes {
        let end = segment.bytes.min(start + BLOCK);
        hasher.update(&folder.read(name, start..end).map_err(|unread| no_file(name, &unread))?);
        start = end;
    }
    let found = hasher.finalize();
    if found == segment.crc32 {
        return Ok(());
    }
    Err(format!(
        "is damaged: {name} has checksum {found:08x} where {:08x} is listed",
        segment.crc32
    ))
}

/// The attributes of a run's rows.
pub(crate) fn attributes(folder: &Folder, name: &str, manifest: &Manifest) -> RunAttributes {
    let place = HostDay::of(folder);
    let recording = &manifest.recording;
    RunAttributes {
        run: name.to_owned(),
        host: place.host.unwrap_or_else(|| recording.hostname.clone()),
        date: place.date.unwrap_or_else(|| manifest.created.chars().take(10).collect()),
        kernel: recording.kernel.clone(),
        cpu_model: recording.cpu.clone(),
        labels: labels(manifest.labels.iter()),
        emulated: matches!(manifest.accelerator, Accelerator::Emulated(_)),
    }
}

/// Labels as one text, `rack=a1,zone=b`, sorted by key. Separators and control characters are encoded as `%2C`.
pub fn labels<'a>(labels: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let mut text = String::new();
    for (key, value) in labels {
        if !text.is_empty() {
            text.push(',');
        }
        escape(key, &mut text);
        text.push('=');
        escape(value, &mut text);
    }
    text
}

fn escape(word: &str, text: &mut String) {
    for c in word.chars() {
        if matches!(c, ',' | '=' | '%') || c.is_control() {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                // Writing to a string cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
        } else {
            text.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn labels_cannot_be_mistaken_for_each_other() {
        let of = |pairs: &[(&str, &str)]| {
            let map: BTreeMap<String, String> =
                pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            labels(map.iter())
        };
        assert_eq!(of(&[]), "");
        assert_eq!(of(&[("zone", "b"), ("rack", "a1")]), "rack=a1,zone=b");
        assert_eq!(of(&[("a", "1,zone=c"), ("b", "%\n")]), "a=1%2Czone%3Dc,b=%25%0A");
    }

    #[test]
    fn a_path_says_host_and_day() {
        let of = |path: &str| HostDay::of(&Folder::Local(PathBuf::from(path)));
        let place = of("fleet/host=a/date=2026-01-31/7");
        assert_eq!((place.host.as_deref(), place.date.as_deref()), (Some("a"), Some("2026-01-31")));
        assert_eq!(of("runs/7"), HostDay::default());
    }
}
