//! `run.json`: facts of a run, and its segments.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use vmtax_durable::FileAccess;
use vmtax_events::{Losses, Recording};

use crate::{Error, StoredTable, profile_path};

/// The version of the run folder that this crate writes, and the newest that it reads.
pub const FORMAT_VERSION: u64 = 1;

/// Name of the manifest inside the run.
pub const MANIFEST: &str = "run.json";

/// Manifests larger than this are not read: one entry is about 100 bytes, so this is no run.
const MAX_BYTES: u64 = 256 << 20;

/// What `run.json` says.
///
/// One JSON object with exactly these fields, in this order. Fields may be added within a format
/// version: readers ignore fields that they do not know. Times are integers of nanoseconds on the
/// recorder's clock unless the name says otherwise; numbers can need all of 64 bits.
///
/// ```json
/// {
///   "format_version": 1,
///   "tool_version": "0.1.0",
///   "command": ["vmtax", "import", "perf.data", "-o", "run"],
///   "created": "2026-01-31T12:00:00Z",
///   "complete": true,
///   "interval_ns": 1000000000,
///   "span": {"start_ns": 12000000000, "end_ns": 15250000000},
///   "accelerator": "unknown",
///   "recording": {
///     "format": "perf.data", "tool": "perf 6.1.192", "command": "perf kvm stat record -p 1",
///     "hostname": "h", "kernel": "6.1.0", "arch": "x86_64", "cpu": "AMD EPYC 9654", "cpus": 192,
///     "clock": "mono",
///     "coverage": {"exits": true, "nested": false},
///     "vms": [{"id": 4711, "name": "qemu-system-x86", "inferred": false}]
///   },
///   "labels": {"workload": "redis"},
///   "losses": {"recorder_lost": 0, "truncated": [], "notes": []},
///   "segments": [
///     {"path": "exits/000001.parquet", "rows": 812, "bytes": 23901, "crc32": "0a1b2c3d"}
///   ]
/// }
/// ```
///
/// (`coverage` and `losses` are shortened here: they hold every field of [`vmtax_events::Coverage`] and [`Losses`].)
/// Until the run is finished, `complete` is false and `recording` and `losses` may be empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u64,
    /// Version of the tool that wrote the run.
    #[serde(default)]
    pub tool_version: String,
    /// The command that made the run: program and arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// When the run was made: RFC 3339, UTC, wall clock of the machine that wrote it.
    #[serde(default)]
    pub created: String,
    /// The run was finished. Otherwise the writer was stopped, and later rows are missing.
    pub complete: bool,
    /// Length of the intervals that rows are counted in, ns.
    pub interval_ns: u64,
    /// The time that the rows cover, absent while there are none.
    #[serde(default)]
    pub span: Option<Span>,
    /// What ran the host. It says what [`Recording::emulated`] says, which is not stored again.
    #[serde(default)]
    pub accelerator: Accelerator,
    /// Facts of the recording; `clock` is the clock of all time stamps.
    #[serde(default)]
    pub recording: Recording,
    /// Free labels that the user gave.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Losses of the recording and the import.
    #[serde(default)]
    pub losses: Losses,
    /// The finished segments, oldest first within each table. Other files are not part of the run.
    pub segments: Vec<Segment>,
    /// The profiles; `rows` are stacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<Segment>,
}

/// The time that the rows of a run cover, ns on the recorder's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Time of the first event, or start of the first interval when it was not given to the writer.
    pub start_ns: u64,
    /// Time of the last event, or end of the last interval when it was not given to the writer.
    pub end_ns: u64,
}

impl Span {
    /// The smallest span that holds both.
    pub(crate) fn around(self, other: Span) -> Span {
        Span { start_ns: self.start_ns.min(other.start_ns), end_ns: self.end_ns.max(other.end_ns) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Path inside the run, `exits/000001.parquet`.
    pub path: String,
    pub rows: u64,
    /// Size of the file.
    pub bytes: u64,
    /// CRC-32 (IEEE, as of gzip) of the file; eight hexadecimal digits in JSON.
    #[serde(with = "hex")]
    pub crc32: u32,
}

/// The platform of the recorded host. Times of an emulated host are never compared with others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Accelerator {
    /// A processor; `hardware`. Only who started the host can know: no recording shows it.
    Hardware,
    /// This emulator; `emulated:QEMU TCG`.
    Emulated(String),
    /// The recording does not say; `unknown`.
    #[default]
    Unknown,
}

impl Accelerator {
    /// What a recording shows.
    pub fn of(recording: &Recording) -> Accelerator {
        match &recording.emulated {
            Some(emulator) => Accelerator::Emulated(emulator.clone()),
            // Some emulators carry the names of real processors, so no name proves one.
            None => Accelerator::Unknown,
        }
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Accelerator::Hardware => f.write_str("hardware"),
            Accelerator::Emulated(emulator) => write!(f, "emulated:{emulator}"),
            Accelerator::Unknown => f.write_str("unknown"),
        }
    }
}

