//! Texts of ordinary tools -> [`Observed`]: top, mpstat, sar, iostat and vmstat, `cpu.stat` of a cgroup, `/proc/interrupts`, the name of a clock, and
//! lines of logs. What vCPUs waited for processors and locks is `delays`'s.
//!
//! Each has a reader that takes what it knows and leaves the rest: a post has several of them, and words between. Left out on purpose: what
//! such a text does not prove. A tool that shows nothing is named as before, and refused.

mod boot;
mod delays;
mod log;
mod named;
mod stuck;

use std::collections::BTreeMap;

use vmtax_events::is_vcpu_thread;
use vmtax_events::observed::{
    DeviceClock, HostMitigation, KernelThread, LogMessage, Observed, TimedFunction,
};

/// Lines that are read, and bytes of each.
const MOST_LINES: usize = 100_000;
const LONGEST: usize = 4096;
/// Columns of a table.
const MOST_COLUMNS: usize = 512;

/// What a tool's text shows; `None` if it is no such text.
type ObservedReader = fn(&str) -> Option<Vec<Observed>>;

/// What a text shows, and the tool that it is of; `None` if no tool is known by it.
pub fn read(text: &str) -> Option<(&'static str, Vec<Observed>)> {
    let readers: [(&str, ObservedReader); 27] = [
        ("top", top),
        ("table of processor times", tables),
        ("cpu.stat", quota),
        ("/proc/interrupts", interrupts),
        ("clock", clock),
        ("threads", threads),
        ("log", log::messages),
        ("/proc/stat", proc_stat),
        ("times of functions", timed),
        ("vulnerabilities", mitigations),
        ("interrupt lines", device_lines),
        ("numastat", nodes),
        ("perf sched latency", delays::latency),
        ("perf sched timehist", delays::history),
        ("/proc/PID/sched", delays::sched),
        ("virsh domstats", delays::domstats),
        ("pidstat", delays::pidstat),
        ("perf lock", delays::locks),
        ("mpstat of a host", host_kernel),
        ("ethtool", offloads),
        ("mount", log::mounts),
        ("Get-NetAdapterRsc", log::coalescing),
        ("log of a boot", log::boot),
        ("log of a boot", boot::gaps),
        ("stack of a log", stuck::functions),
        ("counter of stolen time", falling_steal),
        ("words about steal", steal_in_words),
    ];
    let mut all = Vec::new();
    let mut tool = None;
    for (name, reader) in readers {
        if let Some(found) = reader(text) {
            tool.get_or_insert(name);
            all.extend(found);
        }
    }
    // Where vCPUs' threads are shown, the text is of their host: steal is what it lost itself.
    all.sort_by_key(|one| !matches!(one, Observed::Vcpus(..)));
    // A counter that falls shows no share either.
    if all.contains(&Observed::StealFalls) {
        all.retain(|one| !matches!(one, Observed::Steal(_)));
    }
    Some((tool?, all))
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().take(MOST_LINES).filter(|line| line.len() <= LONGEST).map(str::trim)
}

/// Larger numbers are none that a tool prints, and their sums would have no end.
const LARGEST: f64 = 1e15;

/// A number with a point or a comma, and a sign of per cent or none.
fn number(word: &str) -> Option<f64> {
    let word = word.trim_end_matches('%').replace(',', ".");
    word.parse::<f64>().ok().filter(|value| (0.0..LARGEST).contains(value))
}

