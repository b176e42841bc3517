//! A VMM for bare payloads on arm64: memory, one vCPU, KVM's GICv3, and the words that stand for ports.

#[path = "../vmm/hugetlb.rs"]
mod hugetlb;
#[path = "../vmm/snapshot.rs"]
mod snapshot;
#[path = "../vmm/stats.rs"]
mod stats;

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use kvm_bindings::{
    KVM_ARM_VCPU_HAS_EL2, KVM_ARM_VCPU_HAS_EL2_E2H0, KVM_ARM_VCPU_PMU_V3, KVM_ARM_VCPU_PMU_V3_CTRL,
    KVM_ARM_VCPU_PMU_V3_INIT, KVM_ARM_VCPU_PMU_V3_IRQ, KVM_ARM_VCPU_PSCI_0_2, KVM_REG_ARM_CORE,
    KVM_REG_ARM64, KVM_REG_SIZE_U64, kvm_device_attr, kvm_regs, kvm_userspace_memory_region,
    kvm_vcpu_init, user_pt_regs,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};
use vmtax_guest::layout::{self, arm};
use vmtax_guest::order::{Backing, Operation, Statistics, Touch};

use self::hugetlb::{HUGE, HUGETLB, huge_memfd, punch, reserve};
use self::snapshot::{Pager, Snapshot};
use self::stats::KvmStats;
use crate::life::machine::{BITS, gic};
use crate::trace::Tracer;
use crate::{Result, protected};

/// How a payload is run.
pub(crate) struct ArmPlan<'a> {
    pub(crate) batches: u32,
    /// The batch that is recorded.
    pub(crate) traced: Option<u32>,
    pub(crate) tracer: &'a Tracer,
}

/// VMs that payloads share: one of those that leave nothing behind but memory and registers, one of hypervisors, and in L1 one of all others.
///
/// For each VM of an L1 but the first two, and when a VM with a hypervisor ends or its vCPU is made anew, KVM (6.18, 7.3) takes minutes of the emulator's time. Probably it unmaps
/// all that the second stage of a guest's guest could have, in steps of 1 GiB, as it was seen to do for TLBI ALLE1.
#[derive(Default)]
pub(crate) struct ArmSharedVm {
    clean: Option<ArmPayloadVm>,
    hypervisor: Option<ArmPayloadVm>,
    other: Option<ArmPayloadVm>,
    is_inner: bool,
}

impl ArmSharedVm {
    /// Those of L1.
    pub(crate) fn inner() -> ArmSharedVm {
        ArmSharedVm { is_inner: true, ..ArmSharedVm::default() }
    }

    /// The place of an operation's VM, if it shares one. Memory to be touched is taken away again.
    fn place(&mut self, operation: &Operation) -> Option<&mut Option<ArmPayloadVm>> {
        if operation.protected {
            // The next payload could not be put into its memory.
            return None;
        }
        if operation.hypervisor {
            return Some(&mut self.hypervisor);
        }
        match (operation.shares, self.is_inner) {
            (true, _) => Some(&mut self.clean),
            (false, true) if operation.touch.is_some() => Some(&mut self.clean),
            (false, true) => Some(&mut self.other),
            (false, false) => None,
        }
    }
}

/// Emulated time in which a payload's last batch has to begin.
const LIMIT: Duration = Duration::from_secs(60);
/// A batch gets so much of the time of the one before, without ticks; the one that is recorded more.
const MARGIN: f64 = 1.5;
const RECORDED_MARGIN: f64 = 4.0;
/// Runs all batches of an operation: the cycles of each, and what the guest counted in it, if it has counters.
pub(crate) fn execute(
    operation: &Operation,
    plan: &ArmPlan<'_>,
    shared: &mut ArmSharedVm,
) -> Result<(Vec<u64>, Vec<u64>)> {
    if operation.code.len() > layout::CODE_MOST || plan.batches > layout::BATCHES_MOST {
        return Err("the payload is too large".into());
    }
    let mut place = shared.place(operation);
    let kept = place.as_mut().and_then(|place| place.take());
    let mut machine = kept.map_or_else(|| ArmPayloadVm::new(operation), Ok)?;
    machine.load(operation, plan)?;
    machine.touched = touched(operation, plan).map(|touch| machine.touch(touch)).transpose()?;
    let cycles = machine.run(operation, plan)?;
    let count = |batch: u32| {
        let mut value = [0; 8];
        let place = (arm::COUNTED - arm::MEMORY) as usize + 8 * batch as usize;
        machine.memory.read_into(place, &mut value);
        u64::from_le_bytes(value)
    };
    let counted = match operation.counters {
        true => (0..plan.batches).map(count).collect(),
        false => Vec::new(),
    };
    if let Some(place) = place {
        if machine.touched.is_some() {
            ArmVmMemory::detach(&machine.vm, 1)?;
            machine.touched = None;
        }
        *place = Some(machine);
    }
    Ok((cycles, counted))
}

