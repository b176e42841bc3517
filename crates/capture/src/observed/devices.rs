//! Clocks, interrupts and network offloads of a guest or its host.

use std::collections::BTreeMap;

use vmtax_events::observed::{DeviceClock, LogMessage, Observed};

use super::{MOST_COLUMNS, lines, part};

/// `/proc/interrupts`: the lines of the PIT and the RTC, if they have most interrupts.
pub(super) fn interrupts(text: &str) -> Option<Vec<Observed>> {
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

/// Fewer interrupts of a line are no sign of a timer.
const MANY: u64 = 1000;
/// Controllers whose pins 0 and 8 are the PIT's and the RTC's.
const OF_A_PC: [&str; 4] = ["isa-i8259", "kvm-i8259", "ioapic", "kvm-ioapic"];

/// `info irq` of QEMU's monitor, asked twice (hw/core/machine-hmp-cmds.c): how often each pin was raised between the last two answers, of the controller with most.
pub(super) fn info_irq(text: &str) -> Option<Vec<Observed>> {
    let mut asked: BTreeMap<&str, Vec<BTreeMap<u32, u64>>> = BTreeMap::new();
    let mut controller = None;
    for line in lines(text) {
        if let Some(name) = line.strip_prefix("IRQ statistics for ") {
            controller = Some(name.trim_end_matches(':'));
            asked.entry(name.trim_end_matches(':')).or_default().push(BTreeMap::new());
        } else if let Some((pin, count)) = line.split_once(':')
            && let (Ok(pin), Ok(count)) = (pin.trim().parse(), count.trim().parse())
            && let Some(last) = controller.and_then(|name| asked.get_mut(name)?.last_mut())
        {
            last.insert(pin, count);
        }
    }
    // A pin that was not raised before is in the second answer alone: since when, it does not say.
    let raised = |answers: &Vec<BTreeMap<u32, u64>>| {
        let [.., first, last] = answers.as_slice() else { return None };
        let raised = last.iter().map(|(pin, count)| {
            Some((*pin, count.checked_sub(first.get(pin).copied().unwrap_or_default())?))
        });
        let raised: BTreeMap<u32, u64> = raised.collect::<Option<_>>()?;
        let all = raised.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
        let is_known = |pin: u32| first.contains_key(&pin);
        Some((all, [0, 8].map(|pin| raised.get(&pin).copied().filter(|_| is_known(pin)))))
    };
    let of_pc = asked.iter().filter(|(name, _)| OF_A_PC.contains(name));
    let (all, pins) = of_pc.filter_map(|(_, answers)| raised(answers)).max_by_key(|one| one.0)?;
    let line = |count: Option<u64>, rtc| {
        let count = count.filter(|count| *count >= MANY && *count > all / 2)?;
        Some(Observed::Line { rtc, count, all })
    };
    let [pit, rtc] = pins;
    Some(line(pit, false).into_iter().chain(line(rtc, true)).collect())
}

/// Linux arch/x86/kvm/x86.c, `kvm_arch_vcpu_create`: the kernel that says it is a host's.
pub(super) const HOSTS_TSC: &str = "SMP vm created on host with unstable TSC";

/// `cat .../current_clocksource`, the file by `grep`, or a kernel that says to which clock it switched last. A host's clock is not its guests'.
pub(super) fn clock(text: &str) -> Option<Vec<Observed>> {
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

/// `ethtool -k` of a tap, with or without its heading.
pub(super) fn offloads(text: &str) -> Option<Vec<Observed>> {
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
pub(super) fn interrupt_lines(text: &str) -> Option<Vec<Observed>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_pc_are_counted_between_two_answers() {
        let answer = |controller: &str, pins: &[(u32, u64)]| {
            let pins: String =
                pins.iter().map(|(pin, count)| format!(" {pin}: {count}\n")).collect();
            format!("IRQ statistics for {controller}:\n{pins}")
        };
        let twice = |controller, first, last| answer(controller, first) + &answer(controller, last);
        let line = |rtc, count, all| Some(vec![Observed::Line { rtc, count, all }]);
        assert_eq!(
            info_irq(&twice("ioapic", &[(0, 500), (4, 1)], &[(0, 9500), (4, 11)])),
            line(false, 9000, 9010)
        );
        assert_eq!(info_irq(&twice("isa-i8259", &[(8, 1)], &[(8, 4001)])), line(true, 4000, 4000));
        // Too few; another line has more; since when is not known.
        for (first, last) in [
            (&[(0, 1)][..], &[(0, 900)][..]),
            (&[(0, 1), (16, 0)], &[(0, 2001), (16, 90_000)]),
            (&[(4, 1)], &[(0, 9000), (4, 1)]),
        ] {
            assert_eq!(info_irq(&twice("ioapic", first, last)), Some(Vec::new()), "{last:?}");
        }
        assert_eq!(info_irq(&twice("arm_gicv3", &[(0, 1)], &[(0, 9000)])), None);
        assert_eq!(info_irq(&twice("ioapic", &[(0, 9000)], &[(0, 1)])), None);
        assert_eq!(info_irq(&answer("ioapic", &[(0, 9000)])), None);
    }
}
