//! One list of descriptors, most with one mistake, for the model and for real queues.

use std::path::Path;
use std::time::{Duration, Instant};

use vmtax_pageops::device::idxd::{self, Roots};
use vmtax_pageops::device::model::{self, DeviceModel};
use vmtax_pageops::device::{CompletionRecord, Descriptor, Portal, Status, Submit, flag, opcode};

/// What a queue makes of descriptors that are right, and of descriptors with one mistake each.
fn statuses(portal: &mut dyn Portal) -> Vec<(String, Status)> {
    #[repr(align(64))]
    struct StatusBlocks([[u8; 4096]; 6]);
    let limits = portal.limits();
    let mut blocks = StatusBlocks([[7; 4096]; 6]);
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
        let done = CompletionRecord::default();
        let mut d = Descriptor { src, dst, size, operands, ..Descriptor::new(code, &done) };
        if name.contains("checked") {
            d.flags_opcode |= flag::CHECK_RESULT;
        }
        // SAFETY: blocks, list and record live until the record is written.
        assert!(matches!(unsafe { portal.submit(&d) }, Submit::Accepted), "{name}");
        let start = Instant::now();
        while done.read().is_none() {
            assert!(start.elapsed() < Duration::from_secs(600), "{name}: no completion");
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
        let dones: Vec<CompletionRecord> =
            (0..=limits.batch).map(|_| CompletionRecord::default()).collect();
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
    let model = DeviceModel::new(model::ModelConfig::default());
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
        let config = model::ModelConfig {
            batch: limits.batch,
            transfer: limits.transfer,
            ..model::ModelConfig::default()
        };
        let model = DeviceModel::new(config);
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
