//! The front of an event's line: who, where, when and which tracepoint.
//!
//! ```text
//! perf script        qemu-system-x86   105/109 [001]    10.659558:     kvm:kvm_exit: vcpu 0 reason ...
//! trace-cmd report   qemu-system-x86-109   [001]    10.659558: kvm_exit:     reason ...
//!                    qemu-sys-109     1d..1.    10.659558: kvm_exit:     reason ...
//! ftrace             qemu-system-x86-109     (    105) [001] d..1.    10.659558: kvm_exit: vcpu 0 ...
//! ```
//!
//! The name of a thread is hostile: up to 15 bytes, spaces, brackets and colons among them. What
//! follows it is longer than that, so the first place where all of it matches is the right one.

use vmtax_events::NO_PID;

use super::words::{
    self, TextWords, decimal, decimal_u32, split_decimal, split_digits, trim, trim_end, trim_start,
};

/// The text does not say on which processor an event was recorded.
pub(crate) const NO_CPU: u32 = u32::MAX;

/// How threads are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadDialect {
    /// `COMM TID` or `COMM PID/TID`; events are `system:name:`.
    PerfScript,
    /// The same with the CPU behind the thread, without brackets (`perf script -L`).
    PerfLatency,
    /// `COMM-TID`, perhaps `(PID)`; events are `name:`.
    Ftrace,
}

/// An event's line, its payload not yet read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventLine<'a> {
    /// Name of the thread, or empty when the recorder did not know it.
    pub(crate) comm: &'a [u8],
    /// Process, or [`NO_PID`].
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// Processor, or [`NO_CPU`].
    pub(crate) cpu: u32,
    pub(crate) time: Time,
    /// How many events a sample of perf stands for, where the text has it.
    pub(crate) period: Option<u64>,
    /// The file or instance that trace-cmd writes before the thread, or empty.
    pub(crate) stream: &'a [u8],
    /// Name of the event without its system.
    pub(crate) event: &'a [u8],
    /// The text after the event's name, including spaces.
    pub(crate) payload: &'a [u8],
}

/// A time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// Seconds with a fraction, which had this many digits.
    Ns(u64, usize),
    /// No decimal point: a count of a clock that is not in nanoseconds.
    Count,
}

/// Columns of a thread's name in trace-cmd's text (libtraceevent `tep_print_event`), and in latency formats.
const NAME: usize = 16;
const LATENCY_NAME: usize = 8;

/// Where a thread's name and the fields after it must have ended.
const LONGEST_FRONT: usize = 128;

impl<'a> EventLine<'a> {
    /// Parses the prefix of a line. `None` if it is not an event.
    pub(crate) fn read(line: &'a [u8], dialect: ThreadDialect) -> Option<EventLine<'a>> {
        let front = line.get(..LONGEST_FRONT).unwrap_or(line);
        let mut from = 0;
        while let Some(at) = front.get(from..)?.iter().position(|&b| b == b'[') {
            from += at + 1;
            let found = EventLine::at_bracket(line.get(..from - 1)?, line.get(from..)?, dialect);
            if found.is_some() {
                return found;
            }
        }
        EventLine::without_bracket(line, dialect)
    }

    /// `before [CPU] rest`.
    fn at_bracket(
        before: &'a [u8],
        rest: &'a [u8],
        dialect: ThreadDialect,
    ) -> Option<EventLine<'a>> {
        let (cpu, rest) = split_digits(rest);
        let rest =
            rest.strip_prefix(b"]").filter(|r| r.first().is_some_and(|&b| words::is_space(b)))?;
        let cpu = decimal_u32(cpu)?;
        let (pid, rest) = flags_and_group(rest)?;
        let (time, rest) = time(rest)?;
        let mut thread = thread(before, dialect, NAME)?;
        if pid != NO_PID {
            thread.pid = pid;
        }
        EventLine::finish(thread, cpu, time, rest)
    }

