//! Which threads belong to which VM.
//!
//! vCPU ids repeat across VMs, so a vCPU is known by its VM and its id. A recording with process ids
//! gives the VM away, unless one process runs several VMs. One without (ftrace) does not: there a VM's
//! vCPU threads are taken to be those with neighbouring thread ids and different vCPU ids, which is how
//! VMMs create them. Such VMs are marked as inferred.
//!
//! A VM is called what its process is called. Where the process or its name is not known, the vCPU thread's name
//! is its name, unless that is the name that QEMU gives to its vCPU threads and a QEMU is among the names.
//! Where the recorder names a guest and its vCPU threads, these are a VM of that name.

use std::collections::HashMap;

use vmtax_events::{MAX_VMS, NO_PID, NO_VCPU, RecordedGuest, RipCounts, Vm};

/// Most names that are kept.
const MAX_NAMES: usize = 65_536;

#[derive(Debug)]
struct VmGroup {
    id: u32,
    pid: u32,
    /// Its place among the guests that the recorder named.
    guest: Option<usize>,
    inferred: bool,
    /// The thread that the VM was first seen by.
    tid: u32,
    /// (vCPU, thread) of the live vCPU threads.
    vcpus: Vec<(u32, u32)>,
    rips: RipCounts,
}

/// The VM that a thread belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinedVm {
    pub(crate) vm: u32,
    /// It was not seen before.
    pub(crate) is_new: bool,
    /// It is one more than are kept apart.
    pub(crate) is_merged: bool,
}

/// Groups vCPU threads into VMs.
#[derive(Debug, Default)]
pub(crate) struct GroupedVms {
    groups: Vec<VmGroup>,
    /// Places in `groups` by process, and by id.
    by_pid: HashMap<u32, Vec<usize>>,
    by_id: HashMap<u32, usize>,
    names: HashMap<u32, String>,
    /// Names of the guests that the recorder named, and places in them by vCPU thread.
    guests: Vec<String>,
    by_vcpu_thread: HashMap<u32, usize>,
    /// The VM of each thread that ran a vCPU, `None` where it was of several.
    of_threads: HashMap<u32, Option<u32>>,
    /// Different names of QEMU processes, at most two of them.
    qemus: Vec<String>,
}

impl GroupedVms {
    /// The VM of a thread that runs this vCPU.
    pub(crate) fn join(&mut self, pid: u32, tid: u32, vcpu: u32) -> JoinedVm {
        let joined = self.group_of(pid, tid, vcpu);
        if self.of_threads.len() < MAX_NAMES || self.of_threads.contains_key(&tid) {
            let of = self.of_threads.entry(tid).or_insert(Some(joined.vm));
            *of = of.filter(|vm| *vm == joined.vm);
        }
        joined
    }

    /// The guest's instruction pointers of a thread's entries and exits.
    pub(crate) fn rips(&mut self, tid: u32, rips: RipCounts) {
        let vm = self.of_threads.get(&tid).copied().flatten();
        let group = vm.and_then(|vm| self.groups.get_mut(*self.by_id.get(&vm)?));
        if let Some(group) = group {
            group.rips.merge(rips);
        }
    }

    fn group_of(&mut self, pid: u32, tid: u32, vcpu: u32) -> JoinedVm {
        let guest = self.by_vcpu_thread.get(&tid).copied();
        let of_process = self.by_pid.entry(pid).or_default();
        let free = of_process.iter().copied().filter(|&at| {
            self.groups.get(at).is_some_and(|g| {
                let is_free = g.vcpus.iter().all(|&(v, t)| v != vcpu || t == tid);
                g.guest == guest && (vcpu == NO_VCPU || is_free)
            })
        });
        let near = |&at: &usize| {
            let vcpus = self.groups.get(at).map(|g| g.vcpus.iter()).into_iter().flatten();
            vcpus.map(|&(_, t)| t.abs_diff(tid)).min().unwrap_or(u32::MAX)
        };
        if let Some(at) = free.min_by_key(near)
            && let Some(group) = self.groups.get_mut(at)
        {
            group.vcpus.push((vcpu, tid));
            return JoinedVm { vm: group.id, is_new: false, is_merged: false };
        }
        if let Some(last) = self.groups.last_mut().filter(|_| self.by_id.len() >= MAX_VMS) {
            last.inferred = true;
            last.vcpus.push((vcpu, tid));
            return JoinedVm { vm: last.id, is_new: false, is_merged: true };
        }
        let is_unknown = pid == NO_PID || !of_process.is_empty();
        let inferred = is_unknown && guest.is_none();
        let mut id = if is_unknown { tid } else { pid };
        while self.by_id.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        of_process.push(self.groups.len());
        self.by_id.insert(id, self.groups.len());
        self.groups.push(VmGroup {
            id,
            pid,
            guest,
            inferred,
            tid,
            vcpus: vec![(vcpu, tid)],
            rips: RipCounts::default(),
        });
        JoinedVm { vm: id, is_new: true, is_merged: false }
    }

