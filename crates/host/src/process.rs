//! Finds the VMs that run: processes that hold a VM of KVM open.

mod name;

use std::collections::BTreeMap;

use vmtax_events::setting::{COUNTERS, Fact, Known, MemoryBacking, Thread, Unknown, VmProcess};

use crate::root::Root;
use crate::smaps::{Smaps, numa_line};
pub(crate) use name::name;

/// Most VMs examined; a hostile root may have any number.
const VMS: usize = 4096;
/// Most threads and open files examined of each.
const THREADS: usize = 16_384;
const DESCRIPTORS: usize = 65_536;
const ARGUMENTS: u64 = 2 << 20;
/// A status, a name, a counter.
const SMALL: u64 = 64 << 10;
/// `smaps` has 25 lines for each mapping, and a process up to 65,530 mappings.
const MAPS: u64 = 256 << 20;
/// Where KVM's counters are.
const KVM: &str = "/sys/kernel/debug/kvm";

#[derive(Debug, Default)]
pub(crate) struct Processes {
    pub(crate) vms: Vec<VmProcess>,
    pub(crate) listed: bool,
    pub(crate) hidden: u64,
    pub(crate) more: bool,
}

/// Open files of a process.
#[derive(Debug, Default)]
struct OpenFiles {
    vms: u32,
    vcpus: u32,
    vhost_net: bool,
    guest_memfd: bool,
}

pub(crate) fn vms(root: &Root) -> Processes {
    let mut processes = Processes::default();
    let Ok(names) = root.names("/proc") else { return processes };
    processes.listed = true;
    let mut pids: Vec<u32> = names.iter().filter_map(|name| number(name)).collect();
    pids.sort_unstable();
    // One listing for all VMs: there is a folder in it for each of them.
    let counters = root.names(KVM);
    for pid in pids {
        match open(root, pid) {
            Err(Unknown::Denied) => processes.hidden += 1,
            Ok(found) if found.vms > 0 && processes.vms.len() == VMS => processes.more = true,
            Ok(found) if found.vms > 0 => {
                processes.vms.push(describe(root, pid, &found, &counters))
            }
            // It is gone, or no process.
            _ => {}
        }
    }
    processes
}

/// Processes with an open VM, and its name only: cheap enough to call during a recording.
pub(crate) fn running(root: &Root) -> Vec<(u32, String)> {
    let names = root.names("/proc").unwrap_or_default();
    let pids = names.iter().filter_map(|name| number(name));
    pids.filter(|&pid| open(root, pid).is_ok_and(|found| found.vms > 0))
        .map(|pid| (pid, vm_name(root, pid)))
        .collect()
}

/// The VM's name by the command line, else the name of the process; empty if it has ended.
pub(crate) fn vm_name(root: &Root, pid: u32) -> String {
    let arguments = arguments(root, pid);
    named(root, pid, &arguments)
}

/// Further counters of KVM: halts and page tables.
const MORE_COUNTERS: [&str; 5] =
    ["exits", "halt_attempted_poll", "halt_successful_poll", "halt_wakeup", "remote_tlb_flush"];

/// KVM's counters of the VMs of a process, added up; none where this user may not see them.
pub(crate) fn counters(root: &Root, pid: u32) -> Vec<(&'static str, u64)> {
    let kvm = root.names(KVM);
    let all = COUNTERS.iter().chain(&MORE_COUNTERS);
    all.filter_map(|name| Some((*name, count(root, pid, &kvm, name).value.ok()?))).collect()
}

/// A name that is a number and nothing else: no `+1`, no `01`.
fn number(name: &str) -> Option<u32> {
    name.parse().ok().filter(|n: &u32| n.to_string() == name)
}

fn open(root: &Root, pid: u32) -> Known<OpenFiles> {
    let folder = format!("/proc/{pid}/fd");
    let mut open = OpenFiles::default();
    for name in root.names(&folder)?.iter().take(DESCRIPTORS) {
        let Ok(target) = root.link(&format!("{folder}/{name}")) else { continue };
        if target == "/dev/vhost-net" {
            open.vhost_net = true;
        }
        // `anon_inode:[kvm-gmem]` (Linux 6.12), `/[kvm-gmem] (deleted)` (7.3).
        open.guest_memfd |= target.contains("[kvm-gmem]");
        let Some(kind) = target.strip_prefix("anon_inode:") else { continue };
        let kind = kind.trim_start_matches('[').trim_end_matches(']');
        if kind == "kvm-vm" {
            open.vms += 1;
        } else if kind.starts_with("kvm-vcpu") {
            open.vcpus += 1;
        }
    }
    Ok(open)
}

fn describe(root: &Root, pid: u32, open: &OpenFiles, kvm: &Known<Vec<String>>) -> VmProcess {
    let arguments = arguments(root, pid);
    VmProcess {
        pid,
        name: named(root, pid, &arguments),
        vcpus: open.vcpus,
        vhost_net: open.vhost_net,
        guest_memfd: open.guest_memfd,
        arguments,
        threads: threads(root, pid),
        backing: backing(root, pid),
        nodes: nodes(root, pid),
        counters: COUNTERS
            .iter()
            .map(|counter| ((*counter).to_owned(), count(root, pid, kvm, counter)))
            .collect(),
    }
}

fn named(root: &Root, pid: u32, arguments: &Fact<Vec<String>>) -> String {
    let comm = || root.bytes(&format!("/proc/{pid}/comm"), SMALL);
    arguments.value.as_ref().ok().and_then(|words| name(words)).unwrap_or_else(|| {
        comm()
            .map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_owned())
            .unwrap_or_default()
    })
}

