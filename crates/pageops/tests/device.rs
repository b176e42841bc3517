//! Devices below the engine: the model's statuses and queues, and real queues as sysfs describes them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use vmtax_pageops::device::idxd::{self, Roots};
use vmtax_pageops::device::model::{self, Model};
use vmtax_pageops::device::{Completion, Descriptor, Portal, Record, Status, Submit, flag, opcode};

/// Hands one descriptor to a model and gives its completion.
fn one(model: &Model, descriptor: &Descriptor, record: &Record) -> Completion {
    // SAFETY: what the tests below name lives until the record is written.
    assert!(matches!(unsafe { model.portal().unwrap().submit(descriptor) }, Submit::Accepted));
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
    assert_eq!(
        status(opcode::DUALCAST, &|d| d.operands[0] = d.dst + 64),
        Status::DualcastMisaligned
    );
    assert_eq!(status(opcode::MEMMOVE, &|d| d.reserved = 1), Status::ReservedNonzero);
    assert_eq!(
        status(opcode::MEMMOVE, &|d| d.flags_opcode |= flag::CHECK_RESULT),
        Status::BadFlags
    );
    for code in [opcode::MEMMOVE, opcode::NOOP, opcode::BATCH] {
        assert_eq!(status(code, &|d| d.pasid = 1 << 20), Status::ReservedNonzero, "{code:#x}");
        assert_eq!(status(code, &|d| d.pasid = 1 << 31), Status::BadPrivilege, "{code:#x}");
        let interrupt = |d: &mut Descriptor| d.flags_opcode |= flag::REQUEST_INTERRUPT;
        assert_eq!(status(code, &interrupt), Status::BadInterruptHandle, "{code:#x}");
        assert_eq!(status(code, &|d| d.flags_opcode |= 1 << 5), Status::BadFlags, "{code:#x}");
    }
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

    // An unaligned record is an error that cannot be reported.
    let before = model.seen().unreported;
    let crooked = Descriptor { completion: copy.completion + 8, ..copy };
    // SAFETY: nothing is written to a record that is not aligned.
    assert!(matches!(unsafe { model.portal().unwrap().submit(&crooked) }, Submit::Accepted));
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
    let mut portal = model.portal().unwrap();
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

/// Memory that delta operations and lists of descriptors are aligned in.
#[repr(align(64))]
struct Aligned<const N: usize>([u8; N]);

impl<const N: usize> Aligned<N> {
    fn at(&mut self) -> u64 {
        self.0.as_mut_ptr().expose_provenance() as u64
    }
}

/// Deltas: what the specification does not allow is refused, as DML refuses it before hardware would.
#[test]
fn the_model_refuses_deltas_that_hardware_refuses() {
    let model = Model::new(model::Config { transfer: 1 << 20, ..Default::default() });
    let (mut old, mut new) = (Aligned([1; 4096]), Aligned([1; 4096]));
    let mut room = Aligned([0; 8192]);
    (new.0[8], new.0[4000]) = (2, 3);
    let (old_at, new_at, room_at) = (old.at(), new.at(), room.at());
    let create = |change: &dyn Fn(&mut Descriptor)| {
        let record = Record::default();
        let operands = [room_at, 5120, 0];
        let mut d = Descriptor {
            src: old_at,
            dst: new_at,
            size: 4096,
            operands,
            ..Descriptor::new(opcode::CR_DELTA, &record)
        };
        change(&mut d);
        one(&model, &d, &record)
    };
    for (room, status) in [
        (30, Status::BadDeltaSize),
        (70, Status::BadDeltaSize),
        (8192, Status::BadDeltaSize),
        (0, Status::BadDeltaSize),
        (80, Status::Success),
        (5120, Status::Success),
    ] {
        assert_eq!(create(&|d| d.operands[1] = room).status, status, "room of {room}");
    }
    assert_eq!(create(&|d| d.src += 4).status, Status::AddressMisaligned);
    assert_eq!(create(&|d| d.dst += 4).status, Status::AddressMisaligned);
    assert_eq!(create(&|d| d.operands[0] += 4).status, Status::AddressMisaligned);
    assert_eq!(create(&|d| d.operands[1] |= 1 << 32).status, Status::ReservedNonzero);
    assert_eq!(create(&|d| d.size = 4092).status, Status::BadSize);
    assert_eq!(create(&|d| d.size = 0x8_0008).status, Status::BadSize);
    // Two words differ: result 1. The mask has a bit for each result.
    let mask = |mask: u64| {
        move |d: &mut Descriptor| {
            d.flags_opcode |= flag::CHECK_RESULT;
            d.operands[2] = mask;
        }
    };
    assert_eq!((create(&|_| ()).result, create(&|_| ()).value), (1, 20));
    for (bits, status) in [
        (0b000, Status::FalsePredicate),
        (0b001, Status::FalsePredicate),
        (0b010, Status::Success),
        (0b100, Status::FalsePredicate),
        (0b111, Status::Success),
    ] {
        assert_eq!(create(&mask(bits)).status, status, "mask {bits:03b}");
    }

    let apply = |entries: &[(u16, u64)], change: &dyn Fn(&mut Descriptor)| {
        let (mut record, mut region) = (Aligned([0; 640]), Aligned([0; 4096]));
        for (entry, bytes) in entries.iter().zip(record.0.chunks_exact_mut(10)) {
            bytes[..2].copy_from_slice(&entry.0.to_le_bytes());
            bytes[2..].copy_from_slice(&entry.1.to_le_bytes());
        }
        let done = Record::default();
        let mut d = Descriptor {
            src: record.at(),
            dst: region.at(),
            size: 4096,
            operands: [10 * entries.len() as u64, 0, 0],
            ..Descriptor::new(opcode::AP_DELTA, &done)
        };
        change(&mut d);
        let completion = one(&model, &d, &done);
        let word = |at: usize| u64::from_le_bytes(region.0[8 * at..8 * at + 8].try_into().unwrap());
        (completion.status, completion.completed, [word(1), word(3)])
    };
    assert_eq!(apply(&[(1, 7), (3, 9)], &|_| ()), (Status::Success, 0, [7, 9]));
    assert_eq!(apply(&[(3, 9), (1, 7)], &|_| ()), (Status::DeltaOrder, 10, [0, 9]));
    assert_eq!(apply(&[(1, 7), (512, 9)], &|_| ()), (Status::DeltaRange, 10, [7, 0]));
    let size = |size: u64| move |d: &mut Descriptor| d.operands[0] = size;
    assert_eq!(apply(&[(1, 7)], &size(15)).0, Status::BadDeltaSize);
    assert_eq!(apply(&[(1, 7)], &size(0)).0, Status::BadDeltaSize);
    assert_eq!(apply(&[(1, 7)], &|d| d.src += 2).0, Status::AddressMisaligned);
    assert_eq!(apply(&[(1, 7)], &|d| d.dst = d.src + 8).0, Status::Overlap);
}

/// Check Result: what was expected is success, what was not is a false predicate, and both have the result.
#[test]
fn a_result_that_was_not_expected_is_a_false_predicate() {
    let model = Model::new(model::Config::default());
    let (mut a, mut b) = (Aligned([5; 256]), Aligned([5; 256]));
    b.0[100] = 6;
    let (equal, other) = (a.at(), b.at());
    for (code, dst, result) in [
        (opcode::COMPARE, equal, 0),
        (opcode::COMPARE, other, 1),
        (opcode::COMPVAL, 0x0505_0505_0505_0505, 0),
        (opcode::COMPVAL, 7, 1),
    ] {
        for expected in [0, 1] {
            let record = Record::default();
            let mut d = Descriptor { src: equal, dst, size: 256, ..Descriptor::new(code, &record) };
            d.operands[0] = expected;
            let done = one(&model, &d, &record);
            assert_eq!((done.status, done.result), (Status::Success, result), "not asked");
            record.clear();
            d.flags_opcode |= flag::CHECK_RESULT;
            let done = one(&model, &d, &record);
            let status = [Status::FalsePredicate, Status::Success]
                [usize::from(expected == u64::from(result))];
            assert_eq!((done.status, done.result), (status, result), "{code:#x} {expected}");
        }
    }
}

/// Without a request for a record, success writes none; an error does.
#[test]
fn a_record_that_was_not_requested_comes_with_an_error() {
    let model = Model::new(model::Config::default());
    let mut block = Aligned([5; 256]);
    let (record, last) = (Record::default(), Record::default());
    let mut d =
        Descriptor { src: block.at(), size: 256, ..Descriptor::new(opcode::CRCGEN, &record) };
    d.flags_opcode &= !flag::REQUEST_CR;
    let mut portal = model.portal().unwrap();
    // SAFETY: the block and the records live until the drain completed.
    assert!(matches!(unsafe { portal.submit(&d) }, Submit::Accepted));
    drop(portal);
    one(&model, &Descriptor::new(opcode::DRAIN, &last), &last);
    assert_eq!(record.read(), None);
    assert_eq!(one(&model, &Descriptor { size: 0, ..d }, &record).status, Status::BadSize);
}

/// Operations, flags, statuses and places of members are those of the kernel's header for programs.
#[test]
fn descriptors_are_those_of_the_kernels_header() {
    use std::fmt::Write as _;
    let mut expected = Vec::new();
    let mut program = "#include <stddef.h>\n#include <stdio.h>\n#include <linux/idxd.h>\n\
        int main(void) {\n"
        .to_owned();
    let mut say = |expression: &str, value: u64| {
        let print = "printf(\"%s %llu\\n\"";
        writeln!(program, "{print}, \"{expression}\", (unsigned long long)({expression}));")
            .unwrap();
        expected.push(format!("{expression} {value}"));
    };
    for (name, code) in [
        ("NOOP", opcode::NOOP),
        ("BATCH", opcode::BATCH),
        ("DRAIN", opcode::DRAIN),
        ("MEMMOVE", opcode::MEMMOVE),
        ("MEMFILL", opcode::FILL),
        ("COMPARE", opcode::COMPARE),
        ("COMPVAL", opcode::COMPVAL),
        ("CR_DELTA", opcode::CR_DELTA),
        ("AP_DELTA", opcode::AP_DELTA),
        ("DUALCAST", opcode::DUALCAST),
        ("CRCGEN", opcode::CRCGEN),
        ("COPY_CRC", opcode::COPY_CRC),
        ("CFLUSH", opcode::CFLUSH),
    ] {
        say(&format!("DSA_OPCODE_{name}"), code.into());
    }
    for (name, bit) in [
        ("FENCE", flag::FENCE),
        ("BOF", flag::BLOCK_ON_FAULT),
        ("CRAV", flag::CR_ADDR_VALID),
        ("RCR", flag::REQUEST_CR),
        ("RCI", flag::REQUEST_INTERRUPT),
        ("CR", flag::CHECK_RESULT),
        ("CC", flag::CACHE_CONTROL),
    ] {
        say(&format!("IDXD_OP_FLAG_{name}"), bit.into());
    }
    for (name, status) in [
        ("SUCCESS", Status::Success),
        ("SUCCESS_PRED", Status::FalsePredicate),
        ("PAGE_FAULT_NOBOF", Status::PageFault),
        ("BATCH_FAIL", Status::BatchFailed),
        ("BATCH_PAGE_FAULT", Status::BatchPageFault),
        ("DR_OFFSET_NOINC", Status::DeltaOrder),
        ("DR_OFFSET_ERANGE", Status::DeltaRange),
        ("BAD_OPCODE", Status::BadOpcode),
        ("INVALID_FLAGS", Status::BadFlags),
        ("NOZERO_RESERVE", Status::ReservedNonzero),
        ("XFER_ERANGE", Status::BadSize),
        ("DESC_CNT_ERANGE", Status::BadCount),
        ("DR_ERANGE", Status::BadDeltaSize),
        ("OVERLAP_BUFFERS", Status::Overlap),
        ("DCAST_ERR", Status::DualcastMisaligned),
        ("DESCLIST_ALIGN", Status::ListMisaligned),
        ("INT_HANDLE_INVAL", Status::BadInterruptHandle),
        ("CRA_ALIGN", Status::RecordMisaligned),
        ("ADDR_ALIGN", Status::AddressMisaligned),
        ("PRIV_BAD", Status::BadPrivilege),
    ] {
        say(&format!("DSA_COMP_{name}"), status.code().into());
    }
    say("sizeof(struct dsa_hw_desc)", size_of::<Descriptor>() as u64);
    for (member, at) in [
        ("completion_addr", std::mem::offset_of!(Descriptor, completion)),
        ("src_addr", std::mem::offset_of!(Descriptor, src)),
        ("comp_pattern", std::mem::offset_of!(Descriptor, dst)),
        ("desc_count", std::mem::offset_of!(Descriptor, size)),
        ("int_handle", std::mem::offset_of!(Descriptor, interrupt)),
        ("rsvd1", std::mem::offset_of!(Descriptor, reserved)),
        ("delta_addr", std::mem::offset_of!(Descriptor, operands)),
        ("max_delta_size", std::mem::offset_of!(Descriptor, operands) + 8),
        ("expected_res_mask", std::mem::offset_of!(Descriptor, operands) + 16),
        ("delta_rec_size", std::mem::offset_of!(Descriptor, operands)),
        ("expected_res", std::mem::offset_of!(Descriptor, operands)),
        ("dest2", std::mem::offset_of!(Descriptor, operands)),
        ("crc_seed", std::mem::offset_of!(Descriptor, operands)),
    ] {
        say(&format!("offsetof(struct dsa_hw_desc, {member})"), at as u64);
    }
    say("sizeof(struct dsa_completion_record)", size_of::<Record>() as u64);
    // As the assertions beside the definitions have them.
    let record = [("status", 0), ("result", 1), ("bytes_completed", 4), ("fault_addr", 8)];
    for (member, at) in record.into_iter().chain([("crc_val", 16), ("delta_rec_size", 16)]) {
        say(&format!("offsetof(struct dsa_completion_record, {member})"), at);
    }
    program.push_str("return 0; }\n");
    let dir = tempfile::tempdir().unwrap();
    let (source, binary) = (dir.path().join("idxd.c"), dir.path().join("idxd"));
    fs::write(&source, program).unwrap();
    let made = Command::new("gcc").arg("-o").args([&binary, &source]).output().expect("gcc");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let said = String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

/// What a queue makes of descriptors that are right, and of descriptors with one mistake each.
fn statuses(portal: &mut dyn Portal) -> Vec<(String, Status)> {
    #[repr(align(64))]
    struct Blocks([[u8; 4096]; 6]);
    let limits = portal.limits();
    let mut blocks = Blocks([[7; 4096]; 6]);
    blocks.0[1][8] = 8;
    // Entries of a delta record: words 1 and 3, then in the wrong order, then past a region of 4096 bytes.
    for (at, word) in [(0, 1u16), (10, 3), (64, 3), (74, 1), (128, 1), (138, 512)] {
        blocks.0[5][at..at + 2].copy_from_slice(&word.to_le_bytes());
    }
    let start = blocks.0.as_mut_ptr().expose_provenance() as u64;
    let [old, new, dst, room, second, record] = [0, 1, 2, 3, 4, 5].map(|i: u64| start + 4096 * i);
    let mut found = Vec::new();
    let mut try_one = |name: &str, code: u8, src: u64, dst: u64, size: u64, operands: [u64; 3]| {
        let Ok(size) = u32::try_from(size) else { return };
        let done = Record::default();
        let mut d = Descriptor { src, dst, size, operands, ..Descriptor::new(code, &done) };
        if name.contains("checked") {
            d.flags_opcode |= flag::CHECK_RESULT;
        }
        // SAFETY: blocks, list and record live until the record is written.
        assert!(matches!(unsafe { portal.submit(&d) }, Submit::Accepted), "{name}");
        let start = Instant::now();
        while done.read().is_none() {
            assert!(start.elapsed() < Duration::from_secs(30), "{name}: no completion");
            std::thread::yield_now();
        }
        found.push((name.to_owned(), done.read().unwrap().status));
    };
    let none = [0; 3];
    for code in [opcode::NOOP, opcode::MEMMOVE, opcode::FILL, opcode::COMPARE, opcode::COMPVAL] {
        try_one(&format!("operation {code:#x}"), code, old, dst, 4096, none);
    }
    for code in [opcode::CRCGEN, opcode::COPY_CRC] {
        try_one(&format!("operation {code:#x}"), code, old, dst, 4096, none);
    }
    try_one("dualcast", opcode::DUALCAST, old, dst, 4096, [second, 0, 0]);
    try_one("dualcast to other low bits", opcode::DUALCAST, old, dst, 64, [second + 64, 0, 0]);
    try_one("dualcast to one place", opcode::DUALCAST, old, dst, 64, [dst, 0, 0]);
    try_one("no such operation", 0x7e, old, dst, 4096, none);
    try_one("copy of nothing", opcode::MEMMOVE, old, dst, 0, none);
    try_one("copy above the limit", opcode::MEMMOVE, old, dst, limits.transfer + 1, none);
    try_one("copy with CRC onto itself", opcode::COPY_CRC, old, old + 64, 128, none);
    try_one("copy, checked", opcode::MEMMOVE, old, dst, 64, none);
    try_one("compare, checked, as expected", opcode::COMPARE, old, new, 4096, [1, 0, 0]);
    try_one("compare, checked, not as expected", opcode::COMPARE, old, new, 4096, none);
    for size in [0, 30, 70, 80, 4090, 4096] {
        let operands = [room, size, 0];
        try_one(&format!("delta, room {size}"), opcode::CR_DELTA, old, new, 4096, operands);
    }
    try_one("delta, old + 4", opcode::CR_DELTA, old + 4, new, 2048, [room, 80, 0]);
    try_one("delta, new + 4", opcode::CR_DELTA, old, new + 4, 2048, [room, 80, 0]);
    try_one("delta, record + 4", opcode::CR_DELTA, old, new, 4096, [room + 4, 80, 0]);
    try_one("delta of 4092 bytes", opcode::CR_DELTA, old, new, 4092, [room, 80, 0]);
    try_one("delta, checked, as expected", opcode::CR_DELTA, old, new, 4096, [room, 80, 0b010]);
    try_one("delta, checked, other", opcode::CR_DELTA, old, new, 4096, [room, 80, 0b101]);
    for (name, at, size) in [
        ("apply", record, 20),
        ("apply out of order", record + 64, 20),
        ("apply past the region", record + 128, 20),
        ("apply 15 bytes", record, 15),
        ("apply nothing", record, 0),
        ("apply from a place not aligned", record + 2, 20),
    ] {
        try_one(name, opcode::AP_DELTA, at, dst, 4096, [size, 0, 0]);
    }
    if limits.batch >= 2 {
        // A queue that looked past its limit would find descriptors that do nothing.
        let dones: Vec<Record> = (0..=limits.batch).map(|_| Record::default()).collect();
        let list: Vec<Descriptor> =
            dones.iter().map(|d| Descriptor::new(opcode::NOOP, d)).collect();
        let at = list.as_ptr().expose_provenance() as u64;
        try_one("batch", opcode::BATCH, at, 0, 2, none);
        try_one("batch of one", opcode::BATCH, at, 0, 1, none);
        try_one("batch above the limit", opcode::BATCH, at, 0, u64::from(limits.batch) + 1, none);
        try_one("batch, list not aligned", opcode::BATCH, at + 32, 0, 2, none);
    }
    found
}

/// The statuses that the specification gives, from the model's own queue.
#[test]
fn one_mistake_has_one_status() {
    let model = Model::new(model::Config::default());
    let found = statuses(&mut model.portal().unwrap());
    let wrong = |name: &str| match name {
        "dualcast to other low bits" => Status::DualcastMisaligned,
        "dualcast to one place" | "copy with CRC onto itself" => Status::Overlap,
        "no such operation" => Status::BadOpcode,
        "copy of nothing" | "copy above the limit" | "delta of 4092 bytes" => Status::BadSize,
        "copy, checked" => Status::BadFlags,
        "compare, checked, not as expected" | "delta, checked, other" => Status::FalsePredicate,
        "delta, room 0" | "delta, room 30" | "delta, room 70" | "delta, room 4096" => {
            Status::BadDeltaSize
        }
        "delta, old + 4" | "delta, new + 4" | "delta, record + 4" => Status::AddressMisaligned,
        "apply out of order" => Status::DeltaOrder,
        "apply past the region" => Status::DeltaRange,
        "apply 15 bytes" | "apply nothing" => Status::BadDeltaSize,
        "apply from a place not aligned" => Status::AddressMisaligned,
        "batch of one" | "batch above the limit" => Status::BadCount,
        "batch, list not aligned" => Status::ListMisaligned,
        _ => Status::Success,
    };
    assert!(found.len() > 35, "{found:?}");
    for (name, status) in found {
        assert_eq!(status, wrong(&name), "{name}");
    }
}

/// On real queues: VMTAX_DSA=/dev/dsa/wq0.0,... (`./x test-dsa` sets it). Each difference is one between the model and the device.
#[test]
#[ignore = "needs Intel DSA: ./x test-dsa /dev/dsa/wq0.0"]
fn real_queues_give_the_models_statuses() {
    let queues =
        std::env::var("VMTAX_DSA").expect("VMTAX_DSA names queues: /dev/dsa/wq0.0,/dev/dsa/wq0.1");
    let mut differences = Vec::new();
    for path in queues.split(',') {
        let roots = Roots::default();
        let queue = idxd::find(&roots, Path::new(path)).unwrap_or_else(|p| panic!("{p}"));
        let mut real = idxd::Idxd::open(&roots, queue).unwrap_or_else(|p| panic!("{p}"));
        let limits = real.limits();
        let config = model::Config {
            batch: limits.batch,
            transfer: limits.transfer,
            ..model::Config::default()
        };
        let model = Model::new(config);
        let expected = statuses(&mut model.portal().unwrap());
        for (model, real) in expected.into_iter().zip(statuses(&mut real)) {
            if model != real {
                differences
                    .push(format!("{path}: {}: {:?}, the model {:?}", real.0, real.1, model.1));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Every operation does what comes before the page that is not there, and says how much.
#[test]
fn operations_stop_at_a_page_that_is_not_there() {
    let model = Model::new(model::Config::default());
    let (mut src, mut dst) = (Aligned([7; 4096]), Aligned([0; 4096]));
    let mut more = Aligned([0; 8192]);
    let (src_at, dst_at) = (src.at(), dst.at());
    let hole = src_at + 1024;
    model.absent(hole..hole + 64);
    let cpu = vmtax_pageops::Cpu::scalar();
    let stop = |code: u8, dst: u64, operands: [u64; 3]| {
        let record = Record::default();
        let d =
            Descriptor { src: src_at, dst, size: 4096, operands, ..Descriptor::new(code, &record) };
        one(&model, &d, &record)
    };
    let crc = u64::from(cpu.crc32c(0, &src.0[..1024]));
    let room = more.at();
    for (code, to, operands, value) in [
        (opcode::MEMMOVE, dst_at, [0; 3], 0),
        (opcode::COPY_CRC, dst_at, [0; 3], crc),
        (opcode::CRCGEN, 0, [0; 3], crc),
        (opcode::COMPVAL, 0x0707_0707_0707_0707, [0; 3], 0),
    ] {
        let done = stop(code, to, operands);
        assert_eq!((done.status, done.completed), (Status::PageFault, 1024), "{code:#x}");
        assert_eq!((done.fault_address, done.value, done.result), (hole, value, 0), "{code:#x}");
    }
    assert_eq!((dst.0[1023], dst.0[1024]), (7, 0));
    // Differs before: that is the result, and the page is not needed.
    let done = stop(opcode::COMPVAL, 8, [0; 3]);
    assert_eq!((done.status, done.result), (Status::Success, 1));
    dst.0[1024..].fill(7);
    let done = stop(opcode::COMPARE, dst.at(), [0; 3]);
    assert_eq!((done.status, done.completed, done.result), (Status::PageFault, 1024, 0));
    dst.0[5] = 1;
    let done = stop(opcode::CR_DELTA, dst.at(), [room, 800, 0]);
    assert_eq!((done.status, done.completed, done.value), (Status::PageFault, 1024, 10));
    // Into a page that is not there: entries before it were applied.
    let mut record = Aligned([0; 64]);
    for (i, word) in [2u16, 130].into_iter().enumerate() {
        record.0[10 * i..10 * i + 2].copy_from_slice(&word.to_le_bytes());
        record.0[10 * i + 2] = 9;
    }
    let reported = Record::default();
    let operands = [20, 0, 0];
    let apply = Descriptor {
        src: record.at(),
        dst: src_at,
        size: 4096,
        operands,
        ..Descriptor::new(opcode::AP_DELTA, &reported)
    };
    let done = one(&model, &apply, &reported);
    assert_eq!((done.status, done.write_fault, done.completed), (Status::PageFault, true, 10));
    assert_eq!(src.0[16], 9);
}

#[test]
fn page_faults_are_resolved_only_where_the_queue_allows_it() {
    let model = Model::new(model::Config { block_on_fault: false, ..Default::default() });
    let (mut src, mut dst) = (Aligned([7; 256]), Aligned([0; 256]));
    let record = Record::default();
    let mut d = Descriptor {
        src: src.at(),
        dst: dst.at(),
        size: 256,
        ..Descriptor::new(opcode::MEMMOVE, &record)
    };
    d.flags_opcode |= flag::BLOCK_ON_FAULT;
    let done = one(&model, &d, &record);
    assert_eq!((done.status, done.value), (Status::BadFlags, u64::from(flag::BLOCK_ON_FAULT)));
}

/// A batch ends where its list does, and at a fence behind a descriptor that did not succeed; it says how far it came.
#[test]
fn batches_are_executed_in_part() {
    #[repr(align(64))]
    struct List([Descriptor; 4]);
    let (src, dst) = (Aligned([7; 64]), Aligned([0; 256]));
    let run = |model: &Model, change: &dyn Fn(&mut [Descriptor; 4], &Model)| {
        let records: [Record; 4] = Default::default();
        let (from, to) =
            (src.0.as_ptr().expose_provenance() as u64, dst.0.as_ptr().expose_provenance() as u64);
        let mut list = List([0, 1, 2, 3].map(|i: usize| Descriptor {
            src: from,
            dst: to + 64 * i as u64,
            size: 64,
            ..Descriptor::new(opcode::MEMMOVE, &records[i])
        }));
        change(&mut list.0, model);
        let record = Record::default();
        let at = list.0.as_ptr().expose_provenance() as u64;
        let batch = Descriptor { src: at, size: 4, ..Descriptor::new(opcode::BATCH, &record) };
        let done = one(model, &batch, &record);
        (done.status, done.completed, records.map(|record| record.read().map(|done| done.status)))
    };
    let ok = Some(Status::Success);
    let model = Model::new(model::Config::default());
    assert_eq!(run(&model, &|_, _| ()), (Status::Success, 4, [ok; 4]));
    let bad = Some(Status::BadSize);
    assert_eq!(
        run(&model, &|list, _| list[1].size = 0),
        (Status::BatchFailed, 4, [ok, bad, ok, ok])
    );
    let fenced = |list: &mut [Descriptor; 4], _: &Model| {
        list[1].size = 0;
        list[2].flags_opcode |= flag::FENCE;
    };
    assert_eq!(run(&model, &fenced), (Status::BatchFailed, 2, [ok, bad, None, None]));
    let only_fenced = |list: &mut [Descriptor; 4], _: &Model| list[2].flags_opcode |= flag::FENCE;
    assert_eq!(run(&model, &only_fenced), (Status::Success, 4, [ok; 4]));
    let cut = |list: &mut [Descriptor; 4], model: &Model| {
        let at = list.as_ptr().expose_provenance() as u64;
        model.absent(at + 128..at + 256);
    };
    assert_eq!(run(&model, &cut), (Status::BatchPageFault, 2, [ok, ok, None, None]));
}

#[test]
fn a_dedicated_queue_is_opened_once() {
    let model = Model::new(model::Config::default());
    let portal = model.portal().unwrap();
    let again = model.portal().err().unwrap();
    assert_eq!(again.kind(), std::io::ErrorKind::ResourceBusy);
    drop(portal);
    model.portal().unwrap();
    let shared = Model::new(model::Config { shared: true, ..Default::default() });
    let _both = (shared.portal().unwrap(), shared.portal().unwrap());
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
    let record = Record::default();
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
