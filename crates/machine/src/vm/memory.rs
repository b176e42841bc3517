//! The files of a VM's memory that other processes can open.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::json;

use super::{Vm, VmError};

/// A block of memory that is a shared file.
#[derive(Debug)]
pub struct Ram {
    /// As QEMU names the object.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The file, from its beginning.
    pub file: File,
}

/// A memory backend, as query-memdev has it.
struct Backend {
    id: String,
    bytes: u64,
}

impl Vm {
    /// Its memory in shared files, in the order of its objects; an error if there is none. All other memory
    /// is part of the device state.
    pub fn ram(&mut self, write: bool) -> Result<Vec<Ram>, VmError> {
        let shared = self.shared_backends()?;
        let memfds = self.memfds()?;
        let mut found = Vec::new();
        for backend in &shared {
            let path = match self.mem_path(&backend.id)? {
                Some(path) => path,
                None => self.memfd_of(backend, &shared, &memfds)?,
            };
            found.push(self.open(backend, path, write)?);
        }
        if found.is_empty() {
            return Err(self.unfit(
                "the VM's memory is private to QEMU; start it with \
                 -object memory-backend-memfd,id=mem,size=...,share=on -machine memory-backend=mem",
            ));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// An error unless its memory still has the blocks that [`Vm::ram`] returned: memory can be hotplugged.
    pub fn check_ram(&mut self, ram: &[Ram]) -> Result<(), VmError> {
        let mut now = self.shared_backends()?;
        now.sort_by(|a, b| a.id.cmp(&b.id));
        if now.iter().map(|b| (&b.id, b.bytes)).eq(ram.iter().map(|r| (&r.name, r.bytes))) {
            return Ok(());
        }
        Err(self.disturbed(
            "memory was plugged in or out while the VM was saved; save again while nobody else controls it",
        ))
    }

    /// Memory in shared files.
    fn shared_backends(&mut self) -> Result<Vec<Backend>, VmError> {
        let answer = self.qmp.run("query-memdev", json!({}))?;
        let backends = answer.as_array().map(Vec::as_slice).unwrap_or_default().iter();
        let shared = backends.filter(|b| b["share"] == true).filter_map(|b| {
            Some(Backend { id: b["id"].as_str()?.to_owned(), bytes: b["size"].as_u64()? })
        });
        Ok(shared.collect())
    }

    /// The file of a backend that has one.
    fn mem_path(&mut self, id: &str) -> Result<Option<PathBuf>, VmError> {
        let path = format!("/objects/{id}");
        let request = ("qom-get", json!({ "path": path, "property": "mem-path" }));
        let answer = self.qmp.run_all(&[request])?.pop().flatten();
        let path = answer.and_then(|value| value.as_str().map(PathBuf::from));
        // A folder is where QEMU made a nameless file; that is found as a memfd is.
        Ok(path.filter(|path| path.is_file()))
    }

    /// The nameless file of a backend: the one of its length, if there is no other backend of that length.
    fn memfd_of(
        &self,
        backend: &Backend,
        shared: &[Backend],
        memfds: &[(PathBuf, u64)],
    ) -> Result<PathBuf, VmError> {
        let bytes = backend.bytes;
        let Some((path, _)) = memfds.iter().find(|(_, len)| *len == bytes) else {
            let what = format!("the memfd of the memory backend {:?} was not found", backend.id);
            return Err(self.unfit(what));
        };
        if shared.iter().filter(|other| other.bytes == bytes).count() > 1 {
            return Err(self.unfit(format!(
                "several memory backends have {bytes} bytes, so it is unknown which memfd is whose; \
                 use memory-backend-file, or different sizes"
            )));
        }
        Ok(path.clone())
    }

    fn open(&self, backend: &Backend, path: PathBuf, write: bool) -> Result<Ram, VmError> {
        let opened = File::options().read(true).write(write).open(&path);
        let length = opened.and_then(|file| Ok((file.metadata()?.len(), file)));
        match length {
            Ok((length, file)) if length >= backend.bytes => {
                Ok(Ram { name: backend.id.clone(), bytes: backend.bytes, file })
            }
            Ok(_) => {
                Err(self.unfit(format!("{} is shorter than the memory in it", path.display())))
            }
            Err(error) => Err(self.unfit(format!(
                "{}: the memory of QEMU (process {}) cannot be opened: {}{}",
                path.display(),
                self.pid,
                error,
                hint(&error),
            ))),
        }
    }

    /// Deleted files that QEMU holds open: (path that opens it, length). Its memory is among them.
    fn memfds(&self) -> Result<Vec<(PathBuf, u64)>, VmError> {
        let folder = format!("/proc/{}/fd", self.pid);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => {
                return Err(
                    self.unfit(format!("{folder}: cannot be listed: {error}{}", hint(&error)))
                );
            }
        };
        let mut found = Vec::new();
        let mut inodes = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(link) = fs::read_link(&path) else { continue };
            let link = link.to_string_lossy().into_owned();
            if !link.starts_with("/memfd:") && !link.ends_with(" (deleted)") {
                continue;
            }
            let Ok(metadata) = path.metadata() else { continue };
            if metadata.is_file() && !inodes.contains(&(metadata.dev(), metadata.ino())) {
                inodes.push((metadata.dev(), metadata.ino()));
                found.push((path, metadata.len()));
            }
        }
        found.sort();
        Ok(found)
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run vmtax as the user of the VM, or as root",
        io::ErrorKind::NotFound => "; did it end, or does it run in a container of its own?",
        _ => "",
    }
}
