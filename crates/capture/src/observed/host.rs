//! What a host shows of itself: its kernel's time, threads, quotas, NUMA nodes, mitigations.

use std::collections::BTreeMap;

use vmtax_events::is_vcpu_thread;
use vmtax_events::observed::{HostMitigation, KernelThread, Observed, ShortName};

use super::{MOST_COLUMNS, lines, number, part};

/// Rows of mpstat or pidstat on a host that runs guests: the most that the kernel has, by places from the beginning, as posts cut rows.
pub(super) fn kernel(text: &str) -> Option<Vec<Observed>> {
    let mut places: Option<(usize, usize)> = None;
    let mut has_guest = false;
    let mut most = 0.0f64;
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(MOST_COLUMNS).collect();
        let at = |name: &str| words.iter().position(|word| *word == name);
        if let (Some(kernel), Some(guest)) = (at("%sys").or_else(|| at("%system")), at("%guest")) {
            places = Some((kernel, guest));
            continue;
        }
        let Some((kernel, guest)) = places else { continue };
        let value = |at: usize| words.get(at).and_then(|word| part(word)).unwrap_or(0.0);
        most = most.max(value(kernel));
        has_guest |= value(guest) > 0.0;
    }
    has_guest.then(|| vec![Observed::HostKernel(most)])
}

/// `ps -T` or `top -H` with the processor on which each thread ran last (PSR, P): those of a VM's vCPUs, where all are the same.
pub(super) fn processors(text: &str) -> Option<Vec<Observed>> {
    let mut column: Option<usize> = None;
    let mut vms: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(MOST_COLUMNS).collect();
        if words.first() == Some(&"PID") {
            column = words.iter().position(|word| ["PSR", "P"].contains(word));
            continue;
        }
        let Some(column) = column else { continue };
        let name = line.find("CPU ").map(|at| &line[at..]);
        let is_vcpu = name.is_some_and(|name| {
            name.split_whitespace().count() == 2 && name.ends_with("/KVM") && is_vcpu_thread(name)
        });
        if is_vcpu && let Some(Ok(processor)) = words.get(column).map(|word| word.parse()) {
            vms.entry(words[0]).or_default().push(processor);
        }
    }
    let found = vms.into_values().find(|all| all.len() > 1 && all.iter().all(|one| *one == all[0]));
    found.map(|all| vec![Observed::OneProcessor { vcpus: all.len() as u32, processor: all[0] }])
}

/// `iostat -x`: the disk whose requests wait longest among the busy ones. Of several reports the first is of the time since the boot.
pub(super) fn disks(text: &str) -> Option<Vec<Observed>> {
    /// Devices without a medium of their own, or with a slow one by nature.
    const OTHERS: [&str; 8] = ["dm-", "md", "loop", "zram", "ram", "sr", "fd", "nbd"];
    /// Longer waits are none that a tool prints.
    const LONGEST_MS: f64 = 1e7;
    let mut columns: Option<Vec<&str>> = None;
    let mut all: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(MOST_COLUMNS).collect();
        if words.first().is_some_and(|word| word.trim_end_matches(':') == "Device") {
            columns = words.contains(&"%util").then_some(words);
            continue;
        }
        let Some(columns) = columns.as_ref().filter(|columns| columns.len() == words.len()) else {
            continue;
        };
        let of = |name: &str| {
            let at = columns.iter().position(|column| *column == name)?;
            number(words[at])
        };
        // Of newer versions each kind of request has its own.
        let kinds =
            [("r/s", "r_await"), ("w/s", "w_await"), ("d/s", "d_await"), ("f/s", "f_await")];
        let kinds = kinds.iter().filter_map(|(rate, wait)| Some((of(rate)?, of(wait)?)));
        let (requests, waits) =
            kinds.fold((0.0, 0.0), |(all, sum), (rate, wait)| (all + rate, sum + rate * wait));
        let mean = if requests > 0.0 { waits / requests } else { 0.0 };
        let waits = of("await").unwrap_or(mean);
        if let Some(busy) = of("%util")
            && waits <= LONGEST_MS
            && !OTHERS.iter().any(|name| words[0].starts_with(name))
        {
            all.entry(words[0]).or_default().push((busy, waits));
        }
    }
    let disks = all.into_iter().filter_map(|(name, mut reports)| {
        if reports.len() > 2 {
            reports.remove(0);
        }
        let mean =
            |of: fn(&(f64, f64)) -> f64| reports.iter().map(of).sum::<f64>() / reports.len() as f64;
        let (busy, await_ms) = (mean(|one| one.0).min(100.0) / 100.0, mean(|one| one.1));
        Some((ShortName::new(name)?, busy, await_ms))
    });
    let (name, busy, await_ms) =
        disks.max_by(|one, other| (one.1 * one.2).total_cmp(&(other.1 * other.2)))?;
    Some(vec![Observed::Disk { name, busy, await_ms }])
}

