//! Scans and checksums of pages by an engine, for checkpoints.

use std::sync::Arc;
use std::time::Duration;

use super::{
    BackendPolicy, Dispatcher, EngineConfig, EngineStats, Op, OperationOutcome, OperationValue,
    ThreadedEngine,
};
use crate::checkpoint::Accelerate;
use crate::{Cpu, PAGE, PageFacts};

/// Runs operations to their end.
pub trait RunOperations {
    /// Returns the outcomes in order.
    ///
    /// # Safety
    ///
    /// What the operations name is as [`Dispatcher::submit`] asks, for the time of this call.
    unsafe fn run(&mut self, ops: &[Op]) -> Vec<OperationOutcome>;
}

impl RunOperations for Dispatcher {
    unsafe fn run(&mut self, ops: &[Op]) -> Vec<OperationOutcome> {
        // SAFETY: by the contract.
        unsafe { Dispatcher::run(self, ops) }
    }
}

/// A shared engine.
impl RunOperations for Arc<ThreadedEngine> {
    unsafe fn run(&mut self, ops: &[Op]) -> Vec<OperationOutcome> {
        // SAFETY: by the contract; this does not return before the job ended, or the engine was gone.
        let job = unsafe { self.submit(ops.to_vec()) };
        loop {
            if let Some(outcomes) = job.wait(Duration::from_millis(100)) {
                return outcomes;
            }
            if job.is_abandoned() {
                let config = EngineConfig { policy: BackendPolicy::Cpu, ..EngineConfig::default() };
                // SAFETY: by the contract; the engine closed its queues when it ended.
                return unsafe { Dispatcher::new(config, Vec::new()).run(ops) };
            }
        }
    }
}

/// Scans pages with its own dispatcher, or with a shared engine.
pub struct PageEngine<R = Dispatcher> {
    run: R,
    ops: Vec<Op>,
    /// CRC of a zero page.
    of_zero: u32,
}

impl<R: RunOperations> PageEngine<R> {
    /// On these queues.
    pub fn new(run: R) -> PageEngine<R> {
        PageEngine { run, ops: Vec::new(), of_zero: Cpu::best().crc32c(0, &[0; PAGE]) }
    }
}

impl PageEngine {
    /// Statistics so far.
    pub fn stats(&self) -> EngineStats {
        self.run.stats()
    }

    /// The dispatcher or engine.
    pub fn dispatcher(&mut self) -> &mut Dispatcher {
        &mut self.run
    }
}

impl<R: RunOperations> Accelerate for PageEngine<R> {
    fn scan(&mut self, pages: &[u8], out: &mut [PageFacts]) {
        assert_eq!(pages.len(), out.len() * PAGE, "one fact for each page");
        // First find zero pages, then checksum the others: that of a zero page is known.
        self.ops.clear();
        let zero = |page: &[u8]| Op::Compval { src: page.as_ptr(), len: PAGE, word: 0 };
        self.ops.extend(pages.chunks_exact(PAGE).map(zero));
        // SAFETY: the pages are borrowed for this call, and only read.
        let outcomes = unsafe { self.run.run(&self.ops) };
        self.ops.clear();
        for ((facts, outcome), page) in out.iter_mut().zip(outcomes).zip(pages.chunks_exact(PAGE)) {
            *facts =
                PageFacts { zero: outcome.value == OperationValue::Equal(true), crc: self.of_zero };
            if !facts.zero {
                self.ops.push(Op::Crc { src: page.as_ptr(), len: PAGE, seed: 0 });
            }
        }
        // SAFETY: as above.
        let outcomes = unsafe { self.run.run(&self.ops) };
        let mut outcomes = outcomes.into_iter();
        for facts in out.iter_mut().filter(|f| !f.zero) {
            if let Some(OperationValue::Crc(crc)) = outcomes.next().map(|o| o.value) {
                facts.crc = crc;
            }
        }
    }
}
