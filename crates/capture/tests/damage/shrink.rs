//! Small valid recordings made of large real ones: the same parts in the same order, fewer of each.
//!
//! Kept are the formats of the tracepoints that the analysis knows (without their print formats), the
//! attributes and records of those, and some pages of each CPU. Little-endian recordings only. It trusts
//! its input, which is a capture of this repository, and panics if that is something else.

use super::build::{self, Buffer, Spec};
use super::bytes::Bytes;

const SAMPLE: u32 = 9;
const FINISHED_ROUND: u32 = 68;
const COMPRESSED: u32 = 81;
const TRACING_DATA: usize = 1;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn size_at(bytes: &[u8], at: usize) -> usize {
    u64_at(bytes, at) as usize
}

/// The tracepoints whose formats are kept.
const KEPT: [&str; 12] = [
    "kvm_exit",
    "kvm_entry",
    "kvm_msr",
    "kvm_pio",
    "kvm_mmio",
    "kvm_cpuid",
    "kvm_hypercall",
    "kvm_page_fault",
    "kvm_userspace_exit",
    "kvm_nested_vmexit",
    "kvm_vcpu_wakeup",
    "sched_switch",
];

/// What a trace.dat of version 6 and the tracing data of perf begin with.
struct MetadataHead {
    header_info: Vec<u8>,
    /// Systems and the formats of their events.
    formats: Vec<(String, Vec<String>)>,
    cmdlines: String,
    end: usize,
}

impl MetadataHead {
    fn read(bytes: &[u8]) -> MetadataHead {
        // Magic, version, byte order, size of long, page size.
        let mut at = 10 + 2 + 1 + 1 + 4;
        let start = at;
        for name in ["header_page\0", "header_event\0"] {
            at += name.len();
            at += 8 + size_at(bytes, at);
        }
        let header_info = bytes[start..at].to_vec();
        let take = |at: &mut usize| {
            let len = size_at(bytes, *at);
            *at += 8 + len;
            String::from_utf8_lossy(&bytes[*at - len..*at]).into_owned()
        };
        let ftrace = u32_at(bytes, at);
        at += 4;
        (0..ftrace).for_each(|_| drop(take(&mut at)));
        let systems = u32_at(bytes, at);
        at += 4;
        let mut formats = Vec::new();
        for _ in 0..systems {
            let name: Vec<u8> = bytes[at..].iter().copied().take_while(|&b| b != 0).collect();
            at += name.len() + 1;
            let events = u32_at(bytes, at);
            at += 4;
            let kept = (0..events).map(|_| take(&mut at)).filter(|f| is_kept(f)).map(|f| plain(&f));
            formats.push((String::from_utf8_lossy(&name).into_owned(), kept.collect::<Vec<_>>()));
        }
        formats.retain(|(_, kept)| !kept.is_empty());
        for _ in ["kallsyms", "printk formats"] {
            at += 4 + u32_at(bytes, at) as usize;
        }
        let cmdlines = take(&mut at);
        MetadataHead { header_info, formats, cmdlines, end: at }
    }

    fn event_formats(&self) -> Vec<u8> {
        let mut out = Bytes::new(false);
        out.u32(self.formats.len() as u32);
        for (system, formats) in &self.formats {
            let formats: Vec<&str> = formats.iter().map(String::as_str).collect();
            // Behind the count of systems.
            out.put(&build::event_formats(false, system, &formats)[4..]);
        }
        out.bytes
    }

    /// The tracing data of perf.
    fn tracing_data(&self) -> Vec<u8> {
        let mut out = Bytes::new(false);
        out.put(b"\x17\x08\x44tracing0.6\0").put(&[0, 8]).u32(4096);
        out.put(&self.header_info).u32(0).put(&self.event_formats());
        out.u32(0).u32(0).u64(0);
        out.bytes
    }

    /// Numbers of the kept events.
    fn ids(&self) -> Vec<u16> {
        let formats = self.formats.iter().flat_map(|(_, formats)| formats);
        let lines = formats.flat_map(|f| f.lines());
        lines.filter_map(|l| l.strip_prefix("ID: ")?.trim().parse().ok()).collect()
    }
}

fn is_kept(format: &str) -> bool {
    let name = format.lines().find_map(|l| l.strip_prefix("name: ")).unwrap_or_default();
    KEPT.contains(&name.trim())
}

/// Without the print format, which is the longest part.
fn plain(format: &str) -> String {
    let end = format.find("print fmt:").unwrap_or(format.len());
    format!("{}print fmt: \"\"\n", &format[..end])
}

/// A recording of perf, taken apart.
#[derive(Clone)]
pub(crate) struct Perf {
    /// Attributes and their event ids.
    attrs: Vec<(Vec<u8>, Vec<u8>)>,
    tracing_data: Vec<u8>,
    /// Feature bits and payloads.
    features: Vec<(usize, Vec<u8>)>,
    pub(crate) records: Vec<Vec<u8>>,
}

