//! Where vCPUs, I/O threads and memory are.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::setting::{Fact, Known, Settings, Thread, Unknown, VmProcess, files};

use super::view::{View, argument, argument_fact, cpus, list, percent, size};
use super::{Fix, Found};

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

    fn fact(&self, vm: &VmProcess) -> Fact<String> {
        let lists: Vec<String> = self.cpus.iter().take(16).map(list).collect();
        let more = if self.cpus.len() > 16 { " ..." } else { "" };
        Fact::new(
            vm.threads.path.clone(),
            Ok(format!("vCPUs may run on {}{more}", lists.join(" | "))),
        )
    }
}

/// A thread that runs a vCPU, by the name that its VMM gives it: QEMU, cloud-hypervisor, Firecracker, crosvm.
fn is_vcpu(name: &str) -> bool {
    let qemu = name.strip_prefix("CPU ").is_some_and(|rest| rest.contains("/KVM"));
    qemu || ["vcpu", "fc_vcpu", "crosvm_vcpu"].iter().any(|start| name.starts_with(start))
}

fn is_iothread(name: &str) -> bool {
    name.starts_with("IO ") || name.starts_with("iothread")
}

/// Where a VM's vCPUs may run; the fact that says why that is not known.
pub(super) fn pinning(vm: &VmProcess) -> Result<Pinning, Fact<String>> {
    let path = vm.threads.path.clone();
    let threads = match &vm.threads.value {
        Ok(threads) => threads,
        Err(why) => return Err(Fact::new(path, Err(why.clone()))),
    };
    let vcpus: Vec<&Thread> = threads.iter().filter(|thread| is_vcpu(&thread.name)).collect();
    if vcpus.is_empty() {
        // QEMU names its threads with -name ...,debug-threads=on.
        return Err(Fact::new(path, Ok("no thread is named as a vCPU".to_owned())));
    }
    let cpus: Option<Vec<BTreeSet<u32>>> =
        vcpus.iter().map(|thread| cpus(&thread.allowed)).collect();
    let cpus = cpus.ok_or_else(|| Fact::new(path, Err(Unknown::NotText)))?;
    Ok(Pinning { tids: vcpus.iter().map(|thread| thread.tid).collect(), cpus })
}

fn unknown(fact: Fact<String>) -> Found {
    if fact.value.is_err() {
        return Found::unread(fact);
    }
    Found::unknown("the vCPU threads cannot be identified (QEMU: -name NAME,debug-threads=on)")
        .seen(fact)
}

pub(super) fn vcpu_pinning(_: &View, vm: &VmProcess) -> Found {
    let pinning = match pinning(vm) {
        Ok(pinning) => pinning,
        Err(fact) => return unknown(fact),
    };
    let fact = pinning.fact(vm);
    if pinning.is_one_to_one() {
        return Found::ok("each vCPU has its own CPU").seen(fact);
    }
    Found::costs("vCPUs share CPUs or may move between them").seen(fact).fix(Fix::Pin(pinning.tids))
}

pub(super) fn iothread_pinning(_: &View, vm: &VmProcess) -> Found {
    let pinning = match pinning(vm) {
        Ok(pinning) => pinning,
        Err(fact) => return unknown(fact),
    };
    let threads = vm.threads.value.as_deref().unwrap_or_default();
    let io: Vec<&Thread> = threads.iter().filter(|thread| is_iothread(&thread.name)).collect();
    if io.is_empty() {
        return Found::not_applicable("the VM has no iothread");
    }
    if !pinning.is_one_to_one() {
        return Found::not_applicable("the vCPUs are not pinned; see vcpu-pinning");
    }
    let vcpus = pinning.all();
    let shared: BTreeSet<u32> = io
        .iter()
        .filter_map(|thread| cpus(&thread.allowed))
        .flatten()
        .filter(|cpu| vcpus.contains(cpu))
        .collect();
    let lists: Vec<&str> = io.iter().map(|thread| thread.allowed.as_str()).collect();
    let fact = Fact::new(
        vm.threads.path.clone(),
        Ok(format!("iothreads may run on {}", lists.join(" | "))),
    );
    if io.iter().any(|thread| cpus(&thread.allowed).is_none()) {
        return Found::strange(fact);
    }
    if shared.is_empty() {
        Found::ok("iothreads do not run on the vCPUs' CPUs").seen(fact)
    } else {
        Found::costs(format!("iothreads may run on CPUs {} of vCPUs", list(&shared)))
            .seen(fact)
            .fix(Fix::Pin(io.iter().map(|thread| thread.tid).collect()))
    }
}