/// `cpu.stat` of a cgroup.
pub(super) fn quota(text: &str) -> Option<Vec<Observed>> {
    let value = |name: &str| {
        lines(text).find_map(|line| {
            let (key, value) = line.split_once([' ', '\t', ':', '='])?;
            (key.trim() == name).then_some(())?;
            value.trim().parse::<u64>().ok()
        })
    };
    let (periods, throttled) = (value("nr_periods")?, value("nr_throttled")?);
    (throttled <= periods).then(|| vec![Observed::Throttled { throttled, periods }])
}

/// Threads of the kernel and of vCPUs in the list of top or ps, by their part of a processor.
pub(super) fn threads(text: &str) -> Option<Vec<Observed>> {
    let (mut column, mut last) = (None, 0);
    let mut vcpus: Option<(u32, f64, Option<u32>)> = None;
    let mut most: BTreeMap<&str, (KernelThread, f64)> = BTreeMap::new();
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(MOST_COLUMNS).collect();
        let is_header = words.contains(&"PID") && words.last() == Some(&"COMMAND");
        if is_header {
            column = words.iter().position(|word| *word == "%CPU");
            last = words.len() - 1;
            continue;
        }
        let (Some(column), Some(name)) = (column, words.last()) else { continue };
        let name = name.trim_matches(['[', ']']);
        let thread = KernelThread::ALL.into_iter().find(|thread| {
            let rest = name.strip_prefix(thread.name());
            rest.is_some_and(|rest| {
                rest.is_empty() || rest.starts_with(|c: char| c == '/' || c.is_ascii_digit())
            })
        });
        let share = words.get(column).and_then(|word| number(word));
        let command = words.get(last..).unwrap_or_default().join(" ");
        if let Some(share) = share.filter(|_| is_vcpu_thread(&command)) {
            let (count, most, busiest) = vcpus.unwrap_or_default();
            let number = command.strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM"));
            let number = number.and_then(|number| number.parse().ok());
            let busiest = if share / 100.0 > most { number } else { busiest };
            vcpus = Some((count.saturating_add(1), most.max(share / 100.0), busiest));
        }
        if let (Some(thread), Some(share)) = (thread, share) {
            let known = most.entry(thread.name()).or_insert((thread, 0.0));
            known.1 = known.1.max(share / 100.0);
        }
    }
    column?;
    let vcpus = vcpus.map(|(count, most, busiest)| Observed::Vcpus(count, most, busiest));
    let threads = most.into_values().map(|(thread, share)| Observed::Thread(thread, share));
    Some(threads.chain(vcpus).collect())
}

