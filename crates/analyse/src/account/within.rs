//! The events between an exit and its entry: what the exit was about, and the accesses in it.

use vmtax_events::event::{HypercallInterface, MmioAccess};
use vmtax_events::{
    Detail, DetailKind, Event, EventKind, Isa, NO_VCPU, Reason, RowSink, arm, ghcb, tdx, userspace,
    vmx,
};

use super::Accountant;
use super::thread::OpenExit;

/// `KVM_MEMORY_ATTRIBUTE_PRIVATE`.
const ATTRIBUTE_PRIVATE: u64 = 1 << 3;
const PAGE: u64 = 4096;
/// Pages of 4 KiB, 2 MiB and 1 GiB.
const MOST_LEVELS: u8 = 3;

impl<R: RowSink> Accountant<R> {
    /// An event between an exit and its entry.
    pub(super) fn within_exit(&mut self, event: &Event) {
        use DetailKind as K;
        let pick = |write: bool, writes: K, reads: K| if write { writes } else { reads };
        match event.kind {
            EventKind::Msr { write, index, .. } => {
                self.access(event, Detail::new(pick(write, K::MsrWrite, K::MsrRead), index.into()));
            }
            EventKind::Pio { write, port, .. } => {
                self.access(event, Detail::new(pick(write, K::PortOut, K::PortIn), port.into()));
            }
            EventKind::Mmio { access: MmioAccess::Write, gpa, .. } => {
                self.access(event, Detail::new(K::MmioWrite, gpa));
            }
            EventKind::Mmio { access: MmioAccess::Read, gpa, .. } => self.mmio_read(event, gpa),
            EventKind::Mmio { access: MmioAccess::UnsatisfiedRead, gpa, .. } => {
                self.detail(event, Detail::new(K::MmioRead, gpa));
            }
            EventKind::FastMmio { gpa } => self.access(event, Detail::new(K::MmioWrite, gpa)),
            EventKind::Hypercall { interface, number } => {
                let kind = match interface {
                    HypercallInterface::Kvm => K::Hypercall,
                    HypercallInterface::HyperV => K::HypervHypercall,
                    HypercallInterface::Xen => K::XenHypercall,
                    HypercallInterface::Smccc => K::Smccc,
                };
                self.access(event, Detail::new(kind, number));
            }
            EventKind::Sysreg { write, register } => {
                let kind = pick(write, K::SysregWrite, K::SysregRead);
                self.register(event, Detail::new(kind, register.into()));
            }
            EventKind::Wait { for_event } => {
                let value = if for_event { arm::WFE } else { arm::WFI };
                self.detail(event, Detail::new(K::Wait, value));
            }
            EventKind::Runs => {
                self.thread(event);
            }
            EventKind::Cpuid { function, index } => {
                self.access(event, Detail::cpuid(function, index));
            }
            EventKind::PageFault { gpa, error_code } => {
                if let Some(open) = self.open(event) {
                    open.faulted(gpa, error_code);
                }
            }
            EventKind::Cr { write, number, .. } => {
                self.detail(event, Detail::new(pick(write, K::CrWrite, K::CrRead), number.into()));
            }
            EventKind::Apic { write, register, .. } => {
                let kind = pick(write, K::ApicWrite, K::ApicRead);
                self.detail(event, Detail::new(kind, register.into()));
            }
            EventKind::GhcbEnter { code, info1, .. } => {
                self.detail(event, ghcb::request(code, info1))
            }
            EventKind::GhcbMsr { value } => {
                self.detail(event, Detail::new(K::GhcbMsr, value & 0xfff))
            }
            EventKind::Tdvmcall { leaf } => self.detail(event, Detail::new(K::Tdvmcall, leaf)),
            EventKind::VmcsField { field, .. } => {
                self.detail(event, Detail::new(K::VmcsField, field.into()))
            }
            EventKind::UserspaceExit { reason, .. } => self.userspace_exit(event, reason),
            EventKind::SetAttributes { start, end, attributes } => {
                self.converted(event, (start, end), attributes);
            }
            EventKind::MapRequest { level, .. } => self.mapped(event, level),
            EventKind::Interrupt { at, number, source } => {
                self.interrupted(event, at, number, source)
            }
            EventKind::ApicvInhibit { reason, inhibits, .. } => {
                self.apicv_changed(event, reason, inhibits);
            }
            EventKind::Wakeup { ns, polled } => {
                self.saw_wakeup = true;
                if let Some(open) = self.open(event) {
                    open.woken(ns, polled);
                }
            }
            EventKind::Information { info1, info2 } => {
                if let Some(open) = self.open(event) {
                    open.inform(info1, info2);
                }
            }
            EventKind::NestedExit { .. } => {
                if let Some(index) = self.known_thread(event)
                    && self.threads[index].was_nested()
                {
                    // The interval of the exit may be over.
                    self.activate(index);
                }
            }
            EventKind::NestedInject { reason } => self.nested_inject(event, reason),
            EventKind::NestedEnter => {
                if let Some(index) = self.known_thread(event) {
                    self.threads[index].enters_l2();
                }
            }
            EventKind::Exit { .. }
            | EventKind::Entry
            | EventKind::Switch { .. }
            | EventKind::Woken { .. }
            | EventKind::Ioctl { .. }
            | EventKind::IoctlReturn { .. }
            | EventKind::Lost { .. }
            | EventKind::ThreadEnd
            | EventKind::Sampled { .. } => {}
        }
    }