/// A percentage as a part.
fn part(word: &str) -> Option<f64> {
    number(word).filter(|value| *value <= 100.0).map(|value| value / 100.0)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// `%Cpu(s): 12.0 us, ..., 40.2 st`, of older ones `Cpu(s): 12.0%us, ..., 40.2%st`.
fn top(text: &str) -> Option<Vec<Observed>> {
    let of_line = |line: &str| {
        let (head, rest) = line.split_once(':')?;
        head.trim_start_matches('%').to_ascii_lowercase().starts_with("cpu").then_some(())?;
        let stolen = rest.split(", ").map(str::trim).find(|field| field.ends_with("st"))?;
        part(stolen.trim_end_matches("st").trim().trim_start_matches('+'))
    };
    let steal: Vec<f64> = lines(text).filter_map(of_line).collect();
    Some(vec![Observed::Steal(mean(&steal)?)])
}

/// What a text names in words that is a known cost: the last resort, where nothing else is read.
pub fn named_costs(text: &str) -> Vec<Observed> {
    named::costs(text)
}

/// Differences of a counter of stolen time by second, most of which are negative, or two lines of /proc/stat of which the second has less of it. The words
/// before the figures say that they are of steal.
fn falling_steal(text: &str) -> Option<Vec<Observed>> {
    const FALLS: usize = 3;
    const STEAL: usize = 8;
    let mut is_of_steal = false;
    let (mut falls, mut others) = (0usize, 0usize);
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    let mut decreases = false;
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(16).collect();
        match words.as_slice() {
            [one] if one.parse::<i64>().is_ok() => {
                if is_of_steal {
                    falls += usize::from(one.starts_with('-'));
                    others += usize::from(!one.starts_with('-'));
                }
            }
            [name, ..] if name.starts_with("cpu") && words.len() > STEAL => {
                if let Ok(steal) = words[STEAL].parse::<u64>() {
                    decreases |= last.insert(name, steal).is_some_and(|before| steal < before);
                }
            }
            [] => {}
            _ if line.starts_with("```") || line == "..." || line.contains("test $num") => {}
            _ => {
                is_of_steal = line.to_ascii_lowercase().contains("steal")
                    || is_of_steal && line.starts_with('#')
            }
        }
    }
    (falls >= FALLS && falls > others || decreases).then(|| vec![Observed::StealFalls])
}

/// `top showed 95% steal`, `steal time: 40 %`: of a sentence that supposes nothing.
fn steal_in_words(text: &str) -> Option<Vec<Observed>> {
    /// Words by which it is advice or a bound.
    const SUPPOSING: [&str; 11] = [
        "if", "when", "should", "would", "could", "may", "might", "above", "over", "exceeds",
        "than",
    ];
    let clean = |word: &str| {
        word.trim_matches(|c: char| !c.is_alphanumeric() && c != '%').to_ascii_lowercase()
    };
    let mut found = Vec::new();
    for line in lines(text) {
        for sentence in line.split(". ") {
            let mut words: Vec<String> = Vec::new();
            for word in sentence.split_whitespace().take(64).map(clean) {
                match words.last_mut().filter(|_| word == "%") {
                    Some(number) => number.push('%'),
                    None if word.is_empty() => {}
                    None => words.push(word),
                }
            }
            if words.iter().any(|word| SUPPOSING.contains(&word.as_str())) {
                continue;
            }
            for (at, word) in words.iter().enumerate() {
                let Some(share) = word.strip_suffix('%').and_then(part) else { continue };
                let is = |word: Option<&String>| {
                    word.is_some_and(|word| ["steal", "stolen", "st"].contains(&word.as_str()))
                };
                let before = |n: usize| at.checked_sub(n).and_then(|at| words.get(at));
                let of = |word: Option<&String>| {
                    word.is_some_and(|word| ["time", "of", "is", "at"].contains(&word.as_str()))
                };
                if is(words.get(at + 1))
                    || is(before(1)) && before(2).is_none_or(|word| word == "cpu")
                    || of(before(1)) && is(before(2))
                    || of(before(1)) && of(before(2)) && is(before(3))
                {
                    found.push(share);
                }
            }
        }
    }
    Some(vec![Observed::Steal(mean(&found)?)])
}

