//! Which runs there are below the paths that a user names, and which of them a query needs.
//!
//! ```text
//! paths ──find──> folders ──host, date of the path──> run.json ──all attributes──> files
//!                               not read if the query         not opened if the query
//!                               does not want them            does not want them
//! ```
//!
//! A run that cannot be asked is left out and told of, [`Fleet::skipped`]. Links in a tree are not followed: they
//! could lead out of what the user named.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use vmtax_store::Table;

use crate::day::{self, Day};
use crate::run::{self, Attributes, FleetRun, Place, Skipped};

/// Folders below a path that are looked into, one in another.
const DEPTH: usize = 8;

/// Runs that can be asked.
#[derive(Debug)]
pub struct Fleet {
    found: Vec<Found>,
    days: Vec<Arc<Day>>,
    opened: Mutex<HashMap<usize, Option<Arc<FleetRun>>>>,
    skipped: Mutex<BTreeMap<PathBuf, String>>,
    wanted: Mutex<HashSet<PathBuf>>,
}

/// A folder with a `run.json`.
#[derive(Debug)]
struct Found {
    folder: PathBuf,
    name: String,
    place: Place,
}

/// What a query needs.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Single runs.
    pub runs: Vec<Arc<FleetRun>>,
    /// Compacted days, each with those of its runs that are wanted.
    pub days: Vec<(Arc<Day>, Vec<Arc<FleetRun>>)>,
}

impl Selection {
    /// Every wanted run, however it is stored.
    pub fn all(&self) -> impl Iterator<Item = &Arc<FleetRun>> {
        self.runs.iter().chain(self.days.iter().flat_map(|(_, runs)| runs))
    }
}

/// Says of each run whether a query wants it. The first answer rests on host and day alone, which a path can say.
pub trait Wants: Sync {
    /// The answers, one for each.
    ///
    /// # Errors
    /// A sentence.
    fn wants(&self, runs: &[&Attributes], place_only: bool) -> Result<Vec<bool>, String>;
}

/// Why no fleet could be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoFleet {
    /// A path cannot be opened.
    Input(String),
    /// There is nothing to ask below the paths.
    Data(String),
}

impl Fleet {
    /// Looks for runs: each path is a run, or a tree of them.
    ///
    /// # Errors
    /// When a path cannot be opened, or two runs have the same name.
    pub fn find(paths: &[PathBuf]) -> Result<Fleet, NoFleet> {
        let mut search = Search::default();
        for path in paths {
            search.path(path)?;
        }
        let Search { found, days, skipped } = search;
        let (days, mut skipped) = open_days(days, skipped);
        let superseded: HashSet<&Path> =
            days.iter().flat_map(|d| d.runs.iter().map(|run| run.folder.as_path())).collect();
        let mut names: HashMap<&str, &Path> = days
            .iter()
            .flat_map(|d| &d.runs)
            .map(|r| (r.attributes.run.as_str(), r.folder.as_path()))
            .collect();
        let found: Vec<Found> =
            found.into_iter().filter(|f| !superseded.contains(f.folder.as_path())).collect();
        for run in &found {
            match names.insert(&run.name, &run.folder) {
                Some(other) if other == run.folder => {
                    skipped.insert(run.folder.clone(), "is named twice".to_owned());
                }
                Some(other) => {
                    return Err(NoFleet::Data(format!(
                        "{} and {} would both be called {}; name one path above both, or ask one at a time",
                        other.display(),
                        run.folder.display(),
                        run.name
                    )));
                }
                None => {}
            }
        }
        Ok(Fleet {
            found,
            days,
            opened: Mutex::default(),
            skipped: Mutex::new(skipped),
            wanted: Mutex::default(),
        })
    }