impl Perf {
    /// A file (not a stream) with `samples` of its samples, from the `skip`th on.
    pub(crate) fn read(file: &[u8], skip: usize, samples: usize) -> Perf {
        let (attr_size, data_at) = (size_at(file, 16), size_at(file, 40));
        let section = |at: usize| &file[size_at(file, at)..][..size_at(file, at + 8)];
        let features_at = data_at + size_at(file, 48);
        let bits = (0..256).filter(|bit| file[72 + bit / 8] >> (bit % 8) & 1 == 1);
        let features: Vec<(usize, Vec<u8>)> = bits
            .enumerate()
            .map(|(n, bit)| (bit, section(features_at + 16 * n).to_vec()))
            .collect();
        let (_, tracing_data) = features.iter().find(|(bit, _)| *bit == TRACING_DATA).unwrap();
        let head = MetadataHead::read(&[&tracing_data[..10], &tracing_data[12..]].concat());
        let ids = head.ids();
        let attrs = section(24).chunks_exact(attr_size).map(|entry| {
            let (attr, _) = entry.split_at(attr_size - 16);
            let at = attr.as_ptr() as usize - file.as_ptr() as usize + attr.len();
            (attr.to_vec(), section(at).to_vec())
        });
        let is_tracepoint = |attr: &[u8]| u32_at(attr, 0) == 2;
        let attrs: Vec<_> = attrs
            .filter(|(attr, _)| !is_tracepoint(attr) || ids.contains(&(u64_at(attr, 8) as u16)))
            .collect();
        let raw_at = raw_at(&attrs[0].0);
        let mut records = plain_records(section(40));
        // Who executes what does not matter, but some names should be there.
        let mut left = [(3, 5), (4, 5)];
        let mut number = 0;
        records.retain(|record| match u32_at(record, 0) {
            SAMPLE => {
                number += 1;
                number > skip
                    && number <= skip + samples
                    && ids.contains(&u16_at(record, raw_at + 4))
            }
            2 | 13 | FINISHED_ROUND => true,
            kind => match left.iter_mut().find(|(k, n)| *k == kind && *n > 0) {
                Some((_, n)) => {
                    *n -= 1;
                    true
                }
                None => false,
            },
        });
        // Rounds that became empty: one of them is enough.
        records.dedup_by(|a, b| u32_at(a, 0) == FINISHED_ROUND && u32_at(b, 0) == FINISHED_ROUND);
        let wanted = [3, 4, 5, 6, 7, 8, 11, 23];
        let mut kept = features.clone();
        kept.retain(|(bit, payload)| wanted.contains(bit) && payload.len() < 2000);
        Perf { attrs, tracing_data: head.tracing_data(), features: kept, records }
    }

    /// As a file. `compressed`: its records as `perf record -z` writes them, some in each piece.
    pub(crate) fn file(&self, compressed: Option<usize>) -> Vec<u8> {
        let mut out = Bytes::new(false);
        let (attr_len, header) = (self.attrs[0].0.len(), 104);
        let ids_len: usize = self.attrs.iter().map(|(_, ids)| ids.len()).sum();
        let attrs_at = header + ids_len;
        let attrs_len = self.attrs.len() * (attr_len + 16);
        let data = self.data(compressed);
        out.put(b"PERFILE2").u64(header as u64).u64(attr_len as u64 + 16);
        out.u64(attrs_at as u64).u64(attrs_len as u64);
        out.u64((attrs_at + attrs_len) as u64).u64(data.len() as u64).u64(0).u64(0);
        let mut bits = [0; 32];
        let mut features = vec![(TRACING_DATA, &self.tracing_data)];
        features.extend(self.features.iter().map(|(bit, payload)| (*bit, payload)));
        for (bit, _) in &features {
            bits[bit / 8] |= 1 << (bit % 8);
        }
        out.put(&bits);
        for (_, ids) in &self.attrs {
            out.put(ids);
        }
        let mut ids_at = header;
        for (attr, ids) in &self.attrs {
            out.put(attr).u64(ids_at as u64).u64(ids.len() as u64);
            ids_at += ids.len();
        }
        out.put(&data);
        let mut payload_at = out.bytes.len() + 16 * features.len();
        for (_, payload) in &features {
            out.u64(payload_at as u64).u64(payload.len() as u64);
            payload_at += payload.len();
        }
        for (_, payload) in &features {
            out.put(payload);
        }
        out.bytes
    }

    /// As a stream.
    pub(crate) fn pipe(&self, compressed: Option<usize>) -> Vec<u8> {
        let mut out = Bytes::new(false);
        let record = |out: &mut Bytes, kind: u32, parts: &[&[u8]]| {
            let body = parts.concat();
            out.u32(kind).u16(0).u16(8 + body.len() as u16).put(&body);
        };
        out.put(b"PERFILE2").u64(16);
        for (attr, ids) in &self.attrs {
            record(&mut out, 64, &[attr, ids]);
        }
        for (bit, payload) in &self.features {
            record(&mut out, 80, &[&(*bit as u64).to_le_bytes(), payload]);
        }
        record(&mut out, 66, &[&(self.tracing_data.len() as u32).to_le_bytes()]);
        out.put(&self.tracing_data).put(&self.data(compressed));
        out.bytes
    }

