//! A guest's virtual PMU: `vmtax-vpmu` on KVM, over events of this kernel's perf.
//!
//! The host is emulated and has no PMU, so other events of the kernel stand for those of the guest. A bare payload counts
//! by the tracepoint `kvm_hypercall`, which this thread meets once for each hypercall of the guest, so that the guest
//! knows how many there are. A Linux guest counts time.

use kvm_ioctls::{ReadMsrExit, VcpuFd, VmFd, WriteMsrExit};
use vmtax_guest::order::{self, PmuCounting};
use vmtax_vpmu::host::perf_event::{EventOptions, EventSource, PerfEventHost, Software};
use vmtax_vpmu::kvm::VcpuPmu;
use vmtax_vpmu::{
    Activity, Amd, Counter, EventHost, Intel, Notice, Pmu, PmuEvent, PmuModel, Policy, Programme,
    Trouble,
};

use crate::Result;

/// What ends KVM_RUN when an event overflows.
const SIGNAL: i32 = libc::SIGUSR2;

/// Whose events are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedGuest {
    /// A bare payload, by its hypercalls.
    Payload,
    /// Linux, by time.
    Linux,
}

impl CountedGuest {
    fn source(self) -> fn(PmuEvent) -> Result<EventSource> {
        match self {
            CountedGuest::Payload => hypercalls,
            CountedGuest::Linux => time,
        }
    }
}

/// What a guest is shown. A Linux guest has no cache events, which nothing here stands for.
pub(crate) fn model(pmu: order::PmuOrder, guest: CountedGuest) -> PmuModel {
    let unavailable = match guest {
        CountedGuest::Payload => Intel::default().unavailable,
        CountedGuest::Linux => 0b1001_1000,
    };
    match pmu.amd {
        true => PmuModel::Amd(Amd { counters: 6, perfmon_v2: true }),
        false => PmuModel::Intel(Intel { unavailable, ..Intel::default() }),
    }
}

/// What a bare payload's events count: its hypercalls.
fn hypercalls(_: PmuEvent) -> Result<EventSource> {
    tracepoint("kvm_hypercall")
}

/// What a Linux guest's events count. Cycles and instructions are the thread's nanoseconds, and an emulator takes about
/// one for each instruction. All else is CPUID instructions, of which a program knows how many it has.
fn time(event: PmuEvent) -> Result<EventSource> {
    match event {
        PmuEvent::Cycles | PmuEvent::Instructions | PmuEvent::ReferenceCycles => {
            Ok(EventSource::Software(Software::TaskClock))
        }
        _ => tracepoint("kvm_cpuid"),
    }
}

/// One of KVM's tracepoints.
fn tracepoint(name: &str) -> Result<EventSource> {
    let id = format!("/sys/kernel/tracing/events/kvm/{name}/id");
    let text = std::fs::read_to_string(&id).map_err(|e| cannot(format!("{id}: {e}")))?;
    let number = text.trim().parse().map_err(|e| cannot(format!("{id}: {e}")))?;
    Ok(EventSource::Tracepoint(number))
}

/// A vCPU's PMU and what it did.
pub(crate) struct PmuMeter<'a> {
    vm: &'a VmFd,
    vcpu: VcpuPmu<PerfEventHost>,
    /// An event that is always there and never counts: perf is in use on this host, so that neither policy pays for
    /// switching it on and off.
    _keeper: PerfEventHost,
    /// At the end of the first batch.
    warm: (Activity, u64),
    /// Troubles so far but throttling.
    troubles: u64,
}

fn cannot(what: impl std::fmt::Display) -> String {
    format!("virtual PMU: {what}")
}

impl PmuMeter<'_> {
    /// For a vCPU that this thread runs, by the number of its APIC.
    pub(crate) fn new<'a>(
        order: order::PmuOrder,
        guest: CountedGuest,
        vm: &'a VmFd,
        (vcpu, apic): (&VcpuFd, u8),
    ) -> Result<PmuMeter<'a>> {
        let model = model(order, guest);
        let source = guest.source();
        let host = |options| PerfEventHost::this_thread(options);
        let cycles = source(PmuEvent::Cycles)?;
        let mut keeper = host(EventOptions::default()).with_source(PmuEvent::Cycles, cycles);
        let programme = Programme { event: PmuEvent::Cycles, user: true, kernel: true };
        let never = vmtax_vpmu::host::EventRequest {
            counter: Counter::General(0),
            programme,
            left: 1 << 62,
        };
        keeper.create(&never).and_then(|id| keeper.disable(id)).map_err(cannot)?;

        let options =
            EventOptions { signal: Some(SIGNAL), any_mode: true, ..EventOptions::default() };
        let mut events = host(options);
        for event in model.events() {
            events = events.with_source(event, source(event)?);
        }
        let policy = if order.reuse { Policy::Reuse } else { Policy::Legacy };
        let pmu = Pmu::new(model, events, policy).map_err(cannot)?;
        let vcpu = VcpuPmu::new(pmu, vcpu, apic, Some(SIGNAL)).map_err(cannot)?;
        let warm = (Activity::default(), 0);
        Ok(PmuMeter { vm, vcpu, _keeper: keeper, warm, troubles: 0 })
    }

    pub(crate) fn enter(&mut self, vcpu: &VcpuFd) -> Result<()> {
        self.vcpu.enter(self.vm, vcpu).map_err(cannot)
    }

    pub(crate) fn interrupted(&self) {
        self.vcpu.interrupted();
    }

    pub(crate) fn read(&mut self, exit: ReadMsrExit<'_>) {
        // Nothing but the PMU's MSRs is filtered.
        if let Some(exit) = self.vcpu.read(exit) {
            *exit.error = 1;
        }
    }

    pub(crate) fn write(&mut self, exit: WriteMsrExit<'_>) {
        if let Some(exit) = self.vcpu.write(exit) {
            *exit.error = 1;
        }
    }

    /// The first batch is over.
    pub(crate) fn warm(&mut self) {
        self.warm = self.now();
    }

    fn now(&mut self) -> (Activity, u64) {
        // Saving reads all counters, so that what was counted is known up to here.
        self.vcpu.pmu.save();
        let other = |n: &Notice| n.trouble != Trouble::Throttled;
        let notices = self.vcpu.pmu.notices();
        self.troubles += notices.iter().filter(|n| other(n)).map(|n| n.times).sum::<u64>();
        (self.vcpu.pmu.activity(), self.troubles)
    }

    /// What it did since the first batch. The words that the payload left are not known here.
    pub(crate) fn counting(&mut self) -> PmuCounting {
        let ((a, troubles), (b, before)) = (self.now(), self.warm);
        PmuCounting {
            creates: a.creates - b.creates,
            closes: a.closes - b.closes,
            enables: a.enables - b.enables,
            disables: a.disables - b.disables,
            reads: a.reads - b.reads,
            periods: a.periods - b.periods,
            counted: a.counted - b.counted,
            interrupts: a.interrupts - b.interrupts,
            delivered: a.delivered - b.delivered,
            merged: a.merged - b.merged,
            dropped: a.dropped - b.dropped,
            throttles: a.throttles - b.throttles,
            troubles: troubles - before,
            profile: [0; 4],
        }
    }
}
