//! Writes the record: see the top of the crate.

use std::fs::File;
use std::io::Write;

use crate::api::Api;
use crate::clock::TcgClock;

/// `VMTAXTCG`.
const MAGIC: [u8; 8] = *b"VMTAXTCG";
const VERSION: u32 = 4;
/// Flags of the record.
const HAS_IDLE: u32 = 1;
const ARM64: u32 = 2;

const PARTIAL: u32 = 0b100 << 29;
const ACCESS: u32 = 0b101 << 29;
const UPPER: u32 = 0b110 << 29;
const BLOCK: u32 = 0xffff_fffe;
const MARK: u32 = 0xffff_fffc;
const IDLE: u32 = 0xffff_fffa;
const END: u32 = 0xffff_fff8;
const CPU: u32 = 0xffff_fff6;
const FRAME: u32 = 0xffff_fff4;
const LAST: u32 = 0xffff_fff2;
/// In the low word of a frame record's address: it was loaded.
const LOADED: u32 = 1;
/// The payload of a word whose kind takes three bits.
const VALUE: u32 = (1 << 29) - 1;

/// The instruction with which arm64 waits.
const WFI: [u8; 4] = 0xd503_207f_u32.to_le_bytes();

/// Size of a write, in bytes.
const PIECE: usize = 256 << 10;

/// Ports whose writes are marks.
#[derive(Clone, Copy)]
pub(crate) struct QemuMarks {
    pub(crate) on: u32,
    pub(crate) off: u32,
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) end: u32,
    /// On arm64: the address of port 0's page. Each port has a page, to whose start a mark stores.
    pub(crate) words: Option<u64>,
}

impl QemuMarks {
    pub(crate) fn has(&self, port: u32) -> bool {
        [self.on, self.off, self.end].contains(&port) || (self.first..=self.last).contains(&port)
    }
}

pub(crate) struct TranslatedBlock {
    id: u32,
    instructions: u32,
    /// Its last instruction is HLT or WFI.
    halts: bool,
    /// Not written yet.
    definition: Vec<u8>,
}

/// The state of a recording.
pub(crate) struct Recorder {
    pub(crate) api: Api,
    pub(crate) marks: QemuMarks,
    /// The port of the last `MOV EDX` of a mark.
    pub(crate) loaded: u32,
    out: Option<File>,
    clock: Option<TcgClock>,
    unwritten: Vec<u8>,
    on: bool,
    ids: u32,
    /// The vCPU that executes the current block.
    cpu: u32,
    /// Number of its instructions when the current block began.
    began: u64,
    /// Number of instructions in the current block; more than any block has while it is unknown.
    whole: u64,
    /// The current block ends with HLT or WFI.
    halts: bool,
    idle: u64,
    upper: u32,
    /// Where the last frame record was, until its second half has been accessed.
    frame: u64,
}

impl Recorder {
    pub(crate) fn new(api: Api, marks: QemuMarks, out: File, clock: Option<TcgClock>) -> Recorder {
        let mut unwritten = MAGIC.to_vec();
        unwritten.extend_from_slice(&VERSION.to_le_bytes());
        let idle = if clock.is_some() { HAS_IDLE } else { 0 };
        let flags = idle | if marks.words.is_some() { ARM64 } else { 0 };
        unwritten.extend_from_slice(&flags.to_le_bytes());
        Recorder {
            api,
            marks,
            loaded: 0,
            out: Some(out),
            clock,
            unwritten,
            on: false,
            ids: 0,
            cpu: 0,
            began: 0,
            whole: u64::MAX,
            halts: false,
            idle: 0,
            upper: 0,
            frame: 0,
        }
    }

    /// A block for [`Recorder::executed`].
    pub(crate) fn block(
        &mut self,
        address: [u64; 2],
        sizes: &[u8],
        code: &[u8],
    ) -> TranslatedBlock {
        let instructions = sizes.len() as u32;
        let halts = match self.marks.words {
            Some(_) => code.ends_with(&WFI),
            None => code.last() == Some(&0xf4) && sizes.last() == Some(&1),
        };
        let id = self.ids;
        self.ids += 1;
        if self.out.is_none() {
            return TranslatedBlock { id, instructions, halts, definition: Vec::new() };
        }
        let mut definition = Vec::with_capacity(36 + sizes.len() + code.len());
        for word in [BLOCK, id, instructions, code.len() as u32] {
            definition.extend_from_slice(&word.to_le_bytes());
        }
        for word in address {
            definition.extend_from_slice(&word.to_le_bytes());
        }
        definition.extend_from_slice(sizes);
        definition.extend_from_slice(code);
        definition.resize(definition.len().next_multiple_of(4), 0);
        TranslatedBlock { id, instructions, halts, definition }
    }

