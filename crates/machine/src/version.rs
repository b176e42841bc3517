//! Which version of an emulator is installed: path lengths and saved machines are those of a version.

use std::process::Command;
use std::time::Duration;

use crate::{Emulator, Tool, ToolLimits, bochs, qemu};

/// Each takes a quarter of a second where nothing else runs.
const LIMITS: ToolLimits = ToolLimits { time: Duration::from_secs(30), output: 1 << 20 };
/// Longer than any version.
const LONGEST: usize = 32;

/// The version of the emulator's program (`7.2.22`); `None` where it does not say.
pub fn version(emulator: Emulator) -> Option<String> {
    let (program, arguments, before): (_, &[&str], _) = match emulator {
        Emulator::Tcg { .. } | Emulator::TcgArm | Emulator::Kvm => {
            (qemu::board(emulator).program, &["--version"], "QEMU emulator version ")
        }
        // It has no option for it. Without a configuration it says its name, and ends: nothing can be booted.
        Emulator::Bochs { .. } => (
            bochs::PROGRAM,
            &["-q", "-f", "/dev/null", "display_library: term"],
            "Bochs x86 Emulator ",
        ),
    };
    let mut command = Command::new(program);
    command.args(arguments);
    let said = Tool::new(command, LIMITS).run().ok()?;
    [said.stdout, said.stderr].iter().find_map(|text| after(&String::from_utf8_lossy(text), before))
}

/// The word behind these, if it can be a version.
fn after(text: &str, before: &str) -> Option<String> {
    let (_, rest) = text.split_once(before)?;
    let word = rest.split_whitespace().next()?;
    let is_version = word.len() <= LONGEST
        && word.starts_with(|c: char| c.is_ascii_digit())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || ".-+~".contains(c));
    is_version.then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_emulators() {
        let qemu = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright\n";
        let bochs = "00000000000i[      ] lt_dlhandle is 0x1\n00000000000i[      ] Bochs x86 Emulator 2.7\n";
        let cases = [
            (qemu, "QEMU emulator version ", Some("7.2.22")),
            (bochs, "Bochs x86 Emulator ", Some("2.7")),
            ("", "Bochs x86 Emulator ", None),
            ("QEMU emulator version", "QEMU emulator version ", None),
            ("QEMU emulator version \u{1b}[1m", "QEMU emulator version ", None),
            ("QEMU emulator version none", "QEMU emulator version ", None),
        ];
        for (text, before, expected) in cases {
            assert_eq!(after(text, before).as_deref(), expected, "{text}");
        }
    }
}