/// `numastat -p`, for one process (a row `Total`) or for several (a row for each).
pub(super) fn nodes(text: &str) -> Option<Vec<Observed>> {
    const VMMS: [&str; 4] = ["qemu", "kvm", "cloud-hyper", "firecracker"];
    let is_vmm = |line: &str| VMMS.iter().any(|name| line.to_ascii_lowercase().contains(name));
    if !lines(text).any(is_vmm) {
        return None;
    }
    let mut ids: Vec<u32> = Vec::new();
    let (mut sum, mut of_processes) = (None, Vec::new());
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(MOST_COLUMNS).collect();
        if words.contains(&"Node") && words.last() == Some(&"Total") {
            let id = |pair: &[&str]| match pair {
                ["Node", id] => id.parse().ok(),
                _ => None,
            };
            ids = words.windows(2).filter_map(id).collect();
            continue;
        }
        let values = ids.len() + 1;
        if ids.len() < 2 || words.len() <= values {
            continue;
        }
        let (name, columns) = words.split_at(words.len() - values);
        let columns: Vec<f64> = columns.iter().filter_map(|word| number(word)).collect();
        if columns.len() != values {
            continue;
        }
        if name == ["Total"] {
            sum.get_or_insert(columns);
        } else if name.first().is_some_and(|pid| pid.parse::<u32>().is_ok())
            && is_vmm(&name.join(" "))
        {
            of_processes.push(columns);
        }
    }
    let of = |columns: Vec<f64>| {
        let mut on: Vec<(u32, f64)> = ids.iter().copied().zip(columns).collect();
        on.sort_by(|a, b| b.1.total_cmp(&a.1));
        let all: f64 = on.iter().map(|(_, size)| size).sum();
        let [(most, size), (next, _), ..] = on[..] else { return None };
        (all > 0.0).then(|| (most, next, 1.0 - size / all))
    };
    let rows = if of_processes.is_empty() { sum.into_iter().collect() } else { of_processes };
    let (most, next, elsewhere) =
        rows.into_iter().filter_map(of).max_by(|a, b| a.2.total_cmp(&b.2))?;
    Some(vec![Observed::Nodes { most, next, elsewhere }])
}

/// Lines of /sys/devices/system/cpu/vulnerabilities, of `grep` or `lscpu`, and what makes entries and exits dearer.
/// Linux Documentation/admin-guide/hw-vuln/srso.rst and vmscape.rst for the barriers.
const MITIGATIONS: [(&str, &str, HostMitigation); 9] = [
    ("retbleed", "Mitigation: IBRS", HostMitigation::Ibrs),
    ("retbleed", "Mitigation; IBRS", HostMitigation::Ibrs),
    ("meltdown", "PTI", HostMitigation::Pti),
    ("l1tf", "cache flushes", HostMitigation::L1Flush),
    ("mds", "Clear CPU buffers", HostMitigation::ClearBuffers),
    ("spec_rstack_overflow", "Mitigation: IBPB", HostMitigation::ExitBarrier),
    ("spec rstack overflow", "Mitigation; IBPB", HostMitigation::ExitBarrier),
    ("vmscape", "IBPB on VMEXIT", HostMitigation::ExitBarrier),
    ("vmscape", "IBPB before exit to userspace", HostMitigation::UserBarrier),
];

pub(super) fn mitigations(text: &str) -> Option<Vec<Observed>> {
    // `lscpu` or /proc/cpuinfo of a guest: what it does at its own system calls.
    if lines(text)
        .any(|line| line.split_whitespace().any(|word| word.eq_ignore_ascii_case("hypervisor")))
    {
        return None;
    }
    let mut found: Vec<Observed> = Vec::new();
    let mut is_list = false;
    for line in lines(text) {
        let Some((name, state)) =
            line.rsplit_once("vulnerabilities/").map_or(line, |(_, rest)| rest).split_once(':')
        else {
            continue;
        };
        let name = name.trim().trim_start_matches("Vulnerability").trim().to_ascii_lowercase();
        is_list |= state.contains("itigation")
            && MITIGATIONS.iter().any(|(vulnerability, ..)| name == *vulnerability);
        for (vulnerability, words, mitigation) in MITIGATIONS {
            let observed = Observed::Mitigation(mitigation);
            if name == vulnerability && state.contains(words) && !found.contains(&observed) {
                found.push(observed);
            }
        }
    }
    (is_list && !found.is_empty()).then_some(found)
}
