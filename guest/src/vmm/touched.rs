//! Memory that a payload touches for the first time, again and again: what it is on the host, what is done to it before each
//! batch, and what KVM counts meanwhile.
//!
//! ```text
//! PREPARE   settle, give back, read the page counters, populate        Watch::prepare
//! entry     pre-fault, read the fault counter                          Watch::enter
//! begin ... the batch; conversions                                     Touched::hypercall, Touched::fault
//! end       read both again: the difference is the batch's             Watch::end
//! ```

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use kvm_bindings::{kvm_create_guest_memfd, kvm_enable_cap, kvm_memory_attributes};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use vmtax_guest::layout;
use vmtax_guest::order::{Backing, BatchMappings, KvmCounters, Touch};

use super::hugetlb::{HUGE, HUGETLB, huge_memfd, punch, reserve};
use super::snapshot::{Pager, Snapshot};
use super::stats::{KvmStats, faults, pages};
use super::{BareVm, ORDINARY, failed};
use crate::Result;
use crate::system::map;

/// `KVM_X86_SW_PROTECTED_VM`.
pub(super) const PROTECTED: u32 = 1;
/// Capabilities, by Linux's `include/uapi/linux/kvm.h`.
const CAP_EXIT_HYPERCALL: u32 = 201;
const CAP_GUEST_MEMFD: u64 = 234;
const CAP_VM_TYPES: u64 = 235;
const CAP_PRE_FAULT_MEMORY: u64 = 236;
const CAP_GUEST_MEMFD_FLAGS: u64 = 244;
/// `GUEST_MEMFD_FLAG_MMAP` and `GUEST_MEMFD_FLAG_INIT_SHARED`.
pub(super) const MMAP_AND_SHARED: u64 = 3;
/// `KVM_MEMORY_ATTRIBUTE_PRIVATE`.
pub(super) const PRIVATE: u64 = 1 << 3;
/// `KVM_HC_MAP_GPA_RANGE`, and the bit of its attributes that asks for private memory.
const MAP_GPA_RANGE: u64 = 12;
const ENCRYPTED: u64 = 1 << 4;
/// `_IOWR(KVMIO, 0xd5, struct kvm_pre_fault_memory)`.
const KVM_PRE_FAULT_MEMORY: libc::Ioctl = 0xc040_aed5_u32 as libc::Ioctl;

/// Why such memory cannot be had.
pub(super) const NO_PROTECTED: &str = "this kernel has no software-protected VMs (CONFIG_KVM_SW_PROTECTED_VM, Linux 6.8; `./x kvm-modules` builds KVM with it)";
pub(super) const NO_GUEST_MEMFD: &str = "this kernel has no guest_memfd for ordinary VMs (GUEST_MEMFD_FLAG_MMAP and INIT_SHARED, Linux 6.18)";

const PAGE: u64 = 4096;

/// `struct kvm_pre_fault_memory`.
#[repr(C)]
struct PreFault {
    gpa: u64,
    size: u64,
    flags: u64,
    padding: [u64; 5],
}

/// What this kernel lacks for such memory, as a sentence; `None` if it has all.
pub(crate) fn missing(touch: &Touch) -> Result<Option<String>> {
    if !touch.counted {
        return Ok(None);
    }
    let kvm = Kvm::new().map_err(failed("/dev/kvm"))?;
    let lacks = |sentence: &str| Ok(Some(sentence.to_owned()));
    if touch.backing.is_protected() && !has_protected(&kvm) {
        return lacks(NO_PROTECTED);
    }
    if touch.backing == Backing::GuestMemfd && !has_guest_memfd(&kvm)? {
        return lacks(NO_GUEST_MEMFD);
    }
    if touch.backing == Backing::Hugetlb && !fs::exists(HUGETLB).unwrap_or(false) {
        return lacks("this kernel has no hugetlb pages of 2 MiB");
    }
    if touch.prefault && kvm.check_extension_raw(CAP_PRE_FAULT_MEMORY) <= 0 {
        return lacks("this kernel cannot pre-fault memory (KVM_PRE_FAULT_MEMORY, Linux 6.11)");
    }
    Ok(None)
}

