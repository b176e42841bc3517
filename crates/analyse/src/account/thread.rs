//! The state of one vCPU thread, and of the exit that it has open.

use vmtax_events::detail::{HALT_BLOCKED, HALT_POLLED, UNKNOWN_REGION};
use vmtax_events::{
    Detail, DetailKind, ExitKey, Level, LevelMarks, NO_VCPU, Outcome, Reason, TimeRow,
};

fn is_halt(reason: Reason, detail: Detail) -> bool {
    reason.isa.facts().is_halt(reason.code, detail)
}

/// Most timed accesses in one exit (string I/O has one per page).
const MAX_ACCESSES: usize = 256;

/// Limit of distinct threads that take the CPU of one vCPU within one exit.
const MAX_TAKERS: usize = 16;

/// A thread that had the CPU which a vCPU waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenBy {
    pub(super) tid: u32,
    pub(super) count: u64,
    pub(super) time_ns: u64,
}

/// An access that waits for the entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenAccess {
    pub(super) detail: Detail,
    pub(super) start_ns: u64,
    pub(super) nested: bool,
    /// How long the scheduler had taken the vCPU's CPU in the exit before.
    pub(super) away_ns: u64,
}

#[derive(Debug)]
pub(super) struct AccountThread {
    pub(super) tid: u32,
    pub(super) cpu: u32,
    pub(super) vm: u32,
    pub(super) vcpu: u32,
    /// Its VM is not kept apart from another.
    pub(super) is_merged: bool,
    pub(super) open: Option<OpenExit>,
    pub(super) accesses: Vec<OpenAccess>,
    /// Pages of 4 KiB, 2 MiB and 1 GiB that were pre-faulted since the last entry and are not counted yet.
    pub(super) prefaulted: [u32; 3],
    /// The L2 exit that L1 is handling.
    pub(super) ancillary_of: Option<Reason>,
    /// L1 has entered L2, on an ISA where nothing else says that an exit is L2's.
    pub(super) runs_l2: bool,
    /// When the scheduler took the CPU away, and whether the thread could have run on.
    pub(super) switched_out: Option<(u64, bool)>,
    /// How many events the next one stands for; 0: it was not sampled.
    pub(super) stands_for: u64,
    /// Threads that ran while this one waited for its CPU in the open exit: how often, and how long (ns).
    pub(super) taken: Vec<TakenBy>,
    /// The last loss of events that the thread has learnt of.
    pub(super) gaps_seen: u64,
    /// It had an exit or entry in this interval.
    pub(super) is_active: bool,
    /// An exit or entry was seen.
    seen: bool,
    /// Events are missing since: an entry without an exit is no surprise.
    after_loss: bool,
    /// Time of the last exit or entry.
    since_ns: u64,
    in_guest: bool,
    time: TimeRow,
}

impl AccountThread {
    pub(super) fn new(tid: u32, gaps_seen: u64) -> AccountThread {
        AccountThread {
            tid,
            cpu: u32::MAX,
            vm: 0,
            vcpu: NO_VCPU,
            is_merged: false,
            open: None,
            accesses: Vec::new(),
            prefaulted: [0; 3],
            ancillary_of: None,
            runs_l2: false,
            switched_out: None,
            stands_for: 0,
            taken: Vec::new(),
            gaps_seen,
            is_active: false,
            seen: false,
            after_loss: false,
            since_ns: 0,
            in_guest: false,
            time: TimeRow::default(),
        }
    }

    /// The VM, or the thread itself while its vCPU is not known.
    pub(super) fn vm_id(&self) -> u32 {
        if self.vcpu == NO_VCPU { self.tid } else { self.vm }
    }

    /// `kvm_exit`.
    #[inline]
    pub(super) fn leave_guest(&mut self, now_ns: u64, mut open: OpenExit) {
        if self.seen {
            let span = now_ns.saturating_sub(self.since_ns);
            self.time.wall_ns = self.time.wall_ns.saturating_add(span);
            if self.in_guest {
                self.time.guest_ns = self.time.guest_ns.saturating_add(span);
                open.guest_ns = span;
            } else {
                self.time.unknown_ns = self.time.unknown_ns.saturating_add(span);
            }
        }
        open.ancillary_of = self.ancillary_of;
        open.is_late = self.seen && now_ns < self.since_ns;
        self.open = Some(open);
        if self.runs_l2 {
            self.was_nested();
        }
        self.step(now_ns, false);
    }

