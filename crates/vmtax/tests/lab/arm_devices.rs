//! Virtio disk and network of Linux guests on the arm64 host.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::arm::is_built;
use crate::run::{cache, count, json, path, refused, text};

const RUN: [&str; 5] = ["lab", "run", "--host", "arm", "--suite"];
/// Where the small VMM has its disks and cards, and registers of virtio-mmio (Virtual I/O Device 1.2, 4.2.2): QueueNotify, InterruptStatus, InterruptACK.
const DISK: u64 = 0x0a00_0000;
const CARD: u64 = 0x0a00_2000;
const BOUNCED: u64 = 0x1000;
const REGISTERS: [u64; 3] = [0x50, 0x60, 0x64];

fn rows(report: &Value) -> BTreeMap<&str, &Value> {
    let rows = report["operations"]["rows"].as_array().unwrap().iter();
    rows.map(|row| (text(&row["name"]), row)).collect()
}

/// Accesses of a batch to registers of this device.
fn accesses(row: &Value, device: u64) -> [u64; 3] {
    REGISTERS.map(|register| {
        let at = device + register;
        count(row, |exit| exit["reason"] == "DABT_LOW" && exit["detail"]["value"] == at)
    })
}

/// One notification for each access to a disk, and one interrupt, whose reason is read and acknowledged; a request and its answer take at least that.
fn assert_accesses(rows: &BTreeMap<&str, &Value>, end: &str, more: u64) {
    for name in ["read-4k", "read-64k", "write-4k"] {
        let row = rows[format!("linux-{name}{end}").as_str()];
        assert_eq!(accesses(row, DISK + more), [20, 20, 20], "{row}");
    }
    let row = rows[format!("linux-request{end}").as_str()];
    assert!(accesses(row, CARD + more).iter().all(|count| (20..32).contains(count)), "{row}");
    let row = rows[format!("linux-send-64k{end}").as_str()];
    assert!(accesses(row, CARD + more).iter().all(|count| *count >= 20), "{row}");
}

/// Debian's kernel has no bounce buffer of a device's own.
#[test]
fn disk_and_network_take_the_exits_of_virtio() {
    if !is_built() {
        return;
    }
    let report = json(&[&RUN[..], &["devices"]].concat());
    let rows = rows(&report);
    assert_eq!(rows.len(), 5, "{report}");
    assert_accesses(&rows, "", 0);
    let said = report.to_string();
    assert!(said.contains("CONFIG_DMA_RESTRICTED_POOL"), "{said}");
}

/// The host of a protected VM whose kernel shares nothing with it has no device for it, and goes on.
#[test]
fn a_protected_guest_that_shares_nothing_has_no_devices() {
    if !is_built() {
        return;
    }
    let kernel = ["--kernel", "debian:7.3", "--protected"];
    let operations = ["--operation", "linux-read-4k,linux-read-4k-bounced"];
    let report = json(&[&RUN[..4], &kernel, &operations].concat());
    assert_eq!(report["operations"]["rows"].as_array().map(Vec::len), None, "{report}");
    let said = report.to_string();
    for reason in ["its host cannot access its memory", "CONFIG_DMA_RESTRICTED_POOL"] {
        assert!(said.contains(reason), "{said}");
    }
}

/// A kernel that shares a bounce buffer, in an ordinary VM and in a protected one.
#[test]
fn a_protected_guest_reaches_its_devices_by_a_bounce_buffer() {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let caches = [Some(cache()), home].into_iter().flatten();
    let mut images = caches.map(|cache| cache.join("vmtax/guest-kernel-7.3/Image"));
    let Some(image) = images.find(|image| image.exists()).filter(|_| is_built()) else {
        return vmtax_skipped::system("there is no kernel for guests: crates/lab/guest-kernel.sh");
    };
    let run = |flags: &[&str]| {
        let kernels = ["--kernel", "debian:7.3", "--guest-kernel", image.to_str().unwrap()];
        json(&[&RUN[..], &["devices"], &kernels, flags].concat())
    };
    let (ordinary, protected) = (run(&[]), run(&["--protected"]));
    let (ordinary, protected) = (rows(&ordinary), rows(&protected));
    assert_eq!((ordinary.len(), protected.len()), (10, 5));
    assert_accesses(&ordinary, "", 0);
    for rows in [&ordinary, &protected] {
        assert_accesses(rows, "-bounced", BOUNCED);
    }
    for name in ["linux-read-64k", "linux-send-64k"] {
        let bounced = format!("{name}-bounced");
        // A copy of 64 KiB takes at least 64 Ki / 64 instructions.
        assert!(path(ordinary[bounced.as_str()]) > path(ordinary[name]) + 1_024.0, "{name}");
    }
}

#[test]
fn a_kernel_for_guests_is_refused_where_there_is_no_guest() {
    const DEVICES: &[&str] = &["--host", "arm", "--suite", "devices"];
    let says =
        "is for Linux guests of --host arm; choose --suite boot, workloads, first-touch or devices";
    for (flags, kernel, code, said) in [
        (&[][..], "/dev/null", 2, says),
        (&["--host", "arm"], "/dev/null", 2, says),
        (DEVICES, "/nowhere/Image", 3, "--guest-kernel /nowhere/Image: No such file or directory"),
        (DEVICES, "/dev/null", 4, "--guest-kernel /dev/null: is no Image of arm64"),
        (DEVICES, "/", 3, "--guest-kernel /: Is a directory"),
        (&["--host", "arm", "--nested", "--suite", "boot"], "x", 2, "cannot be used with"),
    ] {
        let (found, words) = refused(&[&["lab", "run", "--guest-kernel", kernel], flags].concat());
        assert_eq!(found, code, "{words}");
        assert!(words.contains(said), "{words}");
    }
}
