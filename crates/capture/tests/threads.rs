//! Whatever the number of threads that decode, an import delivers the same events, names and losses in the same order, or
//! refuses with the same sentence. Of all captures, and of recordings with flipped bits, cuts and zeros.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its own file has failed")]

#[path = "trace_dat/build.rs"]
#[expect(dead_code, reason = "the pages of small files are those of real ones here")]
mod build;
mod bytes;
#[path = "damage/shrink.rs"]
mod shrink;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use build::Codec;
use proptest::prelude::*;
use shrink::Perf;
use vmtax_capture::import::{HEAD, ImportOptions};
use vmtax_capture::{Error, ImportFormat, ImportSource, Sink, pipeline};
use vmtax_events::{Event, ExitRow, Isa, Recording, Sample};

/// All that a sink is given, in its order.
#[derive(Debug, PartialEq)]
enum GivenItem {
    /// A stretch of events, however it was divided.
    Events(Vec<Event>),
    Row(Box<ExitRow>),
    Sample(Box<Sample>),
    Name(u32, u32, String),
    Described(Box<Recording>),
}

#[derive(Default)]
struct SinkLog(Vec<GivenItem>);

impl Sink for &mut SinkLog {
    fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        match self.0.last_mut() {
            Some(GivenItem::Events(before)) => before.extend_from_slice(events),
            _ => self.0.push(GivenItem::Events(events.to_vec())),
        }
        Ok(())
    }

    fn counted(&mut self, row: &ExitRow) -> Result<(), Error> {
        self.0.push(GivenItem::Row(Box::new(row.clone())));
        Ok(())
    }

    fn sample(&mut self, sample: &Sample) -> Result<(), Error> {
        self.0.push(GivenItem::Sample(Box::new(sample.clone())));
        Ok(())
    }

    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.0.push(GivenItem::Name(pid, tid, name.to_owned()));
        Ok(())
    }

    fn described(&mut self, recording: &Recording) -> Result<(), Error> {
        self.0.push(GivenItem::Described(Box::new(recording.clone())));
        Ok(())
    }
}

/// What was given, and the end: facts, losses and counts as text, or the sentence.
fn read(mut bytes: &[u8], threads: usize) -> Result<(SinkLog, String), String> {
    let format =
        ImportFormat::recognise(&bytes[..bytes.len().min(HEAD)]).map_err(|e| e.to_string())?;
    let mut log = SinkLog::default();
    let whole: &mut &[u8] = &mut bytes;
    let source = match format.needs_seeking() {
        true => ImportSource::Random(whole),
        false => ImportSource::Stream(whole),
    };
    let options = ImportOptions { isa: Isa::Svm, threads };
    let end = match pipeline::run(format, source, options, &mut log) {
        Ok(imported) => format!("{imported:?}"),
        Err(error) => error.to_string(),
    };
    Ok((log, end))
}

/// Reads on one thread and on others, and compares.
fn check(name: &str, bytes: &[u8], threads: &[usize]) {
    let Ok((expected, end)) = read(bytes, 0) else { return };
    for &threads in threads {
        let (log, other_end) = read(bytes, threads).unwrap();
        assert_eq!(other_end, end, "{name}, {threads} threads");
        let differs = expected.0.iter().zip(&log.0).position(|(a, b)| a != b);
        assert_eq!((differs, log.0.len()), (None, expected.0.len()), "{name}, {threads} threads");
    }
}

fn captures(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => captures(&path, found),
            false => found.push(path),
        }
    }
}

fn capture(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let packed = path.extension().is_some_and(|extension| extension == "zst");
    if packed { zstd::decode_all(bytes.as_slice()).unwrap() } else { bytes }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../captures")
}

#[test]
fn every_capture() {
    let mut paths = Vec::new();
    captures(&root(), &mut paths);
    let mut count = 0;
    for path in paths.iter().filter(|path| !path.ends_with("expected.json")) {
        let bytes = capture(path);
        if ImportFormat::recognise(&bytes[..bytes.len().min(HEAD)]).is_ok() {
            check(&path.display().to_string(), &bytes, &[1, 3]);
            count += 1;
        }
    }
    assert!(count > 40, "{count} recordings");
}

