//! Scanning and checksums of pages by an engine: what checkpoints ask for.

use super::{Dispatcher, Op, Stats, Value};
use crate::checkpoint::Accelerate;
use crate::{Cpu, PAGE, PageFacts};

/// A dispatcher that scans pages.
pub struct PageEngine {
    dispatcher: Dispatcher,
    ops: Vec<Op>,
    /// CRC of a zero page.
    of_zero: u32,
}

impl PageEngine {
    /// On these queues.
    pub fn new(dispatcher: Dispatcher) -> PageEngine {
        PageEngine { dispatcher, ops: Vec::new(), of_zero: Cpu::best().crc32c(0, &[0; PAGE]) }
    }

    /// What was done so far.
    pub fn stats(&self) -> Stats {
        self.dispatcher.stats()
    }
}

impl Accelerate for PageEngine {
    fn scan(&mut self, pages: &[u8], out: &mut [PageFacts]) {
        assert_eq!(pages.len(), out.len() * PAGE, "one fact for each page");
        // First which pages are zero, then the checksums of the others: a zero page's is known.
        self.ops.clear();
        let zero = |page: &[u8]| Op::Compval { src: page.as_ptr(), len: PAGE, word: 0 };
        self.ops.extend(pages.chunks_exact(PAGE).map(zero));
        // SAFETY: the pages are borrowed for this call, and only read.
        let outcomes = unsafe { self.dispatcher.run(&self.ops) };
        self.ops.clear();
        for ((facts, outcome), page) in out.iter_mut().zip(outcomes).zip(pages.chunks_exact(PAGE)) {
            *facts = PageFacts { zero: outcome.value == Value::Equal(true), crc: self.of_zero };
            if !facts.zero {
                self.ops.push(Op::Crc { src: page.as_ptr(), len: PAGE, seed: 0 });
            }
        }
        // SAFETY: as above.
        let outcomes = unsafe { self.dispatcher.run(&self.ops) };
        let mut outcomes = outcomes.into_iter();
        for facts in out.iter_mut().filter(|f| !f.zero) {
            if let Some(Value::Crc(crc)) = outcomes.next().map(|o| o.value) {
                facts.crc = crc;
            }
        }
    }
}