/// Columns of mpstat, sar and iostat (`%steal`), and of vmstat (`si`, `so`, `st`), by their places from the end: the times before are of
/// several words.
fn tables(text: &str) -> Option<Vec<Observed>> {
    let mut header: Option<Vec<&str>> = None;
    let mut steal = Vec::new();
    let (mut swap_in, mut swap_out) = (Vec::new(), Vec::new());
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(MOST_COLUMNS).collect();
        if words.contains(&"%steal") || words.contains(&"si") && words.contains(&"so") {
            // iostat puts a name before its columns.
            header = Some(words.into_iter().filter(|word| *word != "avg-cpu:").collect());
            continue;
        }
        let Some(names) = &header else { continue };
        let at = |name: &str| {
            let back = names.len() - names.iter().position(|one| *one == name)?;
            let place = words.len().checked_sub(back)?;
            words.get(place).copied()
        };
        let is_row = words.last().is_some_and(|word| number(word).is_some())
            && words.len() <= names.len() + 1
            && words.len() + 1 >= names.len();
        if !is_row {
            header = header.filter(|_| !words.is_empty() && words.len() < 3);
            continue;
        }
        // One line for each processor, and one for all: that alone.
        let of_one = names.contains(&"CPU") && at("CPU").is_some_and(|cpu| cpu != "all");
        if !of_one {
            steal.extend(at("%steal").or_else(|| at("st")).and_then(part));
            swap_in.extend(at("si").and_then(number));
            swap_out.extend(at("so").and_then(number));
        }
    }
    // vmstat's first line is of the time since the boot.
    for all in [&mut swap_in, &mut swap_out] {
        if all.len() > 1 {
            all.remove(0);
        }
    }
    let mut found = Vec::new();
    found.extend(mean(&steal).map(Observed::Steal));
    if let (Some(back), Some(out)) = (mean(&swap_in), mean(&swap_out))
        && back + out > 0.0
    {
        found.push(Observed::Swapping { out, back });
    }
    (!found.is_empty()).then_some(found)
}

