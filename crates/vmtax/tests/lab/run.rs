//! Running the command, and its operations table as text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use serde_json::Value;

/// Where kernels and booted hosts are kept between tests.
pub(crate) fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-cache")
}

/// The command, with its own cache.
pub(crate) fn vmtax(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmtax"));
    command.args(arguments).env("XDG_CACHE_HOME", cache());
    command
}

/// Runs it to its end.
pub(crate) fn output(arguments: &[&str]) -> Output {
    let started = Instant::now();
    let output = vmtax(arguments).output().unwrap();
    eprintln!("{:6.1} s: vmtax {}", started.elapsed().as_secs_f64(), arguments.join(" "));
    output
}

/// What it says on standard error, and its exit code.
pub(crate) fn refused(arguments: &[&str]) -> (i32, String) {
    let output = output(arguments);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A run's JSON report.
pub(crate) fn json(arguments: &[&str]) -> Value {
    parsed(&output(&[arguments, &["--format", "json"]].concat()))
}

/// What a run that succeeds prints.
pub(crate) fn printed(arguments: &[&str]) -> String {
    let output = output(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The JSON that a run printed; it must have succeeded.
pub(crate) fn parsed(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The row of an operation.
pub(crate) fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["operations"]["rows"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
}

/// Its exits of this kind, in all batches.
pub(crate) fn count(row: &Value, is: impl Fn(&Value) -> bool) -> u64 {
    let exits = row["exits"].as_array().unwrap().iter().filter(|exit| is(exit));
    exits.map(|exit| exit["count"].as_u64().unwrap()).sum()
}

/// Its path length.
pub(crate) fn path(row: &Value) -> f64 {
    row["path"]["median"].as_f64().unwrap()
}

/// Exits of the host's own clock, which no operation asks for.
const CLOCK: [&str; 4] = ["interrupt", "vintr", "EXTERNAL_INTERRUPT", "INTERRUPT_WINDOW"];

/// Of arm64 an operation may ask for it: then each takes as many. What is over is of the host's own clock.
const ARM_INTERRUPT: &str = "L1 IRQ";

/// `cpuid L2: L2 cpuid 1, L1 vmload 2, ...`: for each operation the exits of one, exact or as a fraction.
pub(crate) fn exits(report: &Value) -> BTreeMap<String, String> {
    let rows = report["operations"]["rows"].as_array().unwrap();
    rows.iter()
        .map(|row| (format!("{} {}", text(&row["name"]), text(&row["level"])), exits_of(row)))
        .collect()
}

fn exits_of(row: &Value) -> String {
    let exits = row["exits"].as_array().unwrap();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for exit in exits {
        if CLOCK.contains(&text(&exit["reason"]))
            || CLOCK.contains(&text(&exit["ancillary_of"]["reason"]))
        {
            continue;
        }
        let detail =
            exit["detail"]["name"].as_str().map_or_else(String::new, |name| format!(" {name}"));
        let name = format!("{} {}{detail}", text(&exit["level"]), text(&exit["reason"]));
        *counts.entry(name).or_default() += exit["count"].as_u64().unwrap();
    }
    let of = row["count"].as_u64().unwrap();
    if let Some(count) = counts.get_mut(ARM_INTERRUPT) {
        *count -= *count % of;
    }
    counts.retain(|_, count| *count > 0);
    let each = |count: u64| count as f64 / of as f64;
    let parts: Vec<String> =
        counts.iter().map(|(name, count)| format!("{name} {}", each(*count))).collect();
    parts.join(", ")
}

/// Path length of each operation.
pub(crate) fn paths(report: &Value) -> BTreeMap<String, f64> {
    let rows = report["operations"]["rows"].as_array().unwrap();
    let path = |row: &Value| {
        Some((
            format!("{} {}", text(&row["name"]), text(&row["level"])),
            row["path"]["median"].as_f64()?,
        ))
    };
    rows.iter().filter_map(path).collect()
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A version of an emulator is between these.
pub(crate) fn assert_versioned(value: &Value, before: &str, after: &str) {
    let version = text(value).strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    let is_version =
        |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) && !word.contains(' ');
    assert!(version.is_some_and(is_version), "{value}");
}

/// The table, as far as it is known beforehand, is exactly this.
pub(crate) fn assert_exits(report: &Value, expected: &[(&str, &str)]) {
    let found = exits(report);
    let wrong: Vec<String> = expected
        .iter()
        .filter(|(name, exits)| found.get(*name).map(String::as_str) != Some(exits))
        .map(|(name, exits)| format!("{name}: expected {exits:?}, found {:?}", found.get(*name)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Paths of two runs differ by at most half a percent.
pub(crate) fn assert_same_paths(one: &Value, other: &Value) {
    assert_close(&paths(one), &paths(other));
}

/// As [`assert_same_paths`].
pub(crate) fn assert_close(one: &BTreeMap<String, f64>, other: &BTreeMap<String, f64>) {
    assert_within(one, other, 0.005);
}

/// Paths differ by at most this part.
pub(crate) fn assert_within(one: &BTreeMap<String, f64>, other: &BTreeMap<String, f64>, most: f64) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    let off: Vec<String> = one
        .iter()
        .filter(|(name, path)| (*path - other[*name]).abs() > **path * most)
        .map(|(name, path)| format!("{name}: {path} and {}", other[name]))
        .collect();
    assert!(off.is_empty(), "{}", off.join("\n"));
}
