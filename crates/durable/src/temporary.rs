//! Temporary names: `.TARGET.RANDOM.tmp`. The process that writes one holds a lock on it, so a name without a lock is abandoned.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes of the target's name that a temporary name repeats: names have at most 255.
const NAME_BYTES: usize = 200;

/// The folder of a target, which is the current one for a bare name.
pub(crate) fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A name beside the target that no other writer uses. Process ids are not enough: containers and computers that share a folder have
/// equal ones.
pub(crate) fn unused_name(target: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let mut name = prefix(target);
    name.push(format!("{:016x}.tmp", u64::from_ne_bytes(random)));
    Ok(folder_of(target).join(name))
}

/// `.TARGET.`, the target's name cut where it is long.
fn prefix(target: &Path) -> OsString {
    let name = target.file_name().unwrap_or_default().as_bytes();
    let mut prefix = OsString::from(".");
    prefix.push(OsStr::from_bytes(&name[..name.len().min(NAME_BYTES)]));
    prefix.push(".");
    prefix
}

/// Removes leftovers of killed writers of this target. Errors are ignored: leftovers are harmless.
pub(crate) fn remove_abandoned(target: &Path) {
    let prefix = prefix(target);
    let Ok(entries) = fs::read_dir(folder_of(target)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let middle = name.as_bytes().strip_prefix(prefix.as_bytes());
        let middle = middle.and_then(|rest| rest.strip_suffix(b".tmp"));
        if middle.is_some_and(is_ours) {
            remove_if_abandoned(&entry.path());
        }
    }
}

/// 16 hexadecimal digits, or the process id of versions before.
fn is_ours(middle: &[u8]) -> bool {
    middle.len() == 16 && middle.iter().all(u8::is_ascii_hexdigit)
        || !middle.is_empty() && middle.iter().all(u8::is_ascii_digit)
}

fn remove_if_abandoned(path: &Path) {
    let mut options = File::options();
    options.read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let Ok(file) = options.open(path) else { return };
    if file.try_lock().is_err() {
        return;
    }
    let _ = match file.metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(found) if found.is_file() => fs::remove_file(path),
        _ => Ok(()),
    };
}

/// Locks a new temporary name. False: another writer removed it as abandoned. On a file system without locks nothing is removed as
/// abandoned.
pub(crate) fn hold(file: &File, path: &Path) -> io::Result<bool> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(_)) | Ok(()) => {}
    }
    is_at(file, path)
}

/// The path names this open file or folder.
pub(crate) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match path.symlink_metadata() {
        Ok(found) => Ok((found.dev(), found.ino()) == (held.dev(), held.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Removes every temporary file (`.NAME.tmp`) in a folder, by any process: for a folder whose [`crate::Lock`] the caller holds.
/// Errors are ignored: readers ignore such names.
pub fn remove_temporaries(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && name.as_bytes().starts_with(b".") && name.as_bytes().ends_with(b".tmp") {
            let _ = fs::remove_file(entry.path());
        }
    }
}
