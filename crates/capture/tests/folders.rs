//! Folders of `perf record --threads`: a real one, and shipped recordings split as perf would have split them.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its own file has failed")]

use std::io::Write;
use std::path::Path;

use vmtax_capture::import::perf_data::EventsFile;
use vmtax_capture::order::Sorter;
use vmtax_capture::source::ReadAt;
use vmtax_capture::{Error, ImportFormat, ImportOptions, ImportSource, Imported, Sink, import};
use vmtax_events::{Event, EventKind};

#[derive(Default)]
struct CollectFolder(Vec<Event>);

impl Sink for &mut CollectFolder {
    fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        self.0.extend_from_slice(events);
        Ok(())
    }
}

/// What came out, the events, and how many of them came too late to be put in order.
type ReadFolder = Result<(Imported, Vec<Event>, u64), Error>;

fn read(source: ImportSource<'_>) -> ReadFolder {
    let mut collect = CollectFolder::default();
    let mut sorter = Sorter::new(&mut collect);
    let imported =
        import::import(ImportFormat::PerfFile, source, ImportOptions::default(), &mut sorter)?;
    let (_, late) = sorter.finish()?;
    Ok((imported, collect.0, late))
}

/// The files of a folder.
#[derive(Clone)]
struct FolderFiles {
    data: Vec<u8>,
    parts: Vec<(u32, Vec<u8>)>,
}

impl FolderFiles {
    fn read(&self) -> ReadFolder {
        let parts: Vec<(u32, &[u8])> = self.parts.iter().map(|(n, b)| (*n, b.as_slice())).collect();
        let parts: Vec<EventsFile<'_>> = parts
            .iter()
            .map(|(number, bytes)| EventsFile { number: *number, source: bytes as &dyn ReadAt })
            .collect();
        read(ImportSource::Folder(&self.data.as_slice(), &parts))
    }
}

fn capture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    zstd::decode_all(std::fs::read(folder.join(name)).unwrap().as_slice()).unwrap()
}

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// A little-endian file of `perf record -a` as the folder of `--threads`: samples by processor, everything else in
/// `data`. Parts are compressed in pieces if wanted.
fn split(file: &[u8], compress: bool) -> FolderFiles {
    const FEATURES: usize = 72;
    const DIR_FORMAT: usize = 24;
    let (start, size) = (u64_at(file, 40), u64_at(file, 48));
    let mut data = Vec::new();
    let mut parts: Vec<(u32, Vec<u8>)> = Vec::new();
    let mut at = start;
    while at < start + size {
        let len = usize::from(u16::from_le_bytes([file[at + 6], file[at + 7]]));
        let record = &file[at..at + len];
        at += len;
        if record[0] != 9 {
            data.extend_from_slice(record);
            continue;
        }
        // identifier, address, thread, time, processor
        let cpu = u64_at(record, 40) as u32;
        match parts.iter_mut().find(|(number, _)| *number == cpu) {
            Some((_, part)) => part.extend_from_slice(record),
            None => parts.push((cpu, record.to_vec())),
        }
    }
    // A file of features behind the data, and one feature more.
    let mut features = Vec::new();
    let is_set = |feature: usize| file[FEATURES + feature / 8] >> (feature % 8) & 1 == 1;
    for (n, feature) in (0..256).filter(|f| is_set(*f)).enumerate() {
        let entry = start + size + 16 * n;
        let (from, len) = (u64_at(file, entry), u64_at(file, entry + 8));
        features.push((feature, file[from..from + len].to_vec()));
    }
    features.push((DIR_FORMAT, 1u64.to_le_bytes().to_vec()));
    features.sort_by_key(|(feature, _)| *feature);
    let mut out = file[..start].to_vec();
    out[48..56].copy_from_slice(&(data.len() as u64).to_le_bytes());
    out[FEATURES + DIR_FORMAT / 8] |= 1 << (DIR_FORMAT % 8);
    out.extend(data);
    let mut place = (out.len() + 16 * features.len()) as u64;
    for (_, payload) in &features {
        out.extend(place.to_le_bytes());
        out.extend((payload.len() as u64).to_le_bytes());
        place += payload.len() as u64;
    }
    features.into_iter().for_each(|(_, payload)| out.extend(payload));
    if compress {
        for (_, part) in &mut parts {
            *part = compressed(part);
        }
    }
    parts.sort_by_key(|(number, _)| *number);
    FolderFiles { data: out, parts }
}

/// As `perf record -z` writes it: one stream, flushed for every record.
fn compressed(plain: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    let mut out = Vec::new();
    for piece in plain.chunks(30_001) {
        encoder.write_all(piece).unwrap();
        encoder.flush().unwrap();
        let packed = std::mem::take(encoder.get_mut());
        out.extend(81u32.to_le_bytes());
        out.extend(0u16.to_le_bytes());
        out.extend((8 + packed.len() as u16).to_le_bytes());
        out.extend(packed);
    }
    out
}