    /// A vCPU number for a thread whose events have none: that in its name, else the lowest that its VM has not.
    pub(crate) fn unused(&self, pid: u32, tid: u32) -> u32 {
        if let Some(vcpu) = self.names.get(&tid).and_then(|name| qemu_vcpu(name)) {
            return vcpu;
        }
        let of_process = self.by_pid.get(&pid).into_iter().flatten();
        let groups = of_process.filter_map(|&at| self.groups.get(at));
        let used: Vec<u32> = groups.flat_map(|g| g.vcpus.iter().map(|&(vcpu, _)| vcpu)).collect();
        (0..).find(|vcpu| !used.contains(vcpu)).unwrap_or(NO_VCPU)
    }

    /// The thread is gone: another may take its vCPU.
    pub(crate) fn leave(&mut self, vm: u32, tid: u32) {
        let group = self.by_id.get(&vm).and_then(|&at| self.groups.get_mut(at));
        if let Some(group) = group {
            group.vcpus.retain(|&(_, t)| t != tid);
        }
    }

    /// Remembers a thread's name.
    pub(crate) fn name(&mut self, tid: u32, name: &str) {
        if self.names.len() < MAX_NAMES || self.names.contains_key(&tid) {
            self.names.insert(tid, name.to_owned());
        }
        // One is known by name when it is the only one.
        if name.starts_with("qemu") && self.qemus.len() < 2 && !self.qemus.iter().any(|q| q == name)
        {
            self.qemus.push(name.to_owned());
        }
    }

    /// Remembers the guests that the recorder named.
    pub(crate) fn guests(&mut self, guests: &[RecordedGuest]) {
        for guest in guests.iter().take(MAX_VMS) {
            for tid in guest.threads.iter().take(MAX_NAMES - self.by_vcpu_thread.len()) {
                self.by_vcpu_thread.insert(*tid, self.guests.len());
            }
            self.guests.push(guest.name.clone());
        }
    }

    /// A thread's name, where it is known.
    pub(crate) fn name_of(&self, tid: u32) -> Option<&str> {
        self.names.get(&tid).map(String::as_str)
    }

    /// The VM of a process; the first of several.
    pub(crate) fn of_process(&self, pid: u32) -> Option<u32> {
        let at = self.by_pid.get(&pid).filter(|_| pid != NO_PID)?.first()?;
        Some(self.groups.get(*at)?.id)
    }

    /// The VM of a recording that has one.
    pub(crate) fn only(&self) -> Option<u32> {
        match self.groups.as_slice() {
            [only] => Some(only.id),
            _ => None,
        }
    }

    /// A VM, by its id.
    pub(crate) fn get(&self, id: u32) -> Option<Vm> {
        self.by_id.get(&id).and_then(|&at| self.groups.get(at)).map(|g| self.describe(g))
    }

    fn describe(&self, group: &VmGroup) -> Vm {
        let guest = group.guest.and_then(|at| self.guests.get(at)).filter(|name| !name.is_empty());
        // Process 0 is none: the name of thread 0 is that of the idle task.
        let process = Some(group.pid).filter(|pid| *pid != NO_PID);
        let process = process.and_then(|pid| self.names.get(&pid));
        let thread = || self.names.get(&group.tid).or_else(|| self.names.get(&group.id));
        let name = guest.or(process).or_else(|| {
            let thread = thread()?;
            match self.qemus.as_slice() {
                [qemu] if is_qemu_vcpu(thread) => Some(qemu),
                _ => Some(thread),
            }
        });
        let name = name.cloned().unwrap_or_default();
        Vm { id: group.id, name, inferred: group.inferred, rips: group.rips, state_protected: None }
    }

    /// All VMs, by id.
    pub(crate) fn list(&self) -> Vec<Vm> {
        let mut vms: Vec<Vm> = self.groups.iter().map(|g| self.describe(g)).collect();
        vms.sort_by_key(|vm| vm.id);
        vms
    }
}

/// `CPU 0/KVM`, as QEMU names its vCPU threads (`accel/kvm/kvm-accel-ops.c`); some texts cut names to eight bytes.
fn is_qemu_vcpu(name: &str) -> bool {
    qemu_vcpu(name).is_some()
}

