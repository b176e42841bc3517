//! Runs a bare payload: one operation, batch after batch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kvm_bindings::kvm_regs;
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmtax_guest::layout;
use vmtax_guest::order::{Counting, Operation};
use vmtax_vpmu::Model;

use super::pmu::{self, Meter};
use super::{Around, Next, Request, Vm, identity_map, run};
use crate::Result;
use crate::trace::Tracer;

/// Emulated time that a payload may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How a payload is run.
pub(crate) struct Plan<'a> {
    pub(crate) batches: u32,
    /// The batch that is recorded.
    pub(crate) traced: Option<u32>,
    pub(crate) tracer: &'a Tracer,
}

/// What came of the batches.
pub(crate) struct Batches {
    /// Cycles of each.
    pub(crate) cycles: Vec<u64>,
    /// What the virtual PMU did.
    pub(crate) pmu: Option<Counting>,
}

/// Runs all batches of an operation.
pub(crate) fn execute(operation: &Operation, plan: &Plan<'_>) -> Result<Batches> {
    let memory = memory(operation, plan)?;
    let touched =
        operation.touch.map(|touch| Touched::new(touch.bytes as usize, touch.huge)).transpose()?;

    let vm = Vm::new()?;
    let host =
        memory.get_host_address(GuestAddress(0)).map_err(|e| format!("guest memory: {e}"))?;
    // SAFETY: `memory` and `touched` outlive `vm`, and this program writes to them through vm-memory or not at all.
    unsafe {
        vm.memory(0, host, layout::MEMORY)?;
        if let Some(touched) = &touched {
            vm.memory(layout::TOUCH, touched.start(), touched.bytes)?;
        }
    }
    let model = operation.pmu.map(pmu::model);
    if let Some(model) = &model {
        vm.virtual_pmu(model)?;
    }
    let vcpus = vcpus(&vm, operation, model.as_ref())?;
    let stop = Arc::new(AtomicBool::new(false));
    let handles: Vec<OnceLock<libc::pthread_t>> = vcpus.iter().map(|_| OnceLock::new()).collect();
    let mut pmu = std::thread::scope(|scope| {
        let (ended, end) = channel();
        let mut threads = Vec::new();
        for (number, mut vcpu) in vcpus.into_iter().enumerate() {
            let (ended, stop, memory, touched) = (ended.clone(), &stop, &memory, &touched);
            let (vm, pmu) = (&vm.fd, operation.pmu.filter(|_| number == 0));
            let handle = &handles[number];
            let body = move || {
                // SAFETY: asks for this thread's own handle.
                let _ = handle.set(unsafe { libc::pthread_self() });
                // The PMU's events are this thread's.
                let meter = pmu.map(|pmu| Meter::new(pmu, vm, &vcpu)).transpose();
                let result = meter.and_then(|meter| {
                    let (taken, began) = (0, None);
                    let mut device =
                        Device { operation, plan, touched, memory, taken, began, meter };
                    run(&mut vcpu, stop, &mut device)?;
                    Ok(device.meter.map(|mut meter| meter.counting()))
                });
                let _ = ended.send(result);
            };
            let name = if number == 0 {
                operation.name.clone()
            } else {
                format!("{}:{number}", operation.name)
            };
            threads.push(
                std::thread::Builder::new()
                    .name(name)
                    .spawn_scoped(scope, body)
                    .map_err(|e| format!("thread: {e}"))?,
            );
        }
        // Whoever ends first ends all: the first vCPU writes DONE, others never end by themselves.
        let result = match end.recv_timeout(LIMIT) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(format!(
                "the payload did not end within {} s of emulated time",
                LIMIT.as_secs()
            )),
        };
        stop.store(true, Ordering::Relaxed);
        for (thread, handle) in threads.iter().zip(&handles) {
            while !thread.is_finished() {
                if let Some(handle) = handle.get() {
                    kick(*handle);
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        result
    })?;
    let mut cycles = vec![0; plan.batches as usize];
    for (index, value) in cycles.iter_mut().enumerate() {
        *value = memory
            .read_obj(GuestAddress(layout::RESULTS + 8 * index as u64))
            .map_err(|e| format!("guest memory: {e}"))?;
    }
    if let Some(counting) = &mut pmu {
        counting.profile = memory
            .read_obj(GuestAddress(layout::PROFILE))
            .map_err(|e| format!("guest memory: {e}"))?;
    }
    Ok(Batches { cycles, pmu })
}

/// The guest's memory, with page tables, code and parameters in it.
fn memory(operation: &Operation, plan: &Plan<'_>) -> Result<GuestMemoryMmap> {
    if operation.code.len() > layout::CODE_MOST || plan.batches > layout::BATCHES_MOST {
        return Err("the payload is too large".into());
    }
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), layout::MEMORY)])
        .map_err(|e| format!("guest memory: {e}"))?;
    let put = |bytes: &[u8], at: u64| {
        memory.write_slice(bytes, GuestAddress(at)).map_err(|e| format!("guest memory: {e}"))
    };
    put(&identity_map(layout::PAGE_TABLES), layout::PAGE_TABLES)?;
    put(&operation.code, layout::CODE)?;
    put(&plan.batches.to_le_bytes(), layout::PARAMETERS)?;
    put(&operation.count.to_le_bytes(), layout::PARAMETERS + 4)?;
    Ok(memory)
}

