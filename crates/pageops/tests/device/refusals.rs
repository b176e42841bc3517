//! What the model refuses, and the status of each mistake.

use std::time::Duration;

use vmtax_pageops::device::model::{self, DeviceModel};
use vmtax_pageops::device::{CompletionRecord, Descriptor, Portal, Status, Submit, flag, opcode};

use super::{AlignedMemory, one};

#[test]
fn the_model_gives_every_status_of_the_device() {
    let model =
        DeviceModel::new(model::ModelConfig { batch: 4, transfer: 1 << 16, ..Default::default() });
    // A list of descriptors must be aligned, or that is what is found fault with first.
    #[repr(align(64))]
    struct RefusedPage([u8; 4096]);
    let RefusedPage(buffer) = &RefusedPage([1; 4096]);
    let RefusedPage(to) = &mut RefusedPage([0; 4096]);
    let (src, dst) =
        (buffer.as_ptr().expose_provenance() as u64, to.as_mut_ptr().expose_provenance() as u64);
    let status = |code: u8, change: &dyn Fn(&mut Descriptor)| {
        let record = CompletionRecord::default();
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
    let records = [CompletionRecord::default(), CompletionRecord::default()];
    let good = Descriptor { src, dst, size: 4096, ..Descriptor::new(opcode::MEMMOVE, &records[0]) };
    let bad = Descriptor { size: 0, ..Descriptor::new(opcode::FILL, &records[1]) };
    let list = [good, bad];
    let record = CompletionRecord::default();
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
fn a_full_shared_queue_returns_its_status() {
    // Unless the computer stood still for as long as the first descriptor takes.
    assert!((0..50).any(|_| is_full_for_a_third()), "a queue for two took three");
}

/// Whether a queue for two, which took the first two, refused a third.
fn is_full_for_a_third() -> bool {
    let model = DeviceModel::new(model::ModelConfig {
        depth: 2,
        shared: true,
        service: Duration::from_millis(100),
        ..Default::default()
    });
    let records =
        [CompletionRecord::default(), CompletionRecord::default(), CompletionRecord::default()];
    let mut portal = model.portal().unwrap();
    // SAFETY: the records live until the portal is closed.
    let submitted: Vec<Submit> = records
        .iter()
        .map(|r| unsafe { portal.submit(&Descriptor::new(opcode::NOOP, r)) })
        .collect();
    assert!(matches!(submitted[..2], [Submit::Accepted, Submit::Accepted]), "{submitted:?}");
    portal.close();
    // SAFETY: refused.
    let late = unsafe { portal.submit(&Descriptor::new(opcode::NOOP, &records[2])) };
    assert!(matches!(late, Submit::Refused(_)));
    drop(model);
    matches!(submitted[2], Submit::Busy)
}

/// Deltas: what the specification does not allow is refused, as DML refuses it before hardware would.
#[test]
fn the_model_refuses_deltas_that_hardware_refuses() {
    let model = DeviceModel::new(model::ModelConfig { transfer: 1 << 20, ..Default::default() });
    let (mut old, mut new) = (AlignedMemory([1; 4096]), AlignedMemory([1; 4096]));
    let mut room = AlignedMemory([0; 8192]);
    (new.0[8], new.0[4000]) = (2, 3);
    let (old_at, new_at, room_at) = (old.at(), new.at(), room.at());
    let create = |change: &dyn Fn(&mut Descriptor)| {
        let record = CompletionRecord::default();
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
        let (mut record, mut region) = (AlignedMemory([0; 640]), AlignedMemory([0; 4096]));
        for (entry, bytes) in entries.iter().zip(record.0.chunks_exact_mut(10)) {
            bytes[..2].copy_from_slice(&entry.0.to_le_bytes());
            bytes[2..].copy_from_slice(&entry.1.to_le_bytes());
        }
        let done = CompletionRecord::default();
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
    let model = DeviceModel::new(model::ModelConfig::default());
    let (mut a, mut b) = (AlignedMemory([5; 256]), AlignedMemory([5; 256]));
    b.0[100] = 6;
    let (equal, other) = (a.at(), b.at());
    for (code, dst, result) in [
        (opcode::COMPARE, equal, 0),
        (opcode::COMPARE, other, 1),
        (opcode::COMPVAL, 0x0505_0505_0505_0505, 0),
        (opcode::COMPVAL, 7, 1),
    ] {
        for expected in [0, 1] {
            let record = CompletionRecord::default();
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
    let model = DeviceModel::new(model::ModelConfig::default());
    let mut block = AlignedMemory([5; 256]);
    let (record, last) = (CompletionRecord::default(), CompletionRecord::default());
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
