//! Runs a bare payload: one operation, batch after batch.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvm_bindings::{kvm_debugregs, kvm_lapic_state, kvm_regs, kvm_sregs};
use kvm_ioctls::{VcpuFd, VmFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmtax_guest::layout;
use vmtax_guest::order::{
    BatchMappings, Operation, PmuCounting, RecordedProgram, Statistics, UserProgram,
};

use super::paging::Paged;
use super::pmu::{self, CountedGuest, PmuMeter};
use super::stats::KvmStats;
use super::touched::{BatchWatch, Touched, vm_for};
use super::user::UserGuest;
use vmtax_page_tables::identity_map;

use super::{Around, BareVm, NO_HYPERCALL, VcpuRequest, VmmAnswer, failed, kick, no_memory, run};
use crate::Result;
use crate::trace::Tracer;

/// Emulated time that a payload may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How a payload is run.
pub(crate) struct PayloadPlan<'a> {
    pub(crate) batches: u32,
    /// The batch that is recorded.
    pub(crate) traced: Option<u32>,
    pub(crate) tracer: &'a Tracer,
    /// KVM's statistics are wanted.
    pub(crate) statistics: bool,
}

/// What the operations of an order share.
#[derive(Default)]
pub(crate) struct SharedVm {
    /// The VM of payloads of which nothing is left once its vCPU is as it was. To make and to end a VM takes longer than to run most of them.
    vm: Option<PayloadVm>,
    /// The user's program.
    pub(crate) program: Option<RecordedProgram>,
}

impl SharedVm {
    /// Ends the VM.
    pub(crate) fn end(&mut self) {
        self.vm = None;
    }
}

/// Results of the batches.
pub(crate) struct PayloadBatches {
    pub(crate) cycles: Vec<u64>,
    /// What the virtual PMU did.
    pub(crate) pmu: Option<PmuCounting>,
    /// How the memory of the last batch was mapped.
    pub(crate) memory: Option<BatchMappings>,
    /// KVM's statistics, if they were wanted.
    pub(crate) statistics: Option<Statistics>,
}

/// Runs all batches of an operation.
pub(crate) fn execute(
    operation: &Operation,
    plan: &PayloadPlan<'_>,
    shared: &mut SharedVm,
) -> Result<PayloadBatches> {
    if operation.code.len() > layout::CODE_MOST || plan.batches > layout::BATCHES_MOST {
        return Err("the payload is too large".into());
    }
    let kept = if operation.shares { shared.vm.take() } else { None };
    let mut machine = kept.map_or_else(|| PayloadVm::new(operation), Ok)?;
    machine.load(operation, plan)?;
    let found = if operation.shares {
        // A VM whose threads change waits for the kernel's grace periods, one after each.
        machine.run(operation, plan, None)?
    } else {
        let program = match &shared.program {
            Some(RecordedProgram::Bare(program)) => Some(program),
            _ => None,
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name(operation.name.clone())
                .spawn_scoped(scope, || machine.run(operation, plan, program))
                .map_err(|e| format!("thread: {e}"))?;
            thread.join().unwrap_or_else(|_| Err("the payload's thread failed".into()))
        })?
    };
    let mut batches = machine.batches(plan.batches, found)?;
    if plan.statistics {
        batches.statistics = machine.statistics();
    }
    if operation.shares {
        shared.vm = Some(machine);
    }
    Ok(batches)
}

/// What a run found beside its cycles: of the virtual PMU, of the memory.
type RunFound = (Option<PmuCounting>, Option<BatchMappings>);

/// A VM that runs payloads. What it has mapped is given back last.
struct PayloadVm {
    vcpus: Vec<(VcpuFd, FreshVcpu)>,
    vm: BareVm,
    memory: GuestMemoryMmap,
    touched: Option<Touched>,
    /// Memory with page tables of its own.
    paged: Option<Paged>,
}

/// What a vCPU is before its payload, and becomes again before the next: its mode, its local APIC with the timer stopped, its debug
/// registers.
struct FreshVcpu {
    special: kvm_sregs,
    apic: kvm_lapic_state,
    debug: kvm_debugregs,
}

impl FreshVcpu {
    fn of(vcpu: &VcpuFd, special: kvm_sregs) -> Result<FreshVcpu> {
        let apic = vcpu.get_lapic().map_err(failed("KVM_GET_LAPIC"))?;
        let debug = vcpu.get_debug_regs().map_err(failed("KVM_GET_DEBUGREGS"))?;
        Ok(FreshVcpu { special, apic, debug })
    }