    /// Lines without `[CPU]`: `perf script -F` without `cpu`, and the latency format of trace-cmd,
    /// where the flags follow the CPU's digits (`1d..1.`).
    fn without_bracket(line: &'a [u8], dialect: ThreadDialect) -> Option<EventLine<'a>> {
        let front = line.get(..LONGEST_FRONT).unwrap_or(line);
        let mut words = TextWords::new(front);
        loop {
            let gap = line.len() - front.len() + words.rest().len();
            let start = line.len() - gap;
            let word = words.next()?;
            if !word.ends_with(b":") || !word.first().is_some_and(u8::is_ascii_digit) {
                continue;
            }
            let Some((time, rest)) = time(line.get(start..)?) else { continue };
            let before = trim_end(line.get(..start)?);
            let (before, cpu) = match dialect {
                ThreadDialect::PerfScript => (before, NO_CPU),
                ThreadDialect::PerfLatency => {
                    let cut = before.iter().rposition(|&b| words::is_space(b))?;
                    let Some(cpu) = decimal_u32(before.get(cut + 1..)?) else { continue };
                    (before.get(..cut)?, cpu)
                }
                ThreadDialect::Ftrace => {
                    let cut = before.iter().rposition(|&b| words::is_space(b))?;
                    let (cpu, flags) = split_digits(before.get(cut + 1..)?);
                    if flags.is_empty() {
                        continue;
                    }
                    let Some(cpu) = decimal_u32(cpu) else { continue };
                    (before.get(..cut)?, cpu)
                }
            };
            if let Some(thread) = thread(before, dialect, LATENCY_NAME) {
                return EventLine::finish(thread, cpu, time, rest);
            }
        }
    }

    /// `[PERIOD] EVENT: payload`, or `[(+DIFFERENCE)] EVENT: payload`.
    fn finish(
        thread: LineThread<'a>,
        cpu: u32,
        time: Time,
        rest: &'a [u8],
    ) -> Option<EventLine<'a>> {
        let mut words = TextWords::new(rest);
        let mut name = words.next()?;
        let period = decimal(name);
        if period.is_some() || name.starts_with(b"(+") && name.ends_with(b")") {
            name = words.next()?;
        }
        let name = name.strip_suffix(b":").unwrap_or(name);
        let mut parts = name.split(|&b| b == b':');
        let first = parts.next().unwrap_or(name);
        let event = match parts.next() {
            // PERF_RECORD_EXIT(109:109):(105:105)
            Some(event) if !first.starts_with(b"PERF_RECORD") => event,
            _ => first,
        };
        let LineThread { stream, comm, pid, tid } = thread;
        let payload = words.rest();
        Some(EventLine { comm, pid, tid, cpu, time, period, stream, event, payload })
    }
}

/// A thread at the front of a line.
struct LineThread<'a> {
    stream: &'a [u8],
    comm: &'a [u8],
    pid: u32,
    tid: u32,
}

/// `width`: columns of the thread's name as trace-cmd writes it.
fn thread(text: &[u8], dialect: ThreadDialect, width: usize) -> Option<LineThread<'_>> {
    let mut text = trim_end(text);
    let mut pid = NO_PID;
    let start = match dialect {
        ThreadDialect::PerfScript | ThreadDialect::PerfLatency => {
            text.iter().rposition(|&b| words::is_space(b)).map_or(0, |at| at + 1)
        }
        ThreadDialect::Ftrace => {
            if let Some(front) = text.strip_suffix(b")") {
                let at = words::rfind(front, b"(")?;
                pid = group(front.get(at + 1..)?)?;
                text = trim_end(front.get(..at)?);
            }
            text.iter().rposition(|&b| b == b'-')? + 1
        }
    };
    let (comm, number) = text.split_at_checked(start)?;
    let (comm, tid) = match dialect {
        ThreadDialect::Ftrace => (comm.strip_suffix(b"-")?, number),
        ThreadDialect::PerfScript | ThreadDialect::PerfLatency => {
            match words::split_once(number, b"/") {
                Some((process, tid)) => {
                    // A process that perf does not know is -1.
                    pid = decimal_u32(process).unwrap_or(NO_PID);
                    (comm, tid)
                }
                None => (comm, number),
            }
        }
    };
    let (stream, comm) = match dialect {
        ThreadDialect::Ftrace => split_stream(comm, width),
        _ => (&[][..], comm),
    };
    let comm = trim(comm);
    if dialect == ThreadDialect::PerfLatency && comm.len() > LATENCY_NAME {
        return None;
    }
    // Written by recorders for threads without a known name.
    let unknown = comm == b"<...>" || comm.strip_prefix(b":") == Some(tid);
    let tid = if tid == b"-1" { 0 } else { decimal_u32(tid)? };
    Some(LineThread { stream, comm: if unknown { &[] } else { comm }, pid, tid })
}