    /// No folder that could be a run was found.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty() && self.days.is_empty()
    }

    /// There are compacted days.
    pub fn has_days(&self) -> bool {
        !self.days.is_empty()
    }

    /// The runs that are wanted, opened. Those that cannot be asked are left out.
    ///
    /// # Errors
    /// What `wants` says.
    pub fn select(&self, wants: &dyn Wants) -> Result<Selection, String> {
        let placed: Vec<Attributes> = self.found.iter().map(of_place).collect();
        let answers = wants.wants(&placed.iter().collect::<Vec<_>>(), true)?;
        let candidates: Vec<usize> = (0..self.found.len())
            .filter(|&i| {
                answers[i]
                    || self.found[i].place.host.is_none()
                    || self.found[i].place.date.is_none()
            })
            .collect();
        let opened = self.open(&candidates);
        let runs = keep(opened, wants)?;
        let mut days = Vec::new();
        for day in &self.days {
            let runs = keep(day.runs.clone(), wants)?;
            if !runs.is_empty() {
                days.push((Arc::clone(day), runs));
            }
        }
        let selection = Selection { runs, days };
        lock(&self.wanted).extend(selection.all().map(|run| run.folder.clone()));
        Ok(selection)
    }

    /// Opens what is not open yet.
    fn open(&self, candidates: &[usize]) -> Vec<Arc<FleetRun>> {
        let mut opened = lock(&self.opened);
        let missing: Vec<usize> =
            candidates.iter().copied().filter(|i| !opened.contains_key(i)).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = missing.len().div_ceil(threads).max(1);
        let open = |i: &usize| {
            let found = &self.found[*i];
            (*i, run::open(&found.folder, &found.name))
        };
        let results: Vec<(usize, Result<FleetRun, Skipped>)> = std::thread::scope(|scope| {
            let parts: Vec<_> = missing
                .chunks(share)
                .map(|part| scope.spawn(move || part.iter().map(open).collect::<Vec<_>>()))
                .collect();
            parts.into_iter().flat_map(|part| part.join().unwrap_or_default()).collect()
        });
        for (i, result) in results {
            let run = result.map(Arc::new).map_err(|Skipped { path, why }| {
                lock(&self.skipped).insert(path, why);
            });
            opened.insert(i, run.ok());
        }
        candidates.iter().filter_map(|i| opened.get(i)?.clone()).collect()
    }

    /// Reads every file that a query has wanted so far, and leaves out the runs of which one is damaged. Returns
    /// how many that are.
    pub fn leave_out_damaged(&self) -> usize {
        let mut opened = lock(&self.opened);
        let mut count = 0;
        for slot in opened.values_mut() {
            let Some(run) = slot else { continue };
            let damage =
                run.manifest.segments.iter().find_map(|s| run::verify(&run.folder, s).err());
            if let Some(why) = damage {
                lock(&self.skipped).insert(run.folder.clone(), why);
                lock(&self.wanted).remove(&run.folder);
                *slot = None;
                count += 1;
            }
        }
        count
    }

    /// The files of the single runs that were opened so far.
    pub fn files(&self) -> Vec<(Table, PathBuf)> {
        let opened = lock(&self.opened);
        let of_run = |run: &Arc<FleetRun>| {
            Table::ALL
                .into_iter()
                .flat_map(|table| {
                    run.files(table).map(move |(_, path)| (table, path)).collect::<Vec<_>>()
                })
                .collect::<Vec<_>>()
        };
        opened.values().flatten().flat_map(of_run).collect()
    }

    /// What was left out so far, and why.
    pub fn skipped(&self) -> Vec<Skipped> {
        let skipped = lock(&self.skipped);
        skipped.iter().map(|(path, why)| Skipped { path: path.clone(), why: why.clone() }).collect()
    }

    /// How many runs queries have wanted so far.
    pub fn wanted(&self) -> usize {
        lock(&self.wanted).len()
    }
}

/// A thread that panicked with it has left nothing half done: every change is one call.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of_place(found: &Found) -> Attributes {
    Attributes {
        host: found.place.host.clone().unwrap_or_default(),
        date: found.place.date.clone().unwrap_or_default(),
        ..Attributes::default()
    }
}

fn keep(runs: Vec<Arc<FleetRun>>, wants: &dyn Wants) -> Result<Vec<Arc<FleetRun>>, String> {
    let attributes: Vec<&Attributes> = runs.iter().map(|run| &run.attributes).collect();
    let answers = wants.wants(&attributes, false)?;
    Ok(runs.into_iter().zip(answers).filter(|(_, wanted)| *wanted).map(|(run, _)| run).collect())
}

/// A day that is damaged is told of, and its runs are asked one by one where they are still there.
fn open_days(
    days: Vec<(PathBuf, PathBuf)>,
    mut skipped: BTreeMap<PathBuf, String>,
) -> (Vec<Arc<Day>>, BTreeMap<PathBuf, String>) {
    let mut opened = Vec::new();
    for (root, folder) in days {
        match day::open(&root, &folder) {
            Ok(day) => opened.push(Arc::new(day)),
            Err(Skipped { path, why }) => {
                skipped.insert(path, why);
            }
        }
    }
    (opened, skipped)
}

