//! Devices below the engine: the model's statuses and queues, and real queues as sysfs describes them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use vmtax_pageops::device::idxd::{self, Roots};
use vmtax_pageops::device::model::{self, Model};
use vmtax_pageops::device::{Completion, Descriptor, Portal, Record, Status, Submit, flag, opcode};

/// Hands one descriptor to a model and gives its completion.
fn one(model: &Model, descriptor: &Descriptor, record: &Record) -> Completion {
    // SAFETY: what the tests below name lives until the record is written.
    assert!(matches!(unsafe { model.portal().submit(descriptor) }, Submit::Accepted));
    let start = Instant::now();
    loop {
        if let Some(completion) = record.read() {
            return completion;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no completion of {descriptor:?}");
        std::thread::yield_now();
    }
}

#[test]
fn the_model_gives_every_status_of_the_device() {
    let model = Model::new(model::Config { batch: 4, transfer: 1 << 16, ..Default::default() });
    // A list of descriptors must be aligned, or that is what is found fault with first.
    #[repr(align(64))]
    struct Page([u8; 4096]);
    let Page(buffer) = &Page([1; 4096]);
    let Page(to) = &mut Page([0; 4096]);
    let (src, dst) =
        (buffer.as_ptr().expose_provenance() as u64, to.as_mut_ptr().expose_provenance() as u64);
    let status = |code: u8, change: &dyn Fn(&mut Descriptor)| {
        let record = Record::default();
        let mut descriptor = Descriptor { src, dst, size: 4096, ..Descriptor::new(code, &record) };
        change(&mut descriptor);
        one(&model, &descriptor, &record).status
    };
    let same = |_: &mut Descriptor| {};
    for code in [opcode::NOOP, opcode::DRAIN, opcode::MEMMOVE, opcode::CRCGEN, opcode::CFLUSH] {
        assert_eq!(status(code, &same), Status::Success, "{code:#x}");
    }
    assert_eq!(status(0x7e, &same), Status::BadOpcode);
    assert_eq!(status(opcode::MEMMOVE, &|d| d.flags_opcode |= 1 << 20), Status::BadFlags);
    assert_eq!(status(opcode::MEMMOVE, &|d| d.size = 0), Status::BadSize);
    assert_eq!(status(opcode::MEMMOVE, &|d| d.size = 1 << 20), Status::BadSize);
    assert_eq!(status(opcode::COPY_CRC, &|d| d.dst = d.src + 64), Status::Overlap);
    assert_eq!(status(opcode::DUALCAST, &|d| d.operands[0] = d.dst), Status::Overlap);
    assert_eq!(status(opcode::BATCH, &|d| d.size = 1), Status::BadCount);
    assert_eq!(status(opcode::BATCH, &|d| d.size = 5), Status::BadCount);
    assert_eq!(
        status(opcode::BATCH, &|d| (d.src, d.size) = (d.src | 8, 2)),
        Status::ListMisaligned
    );

    // A batch with one bad descriptor: the batch failed, each has its own status.
    let records = [Record::default(), Record::default()];
    let good = Descriptor { src, dst, size: 4096, ..Descriptor::new(opcode::MEMMOVE, &records[0]) };
    let bad = Descriptor { size: 0, ..Descriptor::new(opcode::FILL, &records[1]) };
    let list = [good, bad];
    let record = Record::default();
    let list_at = list.as_ptr().expose_provenance() as u64;
    let batch = Descriptor { src: list_at, size: 2, ..Descriptor::new(opcode::BATCH, &record) };
    let done = one(&model, &batch, &record);
    assert_eq!((done.status, done.completed), (Status::BatchFailed, 2));
    assert_eq!(records[0].read().unwrap().status, Status::Success);
    assert_eq!(records[1].read().unwrap().status, Status::BadSize);
    assert_eq!(to, buffer);

    // A list that is not there, a block that is not there, and one that is resolved because that was asked for.
    model.absent(list_at..list_at + 64);
    record.clear();
    assert_eq!(one(&model, &batch, &record).status, Status::BatchPageFault);
    model.absent(src + 1024..src + 2048);
    record.clear();
    let copy = Descriptor { src, dst, size: 4096, ..Descriptor::new(opcode::MEMMOVE, &record) };
    let done = one(&model, &copy, &record);
    assert_eq!((done.status, done.completed, done.write_fault), (Status::PageFault, 1024, false));
    assert_eq!(done.fault_address, src + 1024);
    record.clear();
    let flags = Descriptor { flags_opcode: copy.flags_opcode | flag::BLOCK_ON_FAULT, ..copy };
    assert_eq!((one(&model, &flags, &record).status, model.resolved()), (Status::Success, 1));

    // A record that is not aligned is an error that nobody can be told of.
    let before = model.seen().unreported;
    let crooked = Descriptor { completion: copy.completion + 8, ..copy };
    // SAFETY: nothing is written to a record that is not aligned.
    assert!(matches!(unsafe { model.portal().submit(&crooked) }, Submit::Accepted));
    record.clear();
    let noop = Descriptor::new(opcode::DRAIN, &record);
    one(&model, &noop, &record);
    assert_eq!(model.seen().unreported, before + 1);

    for code in 0..=0x7f {
        assert_eq!(Status::from_code(code | 0x80).code(), code);
    }
}

#[test]
fn a_full_shared_queue_says_so() {
    let model = Model::new(model::Config {
        depth: 2,
        shared: true,
        service: Duration::from_millis(100),
        ..Default::default()
    });
    let records = [Record::default(), Record::default(), Record::default()];
    let mut portal = model.portal();
    // SAFETY: the records live until the portal is closed.
    let submitted: Vec<Submit> = records
        .iter()
        .map(|r| unsafe { portal.submit(&Descriptor::new(opcode::NOOP, r)) })
        .collect();
    assert!(
        matches!(submitted[..], [Submit::Accepted, Submit::Accepted, Submit::Busy]),
        "{submitted:?}"
    );
    portal.close();
    // SAFETY: refused.
    let late = unsafe { portal.submit(&Descriptor::new(opcode::NOOP, &records[2])) };
    assert!(matches!(late, Submit::Refused(_)));
    drop(model);
}

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

/// A queue whose portal cannot be mapped takes descriptors by write(): a pipe stands in for the device's file, so
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
    let record = Record::default();
    let descriptor = Descriptor {
        src: 1,
        dst: 2,
        size: 3,
        operands: [4, 5, 6],
        ..Descriptor::new(opcode::CRCGEN, &record)
    };
    let mut file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // SAFETY: nobody executes it.
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
