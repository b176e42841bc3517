//! Recordings that were cut or damaged: they are refused with a sentence, or what can be read is
//! delivered and the losses say that something is missing. Never a panic, and never a part that passes
//! for the whole.
//!
//! What holds for a recording that was cut, exactly:
//!
//! - Refused: the error gives a byte offset, or says what was found in place of a recording.
//! - Else the events are the first ones of the whole recording (of each CPU, where CPUs are stored apart),
//!   and [`Losses::truncated`] says where it ends, or [`Losses::undecodable`] that some of it cannot be read.
//!   Nothing is reported in two cases only:
//! - What was cut off is not needed: then everything is as of the whole recording.
//! - The format does not show its own end, and the cut is where a whole recording can end: a text behind a
//!   line, a stream of perf behind a round (or before its first event).

#![expect(clippy::unwrap_used, reason = "a test that cannot read its own file has failed")]

#[path = "trace_dat/build.rs"]
#[expect(dead_code, reason = "the pages of small files are those of real ones here")]
mod build;
mod bytes;
#[path = "damage/shrink.rs"]
mod shrink;

use std::path::PathBuf;

use build::Codec;
use proptest::prelude::*;
use shrink::Perf;
use vmtax_capture::import::{self, HEAD, ImportOptions};
use vmtax_capture::{Error, Feed, ImportFormat, ImportSource, Imported};
use vmtax_events::{Event, EventKind, ExitRow, Isa, Losses};

/// A capture of the repository, unpacked.
fn capture(path: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    let bytes = std::fs::read(root.join(path)).unwrap_or_else(|e| panic!("captures/{path}: {e}"));
    if path.ends_with(".zst") { zstd::decode_all(bytes.as_slice()).unwrap() } else { bytes }
}

/// What an import delivers.
#[derive(Debug, Default)]
struct KeptImport {
    events: Vec<Event>,
    rows: Vec<ExitRow>,
    /// How many names of threads.
    names: usize,
}

impl Feed for KeptImport {
    fn event(&mut self, event: Event) -> Result<(), Error> {
        self.events.push(event);
        Ok(())
    }

    fn counted(&mut self, row: ExitRow) -> Result<(), Error> {
        self.rows.push(row);
        Ok(())
    }

    fn thread_name(&mut self, _: u32, _: u32, _: &str) -> Result<(), Error> {
        self.names += 1;
        Ok(())
    }
}

/// Recognises and imports, as the command does.
fn read(mut bytes: &[u8]) -> Result<(ImportFormat, Imported, KeptImport), Error> {
    let format = ImportFormat::recognise(&bytes[..bytes.len().min(HEAD)])?;
    let mut kept = KeptImport::default();
    let source: &mut &[u8] = &mut bytes;
    let source = match format.needs_seeking() {
        true => ImportSource::Random(source),
        false => ImportSource::Stream(source),
    };
    let imported = import::import(
        format,
        source,
        ImportOptions { isa: Isa::Svm, ..ImportOptions::default() },
        &mut kept,
    )?;
    Ok((format, imported, kept))
}

/// A refusal says where or what.
fn check_refusal(name: &str, error: &Error) {
    let sentence = error.to_string();
    let placed = sentence.starts_with("at byte ") && !matches!(error, Error::Io { .. });
    let described = sentence.starts_with("not a recording that vmtax knows: it ");
    assert!(placed || described, "{name}: {sentence}");
}

/// A whole recording and what it holds.
struct WholeRecording {
    name: &'static str,
    bytes: Vec<u8>,
    format: ImportFormat,
    imported: Imported,
    kept: KeptImport,
    /// Where a recording that shows no end of its own could end.
    ends: Vec<usize>,
}

