//! Rows and events that a mail client broke at a column.
//!
//! ```text
//!            MSR_WRITE     924045    89.96%    81.10%      0.42us
//! 68.42us      1.26us ( +-   0.07% )
//! ```
//!
//! A line is joined to the one before where that one is incomplete by its form and this one cannot begin a row.

/// A mail client breaks lines before this column; events that perf prints whole are longer.
const WIDEST: usize = 84;
/// Lines that one row or event was broken into, at most.
const MOST_JOINED: usize = 8;
/// Longer lines are no rows.
const LONGEST: usize = 4096;
/// Events that are broken before the text is taken for wrapped.
const ENOUGH: usize = 2;

/// What is missing from a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// The end of the heading of `perf kvm stat`.
    Heading,
    /// Times of a row of it.
    Times,
    /// The symbol of a row of `perf report`.
    Symbol,
    /// The end of an event.
    Event,
    /// All of an event behind its name.
    Payload,
}

pub(super) fn is_wrapped(text: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    let mut events = 0;
    for pair in lines.windows(2) {
        let [line, next] = pair else { continue };
        match missing(line) {
            Some(Missing::Event) if continues(Missing::Event, next) => events += 1,
            Some(Missing::Payload) if continues(Missing::Payload, next) => events += 1,
            Some(Missing::Event | Missing::Payload) | None => {}
            Some(what) if continues(what, next) => return true,
            Some(_) => {}
        }
    }
    events >= ENOUGH && is_narrow(text)
}

pub(super) fn restored(text: &str) -> String {
    let with_events = is_narrow(text);
    let mut whole = String::with_capacity(text.len());
    let mut open = String::new();
    let mut joined = 0;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if open.is_empty() {
            open.push_str(line);
        } else {
            open.push(' ');
            open.push_str(line.trim_start());
        }
        let goes_on = missing(&open)
            .filter(|_| joined < MOST_JOINED)
            .filter(|what| !matches!(what, Missing::Event | Missing::Payload) || with_events)
            .zip(lines.peek())
            .is_some_and(|(what, next)| continues(what, next));
        if goes_on {
            joined += 1;
            continue;
        }
        whole.push_str(&open);
        whole.extend(std::iter::repeat_n('\n', 1 + joined));
        (open, joined) = (String::new(), 0);
    }
    if !text.ends_with('\n') {
        whole.truncate(whole.trim_end_matches('\n').len());
    }
    whole
}

fn is_narrow(text: &str) -> bool {
    text.lines().all(|line| line.chars().count() <= WIDEST)
}

/// What a line lacks to be whole.
fn missing(line: &str) -> Option<Missing> {
    if line.len() > LONGEST {
        return None;
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let first = words.first()?;
    if words.contains(&"Samples") && !line.contains("Avg time") && !line.contains("Mean Time (ns)")
    {
        let is_head = words.iter().any(|word| matches!(*word, "VM-EXIT" | "Access" | "name"));
        return is_head.then_some(Missing::Heading);
    }
    let percents = words.iter().filter(|word| is_percent(word)).count();
    if first.ends_with('%') && is_percent(first) {
        let has_mark = line.contains("[k] ") || line.contains("[.] ");
        return (words.len() > 1 && !has_mark && line.contains('[')).then_some(Missing::Symbol);
    }
    let times = words.iter().filter(|word| is_time(word)).count();
    let is_row = words.len() > 2
        && words.get(1).is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()))
        && words.get(1).is_some_and(|word| !is_percent(word))
        && words.get(2).is_some_and(|word| is_percent(word));
    if is_row {
        let is_whole = times >= 3 && (line.contains(')') || percents >= 3);
        // By sums of nanoseconds: seven numbers behind the name.
        let is_whole = is_whole || times == 0 && words.len() >= 8;
        return (!is_whole).then_some(Missing::Times);
    }
    let is_bare = line.trim_end().ends_with(':');
    is_event(line).then_some(if is_bare { Missing::Payload } else { Missing::Event })
}

/// Whether a line can be the rest of what is missing.
fn continues(what: Missing, line: &str) -> bool {
    let mut words = line.split_whitespace();
    let Some(first) = words.next() else { return false };
    match what {
        Missing::Heading => {
            let is_end = line.contains("Avg time") || line.contains("Time");
            is_end && !line.contains("Samples") && !line.contains('%')
                || first == "Samples"
                || first.starts_with("Samples%")
                || first == "Time%"
        }
        Missing::Times => {
            is_time(first)
                || is_percent(first)
                || matches!(first, "(" | "+-" | ")")
                || first.starts_with("(+-")
                || first.parse::<u64>().is_ok()
        }
        Missing::Symbol => matches!(first, "[k]" | "[.]" | "[g]" | "[u]" | "[H]"),
        Missing::Payload => !line.starts_with([' ', '\t', '#']) && !is_event(line),
        // The rest of an event begins with a word in the first column: call chains and further events do not.
        Missing::Event => !line.starts_with([' ', '\t', '#']) && !is_event(line) && is_rest(first),
    }
}