#[derive(Default)]
struct Search {
    found: Vec<Found>,
    /// The tree and the folder in it.
    days: Vec<(PathBuf, PathBuf)>,
    skipped: BTreeMap<PathBuf, String>,
}

impl Search {
    fn path(&mut self, named: &Path) -> Result<(), NoFleet> {
        let refused = |e: io::Error| {
            let what = match e.kind() {
                io::ErrorKind::NotFound => {
                    "there is no such file or folder; check the path".to_owned()
                }
                io::ErrorKind::PermissionDenied => {
                    "you may not look into it; ask its owner, or run as a user who may".to_owned()
                }
                kind => format!("cannot be looked into: {kind}"),
            };
            NoFleet::Input(format!("{}: {what}", named.display()))
        };
        if named.symlink_metadata().is_err() && named.iter().any(is_pattern) {
            return self.pattern(named, &refused);
        }
        // Once, so that what is opened later is what was found, wherever links on the way lead.
        let root = fs::canonicalize(named).map_err(refused)?;
        if root.is_file() {
            let hint = "is a file; name the folder of its run, or a tree of runs";
            return Err(NoFleet::Input(format!("{}: {hint}", named.display())));
        }
        if has(&root, vmtax_store::MANIFEST) {
            let name = named.to_string_lossy().into_owned();
            self.found.push(Found { place: Place::of(&root), folder: root, name });
            return Ok(());
        }
        fs::read_dir(&root).map_err(refused)?;
        self.walk(&root, &root, DEPTH);
        Ok(())
    }

    /// What matches, part by part: `host=web*/date=2026-11-*`. The tree is what stands before the first such part.
    fn pattern(
        &mut self,
        named: &Path,
        refused: &dyn Fn(io::Error) -> NoFleet,
    ) -> Result<(), NoFleet> {
        let tree: PathBuf = named.iter().take_while(|part| !is_pattern(part)).collect();
        let tree = if tree.as_os_str().is_empty() { PathBuf::from(".") } else { tree };
        let root = fs::canonicalize(tree).map_err(refused)?;
        let mut folders = vec![root.clone()];
        for part in named.iter().skip_while(|part| !is_pattern(part)) {
            let pattern = glob::Pattern::new(&part.to_string_lossy()).map_err(|e| {
                NoFleet::Input(format!("{}: is no pattern: {}", named.display(), e.msg))
            })?;
            let mut below = Vec::new();
            for folder in &folders {
                below.extend(entries(folder).map_err(refused)?);
            }
            below.retain(|path| {
                path.file_name().is_some_and(|name| pattern.matches(&name.to_string_lossy()))
            });
            folders = below;
        }
        if folders.is_empty() {
            return Err(NoFleet::Input(format!("{}: no folder matches it", named.display())));
        }
        folders.iter().for_each(|folder| self.walk(&root, folder, DEPTH));
        Ok(())
    }

    fn walk(&mut self, root: &Path, folder: &Path, depth: usize) {
        if has(folder, day::MANIFEST) {
            self.days.push((root.to_owned(), folder.to_owned()));
            return;
        }
        if folder != root && has(folder, vmtax_store::MANIFEST) {
            let name = folder.strip_prefix(root).unwrap_or(folder).to_string_lossy().into_owned();
            let folder = folder.to_owned();
            self.found.push(Found { place: Place::of(&folder), folder, name });
            return;
        }
        if depth == 0 {
            self.skipped.insert(folder.to_owned(), format!("is more than {DEPTH} folders deep"));
            return;
        }
        match entries(folder) {
            Ok(folders) => {
                folders.iter().for_each(|below| self.walk(root, below, depth - 1));
            }
            Err(e) => {
                self.skipped
                    .insert(folder.to_owned(), format!("cannot be looked into: {}", e.kind()));
            }
        }
    }
}

fn is_pattern(part: &OsStr) -> bool {
    part.as_encoded_bytes().iter().any(|byte| b"*?[".contains(byte))
}

fn has(folder: &Path, name: &str) -> bool {
    folder.join(name).symlink_metadata().is_ok()
}

/// The folders in a folder, by name. Those with a dot are somebody's work in progress.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort_unstable();
    Ok(folders)
}
