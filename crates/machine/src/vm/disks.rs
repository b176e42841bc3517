//! A VM's disks. Memory and a disk that the VM goes on writing to belong together for a moment only: a checkpoint of memory is
//! worth something as long as the disk of that moment is kept too.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{QemuVm, VmError};

/// A disk with a medium.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MediumDisk {
    /// What people call it: the id of the guest's device, else that of the drive or node.
    pub name: String,
    /// Id of the drive (`-drive`); empty for one made by `-blockdev`.
    pub device: String,
    /// QEMU's name of the node.
    pub node: String,
    /// Such as qcow2.
    pub format: String,
    /// As the guest sees it.
    pub bytes: u64,
    /// Whether the guest may write to it.
    pub writable: bool,
    /// The file, then what it is an overlay of, and so on.
    pub images: Vec<DiskImage>,
    /// Where the VM writes to since the checkpoint, if vmtax made it do so: then the images stay as they were.
    pub overlay: Option<String>,
    /// Whether QEMU knows the file by a relative name.
    #[serde(skip)]
    pub(crate) is_relative: bool,
}

/// A file of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskImage {
    /// Absolute path, or what QEMU has instead of one, such as `nbd://host/disk`.
    pub file: String,
    /// When it was last written, ns since 1970; nothing where a file system does not say (block devices, networks).
    pub modified_ns: Option<i64>,
}

impl MediumDisk {
    /// The file that the VM writes to.
    pub fn file(&self) -> &str {
        self.images.first().map_or("no file", |image| image.file.as_str())
    }
}

/// How the disks of a target fit to a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskCheck {
    /// Why memory and disks are of different moments, a sentence each.
    pub differences: Vec<String>,
    /// Facts that cannot be checked, a sentence each.
    pub notes: Vec<String>,
}

impl DiskCheck {
    /// Compares disks with those of the VM that was saved.
    pub fn new(saved: &[MediumDisk], here: &[MediumDisk]) -> DiskCheck {
        let mut check = DiskCheck::default();
        for disk in saved.iter().filter(|disk| disk.writable) {
            let what = format!("disk {}", disk.name);
            let only = || (saved.len() == 1 && here.len() == 1).then(|| &here[0]);
            match here.iter().find(|other| other.name == disk.name).or_else(only) {
                Some(other) => check.compare(&what, disk, other),
                None => check.differences.push(format!("{what}: this QEMU does not have it")),
            }
        }
        check
    }

    fn compare(&mut self, what: &str, saved: &MediumDisk, here: &MediumDisk) {
        if saved.bytes != here.bytes {
            self.differences.push(format!(
                "{what}: saved with {} bytes, this QEMU has {} bytes",
                saved.bytes, here.bytes
            ));
        }
        let file = saved.file();
        let uses = |file: &str| here.images.iter().find(|image| image.file == file);
        if let Some(overlay) = saved.overlay.as_deref().filter(|overlay| uses(overlay).is_some()) {
            self.differences.push(format!(
                "{what}: {overlay} is what the saved VM went on writing to; start QEMU with a new overlay of {file}"
            ));
            return;
        }
        let before = saved.images.first().and_then(|image| image.modified_ns);
        match uses(file).map(|image| image.modified_ns) {
            None => self.notes.push(format!(
                "{what}: this QEMU has {} and the saved VM had {file}; it must hold what that held when the VM was saved",
                here.file()
            )),
            Some(now) if now.is_none() || before.is_none() => self.notes.push(format!(
                "{what}: whether {file} was written after the VM was saved cannot be told; it must hold what it held then"
            )),
            Some(now) if now != before => self.differences.push(format!(
                "{what}: {file} was written after the VM was saved, so memory and disk are of different moments; \
                 use a copy or snapshot of that moment"
            )),
            Some(_) => {}
        }
    }
}

impl QemuVm {
    /// Its disks with a medium, writable or not.
    pub fn disks(&mut self) -> Result<Vec<MediumDisk>, VmError> {
        let answer = self.qmp.run("query-block", json!({}))?;
        let folder = fs::read_link(format!("/proc/{}/cwd", self.pid)).unwrap_or_default();
        let drives = answer.as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(drives.iter().filter_map(|drive| disk(drive, &folder)).collect())
    }