/// Words of KVM's events that lines are broken before.
fn is_rest(word: &str) -> bool {
    const LABELS: [&str; 20] = [
        "reason",
        "rip",
        "info",
        "info1",
        "info2",
        "intr_info",
        "error_code",
        "vcpu",
        "at",
        "size",
        "count",
        "val",
        "len",
        "gpa",
        "=",
        "==>",
        "kvm_exit:",
        "kvm_entry:",
        "next_comm",
        "cause",
    ];
    let word = word.trim_end_matches(',');
    LABELS.contains(&word)
        || word.starts_with("0x") && word.len() > 2
        || word.bytes().all(|b| b.is_ascii_hexdigit())
        || word.contains('=')
        || word.starts_with("kvm:")
        || word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
}

/// An event of the text of ftrace, perf script or trace-cmd: `[002] 60.000025: kvm_exit: ...`.
fn is_event(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_cpu = |word: &str| {
        word.strip_prefix('[')
            .and_then(|word| word.strip_suffix(']'))
            .is_some_and(|cpu| !cpu.is_empty() && cpu.bytes().all(|b| b.is_ascii_digit()))
    };
    if !words.any(is_cpu) {
        return false;
    }
    let is_stamp = |word: &str| {
        let number = word.strip_suffix(':').unwrap_or_default();
        number.contains('.') && number.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    };
    words.take(2).any(is_stamp)
}

fn is_percent(word: &str) -> bool {
    word.strip_suffix('%').is_some_and(is_number)
}

fn is_time(word: &str) -> bool {
    word.strip_suffix("us").is_some_and(is_number)
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_joined() {
        let text = "             VM-EXIT    Samples  Samples%     Time%    Min Time    Max\nTime         Avg time\n           MSR_WRITE     924045    89.96%    81.10%      0.42us\n68.42us      1.26us ( +-   0.07% )\n   VMCALL      17819     1.73%     5.21%      0.75us\n15.64us      4.20us ( +-   0.33%\n\nTotal Samples:1, Total\n";
        assert!(is_wrapped(text));
        let whole: Vec<String> = restored(text)
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            whole,
            [
                "VM-EXIT Samples Samples% Time% Min Time Max Time Avg time",
                "",
                "MSR_WRITE 924045 89.96% 81.10% 0.42us 68.42us 1.26us ( +- 0.07% )",
                "",
                "VMCALL 17819 1.73% 5.21% 0.75us 15.64us 4.20us ( +- 0.33%",
                "",
                "",
                "Total Samples:1, Total",
            ]
        );
        assert!(!is_wrapped(&restored(text)));
    }

    #[test]
    fn events_are_joined() {
        let text = "  qemu-system-x86-5665  [000] .... 1907374.500029: kvm_exit: reason\nEXTERNAL_INTERRUPT rip 0xffffffff81c01f58 info 0 800000fd\n  qemu-system-x86-5665  [000] d..1 1907374.500032: kvm_entry: vcpu 0, rip\n0xffffffff81c01f58\n";
        assert!(is_wrapped(text));
        assert_eq!(
            restored(text),
            "  qemu-system-x86-5665  [000] .... 1907374.500029: kvm_exit: reason EXTERNAL_INTERRUPT rip 0xffffffff81c01f58 info 0 800000fd\n\n  qemu-system-x86-5665  [000] d..1 1907374.500032: kvm_entry: vcpu 0, rip 0xffffffff81c01f58\n\n"
        );
    }

    /// kernel Bugzilla 220549, decoded from quoted-printable: broken behind each name.
    #[test]
    fn events_without_their_payload_are_joined() {
        let text = "      CPU 0/KVM  655470 [011] 17156.779269:    kvm:kvm_entry:\nvcpu 0, rip 0xfffff80653e4142c\n      CPU 0/KVM  655470 [011] 17156.779272:    kvm:kvm_apic:\napic_write APIC_EOI = 0x0\n";
        assert!(is_wrapped(text));
        assert_eq!(
            restored(text),
            "      CPU 0/KVM  655470 [011] 17156.779269:    kvm:kvm_entry: vcpu 0, rip 0xfffff80653e4142c\n\n      CPU 0/KVM  655470 [011] 17156.779272:    kvm:kvm_apic: apic_write APIC_EOI = 0x0\n\n"
        );
    }

    #[test]
    fn whole_texts_stay() {
        for text in [
            "  hlt  39  0.09%  2.63%  18.39us 12998.04us 3227.76us ( +-  12.79% )\n  msr  3  0.01%  2.63%  1.39us 12.04us 3.76us ( +-  12.79% )\n",
            "  hlt  39  0.09%  900  2.63%  18  12  32\n  msr  3  0.01%  90  2.63%  1  12  3\n",
            "CPU 0/KVM  3080 [002]    60.000025: kvm:kvm_exit: vcpu 0 reason HLT rip 0x0\nCPU 0/KVM  3080 [002]    60.000026: kvm:kvm_entry: vcpu 0, rip 0x0\n",
            "-   14.85%    14.75%  qemu  [kernel.kallsyms]  [k] native_queued_spin_lock_slowpath\n     14.74% __GI___ioctl\n",
            "    26.83%  CPU 0/KVM        [kernel.kallsyms]  [k] __memcpy\n    12.20%  CPU 0/KVM        [kernel.kallsyms]  [k] vmx_vcpu_run\n",
        ] {
            assert!(!is_wrapped(text), "{text}");
            assert_eq!(restored(text), text);
        }
    }
}
