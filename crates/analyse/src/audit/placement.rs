//! Where vCPUs, I/O threads and memory are.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::is_vcpu_thread;
use vmtax_events::setting::{Fact, Known, Settings, Thread, Unknown, VmProcess, files};

use super::view::{AuditView, argument, argument_fact, cpus, list};
use super::{CheckFound, Fix, FoundSetting, ManualAdvice, SeenSetting};

/// Less than this share of memory on another node is libraries and chance.
const FAR_PERCENT: u64 = 5;

/// Where the vCPU threads of a VM may run.
pub(super) struct Pinning {
    tids: Vec<u32>,
    cpus: Vec<BTreeSet<u32>>,
}

impl Pinning {
    /// All CPUs that a vCPU may run on.
    fn all(&self) -> BTreeSet<u32> {
        self.cpus.iter().flatten().copied().collect()
    }

    /// Each vCPU has one CPU, and none is shared.
    pub(super) fn is_one_to_one(&self) -> bool {
        self.cpus.iter().all(|cpus| cpus.len() == 1) && self.all().len() == self.cpus.len()
    }

    fn fact(&self, vm: &VmProcess) -> Fact<SeenSetting> {
        let lists = self.cpus.iter().map(list).collect();
        Fact::new(vm.threads.path.clone(), Ok(SeenSetting::VcpusOn(lists)))
    }
}

fn is_iothread(name: &str) -> bool {
    name.starts_with("IO ") || name.starts_with("iothread")
}

/// Where a VM's vCPUs may run; the fact that says why that is not known.
pub(super) fn pinning(vm: &VmProcess) -> Result<Pinning, Fact<SeenSetting>> {
    let path = vm.threads.path.clone();
    let threads = match &vm.threads.value {
        Ok(threads) => threads,
        Err(why) => return Err(Fact::new(path, Err(why.clone()))),
    };
    let vcpus: Vec<&Thread> =
        threads.iter().filter(|thread| is_vcpu_thread(&thread.name)).collect();
    if vcpus.is_empty() {
        // QEMU names its threads with -name ...,debug-threads=on.
        return Err(Fact::new(path, Ok(SeenSetting::NoVcpuThread)));
    }
    let cpus: Option<Vec<BTreeSet<u32>>> =
        vcpus.iter().map(|thread| cpus(&thread.allowed)).collect();
    let cpus = cpus.ok_or_else(|| Fact::new(path, Err(Unknown::NotText)))?;
    Ok(Pinning { tids: vcpus.iter().map(|thread| thread.tid).collect(), cpus })
}

fn unknown(fact: Fact<SeenSetting>) -> CheckFound {
    if fact.value.is_err() {
        return CheckFound::unread(fact);
    }
    CheckFound::unknown(FoundSetting::VcpusUnnamed).seen(fact)
}

/// Threads of other VMs that may run on nothing but CPUs of this VM's vCPUs (vCPUs, iothreads, vhost's and the VMM's own): the VMs'
/// names, and the CPUs.
fn intruders(
    view: &AuditView,
    vm: &VmProcess,
    mine: &BTreeSet<u32>,
) -> (Vec<String>, BTreeSet<u32>) {
    let mut shared = BTreeSet::new();
    let mut names = Vec::new();
    for other in view.vms.iter().filter(|other| other.pid != vm.pid) {
        let threads = other.threads.value.as_deref().unwrap_or_default();
        let allowed = threads.iter().filter_map(|thread| cpus(&thread.allowed));
        let on_mine: Vec<BTreeSet<u32>> =
            allowed.filter(|allowed| !allowed.is_empty() && allowed.is_subset(mine)).collect();
        if !on_mine.is_empty() {
            names.push(other.name.clone());
        }
        shared.extend(on_mine.into_iter().flatten());
    }
    (names, shared)
}

