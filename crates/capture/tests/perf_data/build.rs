//! Writes perf.data files and streams for tests, in both byte orders.

use std::io::Write;

use crate::bytes::Bytes;

/// Bits of `sample_type`.
pub(crate) mod sample {
    pub(crate) const IP: u64 = 1 << 0;
    pub(crate) const TID: u64 = 1 << 1;
    pub(crate) const TIME: u64 = 1 << 2;
    pub(crate) const ADDR: u64 = 1 << 3;
    pub(crate) const READ: u64 = 1 << 4;
    pub(crate) const CALLCHAIN: u64 = 1 << 5;
    pub(crate) const ID: u64 = 1 << 6;
    pub(crate) const CPU: u64 = 1 << 7;
    pub(crate) const PERIOD: u64 = 1 << 8;
    pub(crate) const STREAM_ID: u64 = 1 << 9;
    pub(crate) const RAW: u64 = 1 << 10;
    pub(crate) const IDENTIFIER: u64 = 1 << 16;
    /// What `perf record -a -e 'kvm:*'` asks for.
    pub(crate) const USUAL: u64 = IDENTIFIER | IP | TID | TIME | CPU | PERIOD | RAW;
}

/// Bits of `read_format`.
pub(crate) mod read {
    pub(crate) const TIME_ENABLED: u64 = 1 << 0;
    pub(crate) const TIME_RUNNING: u64 = 1 << 1;
    pub(crate) const ID: u64 = 1 << 2;
    pub(crate) const GROUP: u64 = 1 << 3;
    pub(crate) const LOST: u64 = 1 << 4;
}

/// Record types.
pub(crate) mod record {
    pub(crate) const MMAP: u32 = 1;
    pub(crate) const LOST: u32 = 2;
    pub(crate) const COMM: u32 = 3;
    pub(crate) const EXIT: u32 = 4;
    pub(crate) const READ: u32 = 8;
    pub(crate) const SAMPLE: u32 = 9;
    pub(crate) const LOST_SAMPLES: u32 = 13;
    pub(crate) const HEADER_ATTR: u32 = 64;
    pub(crate) const TRACING_DATA: u32 = 66;
    pub(crate) const FINISHED_ROUND: u32 = 68;
    pub(crate) const AUXTRACE: u32 = 71;
    pub(crate) const HEADER_FEATURE: u32 = 80;
    pub(crate) const COMPRESSED: u32 = 81;
    pub(crate) const COMPRESSED2: u32 = 83;
}

pub(crate) const TYPE_HARDWARE: u32 = 0;
pub(crate) const TYPE_SOFTWARE: u32 = 1;
pub(crate) const TYPE_TRACEPOINT: u32 = 2;

const TRACING_DATA: u64 = 1;
const ATTR_SIZE: usize = 128;

impl Bytes {
    /// Zeros up to a multiple of 8.
    fn pad(&mut self) -> &mut Bytes {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self
    }
}

/// An event that was recorded.
#[derive(Clone, Debug)]
pub(crate) struct Attr {
    pub(crate) event_type: u32,
    pub(crate) config: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) sample_id_all: bool,
    pub(crate) clock: Option<u32>,
    pub(crate) ids: Vec<u64>,
}

impl Attr {
    /// A tracepoint, as perf asks for it.
    pub(crate) fn tracepoint(sample_type: u64, ids: &[u64]) -> Attr {
        Attr {
            event_type: TYPE_TRACEPOINT,
            // Events of perf with the same config record the same tracepoint.
            config: 300 + ids.first().copied().unwrap_or(0),
            sample_type,
            read_format: read::ID | read::LOST,
            sample_id_all: true,
            clock: None,
            ids: ids.to_vec(),
        }
    }

    fn bytes(&self, big: bool) -> Vec<u8> {
        // Bit fields fill from the low end on little-endian machines, from the high end on others.
        let flag = |set: bool, at: u32| u64::from(set) << if big { 63 - at } else { at };
        let flags = flag(self.sample_id_all, 18) | flag(self.clock.is_some(), 25);
        let mut out = Bytes::new(big);
        out.u32(self.event_type).u32(ATTR_SIZE as u32).u64(self.config).u64(1);
        out.u64(self.sample_type).u64(self.read_format).u64(flags);
        out.bytes.resize(92, 0);
        out.u32(self.clock.unwrap_or(0));
        out.bytes.resize(ATTR_SIZE, 0);
        out.bytes
    }