/// The CPUs of each node; `None` when they cannot be read.
fn nodes(view: &View) -> Option<BTreeMap<u32, BTreeSet<u32>>> {
    let mut nodes = BTreeMap::new();
    for fact in view.host.matching(files::NODE_CPUS) {
        let id = fact.path.split('/').find_map(|name| name.strip_prefix("node")?.parse().ok())?;
        nodes.insert(id, cpus(&fact.value.ok()?)?);
    }
    Some(nodes)
}

pub(super) fn numa(view: &View, vm: &VmProcess) -> Found {
    let first = view.host.matching(files::NODE_CPUS).into_iter().next();
    let Some(nodes) = nodes(view) else {
        return match first {
            Some(fact) if fact.value == Err(Unknown::Missing) => {
                Found::not_applicable("the host has no NUMA nodes").seen(fact)
            }
            Some(fact) => Found::unread(fact),
            None => Found::unknown("the host's NUMA nodes cannot be read"),
        };
    };
    if nodes.len() < 2 {
        return Found::not_applicable("the host has one NUMA node");
    }
    let pinning = match pinning(vm) {
        Ok(pinning) => pinning,
        Err(fact) => return unknown(fact),
    };
    let memory = match &vm.nodes.value {
        Ok(memory) => memory,
        Err(why) => return Found::unread(Fact::new(vm.nodes.path.clone(), Err(why.clone()))),
    };
    let allowed = pinning.all();
    let near: BTreeSet<u32> =
        nodes.iter().filter(|(_, cpus)| !cpus.is_disjoint(&allowed)).map(|(id, _)| *id).collect();
    let total = memory.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    let far = memory
        .iter()
        .filter(|(id, _)| !near.contains(id))
        .fold(0u64, |sum, (_, b)| sum.saturating_add(*b));
    let each: Vec<String> =
        memory.iter().map(|(id, bytes)| format!("node {id} {}", size(*bytes))).collect();
    let fact = Fact::new(vm.nodes.path.clone(), Ok(each.join(", ")));
    let found = if near.len() > 1 {
        Found::costs(format!("vCPUs may run on nodes {}", list(&near)))
            .fix(Fix::Advice("pin the VM's vCPUs to the CPUs of one node, and bind its memory to it (numactl, virsh numatune)"))
    } else if total > 0 && far / (total / 100).max(1) >= FAR_PERCENT {
        let what =
            format!("{} of the memory is on another node than the vCPUs", percent(far, total));
        Found::costs(what).fix(Fix::Advice(
            "move the memory to the vCPUs' node: migratepages PID FROM TO, or virsh numatune",
        ))
    } else if total == 0 {
        Found::unknown("the VM has touched no memory yet")
    } else {
        Found::ok(format!("vCPUs and memory are on node {}", list(&near)))
    };
    found.seen(fact).seen(pinning.fact(vm))
}

/// A list of CPUs that those of pinned vCPUs should be in.
struct Wanted<'a> {
    /// The list.
    lists: Known<String>,
    /// What is shown of where it was read.
    seen: Fact<String>,
    /// What it means that they are in it, and that they are not.
    says: [&'a str; 2],
    /// The word of the kernel's command line that makes the list.
    argument: &'a str,
}

