//! What a machine does that says nothing: its processors' registers, and the processor time of its emulator.

use std::fs;
use std::time::{Duration, Instant};

/// Silence before the first look, and the time between two.
const FIRST: Duration = Duration::from_secs(60);
const BETWEEN: Duration = Duration::from_secs(10);
/// Looks that agree before a processor is called stuck.
const LOOKS: usize = 6;
/// Processor time that the emulator has had between two of them: a machine that waits for this computer is not stuck.
const WORKED: Duration = Duration::from_secs(1);
/// The loop of a lock that is waited for is shorter, bytes.
const LOOP: u64 = 256;
/// Where kernels are in the address space, on x86-64 and arm64.
const KERNEL: u64 = 1 << 63;

/// A processor at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessorState {
    /// The address of its instruction.
    at: u64,
    /// Whether it takes interrupts.
    interrupts: bool,
    halted: bool,
}

/// A look at a machine.
#[derive(Clone, Debug)]
pub(crate) struct MachineLook {
    /// Registers, as the emulator prints them.
    pub(crate) text: String,
    processors: Vec<ProcessorState>,
    /// Processor time of the emulator so far.
    worked: Duration,
}

impl MachineLook {
    /// Of QEMU's `info registers -a`.
    pub(crate) fn new(text: String, emulator: u32) -> MachineLook {
        let processors = processors(&text);
        MachineLook { text, processors, worked: worked(emulator).unwrap_or_default() }
    }

    /// In words: what its processors do, and what the emulator did since an earlier look.
    pub(crate) fn words(&self, earlier: &MachineLook) -> String {
        let of = |state: &ProcessorState| match state.halted {
            true => format!("a processor is halted at {:#x}", state.at),
            false if state.interrupts => format!("a processor is at {:#x}", state.at),
            false => format!("a processor is at {:#x} with interrupts off", state.at),
        };
        let mut words: Vec<String> = self.processors.iter().map(of).collect();
        let worked = self.worked.saturating_sub(earlier.worked);
        words.push(format!(
            "the emulator took {} ms of processor time in a second",
            worked.as_millis()
        ));
        words.join(", ")
    }
}

/// Looks at a machine that has one processor and says nothing for long.
#[derive(Debug)]
pub(crate) struct KernelWatch {
    next: Instant,
    looks: Vec<MachineLook>,
}

impl KernelWatch {
    /// From now on.
    pub(crate) fn new() -> KernelWatch {
        KernelWatch { next: Instant::now() + FIRST, looks: Vec::new() }
    }

    pub(crate) fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Takes a look; the address where its kernel is stuck, if it is.
    pub(crate) fn take(&mut self, look: MachineLook) -> Option<u64> {
        self.next = Instant::now() + BETWEEN;
        self.looks.push(look);
        let last = self.looks.len().checked_sub(LOOKS)?;
        stuck_at(&self.looks[last..])
    }
}

/// Where a kernel waits for a lock that nobody will release: it is in the same few instructions at each look, with interrupts off, and the emulator worked
/// between them.
fn stuck_at(looks: &[MachineLook]) -> Option<u64> {
    let mut places = Vec::new();
    for look in looks {
        let [one] = look.processors[..] else { return None };
        if one.interrupts || one.halted || one.at < KERNEL {
            return None;
        }
        places.push(one.at);
    }
    let has_worked = |pair: &[MachineLook]| pair[1].worked.saturating_sub(pair[0].worked) >= WORKED;
    let (first, last) = (places.iter().min()?, places.iter().max()?);
    (last - first < LOOP && looks.windows(2).all(has_worked)).then_some(*first)
}

