//! The memory of a Linux guest, by what it is on the host.
//!
//! A guest with private memory has it where its kernel keeps nothing that KVM reads. KVM decodes instructions, walks page tables and
//! writes clock pages of a software-protected VM through the shared mapping, so the kernel's memory stays shared; `kernelcore` and
//! `rootfstype=ramfs` on its command line keep page tables and programs' text there, too:
//!
//! ```text
//!   0 ........ half ........ half + GAP ............ end - TOP ........ end
//!   kernel, initramfs | gap  | private: programs' data | early allocations
//!   shared, huge pages       | guest_memfd             | shared, huge pages
//! ```

use std::os::fd::{AsRawFd, IntoRawFd};

use kvm_ioctls::Kvm;
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};
use vmtax_guest::order::Backing;

use super::hugetlb::{HUGE, HUGETLB, huge_memfd, reserve};
use super::touched::{
    MMAP_AND_SHARED, NO_GUEST_MEMFD, NO_PROTECTED, PROTECTED, guest_memfd, has_guest_memfd,
    has_protected,
};
use super::{BareVm, ORDINARY, failed};
use crate::Result;
use crate::system::map;

/// Linux rounds the beginning of movable memory up, and leaves out the hole below 1 MiB.
const GAP: usize = 16 << 20;
/// Linux takes its first memory from the top: 64 bytes for each page, and tables.
const TOP: usize = 24 << 20;

/// What a guest's memory is on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostBacking {
    /// Anonymous memory as the kernel gives it: pages of 4 KiB.
    Anonymous,
    /// Anonymous memory for which huge pages are asked, as QEMU does.
    Thp,
    /// A guest_memfd that is mapped here, too.
    GuestMemfd,
    /// A memfd of huge pages.
    Hugetlb,
    /// Private memory of a software-protected VM for data of programs, and anonymous memory as [`Backing::Thp`] for the kernel.
    Private,
}

/// A guest's memory.
pub(crate) struct AttachedMemory {
    /// As this program writes to it.
    pub(super) region: GuestMemoryMmap,
    mapping: *mut u8,
    mapped: usize,
    /// Pages that hugetlb had before.
    reserved: Option<String>,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for AttachedMemory {}

impl AttachedMemory {
    /// Gives it back.
    ///
    /// # Safety
    /// The VM has ended, and nothing uses the region.
    pub(super) unsafe fn release(self) {
        drop(self.region);
        // SAFETY: guaranteed by the caller.
        unsafe { libc::munmap(self.mapping.cast(), self.mapped) };
        if let Some(reserved) = self.reserved {
            // Pages that stay reserved are lost to the host, which ends soon.
            let _ = std::fs::write(HUGETLB, reserved);
        }
    }
}

impl HostBacking {
    /// That of a process whose accesses are recorded.
    pub(crate) fn of_process(backing: Backing) -> Option<HostBacking> {
        match backing {
            Backing::Small => Some(HostBacking::Anonymous),
            Backing::Thp => Some(HostBacking::Thp),
            Backing::Hugetlb => Some(HostBacking::Hugetlb),
            Backing::GuestMemfd => Some(HostBacking::GuestMemfd),
            _ => None,
        }
    }

    /// `vmtax.backing=` of the command line.
    pub(crate) fn of_word(word: &str) -> Option<HostBacking> {
        match word {
            "thp" => Some(HostBacking::Thp),
            "guest-memfd" => Some(HostBacking::GuestMemfd),
            "private" => Some(HostBacking::Private),
            _ => None,
        }
    }

    /// What this kernel lacks for it, as a sentence; `None` if it has all.
    pub(crate) fn missing(self) -> Result<Option<String>> {
        let kvm = Kvm::new().map_err(failed("/dev/kvm"))?;
        let missing = match self {
            HostBacking::Private if !has_protected(&kvm) => Some(NO_PROTECTED),
            HostBacking::GuestMemfd if !has_guest_memfd(&kvm)? => Some(NO_GUEST_MEMFD),
            _ => None,
        };
        Ok(missing.map(str::to_owned))
    }

