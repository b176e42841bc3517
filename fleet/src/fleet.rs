//! Finds the runs below the user's paths, and selects those that a query needs.
//!
//! ```text
//! paths ──find──> folders ──host, date of the path──> run.json ──all attributes──> files
//!                               not read if the query         not opened if the query
//!                               does not want them            does not want them
//! ```
//!
//! Unusable runs are skipped and reported ([`Fleet::skipped`]). Links are not followed: they could lead out of the user's paths. The objects
//! below a path in a store are listed once, with their sizes; after that each run takes one request, for its `run.json`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use vmtax_store::{Segment, StoredTable};

use crate::day::{self, Day};
use crate::folder::{self, Folder, PathPattern};
use crate::run::{self, FleetRun, HostDay, RunAttributes, Skipped};
use crate::stores::{self, ObjectStoreSource};
use crate::unread::Unread;

/// Depth of folders searched below a path.
const DEPTH: usize = 8;

#[derive(Debug)]
pub struct Fleet {
    found: Vec<FoundRun>,
    days: Vec<Arc<Day>>,
    stores: Vec<Arc<ObjectStoreSource>>,
    opened: Mutex<HashMap<usize, Option<Arc<FleetRun>>>>,
    skipped: Mutex<BTreeMap<String, String>>,
    wanted: Mutex<HashSet<Folder>>,
}

/// A folder with a `run.json`.
#[derive(Debug)]
struct FoundRun {
    folder: Folder,
    name: String,
    place: HostDay,
}

/// The runs and days of a query.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub runs: Vec<Arc<FleetRun>>,
    /// Compacted days, each with its selected runs.
    pub days: Vec<(Arc<Day>, Vec<Arc<FleetRun>>)>,
}

impl Selection {
    /// All selected runs, single and compacted.
    pub fn all(&self) -> impl Iterator<Item = &Arc<FleetRun>> {
        self.runs.iter().chain(self.days.iter().flat_map(|(_, runs)| runs))
    }
}

/// Selects the runs of a query; first by host and day only, which may be part of the path.
pub trait Wants: Sync {
    /// The answers, one for each.
    ///
    /// # Errors
    /// A sentence.
    fn wants(&self, runs: &[&RunAttributes], place_only: bool) -> Result<Vec<bool>, String>;
}

/// Why no fleet could be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoFleet {
    /// A path cannot be opened.
    Input(String),
    /// There are no runs below the paths.
    Data(String),
}

impl Fleet {
    /// Finds runs: each path is a run or a folder of runs.
    ///
    /// # Errors
    /// When a path cannot be opened, or two runs have the same name.
    pub fn find(paths: &[PathBuf]) -> Result<Fleet, NoFleet> {
        Fleet::search(paths, &|_| Ok(()))
    }

    /// As [`Fleet::find`], and verifies the checksums of compacted days. If a day is damaged, its runs are used where they still exist. For
    /// single runs see [`Fleet::leave_out_damaged`].
    pub fn find_verified(paths: &[PathBuf]) -> Result<Fleet, NoFleet> {
        Fleet::search(paths, &day::verify)
    }