/// Rows of mpstat or pidstat on a host that runs guests: the most that the kernel has, by places from the beginning, as posts cut rows.
fn host_kernel(text: &str) -> Option<Vec<Observed>> {
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

/// `cpu.stat` of a cgroup.
fn quota(text: &str) -> Option<Vec<Observed>> {
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

/// `/proc/interrupts`: the lines of the PIT and the RTC, if they have most interrupts.
fn interrupts(text: &str) -> Option<Vec<Observed>> {
    let mut is_table = false;
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for line in lines(text) {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        if first == "CPU0" {
            is_table = true;
        }
        let Some(name) = first.strip_suffix(':').filter(|_| is_table) else { continue };
        let counts = words.take(MOST_COLUMNS).map_while(|word| word.parse::<u64>().ok());
        let sum = counts.fold(0u64, u64::saturating_add);
        let known = sums.entry(name).or_default();
        *known = sum.max(*known);
    }
    // A part of the table alone has neither.
    let is_whole = sums.contains_key("LOC") && sums.contains_key("RES");
    let all = sums.values().fold(0u64, |sum, count| sum.saturating_add(*count));
    if !is_whole || all == 0 {
        return None;
    }
    let line = |name: &str, rtc: bool| {
        let count = sums.get(name).copied().filter(|count| *count > all / 2)?;
        Some(Observed::Line { rtc, count, all })
    };
    Some(line("0", false).into_iter().chain(line("8", true)).collect())
}

/// Linux arch/x86/kvm/x86.c, `kvm_arch_vcpu_create`: the kernel that says it is a host's.
const HOSTS_TSC: &str = "SMP vm created on host with unstable TSC";

/// `cat .../current_clocksource`, the file by `grep`, or a kernel that says to which clock it switched last. A host's clock is not its guests'.
fn clock(text: &str) -> Option<Vec<Observed>> {
    if text.contains(HOSTS_TSC) {
        return None;
    }
    let mut last: Option<&str> = None;
    let mut is_asked = false;
    for line in lines(text) {
        if let Some((_, name)) = line.split_once("Switched to clocksource ") {
            last = name.split_whitespace().next();
        } else if let Some((_, rest)) = line.split_once("current_clocksource") {
            let value = rest.trim_start_matches(['\'', '"', ':', '=']).trim();
            match value.split_whitespace().next() {
                Some(name) if is_clock(name) => last = Some(name),
                _ => is_asked = true,
            }
        } else if is_asked && !line.is_empty() {
            let name = line.trim_start_matches("> ");
            if is_clock(name) {
                last = Some(name);
            }
            is_asked = false;
        }
    }
    let clock = DeviceClock::from_name(last?);
    Some(clock.map(Observed::Clock).into_iter().collect())
}

fn is_clock(word: &str) -> bool {
    ["tsc", "kvm-clock", "hpet", "acpi_pm", "jiffies", "refined-jiffies", "xen"].contains(&word)
        || word.starts_with("hyperv_clocksource")
}

/// Threads of the kernel and of vCPUs in the list of top or ps, by their part of a processor.
fn threads(text: &str) -> Option<Vec<Observed>> {
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
fn nodes(text: &str) -> Option<Vec<Observed>> {
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

/// `ethtool -k` of a tap, with or without its heading.
fn offloads(text: &str) -> Option<Vec<Observed>> {
    const TAPS: [&str; 4] = ["tap", "vnet", "macvtap", "tun"];
    let is_tap = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        TAPS.iter().any(|name| word.starts_with(name))
    };
    if !lines(text).any(|line| line.split_whitespace().any(is_tap)) {
        return None;
    }
    let is_off = |feature: &str| {
        let state = |line: &str| {
            line.split_once(':').map(|(name, state)| (name == feature, state.trim() == "off"))
        };
        lines(text).filter_map(state).any(|(is_it, is_off)| is_it && is_off)
    };
    lines(text).any(|line| line.starts_with("tcp-segmentation-offload:")).then(|| {
        let are_off = is_off("tcp-segmentation-offload") && is_off("tx-checksumming");
        are_off.then_some(Observed::Message(LogMessage::TapOffloads)).into_iter().collect()
    })
}

/// Shares of `kvm:kvm_set_irq` by its text (`45.54%  gsi 11 level 1 source 0`): a pin of the I/O APIC that is raised and lowered alike is a device's
/// level-triggered line. Linux arch/x86/kvm/ioapic.h has 24 pins, of which the PIT (0, 2) and the RTC (8) are edges; an MSI's number is above them.
fn device_lines(text: &str) -> Option<Vec<Observed>> {
    const PINS: u32 = 24;
    const EDGES: [u32; 3] = [0, 2, 8];
    text.contains("kvm_set_irq'").then_some(())?;
    let mut pins: BTreeMap<u32, [f64; 2]> = BTreeMap::new();
    for line in lines(text) {
        let Some((share, rest)) = line.split_once("%  gsi ") else { continue };
        let mut words = rest.split_whitespace();
        let gsi = words.next().and_then(|word| word.parse().ok());
        let level = words.nth(1).and_then(|word| word.parse::<usize>().ok());
        if let (Some(gsi), Some(level @ (0 | 1)), Some(share)) = (gsi, level, part(share)) {
            pins.entry(gsi).or_default()[level] += share;
        }
    }
    let is_level = |[low, high]: [f64; 2]| low.min(high) * 1.5 >= low.max(high);
    let of_devices = pins
        .iter()
        .filter(|(gsi, _)| **gsi < PINS && !EDGES.contains(gsi))
        .filter(|(_, s)| is_level(**s));
    let most = of_devices.max_by(|a, b| (a.1[0] + a.1[1]).total_cmp(&(b.1[0] + b.1[1])));
    let line = most.map(|(gsi, [low, high])| Observed::DeviceLine { gsi: *gsi, share: low + high });
    (!pins.is_empty()).then(|| line.into_iter().collect())
}

/// Processor time that a host gave to others, by the counters since the boot. A counter that holds more than all others of its line a hundred times over
/// shows no time: the others hold the time of the line.
fn proc_stat(text: &str) -> Option<Vec<Observed>> {
    const STEAL: usize = 7;
    let mut cpus = 0;
    let mut whole = None;
    for line in lines(text) {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let Some(cpu) = name.strip_prefix("cpu") else { continue };
        let values: Option<Vec<u64>> = words.take(10).map(|word| word.parse().ok()).collect();
        let Some(values) = values.filter(|values| values.len() > STEAL) else { continue };
        if cpu.is_empty() {
            whole = Some(values);
        } else if cpu.parse::<u32>().is_ok() {
            cpus += 1;
        }
    }
    let values = whole.filter(|_| cpus > 0)?;
    let steal = values[STEAL];
    // Time in guests is in that of users, too.
    let others = values.iter().take(STEAL).fold(0u64, |sum, value| sum.saturating_add(*value));
    if steal / 100 > others {
        return Some(vec![Observed::StealCounter]);
    }
    let all = steal.saturating_add(others);
    (all > 0).then(|| vec![Observed::Steal(steal as f64 / all as f64)])
}

/// `FUNCTION (tid=1) took 12 ms`; a line of strace with its time (`<0.027>`); bcc's funclatency, with its mean (`avg = 12 nsecs`).
fn timed(text: &str) -> Option<Vec<Observed>> {
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

fn mitigations(text: &str) -> Option<Vec<Observed>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Observed> {
        read(text).map(|(_, found)| found).unwrap_or_default()
    }

    /// Texts as procps 2.8, 3.3 and 4.0, sysstat 11 and 12 print them.
    #[test]
    fn tools_show_what_was_stolen() {
        for (text, steal) in [
            (
                "Cpu(s): 12.0%us,  3.0%sy,  0.0%ni, 45.0%id,  0.0%wa,  0.0%hi,  0.0%si, 40.0%st\n",
                0.4,
            ),
            (
                "%Cpu(s):  1.0 us,  0.3 sy,  0.0 ni, 58.5 id,  0.0 wa,  0.0 hi,  0.0 si, 40.2 st\n",
                0.402,
            ),
            (
                "%Cpu(s):  1,0 us,  0,3 sy,  0,0 ni, 98,7 id,  0,0 wa,  0,0 hi,  0,0 si,  0,0 st\n",
                0.0,
            ),
            (
                "10:00:00 PM  CPU    %usr   %nice    %sys %iowait    %irq   %soft  %steal  %guest  %gnice   %idle\n\
                 10:00:01 PM  all    5.00    0.00    1.00    0.00    0.00    0.00   25.00    0.00    0.00   69.00\n\
                 10:00:01 PM    0   50.00    0.00    1.00    0.00    0.00    0.00    0.00    0.00    0.00   49.00\n",
                0.25,
            ),
            (
                "avg-cpu:  %user   %nice %system %iowait  %steal   %idle\n           5.00    0.00    1.00    0.00   30.00   64.00\n",
                0.3,
            ),
        ] {
            assert_eq!(all(text), [Observed::Steal(steal)], "{text}");
        }
    }

    #[test]
    fn steal_is_read_in_words() {
        for (text, share) in [
            ("`top` showed **95% steal (`st`)** with 1-min load ~38\n", 0.95),
            ("CPU steal is 35 % most of the day.\n", 0.35),
            ("steal time of 12.5%\n", 0.125),
        ] {
            assert_eq!(all(text), [Observed::Steal(share)], "{text}");
        }
        for none in [
            "If steal is above 10% you should talk to your provider.\n",
            "steal 3\u{2013}24%\n",
            "95% idle, no steal\n",
            "they steal 5 % of it\n",
        ] {
            assert_eq!(all(none), [], "{none}");
        }
    }

    #[test]
    fn a_counter_that_falls_shows_no_share() {
        let column = "steal column of /proc/stat, per second:\n-5433\n-8812\n-120\n12\n";
        assert_eq!(all(column), [Observed::StealFalls]);
        let twice = "cpu  10 0 10 100 0 0 0 400 0 0\ncpu0 10 0 10 100 0 0 0 400 0 0\ncpu  20 0 10 190 0 0 0 300 0 0\ncpu0 20 0 10 190 0 0 0 300 0 0\n";
        assert_eq!(all(twice), [Observed::StealFalls]);
        for none in ["idle column:\n-5433\n-8812\n-120\n", "steal:\n5\n6\n-1\n7\n"] {
            assert_eq!(all(none), [], "{none}");
        }
    }

    #[test]
    fn numbers_without_bounds_are_none() {
        let row = "0 0 0 1e308 1e308 0\n";
        assert_eq!(all(&format!("r b swpd si so st\n{}", row.repeat(4))), [Observed::Steal(0.0)]);
    }

    #[test]
    fn vmstat_shows_swapping_and_steal() {
        let text = "procs -----------memory---------- ---swap-- -----io---- -system-- ------cpu-----\n \
             r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st\n \
             1  0      0  10000    100   5000    9    9     1     2   30   40  1  1 98  0  0\n \
             1  0   4096  10000    100   5000  100   50     1     2   30   40  1  1 88  0 10\n";
        assert_eq!(
            all(text),
            [Observed::Steal(0.05), Observed::Swapping { out: 50.0, back: 100.0 }]
        );
    }

    #[test]
    fn other_texts_show_one_thing_each() {
        let pit = Observed::Thread(KernelThread::KvmPit, 0.12);
        for (text, found) in [
            (
                "nr_periods 100\nnr_throttled 80\nthrottled_usec 5\n",
                vec![Observed::Throttled { throttled: 80, periods: 100 }],
            ),
            (
                "# cat /sys/devices/system/clocksource/clocksource0/current_clocksource\nhpet\n",
                vec![Observed::Clock(DeviceClock::Hpet)],
            ),
            (
                "/sys/devices/system/clocksource/clocksource0/current_clocksource:acpi_pm\n",
                vec![Observed::Clock(DeviceClock::AcpiPm)],
            ),
            (
                "[ 0.1] clocksource: Switched to clocksource acpi_pm\n[ 1.2] clocksource: Switched to clocksource tsc\n",
                vec![],
            ),
            (
                "  PID USER  PR  NI VIRT RES SHR S  %CPU %MEM  TIME+ COMMAND\n  4711 root 20 0 0 0 0 S  12.0  0.0  1:00.00 kvm-pit/4700\n",
                vec![pit],
            ),
            (
                "  PID USER PR NI VIRT RES SHR S %CPU %MEM TIME+ COMMAND\n  3 root 20 0 1 1 1 R 57.9 0.0 5:45.06 fc_vcpu 1\n  2 root 20 0 1 1 1 R 56.5 0.0 5:42.44 CPU 0/KVM\n  1 root 20 0 1 1 1 R 26.2 0.0 2:33.69 firecracker\n",
                vec![Observed::Vcpus(2, 0.579, None)],
            ),
            // Of a host that is a VM itself.
            (
                "%Cpu(s): 13.9 us, 10.5 sy,  0.0 ni, 74.0 id,  0.6 wa,  0.0 hi,  0.6 si,  0.4 st\n\n  PID USER PR NI VIRT RES SHR S %CPU %MEM TIME+ COMMAND\n  3 root 20 0 1 1 1 R 92.0 0.0 5:45.06 CPU 1/KVM\n",
                vec![Observed::Vcpus(1, 0.92, Some(1)), Observed::Steal(0.004)],
            ),
            (
                "           CPU0       CPU1\n  0:    9000000          0   IO-APIC   2-edge      timer\nLOC:       1000       1000   Local timer interrupts\nRES:          9          9   Rescheduling interrupts\n",
                vec![Observed::Line { rtc: false, count: 9_000_000, all: 9_002_018 }],
            ),
            ("[    3.1] kvm: disabled by bios\n", vec![Observed::NoKvm]),
            (
                "cpu  10 0 10 100 0 0 0 40 0 0\ncpu0 10 0 10 100 0 0 0 40 0 0\nintr 5\n",
                vec![Observed::Steal(0.25)],
            ),
            (
                "cpu  10 0 10 100 0 0 0 99999999 0 0\ncpu0 10 0 10 100 0 0 0 9999999 0 0\nintr 5\n",
                vec![Observed::StealCounter],
            ),
            (
                "ioctl(12, KVM_CREATE_VM, 0)             = 14 <0.027335>\n",
                vec![Observed::Timed(TimedFunction::CreateVm, 27_335_000)],
            ),
            (
                "ioctl(9, KVM_SET_USER_MEMORY_REGION, {slot=0, flags=0, guest_phys_addr=0, memory_size=1048576, userspace_addr=0x7f30e01bd000}) = 0 <0.006168>\n\
                 ioctl(9, KVM_SET_USER_MEMORY_REGION, {slot=1, flags=0, guest_phys_addr=0, memory_size=0, userspace_addr=0x7f30e01bd000}) = 0 <0.106168>\n\
                 ioctl(9, KVM_IOEVENTFD, 0x7ffdb2ab3020) = 0 <0.005331>\n",
                vec![
                    Observed::Timed(TimedFunction::Ioeventfd, 5_331_000),
                    Observed::Timed(TimedFunction::CreateSlot, 6_168_000),
                ],
            ),
            // One of many.
            (
                "ioctl(9, KVM_IOEVENTFD, 0x7ffdb2ab3020) = 0 <0.000015>\n"
                    .repeat(20)
                    .replacen("0.000015", "0.005331", 1)
                    .as_str(),
                vec![Observed::Timed(TimedFunction::Ioeventfd, 15_000)],
            ),
            (
                "[1] task_numa_work (tid=5) took 1999 ms\n",
                vec![Observed::Timed(TimedFunction::NumaBalancing, 1_999_000_000)],
            ),
            (
                "Tracing 1 functions for \"irq_bypass_register_consumer\"... Hit\navg = 1405440 nsecs, total: 1 nsecs, count: 9\n",
                vec![Observed::Timed(TimedFunction::IrqBypass, 1_405_440)],
            ),
            (
                "retbleed:    Mitigation: IBRS\nmeltdown:    Mitigation: PTI\n",
                vec![
                    Observed::Mitigation(HostMitigation::Ibrs),
                    Observed::Mitigation(HostMitigation::Pti),
                ],
            ),
            (
                "Vulnerability Mds:  Mitigation; Clear CPU buffers; SMT vulnerable\n",
                vec![Observed::Mitigation(HostMitigation::ClearBuffers)],
            ),
            (
                "q: warning: This family of AMD CPU doesn't support hyperthreading(2)\n",
                vec![Observed::Message(LogMessage::NoTopoext)],
            ),
            (
                "ens18: bad gso: type: 4, size: 1448\n".repeat(5).as_str(),
                vec![Observed::Message(LogMessage::BadGso)],
            ),
            ("kvm [1]: vcpu6 unhandled rdmsr: 0x19c\n", vec![]),
            (
                "BUG: workqueue lockup - pool cpus=0\n  vp_notify+0x12/0x20\n",
                vec![Observed::Message(LogMessage::NotifyHangs)],
            ),
            (
                "Samples: 9 of event 'kvm:kvm_set_irq'\n  45.0%  gsi 11 level 1 source 0\n  45.0%  gsi 11 level 0 source 0\n  10.0%  gsi 0 level 0 source 0\n",
                vec![Observed::DeviceLine { gsi: 11, share: 0.9 }],
            ),
            (
                "51273 107 1:22 qemu-system-x86 -cpu max\n51278 CPU 0/TCG 99.9\n",
                vec![Observed::NoKvm],
            ),
            ("CPU 0/KVM 99.9\n", vec![]),
            (
                "[    4.01] tsc: Marking TSC unstable due to clocksource watchdog\n",
                vec![Observed::Message(LogMessage::TscMarked)],
            ),
            ("[    0.0] tsc: Marking TSC unstable due to running on Hyper-V\n", vec![]),
            (
                "Per-node process memory usage (in MBs) for PID 9 (qemu-kvm)\n     Node 0   Node 1  Total\nHuge  0.00 0.00 0.00\nTotal 750.00 250.00 1000.00\n",
                vec![Observed::Nodes { most: 0, next: 1, elsewhere: 0.25 }],
            ),
            (
                "PID Node 0 Node 1 Total\n---- ----\n10587 (qemu-kvm) 10 30 40\n10588 (qemu-kvm) 40 0 40\n---- ----\nTotal 50 30 80\n",
                vec![Observed::Nodes { most: 1, next: 0, elsewhere: 0.25 }],
            ),
            (
                "# ethtool -k tap0\ntx-checksumming: off\ntcp-segmentation-offload: off\n",
                vec![Observed::Message(LogMessage::TapOffloads)],
            ),
            ("# ethtool -k tap0\ntx-checksumming: on\ntcp-segmentation-offload: on\n", vec![]),
            // A guest's own are no cost of exits.
            ("Hypervisor vendor: KVM\nVulnerability Meltdown: Mitigation; PTI\n", vec![]),
            (
                "model name : QEMU Virtual CPU version 2.5+\n",
                vec![Observed::Message(LogMessage::DefaultCpu)],
            ),
            ("model name : QEMU Virtual CPU version 2.5+\nflags : fpu avx avx2\n", vec![]),
            (
                "hrtimer: interrupt took 5 ns\nQEMU Virtual CPU version 2.5+\n",
                vec![Observed::Message(LogMessage::DefaultCpu)],
            ),
            ("[<0>] ? kvm_async_pf_task_wait_schedule+0x14b/0x180\n", vec![]),
            (
                "[<0>] kvm_async_pf_task_wait_schedule+0x14b/0x180\n",
                vec![Observed::Message(LogMessage::AsyncPageFault)],
            ),
            // The rows of a post are cut.
            (
                "02:06:08 PM CPU %usr %nice %sys %iowait %irq %soft %steal %guest %gnice %idle\n02:06:09 PM 6 0.00 0.00 4.85 0.00 0.00 0.00 0.00 16.50 0.00 78.64\n02:06:21 PM 6 0.00 0.00 87.13 0.00 0\n",
                vec![Observed::HostKernel(0.8713)],
            ),
            ("hello world\n", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(all(text), found, "{text}");
        }
    }
}
