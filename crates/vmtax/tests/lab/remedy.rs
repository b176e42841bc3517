//! `vmtax lab remedy`: remedies tried on the emulated host.

use crate::run::{json, refused};

/// Exits before and after of each remedy: what was found and named, and what went.
fn tried(words: &[&str]) -> Vec<(String, [f64; 2], String, String)> {
    let document = json(&[&["lab", "remedy"], words].concat());
    assert_eq!(document["schema"], "vmtax-remedy-1");
    let rows = document["remedies"].as_array().unwrap().iter();
    rows.map(|row| {
        let word = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        assert_eq!(row["found"], true, "{row}");
        let exits = ["before", "after"].map(|key| row[key].as_f64().unwrap());
        (word("remedy"), exits, word("effect"), word("gone"))
    })
    .collect()
}

#[test]
fn what_is_not_tried_is_refused_before_the_host_boots() {
    let (code, message) = refused(&["lab", "remedy", "npt"]);
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("npt: is not tried here; what is: virtio-disk, "), "{message}");
}

/// Three pairs of VMs: the disk of a PC, its clock, and the host's pages.
#[test]
fn three_remedies_remove_what_explain_says() {
    let rows = tried(&["virtio-disk", "guest-clocksource", "huge-pages"]);
    let names: Vec<&str> = rows.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["virtio-disk", "guest-clocksource", "huge-pages"]);
    for ((name, [before, after], effect, gone), (least, most, left, subject)) in rows.iter().zip([
        (26.0, 33.0, 5.0, "ide-disk 16.00 -> 0.00"),
        (1.0, 1.2, 0.2, "clock-reads 1."),
        (50.0, 600.0, 20.0, "memory-faults "),
    ]) {
        assert!((least..most).contains(before) && *after < left, "{name}: {before} {after}");
        assert!(effect == "fewer" && gone.contains(subject), "{name}: {effect}, {gone}");
    }
}

/// Every row, twice: exits as the table of remedies says, and alike.
#[test]
#[ignore = "many minutes: two VMs of QEMU boot on an emulated host for each remedy; ./x soak remedies runs it"]
fn remedies_do_what_their_trials_say() {
    let [first, second] = [(); 2].map(|()| tried(&[]));
    for (one, other) in first.iter().zip(&second) {
        for (a, b) in one.1.iter().zip(other.1) {
            assert!((a - b).abs() <= 0.1 * a.max(b).max(1.0), "{}: {a} and {b}", one.0);
        }
        eprintln!("{}: {:?} and {:?}", one.0, one.1, other.1);
    }
}