/// Runs all batches of an operation in a VM of its own, on a thread of its own: the cycles of each, and what KVM counted.
pub(crate) fn execute_alone(
    operation: &Operation,
    plan: &ArmPlan<'_>,
) -> Result<(Vec<u64>, Option<Statistics>)> {
    let run = || {
        let mut machine = ArmPayloadVm::new(operation)?;
        machine.load(operation, plan)?;
        let cycles = machine.run(operation, plan)?;
        Ok((cycles, machine.statistics()))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(operation.name.clone())
            .spawn_scoped(scope, run)
            .map_err(|e| format!("thread: {e}"))?;
        thread.join().unwrap_or_else(|_| Err("the payload's thread failed".into()))
    })
}

/// Rate of the counter that guests read as their clock, kHz.
fn counter_khz() -> u32 {
    let hz: u64;
    // SAFETY: Linux lets programs read this register.
    unsafe { std::arch::asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack)) };
    u32::try_from(hz / 1000).unwrap_or(u32::MAX)
}

/// The memory that it touches. What a protected VM has touched is its own, so that each batch needs memory of its own.
fn touched(operation: &Operation, plan: &ArmPlan<'_>) -> Option<Touch> {
    let of_all = |touch: Touch| Touch { bytes: touch.bytes.saturating_mul(plan.batches), ..touch };
    operation.touch.map(|touch| if operation.protected { of_all(touch) } else { touch })
}

/// Features of a vCPU with EL2: of a hypervisor that has VHE, and of one that has not.
pub(crate) const EL2: u32 = 1 << KVM_ARM_VCPU_HAS_EL2;
pub(crate) const EL2_WITHOUT_VHE: u32 = EL2 | 1 << KVM_ARM_VCPU_HAS_EL2_E2H0;

/// A virtual PMU by KVM.
pub(crate) const COUNTERS: u32 = 1 << KVM_ARM_VCPU_PMU_V3;

/// Features of the vCPU that an operation needs.
fn features(operation: &Operation) -> u32 {
    let has = |is_needed, feature| if is_needed { feature } else { 0 };
    has(operation.hypervisor, EL2) | has(operation.counters, COUNTERS)
}

/// Completes a vCPU's PMU, when its VM has a GIC.
fn start_counters(vcpu: &VcpuFd) -> Result<()> {
    let set = |attribute: u32, value: Option<&u32>| {
        let attribute = kvm_device_attr {
            group: KVM_ARM_VCPU_PMU_V3_CTRL,
            attr: attribute.into(),
            addr: value.map_or(0, |value| std::ptr::from_ref(value) as u64),
            flags: 0,
        };
        vcpu.set_device_attr(&attribute).map_err(failed("KVM_SET_DEVICE_ATTR of the PMU"))
    };
    set(KVM_ARM_VCPU_PMU_V3_IRQ, Some(&arm::PMU_INTERRUPT))?;
    set(KVM_ARM_VCPU_PMU_V3_INIT, None)
}

/// A VM's first vCPU with these features, how it was made, and its VM's GIC.
pub(crate) fn vcpu(vm: &VmFd, features: u32) -> Result<(VcpuFd, kvm_vcpu_init, OwnedFd)> {
    let vcpu = vm.create_vcpu(0).map_err(failed("KVM_CREATE_VCPU"))?;
    let mut init = kvm_vcpu_init::default();
    vm.get_preferred_target(&mut init).map_err(failed("KVM_ARM_PREFERRED_TARGET"))?;
    init.features[0] |= 1 << KVM_ARM_VCPU_PSCI_0_2 | features;
    vcpu.vcpu_init(&init).map_err(failed("KVM_ARM_VCPU_INIT"))?;
    let gic = gic(vm, (features & EL2 != 0).then_some(MAINTENANCE))?;
    if features & COUNTERS != 0 {
        start_counters(&vcpu)?;
    }
    Ok((vcpu, init, gic))
}

