//! Runs on an emulated host that a known defect of the emulator ended are made again, and counted.
//!
//! The defect is of QEMU's TCG, from 7.2 to the newest sources read (11): `helper_vmrun` in `svm_helper.c` delivers an event of type INTR at once,
//! and leaves its vector in `exception_index`. If the instruction budget of the emulator's main loop ends before the guest's next exit,
//! `cpu_handle_interrupt` finds that value instead of none, and the vector is delivered once more, whatever the guest's flags are. A Linux guest that is then
//! on its way into a handler loses its stack; one that is in the handler waits for its own lock, which the machine's watch finds. docs/measured/lab-method.md says what the lab does to make that rare.
//!
//! With counted instructions a machine does the same each time, so a further attempt starts what is in the host later.

use std::path::Path;

use vmtax_lab::{Error, console_text};

/// What Linux writes to its console when the defect meets it (`handle_stack_overflow` in arch/x86/kernel/traps.c).
const SIGNATURE: &str = "stack guard page was hit";

/// A machine that meets the defect this often in a row has another problem.
const MOST: usize = 3;

/// A console of a machine that the defect ended.
#[derive(Debug)]
pub(super) struct Lost {
    number: usize,
    console: Vec<u8>,
    error: String,
}

impl Lost {
    /// For the run's losses.
    pub(super) fn note(&self) -> String {
        format!(
            "attempt {} was lost as by a known defect of the emulator, which delivers an interrupt twice (docs/measured/lab-method.md), and was made again: {}",
            self.number, self.error
        )
    }

    /// Its console, as a file of the run.
    pub(super) fn into_file(self) -> (String, Vec<u8>) {
        (format!("console-{}.txt", self.number), self.console)
    }
}

/// Runs this with how many attempts were lost, again if the defect ended it: the console or the error says so. `console` is the file that it writes.
pub(super) fn run<T>(
    console: &Path,
    mut run: impl FnMut(usize) -> Result<T, Error>,
) -> (Result<T, Error>, Vec<Lost>) {
    let mut lost = Vec::new();
    loop {
        let result = run(lost.len());
        let Err(error) = &result else { return (result, lost) };
        let written = console_text(console);
        let number = lost.len() + 1;
        if !is_known(&written, error) || number == MOST {
            return (result, lost);
        }
        lost.push(Lost { number, console: written, error: error.to_string() });
    }
}

fn is_known(console: &[u8], error: &Error) -> bool {
    // The handler of the second interrupt waits for the lock that the first one's holds.
    if matches!(error, Error::Machine(vmtax_machine::Error::Stuck { .. })) {
        return true;
    }
    String::from_utf8_lossy(console).contains(SIGNATURE) || error.to_string().contains(SIGNATURE)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// How often a run is made whose consoles say this in turn, with whether it ended well, and what is lost.
    fn made(consoles: &[&str], well_at: usize) -> (usize, bool, Vec<(String, Vec<u8>)>) {
        let folder = tempfile::tempdir().unwrap();
        let console = folder.path().join("console");
        let mut times = 0;
        let (result, lost) = run(&console, |lost| {
            assert_eq!(lost, times);
            fs::write(&console, consoles[times]).unwrap();
            times += 1;
            if times > well_at { Ok(()) } else { Err(Error::Guest { message: "ended".to_owned() }) }
        });
        assert!(lost.iter().all(|one| {
            one.note().ends_with("made again: the emulated host could not do its work: ended")
        }));
        (times, result.is_ok(), lost.into_iter().map(Lost::into_file).collect())
    }

    /// A guest that waits for its own lock writes nothing.
    #[test]
    fn a_stuck_guest_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let console = folder.path().join("console");
        let stuck = || vmtax_machine::Error::Stuck {
            emulator: vmtax_machine::Emulator::Tcg { icount: true },
            at: 0xffff_ffff_8110_0000,
            console: vmtax_machine::Tail { path: console.clone(), lines: Vec::new() },
        };
        let mut times = 0;
        let (result, lost) = run(&console, |_| {
            times += 1;
            if times > 1 { Ok(()) } else { Err(stuck().into()) }
        });
        assert!(result.is_ok());
        let notes: Vec<String> = lost.iter().map(Lost::note).collect();
        assert!(notes.len() == 1 && notes[0].contains("stays at 0xffffffff81100000"), "{notes:?}");
    }

    #[test]
    fn the_known_defect_alone_is_tried_again() {
        let hit = "BUG: TASK stack guard page was hit at ffffc900";
        let file = |number, text: &str| (format!("console-{number}.txt"), text.as_bytes().to_vec());
        assert_eq!(made(&["fine"], 0), (1, true, vec![]));
        assert_eq!(made(&[hit, "fine"], 1), (2, true, vec![file(1, hit)]));
        assert_eq!(made(&[hit, hit, "fine"], 2), (3, true, vec![file(1, hit), file(2, hit)]));
        assert_eq!(made(&[hit, hit, hit], 9), (3, false, vec![file(1, hit), file(2, hit)]));
        assert_eq!(made(&["Kernel panic - not syncing: VFS", ""], 9), (1, false, vec![]));
        // Another failure after the defect is an error.
        assert_eq!(made(&[hit, "Oops: 0"], 9), (2, false, vec![file(1, hit)]));
    }
}
