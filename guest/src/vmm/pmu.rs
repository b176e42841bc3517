//! A payload's virtual PMU: `vmtax-vpmu` on KVM, over events of this kernel's perf.
//!
//! The host is emulated and has no PMU. What stands for every event of the guest is the tracepoint
//! `kvm_hypercall`, which this thread meets once for each hypercall of the guest: a real event of the kernel, of which
//! the guest knows how many there are.

use kvm_ioctls::{ReadMsrExit, VcpuFd, VmFd, WriteMsrExit};
use vmtax_guest::order::{self, Counting};
use vmtax_vpmu::host::perf_event::{Options, PerfEventHost, Source};
use vmtax_vpmu::kvm::VcpuPmu;
use vmtax_vpmu::{
    Activity, Amd, Counter, Event, Host, Intel, Model, Notice, Pmu, Policy, Programme, Trouble,
};

use crate::Result;

/// The tracepoint's number.
const ID: &str = "/sys/kernel/tracing/events/kvm/kvm_hypercall/id";
/// What ends KVM_RUN when an event overflows.
const SIGNAL: i32 = libc::SIGUSR2;

/// What a guest is shown.
pub(crate) fn model(pmu: order::Pmu) -> Model {
    match pmu.amd {
        true => Model::Amd(Amd { counters: 6, perfmon_v2: true }),
        false => Model::Intel(Intel::default()),
    }
}

/// A vCPU's PMU and what it did.
pub(crate) struct Meter<'a> {
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

impl Meter<'_> {
    /// For the vCPU that this thread runs.
    pub(crate) fn new<'a>(order: order::Pmu, vm: &'a VmFd, vcpu: &VcpuFd) -> Result<Meter<'a>> {
        let text = std::fs::read_to_string(ID).map_err(|e| cannot(format!("{ID}: {e}")))?;
        let tracepoint = text.trim().parse().map_err(|e| cannot(format!("{ID}: {e}")))?;
        let source = Source::Tracepoint(tracepoint);
        let host = |options| PerfEventHost::this_thread(options);
        let mut keeper = host(Options::default()).with_source(Event::Cycles, source);
        let programme = Programme { event: Event::Cycles, user: true, kernel: true };
        let never =
            vmtax_vpmu::host::Request { counter: Counter::General(0), programme, left: 1 << 62 };
        keeper.create(&never).and_then(|id| keeper.disable(id)).map_err(cannot)?;

        let model = model(order);
        let signal = Options { signal: Some(SIGNAL), ..Options::default() };
        let host = model.events().into_iter().fold(host(signal), |h, e| h.with_source(e, source));
        let policy = if order.reuse { Policy::Reuse } else { Policy::Legacy };
        let pmu = Pmu::new(model, host, policy).map_err(cannot)?;
        let vcpu = VcpuPmu::new(pmu, vcpu, 0, Some(SIGNAL)).map_err(cannot)?;
        Ok(Meter { vm, vcpu, _keeper: keeper, warm: (Activity::default(), 0), troubles: 0 })
    }

    pub(crate) fn enter(&mut self, vcpu: &VcpuFd) -> Result<()> {
        self.vcpu.enter(self.vm, vcpu).map_err(cannot)
    }

    pub(crate) fn interrupted(&self) {
        self.vcpu.interrupted();
    }

    pub(crate) fn read(&mut self, exit: ReadMsrExit<'_>) {
        self.vcpu.read(exit);
    }

    pub(crate) fn write(&mut self, exit: WriteMsrExit<'_>) {
        self.vcpu.write(exit);
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
    pub(crate) fn counting(&mut self) -> Counting {
        let ((a, troubles), (b, before)) = (self.now(), self.warm);
        Counting {
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