    fn search(paths: &[PathBuf], check: &CheckDay) -> Result<Fleet, NoFleet> {
        let mut search = RunSearch::default();
        for path in paths {
            search.path(path)?;
        }
        let RunSearch { found, days, stores, skipped } = search;
        let (days, mut skipped) = open_days(&stores, &days, check, skipped);
        if let Some(why) = stores.iter().find_map(|store| store.lost()) {
            return Err(NoFleet::Input(why));
        }
        #[expect(clippy::mutable_key_type, reason = "a store is known by its URL, which stays")]
        let superseded: HashSet<&Folder> =
            days.iter().flat_map(|d| d.runs.iter().map(|run| &run.folder)).collect();
        let mut names: HashMap<&str, &Folder> = days
            .iter()
            .flat_map(|d| &d.runs)
            .map(|r| (r.attributes.run.as_str(), &r.folder))
            .collect();
        let found: Vec<FoundRun> =
            found.into_iter().filter(|f| !superseded.contains(&f.folder)).collect();
        for run in &found {
            match names.insert(&run.name, &run.folder) {
                Some(other) if *other == run.folder => {
                    skipped.insert(run.folder.to_string(), "is named twice".to_owned());
                }
                Some(other) => {
                    return Err(NoFleet::Data(format!(
                        "{other} and {} would both be called {}; name one path above both, or ask one at a time",
                        run.folder, run.name
                    )));
                }
                None => {}
            }
        }
        Ok(Fleet {
            found,
            days,
            stores,
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

    /// The stores that were named.
    pub fn stores(&self) -> &[Arc<ObjectStoreSource>] {
        &self.stores
    }

    /// The error of a store that stopped responding: then missing runs are not damaged.
    pub fn lost(&self) -> Option<String> {
        self.stores.iter().find_map(|store| store.lost())
    }

    /// The selected runs, opened. Unusable ones are skipped.
    ///
    /// # Errors
    /// The error of `wants`, or of a store that stopped responding.
    pub fn select(&self, wants: &dyn Wants) -> Result<Selection, String> {
        let placed: Vec<RunAttributes> = self.found.iter().map(of_place).collect();
        let answers = wants.wants(&placed.iter().collect::<Vec<_>>(), true)?;
        let candidates: Vec<usize> = (0..self.found.len())
            .filter(|&i| {
                answers[i]
                    || self.found[i].place.host.is_none()
                    || self.found[i].place.date.is_none()
            })
            .collect();
        let opened = self.open(&candidates);
        if let Some(why) = self.lost() {
            return Err(why);
        }
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

    /// Opens runs that are not open yet.
    fn open(&self, candidates: &[usize]) -> Vec<Arc<FleetRun>> {
        let mut opened = lock(&self.opened);
        let missing: Vec<usize> =
            candidates.iter().copied().filter(|i| !opened.contains_key(i)).collect();
        let open = |i: &usize| {
            let found = &self.found[*i];
            (*i, run::open(&found.folder, &found.name))
        };
        let results = self.at_once(&missing, &open);
        if self.lost().is_some() {
            return Vec::new();
        }
        for (i, result) in results {
            let run = result.map(Arc::new).map_err(|Skipped { path, why }| {
                lock(&self.skipped).insert(path, why);
            });
            opened.insert(i, run.ok());
        }
        candidates.iter().filter_map(|i| opened.get(i)?.clone()).collect()
    }

    /// As [`at_once`], with the stores of this fleet.
    pub(crate) fn at_once<T: Sync, R: Send>(
        &self,
        items: &[T],
        ask: &(dyn Fn(&T) -> R + Sync),
    ) -> Vec<R> {
        at_once(&self.stores, items, ask)
    }

    /// Verifies every file selected so far, and skips runs with a damaged one. Returns their number.
    pub fn leave_out_damaged(&self) -> usize {
        let mut opened = lock(&self.opened);
        let runs: Vec<(usize, Arc<FleetRun>)> =
            opened.iter().filter_map(|(i, run)| Some((*i, run.clone()?))).collect();
        let damage = |(_, run): &(usize, Arc<FleetRun>)| {
            run.manifest.segments.iter().find_map(|s| run::verify(&run.folder, s).err())
        };
        let damages = self.at_once(&runs, &damage);
        if self.lost().is_some() {
            return 0;
        }
        let mut count = 0;
        for ((i, run), damage) in runs.iter().zip(damages) {
            let Some(why) = damage else { continue };
            lock(&self.skipped).insert(run.folder.to_string(), why);
            lock(&self.wanted).remove(&run.folder);
            opened.insert(*i, None);
            count += 1;
        }
        count
    }

    /// The files of the single runs that were opened so far.
    pub fn files(&self) -> Vec<(StoredTable, Arc<FleetRun>, Segment)> {
        let opened = lock(&self.opened);
        let mut files = Vec::new();
        for run in opened.values().flatten() {
            for table in StoredTable::ALL {
                let segments = run.manifest.segments_of(table);
                files.extend(segments.map(|segment| (table, Arc::clone(run), segment.clone())));
            }
        }
        files
    }

    /// Runs skipped so far, and why.
    pub fn skipped(&self) -> Vec<Skipped> {
        let skipped = lock(&self.skipped);
        skipped.iter().map(|(path, why)| Skipped { path: path.clone(), why: why.clone() }).collect()
    }

    /// Number of runs selected so far.
    pub fn wanted(&self) -> usize {
        lock(&self.wanted).len()
    }
}

/// Calls a function for each, concurrently: requests to a store mostly wait.
fn at_once<T: Sync, R: Send>(
    stores: &[Arc<ObjectStoreSource>],
    items: &[T],
    ask: &(dyn Fn(&T) -> R + Sync),
) -> Vec<R> {
    let threads = match stores.is_empty() {
        true => std::thread::available_parallelism().map_or(1, usize::from),
        false => stores::REQUESTS,
    };
    let share = items.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts: Vec<_> = items
            .chunks(share)
            .map(|part| scope.spawn(move || part.iter().map(ask).collect::<Vec<_>>()))
            .collect();
        let results = parts
            .into_iter()
            .map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        results.flatten().collect()
    })
}

/// A poisoned lock is fine: every change is one call.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of_place(found: &FoundRun) -> RunAttributes {
    RunAttributes {
        host: found.place.host.clone().unwrap_or_default(),
        date: found.place.date.clone().unwrap_or_default(),
        ..RunAttributes::default()
    }
}

fn keep(runs: Vec<Arc<FleetRun>>, wants: &dyn Wants) -> Result<Vec<Arc<FleetRun>>, String> {
    let attributes: Vec<&RunAttributes> = runs.iter().map(|run| &run.attributes).collect();
    let answers = wants.wants(&attributes, false)?;
    Ok(runs.into_iter().zip(answers).filter(|(_, wanted)| *wanted).map(|(run, _)| run).collect())
}

/// A damaged day is reported, and its runs are used individually where they still exist.
fn open_days(
    stores: &[Arc<ObjectStoreSource>],
    days: &[(Folder, Folder)],
    check: &CheckDay,
    mut skipped: BTreeMap<String, String>,
) -> (Vec<Arc<Day>>, BTreeMap<String, String>) {
    let mut opened = Vec::new();
    let open = |(root, folder): &(Folder, Folder)| {
        let day = day::open(root, folder)?;
        check(&day)?;
        Ok(day)
    };
    for day in at_once(stores, days, &open) {
        match day {
            Ok(day) => opened.push(Arc::new(day)),
            Err(Skipped { path, why }) => {
                skipped.insert(path, why);
            }
        }
    }
    (opened, skipped)
}

/// What more is looked at in a day.
type CheckDay = dyn Fn(&Day) -> Result<(), Skipped> + Sync;

#[derive(Default)]
struct RunSearch {
    found: Vec<FoundRun>,
    /// The tree and the folder in it.
    days: Vec<(Folder, Folder)>,
    stores: Vec<Arc<ObjectStoreSource>>,
    skipped: BTreeMap<String, String>,
}

impl RunSearch {
    fn path(&mut self, path: &Path) -> Result<(), NoFleet> {
        let PathPattern { folder: root, patterns } =
            PathPattern::open(path, &mut self.stores).map_err(NoFleet::Input)?;
        let refused = |why: String| NoFleet::Input(format!("{}: {why}", path.display()));
        if !patterns.is_empty() {
            for folder in matching(&root, &patterns).map_err(refused)? {
                self.walk(&root, &folder, DEPTH);
            }
        } else if root.has(vmtax_store::MANIFEST) {
            let name = path.to_string_lossy().into_owned();
            self.found.push(FoundRun { place: HostDay::of(&root), folder: root, name });
        } else {
            root.folders().map_err(|why| refused(folder::refusal(&why)))?;
            self.walk(&root, &root, DEPTH);
        }
        Ok(())
    }

