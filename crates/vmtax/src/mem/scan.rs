//! `vmtax mem scan`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::json;
use vmtax_cli::progress::Progress;
use vmtax_events::printable;
use vmtax_host::ram::Source;
use vmtax_pageops::{Cpu, PAGE, PageFacts};

use super::flags::ScanArgs;
use super::{print, size};

/// Pages in a look: what a core's second cache holds.
const CHUNK: usize = 64;
/// Pages of which duplicates are counted; of more, a share by hash.
const REMEMBERED: usize = 4 << 20;
/// Groups compressed as a sample.
const SAMPLES: u64 = 64;
/// Pages compressed together, as checkpoints do.
const GROUP: usize = 16;

/// What was found.
#[derive(Debug, Default)]
struct Found {
    total: u64,
    /// Pages that have content.
    data: u64,
    zero: u64,
    filled: u64,
    /// Pages whose content an earlier page has too; zero and filled ones are not among them.
    duplicate: u64,
    /// In huge pages, where the kernel can tell.
    huge: Option<u64>,
    sampled: u64,
    compressed: u64,
    dirty: Option<Dirty>,
    seconds: f64,
}

/// What the VM wrote.
#[derive(Debug)]
struct Dirty {
    pages_per_second: f64,
    /// By the kernel's record, or by comparing content: that misses a page written with what it had.
    by: &'static str,
}

pub(super) fn run(args: &ScanArgs) -> anyhow::Result<()> {
    let mut source = Source::open(&args.target)?;
    let start = Instant::now();
    let mut accel = args.work.accel.open()?;
    let mut found = scan(&mut source, accel.scanner())?;
    found.seconds = start.elapsed().as_secs_f64();
    found.huge = source.huge_pages()?;
    if let Some(time) = args.dirty {
        found.dirty = Some(dirty(&mut source, time)?);
    }
    let by = accel.describe();
    let gbits = args.bandwidth;
    print(
        args.work.format,
        || text(&source, &found, gbits, &by),
        || as_json(&source, &found, gbits, &by),
    )
}

/// Distinct contents among pages: all of them, or those whose hash lies in a share that halves when there are too many.
#[derive(Default)]
struct Contents {
    seen: HashMap<u64, ()>,
    /// Low bits of the hash that must be zero.
    mask: u64,
    pages: u64,
    duplicates: u64,
}

impl Contents {
    fn add(&mut self, page: &[u8], crc: u32) {
        let hash = hash(page, crc);
        if hash & self.mask != 0 {
            return;
        }
        self.pages += 1;
        if self.seen.insert(hash, ()).is_some() {
            self.duplicates += 1;
        }
        if self.seen.len() > REMEMBERED {
            // Counts so far are of twice the share; they are halved with it.
            self.mask = self.mask << 1 | 1;
            let mask = self.mask;
            self.seen.retain(|hash, ()| hash & mask == 0);
            self.pages /= 2;
            self.duplicates /= 2;
        }
    }

    fn share(&self) -> f64 {
        if self.pages == 0 { 0.0 } else { self.duplicates as f64 / self.pages as f64 }
    }
}

