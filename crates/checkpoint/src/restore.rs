//! A restore: a checkpoint into a QEMU that waits for it, or into an image.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use vmtax_cli::exit::{Code, CodedError, fail, say};
use vmtax_cli::output::cannot_write;
use vmtax_cli::progress::Progress;
use vmtax_durable::{FileAccess, NewFile};
use vmtax_machine::Stop;
use vmtax_machine::vm::{DiskCheck, Hardware, QemuVm, Ram, mib};
use vmtax_pageops::PAGE;
use vmtax_pageops::checkpoint::{Checkpoint, DamageReason, RestoreTarget};
use vmtax_pageops::process_memory;

use crate::faults::{fault, vm_fault};

/// A checkpoint that is restored, and how.
#[derive(Debug)]
pub struct Restore<'a> {
    /// What is restored.
    pub checkpoint: &'a Checkpoint,
    /// Leave the VM stopped.
    pub stopped: bool,
    /// Restore into a QEMU whose CPU, devices or disks differ.
    pub force: bool,
}

/// Most differences listed.
const LISTED: usize = 40;

impl Restore<'_> {
    /// Restores a VM into the QEMU with this monitor, which waits for an incoming migration.
    ///
    /// # Errors
    /// When the QEMU differs from the saved machine or is used by another client, or memory cannot be read or written.
    pub fn into_vm(&self, socket: &Path) -> anyhow::Result<()> {
        let checkpoint = self.checkpoint;
        // There is nothing to undo, so signals end the program as usual.
        let mut vm = QemuVm::connect(socket, Stop::default()).map_err(vm_fault)?;
        let name = checkpoint.path().display();
        if checkpoint.state_len() == 0 {
            return fail(
                Code::Data,
                format!("{name}: is of an image, without devices; restore it with --image"),
            );
        }
        let status = vm.status().map_err(vm_fault)?;
        if status != "inmigrate" {
            let what =
                format!("{}: this QEMU is {status}; start one with -incoming defer", vm.name());
            return fail(Code::Input, what);
        }
        let ram = vm.ram(true).map_err(vm_fault)?;
        self.compare(&mut vm, &ram)?;
        let mut memory = RestoredBlocks { blocks: &ram };
        fill(checkpoint, &mut memory, &format!("memory of the VM at {}", socket.display()))?;
        vm.still_waits().map_err(vm_fault)?;
        vm.check_content(&ram).map_err(vm_fault)?;
        vm.load_state(&mut checkpoint.state()).map_err(vm_fault)?;
        if self.stopped {
            return vm.stands().map_err(vm_fault);
        }
        vm.resume().map_err(vm_fault)
    }

    /// Compares the QEMU with the machine in the checkpoint, before anything is changed.
    fn compare(&self, vm: &mut QemuVm, ram: &[Ram]) -> anyhow::Result<()> {
        let checkpoint = self.checkpoint;
        let name = checkpoint.path().display();
        let theirs: Vec<(&str, u64)> =
            ram.iter().map(|r| (r.name.as_str(), r.bytes / PAGE as u64)).collect();
        let ours: Vec<(&str, u64)> = checkpoint.regions().map(|r| (r.name, r.pages)).collect();
        let same_memory = theirs == ours;
        let mut differences = Vec::new();
        if !same_memory {
            let list = |regions: &[(&str, u64)]| {
                let parts = regions
                    .iter()
                    .map(|(name, pages)| format!("{name} of {}", mib(pages * PAGE as u64)));
                parts.collect::<Vec<_>>().join(", ")
            };
            let (ours, theirs) = (list(&ours), list(&theirs));
            differences.push(format!("memory: saved with {ours}, this QEMU has {theirs}"));
        }
        let mut notes = Vec::new();
        if checkpoint.description().is_empty() {
            say(&format!(
                "{name}: has format version {}, which does not hold the machine, so it cannot be compared with this QEMU",
                checkpoint.version()
            ));
        } else {
            let saved: Hardware =
                serde_json::from_slice(checkpoint.description()).map_err(|_| {
                    let what = format!("{name}: its description of the machine cannot be read");
                    CodedError::new(Code::Data, what)
                })?;
            let here = vm.hardware().map_err(vm_fault)?;
            let found = saved.differences(&here).into_iter();
            // Shared memory was compared above, with the checkpoint's content.
            let shared = |text: &String| !same_memory && text.starts_with("memory");
            differences.extend(found.filter(|text| !shared(text)));
            let disks = DiskCheck::new(&saved.disks, &vm.disks().map_err(vm_fault)?);
            differences.extend(disks.differences);
            notes = disks.notes;
        }
        let more = differences.len().saturating_sub(LISTED);
        differences.truncate(LISTED);
        if more > 0 {
            differences.push(format!("and {more} more"));
        }
        if differences.is_empty() || (self.force && same_memory) {
            for sentence in differences.iter().chain(&notes) {
                say(&format!("{name}: {sentence}"));
            }
            return Ok(());
        }
        let what = format!(
            "{name}: is of another machine than this QEMU, and nothing was restored; start QEMU with what was saved"
        );
        Err(CodedError::new(Code::Data, what).detailed(differences).into())
    }

    /// Restores the checkpoint of an image.
    ///
    /// # Errors
    /// When it is of a VM with several blocks of memory, or the image cannot be written.
    pub fn into_image(&self, path: &Path) -> anyhow::Result<()> {
        let checkpoint = self.checkpoint;
        let name = path.display().to_string();
        if checkpoint.regions().count() != 1 {
            let what = format!("{}: has several blocks of memory", checkpoint.path().display());
            return fail(Code::Data, format!("{what}; restore it into a VM with --qmp"));
        }
        if let Some(source) = checkpoint.in_chain(path) {
            let what = format!("{name}: is {}, which is restored", source.path().display());
            return fail(Code::Usage, format!("{what}; name another image"));
        }
        let wrap = |e: io::Error| cannot_write(&name, &e);
        // Renaming would replace a symbolic link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let new = NewFile::create(&path, FileAccess::Private).map_err(wrap)?;
        fill(checkpoint, &mut RestoreImage { file: new.file() }, &name)?;
        new.publish().map_err(wrap)?;
        Ok(())
    }
}

fn fill(checkpoint: &Checkpoint, target: &mut dyn RestoreTarget, name: &str) -> anyhow::Result<()> {
    let watch = Progress::bytes(checkpoint.work() * PAGE as u64);
    let done = checkpoint.restore(target, &mut |pages| watch.at(pages * PAGE as u64));
    done.map_err(|e| match &e.reason {
        DamageReason::Target(error) => cannot_write(name, error).into(),
        _ => fault(&e, false),
    })
}

struct RestoredBlocks<'a> {
    blocks: &'a [Ram],
}

impl RestoreTarget for RestoredBlocks<'_> {
    fn clear(&mut self, region: usize, bytes: u64) -> io::Result<()> {
        let block = &self.blocks[region];
        process_memory::punch(&block.file, block.offset..block.offset + bytes)
    }

    fn write(&mut self, region: usize, at: u64, bytes: &[u8]) -> io::Result<()> {
        let block = &self.blocks[region];
        process_memory::write(&block.file, block.offset + at, bytes)
    }
}

struct RestoreImage<'a> {
    file: &'a File,
}

impl RestoreTarget for RestoreImage<'_> {
    fn clear(&mut self, _: usize, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn write(&mut self, _: usize, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }
}
