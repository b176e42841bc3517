//! A guest that is idle by its own counters while its host has a processor busy for it, and how long KVM polls for halted vCPUs.

use vmtax_events::observed::Observed;

use super::{MOST_COLUMNS, lines, mean, number, part};

/// From which part on a guest is idle, and a processor busy.
const IDLE: f64 = 0.9;
const BUSY: f64 = 0.8;

/// Whose table it is, by the words above it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Guest,
    Host,
}

fn of(line: &str) -> Option<Of> {
    let line = line.to_lowercase();
    let has = |name: &str| line.split(|c: char| !c.is_alphanumeric()).any(|word| word == name);
    let is_host = ["host", "hypervisor"].into_iter().any(has);
    let is_guest = ["vm", "guest", "inside"].into_iter().any(has);
    if is_host { Some(Of::Host) } else { is_guest.then_some(Of::Guest) }
}

/// Tables of sar or mpstat, or lines and processes of top, of a guest and of its host, each below words that say whose it is.
pub(super) fn inside(text: &str) -> Option<Vec<Observed>> {
    const VMMS: [&str; 4] = ["qemu", "kvm", "cloud-hyp", "firecracker"];
    let mut place = None;
    let mut columns: Option<Vec<&str>> = None;
    let (mut idle, mut busy) = (Vec::new(), Vec::new());
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(MOST_COLUMNS).collect();
        let is_head = words.contains(&"%idle") || words.contains(&"%CPU");
        if is_head {
            columns = Some(words);
            continue;
        }
        let of_row = |name: &str| {
            let names = columns.as_ref()?;
            let at = names.iter().position(|one| *one == name)?;
            // Times before a row have as many words as those before the head, or one less (`Average:`).
            let from = words.len() as isize - names.len() as isize;
            let at = usize::try_from(at as isize + from.min(0)).ok()?;
            number(words.get(at)?)
        };
        if let Some(of_top) = idle_of_top(line) {
            match place {
                Some(Of::Guest) => idle.push(of_top),
                Some(Of::Host) => busy.push(1.0 - of_top),
                None => {}
            }
        } else if let Some(share) = of_row("%idle").and_then(|_| part(words.last()?)) {
            match place {
                Some(Of::Guest) => idle.push(share),
                Some(Of::Host) => busy.push(1.0 - share),
                None => {}
            }
        } else if let Some(share) = of_row("%CPU") {
            let command = words.last().copied().unwrap_or_default().to_lowercase();
            if place == Some(Of::Host) && VMMS.iter().any(|name| command.starts_with(name)) {
                // One VMM that has a processor is enough, whatever the other processors do.
                busy = vec![share / 100.0];
                break;
            }
        } else if let Some(found) = of(line) {
            place = Some(found);
            columns = None;
        }
    }
    let (idle, busy) = (mean(&idle)?, mean(&busy)?);
    (idle >= IDLE && busy >= BUSY).then(|| vec![Observed::IdleInside { idle, busy }])
}

/// `%Cpu(s): 0.3 us, 0.2 sy, 0.0 ni, 99.5 id, ...`
fn idle_of_top(line: &str) -> Option<f64> {
    let (head, rest) = line.split_once(':')?;
    head.trim_start_matches('%').to_ascii_lowercase().starts_with("cpu").then_some(())?;
    let field = rest.split(',').map(str::trim).find(|field| field.ends_with("id"))?;
    part(field.trim_end_matches("id").trim())
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

    #[test]
    fn idle_inside_and_busy_outside() {
        let found = |text: &str| inside(text).unwrap_or_default();
        let sar = |place: &str, user: &str, idle: &str| {
            format!(
                "{place}:\n# sar -P 0 1 1\n{SAR}10:00:02 0 {user} 0.00 0.00 0.00 0.00 {idle}\nAverage: 0 {user} 0.00 0.00 0.00 0.00 {idle}\n\n"
            )
        };
        let both = |inside: &str, outside: &str| {
            format!(
                "{}{}",
                sar("Usage in the VM", "1.00", inside),
                sar("On the host (its CPU 3)", "99.00", outside)
            )
        };
        assert_eq!(
            found(&both("99.00", "1.00")),
            [Observed::IdleInside { idle: 0.99, busy: 0.99 }]
        );
        let top = "top in the guest\n%Cpu(s):  0.3 us,  0.2 sy,  0.0 ni, 99.5 id,  0.0 wa\n\ntop on the host\n  PID USER PR NI VIRT RES SHR S %CPU %MEM TIME+ COMMAND\n  1 qemu 20 0 1 1 1 S 104.0 1.0 1:00.00 qemu-kvm\n";
        assert_eq!(found(top), [Observed::IdleInside { idle: 0.995, busy: 1.04 }]);
        for text in [
            both("50.00", "1.00"),
            both("99.00", "70.00"),
            both("99.00", "1.00").replace("On the host", "Elsewhere"),
            both("99.00", "1.00").replace("in the VM", "here"),
            top.replace("qemu-kvm", "make"),
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
