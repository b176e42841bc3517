//! Makes a long recording out of a short real one, for benchmarks: the same records again and again,
//! each copy later than the one before.
//!
//! ```text
//! enlarge perf.data OUT COPIES [zstd]       a file-mode perf.data; with `zstd` its records compressed
//! enlarge perf.data OUT COPIES stream       the same as `perf record -o -` writes it
//! enlarge perf.data OUT COPIES threads N    the samples given to N times the threads in turn, a hundred each
//! enlarge v6.trace.dat OUT COPIES           a trace.dat of version 6, not compressed
//! ```
//!
//! Little-endian recordings only. Left out on purpose: everything that a benchmark does not need.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SAMPLE: u32 = 9;
const FINISHED_ROUND: u32 = 68;
const COMPRESSED: u32 = 81;
const HEADER_ATTR: u32 = 64;
const TRACING_DATA: u32 = 66;
const FEATURE: u32 = 80;
/// The feature that holds the formats of the tracepoints.
const TRACING: usize = 1;
/// Offset of the time in a sample of `perf kvm stat record`: after header, identifier, ip and tid.
const SAMPLE_TIME: usize = 32;
/// Offset of process and thread, in front of it.
const SAMPLE_THREAD: usize = SAMPLE_TIME - 8;
/// More than the capture has.
const MOST_PIDS: u32 = 1 << 16;
/// The largest payload that a compressed record takes, with room for zstd's own worst case.
const PIECE: usize = 32 << 10;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, input, output, copies, rest @ ..] = args.as_slice() else {
        return Err("usage: enlarge INPUT OUTPUT COPIES [zstd]".into());
    };
    let copies: u64 = copies.parse()?;
    let mut bytes = Vec::new();
    File::open(input)?.read_to_end(&mut bytes)?;
    let out = BufWriter::with_capacity(1 << 20, File::create(output)?);
    if bytes.starts_with(b"PERFILE2") {
        let threads = match rest {
            [form, n] if form == "threads" => n.parse()?,
            _ => 1,
        };
        perf(&bytes, out, (copies, threads), rest.first().map_or("", String::as_str))
    } else if bytes.starts_with(b"\x17\x08\x44tracing6") {
        trace_dat(&bytes, out, copies)
    } else {
        Err("neither a perf.data file nor a trace.dat of version 6".into())
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    let b = bytes.get(at..).and_then(|b| b.first_chunk()).ok_or("the file is too short")?;
    Ok(u64::from_le_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    let b = bytes.get(at..).and_then(|b| b.first_chunk()).ok_or("the file is too short")?;
    Ok(u32::from_le_bytes(*b))
}

fn perf(
    bytes: &[u8],
    mut out: BufWriter<File>,
    (copies, threads): (u64, u32),
    form: &str,
) -> Result<()> {
    let (data_at, data_size) = (u64_at(bytes, 40)? as usize, u64_at(bytes, 48)? as usize);
    let data = &bytes[data_at..data_at + data_size];
    let (mut first, mut last) = (u64::MAX, 0);
    let mut records = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let size = usize::from(u16::from_le_bytes([data[at + 6], data[at + 7]]));
        let record = &data[at..at + size];
        if u32_at(record, 0)? == SAMPLE {
            let time = u64_at(record, SAMPLE_TIME)?;
            (first, last) = (first.min(time), last.max(time));
        }
        records.push(record);
        at += size;
    }
    let span = last - first + 1_000_000;
    match form {
        "stream" => stream_head(bytes, &mut out)?,
        _ => out.write_all(&bytes[..data_at])?,
    }
    let mut data_out = Data::new(out, form == "zstd")?;
    for copy in 0..copies {
        for (number, &record) in (0u32..).zip(&records) {
            let kind = u32_at(record, 0)?;
            if kind == SAMPLE && (copy > 0 || threads > 1) {
                let time = u64_at(record, SAMPLE_TIME)? + copy * span;
                data_out.write(&record[..SAMPLE_THREAD])?;
                for at in [SAMPLE_THREAD, SAMPLE_THREAD + 4] {
                    let id = u32_at(record, at)?;
                    let moved = if id == 0 { 0 } else { number / 100 % threads * MOST_PIDS };
                    data_out.write(&id.wrapping_add(moved).to_le_bytes())?;
                }
                data_out.write(&time.to_le_bytes())?;
                data_out.write(&record[SAMPLE_TIME + 8..])?;
            } else if copy == 0 || kind == FINISHED_ROUND {
                data_out.write(record)?;
            }
        }
    }
    let (mut out, written) = data_out.finish()?;
    if form == "stream" {
        return Ok(out.flush()?);
    }
    // The feature table follows the data; its sections move by as much as the data grew.
    let moved = written as i64 - data_size as i64;
    let features: u32 = (0..4).map(|i| u64_at(bytes, 72 + 8 * i).map_or(0, u64::count_ones)).sum();
    let table_at = data_at + data_size;
    for i in 0..features as usize {
        let section = table_at + 16 * i;
        let offset = u64_at(bytes, section)?.wrapping_add_signed(moved);
        out.write_all(&offset.to_le_bytes())?;
        out.write_all(&bytes[section + 8..section + 16])?;
    }
    out.write_all(&bytes[table_at + 16 * features as usize..])?;
    out.seek(SeekFrom::Start(48))?;
    out.write_all(&written.to_le_bytes())?;
    Ok(out.flush()?)
}

