//! The description of a machine.

use std::borrow::Cow;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::kernel::Kernel;
use crate::mailbox::with_content;
use crate::{Emulator, Error, Mailbox, Stop};

/// Kernel options that make an emulated boot shorter and change nothing of what KVM does. Instructions
/// are those of Debian's Linux 6.1 under QEMU TCG, whose boot to init takes 1.6 billion without the last four and
/// 0.6 billion with all:
///
/// | option | saves |
/// |---|---|
/// | `quiet` | formatting and sending some 400 lines; on Bochs half of the boot |
/// | `nokaslr` | nothing, but the kernel is at the address that it was linked for |
/// | `mitigations=off` | what would be between an exit and KVM; makes path lengths comparable |
/// | `no_timer_check` | 12 million, spent on watching whether the timer interrupts |
/// | `clearcpuid=297` | a fifth of the time: without ERMS pages are cleared and copied by words; an emulator takes every byte of `rep stosb` for an instruction |
/// | `cryptomgr.notests` | 880 million: self-tests of the cryptography that is built in |
/// | `initcall_blacklist=...` | 130 million: reading the certificates of signed modules. Those that are loaded count as unsigned, which the kernel says once |
/// | `rodata=off` | 120 million: a walk over all page tables in search of writable code |
/// | `rcupdate.rcu_expedited=1` | waiting: making and ending a VM takes a dozen grace periods |
pub const QUICK_BOOT: &str = "quiet nokaslr mitigations=off no_timer_check cryptomgr.notests \
     initcall_blacklist=load_system_certificate_list rodata=off rcupdate.rcu_expedited=1 clearcpuid=297";

/// As [`QUICK_BOOT`], for arm64. DAMON, which Debian's Linux 7.3 runs by default, takes bursts of 8 million instructions.
pub const QUICK_BOOT_ARM: &str = "quiet nokaslr mitigations=off cryptomgr.notests \
     initcall_blacklist=load_system_certificate_list rodata=off damon_stat.enabled=0 rcupdate.rcu_expedited=1";
/// Its option for short grace periods, which a machine that measures waiting leaves out.
pub const EXPEDITED: &str = " rcupdate.rcu_expedited=1";

/// The initramfs of a machine.
#[derive(Clone, Debug)]
pub enum Initramfs {
    /// These bytes, from [`crate::cpio::archive`] for one.
    Bytes(Arc<Vec<u8>>),
    /// The content of a file.
    File(PathBuf),
}

impl Initramfs {
    /// A file with this content, at its start.
    pub(crate) fn open(&self) -> Result<File, Error> {
        let bytes = match self {
            Initramfs::File(path) => {
                return File::open(path).map_err(Error::io(path, "open the initramfs"));
            }
            Initramfs::Bytes(bytes) => bytes,
        };
        with_content("vmtax-initramfs", bytes)
            .map_err(Error::io(Path::new("the initramfs"), "keep in memory"))
    }

    pub(crate) fn bytes(&self) -> Result<Cow<'_, [u8]>, Error> {
        Ok(match self {
            Initramfs::Bytes(bytes) => Cow::Borrowed(bytes),
            Initramfs::File(path) => {
                Cow::Owned(fs::read(path).map_err(Error::io(path, "read the initramfs"))?)
            }
        })
    }
}

#[derive(Clone, Debug)]
pub struct VmSpec {
    pub emulator: Emulator,
    /// The kernel that it boots.
    pub kernel: Kernel,
    pub initramfs: Initramfs,
    /// The kernel's command line. `panic=-1` makes a panic end the machine; its console is `ttyS0`.
    pub command_line: String,
    pub memory_mib: u32,
    pub cpus: u32,
    /// The mailbox that it shares with vmtax.
    pub mailbox: Mailbox,
    /// The file that its console goes to, made anew and kept.
    pub console: PathBuf,
    /// Wall-clock timeout, from its start.
    pub limit: Duration,
    /// A stop request ends it: a wait then returns [`Error::Stopped`].
    pub stop: Stop,
    pub options: QemuOptions,
}

/// Options for QEMU; empty by default, ignored by Bochs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QemuOptions {
    /// `-machine` in place of `pc`: `q35,kernel_irqchip=split`. One without an IDE controller of its own gets one for the
    /// mailbox.
    pub machine: Option<String>,
    /// `-cpu` in place of the accelerator's.
    pub cpu: Option<String>,
    /// Further arguments: devices, objects, networks. `{fd0}` is the number that the first of [`QemuOptions::descriptors`] has in QEMU.
    pub arguments: Vec<String>,
    /// Descriptors that QEMU gets: sockets, taps.
    pub descriptors: Vec<QemuDescriptor>,
    /// The firmware that boots the kernel, as `-bios`: UEFI. The kernel's image has to be one that it can start, a bzImage.
    pub firmware: Option<PathBuf>,
    /// Where the guest sees the mailbox.
    pub mailbox: MailboxDisk,
}

/// The device by which the guest sees the mailbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MailboxDisk {
    /// The master of the second IDE channel, at its ports: for a guest's program that does port I/O.
    #[default]
    Ide,
    /// A virtio disk with the serial number [`MailboxDisk::SERIAL`] and these further properties, for a guest whose programs cannot do port I/O:
    /// the kernel of a TD ends a program that does, and that of an SEV-SNP guest one with iopl (Linux arch/x86/coco/tdx/tdx.c,
    /// `virt_exception_user`; arch/x86/coco/sev, `vc_ioio_check`).
    Virtio(String),
}

impl MailboxDisk {
    /// The serial number of the virtio disk.
    pub const SERIAL: &str = "vmtax-mailbox";
}

/// A descriptor for QEMU. Clones are the same descriptor.
#[derive(Clone, Debug)]
pub struct QemuDescriptor(pub(crate) Arc<OwnedFd>);

impl From<OwnedFd> for QemuDescriptor {
    fn from(fd: OwnedFd) -> QemuDescriptor {
        QemuDescriptor(Arc::new(fd))
    }
}

impl PartialEq for QemuDescriptor {
    fn eq(&self, other: &QemuDescriptor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for QemuDescriptor {}

/// A program on the PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}