pub(super) fn vcpu_pinning(view: &AuditView, vm: &VmProcess) -> CheckFound {
    let pinning = match pinning(vm) {
        Ok(pinning) => pinning,
        Err(fact) => return unknown(fact),
    };
    let fact = pinning.fact(vm);
    if pinning.is_one_to_one() {
        let (names, shared) = intruders(view, vm, &pinning.all());
        if !shared.is_empty() {
            return CheckFound::costs(FoundSetting::CpusShared { cpus: list(&shared), names })
                .seen(fact)
                .fix(Fix::Advice(ManualAdvice::PinApart));
        }
        return CheckFound::ok(FoundSetting::VcpusPinned).seen(fact);
    }
    CheckFound::costs(FoundSetting::VcpusMove).seen(fact).fix(Fix::Pin(pinning.tids))
}

pub(super) fn iothread_pinning(_: &AuditView, vm: &VmProcess) -> CheckFound {
    let pinning = match pinning(vm) {
        Ok(pinning) => pinning,
        Err(fact) => return unknown(fact),
    };
    let threads = vm.threads.value.as_deref().unwrap_or_default();
    let io: Vec<&Thread> = threads.iter().filter(|thread| is_iothread(&thread.name)).collect();
    if io.is_empty() {
        return CheckFound::not_applicable(FoundSetting::NoIothread);
    }
    if !pinning.is_one_to_one() {
        return CheckFound::not_applicable(FoundSetting::VcpusNotPinned);
    }
    let vcpus = pinning.all();
    let shared: BTreeSet<u32> = io
        .iter()
        .filter_map(|thread| cpus(&thread.allowed))
        .flatten()
        .filter(|cpu| vcpus.contains(cpu))
        .collect();
    let lists = io.iter().map(|thread| thread.allowed.clone()).collect();
    let fact = Fact::new(vm.threads.path.clone(), Ok(SeenSetting::IothreadsOn(lists)));
    if io.iter().any(|thread| cpus(&thread.allowed).is_none()) {
        return CheckFound::strange(fact);
    }
    if shared.is_empty() {
        CheckFound::ok(FoundSetting::IothreadsApart).seen(fact)
    } else {
        CheckFound::costs(FoundSetting::IothreadsShare(list(&shared)))
            .seen(fact)
            .fix(Fix::Pin(io.iter().map(|thread| thread.tid).collect()))
    }
}

/// Device interrupts a second from which on a CPU is not a vCPU's alone: as many as a tick that is slow.
const OFTEN: f64 = 100.0;

/// Interrupts of devices that go to CPUs of pinned vCPUs, by their mean rate since the boot.
pub(super) fn device_interrupts(view: &AuditView, vm: &VmProcess) -> CheckFound {
    let pinning = match pinning(vm) {
        Ok(pinning) => pinning,
        Err(fact) => return unknown(fact),
    };
    if !pinning.is_one_to_one() {
        return CheckFound::not_applicable(FoundSetting::VcpusNotPinned);
    }
    let counts = view.host.matching(files::IRQ_COUNTS);
    let uptime = view.host.fact(files::UPTIME);
    let seconds =
        match uptime.value.as_deref().map(|text| text.split(' ').next()?.parse::<f64>().ok()) {
            Ok(Some(seconds)) if seconds > 0.0 => seconds,
            Ok(_) => return CheckFound::strange(uptime),
            Err(_) => return CheckFound::unread(uptime),
        };
    let mine = pinning.all();
    let mut often: Vec<(f64, Fact<SeenSetting>)> = Vec::new();
    let mut busy = BTreeSet::new();
    for fact in counts {
        let Ok(text) = &fact.value else { return CheckFound::unread(fact) };
        let beside = |name| view.host.text(&fact.path.replace("per_cpu_count", name)).ok();
        let Some(devices) = beside("actions").filter(|devices| !devices.is_empty()) else {
            continue;
        };
        let goes_to = files::irq_cpus(&fact.path).and_then(|path| view.host.text(&path).ok());
        let Some(goes_to) = goes_to.and_then(cpus) else { continue };
        let on_mine =
            text.split(',').zip(0..).filter(|(_, cpu)| mine.contains(cpu) && goes_to.contains(cpu));
        for (count, cpu) in on_mine {
            let Ok(count) = count.parse::<u64>() else { return CheckFound::strange(fact) };
            let rate = count as f64 / seconds;
            if rate >= OFTEN {
                busy.insert(cpu);
                let seen =
                    SeenSetting::Interrupts { devices: devices.to_owned(), cpu, rate: rate as u64 };
                often.push((rate, Fact::new(fact.path.clone(), Ok(seen))));
            }
        }
    }
    if busy.is_empty() {
        return CheckFound::ok(FoundSetting::FewDeviceInterrupts).seen(pinning.fact(vm));
    }
    often.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let found =
        CheckFound::costs(FoundSetting::DeviceInterrupts(list(&busy))).seen(pinning.fact(vm));
    let named = often.into_iter().take(4).map(|(_, fact)| fact);
    named.fold(found, CheckFound::seen).fix(Fix::Advice(ManualAdvice::MoveInterrupts))
}

