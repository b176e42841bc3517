//! Calls of KVM -> the VMs that were created, and what each of their steps took.
//!
//! ```text
//!   calls of a process: ... KVM_CHECK_EXTENSION, KVM_CREATE_VM ──> a VM
//!   calls of a VM that is not known yet ──> the oldest VM of the process without one: its address becomes known
//!   release of the VM and of all its vCPUs ──> the address is free again
//! ```
//! KVM_CREATE_VM does not tell the VM's address, and addresses are used again.
//!
//! Left out: VMs that were there before, and what the VMM does between its calls.

mod requests;

use std::collections::BTreeMap;

use vmtax_events::start::{KvmCall, KvmFile};

pub use requests::Requests;

/// More VMs are counted and not shown.
const MOST_VMS: usize = 16_384;
/// More kinds of calls of a VM are left out.
const MOST_STEPS: usize = 256;
/// Calls before KVM_CREATE_VM that are kept of a process; QEMU's are about 100.
const MOST_BEFORE: usize = 4096;
/// Processes that have opened KVM and created no VM yet.
const MOST_PROCESSES: usize = 4096;

/// A VM that was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartedVm {
    pub pid: u32,
    /// The name of the thread that created it.
    pub thread: String,
    /// Number of its cgroup.
    pub cgroup: u64,
    /// The beginning of KVM_CREATE_VM, ns.
    pub began_ns: u64,
    /// From there to the first KVM_RUN, ns; `None` if it did not run.
    pub start_ns: Option<u64>,
    /// Of that, in the calls of all its threads, ns.
    pub in_calls_ns: u64,
    /// Of that, in calls on no CPU, ns.
    pub off_cpu_ns: u64,
    /// Its steps, in the order in which they first came.
    pub steps: Vec<Step>,
}

/// Calls of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// `KVM_CREATE_VM`.
    pub name: String,
    /// How many.
    pub count: u64,
    /// Those that failed.
    pub failed: u64,
    /// Their time, ns.
    pub total_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
    /// Of their time, on no CPU, ns.
    pub off_cpu_ns: u64,
    /// The longest time on no CPU, ns.
    pub longest_ns: u64,
    /// Where that was: functions of the kernel, the innermost first.
    pub place: Vec<String>,
}

impl Step {
    /// Adds a call, or calls of the same kind.
    fn add(&mut self, other: &Step) {
        self.count += other.count;
        self.failed += other.failed;
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.off_cpu_ns = self.off_cpu_ns.saturating_add(other.off_cpu_ns);
        if other.longest_ns > self.longest_ns {
            self.longest_ns = other.longest_ns;
            self.place.clone_from(&other.place);
        }
    }
}

/// The steps of all VMs, in the order of their first VM's.
pub fn steps_of_all(vms: &[StartedVm]) -> Vec<Step> {
    let mut all = Vec::new();
    vms.iter().flat_map(|vm| &vm.steps).for_each(|step| add(&mut all, step));
    all
}

fn add(steps: &mut Vec<Step>, step: &Step) {
    match steps.iter().position(|known| known.name == step.name) {
        Some(at) => steps[at].add(step),
        None if steps.len() < MOST_STEPS => steps.push(step.clone()),
        None => {}
    }
}

/// A VM that may still be called.
#[derive(Debug, Default)]
struct Living {
    number: usize,
    pid: u32,
    /// Its address, from its first call on.
    kvm: Option<u64>,
    vcpus: u32,
    is_released: bool,
    has_run: bool,
}

/// Puts calls together, in the order of their returns.
#[derive(Debug, Default)]
pub struct Starts {
    vms: Vec<StartedVm>,
    living: Vec<Living>,
    /// Of each process, its calls of /dev/kvm since its last VM.
    before: BTreeMap<u32, Vec<(KvmCall, Vec<String>)>>,
    /// VMs beyond the limit.
    dropped: u64,
    /// Calls of VMs that were there before.
    of_others: u64,
}

impl Starts {
    /// Adds a call, and the functions of its stack.
    pub fn add(&mut self, call: KvmCall, place: Vec<String>) {
        match call.file {
            KvmFile::Device if call.creates_vm() => self.create(&call, place),
            KvmFile::Device => self.prepare(call, place),
            KvmFile::Vm | KvmFile::Vcpu => self.use_vm(&call, place),
        }
    }

    /// Counts a call of a VM that was there before.
    fn of_another(&mut self) {
        self.of_others += 1;
    }

