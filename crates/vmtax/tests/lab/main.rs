//! `vmtax lab` for real: Debian's kernel on emulated hosts, counted exactly.
//!
//! The emulators are slow, so runs are shared between tests, and booted hosts are kept in the target folder.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stderr, reason = "how long emulators take is worth knowing")]

mod amd;
mod arm;
mod arm_devices;
#[expect(dead_code, reason = "shared with the tests of the report, which use all of it")]
#[path = "../../../report/tests/browser/mod.rs"]
mod browser;
mod budget;
mod chains;
mod check;
mod ci;
mod compare;
mod errors;
mod explain;
mod flat;
mod guest_perf;
mod intel;
mod memory;
mod observer;
mod own;
mod paging;
mod pmu;
mod probe;
mod profile;
mod readme;
mod record;
mod remedy;
mod run;
mod series;
mod soak;
mod start;
mod starts;
#[expect(dead_code, reason = "shared with other tests, which use all of it")]
#[path = "../terminal/mod.rs"]
mod terminal;
mod watch;