fn qemu_vcpu(name: &str) -> Option<u32> {
    let (cpu, kvm) = name.strip_prefix("CPU ")?.split_once('/')?;
    cpu.parse().ok().filter(|_| "KVM".starts_with(kvm))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(vms: &GroupedVms) -> Vec<String> {
        vms.list().into_iter().map(|vm| vm.name).collect()
    }

    /// The idle task's name is that of thread 0, and a VM whose process is not known is not its.
    #[test]
    fn the_idle_task_names_no_vm() {
        for idle in ["swapper", "<idle>"] {
            let mut vms = GroupedVms::default();
            vms.name(0, idle);
            vms.join(NO_PID, 131, 0);
            assert_eq!(names(&vms), [""]);
            vms.name(131, "vmm");
            assert_eq!(names(&vms), ["vmm"]);
        }
    }

    #[test]
    fn a_vm_has_the_name_of_its_process() {
        let mut vms = GroupedVms::default();
        vms.join(116, 131, 0);
        assert_eq!(names(&vms), [""]);
        // The process is known, its name is not.
        vms.name(131, "CPU 0/KVM");
        assert_eq!(names(&vms), ["CPU 0/KVM"]);
        vms.name(116, "qemu-system-x86");
        assert_eq!(names(&vms), ["qemu-system-x86"]);
        // Without a process, only QEMU's threads tell whose they are, and only if there is one QEMU to name.
        vms.join(NO_PID, 300, 0);
        for (thread, name) in [
            ("CPU 0/KVM", "qemu-system-x86"),
            ("CPU 1/KV", "qemu-system-x86"),
            ("vcpu0", "vcpu0"),
            ("CPU x/KVM", "CPU x/KVM"),
        ] {
            vms.name(300, thread);
            assert_eq!(names(&vms), ["qemu-system-x86", name], "{thread}");
        }
        vms.name(300, "CPU 0/KVM");
        vms.name(142, "qemu-kvm");
        assert_eq!(names(&vms), ["qemu-system-x86", "CPU 0/KVM"]);
    }

    #[test]
    fn processes_are_vms() {
        let mut vms = GroupedVms::default();
        assert_eq!(vms.join(100, 101, 0).vm, 100);
        assert_eq!(vms.join(100, 102, 1).vm, 100);
        assert_eq!(vms.join(200, 201, 0).vm, 200);
        assert!(vms.list().iter().all(|vm| !vm.inferred));
    }

    #[test]
    fn a_process_with_two_vms_is_told_apart_by_a_repeated_vcpu() {
        let mut vms = GroupedVms::default();
        assert_eq!(vms.join(100, 101, 0).vm, 100);
        assert_eq!(vms.join(100, 105, 0).vm, 105);
        assert_eq!(vms.join(100, 106, 1).vm, 105);
        assert_eq!(vms.list().iter().map(|v| v.inferred).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn threads_without_processes_are_grouped_by_neighbourhood() {
        let mut vms = GroupedVms::default();
        let (a, b) = (vms.join(NO_PID, 101, 0).vm, vms.join(NO_PID, 151, 0).vm);
        assert_eq!((a, b), (101, 151));
        assert_eq!(vms.join(NO_PID, 152, 1).vm, 151);
        assert_eq!(vms.join(NO_PID, 102, 1).vm, 101);
        assert!(vms.list().iter().all(|vm| vm.inferred));
    }

    /// The threads of two guests alternate, as of VMs that were started at the same time.
    #[test]
    fn guests_that_the_recorder_names_are_vms() {
        let mut vms = GroupedVms::default();
        let guest = |name: &str, threads: [u32; 2]| RecordedGuest {
            name: name.to_owned(),
            threads: threads.to_vec(),
            ..RecordedGuest::default()
        };
        vms.guests(&[guest("a", [101, 103]), guest("", [102, 104])]);
        let joined = [(101, 0), (102, 0), (103, 1), (104, 1), (105, 2)]
            .map(|(t, v)| vms.join(NO_PID, t, v).vm);
        assert_eq!(joined, [101, 102, 101, 102, 105]);
        vms.name(102, "vcpu0");
        vms.name(103, "CPU 1/KVM");
        assert_eq!(names(&vms), ["a", "vcpu0", ""]);
        assert_eq!(vms.list().iter().map(|v| v.inferred).collect::<Vec<_>>(), [false, false, true]);
    }

    #[test]
    fn a_vcpu_can_move_to_a_new_thread() {
        let mut vms = GroupedVms::default();
        assert_eq!(vms.join(100, 101, 0).vm, 100);
        vms.leave(100, 101);
        assert_eq!(vms.join(100, 107, 0).vm, 100);
    }
}