/// The interrupt by which the GIC tells a hypervisor that a list register is empty (Arm BSA: PPI 25).
pub(crate) const MAINTENANCE: u32 = 25;

/// Puts a vCPU at its first instruction, with a value in x0.
pub(crate) fn start_at(vcpu: &VcpuFd, (pc, x0): (u64, u64)) -> Result<()> {
    let registers = std::mem::offset_of!(kvm_regs, regs);
    let [first, counter] =
        [std::mem::offset_of!(user_pt_regs, regs), std::mem::offset_of!(user_pt_regs, pc)];
    for (place, value) in [(first, x0), (counter, pc)] {
        // Core registers are named by their place, in words of 32 bits.
        let place = ((registers + place) / 4) as u64;
        let register = KVM_REG_ARM64 | KVM_REG_SIZE_U64 | u64::from(KVM_REG_ARM_CORE) | place;
        vcpu.set_one_reg(register, &value.to_le_bytes()).map_err(failed("KVM_SET_ONE_REG"))?;
    }
    Ok(())
}

pub(crate) fn failed(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> String {
    move |error| format!("{what}: {error}")
}

/// A VM that runs payloads. What it has mapped is given back last.
struct ArmPayloadVm {
    vcpu: VcpuFd,
    init: kvm_vcpu_init,
    _gic: OwnedFd,
    vm: VmFd,
    memory: ArmVmMemory,
    touched: Option<(Touch, ArmVmMemory)>,
    has_run: bool,
}

impl ArmPayloadVm {
    fn new(operation: &Operation) -> Result<ArmPayloadVm> {
        let kvm = Kvm::new().map_err(failed("/dev/kvm"))?;
        // As QEMU's for so little memory. create_vm takes the widest, whose page tables have more levels and which Linux 7.3 walks whole, in
        // steps of 1 GiB, when the VM ends.
        let (kind, features) = match operation.protected {
            true => (BITS as u64 | protected::TYPE, protected::FEATURES),
            false => (BITS as u64, features(operation)),
        };
        let vm = kvm.create_vm_with_type(kind).map_err(failed("KVM_CREATE_VM"))?;
        let memory = ArmVmMemory::new(arm::BYTES, Backing::Small)?;
        memory.attach(&vm, (0, arm::MEMORY))?;
        let (vcpu, init, gic) = vcpu(&vm, features)?;
        Ok(ArmPayloadVm { vcpu, init, _gic: gic, vm, memory, touched: None, has_run: false })
    }

    /// What KVM counted of the vCPU.
    fn statistics(&self) -> Option<Statistics> {
        let counters = KvmStats::open(&self.vcpu)?.all();
        Some(Statistics { counters, tsc_khz: counter_khz() })
    }

    /// Has KVM finish the last store of a hypervisor's payload. It is at EL2 then, as at its start, and the next payload sets all that it needs; a vCPU
    /// that is made anew has its guest's second stage unmapped.
    fn finish_store(&mut self) {
        self.vcpu.set_kvm_immediate_exit(1);
        // It returns at once, with EINTR.
        let _ = self.vcpu.run();
        self.vcpu.set_kvm_immediate_exit(0);
    }

    /// Memory to be touched.
    fn touch(&self, touch: Touch) -> Result<(Touch, ArmVmMemory)> {
        let memory = ArmVmMemory::new(touch.bytes as usize, touch.backing)?;
        memory.attach(&self.vm, (1, arm::TOUCH))?;
        Ok((touch, memory))
    }

    /// Puts the payload into memory, and the vCPU at its first instruction.
    fn load(&mut self, operation: &Operation, plan: &ArmPlan<'_>) -> Result<()> {
        let parameters = (arm::PARAMETERS - arm::MEMORY) as usize;
        self.memory.write(0, &operation.code);
        self.memory.write(parameters, &plan.batches.to_le_bytes());
        self.memory.write(parameters + 4, &operation.count.to_le_bytes());
        if self.has_run && operation.hypervisor {
            self.finish_store();
        } else {
            self.vcpu.vcpu_init(&self.init).map_err(failed("KVM_ARM_VCPU_INIT"))?;
        }
        self.has_run = true;
        start_at(&self.vcpu, (arm::MEMORY, 0))
    }

    /// The cycles of each batch.
    fn run(&mut self, operation: &Operation, plan: &ArmPlan<'_>) -> Result<Vec<u64>> {
        let mut cycles = vec![0; plan.batches as usize];
        let started = Instant::now();
        let mut began: Option<Instant> = None;
        let end = layout::end(operation.number);
        let mut at_batch = 0;
        loop {
            let (port, batch) = match self.vcpu.run() {
                Ok(VcpuExit::MmioWrite(at, data)) => {
                    if let (Some(layout::RESULT), Ok(data)) = (arm::port(at), data.try_into())
                        && let Some(place) = cycles.get_mut(at_batch as usize)
                    {
                        *place = u64::from_le_bytes(data);
                    }
                    let batch = data.try_into().map_or(0, u32::from_le_bytes);
                    (arm::port(at), batch)
                }
                Ok(VcpuExit::MmioRead(_, data)) => {
                    data.fill(0);
                    (None, 0)
                }
                Ok(exit) => return Err(format!("KVM cannot go on with the guest: {exit:?}")),
                Err(error) if error.errno() == libc::EINTR => (None, 0),
                Err(error) => return Err(format!("KVM_RUN: {error}")),
            };
            match port {
                Some(layout::DONE) => return Ok(cycles),
                Some(layout::FAULT) => {
                    return Err(format!("the payload took an exception, syndrome {batch:#x}"));
                }
                // Time is looked at between batches, as a look takes instructions.
                Some(layout::PREPARE) if started.elapsed() > LIMIT => {
                    let limit = LIMIT.as_secs();
                    return Err(format!(
                        "the payload did not end within {limit} s of emulated time"
                    ));
                }
                Some(layout::PREPARE) => {
                    at_batch = batch;
                    let is_traced = Some(batch) == plan.traced;
                    // The first batch only warms up.
                    if let Some(began) = began {
                        let margin = if is_traced { RECORDED_MARGIN } else { MARGIN };
                        plan.tracer.settle(began.elapsed().mul_f64(margin));
                    }
                    // A protected VM's is prepared once, for all batches.
                    let is_prepared = operation.protected && batch > 0;
                    if let Some((touch, memory)) = self.touched.as_ref().filter(|_| !is_prepared) {
                        memory.renew(touch)?;
                    }
                    began = Some(Instant::now());
                    if is_traced {
                        plan.tracer.record(true);
                    }
                }
                Some(port) if port == end && Some(batch) == plan.traced => {
                    plan.tracer.record(false);
                }
                _ => {}
            }
        }
    }
}

/// Memory of a VM.
pub(crate) struct ArmVmMemory {
    mapping: NonNull<u8>,
    mapped: usize,
    start: *mut u8,
    pub(crate) bytes: usize,
    backing: Backing,
    /// What it is a mapping of, or is copied from.
    snapshot: Option<Snapshot>,
    /// Copies from there.
    _pager: Option<Pager>,
    /// A file of huge pages, and how many of them there were before.
    huge: Option<(OwnedFd, String)>,
}

impl ArmVmMemory {
    pub(crate) fn new(bytes: usize, backing: Backing) -> Result<ArmVmMemory> {
        let advice = match backing {
            Backing::Small | Backing::Snapshot { .. } | Backing::Userfault(_) => {
                libc::MADV_NOHUGEPAGE
            }
            Backing::Thp => libc::MADV_HUGEPAGE,
            Backing::Hugetlb => libc::MADV_NORMAL,
            other => return Err(format!("memory of this kind is not there on arm64: {other:?}")),
        };
        let huge = match backing {
            Backing::Hugetlb => {
                let before = reserve(bytes)?;
                Some((huge_memfd(bytes)?, before))
            }
            _ => None,
        };
        let (mapped, rights) = (bytes + HUGE, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new private mapping; nothing else is changed.
        let mapping = unsafe { libc::mmap(std::ptr::null_mut(), mapped, rights, flags, -1, 0) };
        let mapping = match NonNull::new(mapping.cast::<u8>()) {
            Some(mapping) if mapping.as_ptr().cast() != libc::MAP_FAILED => mapping,
            _ => return Err(system("memory")),
        };
        let first = mapping.as_ptr();
        let start = first.wrapping_add(first.align_offset(HUGE));
        let mut memory = ArmVmMemory {
            mapping,
            mapped,
            start,
            bytes,
            backing,
            snapshot: None,
            _pager: None,
            huge,
        };
        // SAFETY: the range lies within the mapping.
        if unsafe { libc::madvise(start.cast(), bytes, advice) } != 0 {
            return Err(system("madvise"));
        }
        match backing {
            Backing::Snapshot { .. } => {
                memory.snapshot = Some(Snapshot::new(bytes)?);
                memory.map_snapshot(0)?;
            }
            Backing::Userfault(chunk) => {
                let snapshot = memory.snapshot.insert(Snapshot::new(bytes)?);
                memory._pager = Some(Pager::start(snapshot, (start, bytes), chunk as usize)?);
            }
            _ => {}
        }
        if let Some((file, _)) = &memory.huge {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            // SAFETY: takes the place of part of this value's own mapping.
            let mapping =
                unsafe { libc::mmap(start.cast(), bytes, rights, flags, file.as_raw_fd(), 0) };
            if mapping == libc::MAP_FAILED {
                return Err(system("mapping huge pages"));
            }
        }
        Ok(memory)
    }

    /// Maps the snapshot in its place, in that of its mapping of before.
    fn map_snapshot(&self, flags: libc::c_int) -> Result<()> {
        let (Some(snapshot), Backing::Snapshot { shared }) = (&self.snapshot, self.backing) else {
            return Ok(());
        };
        let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        // SAFETY: this value's own mapping, which nothing uses now: the vCPU is not running.
        unsafe { snapshot.map_at(self.start, kind | flags) }
    }

    pub(crate) fn attach(&self, vm: &VmFd, (slot, guest): (u32, u64)) -> Result<()> {
        let region = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr: guest,
            memory_size: self.bytes as u64,
            userspace_addr: self.start as u64,
        };
        // SAFETY: the memory outlives the VM, and this program accesses it while no vCPU runs.
        unsafe { vm.set_user_memory_region(region) }.map_err(failed("KVM_SET_USER_MEMORY_REGION"))
    }

    /// It as crates of devices see it, from this address of the guest's on.
    pub(crate) fn guest(&self, at: u64) -> Result<GuestMemoryMmap> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: this value's own mapping, which outlives the devices: both last until the machine ends.
        let region = unsafe { MmapRegion::build_raw(self.start, self.bytes, rights, flags) };
        let region = region.map_err(|e| format!("the guest's memory: {e}"))?;
        let region = GuestRegionMmap::new(region, GuestAddress(at))
            .ok_or("the guest's memory lies too high")?;
        GuestMemoryMmap::from_regions(vec![region]).map_err(|e| format!("the guest's memory: {e}"))
    }

    /// Takes a VM's memory away.
    fn detach(vm: &VmFd, slot: u32) -> Result<()> {
        let nothing = kvm_userspace_memory_region { slot, ..Default::default() };
        // SAFETY: the VM has less memory then.
        unsafe { vm.set_user_memory_region(nothing) }.map_err(failed("KVM_SET_USER_MEMORY_REGION"))
    }

    /// Makes it what it has to be before a batch.
    fn renew(&self, touch: &Touch) -> Result<()> {
        match &self.huge {
            Some((file, _)) => punch(file, 0, self.bytes),
            // SAFETY: the range lies within the mapping, whose content nobody reads.
            None if unsafe {
                libc::madvise(self.start.cast(), self.bytes, libc::MADV_DONTNEED)
            } != 0 =>
            {
                return Err(system("madvise"));
            }
            None => {}
        }
        if touch.populated && self.snapshot.is_some() {
            return self.map_snapshot(libc::MAP_POPULATE);
        }
        if touch.populated {
            for at in (0..self.bytes).step_by(4096) {
                // SAFETY: within the mapping.
                unsafe { self.start.add(at).write_volatile(1) };
            }
        }
        Ok(())
    }

    /// # Panics
    /// Never: callers stay within its bytes.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes, "within the memory");
        // SAFETY: within the mapping, while no vCPU runs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }

    /// # Panics
    /// As [`ArmVmMemory::write`].
    pub(crate) fn read_into(&self, at: usize, bytes: &mut [u8]) {
        assert!(at + bytes.len() <= self.bytes, "within the memory");
        let from = self.start.wrapping_add(at);
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }
}

// SAFETY: the mapping is this value's alone.
unsafe impl Send for ArmVmMemory {}

impl Drop for ArmVmMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and the VM that used it is gone or goes with this process.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapped) };
        if let Some((_, before)) = &self.huge {
            // Pages that stay reserved are lost to the host, which ends soon.
            let _ = std::fs::write(HUGETLB, before);
        }
    }
}

fn system(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}
