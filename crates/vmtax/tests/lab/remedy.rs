//! `vmtax lab remedy`: remedies tried on the emulated host.

use crate::run::{json, refused};

/// Exits before and after of each remedy: what was found and named, and what went.
fn tried(words: &[&str]) -> Vec<(String, [f64; 2], String, String)> {
    let document = json(&[&["lab", "remedy"], words].concat());
    assert_eq!(document["schema"], "vmtax-remedy-1");
    let rows = document["remedies"].as_array().unwrap().iter();
    rows.map(|row| {
        let word = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        assert_ne!(row["found"], false, "{row}");
        let exits = ["before", "after"].map(|key| row[key].as_f64().unwrap());
        (word("remedy"), exits, word("effect"), word("gone"))
    })
    .collect()
}

#[test]
fn what_is_not_tried_is_refused_before_the_host_boots() {
    let (code, message) = refused(&["lab", "remedy", "vls"]);
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("vls: cannot be tried here; try: virtio-disk, "), "{message}");
}

/// Ten pairs of VMs: what goes, and what stays.
#[test]
fn ten_remedies_do_what_explain_says() {
    const EXPECTED: [(&str, &str, &str); 10] = [
        ("virtio-disk", "fewer", "ide-disk 16.00 -> 0.00"),
        ("guest-clocksource", "fewer", "clock-reads 1."),
        ("huge-pages", "fewer", "memory-faults "),
        ("msi", "fewer", "level-interrupts "),
        // As many exits, or some more, but none that waits for the VMM.
        ("ioeventfd", "", "notifications-to-vmm 1.00 -> 0.00"),
        ("pv-eoi", "fewer", "no-virtual-apic "),
        ("tsc-deadline", "same", ""),
        ("no-halt-poll", "fewer", ""),
        ("fewer-vcpus", "fewer", ""),
        ("ksm-off", "fewer", ""),
    ];
    let rows = tried(&EXPECTED.map(|(name, ..)| name));
    assert_eq!(rows.len(), EXPECTED.len());
    for (name, effect, gone) in EXPECTED {
        let row = rows.iter().find(|row| row.0 == name).unwrap_or_else(|| panic!("{name}"));
        let is_effect = row.2 == effect || effect.is_empty() && row.2 != "fewer";
        assert!(is_effect && row.3.contains(gone), "{row:?}");
    }
}

/// Operations of `lab run`: options of modules, and two forms of one thing.
#[test]
fn operations_show_what_parameters_of_modules_do() {
    const EXPECTED: [(&str, &str); 7] = [
        ("npt", "shadow-paging 1.00 -> 0.00"),
        ("vgif", "gif 1.00 -> 0.00"),
        ("fewer-events", "counters 8.00 -> 0.00"),
        ("guest-nmi-watchdog", "counters 4.00 -> 0.00"),
        ("favordynmods", ""),
        ("rcu-expedited", ""),
        ("nx-huge-pages-never", ""),
    ];
    let rows = tried(&EXPECTED.map(|(name, _)| name));
    for (name, gone) in EXPECTED {
        let row = rows.iter().find(|row| row.0 == name).unwrap_or_else(|| panic!("{name}"));
        assert!(row.2 == "fewer" && row.3 == gone && row.1[1] <= 3.0, "{row:?}");
    }
}

/// Every row, twice: what the table of remedies says, which the command checks, and alike where instructions are counted.
#[test]
#[ignore = "many minutes: two VMs of QEMU boot on an emulated host for each remedy; ./x soak remedies runs it"]
fn remedies_do_what_their_trials_say() {
    const OF_TWO: [&str; 7] = [
        "vcpu-pinning",
        "cpu-isolation",
        "iothread-pinning",
        "pv-spin-hint",
        "host-nohz-full",
        "guest-nohz-full",
        "irq-affinity",
    ];
    for words in [&[][..], &OF_TWO] {
        let [first, second] = [(); 2].map(|()| tried(words));
        for (one, other) in first.iter().zip(&second) {
            for (a, b) in one.1.iter().zip(other.1) {
                let is_alike = (a - b).abs() <= 0.25 * a.max(b).max(1.0);
                assert!(is_alike || !words.is_empty(), "{}: {a} and {b}", one.0);
            }
            eprintln!("{}: {:?} and {:?}", one.0, one.1, other.1);
        }
    }
}