impl From<Accelerator> for String {
    fn from(accelerator: Accelerator) -> String {
        accelerator.to_string()
    }
}

impl TryFrom<String> for Accelerator {
    type Error = String;

    fn try_from(word: String) -> Result<Accelerator, String> {
        match (word.as_str(), word.strip_prefix("emulated:")) {
            (_, Some(emulator)) => Ok(Accelerator::Emulated(emulator.to_owned())),
            ("hardware", _) => Ok(Accelerator::Hardware),
            ("unknown", _) => Ok(Accelerator::Unknown),
            _ => Err(format!("accelerator {word:?} is not known to this vmtax")),
        }
    }
}

impl Manifest {
    /// The segments of one table, in the order to read them.
    pub fn segments_of(&self, table: StoredTable) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |s| StoredTable::of_path(&s.path) == Ok(Some(table)))
    }

    /// Reads and checks `run.json`.
    pub(crate) fn read(path: &Path) -> Result<Manifest, Error> {
        Manifest::from_bytes(path, &read_capped(path)?)
    }

    /// Checks what `run.json` holds; `path` is for the error.
    ///
    /// # Errors
    /// When it does not describe a run, or a newer version wrote it.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Manifest, Error> {
        let problem = |problem| Error::Manifest { path: path.to_owned(), problem };
        // The version first: what else a newer file holds need not make sense here.
        let value: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|e| problem(format!("is not JSON ({e})")))?;
        let version = value.get("format_version").and_then(serde_json::Value::as_u64);
        match version {
            Some(version) if version > FORMAT_VERSION => {
                let tool = value.get("tool_version").and_then(serde_json::Value::as_str);
                return Err(Error::Newer {
                    path: path.to_owned(),
                    found: version,
                    supported: FORMAT_VERSION,
                    tool_version: tool.unwrap_or_default().to_owned(),
                });
            }
            Some(1..) => {}
            _ => return Err(problem("has no format_version, a number from 1".to_owned())),
        }
        let mut manifest: Manifest = serde_json::from_slice(bytes)
            .map_err(|e| problem(format!("does not describe a run ({e})")))?;
        if let Accelerator::Emulated(emulator) = &manifest.accelerator {
            manifest.recording.emulated = Some(emulator.clone());
        }
        manifest.check_segments().map_err(problem)?;
        Ok(manifest)
    }

    fn check_segments(&self) -> Result<(), String> {
        let mut seen = HashSet::new();
        for Segment { path, .. } in &self.segments {
            if StoredTable::of_path(path).is_err() {
                return Err(format!("lists {path:?}, which cannot be the path of a segment"));
            }
            if !seen.insert(path) {
                return Err(format!("lists {path:?} twice"));
            }
        }
        for Segment { path, .. } in &self.profiles {
            if profile_path::place(path).is_err() {
                return Err(format!("lists {path:?}, which cannot be the path of a profile"));
            }
            if !seen.insert(path) {
                return Err(format!("lists {path:?} twice"));
            }
        }
        Ok(())
    }

    /// Puts this manifest in place of the one in `folder`, and syncs both. On an error the old one is still there, unless only the
    /// folder could not be synced.
    pub(crate) fn replace(&self, folder: &Path) -> Result<(), Error> {
        let path = folder.join(MANIFEST);
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|e| Error::Manifest {
            path: path.clone(),
            problem: format!("cannot be written as JSON ({e})"),
        })?;
        bytes.push(b'\n');
        vmtax_durable::write(&path, FileAccess::Private, &bytes)
            .map_err(Error::io(&path, "write the manifest"))
    }
}

fn read_capped(path: &Path) -> Result<Vec<u8>, Error> {
    let problem =
        |problem: &str| Err(Error::Manifest { path: path.to_owned(), problem: problem.to_owned() });
    // Before opening: opening a pipe would wait for a writer.
    if !path.metadata().map_err(Error::io(path, "read the manifest"))?.is_file() {
        return problem("is not a regular file");
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(Error::io(path, "read the manifest"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return problem("is larger than 256 MiB");
    }
    Ok(bytes)
}

/// A checksum as eight hexadecimal digits.
mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(crc32: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{crc32:08x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
        let digits = String::deserialize(d)?;
        if digits.len() != 8 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(D::Error::custom(format!("{digits:?} is not a checksum of 8 hex digits")));
        }
        u32::from_str_radix(&digits, 16).map_err(D::Error::custom)
    }
}