    fn again(&self, vcpu: &VcpuFd) -> Result<()> {
        // The mode says where the APIC is, so it comes first.
        vcpu.set_sregs(&self.special).map_err(failed("KVM_SET_SREGS"))?;
        vcpu.set_lapic(&self.apic).map_err(failed("KVM_SET_LAPIC"))?;
        vcpu.set_debug_regs(&self.debug).map_err(failed("KVM_SET_DEBUGREGS"))
    }
}

fn of_memory(error: impl std::fmt::Display) -> String {
    format!("guest memory: {error}")
}

impl PayloadVm {
    fn new(operation: &Operation) -> Result<PayloadVm> {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), layout::MEMORY)])
            .map_err(of_memory)?;
        let page_tables = identity_map(layout::PAGE_TABLES);
        memory.write_slice(&page_tables, GuestAddress(layout::PAGE_TABLES)).map_err(of_memory)?;
        let touched = operation.touch.map(|touch| touch.backing);
        let vm = vm_for(touched.or(operation.paging.map(|paging| paging.backing)))?;
        let touched = operation.touch.map(|touch| Touched::new(&vm, touch)).transpose()?;
        let words = &operation.words;
        let paged = operation.paging.map(|paging| Paged::new(&vm, paging, words)).transpose()?;
        let mut machine = PayloadVm { vcpus: Vec::new(), vm, memory, touched, paged };
        let host = machine.memory.get_host_address(GuestAddress(0)).map_err(of_memory)?;
        if let Some((at, entry)) = machine.paged.as_ref().map(Paged::root) {
            let at = GuestAddress(layout::PAGE_TABLES + at);
            machine.memory.write_obj(entry, at).map_err(of_memory)?;
        }
        // SAFETY: `memory`, `touched` and `paged` outlive `vm`. This program writes to `memory` through vm-memory, to `touched` not at all, and to `paged`
        // through raw pointers while no vCPU runs.
        unsafe {
            machine.vm.memory(0, host, layout::MEMORY)?;
            if let Some(touched) = &machine.touched {
                touched.attach(&machine.vm)?;
            }
            if let Some(paged) = &machine.paged {
                paged.attach(&machine.vm)?;
            }
        }
        let model = operation.pmu.map(|pmu| pmu::model(pmu, CountedGuest::Payload));
        if let Some(model) = &model {
            machine.vm.virtual_pmu(model)?;
        }
        for number in 0..=operation.entries.len() as u32 {
            let (vcpu, special) = machine.vm.vcpu(number, layout::PAGE_TABLES, model.as_ref())?;
            let fresh = FreshVcpu::of(&vcpu, special)?;
            machine.vcpus.push((vcpu, fresh));
        }
        Ok(machine)
    }

    /// Puts the payload into memory, and the vCPUs at its entries.
    fn load(&mut self, operation: &Operation, plan: &PayloadPlan<'_>) -> Result<()> {
        let put = |bytes: &[u8], at: u64| {
            self.memory.write_slice(bytes, GuestAddress(at)).map_err(of_memory)
        };
        put(&operation.code, layout::CODE)?;
        put(&plan.batches.to_le_bytes(), layout::PARAMETERS)?;
        put(&operation.count.to_le_bytes(), layout::PARAMETERS + 4)?;
        // Interrupt gates and counters of the one before.
        put(&[0; layout::TABLES_SHARED], layout::TABLES)?;
        let entries = std::iter::once(layout::CODE)
            .chain(operation.entries.iter().map(|entry| layout::CODE + u64::from(*entry)));
        for (number, ((vcpu, fresh), rip)) in self.vcpus.iter().zip(entries).enumerate() {
            let registers = kvm_regs {
                rip,
                rsp: layout::STACK + layout::STACK_SIZE * number as u64,
                rdi: layout::PARAMETERS,
                rsi: number as u64,
                rflags: 2,
                ..Default::default()
            };
            fresh.again(vcpu)?;
            vcpu.set_regs(&registers).map_err(failed("KVM_SET_REGS"))?;
        }
        Ok(())
    }

    /// The first vCPU runs here, and says when all have done. Further ones have threads and never end by themselves.
    fn run(
        &mut self,
        operation: &Operation,
        plan: &PayloadPlan<'_>,
        program: Option<&UserProgram>,
    ) -> Result<RunFound> {
        let PayloadVm { vcpus, vm, memory, touched, paged } = self;
        let Some(((first, _), others)) = vcpus.split_first_mut() else { return Ok((None, None)) };
        // The PMU's events are this thread's.
        let meter = operation
            .pmu
            .map(|pmu| PmuMeter::new(pmu, CountedGuest::Payload, &vm.fd, (first, 0)))
            .transpose()?;
        let (memory, touched) = (&*memory, touched.as_ref());
        let device = |meter| PortDevice {
            operation,
            plan,
            vm: &vm.fd,
            touched,
            memory,
            taken: 0,
            began: None,
            meter,
            watch: BatchWatch::default(),
            user: None,
        };
        let stop = AtomicBool::new(false);
        let handles: Vec<OnceLock<libc::pthread_t>> =
            others.iter().map(|_| OnceLock::new()).collect();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, ((vcpu, _), handle)) in (1..).zip(others.iter_mut().zip(&handles)) {
                let (mut device, stop) = (device(None), &stop);
                let body = move || {
                    // SAFETY: asks for this thread's own handle.
                    let _ = handle.set(unsafe { libc::pthread_self() });
                    run(vcpu, stop, &mut device)
                };
                let thread = std::thread::Builder::new()
                    .name(format!("{}:{number}", operation.name))
                    .spawn_scoped(scope, body)
                    .map_err(|e| format!("thread: {e}"))?;
                threads.push(thread);
            }
            let mut device = device(meter);
            device.user = program.zip(paged.as_mut()).map(UserGuest::new);
            let alarm = Alarm::set(LIMIT)?;
            let result = run(first, &LATE, &mut device);
            drop(alarm);
            stop.store(true, Ordering::Relaxed);
            let mut results = vec![result];
            for (thread, handle) in threads.into_iter().zip(&handles) {
                while !thread.is_finished() {
                    if let Some(handle) = handle.get() {
                        kick(*handle);
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
                results
                    .push(thread.join().unwrap_or_else(|_| Err("a vCPU's thread failed".into())));
            }
            // Why another vCPU ended says more than that the first then waited for it in vain.
            let late = LATE.swap(false, Ordering::Relaxed).then(|| {
                let user = device.user.as_ref();
                let what = if user.is_some() { "program" } else { "payload" };
                let words = user.map(UserGuest::words).unwrap_or_default();
                format!(
                    "the {what} did not end within {} s of emulated time{words}",
                    LIMIT.as_secs()
                )
            });
            results.into_iter().collect::<Result<()>>()?;
            late.map_or(Ok(()), Err)?;
            Ok((device.meter.map(|mut meter| meter.counting()), device.watch.mapping))
        })
    }

    fn batches(&self, batches: u32, (mut pmu, memory): RunFound) -> Result<PayloadBatches> {
        let at = |batch: u32| GuestAddress(layout::RESULTS + 8 * u64::from(batch));
        let cycles: Result<Vec<u64>> =
            (0..batches).map(|batch| self.memory.read_obj(at(batch)).map_err(of_memory)).collect();
        if let Some(counting) = &mut pmu {
            counting.profile =
                self.memory.read_obj(GuestAddress(layout::PROFILE)).map_err(of_memory)?;
        }
        Ok(PayloadBatches { cycles: cycles?, pmu, memory, statistics: None })
    }

    /// What KVM counted of the first vCPU.
    fn statistics(&self) -> Option<Statistics> {
        let (vcpu, _) = self.vcpus.first()?;
        let counters = KvmStats::open(vcpu)?.all();
        Some(Statistics { counters, tsc_khz: vcpu.get_tsc_khz().unwrap_or(0) })
    }
}