    /// Gives each writable disk an overlay that does not exist yet: `STEM.name.qcow2` beside its file, or in
    /// `folder`. Nothing is made yet.
    pub fn plan_overlays(
        &self,
        disks: &mut [MediumDisk],
        folder: Option<&Path>,
        name: &str,
    ) -> Result<(), VmError> {
        let cwd = fs::read_link(format!("/proc/{}/cwd", self.pid)).unwrap_or_default();
        let mut taken = Vec::new();
        for disk in disks.iter_mut().filter(|disk| disk.writable) {
            let file = Path::new(disk.file());
            let what = format!("disk {} ({})", disk.name, file.display());
            let beside = file.parent().filter(|_| file.is_absolute() && file.is_file());
            let Some(into) = folder.or(beside) else {
                return Err(self.unfit(format!(
                    "{what}: is not a file beside which an overlay can be made; name a folder: --snapshot-disks=DIR"
                )));
            };
            let into = match into.canonicalize() {
                Ok(into) if into.is_dir() => into,
                _ => return Err(self.unfit(format!("{}: there is no such folder", into.display()))),
            };
            if disk.is_relative && into != cwd {
                return Err(self.unfit(format!(
                    "{what}: QEMU was started with a relative name of it, and an overlay elsewhere would not find it; \
                     start QEMU with the absolute path, or name QEMU's own folder: --snapshot-disks={}",
                    cwd.display()
                )));
            }
            // Of the first one, or names would grow with each overlay of an overlay.
            let first = disk.images.last().map(|image| Path::new(&image.file));
            let stem =
                first.and_then(Path::file_stem).unwrap_or(disk.name.as_ref()).to_string_lossy();
            let mut overlay = into.join(format!("{stem}.{name}.qcow2"));
            if taken.contains(&overlay) {
                // disk.img and disk.qcow2, or files of one name in several folders: the disk's own name tells them apart.
                let own = disk.name.replace('/', "_");
                overlay = into.join(format!("{stem}-{own}.{name}.qcow2"));
            }
            if overlay.symlink_metadata().is_ok() || taken.contains(&overlay) {
                return Err(self.unfit(format!(
                    "{what}: its overlay would be {}, which exists already; name another checkpoint, or another folder: \
                     --snapshot-disks=DIR",
                    overlay.display()
                )));
            }
            let Some(text) = overlay.to_str() else {
                return Err(self.unfit(format!("{}: is no UTF-8", overlay.display())));
            };
            disk.overlay = Some(text.to_owned());
            taken.push(overlay);
        }
        Ok(())
    }

    /// Makes the planned overlays, all or none: from then on the VM writes to them, and what it had stays as it is.
    pub fn snapshot_disks(&mut self, disks: &[MediumDisk]) -> Result<(), VmError> {
        let planned = disks.iter().filter_map(|disk| Some((disk, disk.overlay.as_deref()?)));
        let actions: Vec<Value> =
            planned.clone().enumerate().map(|(i, (disk, file))| action(i, disk, file)).collect();
        if actions.is_empty() {
            return Ok(());
        }
        let done = self.qmp.run("transaction", json!({ "actions": actions }));
        let Err(error) = done else { return Ok(()) };
        // QEMU takes the nodes back, but not the files that it has made. None of them existed when they were planned.
        if let Ok(now) = self.disks() {
            let used: Vec<&str> =
                now.iter().flat_map(|d| &d.images).map(|image| image.file.as_str()).collect();
            for (_, file) in planned.filter(|(_, file)| !used.contains(file)) {
                // One that was not made, or that only QEMU's user may remove.
                let _ = fs::remove_file(file);
            }
        }
        Err(error.into())
    }
}

fn action(number: usize, disk: &MediumDisk, file: &str) -> Value {
    let mut data = json!({ "snapshot-file": file, "format": "qcow2", "mode": "absolute-paths" });
    if disk.device.is_empty() {
        data["node-name"] = disk.node.as_str().into();
        // A node that was named gets an overlay that is named. QEMU takes 31 bytes, and only new ones.
        let nonce = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |time| time.as_micros() as u64);
        data["snapshot-node-name"] = format!("vmtax-{nonce:x}-{number}").into();
    } else {
        data["device"] = disk.device.as_str().into();
    }
    json!({ "type": "blockdev-snapshot-sync", "data": data })
}

/// A disk of query-block; nothing for a drive without a medium.
fn disk(drive: &Value, folder: &Path) -> Option<MediumDisk> {
    let inserted = drive.get("inserted")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (device, node) = (text(&drive["device"]), text(&inserted["node-name"]));
    let guest = text(&drive["qdev"]);
    // A path in QEMU's tree of objects, or the bare id.
    let id = match guest.strip_prefix("/machine/peripheral/") {
        Some(path) => path.split('/').next().unwrap_or_default(),
        None if guest.starts_with('/') => "",
        None => &guest,
    };
    let name = [id, &device, &node].into_iter().find(|name| !name.is_empty()).unwrap_or("?");
    let mut images = Vec::new();
    let mut level = Some(&inserted["image"]);
    while let Some(image) = level.filter(|image| image.is_object()) {
        images.push(self::image(image["filename"].as_str().unwrap_or_default(), folder));
        level = image.get("backing-image");
    }
    let first = inserted["image"]["filename"].as_str().unwrap_or_default();
    Some(MediumDisk {
        name: name.to_owned(),
        device,
        node,
        format: text(&inserted["drv"]),
        bytes: inserted["image"]["virtual-size"].as_u64().unwrap_or(0),
        writable: inserted["ro"] != true,
        images,
        overlay: None,
        is_relative: is_file_name(first) && !first.starts_with('/'),
    })
}

fn image(name: &str, folder: &Path) -> DiskImage {
    if !is_file_name(name) {
        return DiskImage { file: name.to_owned(), modified_ns: None };
    }
    let path: PathBuf = folder.join(name);
    let path = path.canonicalize().unwrap_or(path);
    let metadata = path.metadata().ok().filter(fs::Metadata::is_file);
    let modified_ns =
        metadata.and_then(|m| m.mtime().checked_mul(1_000_000_000)?.checked_add(m.mtime_nsec()));
    DiskImage { file: path.to_string_lossy().into_owned(), modified_ns }
}

/// Whether QEMU's name of an image is a path: `nbd://...` and `json:{...}` are not.
fn is_file_name(name: &str) -> bool {
    let protocol = name.split_once(':').map(|(protocol, _)| protocol);
    !name.is_empty() && protocol.is_none_or(|protocol| protocol.contains('/'))
}
