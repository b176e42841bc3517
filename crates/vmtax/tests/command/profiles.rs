//! Profiles and counters that join a run, against `perf script` and inferno's own reading of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use inferno::collapse::Collapse;
use inferno::collapse::perf::Folder;

use crate::check::{Case, Program, check, stdout};

fn captures(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures").join(path)
}

/// A folder with a recording of exits, and the folded stacks that an import with these words writes.
fn folded(words: &str, place: &str) -> BTreeMap<String, u64> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("exits"), super::diff::TD).unwrap();
    stdout(folder.path(), &format!("import exits -o run --isa vmx {words}"));
    lines(&fs::read_to_string(folder.path().join(format!("run/stacks/{place}.folded"))).unwrap())
}

fn lines(text: &str) -> BTreeMap<String, u64> {
    let stack = |line: &str| {
        let (stack, weight) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), weight.parse().unwrap())
    };
    text.lines().map(stack).collect()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Samples in the recording, and events per sample.
const SAMPLES: u64 = 75;
const PERIOD: u64 = 3_344_481;

/// Three ways to the same stacks: perf.data and symbol tables by us, perf's text by us, perf's text by inferno.
#[test]
fn samples_have_the_stacks_that_perf_prints() {
    let script = captures("profile/input/script.txt");
    let mut by_inferno = Vec::new();
    Folder::default().collapse(&*fs::read(&script).unwrap(), &mut by_inferno).unwrap();
    let by_inferno = lines(std::str::from_utf8(&by_inferno).unwrap());
    assert_eq!(by_inferno.values().sum::<u64>(), SAMPLES * PERIOD);
    assert!(by_inferno.keys().any(|stack| stack.ends_with(";spin")));
    assert!(by_inferno.keys().any(|stack| stack.ends_with(";asm_exc_page_fault;exc_page_fault")));
    let of_text = folded(&format!("--host-profile {}", shown(&script)), "host");
    assert_eq!(of_text, by_inferno);
    let of_data = folded(
        &format!(
            "--host-profile {} --symbols {}",
            shown(&captures("profile/input/perf.data")),
            shown(&captures("profile/root"))
        ),
        "host",
    );
    assert_eq!(of_data, by_inferno);
    // Folded stacks are read as they are, and added up with the next file.
    let folder = tempfile::tempdir().unwrap();
    let text: String = by_inferno.iter().map(|(stack, n)| format!("{stack} {n}\n")).collect();
    fs::write(folder.path().join("folded"), text).unwrap();
    let file = shown(&folder.path().join("folded"));
    let twice = folded(&format!("--guest-profile {file} --guest-profile {file}"), "guest");
    let doubled: BTreeMap<String, u64> = by_inferno.into_iter().map(|(s, n)| (s, 2 * n)).collect();
    assert_eq!(twice, doubled);
}

/// Without the files that were recorded there are the names of the files, and nothing else is made up.
#[test]
fn functions_without_symbols_have_their_file() {
    let empty = tempfile::tempdir().unwrap();
    let words = format!(
        "--host-profile {} --symbols {}",
        shown(&captures("profile/input/perf.data")),
        shown(empty.path())
    );
    let stacks = folded(&words, "host");
    assert_eq!(stacks.values().sum::<u64>(), SAMPLES * PERIOD);
    let frames: std::collections::BTreeSet<&str> =
        stacks.keys().flat_map(|stack| stack.split(';').skip(1)).collect();
    assert_eq!(
        frames.into_iter().collect::<Vec<_>>(),
        ["[hot]", "[kernel.kallsyms]", "[libc.so.6]"]
    );
}

/// perf annotate's shares, to a hundredth of a percent.
#[test]
fn instructions_have_their_shares() {
    let file = captures("profile/input/annotate.txt");
    let stacks = folded(&format!("--guest-instructions {}", shown(&file)), "instructions");
    let text = fs::read_to_string(file).unwrap();
    let expected: Vec<u64> = text
        .lines()
        .filter_map(|line| {
            let (share, rest) = line.split_once(" :")?;
            let is_instruction =
                rest.trim().split(':').next()?.bytes().all(|b| b.is_ascii_hexdigit());
            is_instruction
                .then(|| share.trim().parse::<f64>().ok().map(|s| (s * 100.0).round() as u64))?
        })
        .collect();
    assert!(expected.len() > 5);
    let mut rows: Vec<(u64, u64)> = stacks
        .iter()
        .map(|(stack, weight)| {
            let (function, instruction) = stack.split_once(';').unwrap();
            assert_eq!(function, "spin");
            let address = instruction.split(' ').next().unwrap();
            (u64::from_str_radix(address, 16).unwrap(), *weight)
        })
        .collect();
    rows.sort_unstable();
    assert_eq!(rows.into_iter().map(|(_, weight)| weight).collect::<Vec<_>>(), expected);
}

/// What is no profile is one sentence, and no run is left.
#[test]
fn invalid_profiles_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("exits", super::diff::TD),
        ("prose", "This is no profile\nat all\n"),
        ("empty", ""),
        ("folded", "a;b 1\n"),
        ("counters", "no counters here\n"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    fs::copy(captures("profile/input/annotate.txt"), folder.path().join("annotate")).unwrap();
    let cases: &[Case<'_>] = &[
        (
            "import exits -o run --isa vmx --host-profile prose",
            4,
            "prose: not a recording that vmtax knows: it is no profile: *",
        ),
        ("import exits -o run --isa vmx --host-profile empty", 4, "empty: *"),
        (
            "import exits -o run --isa vmx --host-profile missing",
            3,
            "missing: cannot be read: No such file*",
        ),
        (
            "import exits -o run --isa vmx --host-profile annotate",
            4,
            "annotate: at byte 0: profile: is an annotated function and no profile of stacks",
        ),
        (
            "import exits -o run --isa vmx --guest-instructions folded",
            4,
            "folded: at byte 0: profile: is no annotated function*",
        ),
        (
            "import exits -o run --isa vmx --stats counters",
            4,
            "counters: at byte 0: counters: hold none: *",
        ),
        (
            "import exits -o run --isa vmx --symbols nowhere --host-profile folded",
            3,
            "nowhere: cannot be read: No such file*",
        ),
    ];
    check(&Program::new(), folder.path(), cases);
}
