//! DSA hardware, through the Linux driver: queues are found in sysfs and opened in /dev/dsa.
//!
//! Untested on hardware. An unusable queue is reported with the reason and the setting that fixes it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::{Descriptor, Portal, QueueLimits, Submit, opcode};

/// Folders of devices and of their queues.
#[derive(Clone, Debug)]
pub struct Roots {
    /// /sys/bus/dsa/devices
    pub sysfs: PathBuf,
    /// /dev/dsa
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Roots {
        Roots { sysfs: PathBuf::from("/sys/bus/dsa/devices"), dev: PathBuf::from("/dev/dsa") }
    }
}

/// A queue as sysfs describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdxdQueue {
    /// `wq0.0`
    pub name: String,
    /// `dsa0`
    pub device: String,
    /// Descriptors go in with ENQCMD, from many processes.
    pub shared: bool,
    /// Its limits.
    pub limits: QueueLimits,
    /// Whether it can resolve page faults.
    pub block_on_fault: bool,
    /// Why it is unusable, if so.
    pub problem: Option<QueueProblem>,
}

/// Why a queue is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{queue}: {what}; {fix}")]
pub struct QueueProblem {
    /// The queue.
    pub queue: String,
    /// The problem.
    pub what: String,
    /// The fix.
    pub fix: String,
}

/// All queues, usable or not, by name.
pub fn discover(roots: &Roots) -> io::Result<Vec<IdxdQueue>> {
    let mut queues = Vec::new();
    let entries = match fs::read_dir(&roots.sysfs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(queues),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("wq") {
            queues.push(queue(roots, &name));
        }
    }
    queues.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(queues)
}

/// One queue by the path that a user gives: /dev/dsa/wq0.0, or wq0.0.
pub fn find(roots: &Roots, path: &Path) -> Result<IdxdQueue, QueueProblem> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    if !roots.sysfs.is_dir() {
        return Err(QueueProblem {
            queue: name,
            what: "this machine has no DSA, or its driver is not loaded".to_owned(),
            fix: "run `modprobe idxd`, on a processor with DSA (Sapphire Rapids or later)"
                .to_owned(),
        });
    }
    if !roots.sysfs.join(&name).is_dir() {
        let all = discover(roots).unwrap_or_default();
        let all: Vec<String> = all.into_iter().map(|q| q.name).collect();
        let fix = if all.is_empty() {
            "there are none".to_owned()
        } else {
            format!("there are {}", all.join(", "))
        };
        return Err(QueueProblem { queue: name, what: "there is no such queue".to_owned(), fix });
    }
    let queue = queue(roots, &name);
    match queue.problem.clone() {
        Some(problem) => Err(problem),
        None => Ok(queue),
    }
}