/// The payload's vCPUs, each where it starts.
fn vcpus(vm: &Vm, operation: &Operation, model: Option<&Model>) -> Result<Vec<VcpuFd>> {
    let entries = std::iter::once(layout::CODE)
        .chain(operation.entries.iter().map(|entry| layout::CODE + u64::from(*entry)));
    let vcpu = |(number, rip)| {
        let registers = kvm_regs {
            rip,
            rsp: layout::STACK + layout::STACK_SIZE * number as u64,
            rdi: layout::PARAMETERS,
            rsi: number as u64,
            rflags: 2,
            ..Default::default()
        };
        vm.vcpu(number as u32, layout::PAGE_TABLES, &registers, model)
    };
    entries.enumerate().map(vcpu).collect()
}

/// Makes a thread leave `KVM_RUN`.
fn kick(thread: libc::pthread_t) {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing; the thread has not been joined, so its handle is good.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
        libc::pthread_kill(thread, libc::SIGUSR1);
    }
}

/// What answers the payload's ports.
struct Device<'a> {
    operation: &'a Operation,
    plan: &'a Plan<'a>,
    touched: &'a Option<Touched>,
    memory: &'a GuestMemoryMmap,
    /// Buffers taken from the ring.
    taken: u32,
    /// When the last batch began.
    began: Option<Instant>,
    /// Its virtual PMU.
    meter: Option<Meter<'a>>,
}

/// A batch gets so much of the time of the one before, without ticks; the one that is recorded more, for recording takes
/// time.
const MARGIN: f64 = 1.5;
const RECORDED_MARGIN: f64 = 4.0;

impl Around for Device<'_> {
    fn enter(&mut self, vcpu: &VcpuFd) -> Result<()> {
        self.meter.as_mut().map_or(Ok(()), |meter| meter.enter(vcpu))
    }

    fn answer(&mut self, request: Request<'_>) -> Result<Next> {
        match request {
            Request::Out(layout::DONE, _) => return Ok(Next::End),
            Request::Out(layout::PREPARE, batch) => self.prepare(batch),
            Request::Out(layout::KICK, _) => self.take()?,
            Request::Out(port, batch)
                if port == layout::end(self.operation.number) && self.is_traced(batch) =>
            {
                self.plan.tracer.record(false);
            }
            Request::Out(..) | Request::Store => {}
            Request::In(_, data) | Request::Load(data) => data.fill(0),
            Request::Interrupted => {
                if let Some(meter) = &self.meter {
                    meter.interrupted();
                }
            }
            Request::ReadMsr(exit) => match &mut self.meter {
                Some(meter) => meter.read(exit),
                None => *exit.error = 1,
            },
            Request::WriteMsr(exit) => match &mut self.meter {
                Some(meter) => meter.write(exit),
                None => *exit.error = 1,
            },
        }
        Ok(Next::Run)
    }
}

