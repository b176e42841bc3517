//! The arm64 host.

use crate::run::{assert_exits, assert_versioned, exits, json, paths, refused, text};

/// Exits of one operation. Those of WFE, TLBI and the timer's interrupt depend on KVM's traps, which the emulator's processor decides.
const L1: &[(&str, &str)] = &[];

/// Two runs, of which the second at least goes on from the saved host, have the same tables.
#[test]
fn on_arm64_operations_take_exactly_the_exits_they_must() {
    let report = json(&["lab", "run", "--host", "arm"]);
    assert_exits(&report, L1);
    let run = &report["run"];
    assert_versioned(&run["accelerator"], "emulated:QEMU TCG ", " (arm64, max, icount)");
    assert!(text(&run["cpu"]).contains("KVM in VHE mode"), "{run}");
    let again = json(&["lab", "run", "--host", "arm"]);
    assert_eq!(exits(&report), exits(&again));
    assert_eq!(paths(&report), paths(&again));
}

#[test]
fn what_the_arm64_host_cannot_do_is_refused() {
    for flag in ["--nested", "--profile"] {
        let (code, words) = refused(&["lab", "run", "--host", "arm", flag]);
        assert_eq!(code, 2, "{words}");
        assert!(words.contains("cannot be had on --host arm; use one of amd,"), "{words}");
    }
}