    /// The VMs, in the order of their creation; VMs beyond the limit; and calls of VMs that were there before.
    pub fn finish(self) -> (Vec<StartedVm>, u64, u64) {
        (self.vms, self.dropped, self.of_others)
    }

    fn create(&mut self, call: &KvmCall, place: Vec<String>) {
        let before = self.before.remove(&call.pid).unwrap_or_default();
        if self.vms.len() >= MOST_VMS {
            self.dropped += 1;
            return;
        }
        let number = self.vms.len();
        self.vms.push(StartedVm {
            pid: call.pid,
            thread: call.name.clone(),
            cgroup: call.cgroup,
            began_ns: call.began_ns,
            ..StartedVm::default()
        });
        for (one, place) in before {
            self.count(number, &one, (one.step(), place));
        }
        self.count(number, call, (call.step(), place));
        self.living.push(Living { number, pid: call.pid, ..Living::default() });
    }

    /// A call of /dev/kvm is for the VM that the process is starting, or else for its next one.
    fn prepare(&mut self, call: KvmCall, place: Vec<String>) {
        let starting = |one: &&Living| one.pid == call.pid && !one.has_run;
        if let Some(number) = self.living.iter().rfind(starting).map(|one| one.number) {
            return self.count(number, &call, (call.step(), place));
        }
        let room = self.before.contains_key(&call.pid) || self.before.len() < MOST_PROCESSES;
        if room {
            let calls = self.before.entry(call.pid).or_default();
            if calls.len() < MOST_BEFORE {
                calls.push((call, place));
            }
        }
    }

    fn use_vm(&mut self, call: &KvmCall, place: Vec<String>) {
        let own = |one: &Living| one.pid == call.pid;
        let known = self.living.iter().position(|one| own(one) && one.kvm == Some(call.vm));
        let new = || self.living.iter().position(|one| own(one) && one.kvm.is_none());
        let Some(at) = known.or_else(new) else {
            return self.of_another();
        };
        let vm = &mut self.living[at];
        vm.kvm = Some(call.vm);
        let mut step = call.step();
        let number = vm.number;
        let is_first_run = call.runs() && !vm.has_run;
        if call.runs() {
            step.push_str(if is_first_run { ", first" } else { ", first of another vCPU" });
            vm.has_run = true;
        }
        match (call.file, call.releases()) {
            (KvmFile::Vm, true) => vm.is_released = true,
            (KvmFile::Vcpu, true) => vm.vcpus = vm.vcpus.saturating_sub(1),
            _ if call.creates_vcpu() => vm.vcpus += 1,
            _ => {}
        }
        if vm.is_released && vm.vcpus == 0 {
            self.living.remove(at);
        }
        if is_first_run {
            let vm = &mut self.vms[number];
            vm.start_ns = Some(call.began_ns.saturating_sub(vm.began_ns));
        }
        self.count(number, call, (step, place));
    }

