//! One run as the fleet sees it: what `run.json` says of it, and its files.
//!
//! Nothing of a segment is read here but its size: a file that is shorter or longer than `run.json` says is
//! damaged, and its whole run is left out, because what remains of a run counts too little without saying so.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vmtax_store::{Accelerator, Error, Manifest, Run, Segment, Table};

/// A run that can be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetRun {
    /// Its folder.
    pub folder: PathBuf,
    /// [`crate::schema::ATTRIBUTES`], without the mark.
    pub attributes: Attributes,
    /// What `run.json` says.
    pub manifest: Manifest,
}

/// What rows carry of their run. An empty text: the run does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Its path below the tree that was named, or as it was named itself.
    pub run: String,
    /// The host that was recorded.
    pub host: String,
    /// The day, `2026-01-31`.
    pub date: String,
    /// The host's kernel.
    pub kernel: String,
    /// The host's processor.
    pub cpu_model: String,
    /// Its labels, see [`labels`].
    pub labels: String,
    /// It ran on an emulator.
    pub emulated: bool,
}

impl Attributes {
    /// The texts, in the order of [`crate::schema::ATTRIBUTES`].
    pub fn texts(&self) -> [&str; 6] {
        [&self.run, &self.host, &self.date, &self.kernel, &self.cpu_model, &self.labels]
    }
}

/// Where a path says `host=H/date=D`, that is the host and the day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The host.
    pub host: Option<String>,
    /// The day.
    pub date: Option<String>,
}

impl Place {
    /// What the parts of a path say. The last of several counts.
    pub fn of(path: &Path) -> Place {
        let mut place = Place::default();
        for part in path.iter().filter_map(|part| part.to_str()) {
            if let Some(host) = part.strip_prefix("host=") {
                place.host = Some(host.to_owned());
            } else if let Some(date) = part.strip_prefix("date=") {
                place.date = Some(date.to_owned());
            }
        }
        place
    }
}

/// Why a run is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The run, or the folder that could not be looked into.
    pub path: PathBuf,
    /// To follow "it".
    pub why: String,
}

/// Reads a run's manifest and looks at its files. Rows will carry `name`.
///
/// # Errors
/// When the run cannot be asked: why.
pub fn open(folder: &Path, name: &str) -> Result<FleetRun, Skipped> {
    let skip = |why: String| Skipped { path: folder.to_owned(), why };
    let run = Run::open(folder).map_err(|error| skip(why(&error)))?;
    if !run.is_complete() {
        return Err(skip("was never finished: later rows are missing".to_owned()));
    }
    let manifest = run.manifest().clone();
    check_sizes(folder, &manifest.segments).map_err(&skip)?;
    Ok(FleetRun {
        attributes: attributes(folder, name, &manifest),
        folder: folder.to_owned(),
        manifest,
    })
}

impl FleetRun {
    /// The listed files of a table.
    pub fn files(&self, table: Table) -> impl Iterator<Item = (&Segment, PathBuf)> {
        self.manifest.segments_of(table).map(|s| (s, self.folder.join(&s.path)))
    }
}

fn why(error: &Error) -> String {
    match error {
        Error::Newer { found, supported, .. } => {
            format!(
                "is of format version {found}, and {supported} is the newest that this vmtax reads"
            )
        }
        Error::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            "may not be read by you: its run.json is closed to you".to_owned()
        }
        Error::Manifest { problem, .. } => format!("is damaged: its run.json {problem}"),
        other => format!("cannot be read: {other}"),
    }
}

/// Each listed file is there, is a file of the folder, and has its size.
pub(crate) fn check_sizes(folder: &Path, segments: &[Segment]) -> Result<(), String> {
    let mut looked = "";
    for segment in segments {
        let table = segment.path.split('/').next().unwrap_or_default();
        if table != looked {
            // A link would lead out of the run.
            let found = folder.join(table).symlink_metadata();
            if !found.is_ok_and(|found| found.is_dir()) {
                return Err(format!("is damaged: {table} is no folder in it"));
            }
            looked = table;
        }
        check_size(folder, segment)?;
    }
    Ok(())
}

fn check_size(folder: &Path, segment: &Segment) -> Result<(), String> {
    let name = &segment.path;
    match folder.join(name).symlink_metadata() {
        Ok(found) if !found.is_file() => Err(format!("is damaged: {name} is not a regular file")),
        Ok(found) if found.len() != segment.bytes => Err(format!(
            "is damaged: {name} has {} bytes where run.json says {}",
            found.len(),
            segment.bytes
        )),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(format!("is damaged: {name} is missing"))
        }
        Err(e) => Err(format!("cannot be read: {name}: {}", e.kind())),
    }
}

/// Reads a listed file to its end and compares its checksum.
///
/// # Errors
/// What is wrong with it, to follow its run's name.
pub fn verify(folder: &Path, segment: &Segment) -> Result<(), String> {
    check_size(folder, segment)?;
    let name = &segment.path;
    let mut hasher = crc32fast::Hasher::new();
    let mut block = vec![0; 256 << 10];
    let mut file = fs::File::open(folder.join(name))
        .map_err(|e| format!("cannot be read: {name}: {}", e.kind()))?;
    loop {
        match io::Read::read(&mut file, &mut block) {
            Ok(0) => break,
            Ok(n) => hasher.update(&block[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(format!("cannot be read: {name}: {}", e.kind())),
        }
    }
    let found = hasher.finalize();
    if found == segment.crc32 {
        return Ok(());
    }
    Err(format!(
        "is damaged: {name} has checksum {found:08x} where run.json says {:08x}",
        segment.crc32
    ))
}

/// What rows of a run carry.
pub(crate) fn attributes(folder: &Path, name: &str, manifest: &Manifest) -> Attributes {
    let place = Place::of(folder);
    let recording = &manifest.recording;
    Attributes {
        run: name.to_owned(),
        host: place.host.unwrap_or_else(|| recording.hostname.clone()),
        date: place.date.unwrap_or_else(|| manifest.created.chars().take(10).collect()),
        kernel: recording.kernel.clone(),
        cpu_model: recording.cpu.clone(),
        labels: labels(manifest.labels.iter()),
        emulated: matches!(manifest.accelerator, Accelerator::Emulated(_)),
    }
}

/// Labels as one text, `rack=a1,zone=b`: by key, and what would be read as another label, or acts on a terminal,
/// as `%2C`.
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
        let place = Place::of(Path::new("fleet/host=a/date=2026-01-31/7"));
        assert_eq!((place.host.as_deref(), place.date.as_deref()), (Some("a"), Some("2026-01-31")));
        assert_eq!(Place::of(Path::new("runs/7")), Place::default());
    }
}