/// The time of a payload is over.
static LATE: AtomicBool = AtomicBool::new(false);

/// Makes this thread leave `KVM_RUN` when the time is over.
struct Alarm(libc::timer_t);

impl Alarm {
    fn set(limit: Duration) -> Result<Alarm> {
        extern "C" fn late(_: libc::c_int) {
            LATE.store(true, Ordering::Relaxed);
        }
        let failed = |what: &str| format!("{what}: {}", std::io::Error::last_os_error());
        // SAFETY: the handler stores to an atomic; the structures are on the stack and filled as the calls ask for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = late as *const () as usize;
            libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = std::ptr::null_mut();
            if libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) != 0 {
                return Err(failed("timer_create"));
            }
            let alarm = Alarm(timer);
            let mut when: libc::itimerspec = std::mem::zeroed();
            when.it_value.tv_sec = limit.as_secs() as libc::time_t;
            if libc::timer_settime(timer, 0, &when, std::ptr::null_mut()) != 0 {
                return Err(failed("timer_settime"));
            }
            Ok(alarm)
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: made in `set`, and deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// What answers the payload's ports.
struct PortDevice<'a> {
    operation: &'a Operation,
    plan: &'a PayloadPlan<'a>,
    vm: &'a VmFd,
    touched: Option<&'a Touched>,
    memory: &'a GuestMemoryMmap,
    /// Buffers taken from the ring.
    taken: u32,
    /// When the last batch began.
    began: Option<Instant>,
    meter: Option<PmuMeter<'a>>,
    watch: BatchWatch,
    /// The user's program.
    user: Option<UserGuest<'a>>,
}

