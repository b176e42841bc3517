//! The same accounting once more, with no state: every question is answered by looking through the
//! whole list of events again. Slow, and simple enough to be believed.

use std::collections::BTreeMap;

use vmtax_events::event::MmioAccess;
use vmtax_events::{
    Detail, DetailKind, Event, EventKind, Isa, Level, NO_VCPU, Outcome, Reason, TimeRow, svm, vmx,
};

/// (vm, vcpu, level, reason, outcome, detail, ancillary of)
pub(crate) type ExitId = (u32, u32, Level, Reason, Outcome, Detail, Option<Reason>);
/// (vm, vcpu, level, detail)
pub(crate) type AccessId = (u32, u32, Level, Detail);
/// Durations, `None` for untimed, sorted.
pub(crate) type Durations = Vec<Option<u64>>;

/// A nested page fault by its error code: present, and an instruction fetch. No other exit of these tests has one.
fn fault(reason: Reason, error_code: u64) -> DetailKind {
    match (reason.code == svm::NPF && error_code & 1 != 0, error_code & 0x10 != 0) {
        (false, _) => DetailKind::PageFault,
        (true, false) => DetailKind::MappedFault,
        (true, true) => DetailKind::MappedFetch,
    }
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct ModelTotals {
    pub(crate) exits: BTreeMap<ExitId, Durations>,
    pub(crate) accesses: BTreeMap<AccessId, Durations>,
    pub(crate) time: BTreeMap<u32, TimeRow>,
    pub(crate) unpaired_exits: u64,
    pub(crate) unpaired_entries: u64,
}

/// How an open exit, or an open access, came to its end.
#[derive(Clone, Copy, PartialEq)]
enum ExitEnd {
    Entry(usize),
    NextExit(usize),
    Never,
}

struct AccountModel<'a>(&'a [Event]);

pub(crate) fn totals(events: &[Event]) -> ModelTotals {
    let model = AccountModel(events);
    let mut totals = ModelTotals::default();
    for (at, event) in events.iter().enumerate() {
        match event.kind {
            EventKind::Exit { reason, .. } => model.exit(at, reason, &mut totals),
            EventKind::Entry => {
                let surprise = model.open_at(at).is_none() && model.last_is_step(at);
                totals.unpaired_entries += u64::from(surprise);
            }
            _ => model.access(at, &mut totals),
        }
        model.span(at, &mut totals);
    }
    for durations in totals.exits.values_mut().chain(totals.accesses.values_mut()) {
        durations.sort_unstable();
    }
    totals
}