    fn open(&mut self, event: &Event) -> Option<&mut OpenExit> {
        let index = self.known_thread(event)?;
        self.threads[index].open.as_mut()
    }

    fn detail(&mut self, event: &Event, detail: Detail) {
        if let Some(open) = self.open(event) {
            open.learn(detail);
        }
    }

    /// An access that lasts until the next entry.
    fn access(&mut self, event: &Event, detail: Detail) {
        let Some(index) = self.thread(event) else { return };
        let thread = &mut self.threads[index];
        if thread.stands_for > 0 {
            self.sampled_access(index, detail);
            return;
        }
        if let Some(open) = &mut thread.open {
            open.learn(detail);
        }
        if !thread.begin_access(event.time_ns, detail) {
            // Too many in one exit to time them all.
            let nested = self.threads[index].in_nested_exit();
            self.count_access(index, detail, nested, None);
        }
    }

    /// An access of a system register, which two tracepoints can tell of.
    fn register(&mut self, event: &Event, detail: Detail) {
        let told = self.open(event).is_some_and(|open| open.has_learnt(detail));
        if !told {
            self.access(event, detail);
        }
    }

    /// An MMIO read ends with its tracepoint; it began with the exit.
    fn mmio_read(&mut self, event: &Event, gpa: u64) {
        self.advance(event.time_ns);
        let Some(index) = self.thread(event) else { return };
        let detail = Detail::new(DetailKind::MmioRead, gpa);
        if self.threads[index].stands_for > 0 {
            self.sampled_access(index, detail);
            return;
        }
        let mut duration = None;
        if let Some(open) = &mut self.threads[index].open {
            open.learn(detail);
            duration = event.time_ns.checked_sub(open.start_ns);
            duration = duration.map(|ns| ns.saturating_sub(open.away_ns()));
        }
        let nested = self.threads[index].in_nested_exit();
        self.count_access(index, detail, nested, duration);
    }

    fn userspace_exit(&mut self, event: &Event, reason: u32) {
        if let Some(open) = self.open(event) {
            open.user_start_ns.get_or_insert(event.time_ns);
            open.user_halt |= reason == userspace::HLT;
            if reason == userspace::MEMORY_FAULT {
                let region = open.region();
                self.access(event, Detail::new(DetailKind::MemoryFault, region));
            }
        }
    }

    /// The VMM made guest memory private or shared.
    fn converted(&mut self, event: &Event, (start, end): (u64, u64), attributes: u64) {
        let Some(index) = self.known_thread(event) else { return };
        let kind = if attributes & ATTRIBUTE_PRIVATE == 0 {
            DetailKind::ToShared
        } else {
            DetailKind::ToPrivate
        };
        let bytes = end.saturating_sub(start).saturating_mul(PAGE);
        // KVM hands MapGPA to the VMM, which answers it by this.
        if let Some(open) = &mut self.threads[index].open
            && (open.reason.isa, open.reason.code) == (Isa::Vmx, vmx::TDCALL)
        {
            open.learn(Detail::new(DetailKind::Tdvmcall, tdx::LEAF_MAP_GPA));
        }
        let nested = self.threads[index].in_nested_exit();
        self.count_access(index, Detail::new(kind, bytes), nested, None);
    }

    /// A page is mapped. For a page fault that is while KVM handles an exit; otherwise the VMM asked for it.
    fn mapped(&mut self, event: &Event, level: u8) {
        let known = self.by_tid.contains_key(&event.tid);
        // A thread that is alone in its process may be one of the kernel's, which maps pages that were swapped out.
        let may_be_vcpu = event.pid != 0 && event.pid != event.tid;
        let index = match known {
            true => self.known_thread(event),
            false if may_be_vcpu => self.thread(event),
            false => None,
        };
        let Some(index) = index else { return };
        let in_kernel =
            self.threads[index].open.as_ref().is_some_and(|open| open.user_start_ns.is_none());
        if !in_kernel && (1..=MOST_LEVELS).contains(&level) {
            let waiting = &mut self.threads[index].prefaulted[usize::from(level - 1)];
            *waiting += 1;
            // Before it first runs it is not known which VM's it is.
            if self.threads[index].vcpu != NO_VCPU {
                self.count_prefaulted(index);
            }
        }
    }

    /// Counts the pages that were pre-faulted since the last entry.
    #[inline]
    pub(super) fn count_prefaulted(&mut self, index: usize) {
        if self.threads[index].prefaulted != [0; 3] {
            self.count_pages(index);
        }
    }

    fn count_pages(&mut self, index: usize) {
        let prefaulted = std::mem::take(&mut self.threads[index].prefaulted);
        let nested = self.threads[index].in_nested_exit();
        for (level, pages) in (0..).zip(prefaulted) {
            let detail = Detail::new(DetailKind::PreFault, PAGE << (9 * level));
            for _ in 0..pages {
                self.count_access(index, detail, nested, None);
            }
        }
    }

    fn nested_inject(&mut self, event: &Event, reason: Reason) {
        let Some(index) = self.known_thread(event) else { return };
        let thread = &mut self.threads[index];
        let mut of = reason;
        thread.leaves_l2();
        if let Some(open) = &mut thread.open {
            open.injected = true;
            open.is_for_l1();
            if open.nested {
                of = open.reason;
            }
        }
        thread.ancillary_of = Some(of).filter(|_| self.all_exits);
    }
}