    /// A block begins on a vCPU. They take turns between blocks, so the current block is over.
    #[inline]
    pub(crate) fn executed(&mut self, cpu: u32, block: &mut TranslatedBlock) {
        if !self.on {
            return;
        }
        let mut now = self.api.executed(self.cpu);
        let done = now - self.began;
        if done != self.whole {
            self.word(PARTIAL | (done.min(u64::from(VALUE)) as u32));
        }
        if self.halts {
            self.waited();
        }
        if cpu != self.cpu {
            self.cpu = cpu;
            self.word(CPU);
            self.word(cpu);
            now = self.api.executed(cpu);
        }
        if !block.definition.is_empty() {
            let definition = std::mem::take(&mut block.definition);
            self.unwritten.extend_from_slice(&definition);
        }
        self.word(block.id);
        (self.began, self.whole, self.halts) = (now, block.instructions.into(), block.halts);
        if self.unwritten.len() > PIECE {
            self.flush();
        }
    }

    /// The vCPU may have been idle.
    fn waited(&mut self) {
        let idle = self.clock.as_ref().and_then(TcgClock::idle);
        if let Some(idle) = idle.filter(|idle| *idle != self.idle) {
            self.idle = idle;
            self.word(IDLE);
            self.unwritten.extend_from_slice(&idle.to_le_bytes());
        }
    }

    /// The last instruction of the current block begins; accesses so far were of the one before it.
    pub(crate) fn last_begins(&mut self) {
        if self.on {
            self.word(LAST);
        }
    }

    /// The last instruction of the current block accesses memory, or the one before it.
    #[inline]
    pub(crate) fn accessed(&mut self, address: u64) {
        if !self.on {
            return;
        }
        self.upper(address);
        self.word(ACCESS | (address as u32) >> 3);
    }

    /// The current block stores or loads a frame record. QEMU before 8 tells of both its halves.
    #[inline]
    pub(crate) fn framed(&mut self, address: u64, is_load: bool) {
        if !self.on || address == std::mem::replace(&mut self.frame, address).wrapping_add(8) {
            return;
        }
        self.upper(address);
        self.word(FRAME);
        self.word(address as u32 & !7 | if is_load { LOADED } else { 0 });
    }

    #[inline]
    fn upper(&mut self, address: u64) {
        let upper = (address >> 32) as u32 & VALUE;
        if upper != self.upper {
            self.upper = upper;
            self.word(UPPER | upper);
        }
    }

    /// An instruction that may belong to a mark is about to be executed on a vCPU; port 0 means the last one loaded.
    pub(crate) fn writes(&mut self, cpu: u32, port: u32) {
        let port = if port == 0 { std::mem::take(&mut self.loaded) } else { port };
        if !self.marks.has(port) || self.out.is_none() {
            return;
        }
        if port == self.marks.end {
            return self.end();
        }
        if port == self.marks.on && !self.on {
            (self.on, self.cpu) = (true, cpu);
            (self.began, self.whole, self.halts) = (self.api.executed(cpu), u64::MAX, false);
            self.waited();
            self.word(CPU);
            self.word(cpu);
        }
        if self.on {
            self.word(MARK);
            self.word(port);
        }
        if port == self.marks.off {
            self.on = false;
            self.flush();
        }
    }

    pub(crate) fn end(&mut self) {
        self.on = false;
        if self.out.is_some() {
            self.word(END);
            self.flush();
            self.out = None;
        }
    }

    fn word(&mut self, word: u32) {
        self.unwritten.extend_from_slice(&word.to_le_bytes());
    }

    /// A write error ends the recording: the reader has exited, or it notices that the end mark is missing.
    fn flush(&mut self) {
        if let Some(out) = &mut self.out
            && out.write_all(&self.unwritten).is_err()
        {
            self.out = None;
            self.on = false;
        }
        self.unwritten.clear();
    }
}
