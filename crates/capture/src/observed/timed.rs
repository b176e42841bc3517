//! Functions with the time that each took: lines of logs, strace, funclatency.

use std::collections::BTreeMap;

use vmtax_events::observed::{Observed, TimedFunction};

use super::{lines, number};

/// `FUNCTION (tid=1) took 12 ms`; a line of strace with its time (`<0.027>`); bcc's funclatency, with its mean (`avg = 12 nsecs`).
pub(super) fn functions(text: &str) -> Option<Vec<Observed>> {
    let known = |name: &str| TimedFunction::ALL.into_iter().find(|one| one.name() == name);
    let mut most: BTreeMap<&str, (TimedFunction, u64)> = BTreeMap::new();
    let mut keep = |function: TimedFunction, ns: f64| {
        if ns.is_finite() && (0.0..=1e15).contains(&ns) {
            let at = most.entry(function.name()).or_insert((function, 0));
            at.1 = at.1.max(ns as u64);
        }
    };
    let mut traced = None;
    let mut requests: BTreeMap<TimedFunction, Vec<f64>> = BTreeMap::new();
    for line in lines(text) {
        if let Some((_, rest)) = line.split_once("functions for \"") {
            traced = rest.split('"').next().and_then(known);
        } else if let Some((_, rest)) = line.split_once("avg = ") {
            let unit = if line.contains("usecs") {
                1e3
            } else if line.contains("msecs") {
                1e6
            } else {
                1.0
            };
            if let (Some(function), Some(mean)) =
                (traced, rest.split_whitespace().next().and_then(number))
            {
                keep(function, mean * unit);
            }
        } else if let Some((before, after)) = line.split_once(") took ") {
            let name = before.split(" (").next().and_then(|name| name.split_whitespace().last());
            let mut words = after.split_whitespace();
            let time = words.next().and_then(number);
            let unit = match words.next() {
                Some("ms") => 1e6,
                Some("us") => 1e3,
                Some("s") => 1e9,
                _ => continue,
            };
            if let (Some(function), Some(time)) = (name.and_then(known), time) {
                keep(function, time * unit);
            }
        } else if let Some(function) = started(line)
            && let Some(seconds) = line.strip_suffix('>').and_then(|line| line.rsplit_once('<'))
            && let Some(seconds) = number(seconds.1)
        {
            requests.entry(function).or_default().push(seconds * 1e9);
        }
        for (_, rest) in line.match_indices("fsync(").map(|(at, _)| line.split_at(at)) {
            // `fsync(3) = 0 <2.729450>`, in a line of its own or in words about it.
            let call = rest.split_once(") = 0").and_then(|(_, rest)| {
                rest.trim_start().strip_prefix('<')?.split_once('>')?.0.parse::<f64>().ok()
            });
            if let Some(seconds) = call {
                keep(TimedFunction::Fsync, seconds * 1e9);
            }
        }
    }
    // One slow call of hundreds is chance; KVM_CREATE_VM is one of each VM, and the trace may have others of VMs that do not wait.
    for (function, mut times) in requests {
        times.sort_by(f64::total_cmp);
        let at = if function == TimedFunction::CreateVm {
            times.len() - 1
        } else {
            times.len() * 9 / 10
        };
        keep(function, times[at]);
    }
    // Messages of a kernel before and after it.
    let stamp = |line: &str| number(line.split_once('[')?.1.split(']').next()?.trim());
    let at = |mark: &str| {
        lines(text)
            .find(|line| line.contains("kvm_vm_create_worker_thread") && line.ends_with(mark))
            .and_then(stamp)
    };
    if let (Some(start), Some(end)) = (at("START"), at("DONE")) {
        keep(TimedFunction::WorkerThread, (end - start) * 1e9);
    }
    (!most.is_empty())
        .then(|| most.into_values().map(|(function, ns)| Observed::Timed(function, ns)).collect())
}

/// The steps of KVM's selftests, whose names and times its programs print (Linux tools/testing/selftests/kvm/dirty_log_perf_test.c and
/// access_tracking_perf_test.c): `Iteration 1 clear dirty log time: 3.638543593s`, `Mark memory idle   : 23.973131748s`. The step that takes most in all iterations of a run, if it is the host's.
pub(super) fn selftest(text: &str) -> Option<Vec<Observed>> {
    if !text.contains("Testing guest mode: ") {
        return None;
    }
    let mut runs: Vec<BTreeMap<&str, f64>> = Vec::new();
    for line in lines(text) {
        let line = line.trim_start_matches(['>', ' ']);
        // What a change has mended is no cost.
        if ["after", "with patch", "with the patch", "with this"].iter().any(|word| {
            line.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
        }) {
            return None;
        }
        if line.starts_with("Testing guest mode: ") {
            runs.push(BTreeMap::new());
        }
        let Some(steps) = runs.last_mut() else { continue };
        let Some((name, time)) = line.rsplit_once(':') else { continue };
        let Some(seconds) = time.trim().strip_suffix('s').and_then(number) else { continue };
        let name = name.trim().trim_end_matches(" time");
        let of_iteration = name.strip_prefix("Iteration ").and_then(|rest| rest.split_once(' '));
        *steps.entry(of_iteration.map_or(name, |(_, name)| name)).or_default() += seconds;
    }
    let (name, all) = runs.into_iter().flatten().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let known = TimedFunction::ALL.into_iter().find(|one| one.name() == name);
    Some(known.map(|step| Observed::Timed(step, (all * 1e9) as u64)).into_iter().collect())
}

/// The request of a starting VM in a line of strace. A slot that is removed, or whose writes are tracked, has work to do and does not wait alone.
fn started(line: &str) -> Option<TimedFunction> {
    let is_new = || line.contains("flags=0") && !line.contains("memory_size=0,");
    let requests = [TimedFunction::CreateVm, TimedFunction::CreateSlot, TimedFunction::Ioeventfd];
    let is_request = |one: &TimedFunction| line.split([' ', ',']).any(|word| word == one.name());
    requests
        .into_iter()
        .find(is_request)
        .filter(|one| *one != TimedFunction::CreateSlot || is_new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_of_a_selftest_that_takes_most_is_found() {
        let text = "Testing guest mode: PA-bits:ANY, VA-bits:48,  4K pages\nPopulate memory time: 4.5s\n\
                    Iteration 1 clear dirty log time: 1.5s\n> Iteration 2 clear dirty log time: 3.25s\n\
                    Disabling dirty logging time: 3.0s\n";
        let found = |ns| Some(vec![Observed::Timed(TimedFunction::ClearDirtyLog, ns)]);
        assert_eq!(selftest(text), found(4_750_000_000));
        // Two runs are not added.
        assert_eq!(selftest(&format!("{text}{text}")), found(4_750_000_000));
        // The guest's own work is no cost of the host's.
        assert_eq!(selftest(&text.replace("4.5s", "14.5s")), Some(Vec::new()));
        assert_eq!(selftest(&text.replace("Testing", "")), None);
        assert_eq!(selftest(&format!("{text}After the change:\n")), None);
    }
}