    fn data(&self, compressed: Option<usize>) -> Vec<u8> {
        let Some(piece) = compressed else { return self.records.concat() };
        // perf compresses what it takes from the rings, and writes the ends of rounds as they are.
        let mut encoder = zstd::stream::raw::Encoder::new(1).unwrap();
        let mut out = Vec::new();
        for round in self.records.split_inclusive(|r| u32_at(r, 0) == FINISHED_ROUND) {
            let (rest, end) = match round.split_last() {
                Some((end, rest)) if u32_at(end, 0) == FINISHED_ROUND => (rest, end.as_slice()),
                _ => (round, &[][..]),
            };
            // Pieces do not begin where records begin.
            for plain in rest.concat().chunks(piece) {
                compress(&mut encoder, plain, &mut out);
            }
            out.extend_from_slice(end);
        }
        out
    }
}

fn compress(encoder: &mut zstd::stream::raw::Encoder<'_>, plain: &[u8], out: &mut Vec<u8>) {
    use zstd::stream::raw::{Operation, OutBuffer};
    let mut packed = vec![0; plain.len() * 2 + 1024];
    let status = encoder.run_on_buffers(plain, &mut packed).unwrap();
    assert_eq!(status.bytes_read, plain.len());
    let mut tail = OutBuffer::around(&mut packed[status.bytes_written..]);
    encoder.flush(&mut tail).unwrap();
    let len = status.bytes_written + tail.pos();
    out.extend_from_slice(&COMPRESSED.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&(len as u16 + 8).to_le_bytes());
    out.extend_from_slice(&packed[..len]);
}

/// Offset of the raw data (preceded by its size) in samples of this attribute.
fn raw_at(attr: &[u8]) -> usize {
    let sample_type = u64_at(attr, 24);
    let fixed = [16, 0, 1, 2, 3, 6, 9, 7, 8];
    8 + 8 * fixed.iter().filter(|&&bit| sample_type >> bit & 1 == 1).count()
}

/// The records of a data section, those in compressed records as they are inside.
fn plain_records(data: &[u8]) -> Vec<Vec<u8>> {
    use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};
    let mut decoder = Decoder::new().unwrap();
    let mut plain = Vec::new();
    for record in records(data) {
        if u32_at(record, 0) != COMPRESSED {
            plain.extend_from_slice(record);
            continue;
        }
        let mut input = InBuffer::around(&record[8..]);
        let mut block = vec![0; 1 << 20];
        loop {
            let mut output = OutBuffer::around(block.as_mut_slice());
            decoder.run(&mut input, &mut output).unwrap();
            let len = output.pos();
            plain.extend_from_slice(&block[..len]);
            if len < block.len() && input.pos() == record.len() - 8 {
                break;
            }
        }
    }
    records(&plain).map(<[u8]>::to_vec).collect()
}

fn records(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let size = usize::from(*data.get(6)?) | usize::from(*data.get(7)?) << 8;
        let (record, rest) = data.split_at(size);
        data = rest;
        Some(record)
    })
}

/// A trace.dat of version 6 with `count` pages of each CPU, from the `skip`th on.
pub(crate) fn trace_dat(file: &[u8], skip: usize, count: usize) -> Spec {
    let head = MetadataHead::read(file);
    let page = u32_at(file, 14) as usize;
    let mut at = head.end;
    let cpus = u32_at(file, at) as usize;
    at += 4;
    let mut options = Vec::new();
    if &file[at..at + 10] == b"options  \0" {
        at += 10;
        while u16_at(file, at) != 0 {
            let (id, len) = (u16_at(file, at), u32_at(file, at + 2) as usize);
            at += 6;
            if id != 3 && len < 1000 {
                options.push((id, file[at..at + len].to_vec()));
            }
            at += len;
        }
        at += 2;
    }
    assert_eq!(&file[at..at + 10], b"flyrecord\0");
    at += 10;
    let cpus = (0..cpus).map(|cpu| {
        let data = &file[size_at(file, at + 16 * cpu)..][..size_at(file, at + 16 * cpu + 8)];
        let pages = data.chunks_exact(page).skip(skip).take(count);
        (cpu as u32, pages.collect::<Vec<_>>().concat())
    });
    Spec {
        big: false,
        page_size: page as u32,
        event_formats: head.event_formats(),
        buffers: vec![Buffer { name: "", cpus: cpus.collect() }],
        cmdlines: head.cmdlines.lines().take(40).fold(String::new(), |all, l| all + l + "\n"),
        header_info: head.header_info,
        options,
    }
}

/// The comments at the front of a text, and `count` of its lines from the `skip`th on.
pub(crate) fn text(bytes: &[u8], skip: usize, count: usize) -> Vec<u8> {
    let mut lines = bytes.split_inclusive(|&b| b == b'\n').peekable();
    let mut out = Vec::new();
    while let Some(line) =
        lines.next_if(|l| l.first() == Some(&b'#') || l.starts_with(b"cpus=") || l.len() == 1)
    {
        out.extend_from_slice(line);
    }
    lines.skip(skip).take(count).for_each(|line| out.extend_from_slice(line));
    out
}
