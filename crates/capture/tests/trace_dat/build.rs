//! Writes trace.dat files for tests: both versions, both byte orders, every compression.

use std::io::Write;

use crate::bytes::Bytes;

/// How version 7 compresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    None,
    Zlib,
    Zstd,
}

impl Codec {
    fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Zlib => "zlib",
            Codec::Zstd => "zstd",
        }
    }

    fn compress(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Codec::None => bytes.to_vec(),
            Codec::Zstd => zstd::bulk::compress(bytes, 3).unwrap(),
            Codec::Zlib => {
                let mut encoder =
                    flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
        }
    }
}

/// A ring buffer: an instance's name (empty: the top) and the pages of its CPUs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffer {
    pub(crate) name: &'static str,
    pub(crate) cpus: Vec<(u32, Vec<u8>)>,
}

/// What a file is to hold. The texts are as in the file, without sections around them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spec {
    pub(crate) big: bool,
    pub(crate) page_size: u32,
    pub(crate) header_info: Vec<u8>,
    pub(crate) event_formats: Vec<u8>,
    pub(crate) cmdlines: String,
    /// Number and data.
    pub(crate) options: Vec<(u16, Vec<u8>)>,
    pub(crate) buffers: Vec<Buffer>,
}

impl Bytes {
    fn set_u64(&mut self, at: usize, n: u64) {
        let raw = if self.big { n.to_be_bytes() } else { n.to_le_bytes() };
        self.bytes[at..at + 8].copy_from_slice(&raw);
    }

    fn pad_to(&mut self, multiple: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(multiple), 0);
    }
}

impl Spec {
    fn bytes(&self) -> Bytes {
        Bytes::new(self.big)
    }

    fn start(&self, version: &str) -> Bytes {
        let mut out = self.bytes();
        out.put(b"\x17\x08\x44tracing").put(version.as_bytes()).put(&[0, u8::from(self.big), 8]);
        out.u32(self.page_size);
        out
    }

    fn cmdlines_section(&self) -> Vec<u8> {
        let mut out = self.bytes();
        out.u64(self.cmdlines.len() as u64).put(self.cmdlines.as_bytes());
        out.bytes
    }

    /// Version 6. Every buffer has the CPUs 0.. in order.
    pub(crate) fn v6(&self) -> Vec<u8> {
        let mut out = self.start("6");
        out.put(&self.header_info).u32(0).put(&self.event_formats).u32(0).u32(0);
        out.put(&self.cmdlines_section());
        let top = self.buffers.iter().find(|b| b.name.is_empty()).unwrap();
        out.u32(top.cpus.len() as u32).put(b"options  \0");
        for (id, data) in &self.options {
            out.u16(*id).u32(data.len() as u32).put(data);
        }
        let mut instances = Vec::new();
        for buffer in self.buffers.iter().filter(|b| !b.name.is_empty()) {
            out.u16(3).u32(8 + buffer.name.len() as u32 + 1);
            instances.push((out.bytes.len(), buffer));
            out.u64(0).put(buffer.name.as_bytes()).put(&[0]);
            if buffer.cpus.len() != top.cpus.len() {
                out.u16(8).u32(4).u32(buffer.cpus.len() as u32);
            }
        }
        out.u16(0);
        self.v6_data(&mut out, top);
        for (place, buffer) in instances {
            let at = out.at();
            out.set_u64(place, at);
            self.v6_data(&mut out, buffer);
        }
        out.bytes
    }

    fn v6_data(&self, out: &mut Bytes, buffer: &Buffer) {
        out.put(b"flyrecord\0");
        let table = out.bytes.len();
        for _ in &buffer.cpus {
            out.u64(0).u64(0);
        }
        for (n, (_, pages)) in buffer.cpus.iter().enumerate() {
            out.pad_to(self.page_size as usize);
            let at = out.at();
            out.set_u64(table + 16 * n, at);
            out.set_u64(table + 16 * n + 8, pages.len() as u64);
            out.put(pages);
        }
    }

    /// Version 7, with ten pages in a chunk; the list of buffers comes last, as trace-cmd writes it.
    pub(crate) fn v7(&self, codec: Codec) -> Vec<u8> {
        let mut out = self.start("7");
        out.put(codec.name().as_bytes()).put(b"\x001.0\0");
        let first = out.bytes.len();
        out.u64(0);
        let mut options = self.bytes();
        let sections =
            [(16, &self.header_info), (18, &self.event_formats), (21, &self.cmdlines_section())];
        for (id, contents) in sections {
            options.u16(id).u32(8).u64(out.at());
            let mut body = self.bytes();
            if codec == Codec::None {
                body.put(contents);
            } else {
                let packed = codec.compress(contents);
                body.u32(packed.len() as u32).u32(contents.len() as u32).put(&packed);
            }
            self.head(&mut out, id, codec, body.bytes.len());
            out.put(&body.bytes);
        }
        for (id, data) in &self.options {
            options.u16(*id).u32(data.len() as u32).put(data);
        }
        let options_at = out.at();
        out.set_u64(first, options_at);
        options.u16(0).u32(8);
        self.head(&mut out, 0, Codec::None, options.bytes.len() + 8);
        out.put(&options.bytes);
        let done = out.bytes.len();
        out.u64(0);

        let mut options = self.bytes();
        for buffer in &self.buffers {
            let option = self.v7_data(&mut out, buffer, codec);
            options.u16(3).u32(option.len() as u32).put(&option);
        }
        let at = out.at();
        out.set_u64(done, at);
        options.u16(0).u32(8).u64(0);
        self.head(&mut out, 0, Codec::None, options.bytes.len());
        out.put(&options.bytes);
        out.bytes
    }