    /// `kvm_nested_vmexit`: the exit that is open came from L2, and so did the guest time before it.
    /// Whether an exit is open.
    pub(super) fn was_nested(&mut self) -> bool {
        let Some(open) = &mut self.open else { return false };
        open.nested = true;
        let ended_ns = std::mem::take(&mut open.guest_ns);
        self.time.l2_ns = self.time.l2_ns.saturating_add(ended_ns);
        true
    }

    /// L1's entry of L2.
    pub(super) fn enters_l2(&mut self) {
        self.ancillary_of = None;
        self.runs_l2 = self.is_delimited();
    }

    /// An exit of L2 is handed to L1. Where L2 was entered before the recording began, the open exit is the first that is known to
    /// be its; where an interrupt waits for L1 when it enters L2, the open exit is that of the entry, and L2 has none.
    pub(super) fn leaves_l2(&mut self) {
        if !std::mem::take(&mut self.runs_l2) && self.is_delimited() {
            self.was_nested();
        }
    }

    fn is_delimited(&self) -> bool {
        let isa = self.open.as_ref().map(|open| open.reason.isa);
        isa.is_some_and(|isa| isa.facts().levels() == LevelMarks::Delimited)
    }

    /// `kvm_entry`. The time of an exit that ended here was added by [`Thread::add_split`].
    #[inline]
    pub(super) fn enter_guest(&mut self, now_ns: u64) {
        if self.seen {
            let span = now_ns.saturating_sub(self.since_ns);
            self.time.wall_ns = self.time.wall_ns.saturating_add(span);
            self.time.unknown_ns = self.time.unknown_ns.saturating_add(span);
        }
        self.step(now_ns, true);
    }

    fn step(&mut self, now_ns: u64, in_guest: bool) {
        self.since_ns = now_ns.max(self.since_ns);
        self.in_guest = in_guest;
        self.seen = true;
        self.after_loss = false;
        self.switched_out = None;
        self.taken.clear();
    }

    /// The thread runs at this time: whatever took its CPU has given it back.
    pub(super) fn came_back(&mut self, now_ns: u64) {
        let Some((out_ns, preempted)) = self.switched_out.take() else { return };
        if let Some(open) = self.open.as_mut().filter(|_| preempted) {
            open.preempted(out_ns, now_ns.saturating_sub(out_ns));
        }
    }

    /// Another thread had the CPU that this one waits for.
    pub(super) fn taken_by(&mut self, tid: u32, time_ns: u64, is_new: bool) {
        let at = self.taken.iter().position(|taken| taken.tid == tid);
        let at = match at {
            Some(at) => at,
            None if self.taken.len() < MAX_TAKERS => {
                self.taken.push(TakenBy { tid, count: 0, time_ns: 0 });
                self.taken.len() - 1
            }
            // The last one collects those beyond the limit.
            None => MAX_TAKERS - 1,
        };
        let taken = &mut self.taken[at];
        taken.count += u64::from(is_new);
        taken.time_ns = taken.time_ns.saturating_add(time_ns);
    }

    /// An entry without an exit: the exit is missing, and no loss was reported.
    pub(super) fn expects_exit(&self) -> bool {
        self.seen && !self.after_loss
    }

    /// The exit that began at the last boundary is over; the boundary moves to its end.
    #[inline]
    pub(super) fn add_split(&mut self, split: &Split) {
        let sum = split.kernel_ns + split.user_ns + split.halted_ns + split.preempted_ns;
        self.time.wall_ns = self.time.wall_ns.saturating_add(sum);
        self.time.exit_kernel_ns = self.time.exit_kernel_ns.saturating_add(split.kernel_ns);
        self.time.exit_user_ns = self.time.exit_user_ns.saturating_add(split.user_ns);
        self.time.halted_ns = self.time.halted_ns.saturating_add(split.halted_ns);
        self.time.preempted_ns = self.time.preempted_ns.saturating_add(split.preempted_ns);
        self.since_ns = self.since_ns.saturating_add(sum);
    }

    /// Remembers an access until the entry. `false` when there are too many.
    pub(super) fn begin_access(&mut self, start_ns: u64, detail: Detail) -> bool {
        if self.accesses.len() >= MAX_ACCESSES {
            return false;
        }
        let (nested, away_ns) = (self.in_nested_exit(), self.away_ns());
        self.accesses.push(OpenAccess { detail, start_ns, nested, away_ns });
        true
    }