    /// A VM that can have it.
    pub(super) fn vm(self) -> Result<BareVm> {
        BareVm::of_type(if self == HostBacking::Private { PROTECTED } else { ORDINARY })
    }

    /// The end of the memory that the guest's files may be in.
    pub(super) fn files_end(self, bytes: usize) -> usize {
        if self == HostBacking::Private { bytes / 2 } else { bytes }
    }

    /// Gives the VM so many bytes from address 0 on. They stay mapped until they are [released](AttachedMemory::release).
    pub(super) fn attach(self, vm: &BareVm, bytes: usize) -> Result<AttachedMemory> {
        let whole = |host: *mut u8, reserved| {
            Ok(AttachedMemory {
                region: region(host, bytes)?,
                mapping: host,
                mapped: bytes,
                reserved,
            })
        };
        if self == HostBacking::GuestMemfd {
            let file = guest_memfd(vm, bytes as u64, MMAP_AND_SHARED)
                .map_err(|problem| format!("{problem}; {NO_GUEST_MEMFD}"))?;
            let host = map(bytes, libc::MAP_SHARED, file.as_raw_fd())?.cast();
            // SAFETY: mapped just now, and unmapped when the VM has ended. The mapping keeps the file.
            unsafe { vm.memory_of(&file, 0, host, bytes)? };
            return whole(host, None);
        }
        if self == HostBacking::Hugetlb {
            let reserved = reserve(bytes)?;
            let host = map(bytes, libc::MAP_SHARED, huge_memfd(bytes)?.as_raw_fd())?.cast();
            // SAFETY: as above.
            unsafe { vm.memory(0, host, bytes)? };
            return whole(host, Some(reserved));
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let first = map(bytes + HUGE, flags, -1)?.cast::<u8>();
        let host = first.wrapping_add(first.align_offset(HUGE));
        let attached = || {
            Ok(AttachedMemory {
                region: region(host, bytes)?,
                mapping: first,
                mapped: bytes + HUGE,
                reserved: None,
            })
        };
        if self != HostBacking::Anonymous {
            // SAFETY: within the mapping. Where there are no huge pages the guest has small ones.
            unsafe { libc::madvise(host.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        if self != HostBacking::Private {
            // SAFETY: mapped just now, and unmapped when the VM has ended.
            unsafe { vm.memory(0, host, bytes)? };
            return attached();
        }
        let (from, end) = private_part(bytes)?;
        let file = guest_memfd(vm, (end - from) as u64, 0)?;
        // SAFETY: three parts of what was mapped just now, and unmapped when the VM has ended.
        unsafe {
            vm.memory(0, host, from)?;
            vm.memory_of(&file, from as u64, host.wrapping_add(from), end - from)?;
            vm.memory(end as u64, host.wrapping_add(end), bytes - end)?;
        }
        // A VM's memory does not keep its guest_memfd: without this descriptor the pages are gone.
        let _ = file.into_raw_fd();
        vm.make_private(from as u64, (end - from) as u64)?;
        attached()
    }
}

/// The private part of so much memory: its beginning and end, at huge pages.
fn private_part(bytes: usize) -> Result<(usize, usize)> {
    let from = (bytes / 2 + GAP).next_multiple_of(HUGE);
    let end = bytes.saturating_sub(TOP + bytes / 64) / HUGE * HUGE;
    let is_large = end > from + GAP;
    is_large
        .then_some((from, end))
        .ok_or_else(|| format!("{} MiB are too little for a VM with private memory", bytes >> 20))
}

/// The memory as this program writes to it.
fn region(host: *mut u8, bytes: usize) -> Result<GuestMemoryMmap> {
    let problem = |error: &dyn std::fmt::Display| format!("L1's memory: {error}");
    // SAFETY: so many bytes are mapped there, and are unmapped after the region's last use.
    let builder = unsafe { MmapRegionBuilder::new(bytes).with_raw_mmap_pointer(host) };
    let mapping = builder
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .build()
        .map_err(|e| problem(&e))?;
    let region = GuestRegionMmap::new(mapping, GuestAddress(0)).ok_or("L1's memory: too large")?;
    GuestMemoryMmap::from_regions(vec![region]).map_err(|e| problem(&e))
}
