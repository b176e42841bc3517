//! Events of ftrace whose front was cut, up to their times: no thread, no processor.
//!
//! ```text
//!  6204.951632: kvm_exit: vcpu 0 reason hlt rip 0x4004ad ...
//! ```
//!
//! They get a thread without a name where all of them are of one vCPU: events of several could not be told apart.

/// Events that make such a text.
const ENOUGH: usize = 3;
/// What stands before a time: a thread that the recorder does not know, on a processor that is not said.
const FRONT: &str = "<...>-1 [000] ";

/// Whether a line begins with a time and the name of an event of KVM.
fn is_cut(line: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    line.trim_start().split_once(": kvm_").is_some_and(|(time, event)| {
        time.split_once('.').is_some_and(|(seconds, fraction)| {
            !seconds.is_empty()
                && digits(seconds)
                && (6..=9).contains(&fraction.len())
                && digits(fraction)
        }) && event.contains(':')
    })
}

/// The vCPU that an event names.
fn vcpu(line: &str) -> Option<&str> {
    let (_, behind) = line.split_once(" vcpu ")?;
    behind.split([' ', ',']).next()
}

pub(super) fn is_missing(text: &str) -> bool {
    let cut = || text.lines().filter(|line| is_cut(line));
    let mut vcpus = cut().filter_map(vcpu);
    let first = vcpus.next();
    cut().take(ENOUGH).count() == ENOUGH && vcpus.all(|vcpu| Some(vcpu) == first)
}

pub(super) fn restored(text: &str) -> String {
    if !is_missing(text) {
        return text.to_owned();
    }
    let lines = text.lines().map(|line| match is_cut(line) {
        true => format!("{FRONT}{}\n", line.trim_start()),
        false => format!("{line}\n"),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = " 6204.951631: kvm_entry: vcpu 0, rip 0x1\n 6204.951632: kvm_exit: vcpu 0 reason hlt\nso:\n6204.951633: kvm_eoi: apicid 0 vector 1\n";

    #[test]
    fn events_of_one_vcpu_get_a_thread() {
        let expected = "<...>-1 [000] 6204.951631: kvm_entry: vcpu 0, rip 0x1\n<...>-1 [000] 6204.951632: kvm_exit: vcpu 0 reason hlt\nso:\n<...>-1 [000] 6204.951633: kvm_eoi: apicid 0 vector 1\n";
        assert_eq!(restored(ONE), expected);
        assert!(is_missing(ONE) && !is_missing(expected));
    }

    #[test]
    fn others_stay_as_they_are() {
        for text in [
            // Of two vCPUs.
            ONE.replace("kvm_exit: vcpu 0", "kvm_exit: vcpu 1"),
            // Too few.
            ONE.lines().take(2).collect(),
            // No times of events.
            "1.5: kvm_exit: a\n".repeat(4),
            "10.000001: kvm guest: a\n".repeat(4),
        ] {
            assert_eq!(restored(&text), text);
        }
    }
}