/// Two pages with one hash are taken for the same: with 64 bits that is an estimate nobody will see fail.
fn hash(page: &[u8], crc: u32) -> u64 {
    let mut sums = [0x9e37_79b9_7f4a_7c15u64 ^ u64::from(crc), 2, 3, 5];
    for words in page.as_chunks::<32>().0 {
        for (sum, word) in sums.iter_mut().zip(words.as_chunks::<8>().0) {
            *sum = (*sum ^ u64::from_le_bytes(*word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            *sum ^= *sum >> 29;
        }
    }
    let mut hash = 0u64;
    for sum in sums {
        hash = (hash ^ sum).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 32;
    }
    hash
}

fn scan(
    source: &mut Source,
    accel: &mut dyn vmtax_pageops::checkpoint::Accelerate,
) -> anyhow::Result<Found> {
    let extents = source.extents()?;
    let data: u64 = extents.iter().map(|e| e.end - e.start).sum();
    let mut found = Found { total: source.pages(), data: data / PAGE as u64, ..Found::default() };
    let watch = Progress::bytes(data);
    let every = (data / (CHUNK * PAGE) as u64 / SAMPLES).max(1);
    let mut contents = Contents::default();
    let mut compressor = zstd::bulk::Compressor::new(1)?;
    let mut buffer = vec![0; CHUNK * PAGE];
    let mut facts = vec![PageFacts::default(); CHUNK];
    let (mut done, mut chunks) = (0, 0);
    for extent in extents {
        let mut at = extent.start;
        while at < extent.end {
            let step = (extent.end - at).min(buffer.len() as u64) as usize;
            let bytes = &mut buffer[..step];
            // What cannot be read any more was given back meanwhile, and reads as zeros.
            source.read(at, bytes)?;
            let facts = &mut facts[..step / PAGE];
            accel.scan(bytes, facts);
            let mut sample = Vec::new();
            for (page, facts) in bytes.chunks_exact(PAGE).zip(facts.iter()) {
                if facts.zero {
                    found.zero += 1;
                } else if page[..8] == page[8..16] && Cpu::best().same_fill(page).is_some() {
                    found.filled += 1;
                } else {
                    contents.add(page, facts.crc);
                    if chunks % every == 0 && sample.len() < GROUP * PAGE {
                        sample.extend_from_slice(page);
                    }
                }
            }
            if !sample.is_empty() {
                found.sampled += sample.len() as u64;
                let compressed = compressor.compress(&sample)?.len();
                found.compressed += compressed.min(sample.len()) as u64;
            }
            chunks += 1;
            done += step as u64;
            watch.at(done);
            at += step as u64;
        }
    }
    let plain = found.data - found.zero - found.filled;
    found.duplicate = (plain as f64 * contents.share()).round() as u64;
    Ok(found)
}

/// Watches what is written for a time.
fn dirty(source: &mut Source, time: Duration) -> anyhow::Result<Dirty> {
    if source.forget_dirty()? {
        let start = Instant::now();
        std::thread::sleep(time);
        let pages = source.dirty_pages()?;
        return Ok(Dirty {
            pages_per_second: pages as f64 / start.elapsed().as_secs_f64(),
            by: "the kernel's record",
        });
    }
    let before = checksums(source)?;
    let start = Instant::now();
    std::thread::sleep(time);
    let after = checksums(source)?;
    let changed = after.iter().filter(|(page, crc)| before.get(page) != Some(crc)).count();
    Ok(Dirty {
        pages_per_second: changed as f64 / start.elapsed().as_secs_f64(),
        by: "content (this kernel keeps no record: CONFIG_MEM_SOFT_DIRTY, or not of this memory)",
    })
}

fn checksums(source: &mut Source) -> anyhow::Result<HashMap<u64, u32>> {
    let mut checksums = HashMap::new();
    let mut buffer = vec![0; CHUNK * PAGE];
    let mut facts = vec![PageFacts::default(); CHUNK];
    for extent in source.extents()? {
        let mut at = extent.start;
        while at < extent.end {
            let step = (extent.end - at).min(buffer.len() as u64) as usize;
            source.read(at, &mut buffer[..step])?;
            let facts = &mut facts[..step / PAGE];
            Cpu::best().scan(&buffer[..step], facts);
            let first = at / PAGE as u64;
            checksums.extend(facts.iter().zip(first..).map(|(f, page)| (page, f.crc)));
            at += step as u64;
        }
    }
    Ok(checksums)
}

/// What follows from what was found.
struct Estimates {
    /// Bytes of a checkpoint, plain and compressed.
    checkpoint: u64,
    compressed: u64,
    /// Seconds of a migration; `None` if it would not end.
    migration: Option<f64>,
}

fn estimates(found: &Found, gbits: f64) -> Estimates {
    /// A page in a checkpoint has a checksum, in a migration a header.
    const CHECKSUM: u64 = 4;
    const HEADER: u64 = 8;
    let page = PAGE as u64;
    let stored = found.data - found.zero - found.filled;
    let checkpoint = stored * (page + CHECKSUM) + found.filled * 12;
    let ratio = match found.sampled {
        0 => 1.0,
        sampled => found.compressed as f64 / sampled as f64,
    };
    let compressed = (checkpoint as f64 * ratio) as u64;
    let wire = gbits * 1e9 / 8.0;
    let first =
        ((stored + found.filled) * (page + HEADER) + (found.total - stored) * (HEADER + 1)) as f64;
    let dirty = found.dirty.as_ref().map_or(0.0, |d| d.pages_per_second * (page + HEADER) as f64);
    // Each pass sends what was written during the one before.
    let migration = (dirty < wire).then(|| first / (wire - dirty));
    Estimates { checkpoint, compressed, migration }
}

fn text(source: &Source, found: &Found, gbits: f64, by: &str) -> String {
    let page = PAGE as u64;
    let share = |part: u64| 100.0 * part as f64 / found.total.max(1) as f64;
    let mut out = format!("{}\n", source.describe());
    for (bytes, why) in source.taken() {
        out.push_str(&format!("  {} {}\n", size(bytes), printable(why)));
    }
    out.push_str(&format!("\n{:<34}{:>12}{:>12}{:>8}\n", "memory", "pages", "bytes", "share"));
    let mut row = |name: &str, pages: u64| {
        out.push_str(&format!(
            "{name:<34}{pages:>12}{:>12}{:>7.1}%\n",
            size(pages * page),
            share(pages)
        ));
    };
    row("all", found.total);
    row("  never touched (holes)", found.total - found.data);
    row("  touched", found.data);
    row("    zero all the same", found.zero);
    row("    one word repeated", found.filled);
    row("    as another page", found.duplicate);
    let other = found.data - found.zero - found.filled - found.duplicate;
    row("    other", other);
    match found.huge {
        Some(huge) => row("  in huge pages", huge),
        None => out.push_str("  in huge pages: the kernel cannot tell of a file\n"),
    }
    let e = estimates(found, gbits);
    out.push('\n');
    if found.sampled > 0 {
        let ratio = 100.0 * found.compressed as f64 / found.sampled as f64;
        out.push_str(&format!(
            "compressed, a sample of {}: to {ratio:.0} %\n",
            size(found.sampled)
        ));
    }
    out.push_str(&format!(
        "checkpoint: about {}, compressed {}\n",
        size(e.checkpoint),
        size(e.compressed)
    ));
    if let Some(dirty) = &found.dirty {
        let bytes = (dirty.pages_per_second * PAGE as f64) as u64;
        out.push_str(&format!(
            "written: {:.0} pages/s, {}/s, by {}\n",
            dirty.pages_per_second,
            size(bytes),
            dirty.by
        ));
    }
    out.push_str(&match e.migration {
        Some(seconds) => format!("migration at {gbits} Gb/s: about {seconds:.1} s\n"),
        None => format!(
            "migration at {gbits} Gb/s: does not end, more is written than sent; post-copy would\n"
        ),
    });
    out.push_str(&format!("scanned in {:.2} s by {by}\n", found.seconds));
    out
}

fn as_json(source: &Source, found: &Found, gbits: f64, by: &str) -> serde_json::Value {
    let e = estimates(found, gbits);
    let taken = source.taken();
    let taken: Vec<_> =
        taken.iter().map(|(bytes, why)| json!({ "bytes": bytes, "why": why })).collect();
    json!({
        "target": source.describe(),
        "memory": taken,
        "page_bytes": PAGE,
        "pages": {
            "all": found.total, "touched": found.data, "holes": found.total - found.data, "zero": found.zero,
            "filled": found.filled, "duplicate": found.duplicate, "huge": found.huge,
        },
        "sample": { "bytes": found.sampled, "compressed_bytes": found.compressed },
        "dirty": found.dirty.as_ref().map(|d| json!({ "pages_per_second": d.pages_per_second, "by": d.by })),
        "estimate": {
            "checkpoint_bytes": e.checkpoint, "compressed_bytes": e.compressed,
            "migration_seconds": e.migration, "gbits_per_second": gbits,
        },
        "seconds": found.seconds,
        "accel": by,
    })
}