impl Device<'_> {
    fn is_traced(&self, batch: &[u8]) -> bool {
        batch.try_into().is_ok_and(|bytes| Some(u32::from_le_bytes(bytes)) == self.plan.traced)
    }

    fn prepare(&mut self, batch: &[u8]) {
        let is_traced = self.is_traced(batch);
        if let Some(meter) = self.meter.as_mut().filter(|_| batch == 1u32.to_le_bytes()) {
            meter.warm();
        }
        // The first batch only warms up.
        if let Some(began) = self.began {
            let margin = if is_traced { RECORDED_MARGIN } else { MARGIN };
            self.plan.tracer.settle(began.elapsed().mul_f64(margin));
        }
        if let Some(touched) = self.touched {
            touched.give_back();
        }
        self.began = Some(Instant::now());
        if is_traced {
            self.plan.tracer.record(true);
        }
    }

    /// The ring device: reads each new buffer and marks it used. See `vmtax-lab`'s suite `bounce`.
    fn take(&mut self) -> Result<()> {
        let at = |offset: u64| GuestAddress(layout::RING + offset);
        let bad = |e| format!("the ring points outside of memory: {e}");
        let available: u32 = self.memory.read_obj(at(0)).map_err(bad)?;
        let mut buffer = [0; 4096];
        while self.taken != available {
            let slot = u64::from(self.taken % 16) * 16;
            let address: u64 = self.memory.read_obj(at(16 + slot)).map_err(bad)?;
            let length: u32 = self.memory.read_obj(at(24 + slot)).map_err(bad)?;
            let part = &mut buffer[..(length as usize).min(4096)];
            self.memory.read_slice(part, GuestAddress(address)).map_err(bad)?;
            self.taken = self.taken.wrapping_add(1);
        }
        self.memory.write_obj(self.taken, at(4)).map_err(bad)
    }
}

/// Memory that is to be touched for the first time, again and again.
struct Touched {
    mapping: *mut libc::c_void,
    bytes: usize,
}

/// Alignment of huge pages.
const HUGE: usize = 2 << 20;

// SAFETY: the mapping belongs to this value alone; madvise may be called from any thread.
unsafe impl Sync for Touched {}

impl Touched {
    fn new(bytes: usize, huge: bool) -> Result<Touched> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, wherever the kernel puts it; checked below.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes + HUGE,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if mapping == libc::MAP_FAILED {
            return Err(format!("no memory to touch: {}", std::io::Error::last_os_error()));
        }
        let touched = Touched { mapping, bytes };
        let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: within the mapping.
        let advised = unsafe { libc::madvise(touched.start().cast(), bytes, advice) } == 0;
        let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
            .unwrap_or_default();
        if huge && !(advised && (enabled.contains("[madvise]") || enabled.contains("[always]"))) {
            return Err("this kernel has no transparent huge pages".into());
        }
        Ok(touched)
    }

    fn start(&self) -> *mut u8 {
        self.mapping.cast::<u8>().wrapping_add(self.mapping.cast::<u8>().align_offset(HUGE))
    }

    fn give_back(&self) {
        // SAFETY: within the mapping; the guest's memory becomes zeroes, which payloads expect.
        unsafe { libc::madvise(self.start().cast(), self.bytes, libc::MADV_DONTNEED) };
    }
}

impl Drop for Touched {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; the VM that used it is gone.
        unsafe { libc::munmap(self.mapping, self.bytes + HUGE) };
    }
}
