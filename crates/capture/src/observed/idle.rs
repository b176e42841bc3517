//! A guest that is idle by its own counters while its host has a processor busy for it, and how long KVM polls for halted vCPUs.

use vmtax_events::observed::Observed;

use super::{MOST_COLUMNS, lines, mean, part};

/// From which part on a guest's processor is idle, and the host's busy.
const IDLE: f64 = 0.98;
const BUSY: f64 = 0.8;

/// Whose table it is, by the title above it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Guest,
    Host,
}

/// `Usage inside the VM:`, `ON HOST (the VM's CPU is pinned to 27):`: the first that is named. Sentences without a colon at their end are no titles.
fn of(line: &str) -> Option<Of> {
    let line = line.to_lowercase();
    let title = line.strip_suffix(':')?;
    title.split(|c: char| !c.is_alphanumeric()).find_map(|word| match word {
        "host" | "hypervisor" => Some(Of::Host),
        "vm" | "guest" => Some(Of::Guest),
        _ => None,
    })
}

/// Tables of sar or mpstat of one processor of a guest, and of the host's processor that has it. Left out on purpose: tables of all processors and lines of
/// top, which do not show for whom a host works, or how much of a processor a guest with many leaves idle.
pub(super) fn inside(text: &str) -> Option<Vec<Observed>> {
    let mut place = None;
    let mut columns: Option<Vec<&str>> = None;
    let (mut idle, mut busy) = (Vec::new(), Vec::new());
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(MOST_COLUMNS).collect();
        if words.is_empty() || words.iter().any(|word| word.starts_with('%')) {
            columns = Some(words)
                .filter(|words| ["CPU", "%idle"].iter().all(|name| words.contains(name)));
            continue;
        }
        let Some(names) = &columns else {
            place = of(line).or(place);
            continue;
        };
        // Times before a row have as many words as those before the head, or fewer (`Average:`).
        let cell = |name: &str| {
            let back = names.len() - names.iter().position(|one| *one == name)?;
            words.get(words.len().checked_sub(back)?).copied()
        };
        let is_of_one = cell("CPU").is_some_and(|cpu| cpu.parse::<u32>().is_ok());
        let Some(share) = cell("%idle").and_then(part).filter(|_| is_of_one) else { continue };
        let waits = cell("%iowait").and_then(part).unwrap_or_default();
        match place {
            Some(Of::Guest) => idle.push(share),
            Some(Of::Host) => busy.push(1.0 - share - waits),
            None => {}
        }
    }
    let (idle, busy) = (mean(&idle)?, mean(&busy)?);
    (idle >= IDLE && busy >= BUSY).then(|| vec![Observed::IdleInside { idle, busy }])
}

/// Lines of `kvm:kvm_halt_poll_ns` (Linux include/trace/events/kvm.h): `vcpu 0: halt_poll_ns 20000 (grow 10000)`.
pub(super) fn polls(text: &str) -> Option<Vec<Observed>> {
    let mut all = Vec::new();
    for line in lines(text) {
        let Some((_, rest)) = line.split_once(": halt_poll_ns ") else { continue };
        let Some((now, change)) = rest.split_once(" (") else { continue };
        let is_change = change.starts_with("grow ") || change.starts_with("shrink ");
        all.extend(now.trim().parse::<u64>().ok().filter(|_| is_change));
    }
    let most_ns = all.iter().copied().max()?;
    Some(vec![Observed::HaltPolls { changes: all.len() as u64, most_ns }])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAR: &str = "10:00:01 CPU %user %nice %system %iowait %steal %idle\n";

    fn sar(title: &str, cells: &str) -> String {
        format!("{title}\n# sar -P 0 1 1\n{SAR}10:00:02 {cells}\nAverage: {cells}\n\n")
    }

    #[test]
    fn idle_inside_and_busy_outside() {
        let found = |text: &str| inside(text).unwrap_or_default();
        let vm = sar("Usage inside the VM:", "0 1.00 0.00 0.00 0.00 0.00 99.00");
        let host = sar("ON HOST(the vm's CPU is 3):", "3 99.00 0.00 0.00 0.00 0.00 1.00");
        let both = format!("{vm}{host}");
        assert_eq!(found(&both), [Observed::IdleInside { idle: 0.99, busy: 0.99 }]);
        let disks = "Device r/s w/s %util\nsda 0.00 0.00 0.00\n";
        for text in [
            both.replace("99.00\nAverage", "50.00\nAverage"),
            // The host waits for a disk.
            format!("{vm}{}", sar("Host:", "3 5.00 0.00 5.00 85.00 0.00 5.00")),
            // All processors of either.
            both.replace(" 0 1.00", " all 1.00"),
            both.replace(" 3 99.00", " all 99.00"),
            both.replace("ON HOST(the vm's CPU is 3):", "On Monday:"),
            both.replace("ON HOST(the vm's CPU is 3):", "Later, when this host was busy, the same"),
            both.replace("Usage inside the VM:", "Inside a container:"),
            format!("{vm}Host:\n{SAR}10:00:02 3 1.00 0.00 0.00 0.00 0.00 99.00\n\n{disks}"),
            String::new(),
        ] {
            assert_eq!(found(&text), [], "{text}");
        }
    }

    #[test]
    fn polling_intervals() {
        let line = |text: &str| format!("871.1: kvm_halt_poll_ns: vcpu 0: halt_poll_ns {text}\n");
        let text = [line("10000 (grow 0)"), line("20000 (grow 10000)"), line("0 (shrink 20000)")];
        assert_eq!(
            polls(&text.concat()),
            Some(vec![Observed::HaltPolls { changes: 3, most_ns: 20_000 }])
        );
        for text in
            ["", "halt_poll_ns 200000\n", ": halt_poll_ns x (grow 0)\n", ": halt_poll_ns 5 (a)\n"]
        {
            assert_eq!(polls(text), None, "{text}");
        }
    }
}
