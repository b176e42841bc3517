//! Which threads belong to which VM.
//!
//! vCPU ids repeat across VMs, so a vCPU is known by its VM and its id. A recording with process ids
//! gives the VM away, unless one process runs several VMs. One without (ftrace) does not: there a VM's
//! vCPU threads are taken to be those with neighbouring thread ids and different vCPU ids, which is how
//! VMMs create them. Such VMs are marked as inferred.

use std::collections::HashMap;

use vmtax_events::{NO_PID, NO_VCPU, Vm};

/// A hostile recording may name any number of VMs; those beyond are one with the last.
const MAX_VMS: usize = 16_384;
/// At most so many names are kept.
const MAX_NAMES: usize = 65_536;

#[derive(Debug)]
struct Group {
    id: u32,
    pid: u32,
    inferred: bool,
    /// (vCPU, thread) of the live vCPU threads.
    vcpus: Vec<(u32, u32)>,
}

/// Groups vCPU threads into VMs.
#[derive(Debug, Default)]
pub(crate) struct Vms {
    groups: Vec<Group>,
    /// Places in `groups` by process, and by id.
    by_pid: HashMap<u32, Vec<usize>>,
    by_id: HashMap<u32, usize>,
    names: HashMap<u32, String>,
}

impl Vms {
    /// The VM of a thread that runs this vCPU; `true` when it was not seen before.
    pub(crate) fn join(&mut self, pid: u32, tid: u32, vcpu: u32) -> (u32, bool) {
        let of_process = self.by_pid.entry(pid).or_default();
        let free = of_process.iter().copied().filter(|&at| {
            self.groups.get(at).is_some_and(|g| {
                vcpu == NO_VCPU || g.vcpus.iter().all(|&(v, t)| v != vcpu || t == tid)
            })
        });
        let near = |&at: &usize| {
            let vcpus = self.groups.get(at).map(|g| g.vcpus.iter()).into_iter().flatten();
            vcpus.map(|&(_, t)| t.abs_diff(tid)).min().unwrap_or(u32::MAX)
        };
        if let Some(group) = free.min_by_key(near).and_then(|at| self.groups.get_mut(at)) {
            group.vcpus.push((vcpu, tid));
            return (group.id, false);
        }
        if let Some(last) = self.groups.last_mut().filter(|_| self.by_id.len() >= MAX_VMS) {
            last.inferred = true;
            last.vcpus.push((vcpu, tid));
            return (last.id, false);
        }
        let inferred = pid == NO_PID || !of_process.is_empty();
        let mut id = if inferred { tid } else { pid };
        while self.by_id.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        of_process.push(self.groups.len());
        self.by_id.insert(id, self.groups.len());
        self.groups.push(Group { id, pid, inferred, vcpus: vec![(vcpu, tid)] });
        (id, true)
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
    }

    /// A thread's name, where it is known.
    pub(crate) fn name_of(&self, tid: u32) -> Option<&str> {
        self.names.get(&tid).map(String::as_str)
    }

    /// A VM, by its id.
    pub(crate) fn get(&self, id: u32) -> Option<Vm> {
        self.by_id.get(&id).and_then(|&at| self.groups.get(at)).map(|g| self.describe(g))
    }

    fn describe(&self, group: &Group) -> Vm {
        let name = self.names.get(&group.pid).or_else(|| self.names.get(&group.id));
        Vm { id: group.id, name: name.cloned().unwrap_or_default(), inferred: group.inferred }
    }

    /// All VMs, by id.
    pub(crate) fn list(&self) -> Vec<Vm> {
        let mut vms: Vec<Vm> = self.groups.iter().map(|g| self.describe(g)).collect();
        vms.sort_by_key(|vm| vm.id);
        vms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_vms() {
        let mut vms = Vms::default();
        assert_eq!(vms.join(100, 101, 0).0, 100);
        assert_eq!(vms.join(100, 102, 1).0, 100);
        assert_eq!(vms.join(200, 201, 0).0, 200);
        assert!(vms.list().iter().all(|vm| !vm.inferred));
    }

    #[test]
    fn a_process_with_two_vms_is_told_apart_by_a_repeated_vcpu() {
        let mut vms = Vms::default();
        assert_eq!(vms.join(100, 101, 0).0, 100);
        assert_eq!(vms.join(100, 105, 0).0, 105);
        assert_eq!(vms.join(100, 106, 1).0, 105);
        assert_eq!(vms.list().iter().map(|v| v.inferred).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn threads_without_processes_are_grouped_by_neighbourhood() {
        let mut vms = Vms::default();
        let (a, b) = (vms.join(NO_PID, 101, 0).0, vms.join(NO_PID, 151, 0).0);
        assert_eq!((a, b), (101, 151));
        assert_eq!(vms.join(NO_PID, 152, 1).0, 151);
        assert_eq!(vms.join(NO_PID, 102, 1).0, 101);
        assert!(vms.list().iter().all(|vm| vm.inferred));
    }

    #[test]
    fn a_vcpu_can_move_to_a_new_thread() {
        let mut vms = Vms::default();
        assert_eq!(vms.join(100, 101, 0).0, 100);
        vms.leave(100, 101);
        assert_eq!(vms.join(100, 107, 0).0, 100);
    }
}
