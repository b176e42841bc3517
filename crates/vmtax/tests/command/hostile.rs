//! Names in a recording are whatever a guest's owner, or an attacker, made them.

use std::fs;
use std::path::Path;

use crate::captures::{report, unpack};
use crate::check::{stdout, vmtax};

/// As long as the name it replaces, and short enough for the kernel.
const NAMES: [&[u8; 15]; 4] = [
    b"\x1b[2J\x1b]0;owned!\x07",
    b"<script>x</scr>",
    b"\"'&<b>,=1+1|\n\r;",
    b"\xff\xfe\xe2\x80\xae\xc2\x9b2J\x00abcde",
];
const NAME: &[u8; 15] = b"qemu-system-x86";

/// A recording whose VMs are called `name`. Returns how often the name was replaced.
fn rename(recording: &Path, name: &[u8; 15], to: &Path) -> usize {
    let mut bytes = fs::read(recording).unwrap();
    let mut at = 0;
    let mut replaced = 0;
    while let Some(found) = bytes[at..].windows(NAME.len()).position(|window| window == NAME) {
        at += found;
        bytes[at..at + NAME.len()].copy_from_slice(name);
        replaced += 1;
    }
    fs::write(to, bytes).unwrap();
    replaced
}

#[test]
fn names_cannot_reach_the_terminal_or_the_page() {
    let recording = unpack("amd-two-vms", "two-vms.perf.data.zst");
    let count = |text: &[u8]| text.iter().filter(|&&b| b == b'<').count();
    let flags = "--by vm,vcpu,reason,detail --event vmexit,cause,msr";
    let plain = report(
        &recording,
        &[&["--format", "html"], &flags.split(' ').collect::<Vec<_>>()[..]].concat(),
    );
    for name in NAMES {
        let folder = tempfile::tempdir().unwrap();
        assert!(rename(&recording, name, &folder.path().join("hostile")) > 1);
        stdout(folder.path(), "import hostile -o run --raw");
        for input in ["hostile", "run"] {
            for format in ["text", "csv"] {
                for color in ["never", "always"] {
                    let words = format!("report {input} --format {format} {flags} --color {color}");
                    check_plain(&stdout(folder.path(), &words), color == "always", &words);
                }
            }
            let json = stdout(folder.path(), &format!("report {input} --format json {flags}"));
            check_plain(&json, false, "json");
            assert!(serde_json::from_slice::<serde_json::Value>(&json).is_ok());
            let page = stdout(folder.path(), &format!("report {input} --format html {flags}"));
            check_plain(&page, false, "html");
            // Every `<` of the page is the page's own.
            assert_eq!(count(&page), count(plain.as_bytes()), "{name:?}");
            stdout(folder.path(), &format!("report {input} --format perfetto"));
            let metrics = stdout(folder.path(), &format!("report {input} --format prometheus"));
            check_plain(&metrics, false, "prometheus");
            super::prometheus::read(&metrics);
        }
        // Neither do they get there in an error.
        let output = vmtax(folder.path(), "report hostile --vm 7");
        assert_eq!(output.status.code(), Some(4));
        check_plain(&output.stderr, false, "error");
    }
}

/// Text without control characters, or those that turn the direction of writing, but for ends of lines and
/// our own colours.
fn check_plain(text: &[u8], has_colors: bool, what: &str) {
    let text = std::str::from_utf8(text).unwrap_or_else(|e| panic!("{what}: {e}"));
    // CSV ends its lines as RFC 4180 wants it.
    let text = &text.replace("\r\n", "\n");
    let mut rest = text.as_str();
    while let Some(at) =
        rest.find(|c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c))
    {
        let after = &rest[at..];
        let color = after.strip_prefix("\x1b[").and_then(|s| s.split_once('m'));
        let is_color =
            color.is_some_and(|(n, _)| n.bytes().all(|b| b.is_ascii_digit() || b == b';'));
        assert!(has_colors && is_color, "{what}: {:?}", after.chars().take(30).collect::<String>());
        rest = color.unwrap().1;
    }
}