/// The stream and the name of `host.dat:        CPU 0/KVM`: trace-cmd aligns both. A stream is longer than a name can be.
fn split_stream(text: &[u8], width: usize) -> (&[u8], &[u8]) {
    let at = text.len().checked_sub(width).and_then(|at| text.split_at_checked(at));
    match at {
        Some((stream, name)) if stream.ends_with(b": ") && stream.len() > 2 => {
            (trim(stream.strip_suffix(b": ").unwrap_or(stream)), name)
        }
        _ => (&[], text),
    }
}

/// The process in `(  105)`; `(-------)` when ftrace does not know it.
fn group(text: &[u8]) -> Option<u32> {
    let text = trim(text);
    if !text.is_empty() && text.iter().all(|&b| b == b'-') {
        return Some(NO_PID);
    }
    decimal_u32(text)
}

/// Text that may be between the CPU and the time: ftrace's flags, and in some kernels the process.
fn flags_and_group(mut text: &[u8]) -> Option<(u32, &[u8])> {
    let mut pid = NO_PID;
    for _ in 0..2 {
        text = trim_start(text);
        match text.first()? {
            b'0'..=b'9' => break,
            b'(' => {
                let end = text.iter().position(|&b| b == b')')?;
                pid = group(text.get(1..end)?)?;
                text = text.get(end + 1..)?;
            }
            _ => {
                let mut words = TextWords::new(text);
                words.next()?;
                text = words.rest();
            }
        }
    }
    Some((pid, text))
}