impl WholeRecording {
    fn new(name: &'static str, bytes: Vec<u8>) -> WholeRecording {
        let (format, imported, kept) = read(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(imported.losses.truncated, [""; 0], "{name}");
        assert!(!kept.events.is_empty() || !kept.rows.is_empty(), "{name} is empty");
        let ends = match format {
            ImportFormat::PerfFile | ImportFormat::TraceDat => Vec::new(),
            ImportFormat::PerfPipe => ends_of_rounds(&bytes),
            _ => (1..bytes.len()).filter(|&at| bytes[at - 1] == b'\n').collect(),
        };
        WholeRecording { name, bytes, format, imported, kept, ends }
    }

    /// Cuts at every one of these lengths.
    fn cut(&self, lengths: impl Iterator<Item = usize>) {
        for len in lengths.take_while(|&len| len < self.bytes.len()) {
            match read(&self.bytes[..len]) {
                Ok((format, imported, kept)) => self.check_cut(len, format, &imported, &kept),
                Err(error) => check_refusal(&format!("{} cut at {len}", self.name), &error),
            }
        }
    }

    fn check_cut(&self, len: usize, format: ImportFormat, imported: &Imported, kept: &KeptImport) {
        let name = format!("{} cut at {len}", self.name);
        // The first line of a text need not say which of two alike formats it is.
        assert!(format == self.format || is_text(format) && is_text(self.format), "{name}");
        let is_whole = self.has_all_of(kept)
            && imported.recording == self.imported.recording
            && imported.losses == self.imported.losses;
        let can_end = self.ends.binary_search(&len).is_ok();
        let losses = &imported.losses;
        assert!(self.is_said(losses) || is_whole || can_end, "{name}: nothing says so: {losses:?}");
        self.check_events(&name, imported, kept);
        self.check_rows(&name, kept);
    }

    fn has_all_of(&self, kept: &KeptImport) -> bool {
        kept.events == self.kept.events && kept.rows == self.kept.rows
    }

    /// That something is missing beside what the recorder lost.
    fn is_said(&self, losses: &Losses) -> bool {
        assert!(losses.truncated.is_empty() || !losses.is_empty());
        !losses.truncated.is_empty() || losses.undecodable > self.imported.losses.undecodable
    }

    /// What is delivered is in the whole recording, from its start on. (Losses are marked at other places
    /// when what followed them is missing.)
    fn check_events(&self, name: &str, imported: &Imported, kept: &KeptImport) {
        let mut events: Vec<Event> = kept.events.iter().copied().filter(is_recorded).collect();
        // The last line of a text that was cut may say something else.
        if is_text(self.format) && !imported.losses.truncated.is_empty() {
            events.pop();
        }
        let whole = self.kept.events.iter().copied().filter(is_recorded);
        if !is_text(self.format) {
            // The CPUs take turns in another way when some of their data is missing, and a round of perf is sorted as far
            // as it is there.
            let mut whole: Vec<Event> = whole.collect();
            whole.sort_by_key(|e| e.cpu);
            events.sort_by_key(|e| e.cpu);
            for part in events.chunk_by(|a, b| a.cpu == b.cpu) {
                let start = whole.partition_point(|e| e.cpu < part[0].cpu);
                assert!(whole[start..].starts_with(part), "{name}: other events of a CPU");
            }
        } else {
            assert!(whole.take(events.len()).eq(events), "{name}: other events");
        }
    }

    fn check_rows(&self, name: &str, kept: &KeptImport) {
        for row in &kept.rows {
            let same = self.kept.rows.iter().find(|whole| whole.key == row.key);
            let most = same.map_or(0, |whole| whole.tally.count);
            assert!(row.tally.count <= most, "{name}: {row:?}");
        }
    }
}

fn is_recorded(event: &Event) -> bool {
    !matches!(event.kind, EventKind::Lost { .. })
}

fn is_text(format: ImportFormat) -> bool {
    !matches!(format, ImportFormat::PerfFile | ImportFormat::PerfPipe | ImportFormat::TraceDat)
}

/// Behind the rounds of a stream of perf, and behind the records before its first event.
fn ends_of_rounds(stream: &[u8]) -> Vec<usize> {
    let (mut ends, mut at, mut begun) = (Vec::new(), 16, false);
    while let Some(header) = stream.get(at..at + 8) {
        let word = |at: usize| u32::from_le_bytes(*stream[at..].first_chunk().unwrap());
        let (kind, size) = (word(at), word(at + 4) as usize >> 16);
        assert!(size >= header.len(), "a record of {size} bytes at byte {at}");
        let payload = if kind == 66 { word(at + 8) as usize } else { 0 };
        at += size + payload;
        begun |= matches!(kind, 9 | 81);
        if !begun || kind == 68 {
            ends.push(at);
        }
    }
    ends
}

fn small_perf() -> Vec<WholeRecording> {
    let perf = |path, skip, samples| Perf::read(&capture(path), skip, samples);
    let midrun = perf("amd-midrun/input/midrun.perf.data.zst", 0, 40);
    let nested = perf("amd-nested-exact/input/nested-exact.perf.data.zst", 2000, 60);
    let lost = perf("amd-cpuid/input/lost.perf.data.zst", 100, 40);
    vec![
        WholeRecording::new("small perf.data", midrun.file(None)),
        WholeRecording::new("small compressed perf.data", nested.file(Some(1500))),
        WholeRecording::new("small perf.data with losses", lost.file(None)),
        WholeRecording::new("small stream of perf", nested.pipe(None)),
        WholeRecording::new("small compressed stream of perf", midrun.pipe(Some(700))),
    ]
}

fn small_trace_dat() -> Vec<WholeRecording> {
    let spec = capture("amd-same-workload/input/workload-v6.trace.dat.zst");
    let spec = shrink::trace_dat(&spec, 10, 1);
    vec![
        WholeRecording::new("small trace.dat 6", spec.v6()),
        WholeRecording::new("small trace.dat 7", spec.v7(Codec::None)),
        WholeRecording::new("small trace.dat 7, zlib", spec.v7(Codec::Zlib)),
        WholeRecording::new("small trace.dat 7, zstd", spec.v7(Codec::Zstd)),
    ]
}

fn small_texts() -> Vec<WholeRecording> {
    let text = |path, skip| shrink::text(&capture(path), skip, 30);
    vec![
        WholeRecording::new("ftrace", text("amd-same-workload/input/workload.ftrace.txt.zst", 200)),
        WholeRecording::new(
            "perf script",
            text("amd-same-workload/input/workload.script.txt.zst", 200),
        ),
        WholeRecording::new(
            "perf script with losses",
            text("amd-nested/input/perf-script-lost.txt", 0),
        ),
        WholeRecording::new(
            "trace-cmd",
            text("amd-same-workload/input/workload.trace-cmd.txt.zst", 200),
        ),
        WholeRecording::new("trace-cmd -R", text("amd-nested/input/trace-cmd-report-R.txt", 100)),
        WholeRecording::new("trace-cmd -l", text("amd-nested/input/trace-cmd-report-l.txt", 100)),
        WholeRecording::new(
            "arm64, perf script",
            text("arm64/input/7.3-nested.kvm-all.script.txt.zst", 20),
        ),
        WholeRecording::new(
            "arm64, trace-cmd",
            text("arm64/input/7.3-nested.trace.report.txt.zst", 20),
        ),
        WholeRecording::new(
            "bpftrace, numbers",
            capture("amd-bpftrace/input/reasons.bpftrace.txt"),
        ),
        WholeRecording::new("bpftrace, names", capture("amd-bpftrace/input/names.bpftrace.txt")),
    ]
}

#[test]
fn small_perf_data_cut_at_every_byte() {
    for whole in small_perf() {
        whole.cut(0..);
    }
}

#[test]
fn small_trace_dat_cut_at_every_byte() {
    for whole in small_trace_dat() {
        whole.cut(0..);
    }
}

#[test]
fn small_texts_cut_at_every_byte() {
    for whole in small_texts() {
        whole.cut(0..);
    }
}

/// At every 1,000th byte.
#[test]
fn real_recordings_cut() {
    let paths = [
        ("amd-cpuid, zstd", "amd-cpuid/input/zstd.perf.data.zst"),
        ("amd-midrun", "amd-midrun/input/midrun.perf.data.zst"),
        ("amd-pipe, kvm stat", "amd-pipe/input/pipe-kvmstat.perf.data.zst"),
        ("amd-pipe, zstd", "amd-pipe/input/pipe-zstd.perf.data.zst"),
        ("intel-cpuid, v7 zstd", "intel-cpuid/input/intel-v7-zstd.trace.dat"),
        ("amd-nested, perf script", "amd-nested/input/perf-script.txt"),
        ("amd-nested, perf script, lost", "amd-nested/input/perf-script-lost.txt"),
        ("amd-nested, trace-cmd", "amd-nested/input/trace-cmd-report.txt"),
        ("amd-nested, trace-cmd -R", "amd-nested/input/trace-cmd-report-R.txt"),
        ("amd-nested, trace-cmd -l", "amd-nested/input/trace-cmd-report-l.txt"),
        ("amd-same-workload, ftrace", "amd-same-workload/input/workload.ftrace.txt.zst"),
    ];
    for (name, path) in paths {
        let whole = WholeRecording::new(name, capture(path));
        whole.cut((0..).step_by(1000));
    }
}

/// Of several megabytes: some cuts everywhere, and more around the ends of the parts.
#[test]
fn large_recordings_cut() {
    let paths = [
        ("amd-cpuid, lost", "amd-cpuid/input/lost.perf.data.zst", 1_200_000),
        ("amd-nested, v6", "amd-nested/input/v6.trace.dat.zst", 2_300_000),
        ("amd-nested, v7", "amd-nested/input/v7.trace.dat", 370_000),
        ("amd-same-workload, v6", "amd-same-workload/input/workload-v6.trace.dat.zst", 60_000),
        ("amd-same-workload, v7", "amd-same-workload/input/workload-v7-none.trace.dat.zst", 60_000),
        ("amd-same-workload, perf.data", "amd-same-workload/input/workload.perf.data.zst", 60_000),
    ];
    for (name, path, stride) in paths {
        let whole = WholeRecording::new(name, capture(path));
        let len = whole.bytes.len();
        whole.cut((0..20_000).step_by(2000));
        whole.cut((20_000 + stride..).step_by(stride));
        whole.cut([50_000, 5_000, 1_000, 9, 1].into_iter().map(|n| len - n));
    }
}

/// Each attribute names a list of ids; all of them name the same one, which is half of the file.
#[test]
fn attributes_cannot_share_their_ids() {
    let (header, attr_len, attrs, ids) = (104, 64 + 16, 5_000, 400_000);
    let mut file = vec![0; header + attrs * attr_len + ids + 1];
    let mut put = |at: usize, n: usize| file[at..at + 8].copy_from_slice(&(n as u64).to_le_bytes());
    let ids_at = header + attrs * attr_len;
    for (at, n) in [(8, header), (16, attr_len), (24, header), (32, attrs * attr_len)] {
        put(at, n);
    }
    put(40, ids_at + ids);
    put(48, 1);
    for attr in 0..attrs {
        put(header + attr * attr_len + 64, ids_at);
        put(header + attr * attr_len + 72, ids);
    }
    file[..8].copy_from_slice(b"PERFILE2");
    let error = read(&file).expect_err("5,000 lists of 400,000 bytes do not fit in this file");
    assert!(error.to_string().contains("longer than the file"), "{error}");
}

/// A list of names becomes a few kilobytes when it is compressed, and millions of names when it is not.
#[test]
fn a_small_trace_dat_cannot_have_millions_of_names() {
    let spec = capture("amd-same-workload/input/workload-v6.trace.dat.zst");
    let mut spec = shrink::trace_dat(&spec, 10, 1);
    spec.cmdlines = "1 a\n".repeat(1 << 20);
    let file = spec.v7(Codec::Zstd);
    assert!(file.len() < 100_000);
    let (_, _, kept) = read(&file).unwrap();
    // Threads that get a CPU have names beside those of the list.
    let next: std::collections::BTreeSet<u32> = kept
        .events
        .iter()
        .filter_map(|e| {
            if let EventKind::Switch { next_tid, .. } = e.kind { Some(next_tid) } else { None }
        })
        .collect();
    assert!((1 << 18..=(1 << 18) + next.len()).contains(&kept.names), "{}", kept.names);
}

/// A file whose last blocks never reached the disk has its length, and zeros.
#[test]
fn trailing_zeros() {
    let all = [small_perf(), small_trace_dat(), small_texts()];
    for whole in all.iter().flatten() {
        let len = whole.bytes.len();
        for from in (512..len).step_by(512) {
            if whole.bytes[from..].iter().all(|&b| b == 0) {
                continue;
            }
            let name = format!("{} with zeros from {from}", whole.name);
            let mut bytes = whole.bytes.clone();
            bytes[from..].fill(0);
            match read(&bytes) {
                // Facts of the recording may be blank then. Events may not be missing.
                Ok((_, imported, kept)) => {
                    let is_said = whole.is_said(&imported.losses);
                    assert!(is_said || whole.has_all_of(&kept), "{name}: {:?}", imported.losses);
                }
                Err(error) => check_refusal(&name, &error),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn bits_flipped(
        which in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u32), 1..9),
    ) {
        flip(which, &flips);
    }
}

/// A flipped bit of a number is just another number, so nothing can be asked of what is read but that
/// it terminates, and of a rejection that it has a message.
fn flip(which: prop::sample::Index, flips: &[(prop::sample::Index, u32)]) {
    static ALL: std::sync::OnceLock<Vec<(&str, Vec<u8>)>> = std::sync::OnceLock::new();
    let all = ALL.get_or_init(|| {
        let all = [small_perf(), small_trace_dat(), small_texts()].into_iter().flatten();
        all.map(|whole| (whole.name, whole.bytes)).collect()
    });
    let (name, bytes) = which.get(all);
    let mut bytes = bytes.clone();
    for (at, bit) in flips {
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
    }
    match read(&bytes) {
        Ok((_, imported, _)) => {
            let Losses { truncated, .. } = imported.losses;
            assert!(truncated.len() < 50, "{name}: a sentence per place of damage: {truncated:?}");
        }
        Err(error) => check_refusal(name, &error),
    }
}
