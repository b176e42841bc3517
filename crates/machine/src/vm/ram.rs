//! The files of a VM's memory that other processes can open.
//!
//! A file is found by the mapping alone: QEMU says which addresses of the guest are a backend's and where it has them mapped, and the
//! kernel says which file that is. Names and lengths say nothing: a path may be another file by now, and two files may be of one length.

use std::fs::File;
use std::io;

use serde_json::json;

use super::tree::MemoryRange;
use super::{QemuVm, VmError};
use crate::maps::Mapping;

/// A block of memory that is a shared file.
#[derive(Debug)]
pub struct Ram {
    /// As QEMU names the object.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    pub file: File,
    /// Where in the file the memory begins.
    pub offset: u64,
    /// Where QEMU has it mapped; nothing for an image.
    pub(super) mapped: Option<Mapping>,
}

impl Ram {
    /// An image of memory: a file from its beginning.
    pub fn image(name: &str, bytes: u64, file: File) -> Ram {
        Ram { name: name.to_owned(), bytes, file, offset: 0, mapped: None }
    }
}

/// A shared memory backend that the guest has.
#[derive(Debug)]
struct SharedBackend {
    id: String,
    bytes: u64,
    /// A part of the guest's memory that is it.
    part: MemoryRange,
}

/// QEMU's type of a backend that is a file with a name, or a nameless one in a named folder.
const NAMED_FILE: &str = "memory-backend-file";
/// From this version on QEMU leaves only [`NAMED_FILE`] out of a migration with `x-ignore-shared`; before, all shared memory.
const ONLY_NAMED_FILES: (u64, u64) = (8, 1);
/// How to start a VM whose memory can be saved, with any version of QEMU.
const START: &str = "start it with -object memory-backend-file,id=mem,size=...,mem-path=/dev/shm,share=on -machine memory-backend=mem";

impl QemuVm {
    /// Its memory in shared files, sorted by name, to be read, or to be written too. All other memory is part of the device state.
    pub fn ram(&mut self, write: bool) -> Result<Vec<Ram>, VmError> {
        let backends = self.shared_backends()?;
        if backends.is_empty() {
            return Err(self.unfit(format!("the VM's memory is private to QEMU; {START}")));
        }
        let mappings = self.mappings(&backends)?;
        let mut found = Vec::new();
        for (backend, mapping) in backends.into_iter().zip(mappings) {
            let file = mapping.open(self.pid, write);
            let file = file.map_err(|error| self.not_opened(&backend.id, &mapping, &error))?;
            let SharedBackend { id: name, bytes, .. } = backend;
            found.push(Ram { name, bytes, file, offset: mapping.offset, mapped: Some(mapping) });
        }
        Ok(found)
    }

    /// An error if QEMU puts shared memory into the device state: then each save would hold all of it, twice.
    pub fn check_skips(&mut self, ram: &[Ram]) -> Result<(), VmError> {
        let version = self.qmp.run("query-version", json!({}))?;
        let part = |name: &str| version["qemu"][name].as_u64().unwrap_or(0);
        let version = (part("major"), part("minor"));
        if version < ONLY_NAMED_FILES {
            return Ok(());
        }
        for block in ram {
            let name = &block.name;
            let kind = self.property(&format!("/objects/{name}"), "type")?;
            if kind != NAMED_FILE {
                let (major, minor) = version;
                return Err(self.unfit(format!(
                    "the memory backend {name:?} is a {kind}, and QEMU {major}.{minor} puts all memory but that of \
                     {NAMED_FILE} into the state of the devices; {START}"
                )));
            }
        }
        Ok(())
    }

    /// An error unless its memory is still what [`QemuVm::ram`] returned, and what QEMU reads of it is what is in the files: memory can be
    /// hotplugged. The VM is stopped.
    pub fn check_ram(&mut self, ram: &[Ram]) -> Result<(), VmError> {
        let now = self.shared_backends()?;
        let mappings = self.mappings(&now)?;
        let now = now.iter().zip(&mappings).map(|(b, mapping)| (&b.id, b.bytes, Some(mapping)));
        if !now.eq(ram.iter().map(|r| (&r.name, r.bytes, r.mapped.as_ref()))) {
            return Err(self.disturbed(
                "memory was plugged in or out while the VM was saved; save again while nobody else controls it",
            ));
        }
        self.check_content(ram)
    }

    /// Shared memory of the guest, sorted by name. Backends that nothing uses are none of it.
    fn shared_backends(&mut self) -> Result<Vec<SharedBackend>, VmError> {
        let answer = self.qmp.run("query-memdev", json!({}))?;
        let tree = self.memory_tree()?;
        let mut found = Vec::new();
        for backend in answer.as_array().map(Vec::as_slice).unwrap_or_default() {
            let (Some(id), Some(bytes)) = (backend["id"].as_str(), backend["size"].as_u64()) else {
                continue;
            };
            if backend["share"] != true {
                continue;
            }
            // The largest part: small ones are remapped by a guest that boots.
            let parts = tree.iter().filter(|part| part.backend == id);
            match parts.max_by_key(|part| part.bytes) {
                Some(part) => {
                    found.push(SharedBackend { id: id.to_owned(), bytes, part: part.clone() });
                }
                None => self.check_unused(id)?,
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// An error if a device has this backend, which is nowhere in the guest's memory.
    fn check_unused(&mut self, id: &str) -> Result<(), VmError> {
        match self.user_of(id)? {
            None => Ok(()),
            Some(device) => Err(self.unfit(format!(
                "the memory backend {id:?} is that of {device}, which the guest has not mapped, so where it is cannot be told; \
                 try again when the guest's driver uses it"
            ))),
        }
    }

    /// Where QEMU has each backend mapped: addresses, file and offset of its bytes.
    fn mappings(&mut self, backends: &[SharedBackend]) -> Result<Vec<Mapping>, VmError> {
        let mut addresses = Vec::new();
        for backend in backends {
            addresses.push(self.host_address(&backend.part)?);
        }
        let maps = Mapping::of_process(self.pid).map_err(|error| {
            let what = format!("/proc/{}/maps: cannot be read: {error}", self.pid);
            self.unfit(what + hint(&error))
        })?;
        let all = backends.iter().zip(addresses);
        all.map(|(backend, address)| self.mapping(backend, address, &maps)).collect()
    }

    /// The mapping of these bytes at this address.
    fn mapping(
        &self,
        backend: &SharedBackend,
        at: u64,
        maps: &[Mapping],
    ) -> Result<Mapping, VmError> {
        let id = &backend.id;
        let end = at.saturating_add(backend.bytes);
        let found = maps.iter().find(|m| m.range.start <= at && end <= m.range.end);
        let Some(found) = found.filter(|m| m.shared && m.inode != 0) else {
            return Err(self.unfit(format!(
                "the memory backend {id:?} is no shared file in the process {}; {START}",
                self.pid
            )));
        };
        if !found.writable {
            let what = format!("the memory backend {id:?} is read-only, which cannot be saved");
            return Err(self.unfit(what));
        }
        let offset = found.offset + (at - found.range.start);
        Ok(Mapping { range: at..end, offset, ..found.clone() })
    }

    fn not_opened(&self, id: &str, mapping: &Mapping, error: &io::Error) -> VmError {
        let (pid, path) = (self.pid, &mapping.path);
        let what = format!(
            "the memory backend {id:?} ({path} of the process {pid}) cannot be opened: {error}"
        );
        self.unfit(what + hint(error))
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run vmtax as the user of the VM, or as root",
        io::ErrorKind::NotFound => "; did it end, or does it run in a container of its own?",
        _ => "",
    }
}