impl AccountModel<'_> {
    fn is(&self, at: usize, tid: u32) -> bool {
        self.0[at].tid == tid && !matches!(self.0[at].kind, EventKind::Lost { .. })
    }

    /// A loss that this thread is hit by.
    fn hits(&self, at: usize, tid: u32) -> bool {
        let Event { cpu, kind: EventKind::Lost { .. }, .. } = self.0[at] else { return false };
        let seen_on = (0..at).rev().find_map(|i| match self.0[i].kind {
            EventKind::Switch { next_tid, .. } if next_tid == tid => Some(self.0[i].cpu),
            _ => self.is(i, tid).then_some(self.0[i].cpu),
        });
        cpu == u32::MAX || seen_on == Some(cpu)
    }

    /// Events before `at` in the same life of the thread, latest first.
    fn life(&self, at: usize) -> impl Iterator<Item = usize> {
        let tid = self.0[at].tid;
        (0..at)
            .rev()
            .take_while(move |&i| !(self.is(i, tid) && self.0[i].kind == EventKind::ThreadEnd))
            .filter(move |&i| self.is(i, tid) || self.hits(i, tid))
    }

    /// The exit that is open just before `at`.
    fn open_at(&self, at: usize) -> Option<usize> {
        self.life(at)
            .find(|&i| {
                matches!(
                    self.0[i].kind,
                    EventKind::Exit { .. } | EventKind::Entry | EventKind::Lost { .. }
                )
            })
            .filter(|&i| matches!(self.0[i].kind, EventKind::Exit { .. }))
    }

    /// The exit or entry before, unless a loss came in between.
    fn last_is_step(&self, at: usize) -> bool {
        self.life(at)
            .find(|&i| {
                matches!(
                    self.0[i].kind,
                    EventKind::Exit { .. } | EventKind::Entry | EventKind::Lost { .. }
                )
            })
            .is_some_and(|i| !matches!(self.0[i].kind, EventKind::Lost { .. }))
    }

    fn end(&self, at: usize) -> ExitEnd {
        let tid = self.0[at].tid;
        for i in at + 1..self.0.len() {
            if self.hits(i, tid) {
                return ExitEnd::Never;
            }
            match self.0[i].kind {
                _ if !self.is(i, tid) => {}
                EventKind::Entry => return ExitEnd::Entry(i),
                EventKind::Exit { .. } => return ExitEnd::NextExit(i),
                EventKind::ThreadEnd => return ExitEnd::Never,
                _ => {}
            }
        }
        ExitEnd::Never
    }

    /// Where an exit is over, for whatever reason.
    fn closed(&self, at: usize) -> usize {
        let tid = self.0[at].tid;
        let ends = |&i: &usize| {
            let step = matches!(
                self.0[i].kind,
                EventKind::Exit { .. } | EventKind::Entry | EventKind::ThreadEnd
            );
            self.hits(i, tid) || (self.is(i, tid) && step)
        };
        (at + 1..self.0.len()).find(ends).unwrap_or(self.0.len())
    }

    /// VM and vCPU as they are known at `at`.
    fn vcpu(&self, at: usize) -> (u32, u32) {
        let Event { pid, tid, vcpu, .. } = self.0[at];
        let named = self.life(at).map(|i| self.0[i].vcpu).find(|&v| v != NO_VCPU);
        match (vcpu, named) {
            (NO_VCPU, None) => (tid, NO_VCPU),
            (NO_VCPU, Some(vcpu)) | (vcpu, _) => (pid, vcpu),
        }
    }

    fn within(&self, from: usize, to: usize) -> impl Iterator<Item = usize> {
        let tid = self.0[from].tid;
        (from + 1..to).filter(move |&i| self.is(i, tid))
    }

    fn nested(&self, exit: usize, until: usize) -> bool {
        self.within(exit, until).any(|i| matches!(self.0[i].kind, EventKind::NestedExit { .. }))
    }

    /// The L2 exit that L1 is handling at `at`.
    fn handling(&self, at: usize) -> Option<Reason> {
        let last = self.life(at).find(|&i| {
            matches!(
                self.0[i].kind,
                EventKind::NestedInject { .. } | EventKind::NestedEnter | EventKind::Lost { .. }
            )
        })?;
        let EventKind::NestedInject { reason } = self.0[last].kind else { return None };
        // An injection into a thread that nothing is known of means nothing.
        self.life(last).find(|&i| {
            matches!(self.0[i].kind, EventKind::Exit { .. } | EventKind::Entry) || self.is_access(i)
        })?;
        let l2 = self.open_at(last).filter(|&exit| self.nested(exit, last));
        Some(match l2.map(|exit| self.0[exit].kind) {
            Some(EventKind::Exit { reason, .. }) => reason,
            _ => reason,
        })
    }

    fn is_access(&self, at: usize) -> bool {
        matches!(
            self.0[at].kind,
            EventKind::Msr { .. }
                | EventKind::Pio { .. }
                | EventKind::Cpuid { .. }
                | EventKind::FastMmio { .. }
                | EventKind::Hypercall { .. }
                | EventKind::Mmio { access: MmioAccess::Read | MmioAccess::Write, .. }
        )
    }

    /// What an event says, and how much that is worth.
    fn says(&self, at: usize, reason: Reason) -> Option<(u8, Detail)> {
        use DetailKind as K;
        let (worth, kind, value) = match self.0[at].kind {
            EventKind::Msr { write: true, index, .. } => (4, K::MsrWrite, index.into()),
            EventKind::Msr { index, .. } => (4, K::MsrRead, index.into()),
            EventKind::Pio { write: true, port, .. } => (4, K::PortOut, port.into()),
            EventKind::Pio { port, .. } => (4, K::PortIn, port.into()),
            EventKind::Mmio { access: MmioAccess::Write, gpa, .. }
            | EventKind::FastMmio { gpa } => (4, K::MmioWrite, gpa),
            EventKind::Mmio { gpa, .. } => (4, K::MmioRead, gpa),
            EventKind::Hypercall { number, .. } => (4, K::Hypercall, number),
            EventKind::Cpuid { function, .. } => (4, K::Cpuid, u64::from(function) << 32),
            EventKind::Cr { write: true, number, .. } => (4, K::CrWrite, number.into()),
            EventKind::Cr { number, .. } => (4, K::CrRead, number.into()),
            EventKind::GhcbEnter { code, .. } => (3, K::Ghcb, code),
            EventKind::GhcbMsr { value } => (3, K::GhcbMsr, value & 0xfff),
            EventKind::Tdvmcall { leaf } => (3, K::Tdvmcall, leaf),
            EventKind::VmcsField { field, .. } => (4, K::VmcsField, field.into()),
            EventKind::Apic { write: true, register, .. } => (2, K::ApicWrite, register.into()),
            EventKind::Apic { register, .. } => (2, K::ApicRead, register.into()),
            EventKind::PageFault { gpa, error_code } => {
                (1, fault(reason, error_code), gpa & !0x1f_ffff)
            }
            EventKind::Wakeup { polled: true, .. } => (1, K::Halt, 0),
            EventKind::Wakeup { .. } => (2, K::Halt, 1),
            _ => return None,
        };
        Some((worth, Detail::new(kind, value)))
    }

    fn exit(&self, at: usize, reason: Reason, totals: &mut ModelTotals) {
        let (end, timed) = match self.end(at) {
            ExitEnd::Entry(end) => (end, true),
            ExitEnd::NextExit(end) if self.is_fast_path(at) => (end, false),
            _ => {
                totals.unpaired_exits += 1;
                return;
            }
        };
        let mut detail = (0, Detail::NONE);
        for said in self.within(at, end).filter_map(|i| self.says(i, reason)) {
            let is_halt = [vmx::HLT, svm::HLT].contains(&reason.code);
            if said.0 > detail.0 && (is_halt || said.1.kind != DetailKind::Halt) {
                detail = said;
            }
        }
        // An exit without any information has no fault to tell of.
        let EventKind::Exit { info1, info2, .. } = self.0[at].kind else { unreachable!() };
        if reason.code == svm::NPF && detail.0 == 0 && (info1, info2) != (0, 0) {
            detail.1 = Detail::new(fault(reason, info1), info2);
        }
        let nested = self.nested(at, end);
        let level = if nested { Level::L2 } else { Level::L1 };
        let of = if nested { None } else { self.handling(at) };
        let (vm, vcpu) = self.vcpu(end);
        let outcome = self.outcome(at, end, reason, detail.1);
        let away = self.away(at, end).map(|(_, ns)| ns).sum::<u64>();
        let duration = timed.then(|| self.0[end].time_ns - self.0[at].time_ns - away);
        let id = (vm, vcpu, level, reason, outcome, detail.1, of);
        totals.exits.entry(id).or_default().push(duration);
    }

    fn outcome(&self, at: usize, end: usize, reason: Reason, detail: Detail) -> Outcome {
        let any = |f: fn(EventKind) -> bool| self.within(at, end).any(|i| f(self.0[i].kind));
        let injected = any(|k| matches!(k, EventKind::NestedInject { .. }));
        let ghcb_halt = detail == Detail::new(DetailKind::Ghcb, 0x78);
        if injected && self.nested(at, end) {
            Outcome::L1
        } else if [vmx::HLT, svm::HLT].contains(&reason.code)
            || ghcb_halt
            || any(|k| matches!(k, EventKind::UserspaceExit { reason: 5, .. }))
        {
            Outcome::Halted
        } else if any(|k| matches!(k, EventKind::UserspaceExit { .. })) {
            Outcome::User
        } else {
            Outcome::Kernel
        }
    }

    fn access(&self, at: usize, totals: &mut ModelTotals) {
        if !self.is_access(at) {
            return;
        }
        // No access is a fault, so its exit does not matter.
        let (_, detail) = self.says(at, Reason::from_trace(Isa::Svm, svm::NPF)).unwrap();
        let open = self.open_at(at);
        let nested = open.is_some_and(|exit| self.nested(exit, at));
        let level = if nested { Level::L2 } else { Level::L1 };
        let now = self.0[at].time_ns;
        let (known_at, duration) = if detail.kind == DetailKind::MmioRead {
            let away = |exit| self.away(exit, at).map(|(_, ns)| ns).sum::<u64>();
            (at, open.map(|exit| now - self.0[exit].time_ns - away(exit)))
        } else {
            match self.end(at) {
                ExitEnd::Entry(end) => {
                    let away = open.map_or(0, |exit| {
                        self.away(exit, end).filter(|(out, _)| *out > at).map(|(_, ns)| ns).sum()
                    });
                    (end, Some(self.0[end].time_ns - now - away))
                }
                ExitEnd::NextExit(end) if open.is_some_and(|exit| self.is_fast_path(exit)) => {
                    (end, None)
                }
                _ => return,
            }
        };
        let (vm, vcpu) = self.vcpu(known_at);
        totals.accesses.entry((vm, vcpu, level, detail)).or_default().push(duration);
    }

    fn is_fast_path(&self, exit: usize) -> bool {
        let EventKind::Exit { reason, info1, .. } = self.0[exit].kind else { return false };
        [vmx::MSR_WRITE, vmx::PREEMPTION_TIMER].contains(&reason.code)
            || (reason.code == svm::MSR && info1 != 0)
    }

    /// The time between an exit or entry and the one before.
    fn span(&self, at: usize, totals: &mut ModelTotals) {
        if !matches!(self.0[at].kind, EventKind::Exit { .. } | EventKind::Entry) {
            return;
        }
        let step = |&i: &usize| matches!(self.0[i].kind, EventKind::Exit { .. } | EventKind::Entry);
        let Some(before) = self.life(at).find(step) else { return };
        let wall = self.0[at].time_ns - self.0[before].time_ns;
        let time = totals.time.entry(self.0[at].pid).or_default();
        time.wall_ns += wall;
        match (self.0[before].kind, self.0[at].kind) {
            _ if !self.last_is_step(at) => time.unknown_ns += wall,
            (EventKind::Exit { reason, .. }, EventKind::Entry) => {
                self.split(before, at, reason, time)
            }
            (EventKind::Entry, EventKind::Exit { .. }) => {
                time.guest_ns += wall;
                if self.nested(at, self.closed(at)) {
                    time.l2_ns += wall;
                }
            }
            _ => time.unknown_ns += wall,
        }
    }

    /// Where an exit's thread was preempted, and for how long.
    fn away(&self, exit: usize, end: usize) -> impl Iterator<Item = (usize, u64)> {
        let tid = self.0[exit].tid;
        self.within(exit, end).filter_map(move |out| {
            if !matches!(self.0[out].kind, EventKind::Switch { preempted: true, .. }) {
                return None;
            }
            // It is back when it is given a CPU, or, where that is not recorded, when it does something.
            let back = (out + 1..=end).find(|&i| match self.0[i].kind {
                EventKind::Switch { next_tid, .. } => next_tid == tid || self.0[i].tid == tid,
                EventKind::Lost { .. } | EventKind::ThreadEnd => false,
                _ => self.0[i].tid == tid,
            });
            let came_back = |&i: &usize| match self.0[i].kind {
                EventKind::Switch { next_tid, .. } => next_tid == tid,
                _ => true,
            };
            let back = back.filter(came_back)?;
            Some((out, self.0[back].time_ns - self.0[out].time_ns))
        })
    }

    fn split(&self, exit: usize, entry: usize, reason: Reason, time: &mut TimeRow) {
        let user = self
            .within(exit, entry)
            .find(|&i| matches!(self.0[i].kind, EventKind::UserspaceExit { .. }));
        let end_ns = self.0[entry].time_ns;
        let user_from = user.map_or(end_ns, |i| self.0[i].time_ns);
        let (mut kernel, mut in_user) = (user_from - self.0[exit].time_ns, end_ns - user_from);
        for (out, away) in self.away(exit, entry) {
            time.preempted_ns += away;
            if user.is_some_and(|user| user < out) {
                in_user -= away;
            } else {
                kernel -= away;
            }
        }
        let mut detail = (0, Detail::NONE);
        for said in self.within(exit, entry).filter_map(|i| self.says(i, reason)) {
            if said.0 > detail.0 {
                detail = said;
            }
        }
        if self.outcome(exit, entry, reason, detail.1) == Outcome::Halted {
            let wakeups: Vec<u64> = self
                .within(exit, entry)
                .filter_map(|i| match self.0[i].kind {
                    EventKind::Wakeup { ns, .. } => Some(ns),
                    _ => None,
                })
                .collect();
            // Wakeups mean something only to a thread with an exit open; that they are recorded shows anywhere.
            let recorded =
                self.0[..entry].iter().any(|e| matches!(e.kind, EventKind::Wakeup { .. }));
            let halted = match (wakeups.is_empty(), recorded) {
                (false, _) => wakeups.iter().sum::<u64>().min(kernel),
                (true, true) => 0,
                (true, false) => kernel,
            };
            kernel -= halted;
            time.halted_ns += halted;
            if self
                .within(exit, entry)
                .any(|i| matches!(self.0[i].kind, EventKind::UserspaceExit { reason: 5, .. }))
            {
                time.halted_ns += std::mem::take(&mut in_user);
            }
        }
        time.exit_kernel_ns += kernel;
        time.exit_user_ns += in_user;
    }
}
