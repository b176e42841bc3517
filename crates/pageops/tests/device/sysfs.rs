//! Queues as sysfs describes them.

use std::fs;
use std::path::Path;

use vmtax_pageops::device::idxd::{self, Roots};
use vmtax_pageops::device::{CompletionRecord, Descriptor, Portal, Submit, opcode};

/// A sysfs with one device and queues of every sort.
fn sysfs(root: &Path, queues: &[(&str, &[(&str, &str)])]) -> Roots {
    let roots = Roots { sysfs: root.join("sys"), dev: root.join("dev") };
    let write = |folder: &str, files: &[(&str, &str)]| {
        let folder = roots.sysfs.join(folder);
        fs::create_dir_all(&folder).unwrap();
        files
            .iter()
            .for_each(|(name, text)| fs::write(folder.join(name), format!("{text}\n")).unwrap());
    };
    fs::create_dir_all(&roots.dev).unwrap();
    write(
        "dsa0",
        &[
            ("state", "enabled"),
            ("numa_node", "1"),
            ("pasid_enabled", "1"),
            ("max_batch_size", "1024"),
            ("max_transfer_size", "2147483648"),
        ],
    );
    write("dsa1", &[("state", "disabled"), ("numa_node", "-1")]);
    write("dsa2", &[("state", "enabled"), ("pasid_enabled", "0"), ("max_transfer_size", "4096")]);
    for (name, changes) in queues {
        write(
            name,
            &[
                ("state", "enabled"),
                ("mode", "dedicated"),
                ("type", "user"),
                ("size", "16"),
                ("threshold", "0"),
                ("block_on_fault", "1"),
                ("max_batch_size", "32"),
                ("max_transfer_size", "2097152"),
            ],
        );
        write(name, changes);
        fs::write(roots.dev.join(name), "").unwrap();
    }
    roots
}

#[test]
fn queues_are_found_and_what_is_wrong_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let roots = sysfs(
        dir.path(),
        &[
            ("wq0.0", &[]),
            ("wq0.1", &[("mode", "shared"), ("max_batch_size", "4096")]),
            ("wq0.2", &[("state", "disabled")]),
            ("wq0.3", &[("type", "kernel")]),
            ("wq0.4", &[("size", "0")]),
            ("wq1.0", &[]),
            ("wq2.0", &[]),
            ("wq0.5", &[]),
        ],
    );
    fs::remove_file(roots.dev.join("wq0.5")).unwrap();
    let queues = idxd::discover(&roots).unwrap();
    let names: Vec<&str> = queues.iter().map(|q| q.name.as_str()).collect();
    assert_eq!(names, ["wq0.0", "wq0.1", "wq0.2", "wq0.3", "wq0.4", "wq0.5", "wq1.0", "wq2.0"]);
    let first = idxd::find(&roots, Path::new("/dev/dsa/wq0.0")).unwrap();
    assert_eq!((first.shared, first.block_on_fault, first.limits.depth), (false, true, 16));
    assert_eq!(
        (first.limits.batch, first.limits.transfer, first.limits.node),
        (32, 2 << 20, Some(1))
    );
    let second = idxd::find(&roots, Path::new("wq0.1")).unwrap();
    assert_eq!((second.shared, second.limits.batch), (true, 1024));
    for (name, what, fix) in [
        ("wq0.2", "disabled", "accel-config enable-wq dsa0/wq0.2"),
        ("wq0.3", "\"kernel\"", "--type=user"),
        ("wq0.4", "no entries", "--wq-size="),
        ("wq0.5", "is missing", "--driver-name=user"),
        ("wq1.0", "dsa1 is disabled", "accel-config enable-device dsa1"),
        ("wq2.0", "no SVA", "intel_iommu=on,sm_on"),
        ("wq9.9", "no such queue", "there are wq0.0, wq0.1"),
    ] {
        let problem = idxd::find(&roots, Path::new(name)).unwrap_err();
        assert_eq!(problem.queue, name);
        assert!(problem.what.contains(what), "{problem}");
        assert!(problem.fix.contains(fix), "{problem}");
    }
    let nowhere = Roots { sysfs: dir.path().join("none"), dev: dir.path().to_owned() };
    assert!(idxd::discover(&nowhere).unwrap().is_empty());
    assert!(idxd::find(&nowhere, Path::new("wq0.0")).unwrap_err().fix.contains("modprobe idxd"));
}

/// A queue whose portal cannot be mapped takes descriptors by write(): a pipe replaces the device's file, so
/// what arrives is exactly what was submitted.
#[test]
fn where_mapping_is_refused_descriptors_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let roots = sysfs(dir.path(), &[("wq0.0", &[])]);
    let path = roots.dev.join("wq0.0");
    fs::remove_file(&path).unwrap();
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let queue = idxd::find(&roots, Path::new("wq0.0")).unwrap();
    let mut portal = idxd::Idxd::open(&roots, queue).unwrap();
    assert_eq!((portal.way(), portal.limits().batch), ("write()", 0));
    let record = CompletionRecord::default();
    let descriptor = Descriptor {
        src: 1,
        dst: 2,
        size: 3,
        operands: [4, 5, 6],
        ..Descriptor::new(opcode::CRCGEN, &record)
    };
    let mut file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // SAFETY: it is not executed.
    assert!(matches!(unsafe { portal.submit(&descriptor) }, Submit::Accepted));
    let mut bytes = [0; 64];
    std::io::Read::read_exact(&mut file, &mut bytes).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(bytes[..4], [0; 4]);
    assert_eq!(bytes[4..8], [0x0c, 0, 0, opcode::CRCGEN]);
    assert_eq!(word(8), std::ptr::from_ref(&record) as u64);
    assert_eq!((word(16), word(24), word(32), word(40), word(48), word(56)), (1, 2, 3, 4, 5, 6));
    portal.close();
    // SAFETY: refused.
    assert!(matches!(unsafe { portal.submit(&descriptor) }, Submit::Refused(_)));
}