    fn walk(&mut self, root: &Folder, folder: &Folder, depth: usize) {
        if folder.has(day::MANIFEST) {
            self.days.push((root.clone(), folder.clone()));
            return;
        }
        if folder != root && folder.has(vmtax_store::MANIFEST) {
            let name = folder.below(root);
            self.found.push(FoundRun { place: HostDay::of(folder), folder: folder.clone(), name });
            return;
        }
        if depth == 0 {
            self.skipped.insert(folder.to_string(), format!("is more than {DEPTH} folders deep"));
            return;
        }
        match folder.folders() {
            Ok(folders) => {
                folders.iter().for_each(|below| self.walk(root, below, depth - 1));
            }
            Err(why) => {
                self.skipped.insert(folder.to_string(), format!("cannot be looked into: {why}"));
            }
        }
    }
}

/// The folders that match, part by part: `host=web*/date=2026-11-*`.
fn matching(root: &Folder, patterns: &[String]) -> Result<Vec<Folder>, String> {
    let mut folders = vec![root.clone()];
    for part in patterns {
        let pattern = glob::Pattern::new(part).map_err(|e| format!("is no pattern: {}", e.msg))?;
        let mut below = Vec::new();
        for folder in &folders {
            below.extend(folder.folders().map_err(|why: Unread| folder::refusal(&why))?);
        }
        below.retain(|folder| folder.parts().last().is_some_and(|name| pattern.matches(name)));
        folders = below;
    }
    match folders.is_empty() {
        true => Err("no folder matches it".to_owned()),
        false => Ok(folders),
    }
}
