//! A folder with runs, local or in an object store. No other module distinguishes the two.

use std::fmt;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use datafusion::object_store::path::Path as Key;

use crate::stores::{self, ObjectStoreSource};
use crate::unread::Unread;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Folder {
    Local(PathBuf),
    /// In a store: all objects whose keys begin with this and a `/`. Empty: all.
    Stored(Arc<ObjectStoreSource>, String),
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Folder::Local(path) => path.display().fmt(f),
            Folder::Stored(store, key) => write!(f, "{}{key}", store.url()),
        }
    }
}

impl Folder {
    /// An entry of it; the name can have several parts.
    pub fn join(&self, name: &str) -> Folder {
        match self {
            Folder::Local(path) => Folder::Local(path.join(name)),
            Folder::Stored(store, key) if key.is_empty() => {
                Folder::Stored(Arc::clone(store), name.to_owned())
            }
            Folder::Stored(store, key) => {
                Folder::Stored(Arc::clone(store), format!("{key}/{name}"))
            }
        }
    }

    /// Its path, if it is local.
    pub fn local(&self) -> Option<&Path> {
        match self {
            Folder::Local(path) => Some(path),
            Folder::Stored(..) => None,
        }
    }

    /// The store that it is in.
    pub fn store(&self) -> Option<&Arc<ObjectStoreSource>> {
        match self {
            Folder::Local(_) => None,
            Folder::Stored(store, _) => Some(store),
        }
    }

    /// Its path components, the outermost first.
    pub(crate) fn parts(&self) -> Vec<&str> {
        match self {
            Folder::Local(path) => path.iter().filter_map(|part| part.to_str()).collect(),
            Folder::Stored(_, key) => key.split('/').collect(),
        }
    }

    /// Its path relative to a folder above it.
    pub(crate) fn below(&self, root: &Folder) -> String {
        match (self, root) {
            (Folder::Local(path), Folder::Local(root)) => {
                path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
            }
            (Folder::Stored(_, key), Folder::Stored(_, root)) => {
                key.strip_prefix(root.as_str()).unwrap_or(key).trim_start_matches('/').to_owned()
            }
            _ => self.to_string(),
        }
    }

    /// Whether it has an entry of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self.join(name) {
            Folder::Local(path) => path.symlink_metadata().is_ok(),
            Folder::Stored(store, key) => store.size(&key).is_some(),
        }
    }

    /// Whether it exists and is not a link.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            Folder::Local(path) => path.symlink_metadata().is_ok_and(|found| found.is_dir()),
            Folder::Stored(store, key) => store.is_folder(key),
        }
    }

    /// Its subfolders, by name, without links and without those that begin with a dot, which are incomplete.
    pub(crate) fn folders(&self) -> Result<Vec<Folder>, Unread> {
        let mut folders = Vec::new();
        match self {
            Folder::Local(path) => {
                for entry in fs::read_dir(path)? {
                    let entry = entry?;
                    let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
                    if !hidden && entry.file_type()?.is_dir() {
                        folders.push(entry.path());
                    }
                }
                folders.sort_unstable();
                Ok(folders.into_iter().map(Folder::Local).collect())
            }
            Folder::Stored(store, key) => {
                let names = store.folders(key).into_iter().filter(|name| !name.starts_with('.'));
                Ok(names.map(|name| self.join(&name)).collect())
            }
        }
    }

    /// The size of a file in it. Links do not count as files, because they could lead out of the folder.
    pub(crate) fn size(&self, name: &str) -> Result<u64, Unread> {
        match self.join(name) {
            Folder::Local(path) => match path.symlink_metadata()? {
                found if found.is_file() => Ok(found.len()),
                _ => Err(Unread::Strange),
            },
            Folder::Stored(store, key) => store.size(&key).ok_or(Unread::Missing),
        }
    }

    /// A part of a file, shorter at its end.
    pub(crate) fn read(&self, name: &str, range: Range<u64>) -> Result<Bytes, Unread> {
        match self.join(name) {
            Folder::Local(path) => {
                let mut file = fs::File::open(path)?;
                file.seek(SeekFrom::Start(range.start))?;
                let mut bytes = Vec::new();
                file.take(range.end.saturating_sub(range.start)).read_to_end(&mut bytes)?;
                Ok(bytes.into())
            }
            Folder::Stored(store, key) => store.read(&key, range),
        }
    }

    /// A file, if it has no more than `max` bytes.
    pub(crate) fn whole(&self, name: &str, max: u64) -> Result<Bytes, Unread> {
        match self.size(name)? {
            size if size > max => {
                Err(Unread::Other(format!("it is larger than {} MiB", max >> 20)))
            }
            size => self.read(name, 0..size),
        }
    }

    /// Its path for DataFusion.
    pub(crate) fn key(&self) -> Result<Key, datafusion::object_store::path::Error> {
        match self {
            Folder::Local(path) => Key::from_absolute_path(path),
            Folder::Stored(_, key) => Key::parse(key),
        }
    }
}