/// A batch gets so much of the time of the one before, without ticks; the one that is recorded more, for recording takes
/// time.
const MARGIN: f64 = 1.5;
const RECORDED_MARGIN: f64 = 4.0;

/// How long a vCPU that waits for another sleeps. To yield is not enough: a thread that has just been made comes later than one that runs.
const NAP: Duration = Duration::from_micros(50);

impl Around for PortDevice<'_> {
    fn enter(&mut self, vcpu: &VcpuFd) -> Result<()> {
        if let Some(touched) = self.touched
            && self.watch.enter(touched, vcpu)?
        {
            self.began = Some(Instant::now());
        }
        if let Some(user) = &mut self.user {
            user.enter(vcpu)?;
        }
        self.meter.as_mut().map_or(Ok(()), |meter| meter.enter(vcpu))
    }

    fn answer(&mut self, request: VcpuRequest<'_>) -> Result<VmmAnswer> {
        match request {
            VcpuRequest::Out(layout::DONE, _) => return Ok(VmmAnswer::End),
            VcpuRequest::Out(layout::PREPARE, batch) => self.prepare(batch)?,
            VcpuRequest::Out(layout::KICK, _) => self.take()?,
            VcpuRequest::Out(layout::YIELD, _) => std::thread::sleep(NAP),
            VcpuRequest::Out(port, batch) if port == layout::end(self.operation.number) => {
                if self.is_traced(batch) {
                    self.plan.tracer.record(false);
                }
                self.watch.end();
            }
            VcpuRequest::Hypercall(exit) => match self.touched {
                Some(touched) => {
                    *exit.ret =
                        touched.hypercall(self.vm, (exit.nr, exit.args), &mut self.watch)?;
                }
                None => *exit.ret = NO_HYPERCALL,
            },
            VcpuRequest::MemoryFault(gpa) => match self.touched {
                Some(touched) => touched.fault(self.vm, gpa, &mut self.watch)?,
                None => return Err(no_memory(gpa)),
            },
            VcpuRequest::Out(port, value) => {
                if let Some(user) = &mut self.user {
                    user.asks(port, value);
                }
            }
            VcpuRequest::Store(..) => {}
            VcpuRequest::In(_, data) | VcpuRequest::Load(_, data) => data.fill(0),
            VcpuRequest::Interrupted => {
                if let Some(meter) = &self.meter {
                    meter.interrupted();
                }
            }
            VcpuRequest::ReadMsr(exit) => match &mut self.meter {
                Some(meter) => meter.read(exit),
                None => *exit.error = 1,
            },
            VcpuRequest::WriteMsr(exit) => match &mut self.meter {
                Some(meter) => meter.write(exit),
                None => *exit.error = 1,
            },
        }
        Ok(VmmAnswer::Run)
    }
}

impl PortDevice<'_> {
    fn is_traced(&self, batch: &[u8]) -> bool {
        batch.try_into().is_ok_and(|bytes| Some(u32::from_le_bytes(bytes)) == self.plan.traced)
    }

    fn prepare(&mut self, batch: &[u8]) -> Result<()> {
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
            self.watch.prepare(touched, self.vm)?;
        }
        self.began = Some(Instant::now());
        if is_traced {
            self.plan.tracer.record(true);
        }
        Ok(())
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