/// Whether there are software-protected VMs.
pub(super) fn has_protected(kvm: &Kvm) -> bool {
    kvm.check_extension_raw(CAP_VM_TYPES) & 1 << PROTECTED != 0
}

/// Whether ordinary VMs have guest_memfd.
pub(super) fn has_guest_memfd(kvm: &Kvm) -> Result<bool> {
    let vm = kvm.create_vm().map_err(failed("KVM_CREATE_VM"))?;
    let flags = vm.check_extension_raw(CAP_GUEST_MEMFD_FLAGS);
    let has_flags = u64::try_from(flags).is_ok_and(|f| f & MMAP_AND_SHARED == MMAP_AND_SHARED);
    Ok(vm.check_extension_raw(CAP_GUEST_MEMFD) > 0 && has_flags)
}

/// The VM that such memory needs.
pub(super) fn vm_for(backing: Option<Backing>) -> Result<BareVm> {
    if !backing.is_some_and(Backing::is_protected) {
        return BareVm::of_type(ORDINARY);
    }
    let vm = BareVm::of_type(PROTECTED)?;
    let hypercalls = kvm_enable_cap {
        cap: CAP_EXIT_HYPERCALL,
        args: [1 << MAP_GPA_RANGE, 0, 0, 0],
        ..Default::default()
    };
    vm.fd.enable_cap(&hypercalls).map_err(failed("KVM_CAP_EXIT_HYPERCALL"))?;
    Ok(vm)
}

pub(super) struct Touched {
    touch: Touch,
    /// What this program has mapped, and where in it the memory begins.
    mapping: *mut libc::c_void,
    mapped: usize,
    start: *mut u8,
    /// The file that the mapping is of, if it is of one.
    file: Option<OwnedFd>,
    /// The guest_memfd of private pages.
    private: Option<OwnedFd>,
    /// What it is a mapping of, or is copied from.
    snapshot: Option<Snapshot>,
    pager: Option<Pager>,
    /// Pages that hugetlb had before.
    reserved: Option<String>,
    /// Some of it was converted since it was given back.
    converted: AtomicBool,
}

// SAFETY: the mapping belongs to this value alone; the calls on it may come from any thread.
unsafe impl Sync for Touched {}
// SAFETY: as above; and it may be unmapped from any thread.
unsafe impl Send for Touched {}

