//! How long threads of vCPUs were ready and waited for a processor, or for locks.

use vmtax_events::is_vcpu_thread;
use vmtax_events::observed::Observed;

use super::{MOST_COLUMNS, lines, number};

/// What a wake-up takes by itself at most, ms: an interrupt to another processor, the end of its idle state, a switch.
const WAKE_UP_MS: f64 = 0.02;

/// Time in which vCPUs ran, and in which they were ready and waited, in one unit.
#[derive(Default)]
struct VcpuDelays {
    ran: f64,
    waited: f64,
}

impl VcpuDelays {
    fn add(&mut self, ran: f64, waited: f64) {
        self.ran += ran;
        self.waited += waited;
    }

    fn observed(&self) -> Option<Vec<Observed>> {
        let all = self.ran + self.waited;
        (all > 0.0).then(|| vec![Observed::Delayed(self.waited / all)])
    }
}

/// A number with its unit of time or none.
fn time(field: &str) -> Option<f64> {
    let field = field.trim().trim_start_matches("avg:").trim_start_matches("max:");
    number(field.trim_end_matches("ms").trim())
}

/// `perf sched latency`: the mean delay times its count, beside the time in which they ran.
pub(super) fn latency(text: &str) -> Option<Vec<Observed>> {
    if !lines(text).any(|line| line.contains("Runtime ms") && line.contains("delay ms")) {
        return None;
    }
    let mut delays = VcpuDelays::default();
    let (mut count, mut most_ms) = (0.0, 0.0f64);
    for line in lines(text) {
        let mut fields = line.split('|');
        let is_vcpu = fields.next().is_some_and(is_vcpu_thread);
        if let (true, [Some(runtime), Some(switches), Some(mean)]) =
            (is_vcpu, [(); 3].map(|()| time(fields.next()?)))
        {
            delays.add(runtime, switches * mean);
            count += switches;
            most_ms = most_ms.max(fields.next().and_then(time).unwrap_or(0.0));
        }
    }
    let mut found = delays.observed()?;
    // Many short ones are the price of many wake-ups, and nobody's place.
    if delays.waited < count * WAKE_UP_MS {
        found.clear();
    }
    if most_ms > 0.0 && count >= 1.0 {
        let ns = |ms: f64| (ms * 1e6) as u64;
        let mean_ns = ns(delays.waited / count);
        found.push(Observed::LateRuns { count: count as u64, mean_ns, most_ns: ns(most_ms) });
    }
    Some(found)
}

/// `perf sched timehist`: after the task its time asleep, from its wake-up to its run, and of its run.
pub(super) fn history(text: &str) -> Option<Vec<Observed>> {
    if !lines(text).any(|line| line.contains("sch delay") && line.contains("run time")) {
        return None;
    }
    let mut delays = VcpuDelays::default();
    for line in lines(text) {
        // 79371.874569 [0011]  CPU 0/KVM[31949/31940]  0.014  0.000  1.148
        let Some((_, task)) = line.split_once("] ") else { continue };
        let Some((task, times)) = task.split_once("] ") else { continue };
        let mut times = times.split_whitespace().map(number);
        if let (true, [Some(_), Some(delay), Some(ran)]) =
            (is_vcpu_thread(task.trim()), [(); 3].map(|()| times.next().flatten()))
        {
            delays.add(ran, delay);
        }
    }
    delays.observed()
}

/// `/proc/PID/sched` of threads (Linux kernel/sched/debug.c, `proc_sched_show_task`): `NAME (TID, #threads: N)`, then times in ms.
pub(super) fn sched(text: &str) -> Option<Vec<Observed>> {
    let mut delays = VcpuDelays::default();
    let mut is_vcpu = false;
    for line in lines(text) {
        if let Some((name, _)) = line.split_once(", #threads:") {
            is_vcpu = is_vcpu_thread(name);
        } else if let (true, Some((name, value))) = (is_vcpu, line.split_once(':')) {
            let value = number(value.trim()).unwrap_or(0.0);
            match name.trim().trim_start_matches("se.").trim_start_matches("statistics.") {
                "sum_exec_runtime" => delays.add(value, 0.0),
                "wait_sum" => delays.add(0.0, value),
                _ => {}
            }
        }
    }
    delays.observed()
}

/// `virsh domstats --vcpu` (libvirt src/qemu/qemu_driver.c): `vcpu.N.delay` is the run delay of the thread's schedstat, ns as `vcpu.N.time`.
pub(super) fn domstats(text: &str) -> Option<Vec<Observed>> {
    let sum = |what: &str| -> Option<f64> {
        let value = |line: &str| {
            let (name, value) = line.strip_prefix("vcpu.")?.split_once('=')?;
            let (vcpu, of) = name.split_once('.')?;
            (vcpu.parse::<u32>().is_ok() && of == what).then(|| number(value)).flatten()
        };
        let mut values = lines(text).filter_map(value).peekable();
        values.peek().is_some().then(|| values.sum())
    };
    VcpuDelays { ran: sum("time")?, waited: sum("delay")? }.observed()
}

/// `pidstat -t`: `%wait` beside `%CPU` of the threads, by their places from the beginning, where both lines have the same times.
pub(super) fn pidstat(text: &str) -> Option<Vec<Observed>> {
    let mut header: Vec<&str> = Vec::new();
    let mut delays = VcpuDelays::default();
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(MOST_COLUMNS).collect();
        if words.contains(&"%wait") && words.contains(&"TID") {
            header = words;
            continue;
        }
        let at = |name: &str| header.iter().position(|one| *one == name);
        let (Some(wait), Some(cpu), Some(name)) = (at("%wait"), at("%CPU"), at("Command")) else {
            continue;
        };
        let is_vcpu = words
            .get(name..)
            .is_some_and(|name| is_vcpu_thread(name.join(" ").trim_start_matches(['|', '_'])));
        let value = |at: usize| words.get(at).and_then(|word| number(word));
        if let (true, Some(wait), Some(ran)) = (is_vcpu, value(wait), value(cpu)) {
            delays.add(ran, wait);
        }
    }
    delays.observed()
}