/// The CPUs of each node; `None` when they cannot be read.
fn nodes(view: &AuditView) -> Option<BTreeMap<u32, BTreeSet<u32>>> {
    let mut nodes = BTreeMap::new();
    for fact in view.host.matching(files::NODE_CPUS) {
        let id = fact.path.split('/').find_map(|name| name.strip_prefix("node")?.parse().ok())?;
        nodes.insert(id, cpus(&fact.value.ok()?)?);
    }
    Some(nodes)
}

pub(super) fn numa(view: &AuditView, vm: &VmProcess) -> CheckFound {
    let first = view.host.matching(files::NODE_CPUS).into_iter().next();
    let Some(nodes) = nodes(view) else {
        return match first {
            Some(fact) if fact.value == Err(Unknown::Missing) => {
                CheckFound::not_applicable(FoundSetting::NoNuma).seen(fact)
            }
            Some(fact) => CheckFound::unread(fact),
            None => CheckFound::unknown(FoundSetting::NumaUnknown),
        };
    };
    if nodes.len() < 2 {
        return CheckFound::not_applicable(FoundSetting::OneNode);
    }
    let pinning = match pinning(vm) {
        Ok(pinning) => pinning,
        Err(fact) => return unknown(fact),
    };
    let fact = vm.nodes.clone().map(SeenSetting::Nodes);
    let Ok(memory) = &vm.nodes.value else { return CheckFound::unread(fact) };
    let allowed = pinning.all();
    let near: BTreeSet<u32> =
        nodes.iter().filter(|(_, cpus)| !cpus.is_disjoint(&allowed)).map(|(id, _)| *id).collect();
    let total = memory.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    let far = memory
        .iter()
        .filter(|(id, _)| !near.contains(id))
        .fold(0u64, |sum, (_, b)| sum.saturating_add(*b));
    let found = if near.len() > 1 {
        CheckFound::costs(FoundSetting::ManyNodes(list(&near)))
            .fix(Fix::Advice(ManualAdvice::PlaceOnOneNode))
    } else if total > 0 && far / (total / 100).max(1) >= FAR_PERCENT {
        CheckFound::costs(FoundSetting::FarMemory { far, all: total })
            .fix(Fix::Advice(ManualAdvice::MoveMemory))
    } else if total == 0 {
        CheckFound::unknown(FoundSetting::NoMemoryTouched)
    } else {
        CheckFound::ok(FoundSetting::OnNode(list(&near)))
    };
    found.seen(fact).seen(pinning.fact(vm))
}

/// A list of CPUs that those of pinned vCPUs should be in.
struct WantedCpus<'a> {
    lists: Known<String>,
    /// What is shown of where it was read.
    seen: Fact<SeenSetting>,
    /// What it means that they are in it, and that these are not.
    says: (FoundSetting, fn(String) -> FoundSetting),
    /// The word of the kernel's command line that makes the list.
    argument: &'a str,
}