/// A user's path: a folder, and patterns for the components below it.
pub(crate) struct PathPattern {
    pub(crate) folder: Folder,
    pub(crate) patterns: Vec<String>,
}

impl PathPattern {
    /// Checks that it exists. Objects of a store are listed; `stores` has those that are open already.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn open(
        path: &Path,
        stores: &mut Vec<Arc<ObjectStoreSource>>,
    ) -> Result<PathPattern, String> {
        match path.to_str() {
            Some(text) if stores::is_stored(path) => PathPattern::stored(text, stores),
            _ => PathPattern::local(path).map_err(|why| format!("{}: {why}", path.display())),
        }
    }

    fn local(path: &Path) -> Result<PathPattern, String> {
        // An entry of exactly this name takes precedence.
        let plain = match path.iter().position(|part| is_pattern(&part.to_string_lossy())) {
            Some(plain) if path.symlink_metadata().is_err() => plain,
            _ => path.iter().count(),
        };
        let patterns =
            path.iter().skip(plain).map(|part| part.to_string_lossy().into_owned()).collect();
        let tree: PathBuf = match plain {
            0 => PathBuf::from("."),
            _ => path.iter().take(plain).collect(),
        };
        // Resolve links once, so that later opens find the same folder.
        let root = fs::canonicalize(tree).map_err(|e| refusal(&e.into()))?;
        if root.is_file() {
            return Err("is a file; name the folder of its run, or a tree of runs".to_owned());
        }
        Ok(PathPattern { folder: Folder::Local(root), patterns })
    }

    fn stored(text: &str, stores: &mut Vec<Arc<ObjectStoreSource>>) -> Result<PathPattern, String> {
        let (url, key) = stores::split(text)?;
        let refused = |why: String| format!("{text}: {why}");
        let mut store = Arc::new(ObjectStoreSource::open(&url).map_err(refused)?);
        match stores.iter().find(|known| **known == store) {
            Some(known) => store = Arc::clone(known),
            None => stores.push(Arc::clone(&store)),
        }
        let parts: Vec<&str> = key.split('/').filter(|part| !part.is_empty()).collect();
        let plain = parts.iter().take_while(|part| !is_pattern(part)).count();
        let root = parts[..plain].join("/");
        store.list(&root).map_err(|why| {
            let settings = store.settings();
            refused(match why {
                Unread::Missing => "there is no such bucket; check its name, and which endpoint it is asked of".to_owned(),
                Unread::Closed => format!("access is denied, or there are no credentials; check {settings}, and what may be read and listed with them"),
                lost @ Unread::Lost(_) => format!("{lost}; check the network, and {settings}"),
                other => other.to_string(),
            })
        })?;
        let all = Folder::Stored(Arc::clone(&store), key.clone());
        // An entry of exactly this name takes precedence.
        if plain == parts.len() || all.is_there() {
            return match all.is_there() {
                true => Ok(PathPattern { folder: all, patterns: Vec::new() }),
                false => Err(refused("there is nothing below it; check the path".to_owned())),
            };
        }
        let patterns = parts[plain..].iter().map(|part| (*part).to_owned()).collect();
        Ok(PathPattern { folder: Folder::Stored(store, root), patterns })
    }
}

/// The error for a user's folder that cannot be read.
pub(crate) fn refusal(why: &Unread) -> String {
    match why {
        Unread::Missing => "there is no such file or folder; check the path".to_owned(),
        Unread::Closed => {
            "you may not look into it; ask its owner, or run as a user who may".to_owned()
        }
        other => format!("cannot be looked into: {other}"),
    }
}

fn is_pattern(part: &str) -> bool {
    part.contains(['*', '?', '['])
}
