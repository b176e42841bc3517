//! Page faults, batches and the owner of a queue.

use vmtax_pageops::device::model::{self, DeviceModel};
use vmtax_pageops::device::{CompletionRecord, Descriptor, Status, flag, opcode};

use super::{AlignedMemory, one};

/// Every operation does what comes before the page that is not there, and says how much.
#[test]
fn operations_stop_at_a_page_that_is_not_there() {
    let model = DeviceModel::new(model::ModelConfig::default());
    let (mut src, mut dst) = (AlignedMemory([7; 4096]), AlignedMemory([0; 4096]));
    let mut more = AlignedMemory([0; 8192]);
    let (src_at, dst_at) = (src.at(), dst.at());
    let hole = src_at + 1024;
    model.absent(hole..hole + 64);
    let cpu = vmtax_pageops::Cpu::scalar();
    let stop = |code: u8, dst: u64, operands: [u64; 3]| {
        let record = CompletionRecord::default();
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
    let mut record = AlignedMemory([0; 64]);
    for (i, word) in [2u16, 130].into_iter().enumerate() {
        record.0[10 * i..10 * i + 2].copy_from_slice(&word.to_le_bytes());
        record.0[10 * i + 2] = 9;
    }
    let reported = CompletionRecord::default();
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
    let model =
        DeviceModel::new(model::ModelConfig { block_on_fault: false, ..Default::default() });
    let (mut src, mut dst) = (AlignedMemory([7; 256]), AlignedMemory([0; 256]));
    let record = CompletionRecord::default();
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
    struct DescriptorList([Descriptor; 4]);
    let (src, dst) = (AlignedMemory([7; 64]), AlignedMemory([0; 256]));
    let run = |model: &DeviceModel, change: &dyn Fn(&mut [Descriptor; 4], &DeviceModel)| {
        let records: [CompletionRecord; 4] = Default::default();
        let (from, to) =
            (src.0.as_ptr().expose_provenance() as u64, dst.0.as_ptr().expose_provenance() as u64);
        let mut list = DescriptorList([0, 1, 2, 3].map(|i: usize| Descriptor {
            src: from,
            dst: to + 64 * i as u64,
            size: 64,
            ..Descriptor::new(opcode::MEMMOVE, &records[i])
        }));
        change(&mut list.0, model);
        let record = CompletionRecord::default();
        let at = list.0.as_ptr().expose_provenance() as u64;
        let batch = Descriptor { src: at, size: 4, ..Descriptor::new(opcode::BATCH, &record) };
        let done = one(model, &batch, &record);
        (done.status, done.completed, records.map(|record| record.read().map(|done| done.status)))
    };
    let ok = Some(Status::Success);
    let model = DeviceModel::new(model::ModelConfig::default());
    assert_eq!(run(&model, &|_, _| ()), (Status::Success, 4, [ok; 4]));
    let bad = Some(Status::BadSize);
    assert_eq!(
        run(&model, &|list, _| list[1].size = 0),
        (Status::BatchFailed, 4, [ok, bad, ok, ok])
    );
    let fenced = |list: &mut [Descriptor; 4], _: &DeviceModel| {
        list[1].size = 0;
        list[2].flags_opcode |= flag::FENCE;
    };
    assert_eq!(run(&model, &fenced), (Status::BatchFailed, 2, [ok, bad, None, None]));
    let only_fenced =
        |list: &mut [Descriptor; 4], _: &DeviceModel| list[2].flags_opcode |= flag::FENCE;
    assert_eq!(run(&model, &only_fenced), (Status::Success, 4, [ok; 4]));
    let cut = |list: &mut [Descriptor; 4], model: &DeviceModel| {
        let at = list.as_ptr().expose_provenance() as u64;
        model.absent(at + 128..at + 256);
    };
    assert_eq!(run(&model, &cut), (Status::BatchPageFault, 2, [ok, ok, None, None]));
}

#[test]
fn a_dedicated_queue_is_opened_once() {
    let model = DeviceModel::new(model::ModelConfig::default());
    let portal = model.portal().unwrap();
    let again = model.portal().err().unwrap();
    assert_eq!(again.kind(), std::io::ErrorKind::ResourceBusy);
    drop(portal);
    model.portal().unwrap();
    let shared = DeviceModel::new(model::ModelConfig { shared: true, ..Default::default() });
    let _both = (shared.portal().unwrap(), shared.portal().unwrap());
}