impl Wanted<'_> {
    fn judge(self, vm: &VmProcess) -> Found {
        let pinning = match pinning(vm) {
            Ok(pinning) => pinning,
            Err(fact) => return unknown(fact),
        };
        if !pinning.is_one_to_one() {
            return Found::not_applicable("the vCPUs are not pinned; see vcpu-pinning")
                .seen(self.seen);
        }
        let listed = match &self.lists {
            Ok(text) => match cpus(text) {
                Some(listed) => listed,
                None => return Found::strange(self.seen),
            },
            // Without the feature the kernel has no such file.
            Err(Unknown::Missing) => BTreeSet::new(),
            Err(_) => return Found::unread(self.seen),
        };
        let [ok, costs] = self.says;
        let vcpus = pinning.all();
        let missing: BTreeSet<u32> = vcpus.difference(&listed).copied().collect();
        let found = if missing.is_empty() {
            Found::ok(ok)
        } else {
            let all = listed.union(&vcpus).copied().collect();
            Found::costs(format!("{costs}: CPUs {}", list(&missing))).fix(Fix::Kernel(format!(
                "{}={}",
                self.argument,
                list(&all)
            )))
        };
        found.seen(self.seen).seen(pinning.fact(vm))
    }
}

pub(super) fn nohz_full(view: &View, vm: &VmProcess) -> Found {
    let seen = view.host.fact(files::NOHZ_FULL);
    let says =
        ["the vCPUs' CPUs have no tick while one task runs", "the host's tick interrupts vCPUs"];
    Wanted { lists: seen.value.clone(), seen, says, argument: "nohz_full" }.judge(vm)
}

/// The guest's own tick: it is gone only where one task runs, which no file says.
pub(super) fn guest_nohz_full(_: &View, guest: &Settings) -> Found {
    let fact = guest.fact(files::NOHZ_FULL);
    match fact.value.as_deref().map(cpus) {
        Ok(Some(listed)) if listed.is_empty() => Found::unknown(
            "the guest's tick interrupts its busy CPUs; nohz_full= on its command line stops it on CPUs with one task",
        )
        .seen(fact),
        Ok(Some(_)) => Found::ok("the guest has CPUs without a tick").seen(fact),
        Ok(None) => Found::strange(fact),
        Err(Unknown::Missing) => {
            Found::not_applicable("the guest's kernel cannot stop its tick (CONFIG_NO_HZ_FULL)").seen(fact)
        }
        Err(_) => Found::unread(fact),
    }
}

pub(super) fn isolcpus(view: &View, vm: &VmProcess) -> Found {
    let seen = view.host.fact(files::ISOLATED);
    let says = [
        "the scheduler puts nothing else on the vCPUs' CPUs",
        "the scheduler may put other tasks on vCPUs' CPUs",
    ];
    let mut found =
        Wanted { lists: seen.value.clone(), seen, says, argument: "isolcpus" }.judge(vm);
    // isolcpus= is deprecated (Linux Documentation/admin-guide/kernel-parameters.txt): cpusets take its place.
    if found.fix.is_some() {
        found.fix = Some(Fix::Advice(
            "put the vCPUs' CPUs into an isolated partition: cgroup v2, cpuset.cpus.partition = isolated",
        ));
    }
    found
}

pub(super) fn rcu_nocbs(view: &View, vm: &VmProcess) -> Found {
    let cmdline = view.host.text(files::CMDLINE);
    // nohz_full= implies it.
    let has = |name| cmdline.as_ref().is_ok_and(|line| argument(line, name).is_some());
    let name = if has("rcu_nocbs") || !has("nohz_full") { "rcu_nocbs" } else { "nohz_full" };
    let lists = cmdline.map(|line| match argument(line, name) {
        Some("all") => "0-65535".to_owned(),
        other => other.unwrap_or_default().to_owned(),
    });
    let seen = argument_fact(view.host, name);
    let says = ["RCU's callbacks run elsewhere", "RCU's callbacks interrupt vCPUs"];
    Wanted { lists, seen, says, argument: "rcu_nocbs" }.judge(vm)
}
