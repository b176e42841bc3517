//! Digits of every count that a person reads are in groups of three, in text and on pages.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::captures::unpack;
use crate::check::stdout;

/// Recordings, and the name that the commands below give each.
const RECORDINGS: [(&str, &str, &str); 5] = [
    ("amd-sched", "sched.perf.data.zst", "sched"),
    ("amd-nested", "all.perf.data.zst", "nested"),
    ("amd-two-vms", "two-vms.perf.data.zst", "two"),
    ("intel-nested", "intel-nested.perf.data.zst", "intel"),
    ("amd-same-workload", "workload.perf.data.zst", "workload"),
];

const RUNS: [(&str, &str); 5] = [
    ("bench-memory/amd-7.3", "memory"),
    ("bench-nested/amd-6.1", "levels"),
    ("lab-memory/amd-6.12-bounce", "bounce"),
    ("lab-memory/amd-7.3", "lab"),
    ("lab-network/vhost", "network"),
];

const COMMANDS: [&str; 18] = [
    "report sched",
    "report nested",
    "report two --by vm,vcpu,detail",
    "report intel",
    "report sched two",
    "report lab",
    "report bounce",
    "diff workload nested",
    "explain sched",
    "explain nested",
    "explain intel",
    "explain workload --against nested",
    "bench compare results.csv",
    "bench compare memory",
    "bench compare levels --exits",
    "lab compare lab bounce",
    "bench compare network --exits",
    "mem scan image",
];

#[test]
fn counts_are_grouped() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    for (capture, input, name) in RECORDINGS {
        symlink(unpack(capture, input), folder.join(name)).unwrap();
    }
    for (run, name) in RUNS {
        symlink(captures.join(run), folder.join(name)).unwrap();
    }
    fs::copy(captures.join("published/s2.csv"), folder.join("results.csv")).unwrap();
    fs::write(folder.join("image"), vec![7; 8 << 20]).unwrap();
    let mut found = Vec::new();
    for words in COMMANDS {
        for (format, read) in [("text", str::to_owned as fn(&str) -> String), ("html", legible)] {
            let words = format!("{words} --format {format}");
            let shown = String::from_utf8(stdout(folder, &words)).unwrap();
            let shown = read(&shown);
            assert!(shown.contains(|c: char| c.is_ascii_digit()), "{words}: {shown}");
            let lines = shown.lines().filter(|line| {
                // A recorder's command line, and years.
                let is_quoted = line.contains("/perf record ") || line.contains("ublished");
                !is_quoted && line.split_whitespace().any(is_ungrouped)
            });
            found.extend(lines.map(|line| format!("{words}: {line}")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A number of four digits and more before the point. What is in parentheses is an id: `web1 (4711)`.
fn is_ungrouped(word: &str) -> bool {
    let word = word.trim_end_matches([',', ';', ':', '.', '%']);
    let word = word.trim_start_matches(['+', '-', '±', '~', 'x']);
    let (whole, rest) = word.split_once('.').unwrap_or((word, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    whole.len() > 3 && digits(whole) && digits(rest)
}

/// What a page shows: its text, without scripts and styles, and what it shows of a thing under the pointer.
fn legible(page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once('<') {
        text.push_str(before);
        let (tag, mut behind) = after.split_once('>').unwrap_or((after, ""));
        for attribute in ["title", "aria-label"] {
            let value = tag.split_once(&format!(" {attribute}=\"")).map(|(_, value)| value);
            let value = value.and_then(|value| value.split('"').next());
            text.extend(value.map(|value| format!("\n{value}")));
        }
        for hidden in ["script", "style"] {
            if tag.split_whitespace().next() == Some(hidden) {
                let end = format!("</{hidden}>");
                behind = behind.split_once(end.as_str()).map_or("", |(_, behind)| behind);
            }
        }
        text.push('\n');
        rest = behind;
    }
    text + rest
}

#[test]
fn what_is_grouped() {
    for word in ["1548", "+1548", "1548,", "12345.6", "±2000", "x1000.5"] {
        assert!(is_ungrouped(word), "{word}");
    }
    for word in ["1,548", "(4711)", "0x1000", "999.9", "6.1.187", "2026-01-01", "v1000", "-"] {
        assert!(!is_ungrouped(word), "{word}");
    }
    let page = "<p title=\"1 of 2\">a</p><script>1000</script><style>x{2000}</style><td>3</td>";
    assert_eq!(legible(page).split_whitespace().collect::<Vec<_>>(), ["1", "of", "2", "a", "3"]);
}