/// Of a text that has `RIP=`, `RFL=` and `HLT=` (x86-64; `EIP=` and `EFL=` in 32 bits), or `PC=` and `PSTATE=` (arm64), for each processor.
fn processors(text: &str) -> Vec<ProcessorState> {
    /// `IF` of RFLAGS.
    const TAKES: u64 = 1 << 9;
    /// `PSTATE.I`.
    const MASKED: u64 = 1 << 7;
    let mut found: Vec<ProcessorState> = Vec::new();
    for word in text.split_ascii_whitespace() {
        let Some((name, value)) = word.split_once('=') else { continue };
        let Ok(value) = u64::from_str_radix(value, 16) else { continue };
        match (name, found.last_mut()) {
            ("RIP" | "EIP" | "PC", _) => {
                found.push(ProcessorState { at: value, interrupts: true, halted: false });
            }
            ("RFL" | "EFL", Some(last)) => last.interrupts = value & TAKES != 0,
            ("PSTATE", Some(last)) => last.interrupts = value & MASKED == 0,
            ("HLT", Some(last)) => last.halted = value != 0,
            _ => {}
        }
    }
    found
}

/// Processor time of a process: utime and stime of proc(5), in ticks of 10 ms.
fn worked(process: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis(10 * (ticks()? + ticks()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(at: u64, interrupts: bool, halted: bool) -> ProcessorState {
        ProcessorState { at, interrupts, halted }
    }

    /// As QEMU 7.2 prints them.
    #[test]
    fn registers_are_read() {
        let x86 = "CPU#0\nRAX=0000000000000000 RBX=ffffffff82614940\n\
            RIP=ffffffff81a0f1db RFL=00000046 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=0\n\
            ES =0000 0000000000000000 ffffffff 00c00000\n\
            CPU#1\nEAX=00000000 EBX=00000000\nEIP=0000fff0 EFL=00000202 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=1\n";
        let expected = [state(0xffff_ffff_81a0_f1db, false, false), state(0xfff0, true, true)];
        assert_eq!(processors(x86), expected);
        let arm = " PC=ffff800008d1e8a0 X00=0000000000000000\nPSTATE=200003c9 --C- NS EL2h    FPU disabled\n";
        assert_eq!(processors(arm), [state(0xffff_8000_08d1_e8a0, false, false)]);
        assert_eq!(processors("unknown command"), []);
    }

    #[test]
    fn a_kernel_is_stuck_in_one_loop_with_interrupts_off() {
        const AT: u64 = 0xffff_ffff_81a0_f1d0;
        let look = |number: u64, state: ProcessorState| MachineLook {
            text: String::new(),
            processors: vec![state],
            worked: Duration::from_secs(5 * number),
        };
        let looks = |changed: Option<ProcessorState>| -> Vec<MachineLook> {
            let of = |number| match changed {
                Some(changed) if number == 3 => look(number, changed),
                _ => look(number, state(AT + 4 * number, false, false)),
            };
            (0..LOOKS as u64).map(of).collect()
        };
        assert_eq!(stuck_at(&looks(None)), Some(AT));
        for other in [
            state(AT, true, false),
            state(AT, false, true),
            state(AT + LOOP, false, false),
            // A payload's own loop.
            state(0x10_0000, false, false),
        ] {
            assert_eq!(stuck_at(&looks(Some(other))), None, "{other:?}");
        }
        let mut starved = looks(None);
        starved[3].worked = starved[2].worked;
        assert_eq!(stuck_at(&starved), None);
        let mut several = looks(None);
        several[5].processors.push(state(AT, false, false));
        assert_eq!(stuck_at(&several), None);

        let mut watch = KernelWatch::new();
        assert!(!watch.is_due());
        let found: Vec<_> = looks(None).into_iter().map(|look| watch.take(look)).collect();
        assert_eq!(found, [None, None, None, None, None, Some(AT)]);
    }

    #[test]
    fn what_a_machine_does_is_told() {
        let look = |at, interrupts, halted, worked| MachineLook {
            text: String::new(),
            processors: vec![state(at, interrupts, halted)],
            worked: Duration::from_millis(worked),
        };
        let before = look(0x10, true, true, 0);
        assert_eq!(
            look(0x10, true, true, 20).words(&before),
            "a processor is halted at 0x10, the emulator took 20 ms of processor time in a second"
        );
        assert!(
            look(0x20, false, false, 990).words(&before).starts_with(
                "a processor is at 0x20 with interrupts off, the emulator took 990 ms"
            )
        );
    }
}