/// What precedes the samples of a stream: attributes, features and the formats of the tracepoints, as records.
fn stream_head(bytes: &[u8], out: &mut BufWriter<File>) -> Result<()> {
    let section = |at: usize| -> Result<&[u8]> {
        let (at, len) = (u64_at(bytes, at)? as usize, u64_at(bytes, at + 8)? as usize);
        Ok(bytes.get(at..at + len).ok_or("a section is not in the file")?)
    };
    let record = |kind: u32, parts: [&[u8]; 2]| -> Result<Vec<u8>> {
        let size = u16::try_from(8 + parts[0].len() + parts[1].len())?;
        Ok([&kind.to_le_bytes()[..], &[0; 2], &size.to_le_bytes(), parts[0], parts[1]].concat())
    };
    out.write_all(b"PERFILE2")?;
    out.write_all(&16u64.to_le_bytes())?;
    for entry in section(24)?.chunks_exact(u64_at(bytes, 16)? as usize) {
        let (attr, ids) = entry.split_at(entry.len() - 16);
        let (at, len) = (u64_at(ids, 0)? as usize, u64_at(ids, 8)? as usize);
        out.write_all(&record(HEADER_ATTR, [attr, &bytes[at..at + len]])?)?;
    }
    let mut place = (u64_at(bytes, 40)? + u64_at(bytes, 48)?) as usize;
    for feature in (0..256usize).filter(|n| bytes[72 + n / 8] >> (n % 8) & 1 == 1) {
        let payload = section(place)?;
        place += 16;
        if feature == TRACING {
            let len = payload.len().next_multiple_of(8);
            out.write_all(&record(TRACING_DATA, [&(len as u32).to_le_bytes(), &[]])?)?;
            out.write_all(payload)?;
            out.write_all(&vec![0; len - payload.len()])?;
        } else if payload.len() < 1 << 15 {
            out.write_all(&record(FEATURE, [&(feature as u64).to_le_bytes(), payload])?)?;
        }
    }
    Ok(())
}

/// The data section, plain or in compressed records.
struct Data {
    out: BufWriter<File>,
    written: u64,
    zstd: Option<zstd::stream::raw::Encoder<'static>>,
    piece: Vec<u8>,
}

impl Data {
    fn new(out: BufWriter<File>, compress: bool) -> Result<Data> {
        let zstd = if compress { Some(zstd::stream::raw::Encoder::new(1)?) } else { None };
        Ok(Data { out, written: 0, zstd, piece: Vec::new() })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if self.zstd.is_none() {
            self.written += bytes.len() as u64;
            return Ok(self.out.write_all(bytes)?);
        }
        self.piece.extend_from_slice(bytes);
        if self.piece.len() < PIECE { Ok(()) } else { self.flush() }
    }

    /// Writes the piece as one compressed record, flushed as perf does at the end of each.
    fn flush(&mut self) -> Result<()> {
        use zstd::stream::raw::{Operation, OutBuffer};
        let Some(zstd) = &mut self.zstd else { return Ok(()) };
        let mut packed = vec![0; PIECE * 2];
        let status = zstd.run_on_buffers(&self.piece, &mut packed)?;
        if status.bytes_read != self.piece.len() {
            return Err("zstd left input behind".into());
        }
        let mut tail = OutBuffer::around(&mut packed[status.bytes_written..]);
        zstd.flush(&mut tail)?;
        let len = status.bytes_written + tail.pos();
        self.out.write_all(&COMPRESSED.to_le_bytes())?;
        self.out.write_all(&0u16.to_le_bytes())?;
        self.out.write_all(&u16::try_from(len + 8)?.to_le_bytes())?;
        self.out.write_all(&packed[..len])?;
        self.written += len as u64 + 8;
        self.piece.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<(BufWriter<File>, u64)> {
        self.flush()?;
        Ok((self.out, self.written))
    }
}

/// Version 6: the per-CPU data is at the end; its table of (offset, size) precedes "flyrecord"'s data.
fn trace_dat(bytes: &[u8], mut out: BufWriter<File>, copies: u64) -> Result<()> {
    let page = u32_at(bytes, 14)? as usize;
    let marker = b"flyrecord\0";
    let table_at =
        bytes.windows(marker.len()).position(|w| w == marker).ok_or("no flyrecord")? + marker.len();
    let mut cpus = Vec::new();
    let first_data = u64_at(bytes, table_at)?;
    let mut at = table_at;
    while at + 16 <= bytes.len() && (at as u64) < first_data.saturating_sub(15) {
        let (offset, size) = (u64_at(bytes, at)?, u64_at(bytes, at + 8)?);
        let is_cpu = offset % page as u64 == 0
            && offset + size <= bytes.len() as u64
            && offset >= first_data;
        if !is_cpu {
            break;
        }
        cpus.push((offset as usize, size as usize));
        at += 16;
    }
    let pages = |&(offset, size): &(usize, usize)| bytes[offset..offset + size].chunks_exact(page);
    let times: Vec<u64> =
        cpus.iter().flat_map(pages).map(|p| u64_at(p, 0)).collect::<Result<_>>()?;
    let (first, last) =
        (times.iter().min().ok_or("no data")?, times.iter().max().ok_or("no data")?);
    // The last page of a CPU is not full; its events reach at most a little beyond its time stamp.
    let span = last - first + 1_000_000_000;
    out.write_all(&bytes[..table_at])?;
    let mut offset = first_data;
    for &(_, size) in &cpus {
        out.write_all(&offset.to_le_bytes())?;
        out.write_all(&(size as u64 * copies).to_le_bytes())?;
        offset += size as u64 * copies;
    }
    out.write_all(&bytes[at..first_data as usize])?;
    for cpu in &cpus {
        for copy in 0..copies {
            for page in pages(cpu) {
                out.write_all(&(u64_at(page, 0)? + copy * span).to_le_bytes())?;
                out.write_all(&page[8..])?;
            }
        }
    }
    Ok(out.flush()?)
}
