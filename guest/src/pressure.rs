//! What a host does to its VMs beside running them: memory in pieces, pages in swap, threads that compute, and who runs where.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use vmtax_guest::traffic::{Pin, Pressure};

use crate::{Result, hpet, system};

/// The name of threads that compute.
const RIVAL: &str = "rival";
/// Memory that stays free and whole, KiB: the VMM's own, and the kernel's.
const RESERVE_KIB: usize = 48 << 10;
/// What the kernel keeps for itself of that, KiB.
const KEPT_KIB: usize = 16 << 10;
const KEPT_BY_KERNEL: &str = "/proc/sys/vm/min_free_kbytes";
const PAGE: usize = 4096;
/// One page of so many bytes stays in use where memory is in pieces.
const PIECE: usize = 64 << 10;
/// Passes over memory that goes to swap.
const PASSES: u32 = 20;
/// The swap, and its size.
const SWAP: &str = "/dev/zram0";
const SWAP_BYTES: u64 = 512 << 20;
const CGROUPS: &str = "/sys/fs/cgroup";
/// The period of a limit of processor time, us: the kernel's own.
const PERIOD_US: u32 = 100_000;

/// The pressure on VMs, which ends with this value.
pub(crate) struct Under {
    stop: Arc<AtomicBool>,
    rivals: Vec<JoinHandle<()>>,
    swaps: bool,
    /// The device that interrupts.
    _device: Option<File>,
    /// What keeps memory in pieces.
    _pieces: Option<system::UntouchedMemory>,
}

impl Drop for Under {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.rivals.drain(..).for_each(|rival| drop(rival.join()));
        if self.swaps {
            // Memory in pieces would go there, and be whole again. If this fails, the swap stays.
            let _ = system::swap_off(SWAP).and_then(|()| reset());
        }
    }
}

impl Under {
    /// Begins, before the VMs start.
    pub(crate) fn begin(pressure: &Pressure) -> Result<Under> {
        if pressure.swaps {
            swap_on()?;
        }
        let pieces = if pressure.fragmented { Some(pieces()?) } else { None };
        let swaps = pressure.swaps;
        let mut under = Under {
            stop: Arc::default(),
            rivals: Vec::new(),
            swaps,
            _device: pressure.interrupted.map(hpet::interrupt).transpose()?,
            _pieces: pieces,
        };
        for _ in 0..pressure.rivals {
            let stop = Arc::clone(&under.stop);
            let run = move || while !stop.load(Ordering::Relaxed) {};
            let thread = std::thread::Builder::new().name(RIVAL.to_owned()).spawn(run);
            under.rivals.push(thread.map_err(|e| format!("a thread: {e}"))?);
        }
        Ok(under)
    }
}

/// Lets a VMM have so many percent of a processor, in a group of its own.
pub(crate) fn limit(quota: Option<u32>, vmm: u32) -> Result<()> {
    let Some(percent) = quota else { return Ok(()) };
    system::mount("cgroup2", CGROUPS)?;
    let write = |path: String, words: String| {
        fs::write(&path, &words).map_err(|e| format!("{path}: writing {words:?}: {e}"))
    };
    write(format!("{CGROUPS}/cgroup.subtree_control"), "+cpu".to_owned())?;
    let group = format!("{CGROUPS}/quota");
    fs::create_dir_all(&group).map_err(|e| format!("{group}: {e}"))?;
    let time = PERIOD_US * percent / 100;
    write(format!("{group}/cpu.max"), format!("{time} {PERIOD_US}"))?;
    write(format!("{group}/cgroup.procs"), vmm.to_string())
}

/// Pins threads of this program and of a VMM.
pub(crate) fn pin(pins: &[Pin], vmm: u32) -> Result<()> {
    for Pin { name, cpu } in pins {
        let mut found = false;
        for process in [std::process::id(), vmm] {
            for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten() {
                let Ok(thread) = thread else { continue };
                let comm = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
                let tid = thread.file_name().to_str().and_then(|tid| tid.parse().ok());
                if let Some(tid) = tid.filter(|_| comm.starts_with(name.as_str())) {
                    system::pin(tid, *cpu as usize)?;
                    found = true;
                }
            }
        }
        if !found {
            return Err(format!("no thread's name begins with {name:?}"));
        }
    }
    Ok(())
}

/// Uses all free memory but a reserve, and gives it back in pieces.
fn pieces() -> Result<system::UntouchedMemory> {
    // With huge pages the kernel keeps tens of MiB for itself, more the more memory there is.
    let kept = fs::write(KEPT_BY_KERNEL, KEPT_KIB.to_string());
    kept.map_err(|e| format!("{KEPT_BY_KERNEL}: {e}"))?;
    // What the page cache has would be free later, and whole.
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    let free = meminfo("MemFree:").ok_or("/proc/meminfo does not say how much memory is free")?;
    let bytes = free.saturating_sub(RESERVE_KIB) << 10;
    let memory = system::UntouchedMemory::new(bytes, false)?;
    memory.touch(PAGE);
    memory.give_back(PAGE, PIECE)?;
    Ok(memory)
}

/// A value of `/proc/meminfo`, KiB.
fn meminfo(key: &str) -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Gives the memory of the swap back, which is off.
fn reset() -> Result<()> {
    let path = "/sys/block/zram0/reset";
    fs::write(path, "1").map_err(|e| format!("{path}: {e}"))
}

/// Switches the swap on, if it is not.
fn swap_on() -> Result<()> {
    if fs::read_to_string("/proc/swaps").unwrap_or_default().contains(SWAP) {
        return Ok(());
    }
    let size = "/sys/block/zram0/disksize";
    fs::write(size, SWAP_BYTES.to_string()).map_err(|e| format!("{size}: {e}"))?;
    // The header of mkswap(8): version 1, the last page, no bad pages.
    let mut header = vec![0u8; PAGE];
    let last = (SWAP_BYTES / PAGE as u64 - 1) as u32;
    for (at, bytes) in [
        (1024, &1u32.to_le_bytes()[..]),
        (1028, &last.to_le_bytes()[..]),
        (PAGE - 10, &b"SWAPSPACE2"[..]),
    ] {
        header[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let device = fs::OpenOptions::new().write(true).open(SWAP);
    device.and_then(|file| file.write_all_at(&header, 0)).map_err(|e| format!("{SWAP}: {e}"))?;
    system::swap_on(SWAP)
}

/// Writes the memory of this VMM's VM, its largest mapping, to swap.
pub(crate) fn swap_out(vmm: u32) -> Result<()> {
    let path = format!("/proc/{vmm}/maps");
    let maps = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let range = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let parse = |word| usize::from_str_radix(word, 16).ok();
        rest.starts_with("rw-p").then_some((parse(start)?, parse(end)?))
    };
    let (start, end) = maps
        .lines()
        .filter_map(range)
        .max_by_key(|(start, end)| end - start)
        .ok_or_else(|| format!("{path}: no mapping that can be written"))?;
    // A pass leaves pages that another CPU or the kernel's own lists hold at that moment.
    let mut before = 0;
    for _ in 0..PASSES {
        system::page_out(vmm, start, end - start)?;
        let now = in_swap(vmm);
        if now == before {
            break;
        }
        before = now;
    }
    Ok(())
}

/// Memory of a process in swap, KiB.
fn in_swap(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let rest = status.lines().find_map(|line| line.strip_prefix("VmSwap:"));
    rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