    fn id_bytes(&self, big: bool) -> Vec<u8> {
        let mut out = Bytes::new(big);
        for &id in &self.ids {
            out.u64(id);
        }
        out.bytes
    }
}

/// One sample: which fields are written is the attribute's choice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) id: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) time: u64,
    pub(crate) cpu: u32,
    /// The words of READ, as `read_format` lays them out.
    pub(crate) read: Vec<u64>,
    pub(crate) callchain: Vec<u64>,
    pub(crate) raw: Vec<u8>,
}

/// Who, when and where of a record that is not a sample.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct At {
    pub(crate) tid: u32,
    pub(crate) time: u64,
    pub(crate) cpu: u32,
}

/// What a file or stream is to hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spec {
    pub(crate) big: bool,
    pub(crate) attrs: Vec<Attr>,
    /// Format texts of the system kvm. None: no tracing data at all.
    pub(crate) formats: Vec<String>,
    /// Number and payload, in rising order, without the tracing data.
    pub(crate) features: Vec<(u64, Vec<u8>)>,
    pub(crate) records: Vec<u8>,
}

impl Spec {
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::new(self.big)
    }

    /// A record with this body, as it is.
    pub(crate) fn record(&self, kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut out = self.bytes();
        out.u32(kind).u16(misc).u16(8 + body.len() as u16).put(body);
        out.bytes
    }

    /// A record with these words behind its head.
    pub(crate) fn words(&mut self, kind: u32, misc: u16, words: &[u64]) -> &mut Spec {
        let mut body = self.bytes();
        for &word in words {
            body.u64(word);
        }
        self.raw(kind, misc, &body.bytes)
    }

    pub(crate) fn raw(&mut self, kind: u32, misc: u16, body: &[u8]) -> &mut Spec {
        let record = self.record(kind, misc, body);
        self.records.extend(record);
        self
    }

    /// A sample of the event `self.attrs[attr]`.
    pub(crate) fn sample(&mut self, attr: usize, s: &Sample) -> &mut Spec {
        use sample as bit;
        let has = |bit: u64| self.attrs[attr].sample_type & bit != 0;
        let mut body = self.bytes();
        let words = [(bit::IDENTIFIER, s.id), (bit::IP, 0xffff_ffff_8100_0000)];
        for (_, word) in words.into_iter().filter(|(b, _)| has(*b)) {
            body.u64(word);
        }
        if has(bit::TID) {
            body.u32(s.pid).u32(s.tid);
        }
        let words =
            [(bit::TIME, s.time), (bit::ADDR, 7), (bit::ID, s.id), (bit::STREAM_ID, s.id + 1)];
        for (_, word) in words.into_iter().filter(|(b, _)| has(*b)) {
            body.u64(word);
        }
        if has(bit::CPU) {
            body.u32(s.cpu).u32(0);
        }
        if has(bit::PERIOD) {
            body.u64(1);
        }
        if has(bit::READ) {
            s.read.iter().for_each(|&w| _ = body.u64(w));
        }
        if has(bit::CALLCHAIN) {
            body.u64(s.callchain.len() as u64);
            s.callchain.iter().for_each(|&w| _ = body.u64(w));
        }
        if has(bit::RAW) {
            // The kernel pads so that size and data end at a multiple of 8.
            let size = (4 + s.raw.len()).next_multiple_of(8) - 4;
            body.u32(size as u32).put(&s.raw).pad();
        }
        self.raw(record::SAMPLE, 0, &body.bytes)
    }

    /// A record that is not a sample, with the trailer that the first event asks for.
    pub(crate) fn side(&mut self, kind: u32, misc: u16, body: &[u8], at: At) -> &mut Spec {
        use sample as bit;
        let attr = &self.attrs[0];
        let has = |bit: u64| attr.sample_id_all && attr.sample_type & bit != 0;
        let id = attr.ids.first().copied().unwrap_or(0);
        let mut out = self.bytes();
        out.put(body);
        if has(bit::TID) {
            out.u32(at.tid).u32(at.tid);
        }
        for (bit, word) in [(bit::TIME, at.time), (bit::ID, id), (bit::STREAM_ID, id)] {
            if has(bit) {
                out.u64(word);
            }
        }
        if has(bit::CPU) {
            out.u32(at.cpu).u32(0);
        }
        if has(bit::IDENTIFIER) {
            out.u64(id);
        }
        self.raw(kind, misc, &out.bytes)
    }

    /// Everything up to now as compressed records of `kind`, cut every `cut` plain bytes.
    pub(crate) fn compress(&mut self, kind: u32, cut: usize) -> &mut Spec {
        let plain = std::mem::take(&mut self.records);
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
        for piece in plain.chunks(cut) {
            // One stream, flushed for every record, as perf does.
            encoder.write_all(piece).unwrap();
            encoder.flush().unwrap();
            let packed = std::mem::take(encoder.get_mut());
            let mut body = self.bytes();
            if kind == record::COMPRESSED2 {
                body.u64(packed.len() as u64).put(&packed).pad();
            } else {
                body.put(&packed);
            }
            self.raw(kind, 0, &body.bytes);
        }
        self
    }

    /// The tracing data with these formats, as `trace.dat` version 6 begins.
    pub(crate) fn tracing_data(&self) -> Vec<u8> {
        let mut out = self.bytes();
        out.put(b"\x17\x08\x44tracing0.6\0").put(&[u8::from(self.big), 8]).u32(4096);
        for item in [&b"header_page\0"[..], b"header_event\0"] {
            out.put(item).u64(5).put(b"text\n");
        }
        out.u32(1).u64(9).put(b"an ftrace");
        out.u32(1).put(b"kvm\0").u32(self.formats.len() as u32);
        for format in &self.formats {
            out.u64(format.len() as u64).put(format.as_bytes());
        }
        // kallsyms, printk formats, saved command lines.
        out.u32(0).u32(0).u64(0).pad();
        out.bytes
    }

    /// As a file: header, event ids, attributes, data, features.
    pub(crate) fn file(&self) -> Vec<u8> {
        let mut features = self.features.clone();
        if !self.formats.is_empty() {
            features.insert(0, (TRACING_DATA, self.tracing_data()));
        }
        let mut ids = self.bytes();
        let mut attrs = self.bytes();
        for attr in &self.attrs {
            attrs.put(&attr.bytes(self.big));
            attrs.u64(104 + ids.at()).u64(8 * attr.ids.len() as u64);
            ids.put(&attr.id_bytes(self.big));
        }
        let attrs_at = 104 + ids.at();
        let data_at = attrs_at + attrs.at();
        let mut set = [0u64; 4];
        for (feature, _) in &features {
            set[(feature / 64) as usize] |= 1 << (feature % 64);
        }
        let mut out = self.bytes();
        out.put(if self.big { b"2ELIFREP" } else { b"PERFILE2" });
        out.u64(104).u64(ATTR_SIZE as u64 + 16).u64(attrs_at).u64(attrs.at());
        out.u64(data_at).u64(self.records.len() as u64).u64(0).u64(0);
        for word in set {
            out.u64(word);
        }
        out.put(&ids.bytes).put(&attrs.bytes).put(&self.records);
        let mut at = out.at() + 16 * features.len() as u64;
        for (_, payload) in &features {
            out.u64(at).u64(payload.len() as u64);
            at += payload.len() as u64;
        }
        for (_, payload) in &features {
            out.put(payload);
        }
        out.bytes
    }

    /// As a stream: everything is a record, but for the payload of the tracing data.
    pub(crate) fn pipe(&self) -> Vec<u8> {
        let mut out = self.bytes();
        out.put(if self.big { b"2ELIFREP" } else { b"PERFILE2" }).u64(16);
        for attr in &self.attrs {
            let body = [attr.bytes(self.big), attr.id_bytes(self.big)].concat();
            out.put(&self.record(record::HEADER_ATTR, 0, &body));
        }
        for (feature, payload) in &self.features {
            let mut body = self.bytes();
            body.u64(*feature).put(payload);
            out.put(&self.record(record::HEADER_FEATURE, 0, &body.bytes));
        }
        if !self.formats.is_empty() {
            let payload = self.tracing_data();
            let mut body = self.bytes();
            body.u32(payload.len() as u32);
            out.put(&self.record(record::TRACING_DATA, 0, &body.bytes)).put(&payload);
        }
        out.put(&self.records);
        out.bytes
    }

    /// A text as a feature holds it: its length, then the text, padded with zeros.
    pub(crate) fn text(&self, text: &str) -> Vec<u8> {
        let len = (text.len() + 1).next_multiple_of(64);
        let mut out = self.bytes();
        out.u32(len as u32).put(text.as_bytes());
        out.bytes.resize(4 + len, 0);
        out.bytes
    }
}
