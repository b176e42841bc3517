//! Requests of a recording, by the tracepoints of system calls -> calls of KVM.
//!
//! A request names a descriptor, and KVM_CREATE_VM and KVM_CREATE_VCPU return one: from then on it is known whose it is. Recorders of ftrace do not say of
//! which process a thread is; there a thread that created nothing is one of whichever process alone has such a descriptor.
//!
//! Left out: what a request points to, so that a slot that is deleted and one that is added are the same; close(2); where a thread waits.

use std::collections::HashMap;

use vmtax_events::start::{KvmCall, KvmFile};
use vmtax_events::{Event, EventKind, NO_PID};

use super::{StartedVm, Starts};

/// More descriptors, or threads in a request, are not followed.
const MOST: usize = 1 << 16;
/// More names of threads are not kept.
const MOST_NAMES: usize = 1 << 16;

/// Descriptors of a process, or of a thread where the process is not known.
type Descriptor = (u32, u32);

#[derive(Clone, Copy, Debug)]
struct KnownFile {
    file: KvmFile,
    /// Number of the VM, from 1.
    vm: u64,
    has_run: bool,
}

#[derive(Clone, Copy, Debug)]
struct OpenRequest {
    began_ns: u64,
    pid: u32,
    descriptor: u32,
    request: u32,
    off_cpu_ns: u64,
    longest_ns: u64,
    /// When the thread left its CPU.
    left_ns: Option<u64>,
}

/// Puts the requests of a recording together as VMs.
#[derive(Debug, Default)]
pub struct Requests {
    starts: Starts,
    open: HashMap<u32, OpenRequest>,
    files: HashMap<Descriptor, KnownFile>,
    names: HashMap<u32, String>,
    vms: u64,
    /// Requests that began.
    begun: u64,
    /// Of them, those whose return was recorded.
    returned: u64,
}

impl Requests {
    pub fn name(&mut self, tid: u32, name: &str) {
        if self.names.len() < MOST_NAMES || self.names.contains_key(&tid) {
            self.names.insert(tid, name.to_owned());
        }
    }

    /// Adds an event; they come in the order of time.
    pub fn event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Ioctl { descriptor, request } => self.begin(event, descriptor, request),
            EventKind::IoctlReturn { result } => self.end(event, result),
            EventKind::Switch { next_tid, .. } => {
                if let Some(open) = self.open.get_mut(&event.tid) {
                    open.left_ns = Some(event.time_ns);
                }
                if let Some(open) = self.open.get_mut(&next_tid)
                    && let Some(left) = open.left_ns.take()
                {
                    let away = event.time_ns.saturating_sub(left);
                    open.off_cpu_ns = open.off_cpu_ns.saturating_add(away);
                    open.longest_ns = open.longest_ns.max(away);
                }
            }
            EventKind::ThreadEnd => drop(self.open.remove(&event.tid)),
            _ => {}
        }
    }

    /// The VMs; VMs beyond the limit; calls of VMs that were there before; requests that began and those that returned.
    pub fn finish(self) -> ((Vec<StartedVm>, u64, u64), (u64, u64)) {
        (self.starts.finish(), (self.begun, self.returned))
    }

    fn begin(&mut self, event: &Event, descriptor: u32, request: u32) {
        self.begun += 1;
        if self.open.len() >= MOST && !self.open.contains_key(&event.tid) {
            return;
        }
        let pid = if event.pid == NO_PID { event.tid } else { event.pid };
        let (began_ns, off_cpu_ns, longest_ns, left_ns) = (event.time_ns, 0, 0, None);
        let open =
            OpenRequest { began_ns, pid, descriptor, request, off_cpu_ns, longest_ns, left_ns };
        self.open.insert(event.tid, open);
    }

    fn end(&mut self, event: &Event, result: i32) {
        let Some(open) = self.open.remove(&event.tid) else { return };
        self.returned += 1;
        let mut at = (open.pid, open.descriptor);
        if event.pid == NO_PID && !self.files.contains_key(&at) {
            at.0 = self.process_with(open.descriptor).unwrap_or(at.0);
        }
        let of_request = KvmFile::of_request(open.request);
        let known = match self.files.get_mut(&at) {
            Some(known) => *known,
            None if of_request.is_none_or(|file| file == KvmFile::Device) => {
                KnownFile { file: KvmFile::Device, vm: 0, has_run: false }
            }
            None => return self.starts.of_another(),
        };
        let call = KvmCall {
            began_ns: open.began_ns,
            ns: event.time_ns.saturating_sub(open.began_ns),
            off_cpu_ns: open.off_cpu_ns,
            longest_ns: open.longest_ns,
            pid: at.0,
            tid: event.tid,
            name: self.names.get(&event.tid).cloned().unwrap_or_default(),
            cgroup: 0,
            file: known.file,
            vm: known.vm,
            request: open.request,
            undoes: false,
            result,
            stack: Vec::new(),
        };
        if call.runs() {
            if known.has_run {
                return;
            }
            self.files.insert(at, KnownFile { has_run: true, ..known });
        }
        let made = match (call.creates_vm(), call.creates_vcpu()) {
            (true, _) => {
                self.vms += 1;
                Some((KvmFile::Vm, self.vms))
            }
            (_, true) => Some((KvmFile::Vcpu, known.vm)),
            _ => None,
        };
        if let Some((file, vm)) = made
            && self.files.len() < MOST
        {
            let number = (at.0, result.cast_unsigned());
            self.files.insert(number, KnownFile { file, vm, has_run: false });
        }
        self.starts.add(call, Vec::new());
    }

    /// The only process with this descriptor of KVM's.
    fn process_with(&self, descriptor: u32) -> Option<u32> {
        let mut found = self.files.keys().filter(|(_, number)| *number == descriptor);
        let (pid, _) = found.next()?;
        found.next().is_none().then_some(*pid)
    }
}