    pub(super) fn in_nested_exit(&self) -> bool {
        self.open.is_some_and(|open| open.nested)
    }

    /// How long the scheduler has taken the vCPU's CPU in the open exit, ns.
    pub(super) fn away_ns(&self) -> u64 {
        self.open.map_or(0, |open| open.away_ns())
    }

    /// What an exit of it is counted under.
    #[inline]
    pub(super) fn key(&self, exit: &OpenExit) -> ExitKey {
        let detail = exit.detail();
        ExitKey {
            vm: self.vm_id(),
            vcpu: self.vcpu,
            level: if exit.nested { Level::L2 } else { Level::L1 },
            reason: exit.reason,
            detail,
            outcome: exit.outcome(detail),
            ancillary_of: if exit.nested { None } else { exit.ancillary_of },
        }
    }

    /// Events are missing: nothing of what is open can be trusted.
    pub(super) fn forget(&mut self) {
        self.in_guest = false;
        self.switched_out = None;
        self.taken.clear();
        self.ancillary_of = None;
        self.runs_l2 = false;
        self.after_loss = true;
        self.accesses.clear();
        self.open = None;
    }

    /// The time since the last call, if any passed.
    pub(super) fn take_time(&mut self, interval_start_ns: u64) -> Option<TimeRow> {
        if self.time.wall_ns == 0 && self.time.l2_ns == 0 {
            return None;
        }
        let vm = self.vm_id();
        let time = std::mem::take(&mut self.time);
        Some(TimeRow { interval_start_ns, vm, vcpu: self.vcpu, ..time })
    }
}

/// An exit whose entry has not come yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenExit {
    pub(super) start_ns: u64,
    /// It came too late to be put in order, so part of its time was given to others already.
    pub(super) is_late: bool,
    pub(super) reason: Reason,
    info1: u64,
    info2: u64,
    learnt: Detail,
    /// The guest time that it ended, as long as nothing says whose it was.
    guest_ns: u64,
    pub(super) nested: bool,
    pub(super) injected: bool,
    pub(super) ancillary_of: Option<Reason>,
    pub(super) user_start_ns: Option<u64>,
    pub(super) user_halt: bool,
    pub(super) wakeup_ns: Option<u64>,
    preempted_kernel_ns: u64,
    preempted_user_ns: u64,
}

/// Where the time of an exit went. The parts add up to its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) kernel_ns: u64,
    pub(super) user_ns: u64,
    pub(super) halted_ns: u64,
    pub(super) preempted_ns: u64,
}

impl OpenExit {
    #[inline]
    pub(super) fn new(start_ns: u64, reason: Reason, info1: u64, info2: u64) -> OpenExit {
        OpenExit {
            start_ns,
            is_late: false,
            reason,
            info1,
            info2,
            learnt: Detail::NONE,
            guest_ns: 0,
            nested: false,
            injected: false,
            ancillary_of: None,
            user_start_ns: None,
            user_halt: false,
            wakeup_ns: None,
            preempted_kernel_ns: 0,
            preempted_user_ns: 0,
        }
    }

    /// KVM may answer such an exit in the run loop itself, from where it enters the guest again without
    /// passing `kvm_entry`.
    pub(super) fn is_fast_path(&self) -> bool {
        self.reason.isa.facts().is_fast_path(self.reason.code, self.info1)
    }

    /// Another event says what the exit is about. The most telling one stays, the first among equals.
    pub(super) fn learn(&mut self, detail: Detail) {
        if weight(detail) > weight(self.learnt) {
            self.learnt = detail;
        }
    }

    /// L1 handles it: where an abort is a device's access as well as a fault, only L1 knows which.
    pub(super) fn is_for_l1(&mut self) {
        if self.learnt.kind.is_fault() && !self.reason.isa.facts().faults_are_memory() {
            self.learnt = Detail::NONE;
        }
    }

    /// It is known to be about this.
    pub(super) fn has_learnt(&self, detail: Detail) -> bool {
        self.learnt == detail
    }

    /// It is a fault on guest memory.
    pub(super) fn faulted(&mut self, gpa: u64, error_code: u64) {
        let facts = self.reason.isa.facts();
        // The exit's own information has the register.
        if facts.is_of_device(self.reason.code, error_code) {
            return;
        }
        self.learn(Detail::in_region(facts.fault(self.reason.code, error_code), gpa));
    }

