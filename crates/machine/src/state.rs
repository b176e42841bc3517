//! Saved machines: a folder that is published atomically and describes what is needed to restore it.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};
use vmtax_durable::{FileAccess, NewFolder};

use crate::lock::MachineLock;
use crate::{Error, checksum};

const DESCRIPTION: &str = "machine.json";
const SAVE: &str = "save the machine";

/// The parts of a spec that must be equal when its state is restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) emulator: String,
    /// Configuration of the emulator: its processor.
    pub(crate) settings: String,
    pub(crate) memory_mib: u32,
    pub(crate) cpus: u32,
}

/// `machine.json`.
#[derive(Debug, Serialize, Deserialize)]
struct MachineDescription {
    machine: Identity,
    files: Vec<StateFile>,
}

/// One file of the emulator's.
#[derive(Debug, Serialize, Deserialize)]
struct StateFile {
    name: String,
    sha256: String,
}

/// A state that is being saved. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct NewState {
    target: PathBuf,
    folder: NewFolder,
}

impl NewState {
    pub(crate) fn create(target: &Path) -> Result<NewState, Error> {
        let folder = NewFolder::beside(target).map_err(Error::io(target, SAVE))?;
        Ok(NewState { target: target.to_owned(), folder })
    }

    /// The folder for the emulator's files.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The error of a failed save; a full file system has a specific one.
    pub(crate) fn failed(&self, error: Error) -> Error {
        /// What a save that failed left may have grown again since.
        const LITTLE: u64 = 64 << 20;
        match room(self.path()) {
            Ok(found) if found < LITTLE => {
                Error::io(&self.target, SAVE)(io::ErrorKind::StorageFull.into())
            }
            _ => error,
        }
    }

    /// Describes the files and gives the folder its name.
    pub(crate) fn publish(self, machine: &Identity) -> Result<(), Error> {
        let description = MachineDescription { machine: machine.clone(), files: Vec::new() };
        let target = self.target.clone();
        self.write(description).map_err(Error::io(&target, SAVE))
    }

    fn write(self, mut description: MachineDescription) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path())? {
            let entry = entry?;
            // Bochs's has a link for the mailbox, which is none of the state.
            if entry.file_type()?.is_file() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        for name in names {
            let sha256 = checksum::of_sparse(&self.path().join(&name))?;
            description.files.push(StateFile { name, sha256 });
        }
        fs::write(self.path().join(DESCRIPTION), serde_json::to_vec_pretty(&description)?)?;
        // No process reads the folder that is replaced.
        let _lock = MachineLock::exclusive(above(&self.target))?;
        self.folder.replace()
    }
}

/// The bytes that are free where a folder is.
pub(crate) fn room(folder: &Path) -> io::Result<u64> {
    let found = statvfs(folder)?;
    Ok(found.f_bavail * found.f_frsize)
}

/// The folder of a state.
fn above(state: &Path) -> &Path {
    match state.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Held while a state is read, so that no other process replaces or removes it.
pub(crate) fn lock(state: &Path) -> Result<MachineLock, Error> {
    MachineLock::shared(above(state)).map_err(Error::io(state, "lock the saved machine"))
}

/// Removes the states of a folder that were of use longest ago, until the others have at most this number of bytes. The one used last stays, whatever its
/// size. What cannot be removed stays.
pub fn prune(folder: &Path, most: u64) {
    let Ok(_lock) = MachineLock::exclusive(folder) else { return };
    let Ok(entries) = fs::read_dir(folder) else { return };
    let is_state = |entry: &fs::DirEntry| {
        !entry.file_name().to_string_lossy().starts_with('.')
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    let mut states: Vec<_> = entries
        .flatten()
        .filter(is_state)
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    states.sort_by(|a, b| b.cmp(a));
    let mut kept = 0;
    for (number, (_, state)) in states.into_iter().enumerate() {
        kept += occupied(&state);
        if number > 0 && kept > most {
            // The next process retries.
            let _ = fs::remove_dir_all(state);
        }
    }
}

/// What the files of a folder take of the disk; they have holes.
fn occupied(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.blocks() * 512)).sum()
}