#[cfg(test)]
mod tests {
    use vmtax_events::NO_VCPU;

    use super::*;

    fn events(pid: u32) -> Vec<Event> {
        let event = |time_ns, tid, kind| Event { time_ns, pid, tid, cpu: 0, vcpu: NO_VCPU, kind };
        let enter = |descriptor, request| EventKind::Ioctl { descriptor, request };
        let leave = |result| EventKind::IoctlReturn { result };
        let switch = |next_tid| EventKind::Switch { next_tid, preempted: false };
        vec![
            event(100, 7, enter(3, 0xae01)),
            event(110, 7, switch(0)),
            event(150, 0, switch(7)),
            event(160, 7, leave(4)),
            // Of no request of KVM's.
            event(165, 7, leave(0)),
            event(170, 7, enter(4, 0xae41)),
            event(180, 7, leave(5)),
            // The vCPU's thread.
            event(200, 8, enter(5, 0xae80)),
            event(230, 8, leave(0)),
            event(240, 8, enter(5, 0xae80)),
            event(250, 8, leave(0)),
            // A VM that was there before.
            event(260, 7, enter(9, 0xae80)),
            event(270, 7, leave(0)),
            // It does not return.
            event(280, 7, enter(4, 0xae60)),
        ]
    }

    #[test]
    fn descriptors_tell_whose_a_request_is() {
        for pid in [7, NO_PID] {
            let mut requests = Requests::default();
            requests.name(7, "vmm");
            events(pid).iter().for_each(|event| requests.event(event));
            let ((vms, dropped, others), counts) = requests.finish();
            let [vm] = vms.as_slice() else { panic!("{vms:?}") };
            assert_eq!((vm.pid, vm.thread.as_str(), vm.start_ns), (7, "vmm", Some(100)));
            assert_eq!((vm.in_calls_ns, vm.off_cpu_ns), (70, 40));
            let steps: Vec<(&str, u64, u64, u64)> = vm
                .steps
                .iter()
                .map(|step| (step.name.as_str(), step.count, step.total_ns, step.off_cpu_ns))
                .collect();
            let expected = [
                ("KVM_CREATE_VM", 1, 60, 40),
                ("KVM_CREATE_VCPU", 1, 10, 0),
                ("KVM_RUN, first", 1, 30, 0),
            ];
            assert_eq!(steps, expected);
            assert_eq!((dropped, others, counts), (0, 1, (6, 5)));
        }
    }
}