/// `SECONDS.FRACTION:`, exactly. These tools write at least six digits of the fraction.
fn time(text: &[u8]) -> Option<(Time, &[u8])> {
    let (seconds, _, rest) = split_decimal(trim_start(text))?;
    if let Some(rest) = rest.strip_prefix(b":") {
        return Some((Time::Count, rest));
    }
    let (fraction, digits, rest) = split_decimal(rest.strip_prefix(b".")?)?;
    let rest = rest.strip_prefix(b":")?;
    let scale = match digits {
        6 => 1000,
        7 => 100,
        8 => 10,
        9 => 1,
        _ => return None,
    };
    let ns = seconds.checked_mul(1_000_000_000)?.checked_add(fraction * scale)?;
    Some((Time::Ns(ns, digits), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        line: &str,
        dialect: ThreadDialect,
    ) -> Option<(String, u32, u32, u32, u64, String, String)> {
        let l = EventLine::read(line.as_bytes(), dialect)?;
        let Time::Ns(ns, _) = l.time else { return None };
        let text = |b: &[u8]| String::from_utf8_lossy(trim(b)).into_owned();
        Some((text(l.comm), l.pid, l.tid, l.cpu, ns, text(l.event), text(l.payload)))
    }

    fn check(dialect: ThreadDialect, line: &str, expected: (&str, u32, u32, u32, u64, &str, &str)) {
        let (comm, pid, tid, cpu, ns, event, payload) = expected;
        let expected = (comm.into(), pid, tid, cpu, ns, event.into(), payload.into());
        assert_eq!(read(line, dialect), Some(expected), "{line}");
    }

    #[test]
    fn perf_script() {
        let cases = [
            (
                " qemu-system-x86   109 [000]    10.659558:      kvm:kvm_entry: vcpu 0, rip 0xfff0",
                ("qemu-system-x86", 0, 109, 0, 10_659_558_000, "kvm_entry", "vcpu 0, rip 0xfff0"),
            ),
            (
                " CPU 0/KVM  105/109   [011]    10.659558123:  1 kvm:kvm_entry: vcpu 0",
                ("CPU 0/KVM", 105, 109, 11, 10_659_558_123, "kvm_entry", "vcpu 0"),
            ),
            (
                "x 7 [001] 1.2:  -1/9 [002] 1.000001: kvm:kvm_fpu: load",
                ("x 7 [001] 1.2:", 0, 9, 2, 1_000_001_000, "kvm_fpu", "load"),
            ),
            (
                "vmm   121 43.107971: PERF_RECORD_LOST lost 8",
                ("vmm", 0, 121, NO_CPU, 43_107_971_000, "PERF_RECORD_LOST", "lost 8"),
            ),
            (
                ":109   109 [000]    1.000000: kvm:kvm_entry:H: vcpu 3",
                ("", 0, 109, 0, 1_000_000_000, "kvm_entry", "vcpu 3"),
            ),
        ];
        for (line, expected) in cases {
            check(ThreadDialect::PerfScript, line, expected);
        }
    }

    #[test]
    fn perf_script_with_the_latency_columns() {
        check(
            ThreadDialect::PerfLatency,
            "CPU 0/KV   131   1     9.444213:  kvm:kvm_entry: vcpu 0",
            ("CPU 0/KV", 0, 131, 1, 9_444_213_000, "kvm_entry", "vcpu 0"),
        );
        // Without the CPU's column: -F comm,tid,time,event,trace.
        let line = "rcu_preempt    15     8.404523: sched:sched_switch: x";
        assert_eq!(read(line, ThreadDialect::PerfLatency), None);
    }

    #[test]
    fn streams_of_trace_cmd() {
        for (line, stream, comm) in [
            (
                "w.dat:        CPU 0/KVM-129   [000]    39.889703: (+31)    kvm_entry:   vcpu 0",
                "w.dat",
                "CPU 0/KVM",
            ),
            (
                "              CPU 0/KVM-129   [000]    39.889703: kvm_entry:   vcpu 0",
                "",
                "CPU 0/KVM",
            ),
            (
                "i.dat: CPU 0/KV-129     0d..1.    39.889703: kvm_entry:   vcpu 0",
                "i.dat",
                "CPU 0/KV",
            ),
            // A thread's name may look like a stream.
            ("    a: bcdefghij-129   [000]    39.889703: kvm_entry:   vcpu 0", "", "a: bcdefghij"),
        ] {
            let read = EventLine::read(line.as_bytes(), ThreadDialect::Ftrace).unwrap();
            assert_eq!((read.stream, read.comm), (stream.as_bytes(), comm.as_bytes()), "{line}");
            assert_eq!(read.event, b"kvm_entry", "{line}");
        }
    }

    #[test]
    fn ftrace() {
        let cases = [
            (
                " qemu-system-x86-130   [001]    51.919115: kvm_entry:             vcpu 0 rip 0xfff0",
                ("qemu-system-x86", 0, 130, 1, 51_919_115_000, "kvm_entry", "vcpu 0 rip 0xfff0"),
            ),
            (
                "       CPU 0/KVM-1234    (   1200) [003] d..1.   123.456789: kvm_entry: vcpu 0",
                ("CPU 0/KVM", 1200, 1234, 3, 123_456_789_000, "kvm_entry", "vcpu 0"),
            ),
            (
                " kworker/u4:2-ev-99      (-------) [000] .....   1.000001: sched_switch: x",
                ("kworker/u4:2-ev", 0, 99, 0, 1_000_001_000, "sched_switch", "x"),
            ),
            (
                "a-1 [000] 2-77 [002] (  5) d..1 9.000000001: kvm_fpu: load",
                ("a-1 [000] 2", 5, 77, 2, 9_000_000_001, "kvm_fpu", "load"),
            ),
            (
                "qemu-sys-130     1...1.    56.900183: kvm_write_tsc_offset: vcpu=0",
                ("qemu-sys", 0, 130, 1, 56_900_183_000, "kvm_write_tsc_offset", "vcpu=0"),
            ),
            (
                "  <idle>-0  12d..2  56.900183: sched_switch: x",
                ("<idle>", 0, 0, 12, 56_900_183_000, "sched_switch", "x"),
            ),
            (" <...>-5 [000] 1.000000: kvm_fpu: x", ("", 0, 5, 0, 1_000_000_000, "kvm_fpu", "x")),
        ];
        for (line, expected) in cases {
            check(ThreadDialect::Ftrace, line, expected);
        }
    }

    #[test]
    fn other_lines() {
        for line in [
            "",
            "# tracer: nop",
            "CPU 0 is empty",
            "        ffffffff81000000 vmx_vcpu_run+0x1 ([kernel.kallsyms])",
            "CPU:0 [EVENTS DROPPED]",
            "[000] 1.000000: x",
            "a-1 [000] 99999999999999999999.000000: x: y",
            "a 1 [000] 99999999999.000000: x: y",
        ] {
            assert_eq!(EventLine::read(line.as_bytes(), ThreadDialect::Ftrace), None, "{line}");
            assert_eq!(EventLine::read(line.as_bytes(), ThreadDialect::PerfScript), None, "{line}");
        }
    }
}