fn arguments(root: &Root, pid: u32) -> Fact<Vec<String>> {
    let path = format!("/proc/{pid}/cmdline");
    let words = root.bytes(&path, ARGUMENTS).map(|bytes| {
        let words = bytes.split(|&b| b == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        let mut words: Vec<String> = words.collect();
        if words.last().is_some_and(String::is_empty) {
            words.pop();
        }
        words
    });
    Fact::new(path, words)
}

fn threads(root: &Root, pid: u32) -> Fact<Vec<Thread>> {
    let folder = format!("/proc/{pid}/task");
    let threads = root.names(&folder).map(|names| {
        let mut tids: Vec<u32> = names.iter().filter_map(|name| number(name)).collect();
        tids.sort_unstable();
        tids.truncate(THREADS);
        tids.into_iter().filter_map(|tid| thread(root, &folder, tid)).collect()
    });
    Fact::new(format!("{folder}/*/status"), threads)
}

/// `None` if the thread has ended, or its state is malformed.
fn thread(root: &Root, folder: &str, tid: u32) -> Option<Thread> {
    let status = root.bytes(&format!("{folder}/{tid}/status"), SMALL).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    Some(Thread {
        tid,
        name: line("Name:")?.trim().to_owned(),
        allowed: line("Cpus_allowed_list:")?.trim().to_owned(),
    })
}

fn backing(root: &Root, pid: u32) -> Fact<MemoryBacking> {
    let path = format!("/proc/{pid}/smaps");
    let mut smaps = Smaps::default();
    let read = root.lines(&path, MAPS, |line| smaps.line(line));
    let backing = read.and_then(|()| smaps.finish().ok_or(Unknown::NotText));
    Fact::new(path, backing)
}

fn nodes(root: &Root, pid: u32) -> Fact<BTreeMap<u32, u64>> {
    let path = format!("/proc/{pid}/numa_maps");
    let (mut nodes, mut counted) = (BTreeMap::new(), false);
    let read = root.lines(&path, MAPS, |line| counted |= numa_line(line, &mut nodes));
    let nodes = read.and(if counted { Ok(nodes) } else { Err(Unknown::NotText) });
    Fact::new(path, nodes)
}

/// A counter of all VMs of a process: there is a folder `PID-DESCRIPTOR` for each.
fn count(root: &Root, pid: u32, kvm: &Known<Vec<String>>, counter: &str) -> Fact<u64> {
    let pattern = format!("{KVM}/{pid}-*/{counter}");
    let names = match kvm {
        Ok(names) => names,
        Err(why) => return Fact::new(pattern, Err(why.clone())),
    };
    let of_process =
        |name: &&String| name.split_once('-').is_some_and(|(id, _)| number(id) == Some(pid));
    let mut paths: Vec<String> =
        names.iter().filter(of_process).map(|name| format!("{KVM}/{name}/{counter}")).collect();
    let mut sum = Err(Unknown::Missing);
    for path in &paths {
        let text = root.text(path, SMALL);
        match text.and_then(|text| text.trim().parse::<u64>().map_err(|_| Unknown::NotText)) {
            Ok(value) => sum = Ok(sum.unwrap_or(0u64).saturating_add(value)),
            Err(why) => return Fact::new(path.clone(), Err(why)),
        }
    }
    let path = if paths.len() == 1 { paths.remove(0) } else { pattern };
    Fact::new(path, sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_of_other_vmms_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let lines = [
            (7, "/usr/bin/qemu-system-x86_64\0-name\0guest=web1,debug-threads=on\0-S\0"),
            (
                8,
                "cloud-hypervisor\0--api-socket\0fd=22\0--event-monitor\0path=/run/libvirt/ch/db-event-monitor-fifo\0",
            ),
            (9, "cloud-hypervisor\0--kernel\0vmlinux\0"),
        ];
        for (pid, line) in lines {
            let path = folder.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(path.join("fd")).unwrap();
            std::os::unix::fs::symlink("anon_inode:kvm-vm", path.join("fd/5")).unwrap();
            std::fs::write(path.join("cmdline"), line).unwrap();
            std::fs::write(path.join("comm"), "vmm\n").unwrap();
        }
        let named = |(pid, name): (u32, &str)| (pid, name.to_owned());
        let root = Root::open(folder.path()).unwrap();
        let expected = [(7, "web1"), (8, "db"), (9, "vmm")].map(named);
        let mut found = running(&root);
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn counters_of_all_vms_of_a_process_are_added_up() {
        let folder = tempfile::tempdir().unwrap();
        for (vm, pages) in [("7-12", "3\n"), ("7-15", "4"), ("70-12", "100"), ("7", "1000")] {
            let path = folder.path().join("sys/kernel/debug/kvm").join(vm);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("pages_4k"), pages).unwrap();
        }
        let damaged = folder.path().join("sys/kernel/debug/kvm/7-12/exits");
        std::fs::write(damaged, "many").unwrap();
        let root = Root::open(folder.path()).unwrap();
        assert_eq!(counters(&root, 7), [("pages_4k", 7)]);
        assert_eq!(counters(&root, 8), []);
    }

    #[test]
    fn process_ids_are_numbers_and_nothing_else() {
        let names = ["1", "0", "+1", "01", "self", "4294967296", "-1", ""];
        assert_eq!(names.map(number), [Some(1), Some(0), None, None, None, None, None, None]);
    }
}