impl WantedCpus<'_> {
    fn judge(self, vm: &VmProcess) -> CheckFound {
        let pinning = match pinning(vm) {
            Ok(pinning) => pinning,
            Err(fact) => return unknown(fact),
        };
        if !pinning.is_one_to_one() {
            return CheckFound::not_applicable(FoundSetting::VcpusNotPinned).seen(self.seen);
        }
        let listed = match &self.lists {
            Ok(text) => match cpus(text) {
                Some(listed) => listed,
                None => return CheckFound::strange(self.seen),
            },
            // Without the feature the kernel has no such file.
            Err(Unknown::Missing) => BTreeSet::new(),
            Err(_) => return CheckFound::unread(self.seen),
        };
        let (ok, costs) = self.says;
        let vcpus = pinning.all();
        let missing: BTreeSet<u32> = vcpus.difference(&listed).copied().collect();
        let found = if missing.is_empty() {
            CheckFound::ok(ok)
        } else {
            let all = listed.union(&vcpus).copied().collect();
            CheckFound::costs(costs(list(&missing))).fix(Fix::Kernel(format!(
                "{}={}",
                self.argument,
                list(&all)
            )))
        };
        found.seen(self.seen).seen(pinning.fact(vm))
    }
}

pub(super) fn nohz_full(view: &AuditView, vm: &VmProcess) -> CheckFound {
    let seen = view.host.fact(files::NOHZ_FULL);
    WantedCpus {
        lists: seen.value.clone(),
        seen: seen.map(SeenSetting::Text),
        says: (FoundSetting::HostNohz, FoundSetting::HostTick),
        argument: "nohz_full",
    }
    .judge(vm)
}

/// The guest's own tick: it is gone only where one task runs, which no file says.
pub(super) fn guest_nohz_full(_: &AuditView, guest: &Settings) -> CheckFound {
    let fact = guest.fact(files::NOHZ_FULL);
    match fact.value.as_deref().map(cpus) {
        Ok(Some(listed)) if listed.is_empty() => {
            CheckFound::unknown(FoundSetting::GuestTick).seen(fact)
        }
        Ok(Some(_)) => CheckFound::ok(FoundSetting::GuestNohz).seen(fact),
        Ok(None) => CheckFound::strange(fact),
        Err(Unknown::Missing) => {
            CheckFound::not_applicable(FoundSetting::GuestWithoutNohz).seen(fact)
        }
        Err(_) => CheckFound::unread(fact),
    }
}

pub(super) fn isolcpus(view: &AuditView, vm: &VmProcess) -> CheckFound {
    let seen = view.host.fact(files::ISOLATED);
    let mut found = WantedCpus {
        lists: seen.value.clone(),
        seen: seen.map(SeenSetting::Text),
        says: (FoundSetting::Isolated, FoundSetting::NotIsolated),
        argument: "isolcpus",
    }
    .judge(vm);
    // isolcpus= is deprecated (Linux Documentation/admin-guide/kernel-parameters.txt): cpusets take its place.
    if found.fix.is_some() {
        found.fix = Some(Fix::Advice(ManualAdvice::IsolatedPartition));
    }
    found
}

pub(super) fn rcu_nocbs(view: &AuditView, vm: &VmProcess) -> CheckFound {
    let cmdline = view.host.text(files::CMDLINE);
    // nohz_full= implies it.
    let has = |name| cmdline.as_ref().is_ok_and(|line| argument(line, name).is_some());
    let name = if has("rcu_nocbs") || !has("nohz_full") { "rcu_nocbs" } else { "nohz_full" };
    let lists = cmdline.map(|line| match argument(line, name) {
        Some("all") => "0-65535".to_owned(),
        other => other.unwrap_or_default().to_owned(),
    });
    let seen = argument_fact(view.host, name);
    WantedCpus {
        lists,
        seen,
        says: (FoundSetting::RcuElsewhere, FoundSetting::RcuInterrupts),
        argument: "rcu_nocbs",
    }
    .judge(vm)
}
