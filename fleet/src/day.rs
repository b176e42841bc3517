//! A compacted day: the rows of many runs in few sorted files.
//!
//! ```text
//! TREE/compacted/date=D/
//!   day.json              what runs are in it, each with its run.json; the files, with size and checksum
//!   exits/000001.parquet  the columns of a run's file, and those of `schema::ATTRIBUTES`
//! ```
//!
//! Rows are in the order of host, run and the run's own files. A day counts only when its `day.json` is there, which
//! is written last; from then on its runs are read here and not where they were.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vmtax_store::{Manifest, Segment, StoredTable};

use crate::folder::Folder;
use crate::run::{self, FleetRun, Skipped};
use crate::unread::Unread;

/// Name of the manifest of a day.
pub const MANIFEST: &str = "day.json";
/// Name of the folder of days in a tree.
pub const FOLDER: &str = "compacted";
/// The version that is written, and the newest that is read.
pub const FORMAT_VERSION: u64 = 1;
/// Manifests larger than this are not read: a run takes a few KiB, so this is no day.
const MAX_BYTES: u64 = 4 << 30;

/// `day.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DayManifest {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u64,
    /// Version of the tool that wrote it.
    pub tool_version: String,
    pub date: String,
    /// What is in it.
    pub runs: Vec<DayRun>,
    pub segments: Vec<Segment>,
}

/// A run of a day.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DayRun {
    /// Its path in the tree.
    pub path: String,
    /// Its `run.json`.
    pub manifest: Manifest,
}

/// A day that can be asked.
#[derive(Debug)]
pub struct Day {
    pub folder: Folder,
    pub date: String,
    /// Its runs; the folders are where they were.
    pub runs: Vec<Arc<FleetRun>>,
    pub segments: Vec<Segment>,
}

impl Day {
    /// The files of a table.
    pub fn segments_of(&self, table: StoredTable) -> impl Iterator<Item = &Segment> {
        let prefix = format!("{}/", table.name());
        self.segments.iter().filter(move |s| s.path.starts_with(&prefix))
    }
}

/// Reads a day's manifest and looks at its files.
///
/// # Errors
/// When the day cannot be asked: why.
pub fn open(root: &Folder, folder: &Folder) -> Result<Day, Skipped> {
    let skip = |why: String| Skipped { path: folder.to_string(), why };
    let DayManifest { date, runs, segments, .. } = read(folder).map_err(skip)?;
    run::check_sizes(folder, &segments).map_err(skip)?;
    let runs = runs.into_iter().map(|DayRun { path, manifest }| {
        let folder = root.join(&path);
        Arc::new(FleetRun {
            attributes: run::attributes(&folder, &path, &manifest),
            folder,
            manifest,
        })
    });
    let runs: Vec<_> = runs.collect();
    // A filter on the date decides about all rows of a day at once.
    if let Some(other) = runs.iter().find(|run| run.attributes.date != date) {
        return Err(skip(format!(
            "is damaged: its {MANIFEST} has {:?}, which is not of that day",
            other.attributes.run
        )));
    }
    Ok(Day { folder: folder.clone(), date, runs, segments })
}

/// Reads all of a day's files and compares their checksums.
///
/// # Errors
/// What is wrong, as [`open`].
pub fn verify(day: &Day) -> Result<(), Skipped> {
    let damage = day.segments.iter().find_map(|s| run::verify(&day.folder, s).err());
    damage.map_or(Ok(()), |why| Err(Skipped { path: day.folder.to_string(), why }))
}

/// `day.json` of a folder.
///
/// # Errors
/// What is wrong with it, to follow the folder's name.
pub fn read(folder: &Folder) -> Result<DayManifest, String> {
    let bytes = folder.whole(MANIFEST, MAX_BYTES).map_err(|unread| match unread {
        Unread::Strange => format!("is damaged: its {MANIFEST} is not a regular file"),
        other => format!("cannot be read: its {MANIFEST}: {other}"),
    })?;
    let damaged =
        |e: serde_json::Error| format!("is damaged: its {MANIFEST} does not describe a day ({e})");
    let day: DayManifest = serde_json::from_slice(&bytes).map_err(damaged)?;
    if day.format_version > FORMAT_VERSION {
        return Err(format!(
            "is of format version {}, and {FORMAT_VERSION} is the newest that this vmtax reads",
            day.format_version
        ));
    }
    let strange = |path: &str| path.split('/').any(|part| matches!(part, "" | "." | ".."));
    let paths = day.segments.iter().map(|s| &s.path).chain(day.runs.iter().map(|r| &r.path));
    match paths.into_iter().find(|path| strange(path)) {
        Some(path) => {
            Err(format!("is damaged: its {MANIFEST} names {path:?}, which leads out of it"))
        }
        None => Ok(day),
    }
}