    /// The region of guest memory that it faulted in, if it did.
    pub(super) fn region(&self) -> u64 {
        match self.learnt.kind {
            kind if kind.is_fault() => self.learnt.value,
            _ => UNKNOWN_REGION,
        }
    }

    /// The vCPU was woken after so long.
    pub(super) fn woken(&mut self, ns: u64, polled: bool) {
        self.wakeup_ns = Some(self.wakeup_ns.unwrap_or(0).saturating_add(ns));
        if is_halt(self.reason, Detail::NONE) {
            let how = if polled { HALT_POLLED } else { HALT_BLOCKED };
            self.learn(Detail::new(DetailKind::Halt, how));
        }
    }

    /// KVM has read more of what the processor says of the exit.
    pub(super) fn inform(&mut self, info1: u64, info2: u64) {
        (self.info1, self.info2) = (info1, info2);
    }

    /// What the exit was about.
    #[inline]
    pub(super) fn detail(&self) -> Detail {
        if self.learnt == Detail::NONE {
            let facts = self.reason.isa.facts();
            facts.information(self.reason.code, self.info1, self.info2)
        } else {
            self.learnt
        }
    }

    #[inline]
    pub(super) fn outcome(&self, detail: Detail) -> Outcome {
        if self.injected && self.nested {
            Outcome::L1
        } else if self.user_halt || is_halt(self.reason, detail) {
            Outcome::Halted
        } else if self.user_start_ns.is_some() {
            Outcome::User
        } else {
            Outcome::Kernel
        }
    }

    /// The scheduler ran something else for `away_ns` from `out_ns` on.
    pub(super) fn preempted(&mut self, out_ns: u64, away_ns: u64) {
        if self.user_start_ns.is_some_and(|user| user <= out_ns) {
            self.preempted_user_ns = self.preempted_user_ns.saturating_add(away_ns);
        } else {
            self.preempted_kernel_ns = self.preempted_kernel_ns.saturating_add(away_ns);
        }
    }

    /// How long the scheduler has taken the vCPU's CPU, ns.
    pub(super) fn away_ns(&self) -> u64 {
        self.preempted_kernel_ns.saturating_add(self.preempted_user_ns)
    }

    /// Splits the exit's duration. `wakeups_known`: the recording has `kvm_vcpu_wakeup`, so a halt without
    /// one did not wait.
    #[inline]
    pub(super) fn split(
        &self,
        duration_ns: u64,
        end_ns: u64,
        outcome: Outcome,
        wakeups_known: bool,
    ) -> Split {
        let user_part =
            self.user_start_ns.map_or(0, |user| end_ns.saturating_sub(user)).min(duration_ns);
        let kernel_part = duration_ns - user_part;
        let preempted_user = self.preempted_user_ns.min(user_part);
        let preempted_kernel = self.preempted_kernel_ns.min(kernel_part);
        let mut user_ns = user_part - preempted_user;
        let mut kernel_ns = kernel_part - preempted_kernel;
        let mut halted_ns = 0;
        if outcome == Outcome::Halted {
            halted_ns = match self.wakeup_ns {
                Some(ns) => ns.min(kernel_ns),
                None if wakeups_known => 0,
                None => kernel_ns,
            };
            kernel_ns -= halted_ns;
            if self.user_halt {
                halted_ns += std::mem::take(&mut user_ns);
            }
        }
        Split { kernel_ns, user_ns, halted_ns, preempted_ns: preempted_user + preempted_kernel }
    }
}

/// How much a kind of detail says about an exit, beside others of the same exit.
fn weight(detail: Detail) -> u8 {
    match detail.kind {
        DetailKind::None => 0,
        // How the vCPU waited says more than that it did.
        DetailKind::Wait => 1,
        // One that blocked was no polled one, though KVM polled before.
        DetailKind::Halt if detail.value == HALT_POLLED => 2,
        DetailKind::Halt => 3,
        // Every emulated device access begins as a fault.
        kind if kind.is_fault() => 2,
        // The register is known better by the MSR or the address it was reached by.
        DetailKind::ApicRead | DetailKind::ApicWrite => 3,
        // The request of a confidential guest follows its exit.
        DetailKind::Ghcb | DetailKind::GhcbMsr | DetailKind::Tdvmcall => 4,
        _ => 5,
    }
}