    fn count(&mut self, number: usize, call: &KvmCall, (name, place): (String, Vec<String>)) {
        let vm = &mut self.vms[number];
        if vm.start_ns.is_none() && call.began_ns >= vm.began_ns {
            vm.in_calls_ns = vm.in_calls_ns.saturating_add(call.ns);
            vm.off_cpu_ns = vm.off_cpu_ns.saturating_add(call.off_cpu_ns);
        }
        let step = Step {
            name,
            count: 1,
            failed: u64::from(call.result < 0),
            total_ns: call.ns,
            max_ns: call.ns,
            off_cpu_ns: call.off_cpu_ns,
            longest_ns: call.longest_ns,
            place,
        };
        add(&mut vm.steps, &step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATE_VM: u32 = 0xae01;
    const CREATE_VCPU: u32 = 0xae41;
    const SET_MEMORY: u32 = 0x4020_ae46;
    const RUN: u32 = 0xae80;

    /// A call that begins at this time and takes 10 ns, 4 of them on no CPU.
    fn call(began_ns: u64, pid: u32, (file, vm): (KvmFile, u64), request: u32) -> KvmCall {
        KvmCall {
            began_ns,
            ns: 10,
            off_cpu_ns: 4,
            longest_ns: 4,
            pid,
            tid: pid,
            name: "vmm".to_owned(),
            cgroup: 7,
            file,
            vm,
            request,
            undoes: false,
            result: 3,
            stack: Vec::new(),
        }
    }

    const DEVICE: (KvmFile, u64) = (KvmFile::Device, 0);

    fn of(calls: impl IntoIterator<Item = KvmCall>) -> (Vec<StartedVm>, u64, u64) {
        let mut starts = Starts::default();
        let place = || vec!["synchronize_rcu".to_owned()];
        calls.into_iter().for_each(|call| starts.add(call, place()));
        starts.finish()
    }

    fn names(vm: &StartedVm) -> Vec<(&str, u64)> {
        vm.steps.iter().map(|step| (step.name.as_str(), step.count)).collect()
    }

    #[test]
    fn a_start_ends_with_the_first_run() {
        let (vm, vcpu) = ((KvmFile::Vm, 0x1000), (KvmFile::Vcpu, 0x1000));
        let (vms, ..) = of([
            call(80, 5, DEVICE, 0xae03),
            call(100, 5, DEVICE, CREATE_VM),
            call(110, 5, DEVICE, 0xae04),
            call(120, 5, vm, SET_MEMORY),
            KvmCall { undoes: true, ns: 90, ..call(130, 5, vm, SET_MEMORY) },
            call(240, 5, vm, CREATE_VCPU),
            call(250, 5, vm, CREATE_VCPU),
            call(300, 5, vcpu, RUN),
            call(310, 5, vcpu, RUN),
            KvmCall { result: -22, ..call(320, 5, vm, SET_MEMORY) },
        ]);
        let [vm] = vms.as_slice() else { panic!("{vms:?}") };
        assert_eq!((vm.pid, vm.began_ns, vm.start_ns), (5, 100, Some(200)));
        // KVM_CREATE_VM, the mapping's size, both slots, two vCPUs; neither what was before nor KVM_RUN.
        assert_eq!((vm.in_calls_ns, vm.off_cpu_ns), (140, 24));
        let expected = [
            ("KVM_CHECK_EXTENSION", 1),
            ("KVM_CREATE_VM", 1),
            ("KVM_GET_VCPU_MMAP_SIZE", 1),
            ("KVM_SET_USER_MEMORY_REGION", 2),
            ("KVM_SET_USER_MEMORY_REGION, removed", 1),
            ("KVM_CREATE_VCPU", 2),
            ("KVM_RUN, first", 1),
            ("KVM_RUN, first of another vCPU", 1),
        ];
        assert_eq!(names(vm), expected);
        assert_eq!((vm.steps[3].failed, vm.steps[3].total_ns, vm.steps[4].max_ns), (1, 20, 90));
    }

    /// A process with two VMs at a time, and one that gets the address of another that is gone.
    #[test]
    fn vms_of_one_process_are_kept_apart() {
        let (first, second) = ((KvmFile::Vm, 0x1000), (KvmFile::Vm, 0x2000));
        let vcpu = (KvmFile::Vcpu, 0x1000);
        let (vms, dropped, others) = of([
            call(1, 5, DEVICE, CREATE_VM),
            call(2, 5, first, SET_MEMORY),
            call(3, 5, DEVICE, CREATE_VM),
            call(4, 5, first, CREATE_VCPU),
            call(5, 5, second, SET_MEMORY),
            call(6, 5, first, 0),
            // Its vCPU holds the VM.
            call(7, 5, vcpu, RUN),
            call(8, 5, vcpu, 0),
            call(9, 5, DEVICE, CREATE_VM),
            call(10, 5, first, CREATE_VCPU),
            call(11, 6, first, CREATE_VCPU),
        ]);
        let steps: Vec<usize> = vms.iter().map(|vm| vm.steps.len()).collect();
        assert_eq!((steps, dropped, others), (vec![6, 2, 2], 0, 1));
        assert_eq!(
            names(&vms[0])[3..],
            [("close of the VM", 1), ("KVM_RUN, first", 1), ("close of a vCPU", 1)]
        );
        let all = steps_of_all(&vms);
        assert_eq!((all[0].name.as_str(), all[0].count, all[0].total_ns), ("KVM_CREATE_VM", 3, 30));
        assert_eq!(all[0].place, ["synchronize_rcu"]);
    }

    #[test]
    fn more_vms_are_counted() {
        let create = |at| call(at, 5, DEVICE, CREATE_VM);
        let (vms, dropped, _) = of((0..MOST_VMS as u64 + 2).map(create));
        assert_eq!((vms.len(), dropped), (MOST_VMS, 2));
    }
}