fn describe(folder: &Path) -> Result<MachineDescription, Error> {
    let problem = |problem: String| Error::State { path: folder.to_owned(), problem };
    let text = fs::read(folder.join(DESCRIPTION))
        .map_err(|e| problem(format!("{DESCRIPTION} cannot be read ({e})")))?;
    serde_json::from_slice(&text).map_err(|e| problem(format!("{DESCRIPTION} is damaged ({e})")))
}

/// Checks that a state is whole and of such a machine.
pub(crate) fn check(folder: &Path, machine: &Identity) -> Result<(), Error> {
    let problem = |problem: String| Error::State { path: folder.to_owned(), problem };
    let description = describe(folder)?;
    if description.machine != *machine {
        return Err(problem("it was saved from another kind of machine".to_owned()));
    }
    for StateFile { name, sha256 } in &description.files {
        let cannot = |e| problem(format!("{name} cannot be read ({e})"));
        if name.contains('/') || checksum::of_sparse(&folder.join(name)).map_err(cannot)? != *sha256
        {
            return Err(problem(format!("{name} is damaged")));
        }
    }
    Ok(())
}

/// Adds a file to a saved state, in place of one of this name that it may have. The name is plain, and no emulator's.
pub fn keep(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let _lock = MachineLock::exclusive(above(folder)).map_err(Error::io(folder, SAVE))?;
    let mut description = describe(folder)?;
    let path = folder.join(name);
    let write = |name: &str, bytes: &[u8]| {
        vmtax_durable::write(&folder.join(name), FileAccess::Private, bytes)
    };
    let written = write(name, bytes).and_then(|()| checksum::of_sparse(&path));
    let sha256 = written.map_err(Error::io(&path, SAVE))?;
    description.files.retain(|part| part.name != name);
    description.files.push(StateFile { name: name.to_owned(), sha256 });
    let text = serde_json::to_vec_pretty(&description).map_err(io::Error::other);
    text.and_then(|text| write(DESCRIPTION, &text)).map_err(Error::io(folder, SAVE))
}

/// A file that [`keep`] added; `None` where the state has none of this name, or a damaged one.
pub fn kept(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, Error> {
    let description = describe(folder)?;
    let Some(part) = description.files.into_iter().find(|part| part.name == name) else {
        return Ok(None);
    };
    let path = folder.join(name);
    let read = checksum::of_sparse(&path).and_then(|sha256| Ok((sha256, fs::read(&path)?)));
    let (sha256, bytes) = read.map_err(Error::io(&path, "read the state"))?;
    Ok((sha256 == part.sha256).then_some(bytes))
}

/// A file of a state that was checked, at its start.
pub(crate) fn open(folder: &Path, name: &str) -> Result<File, Error> {
    let mut file = File::open(folder.join(name)).map_err(Error::io(folder, "read the state"))?;
    file.seek(SeekFrom::Start(0)).map_err(Error::io(folder, "read the state"))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_go_by_size_and_use() {
        const MIB: usize = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let state = |name: &str| folder.path().join(name);
        let names = ["oldest", "older", "newest"];
        for (age, name) in names.iter().rev().enumerate() {
            fs::create_dir(state(name)).unwrap();
            fs::write(state(name).join("memory"), vec![1; MIB]).unwrap();
            let used =
                std::time::SystemTime::now() - std::time::Duration::from_secs(60 * age as u64);
            File::open(state(name)).unwrap().set_modified(used).unwrap();
        }
        let left = || names.iter().filter(|name| state(name).exists()).count();
        prune(folder.path(), 100 * MIB as u64);
        assert_eq!(left(), 3);
        prune(folder.path(), 2 * MIB as u64 + 8192);
        assert!(!state("oldest").exists() && state("older").exists());
        // What was used last stays.
        prune(folder.path(), 0);
        assert!(!state("older").exists() && state("newest").exists());
    }
}