/// `perf lock report -t` and `perf lock contention -t`: threads of vCPUs that waited for locks.
pub(super) fn locks(text: &str) -> Option<Vec<Observed>> {
    let header =
        lines(text).find(|line| line.contains("contended") && line.contains("total wait"))?;
    // A report has what was acquired before what was contended, and the mean before the sum.
    let place = usize::from(header.contains("acquired"));
    let (mut count, mut most_ns) = (0u64, 0u64);
    for line in lines(text) {
        let Some(at) = line.find("CPU ").filter(|at| is_vcpu_thread(&line[*at..])) else {
            continue;
        };
        let (before, after) = line.split_at(at);
        let words: Vec<&str> =
            before.split_whitespace().chain(after.split_whitespace().skip(2)).collect();
        let parse = |word: &&str| word.parse::<u64>();
        let counts = words.iter().skip_while(|word| parse(word).is_err());
        let contended = counts.map_while(|word| parse(word).ok()).nth(place);
        let total = words.windows(2).filter_map(time_ns).nth(place);
        if let (Some(contended), Some(total)) = (contended, total) {
            count = count.saturating_add(contended);
            most_ns = most_ns.max(total as u64);
        }
    }
    (count > 0).then(|| vec![Observed::LockWaits { count, most_ns }])
}

/// A time as perf writes it: a number, and its unit.
fn time_ns(pair: &[&str]) -> Option<f64> {
    let unit = match *pair.get(1)? {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(number(pair.first()?)? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_vcpus_waited_is_in_texts_of_several_tools() {
        let latency = |delay: &str| {
            format!(
                "  Task                  |   Runtime ms  | Switches | Average delay ms | Maximum delay ms |\n  CPU 0/KVM:12345       |   6000.000 ms |     1000 | avg:    {delay} ms | max:   30.0 ms |\n  vhost-1:7 |   600.0 ms |  5 | avg: 900.0 ms | max: 1.0 ms |\n"
            )
        };
        let observed = |text: &str| super::super::read(text).map(|(_, all)| all);
        for (text, share) in [
            (latency("4.000").as_str(), Some(0.4)),
            (latency("nan").as_str(), None),
            ("CPU 0/KVM:1 | 6.0 ms | 1 | avg: 4.0 ms |\n", None),
            (
                "           time    cpu  task name                       wait time  sch delay   run time\n\
                                        [tid/pid]                          (msec)     (msec)     (msec)\n\
                 --------------- ------  ------------------------------  ---------  ---------  ---------\n\
                   79371.874569 [0011]  CPU 0/KVM[31949/31940]              5.000      1.000      3.000\n\
                   79371.874591 [0010]  <idle>                              0.000      0.000      0.008\n",
                Some(0.25),
            ),
            (
                "CPU 0/KVM (2133, #threads: 7)\n-----\nse.exec_start : 9.5\nse.sum_exec_runtime                          :          7000.0\nse.statistics.wait_sum                       :          3000.0\n",
                Some(0.3),
            ),
            // Linux 5.16 and later.
            (
                "CPU 0/KVM (2133, #threads: 7)\n-----\nse.sum_exec_runtime : 7000.0\nwait_sum : 3000.0\nqemu-kvm (2130, #threads: 7)\nse.sum_exec_runtime : 1.0\nwait_sum : 9000.0\n",
                Some(0.3),
            ),
            (
                "Domain: 'vm'\n  vcpu.current=2\n  vcpu.0.state=1\n  vcpu.0.time=6000000000\n  vcpu.0.delay=2000000000\n  vcpu.1.time=2000000000\n  vcpu.1.delay=0\n",
                Some(0.2),
            ),
            (
                "10:00:01      UID      TGID       TID    %usr %system  %guest   %wait    %CPU   CPU  Command\n\
                 10:00:02      107      2130         -    1.00    2.00   60.00    0.00   63.00     1  qemu-kvm\n\
                 10:00:02      107         -      2133    0.00    2.00   58.00   40.00   60.00     1  |__CPU 0/KVM\n",
                Some(0.4),
            ),
        ] {
            let first = observed(text).and_then(|all| all.first().copied());
            assert_eq!(first, share.map(Observed::Delayed), "{text}");
        }
    }

    #[test]
    fn what_vcpus_waited_for_locks() {
        let observed = |text: &str| super::super::read(text).map(|(_, all)| all);
        for (text, waits) in [
            (
                "                Name   acquired  contended     avg wait   total wait   max wait     min wait\n\n           CPU 3/KVM     154017     154000     62.19 us      9.58 s   101.01 us      1.49 us\n     qemu-system-x86        665        665     65.92 us     43.84 ms  100.67 us      1.55 us\n",
                Observed::LockWaits { count: 154_000, most_ns: 9_580_000_000 },
            ),
            (
                " contended   total wait     max wait     avg wait          pid   comm\n\n         5     36.14 ms     15.59 ms      7.23 ms      1234   CPU 0/KVM\n         3      1.00 ms     15.59 us      7.23 us      1235   CPU 1/KVM\n",
                Observed::LockWaits { count: 8, most_ns: 36_140_000 },
            ),
        ] {
            assert_eq!(observed(text), Some(vec![waits]), "{text}");
        }
    }
}