fn queue(roots: &Roots, name: &str) -> IdxdQueue {
    let folder = roots.sysfs.join(name);
    let device = format!("dsa{}", name.trim_start_matches("wq").split('.').next().unwrap_or("0"));
    let device_folder = roots.sysfs.join(&device);
    let text = |folder: &Path, file: &str| {
        fs::read_to_string(folder.join(file)).unwrap_or_default().trim().to_owned()
    };
    let number = |folder: &Path, file: &str| text(folder, file).parse::<u64>().ok();
    let least = |file: &str| {
        let values = [number(&folder, file), number(&device_folder, file)];
        values.into_iter().flatten().min().unwrap_or(0)
    };
    let node = text(&device_folder, "numa_node").parse::<i64>().ok();
    let limits = QueueLimits {
        depth: number(&folder, "size").unwrap_or(0) as u32,
        batch: least("max_batch_size") as u32,
        transfer: least("max_transfer_size"),
        node: node.and_then(|n| u32::try_from(n).ok()),
    };
    let problem =
        |what: String, fix: String| Some(QueueProblem { queue: name.to_owned(), what, fix });
    let (state, kind) = (text(&folder, "state"), text(&folder, "type"));
    let problem = if text(&device_folder, "state") == "disabled" {
        problem(
            format!("its device {device} is disabled"),
            format!("run `accel-config enable-device {device}`"),
        )
    } else if kind != "user" {
        problem(
            format!("it is of type {kind:?}, not for programs"),
            format!(
                "run `accel-config config-wq {device}/{name} --type=user --driver-name=user`, then enable it"
            ),
        )
    } else if limits.depth == 0 {
        problem(
            "it has no entries".to_owned(),
            format!("run `accel-config config-wq {device}/{name} --wq-size=16`"),
        )
    } else if state != "enabled" {
        problem(format!("it is {state}"), format!("run `accel-config enable-wq {device}/{name}`"))
    } else if text(&device_folder, "pasid_enabled") == "0" {
        problem(
            "its device cannot use a program's addresses (no SVA)".to_owned(),
            "boot with intel_iommu=on,sm_on and VT-d on in the firmware".to_owned(),
        )
    } else if limits.transfer == 0 {
        problem("it allows transfers of no bytes".to_owned(), "set max_transfer_size".to_owned())
    } else if !roots.dev.join(name).exists() {
        problem(
            format!("{} is missing", roots.dev.join(name).display()),
            format!(
                "run `accel-config config-wq {device}/{name} --driver-name=user`, then enable it"
            ),
        )
    } else {
        None
    };
    IdxdQueue {
        name: name.to_owned(),
        device,
        shared: text(&folder, "mode") == "shared",
        limits,
        block_on_fault: text(&folder, "block_on_fault") == "1",
        problem,
    }
}

/// How descriptors are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// MOVDIR64B, for a dedicated queue.
    Store(NonNull<u8>),
    /// ENQCMD, which reports whether there was space.
    Enqueue(NonNull<u8>),
    /// write(), if mapping is not allowed (SA-01084). Without batches.
    Write,
}

/// An open queue.
#[derive(Debug)]
pub struct Idxd {
    queue: IdxdQueue,
    way: Way,
    file: Option<File>,
    /// Who opened it; a child of a fork may not use it.
    pid: u32,
    /// Place in the portal's page.
    at: usize,
}

// SAFETY: the mapping belongs to the process; the portal has one user at a time, by `&mut`.
unsafe impl Send for Idxd {}

const PORTAL: usize = 4096;

impl Idxd {
    /// Opens a queue for this process.
    pub fn open(roots: &Roots, queue: IdxdQueue) -> Result<Idxd, QueueProblem> {
        let path = roots.dev.join(&queue.name);
        let problem = |what: String, fix: &str| QueueProblem {
            queue: queue.name.clone(),
            what,
            fix: fix.to_owned(),
        };
        let file =
            OpenOptions::new().read(true).write(true).open(&path).map_err(|e| match e.kind() {
                io::ErrorKind::PermissionDenied => problem(
                    format!("{} may not be opened", path.display()),
                    "give your user access to it, or be root",
                ),
                io::ErrorKind::ResourceBusy => problem(
                    "another process uses it".to_owned(),
                    "choose another queue, or one of mode shared",
                ),
                _ => problem(
                    format!("{} cannot be opened: {e}", path.display()),
                    "see the kernel's log",
                ),
            })?;
        let (kind, flags) = (libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let page =
            unsafe { libc::mmap(std::ptr::null_mut(), PORTAL, kind, flags, file.as_raw_fd(), 0) };
        let way = if page == libc::MAP_FAILED {
            Way::Write
        } else {
            match (NonNull::new(page.cast::<u8>()), queue.shared) {
                (Some(page), false) if has_movdir64b() => Way::Store(page),
                (Some(page), true) if has_enqcmd() => Way::Enqueue(page),
                _ => {
                    // SAFETY: the mapping is new and not shared yet.
                    unsafe { libc::munmap(page, PORTAL) };
                    let instruction = if queue.shared { "ENQCMD" } else { "MOVDIR64B" };
                    let what = format!("this processor has no {instruction}");
                    return Err(problem(what, "use a processor with DSA"));
                }
            }
        };
        Ok(Idxd { queue, way, file: Some(file), pid: std::process::id(), at: 0 })
    }

    /// The way of submission, in words.
    pub fn way(&self) -> &'static str {
        match self.way {
            Way::Store(_) => "MOVDIR64B",
            Way::Enqueue(_) => "ENQCMD",
            Way::Write => "write()",
        }
    }
}