pub(super) fn system(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

impl Touched {
    pub(super) fn new(vm: &BareVm, touch: Touch) -> Result<Touched> {
        let bytes = touch.bytes as usize;
        let (file, private, reserved) = match touch.backing {
            Backing::GuestMemfd => {
                (Some(guest_memfd(vm, touch.bytes.into(), MMAP_AND_SHARED)?), None, None)
            }
            Backing::Private | Backing::Shared => {
                (None, Some(guest_memfd(vm, touch.bytes.into(), 0)?), None)
            }
            Backing::Hugetlb => {
                let reserved = reserve(bytes)?;
                (Some(huge_memfd(bytes)?), None, Some(reserved))
            }
            Backing::Thp
            | Backing::Small
            | Backing::Unbacked(_)
            | Backing::Snapshot { .. }
            | Backing::Userfault(_) => (None, None, None),
        };
        let (mapping, mapped) = match &file {
            Some(file) => (map(bytes, libc::MAP_SHARED, file.as_raw_fd())?, bytes),
            None => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                (map(bytes + HUGE, flags, -1)?, bytes + HUGE)
            }
        };
        let first = mapping.cast::<u8>();
        let start =
            if file.is_some() { first } else { first.wrapping_add(first.align_offset(HUGE)) };
        let converted = AtomicBool::new(true);
        let (snapshot, pager) = (None, None);
        let mut touched = Touched {
            touch,
            mapping,
            mapped,
            start,
            file,
            private,
            snapshot,
            pager,
            reserved,
            converted,
        };
        match touch.backing {
            Backing::Snapshot { .. } => {
                touched.snapshot = Some(Snapshot::new(bytes)?);
                touched.map_snapshot(0)?;
            }
            Backing::Userfault(chunk) => {
                touched.advise()?;
                let snapshot = touched.snapshot.insert(Snapshot::new(bytes)?);
                touched.pager = Some(Pager::start(snapshot, (start, bytes), chunk as usize)?);
            }
            _ if touched.file.is_none() => touched.advise()?,
            _ => {}
        }
        Ok(touched)
    }

    /// Maps the snapshot in its place, in that of its mapping of before.
    fn map_snapshot(&self, flags: libc::c_int) -> Result<()> {
        let (Some(snapshot), Backing::Snapshot { shared }) = (&self.snapshot, self.touch.backing)
        else {
            return Ok(());
        };
        let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        // SAFETY: this value's own mapping, which nothing uses now: the vCPU is not running.
        unsafe { snapshot.map_at(self.start, kind | flags) }
    }

    /// Asks for huge pages, or for none.
    fn advise(&self) -> Result<()> {
        let huge = !matches!(self.touch.backing, Backing::Small | Backing::Userfault(_));
        let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: within the mapping.
        let advised = unsafe { libc::madvise(self.start.cast(), self.bytes(), advice) } == 0;
        let enabled =
            fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        if huge && !(advised && (enabled.contains("[madvise]") || enabled.contains("[always]"))) {
            return Err("this kernel has no transparent huge pages".into());
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.touch.bytes as usize
    }

    /// Gives it to the VM.
    ///
    /// # Safety
    /// It must outlive the VM.
    pub(super) unsafe fn attach(&self, vm: &BareVm) -> Result<()> {
        let guest_memfd = match self.touch.backing {
            Backing::GuestMemfd => self.file.as_ref(),
            _ => self.private.as_ref(),
        };
        let Some(guest_memfd) = guest_memfd else {
            // SAFETY: the caller keeps it.
            return unsafe { vm.memory(layout::TOUCH, self.start, self.bytes()) };
        };
        // SAFETY: the caller keeps it.
        unsafe { vm.memory_of(guest_memfd, layout::TOUCH, self.start, self.bytes()) }
    }

    /// The host has none of its pages afterwards, and each is private or shared as at the start.
    fn give_back(&self, vm: &VmFd) -> Result<()> {
        if self.touch.backing.is_protected() && self.converted.swap(false, Ordering::Relaxed) {
            self.set_private(
                vm,
                (0, self.touch.bytes.into()),
                self.touch.backing != Backing::Shared,
            )?;
            self.renew()?;
        }
        self.discard_mapped(0, self.bytes());
        for file in [&self.file, &self.private].into_iter().flatten() {
            punch(file, 0, self.bytes());
        }
        Ok(())
    }

    /// Maps it anew, where it is of no file: where a small page was dropped Linux keeps the table of small pages, and
    /// gives no huge page there again.
    fn renew(&self) -> Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: takes the place of this value's own mapping, which nothing uses now: the vCPU is not running.
        let mapping = unsafe { libc::mmap(self.start.cast(), self.bytes(), access, flags, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return Err(system("mapping memory anew"));
        }
        self.advise()
    }

    /// Drops pages of the mapping, where it is of no file.
    fn discard_mapped(&self, from: usize, bytes: usize) {
        if self.file.is_none() {
            let at = self.start.wrapping_add(from).cast();
            // SAFETY: within the mapping; the guest's memory becomes zeroes, which payloads expect.
            unsafe { libc::madvise(at, bytes, libc::MADV_DONTNEED) };
        }
    }

    fn set_private(&self, vm: &VmFd, (from, size): (u64, u64), private: bool) -> Result<()> {
        let attributes = if private { PRIVATE } else { 0 };
        let change =
            kvm_memory_attributes { address: layout::TOUCH + from, size, attributes, flags: 0 };
        vm.set_memory_attributes(change).map_err(failed("KVM_SET_MEMORY_ATTRIBUTES"))
    }

    /// Makes part of it private or shared, as a VMM of a confidential VM does: its attributes change, and the pages of the
    /// other kind are given back.
    fn convert(&self, vm: &VmFd, (from, size): (u64, u64), private: bool) -> Result<()> {
        self.converted.store(true, Ordering::Relaxed);
        self.set_private(vm, (from, size), private)?;
        match &self.private {
            Some(file) if !private => punch(file, from as usize, size as usize),
            Some(_) => self.discard_mapped(from as usize, size as usize),
            None => {}
        }
        Ok(())
    }

    /// The part of it that begins at a guest-physical address and has so many bytes, as an offset; `None` outside.
    fn part(&self, gpa: u64, size: u64) -> Option<(u64, u64)> {
        let from = gpa.checked_sub(layout::TOUCH)?;
        let end = from.checked_add(size)?;
        (size > 0 && end <= self.touch.bytes.into()).then_some((from, size))
    }

    /// The answer to a hypercall.
    pub(super) fn hypercall(
        &self,
        vm: &VmFd,
        (number, arguments): (u64, [u64; 6]),
        watch: &mut BatchWatch,
    ) -> Result<u64> {
        let [gpa, pages, attributes, ..] = arguments;
        let part = pages.checked_mul(PAGE).and_then(|size| self.part(gpa, size));
        let (MAP_GPA_RANGE, Some(part)) = (number, part) else { return Ok(super::NO_HYPERCALL) };
        self.convert(vm, part, attributes & ENCRYPTED != 0)?;
        watch.count(|mapping| mapping.hypercalls += 1);
        Ok(0)
    }

    /// The guest accessed memory that its attributes do not let it have: it becomes shared, as much at once as was ordered.
    pub(super) fn fault(&self, vm: &VmFd, gpa: u64, watch: &mut BatchWatch) -> Result<()> {
        let Backing::Unbacked(unit) = self.touch.backing else { return Err(super::no_memory(gpa)) };
        let unit = u64::from(unit.max(PAGE as u32));
        let part = self.part(gpa - gpa % unit, unit).ok_or_else(|| super::no_memory(gpa))?;
        self.convert(vm, part, false)?;
        watch.count(|mapping| mapping.memory_faults += 1);
        Ok(())
    }

    /// The host has its pages afterwards.
    fn populate(&self) -> Result<()> {
        if self.touch.backing == Backing::Private {
            let Some(file) = &self.private else { return Ok(()) };
            // SAFETY: a descriptor of this value.
            let done = unsafe {
                libc::fallocate(
                    file.as_raw_fd(),
                    libc::FALLOC_FL_KEEP_SIZE,
                    0,
                    self.bytes() as libc::off_t,
                )
            };
            return if done == 0 { Ok(()) } else { Err(system("populating guest_memfd")) };
        }
        if let Backing::Snapshot { .. } = self.touch.backing {
            return self.map_snapshot(libc::MAP_POPULATE);
        }
        for offset in (0..self.bytes()).step_by(PAGE as usize) {
            // SAFETY: within the mapping; the vCPU is not running.
            unsafe { self.start.wrapping_add(offset).write_volatile(0) };
        }
        Ok(())
    }

    /// Has KVM map it before the guest touches it.
    fn prefault(&self, vcpu: &VcpuFd) -> Result<()> {
        let mut rest = PreFault {
            gpa: layout::TOUCH,
            size: self.touch.bytes.into(),
            flags: 0,
            padding: [0; 5],
        };
        while rest.size > 0 {
            // SAFETY: the kernel reads and writes this structure alone.
            let done =
                unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_PRE_FAULT_MEMORY, &raw mut rest) };
            let error = std::io::Error::last_os_error();
            if done != 0 && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
                return Err(format!("KVM_PRE_FAULT_MEMORY: {error}"));
            }
        }
        Ok(())
    }
}

