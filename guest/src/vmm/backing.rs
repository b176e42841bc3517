//! The memory of a Linux guest, by what it is on the host.

use std::os::fd::AsRawFd;

use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use super::Vm;
use super::touched::{HUGE, MMAP_AND_SHARED, NO_GUEST_MEMFD, guest_memfd, map};
use crate::Result;

/// What a guest's memory is on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Anonymous memory as the kernel gives it: pages of 4 KiB.
    Anonymous,
    /// Anonymous memory for which huge pages are asked, as QEMU does.
    Thp,
    /// A guest_memfd that is mapped here, too.
    GuestMemfd,
}

impl Backing {
    /// `vmtax.backing=` of the command line.
    pub(crate) fn of_word(word: &str) -> Option<Backing> {
        match word {
            "thp" => Some(Backing::Thp),
            "guest-memfd" => Some(Backing::GuestMemfd),
            _ => None,
        }
    }

    /// Gives the VM so many bytes from address 0 on. They stay mapped for as long as this program runs.
    pub(super) fn attach(self, vm: &Vm, bytes: usize) -> Result<GuestMemoryMmap> {
        match self {
            Backing::GuestMemfd => {
                let file = guest_memfd(vm, bytes as u64, MMAP_AND_SHARED)
                    .map_err(|problem| format!("{problem}; {NO_GUEST_MEMFD}"))?;
                let host = map(bytes, libc::MAP_SHARED, file.as_raw_fd())?.cast();
                // SAFETY: mapped just now, and never unmapped.
                unsafe { vm.memory_of(&file, 0, host, bytes)? };
                // The VM has a reference of its own, and the mapping another.
                drop(file);
                region(host, bytes)
            }
            Backing::Anonymous | Backing::Thp => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                let first = map(bytes + HUGE, flags, -1)?.cast::<u8>();
                let host = first.wrapping_add(first.align_offset(HUGE));
                if self == Backing::Thp {
                    // SAFETY: within the mapping. Where there are no huge pages the guest has small ones.
                    unsafe { libc::madvise(host.cast(), bytes, libc::MADV_HUGEPAGE) };
                }
                // SAFETY: mapped just now, and never unmapped.
                unsafe { vm.memory(0, host, bytes)? };
                region(host, bytes)
            }
        }
    }
}

/// The memory as this program writes to it.
fn region(host: *mut u8, bytes: usize) -> Result<GuestMemoryMmap> {
    let problem = |error: &dyn std::fmt::Display| format!("L1's memory: {error}");
    // SAFETY: so many bytes are mapped there, and are never unmapped.
    let builder = unsafe { MmapRegionBuilder::new(bytes).with_raw_mmap_pointer(host) };
    let mapping = builder
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .build()
        .map_err(|e| problem(&e))?;
    let region = GuestRegionMmap::new(mapping, GuestAddress(0)).ok_or("L1's memory: too large")?;
    GuestMemoryMmap::from_regions(vec![region]).map_err(|e| problem(&e))
}