impl Portal for Idxd {
    fn name(&self) -> &str {
        &self.queue.name
    }

    fn limits(&self) -> QueueLimits {
        let mut limits = self.queue.limits.clone();
        if self.way == Way::Write {
            limits.batch = 0;
        }
        limits
    }

    unsafe fn submit(&mut self, descriptor: &Descriptor) -> Submit {
        let Some(file) = &self.file else {
            return Submit::Refused(io::ErrorKind::NotConnected.into());
        };
        if self.pid != std::process::id() {
            return Submit::Refused(io::Error::other("the queue was opened before a fork"));
        }
        self.at = (self.at + 64) % PORTAL;
        match self.way {
            // SAFETY: the portal is mapped and 64 divides the place; the descriptor is 64 bytes.
            Way::Store(page) => unsafe {
                store(page.as_ptr().add(self.at), descriptor);
                Submit::Accepted
            },
            // SAFETY: as above.
            Way::Enqueue(page) => unsafe {
                if enqueue(page.as_ptr().add(self.at), descriptor) {
                    Submit::Accepted
                } else {
                    Submit::Busy
                }
            },
            Way::Write => {
                debug_assert_ne!(descriptor.opcode(), opcode::BATCH);
                let from = std::ptr::from_ref(descriptor).cast();
                // SAFETY: 64 bytes owned here.
                match unsafe { libc::write(file.as_raw_fd(), from, 64) } {
                    64 => Submit::Accepted,
                    _ => match io::Error::last_os_error() {
                        e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
                            Submit::Busy
                        }
                        e => Submit::Refused(e),
                    },
                }
            }
        }
    }

    fn close(&mut self) {
        if self.file.is_none() {
            return;
        }
        if let Way::Store(page) | Way::Enqueue(page) = self.way {
            // SAFETY: this object owns the mapping, and nothing is submitted any more.
            unsafe { libc::munmap(page.as_ptr().cast(), PORTAL) };
        }
        self.way = Way::Write;
        // The driver drains this process's descriptors before its last file is closed.
        self.file = None;
    }
}

impl Drop for Idxd {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_movdir64b() -> bool {
    super::wait::cpuid7_ecx() & (1 << 28) != 0
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_enqcmd() -> bool {
    super::wait::cpuid7_ecx() & (1 << 29) != 0
}

/// # Safety
///
/// The processor has MOVDIR64B; `portal` is a portal's place, which 64 divides.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn store(portal: *mut u8, descriptor: &Descriptor) {
    // SAFETY: by the contract. The fence makes what the descriptor names visible before it.
    unsafe {
        std::arch::asm!(
            "sfence",
            // movdir64b rax, [rdx]
            ".byte 0x66, 0x0f, 0x38, 0xf8, 0x02",
            in("rax") portal,
            in("rdx") descriptor,
            options(nostack),
        );
    }
}

/// # Safety
///
/// The processor has ENQCMD; `portal` is a portal's place, which 64 divides.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn enqueue(portal: *mut u8, descriptor: &Descriptor) -> bool {
    let retry: u8;
    // SAFETY: by the contract. The fence makes what the descriptor names visible before it.
    unsafe {
        std::arch::asm!(
            "sfence",
            // enqcmd rax, [rdx]
            ".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02",
            "setz {retry}",
            retry = out(reg_byte) retry,
            in("rax") portal,
            in("rdx") descriptor,
            options(nostack),
        );
    }
    retry == 0
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn has_movdir64b() -> bool {
    false
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn has_enqcmd() -> bool {
    false
}

/// # Safety
///
/// Never called: such a processor opens no queue this way.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn store(_: *mut u8, _: &Descriptor) {}

/// # Safety
///
/// Never called: such a processor opens no queue this way.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn enqueue(_: *mut u8, _: &Descriptor) -> bool {
    false
}