impl Drop for Touched {
    fn drop(&mut self) {
        self.pager = None;
        // SAFETY: the mapping made in `new`; the VM that used it is gone.
        unsafe { libc::munmap(self.mapping, self.mapped) };
        self.file = None;
        if let Some(reserved) = &self.reserved {
            // Pages that stay reserved are lost to the host, which ends soon.
            let _ = fs::write(HUGETLB, reserved);
        }
    }
}

pub(super) fn guest_memfd(vm: &BareVm, bytes: u64, flags: u64) -> Result<OwnedFd> {
    let wanted = kvm_create_guest_memfd { size: bytes, flags, ..Default::default() };
    let file = vm.fd.create_guest_memfd(wanted).map_err(failed("KVM_CREATE_GUEST_MEMFD"))?;
    // SAFETY: a new descriptor that is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// What is counted around each batch.
#[derive(Default)]
pub(super) struct BatchWatch {
    /// Of the last batch.
    pub(super) mapping: Option<BatchMappings>,
    vm: Option<KvmStats>,
    vcpu: Option<KvmStats>,
    /// Mapped pages once the memory had been given back.
    pages: Option<[u64; 3]>,
    /// Page faults before the batch.
    faults: Option<u64>,
    /// When the memory began to be prepared; the vCPU enters next.
    preparing: Option<u64>,
}

impl BatchWatch {
    /// Before a batch, up to what needs the vCPU.
    pub(super) fn prepare(&mut self, touched: &Touched, vm: &VmFd) -> Result<()> {
        touched.give_back(vm)?;
        if !touched.touch.counted {
            return Ok(());
        }
        self.vm = self.vm.take().or_else(|| KvmStats::open(vm));
        self.pages = self.vm.as_ref().and_then(pages);
        self.preparing = Some(ticks());
        if touched.touch.populated { touched.populate() } else { Ok(()) }
    }

    /// The rest of it, at the next entry; whether there was any.
    pub(super) fn enter(&mut self, touched: &Touched, vcpu: &VcpuFd) -> Result<bool> {
        let Some(began) = self.preparing.take() else { return Ok(false) };
        if touched.touch.prefault {
            touched.prefault(vcpu)?;
        }
        self.mapping = Some(BatchMappings {
            prepared: ticks().wrapping_sub(began),
            ..BatchMappings::default()
        });
        self.vcpu = self.vcpu.take().or_else(|| KvmStats::open(vcpu));
        self.faults = self.faults();
        Ok(true)
    }

    /// After a batch.
    pub(super) fn end(&mut self) {
        let faults = self.faults().zip(self.faults).map(|(now, before)| now.saturating_sub(before));
        let now = self.vm.as_ref().and_then(pages);
        let counters = || {
            let (faults, now, before) = (faults?, now?, self.pages?);
            let pages = std::array::from_fn(|size| now[size].saturating_sub(before[size]));
            Some(KvmCounters { faults, pages })
        };
        let counters = counters();
        self.count(|mapping| mapping.counters = counters);
    }

    fn count(&mut self, change: impl FnOnce(&mut BatchMappings)) {
        if let Some(mapping) = &mut self.mapping {
            change(mapping);
        }
    }

    fn faults(&self) -> Option<u64> {
        self.vcpu.as_ref().and_then(faults)
    }
}

fn ticks() -> u64 {
    // SAFETY: every processor of 64 bits has it, and nothing forbids it here.
    unsafe { std::arch::x86_64::_rdtsc() }
}