const RECORDINGS: [&str; 4] = [
    "amd-two-vms/input/two-vms.perf.data.zst",
    "amd-sched/input/sched.perf.data.zst",
    "amd-midrun/input/midrun.perf.data.zst",
    "intel-cpuid/input/intel.perf.data.zst",
];

/// Samples in a total order: events of two processors may have one time.
fn samples(mut events: Vec<Event>) -> Vec<Event> {
    events.retain(|e| e.kind != EventKind::ThreadEnd);
    events.sort_by_key(|e| (e.time_ns, e.cpu));
    events
}

#[test]
fn a_folder_reads_like_its_file() {
    for name in RECORDINGS {
        let file = capture(name);
        let (whole, events, _) = read(ImportSource::Random(&file.as_slice())).unwrap();
        assert!(whole.seen.of("kvm_exit") > 100, "{name}");
        for compress in [false, true] {
            let folder = split(&file, compress);
            assert!(!folder.parts.is_empty(), "{name}");
            let (imported, of_folder, late) = folder.read().unwrap();
            assert_eq!(late, 0, "{name}");
            assert_eq!(imported.losses.truncated, [""; 0], "{name}");
            assert_eq!(imported.losses.recorder_lost, whole.losses.recorder_lost, "{name}");
            assert_eq!(imported.seen, whole.seen, "{name}");
            assert!(of_folder.is_sorted_by_key(|e| e.time_ns), "{name}");
            assert!(samples(of_folder) == samples(events.clone()), "{name}: other events");
        }
    }
}

fn real() -> FolderFiles {
    let file = |name: &str| capture(&format!("pvm/input/threads/{name}.zst"));
    FolderFiles {
        data: file("data"),
        parts: (0..4).map(|n| (n, file(&format!("data.{n}")))).collect(),
    }
}

/// `perf script -i FOLDER | grep -c kvm:` is 1857.
#[test]
fn the_real_folder_counts_as_perf_script_does() {
    let (imported, events, late) = real().read().unwrap();
    let sentence = imported.losses.missing.first().unwrap();
    assert!(
        sentence.contains("among 1857 events of KVM (kvm_emulate_insn 1285, kvm_cpuid 256,"),
        "{sentence}"
    );
    assert_eq!((imported.recording.format.as_str(), late), ("perf.data (folder)", 0));
    let cpuids = events.iter().filter(|e| matches!(e.kind, EventKind::Cpuid { .. })).count();
    assert_eq!(cpuids, 256);
    assert_eq!(imported.losses.truncated, [""; 0]);
}

#[test]
fn a_part_that_is_missing_is_a_loss_and_one_alone_is_refused() {
    for without in 0..4 {
        let mut folder = real();
        folder.parts.remove(without);
        let (imported, ..) = folder.read().unwrap();
        let sentence = format!(
            "the folder has 3 of 4 files of events: data.{without} is missing, and the events in it"
        );
        assert_eq!(imported.losses.truncated, [sentence]);
    }
    let mut folder = real();
    folder.parts.clear();
    let error = folder.read().unwrap_err().to_string();
    assert!(error.contains("its files of events (data.0, data.1 ...) are missing"), "{error}");
    let error = read(ImportSource::Random(&folder.data.as_slice())).unwrap_err().to_string();
    assert!(error.contains("its events are in the files beside it: give the folder"), "{error}");
    for (_, part) in real().parts.iter().chain(&split(&capture(RECORDINGS[0]), true).parts) {
        let error = ImportFormat::recognise(part).unwrap_err().to_string();
        assert!(
            error.contains("records of perf without a header") && error.contains("give the folder"),
            "{error}"
        );
    }
}

/// `perf record --kcore` writes a folder whose file `data` is whole.
#[test]
fn a_folder_without_parts_can_be_whole() {
    let data = capture(RECORDINGS[0]);
    let (_, expected, _) = read(ImportSource::Random(&data.as_slice())).unwrap();
    let (imported, events, _) = FolderFiles { data, parts: Vec::new() }.read().unwrap();
    assert_eq!(events, expected);
    assert_eq!(imported.recording.format, "perf.data");
}

/// Every truncation of a part is a loss, and the data before it is delivered.
#[test]
fn cut_and_flipped_parts() {
    for compress in [false, true] {
        let folder = split(&capture("amd-midrun/input/midrun.perf.data.zst"), compress);
        let (_, all, _) = folder.read().unwrap();
        for part in 0..folder.parts.len() {
            let len = folder.parts[part].1.len();
            for at in (0..len).step_by(len / 40 + 1) {
                let mut cut = folder.clone();
                cut.parts[part].1.truncate(at);
                let (imported, events, _) = cut.read().unwrap();
                assert!(events.len() <= all.len());
                let is_boundary = imported.losses.truncated.is_empty();
                assert!(
                    is_boundary
                        || imported.losses.truncated[0]
                            .starts_with(&format!("data.{}: ", folder.parts[part].0)),
                    "{:?}",
                    imported.losses
                );
                let mut flipped = folder.clone();
                flipped.parts[part].1[at] ^= 0x81;
                // Whatever it makes of it, it ends.
                let _ = flipped.read();
            }
        }
    }
}