    fn head(&self, out: &mut Bytes, id: u16, codec: Codec, len: usize) {
        out.u16(id).u16(u16::from(codec != Codec::None)).u32(0).u64(len as u64);
    }

    /// A section of trace data; returns the option that describes it.
    fn v7_data(&self, out: &mut Bytes, buffer: &Buffer, codec: Codec) -> Vec<u8> {
        let page = self.page_size as usize;
        let mut option = self.bytes();
        option.u64(out.at()).put(buffer.name.as_bytes()).put(b"\0global\0");
        option.u32(self.page_size).u32(buffer.cpus.len() as u32);
        let head = out.bytes.len();
        self.head(out, 3, codec, 0);
        let start = out.at();
        for (cpu, pages) in &buffer.cpus {
            out.pad_to(page);
            let at = out.at();
            if codec == Codec::None {
                out.put(pages);
            } else {
                out.u32(pages.chunks(10 * page).count() as u32);
                for chunk in pages.chunks(10 * page) {
                    let packed = codec.compress(chunk);
                    out.u32(packed.len() as u32).u32(chunk.len() as u32).put(&packed);
                }
            }
            // As trace-cmd does: the size leaves out the count of chunks.
            let count = if codec == Codec::None { 0 } else { 4 };
            option.u32(*cpu).u64(at).u64(out.at() - at - count);
        }
        let len = out.at() - start;
        out.set_u64(head + 8, len);
        option.bytes
    }
}

/// The HEADER_INFO of a kernel whose long has `long` bytes.
pub(crate) fn header_info(big: bool, long: u32, page_size: u32) -> Vec<u8> {
    let data = 8 + long;
    let page = format!(
        "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
         \tfield: local_t commit;\toffset:8;\tsize:{long};\tsigned:1;\n\
         \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
         \tfield: char data;\toffset:{data};\tsize:{};\tsigned:1;\n",
        page_size - data
    );
    let event = "# compressed entry header\n\ttype_len    :    5 bits\n\ttime_delta  :   27 bits\n\
                 \tarray       :   32 bits\n\n\tpadding     : type == 29\n\ttime_extend : type == 30\n\
                 \ttime_stamp : type == 31\n\tdata max type_len  == 28\n";
    let mut out = Bytes::new(big);
    out.put(b"header_page\0").u64(page.len() as u64).put(page.as_bytes());
    out.put(b"header_event\0").u64(event.len() as u64).put(event.as_bytes());
    out.bytes
}

/// The EVENT_FORMATS of one system.
pub(crate) fn event_formats(big: bool, system: &str, formats: &[&str]) -> Vec<u8> {
    let mut out = Bytes::new(big);
    out.u32(1).put(system.as_bytes()).put(&[0]).u32(formats.len() as u32);
    for format in formats {
        out.u64(format.len() as u64).put(format.as_bytes());
    }
    out.bytes
}

/// A page of the ring, filled event by event.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    data: Bytes,
    start: u64,
    long: u32,
    flags: u64,
    lost: u64,
}

impl Page {
    pub(crate) fn new(big: bool, long: u32, start: u64) -> Page {
        Page { data: Bytes::new(big), start, long, flags: 0, lost: 0 }
    }

    fn word(&mut self, kind: u32, delta: u32) -> &mut Bytes {
        let word = if self.data.big { kind << 27 | delta } else { delta << 5 | kind };
        self.data.u32(word)
    }

    /// A record of whole words.
    pub(crate) fn record(mut self, delta: u32, record: &[u8]) -> Page {
        self.word(record.len() as u32 / 4, delta).put(record);
        self
    }

    /// A record with its length in a word.
    pub(crate) fn long_record(mut self, delta: u32, record: &[u8]) -> Page {
        self.word(0, delta).u32(record.len() as u32 + 4).put(record);
        self
    }

    /// A word of kind 29 (padding), 30 (time extend) or 31 (absolute time), then a word and bytes.
    pub(crate) fn special(mut self, kind: u32, low: u32, word: u32, rest: &[u8]) -> Page {
        self.word(kind, low).u32(word).put(rest);
        self
    }

    /// Events were lost before this page; how many, if a number is given.
    pub(crate) fn lost(mut self, count: Option<u64>) -> Page {
        self.flags = 1 << 31 | count.map_or(0, |_| 1 << 30);
        self.lost = count.unwrap_or(0);
        self
    }

    pub(crate) fn finish(self, page_size: u32) -> Vec<u8> {
        let mut out = Bytes::new(self.data.big);
        let commit = self.data.bytes.len() as u64 | self.flags;
        out.u64(self.start);
        let long = |out: &mut Bytes, n: u64| {
            if self.long == 8 {
                out.u64(n)
            } else {
                out.u32(n as u32)
            };
        };
        long(&mut out, commit);
        out.put(&self.data.bytes);
        long(&mut out, self.lost);
        assert!(out.bytes.len() <= page_size as usize);
        out.bytes.resize(page_size as usize, 0);
        out.bytes
    }
}
