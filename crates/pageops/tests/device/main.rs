//! Devices below the engine: the model's statuses and queues, and real queues as sysfs describes them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod execution;
mod header;
mod refusals;
mod statuses;
mod sysfs;

use std::time::{Duration, Instant};

use vmtax_pageops::device::model::DeviceModel;
use vmtax_pageops::device::{Completion, CompletionRecord, Descriptor, Portal, Submit};

/// Hands one descriptor to a model and gives its completion.
fn one(model: &DeviceModel, descriptor: &Descriptor, record: &CompletionRecord) -> Completion {
    // SAFETY: what the tests below name lives until the record is written.
    assert!(matches!(unsafe { model.portal().unwrap().submit(descriptor) }, Submit::Accepted));
    let start = Instant::now();
    loop {
        if let Some(completion) = record.read() {
            return completion;
        }
        assert!(start.elapsed() < Duration::from_secs(600), "no completion of {descriptor:?}");
        std::thread::yield_now();
    }
}

/// Memory that delta operations and lists of descriptors are aligned in.
#[repr(align(64))]
struct AlignedMemory<const N: usize>([u8; N]);

impl<const N: usize> AlignedMemory<N> {
    fn at(&mut self) -> u64 {
        self.0.as_mut_ptr().expose_provenance() as u64
    }
}