/// Recordings of several blocks, in each way of storing them.
fn recordings() -> &'static [(&'static str, Vec<u8>)] {
    static ALL: OnceLock<Vec<(&str, Vec<u8>)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let nested = capture(&root().join("amd-nested/input/kvmstat.perf.data.zst"));
        let nested = Perf::read(&nested, 0, 12_000);
        let sched =
            Perf::read(&capture(&root().join("amd-sched/input/sched.perf.data.zst")), 0, 9_000);
        let trace = capture(&root().join("amd-nested/input/v6.trace.dat.zst"));
        let trace = shrink::trace_dat(&trace, 10, 100);
        let text = |path, count| shrink::text(&capture(&root().join(path)), 200, count);
        vec![
            ("perf.data", nested.file(None)),
            ("compressed perf.data", nested.file(Some(30_000))),
            ("stream of perf", nested.pipe(None)),
            ("compressed stream of perf", nested.pipe(Some(10_000))),
            ("perf.data with switches", sched.file(None)),
            ("trace.dat 6", trace.v6()),
            ("trace.dat 7", trace.v7(Codec::None)),
            ("trace.dat 7, zstd", trace.v7(Codec::Zstd)),
            ("perf script", text("amd-same-workload/input/workload.script.txt.zst", 5_000)),
            ("ftrace", text("amd-same-workload/input/workload.ftrace.txt.zst", 5_000)),
        ]
    })
}

#[test]
fn several_blocks() {
    for (name, bytes) in recordings() {
        check(name, bytes, &[1, 2, 3, 8]);
    }
}

/// Where the records of a block begin is guessed first. A guess that is wrong changes nothing.
#[test]
fn blocks_that_begin_in_what_looks_like_records() {
    let nested = capture(&root().join("amd-nested/input/kvmstat.perf.data.zst"));
    let nested = Perf::read(&nested, 0, 20_000);
    // PERF_RECORD_BPF_EVENT, of 48,008 bytes: about every other block begins in one.
    let mut decoy = [&18u32.to_le_bytes()[..], &[0; 2], &48_008u16.to_le_bytes()].concat();
    for n in 0..3000u64 {
        // The header of a sample of 16 bytes.
        decoy.extend_from_slice(&[9, 0, 0, 0, 1, 0, 16, 0]);
        decoy.extend_from_slice(&n.to_le_bytes());
    }
    let mut decoys = nested.clone();
    let few = nested.records.chunks(500);
    decoys.records = few.flat_map(|few| few.iter().cloned().chain([decoy.clone()])).collect();
    for threads in [0, 2] {
        let (expected, _) = read(&nested.file(None), threads).unwrap();
        for bytes in [decoys.file(None), decoys.pipe(None)] {
            let (log, end) = read(&bytes, threads).unwrap();
            let events = |log: &SinkLog| -> Vec<Event> {
                let all = log.0.iter().filter_map(|given| match given {
                    GivenItem::Events(events) => Some(events.clone()),
                    _ => None,
                });
                all.flatten().collect()
            };
            assert!(bytes.len() > 6 << 19, "several blocks");
            assert!(events(&expected) == events(&log), "{threads} threads");
            assert!(end.contains("undecodable: 0,"), "{threads} threads: {end}");
        }
    }
}

/// Bare numbers of reasons in one block of a text are of the vendor that the names in another one tell.
#[test]
fn numbers_of_reasons_far_from_the_names() {
    let mut text = String::from("# tracer: nop\n");
    let mut line = |reason: &str| {
        let time = text.len();
        text += &format!(
            " vmm-7  [000] d..1 1.{time:09}: kvm_exit: vcpu 0 reason {reason} rip 0x1 info1 0x0 info2 0x0\n"
        );
    };
    let mut many = |reason| (0..5_000).for_each(|_| line(reason));
    ["UNKNOWN (74)", "CPUID", "UNKNOWN (74)", "npf", "0x72"].into_iter().for_each(&mut many);
    let (log, end) = read(text.as_bytes(), 0).unwrap();
    let mut vendors = Vec::new();
    for given in &log.0 {
        let GivenItem::Events(events) = given else { continue };
        for event in events {
            let vmtax_events::EventKind::Exit { reason, .. } = event.kind else {
                panic!("{event:?}")
            };
            vendors.push(reason.isa);
        }
    }
    let expected = [Isa::Unknown, Isa::Vmx, Isa::Vmx, Isa::Svm, Isa::Svm];
    assert_eq!(vendors, expected.map(|isa| [isa; 5_000]).concat());
    assert!(end.contains("were read as SVM reasons"), "{end}");
    check("numbers", text.as_bytes(), &[1, 2, 3, 8]);
}

/// `./x bench threads` asks for more.
fn cases() -> u32 {
    let asked = std::env::var("VMTAX_MUTATIONS").ok().and_then(|n| n.parse().ok());
    asked.unwrap_or(48)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn damaged_recordings(
        which in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u32), 0..9),
        front in prop::collection::vec((0..20_000usize, any::<u8>()), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
        zeros in prop::option::of((any::<prop::sample::Index>(), 1..5000usize)),
        threads in 1..5usize,
    ) {
        let (name, bytes) = which.get(recordings());
        let mut bytes = bytes.clone();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        // The headers are a small part of the whole.
        for (at, byte) in front {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        if let Some((at, len)) = zeros {
            let at = at.index(bytes.len());
            let end = (at + len).min(bytes.len());
            bytes[at..end].fill(0);
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        check(name, &bytes, &[threads]);
    }
}
