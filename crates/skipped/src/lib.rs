//! For tests: a test that cannot run on this computer, or a part of one, is skipped by a call of this crate, so that none is
//! skipped silently. `./x test` lists the calls at its end, and fails if a package of packages.txt was missing.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;

/// The file that `./x test` names. A line is `KIND TAB TEST TAB REASON`, where KIND is `package` or `system`.
const FILE: &str = "VMTAX_SKIPPED";

/// Skips for want of a program or file of a package that packages.txt has for `test`.
#[track_caller]
pub fn package(package: &str) {
    note("package", &format!("the package {package} is not installed"));
}

/// Skips for want of something that no package gives: rights, hardware, a feature of the kernel.
#[track_caller]
pub fn system(reason: &str) {
    note("system", reason);
}

#[track_caller]
fn note(kind: &str, reason: &str) {
    let place = Location::caller().file();
    // The harness names a test's thread after it, unless it runs all in one.
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").unwrap_or("a test");
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = format!("{kind}\t{place}: {test}\t{}\n", one_line(reason));
    // In any case where a person who runs the test alone sees it.
    let _ = write!(std::io::stderr(), "skipped: {line}");
    if let Some(path) = std::env::var_os(FILE) {
        // One write, so that lines of tests that run at once stay whole.
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        assert!(written.is_ok(), "{}: {written:?}", path.display());
    }
}
