//! Checkpoints come back as they were saved, or are refused.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use vmtax_pageops::checkpoint::{
    Accelerate, Checkpoint, CheckpointId, CheckpointOptions, CheckpointWriter, DamageReason, Error,
    RestoreTarget, Summary,
};
use vmtax_pageops::process_memory::MappedFile;
use vmtax_pageops::{Cpu, PAGE, PageFacts};

/// Memory as a test sees it: regions by name.
type TestMemory = Vec<(String, Vec<u8>)>;

/// What is restored to.
#[derive(Default)]
struct Restored(BTreeMap<usize, Vec<u8>>);

impl RestoreTarget for Restored {
    fn clear(&mut self, region: usize, bytes: u64) -> io::Result<()> {
        self.0.insert(region, vec![0; bytes as usize]);
        Ok(())
    }
    fn write(&mut self, region: usize, at: u64, bytes: &[u8]) -> io::Result<()> {
        let region = self.0.get_mut(&region).unwrap();
        region[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

fn save(
    path: &Path,
    memory: &TestMemory,
    parent: Option<&Path>,
    zstd: Option<i32>,
) -> Result<(Summary, CheckpointId), Error> {
    let parent = parent.map(Checkpoint::open).transpose()?;
    let mut cpu = Cpu::best();
    let mut writer =
        CheckpointWriter::create(path, CheckpointOptions { zstd, parent, live: false }, &mut cpu)?;
    for (name, bytes) in memory {
        writer.region(name, (bytes.len() / PAGE) as u64)?;
        // In pieces, and without the pieces that are zero, as holes are left out.
        for (i, piece) in bytes.chunks(7 * PAGE).enumerate() {
            if piece.iter().any(|b| *b != 0) {
                writer.pages(7 * i as u64, piece)?;
            }
        }
    }
    let finished = writer.finish(&mut &b"state of devices"[..], b"a machine")?;
    let written = (finished.summary(), finished.id());
    finished.publish()?;
    Ok(written)
}

fn restore(path: &Path) -> Result<TestMemory, Error> {
    let checkpoint = Checkpoint::open(path)?;
    let mut restored = Restored::default();
    checkpoint.restore(&mut restored, &mut |_| {})?;
    let mut state = Vec::new();
    io::Read::read_to_end(&mut checkpoint.state(), &mut state).unwrap();
    assert_eq!(state, b"state of devices");
    let expected: &[u8] = if checkpoint.version() == 1 { b"" } else { b"a machine" };
    assert_eq!(checkpoint.description(), expected);
    Ok(checkpoint.regions().map(|r| r.name.to_owned()).zip(restored.0.into_values()).collect())
}

/// A page of each sort, by number; `age` makes later states.
fn page(sort: u8, seed: u64, age: u64) -> Vec<u8> {
    let mut state = seed;
    let mut noise = |n: usize| -> Vec<u8> {
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect()
    };
    match sort % 6 {
        0 => vec![0; PAGE],
        1 => noise(8).repeat(PAGE / 8),
        2 => noise(PAGE),
        3 => noise(64).repeat(PAGE / 64),
        // Changes a little with age.
        4 => {
            let mut page = noise(PAGE);
            for i in 0..age as usize % 40 {
                page[i * 97] ^= age as u8;
            }
            page
        }
        // Is zero at even ages.
        _ => noise(PAGE).iter().map(|b| b * (age % 2) as u8).collect(),
    }
}

fn memory(sorts: &[(u8, u64)], age: u64) -> TestMemory {
    let bytes = |part: &[(u8, u64)]| {
        part.iter().flat_map(|(sort, seed)| page(*sort, *seed, age * (1 + seed % 2))).collect()
    };
    let (a, b) = sorts.split_at(sorts.len() / 3);
    vec![("/objects/mem".to_owned(), bytes(a)), ("other".to_owned(), bytes(b))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn saved_memory_is_restored(
        sorts in proptest::collection::vec((any::<u8>(), any::<u64>()), 0..200),
        zstd in proptest::option::of(1..4),
        zstd_of_child in proptest::option::of(1..4),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = |age: u64| dir.path().join(format!("{age}.ckpt"));
        for age in 0..4 {
            let state = memory(&sorts, age);
            let parent = age.checked_sub(1).map(path);
            let zstd = if age == 0 { zstd } else { zstd_of_child };
            save(&path(age), &state, parent.as_deref(), zstd).unwrap();
        }
        for age in 0..4 {
            prop_assert!(restore(&path(age)).unwrap() == memory(&sorts, age), "age {}", age);
            Checkpoint::open(&path(age)).unwrap().verify(&mut |_| {}).unwrap();
        }
        // Nothing else was left in the folder.
        prop_assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
    }
}

/// Noise pauses compression; what compresses after it is found within a megabyte.
#[test]
fn compression_comes_back_after_noise() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ckpt");
    let mut seed = 1u64;
    let mut noise = |pages: usize| -> Vec<u8> {
        let mut word = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 32) as u8
        };
        (0..pages * PAGE).map(|_| word()).collect()
    };
    let text = |pages: usize| -> Vec<u8> {
        (0..pages * PAGE / 8).flat_map(|i| format!("{i:07} ").into_bytes()).collect()
    };
    let bytes = [noise(2048), text(1024), noise(2048), text(1024)].concat();
    let state = vec![("memory".to_owned(), bytes)];
    let (summary, _) = save(&path, &state, None, Some(1)).unwrap();
    // At most a megabyte passes unseen each time.
    assert!((2 * (1024 - 256)..=2 * 1024).contains(&summary.compressed), "{summary:?}");
    assert_eq!(summary.raw + summary.compressed, 6144);
    assert!(restore(&path).unwrap() == state);
}

/// Three generations with pages of every sort.
struct CheckpointFamily {
    dir: tempfile::TempDir,
    sorts: Vec<(u8, u64)>,
}

impl CheckpointFamily {
    fn new(zstd: Option<i32>) -> CheckpointFamily {
        let sorts: Vec<(u8, u64)> = (0..90).map(|i| ((i / 3) as u8, i * 31 + 5)).collect();
        let family = CheckpointFamily { dir: tempfile::tempdir().unwrap(), sorts };
        for age in 0..3u64 {
            let parent = age.checked_sub(1).map(|age| family.path(age));
            save(&family.path(age), &family.memory(age), parent.as_deref(), zstd).unwrap();
        }
        family
    }

    fn path(&self, age: u64) -> PathBuf {
        self.dir.path().join(format!("{age}.ckpt"))
    }

    fn memory(&self, age: u64) -> TestMemory {
        memory(&self.sorts, age)
    }
}

/// Every byte of every generation is damaged in turn: the last one is refused, or still right (never wrong).
#[test]
fn every_damaged_byte_is_detected() {
    for zstd in [None, Some(1)] {
        let family = CheckpointFamily::new(zstd);
        for age in 0..3 {
            let whole = fs::read(family.path(age)).unwrap();
            let mut accepted = 0;
            for at in (0..whole.len())
                .step_by(if age == 0 { 311 } else { 97 })
                .chain(whole.len() - 128..whole.len())
            {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << (at % 8);
                fs::write(family.path(age), &damaged).unwrap();
                match restore(&family.path(2)) {
                    Ok(restored) => {
                        assert!(
                            restored == family.memory(2),
                            "byte {at} of {age}: wrong and accepted"
                        );
                        accepted += 1;
                    }
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
            assert_eq!(accepted, 0, "damage in {age} that nobody saw");
            fs::write(family.path(age), &whole).unwrap();
        }
    }
}

#[test]
fn no_cut_or_longer_file_is_taken() {
    let family = CheckpointFamily::new(Some(1));
    for age in 0..3 {
        let whole = fs::read(family.path(age)).unwrap();
        let lengths = (0..whole.len()).step_by(1013).chain(whole.len() - 200..whole.len());
        for len in lengths {
            fs::write(family.path(age), &whole[..len]).unwrap();
            assert!(restore(&family.path(2)).is_err(), "{age} cut at {len}");
        }
        let mut longer = whole.clone();
        longer.extend([0; 200]);
        fs::write(family.path(age), &longer).unwrap();
        assert!(restore(&family.path(2)).is_err());
        fs::write(family.path(age), &whole).unwrap();
    }
    assert!(restore(&family.path(2)).unwrap() == family.memory(2));
}

#[test]
fn a_parent_that_is_not_the_parent_is_refused() {
    let family = CheckpointFamily::new(None);
    let reason = |age| match restore(&family.path(age)) {
        Err(error) => error.reason,
        Ok(_) => panic!("accepted"),
    };
    // The same memory saved anew is another checkpoint.
    let old = fs::read(family.path(0)).unwrap();
    save(&family.path(0), &family.memory(0), None, None).unwrap();
    assert!(matches!(reason(1), DamageReason::Parent { .. }), "{:?}", reason(1));
    assert!(matches!(reason(2), DamageReason::Parent { .. }));
    fs::write(family.path(0), &old).unwrap();
    // Grandparent and parent change places.
    let middle = fs::read(family.path(1)).unwrap();
    fs::write(family.path(1), &old).unwrap();
    assert!(matches!(reason(2), DamageReason::Parent { .. }));
    // A checkpoint in the place of its own parent.
    fs::write(family.path(1), &middle).unwrap();
    fs::copy(family.path(1), family.path(0)).unwrap();
    assert!(restore(&family.path(1)).is_err());
    // None there.
    fs::remove_file(family.path(0)).unwrap();
    assert!(matches!(reason(1), DamageReason::Io(_)));
}

#[test]
fn the_page_and_the_reason_are_named() {
    let family = CheckpointFamily::new(None);
    let mut bytes = fs::read(family.path(0)).unwrap();
    // The first stored page is of the first region; its bytes follow the header.
    let first = family.memory(0)[0].1.chunks(PAGE).position(|p| p[..8] != p[8..16]).unwrap();
    bytes[PAGE + 5] ^= 4;
    fs::write(family.path(0), &bytes).unwrap();
    let error = restore(&family.path(0)).unwrap_err().to_string();
    assert!(
        error.contains("0.ckpt: page ") && error.contains("\"/objects/mem\" has checksum"),
        "{error}"
    );
    assert!(error.contains(&format!("page {first} of")), "{error}");

    fs::write(family.path(0), b"something else").unwrap();
    let error = restore(&family.path(0)).unwrap_err().to_string();
    assert!(error.ends_with("0.ckpt: is not a checkpoint"), "{error}");
    bytes[8] = 9;
    fs::write(family.path(0), &bytes).unwrap();
    let error = restore(&family.path(0)).unwrap_err();
    assert!(matches!(error.reason, DamageReason::Version { found: 9, .. }), "{error}");
}

#[test]
fn a_writer_that_stops_leaves_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ckpt");
    let old: TestMemory = vec![("m".to_owned(), vec![3; 8 * PAGE])];
    save(&path, &old, None, None).unwrap();
    let mut cpu = Cpu::best();
    let mut writer =
        CheckpointWriter::create(&path, CheckpointOptions::default(), &mut cpu).unwrap();
    writer.region("m", 8).unwrap();
    writer.pages(0, &vec![4; 4 * PAGE]).unwrap();
    drop(writer);
    assert!(restore(&path).unwrap() == old);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn wrong_use_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ckpt");
    save(&path, &vec![("m".to_owned(), vec![3; 8 * PAGE])], None, None).unwrap();
    let mut cpu = Cpu::best();
    let mut writer =
        CheckpointWriter::create(&path, CheckpointOptions::default(), &mut cpu).unwrap();
    assert!(writer.pages(0, &[0; PAGE]).is_err());
    writer.region("m", 2).unwrap();
    assert!(writer.region("m", 2).is_err());
    writer.pages(1, &[0; PAGE]).unwrap();
    assert!(writer.pages(1, &[0; PAGE]).is_err());
    assert!(writer.pages(2, &[0; PAGE]).is_err());
    assert!(writer.pages(2, &[0; 7]).is_err());

    let parent = || CheckpointOptions {
        parent: Some(Checkpoint::open(&path).unwrap()),
        zstd: None,
        live: false,
    };
    let child = dir.path().join("y.ckpt");
    let mut writer = CheckpointWriter::create(&child, parent(), &mut cpu).unwrap();
    assert!(matches!(writer.region("m", 9).unwrap_err().reason, DamageReason::Shape(_)));
    let writer = CheckpointWriter::create(&child, parent(), &mut cpu).unwrap();
    assert!(matches!(
        writer.finish(&mut io::empty(), b"").unwrap_err().reason,
        DamageReason::Shape(_)
    ));
    assert!(matches!(Checkpoint::open(dir.path()).unwrap_err().reason, DamageReason::NotOne));
}

/// A guest that changed little is saved in little.
#[test]
fn increments_are_small() {
    let dir = tempfile::tempdir().unwrap();
    let (base, child) = (dir.path().join("a"), dir.path().join("b"));
    let mut bytes: Vec<u8> = (0..256).flat_map(|i| page(2, i, 0)).collect();
    save(&base, &vec![("m".to_owned(), bytes.clone())], None, None).unwrap();
    for i in (0..256).step_by(16) {
        bytes[i * PAGE + 77] ^= 1;
    }
    bytes[PAGE * 40..PAGE * 60].fill(0);
    let (summary, _) = save(&child, &vec![("m".to_owned(), bytes)], Some(&base), None).unwrap();
    assert_eq!((summary.deltas, summary.raw), (15, 0), "{summary:?}");
    // Zero pages in between were left out.
    assert_eq!((summary.zero, summary.unchanged), (6, 256 - 15 - 20), "{summary:?}");
    assert!(summary.bytes < 3 * PAGE as u64, "{summary:?}");
}

/// Files that versions 1 and 2 of the format had, as a program of that time wrote them.
#[test]
fn older_versions_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let sorts: Vec<(u8, u64)> = (0..12).map(|i| ((i / 2) as u8, i * 31 + 5)).collect();
    for (version, age, file) in [
        (1, 0, "v1-base.ckpt"),
        (1, 1, "v1-child.ckpt"),
        (2, 0, "v2-base.ckpt"),
        (2, 1, "v2-child.ckpt"),
    ] {
        assert_eq!(Checkpoint::open(&folder.join(file)).unwrap().version(), version);
        assert!(restore(&folder.join(file)).unwrap() == memory(&sorts, age), "{file}");
    }
    // A child of today over a parent of then.
    let dir = tempfile::tempdir().unwrap();
    let child = dir.path().join("child.ckpt");
    save(&child, &memory(&sorts, 2), Some(&folder.join("v1-child.ckpt")), None).unwrap();
    assert_eq!(Checkpoint::open(&child).unwrap().version(), 3);
    assert!(restore(&child).unwrap() == memory(&sorts, 2));
    // One that calls itself version 1 has no field for a description.
    let mut bytes = fs::read(folder.join("v1-base.ckpt")).unwrap();
    let at = bytes.len() - 128 + 72;
    bytes[at] = 1;
    fs::write(&child, &bytes).unwrap();
    assert!(matches!(restore(&child).unwrap_err().reason, DamageReason::Damaged { .. }));
}

/// Until it is published a checkpoint has no name, and an existing file stays.
#[test]
fn a_finished_checkpoint_is_not_there_before_it_is_published() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ckpt");
    let old: TestMemory = vec![("m".to_owned(), vec![3; 8 * PAGE])];
    for publish in [false, true] {
        save(&path, &old, None, None).unwrap();
        let mut cpu = Cpu::best();
        let mut writer =
            CheckpointWriter::create(&path, CheckpointOptions::default(), &mut cpu).unwrap();
        writer.region("m", 8).unwrap();
        let finished = writer.finish(&mut &b"state of devices"[..], b"a machine").unwrap();
        assert!(restore(&path).unwrap() == old);
        if publish {
            finished.publish().unwrap();
        } else {
            drop(finished);
        }
        assert_eq!(restore(&path).unwrap() == old, !publish);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

/// Writes to the memory that is being saved after every look at it.
struct Meddler<'a> {
    memory: &'a fs::File,
    pages: usize,
    age: u8,
}

impl Accelerate for Meddler<'_> {
    fn scan(&mut self, pages: &[u8], out: &mut [PageFacts]) {
        Cpu::best().scan(pages, out);
        self.age = self.age.wrapping_add(1);
        // Of every page a word that was zero, or what compresses, or noise.
        for page in 0..self.pages {
            let at = (page * PAGE + 8 * usize::from(self.age)) as u64;
            std::os::unix::fs::FileExt::write_all_at(self.memory, &[self.age, 7, 9], at).unwrap();
        }
    }
}

/// Checksums are those of the bytes that are written, though the memory changes between any two looks at it.
#[test]
fn memory_that_changes_gives_a_checkpoint_that_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let sorts: Vec<(u8, u64)> = (0..300).map(|i| ((i / 3) as u8, i * 31 + 5)).collect();
    let [_, (name, bytes)] = &memory(&sorts, 0)[..] else { panic!("two regions") };
    let base = dir.path().join("base.ckpt");
    save(&base, &vec![(name.clone(), bytes.clone())], None, None).unwrap();
    for (zstd, child) in [(None, false), (Some(1), false), (None, true), (Some(3), true)] {
        let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile()).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
        let map = MappedFile::new(&file, 0..bytes.len() as u64).unwrap();
        let mut meddler = Meddler { memory: &file, pages: bytes.len() / PAGE, age: 0 };
        let parent = child.then(|| Checkpoint::open(&base).unwrap());
        let path = dir.path().join("x.ckpt");
        let mut writer = CheckpointWriter::create(
            &path,
            CheckpointOptions { zstd, parent, live: false },
            &mut meddler,
        )
        .unwrap();
        writer.region(name, (bytes.len() / PAGE) as u64).unwrap();
        map.with(0..bytes.len(), |pages| writer.pages(0, pages)).unwrap();
        writer.finish(&mut io::empty(), b"").unwrap().publish().unwrap();
        let done = Checkpoint::open(&path).unwrap().verify(&mut |_| {});
        done.unwrap_or_else(|e| panic!("zstd {zstd:?}, child {child}: {e}"));
    }
}

/// Saves states one after the other, as a memory that is written to while it is saved: all of the first, of the others what differs.
fn save_live(
    path: &Path,
    states: &[TestMemory],
    parent: Option<&Path>,
    zstd: Option<i32>,
) -> Result<Summary, Error> {
    let parent = parent.map(Checkpoint::open).transpose()?;
    let mut cpu = Cpu::best();
    let mut writer =
        CheckpointWriter::create(path, CheckpointOptions { zstd, parent, live: true }, &mut cpu)?;
    for (name, bytes) in &states[0] {
        writer.region(name, (bytes.len() / PAGE) as u64)?;
        for (i, piece) in bytes.chunks(7 * PAGE).enumerate() {
            if piece.iter().any(|b| *b != 0) {
                writer.pages(7 * i as u64, piece)?;
            }
        }
    }
    for state in &states[1..] {
        writer.begin_layer()?;
        for (region, (_, bytes)) in state.iter().enumerate() {
            let mut changed = Vec::new();
            for (i, piece) in bytes.chunks(7 * PAGE).enumerate() {
                let (first, latest) = (7 * i as u64, writer.latest().unwrap());
                if piece.iter().any(|b| *b != 0) {
                    latest.differing(region, first, piece, &mut changed);
                } else {
                    let range = first..first + (piece.len() / PAGE) as u64;
                    latest.lost(region, range, &mut changed);
                }
            }
            writer.region_again(region)?;
            for range in changed {
                let bytes = &bytes[range.start as usize * PAGE..range.end as usize * PAGE];
                writer.pages(range.start, bytes)?;
            }
        }
    }
    let finished = writer.finish(&mut &b"state of devices"[..], b"a machine")?;
    let summary = finished.summary();
    finished.publish()?;
    Ok(summary)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// The last state comes back, at any level of a chain, and no page of an earlier one.
    #[test]
    fn a_live_save_holds_the_last_state(
        sorts in proptest::collection::vec((any::<u8>(), any::<u64>()), 0..200),
        zstd in proptest::option::of(1..4),
        seed in any::<u64>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = |age: u64| dir.path().join(format!("{age}.ckpt"));
        // Pages become other sorts, too: noise becomes zero, one word, a delta, what the parent has.
        let turned = |by: u64| -> TestMemory {
            let sorts: Vec<(u8, u64)> = sorts.iter().zip(0..).map(|((sort, page), i)| {
                let turn = (seed.wrapping_mul(2 * by + 1) >> (i % 60)) & 3;
                (sort.wrapping_add(if turn == 0 { by as u8 } else { 0 }), *page)
            }).collect();
            memory(&sorts, by)
        };
        for age in 0..3 {
            let states: Vec<TestMemory> = (0..4).map(|step| turned(age + 3 * step % 4)).collect();
            let parent = age.checked_sub(1).map(path);
            let summary = save_live(&path(age), &states, parent.as_deref(), zstd).unwrap();
            prop_assert!(restore(&path(age)).unwrap() == states[3], "age {}", age);
            let checkpoint = Checkpoint::open(&path(age)).unwrap();
            checkpoint.verify(&mut |_| {}).unwrap();
            // The summary is of the pages as they are in the end.
            let totals = checkpoint.totals();
            prop_assert_eq!((summary.raw, summary.filled), (totals.raw, totals.filled));
            prop_assert_eq!(summary.compressed, totals.compressed);
            prop_assert!(summary.deltas <= totals.deltas);
        }
    }
}

/// A further layer only holds what differs, and takes nothing but that.
#[test]
fn a_layer_is_as_large_as_what_differs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ckpt");
    let noise = |age: u64| -> Vec<u8> {
        (0..256).flat_map(|i| page(2, i, 0)).map(|b| b ^ age as u8).collect()
    };
    let first = noise(0);
    let mut second = first.clone();
    second[100 * PAGE..103 * PAGE].copy_from_slice(&noise(1)[100 * PAGE..103 * PAGE]);
    second[200 * PAGE..201 * PAGE].fill(0);
    let state = |bytes: &[u8]| -> TestMemory { vec![("m".to_owned(), bytes.to_vec())] };
    let once = save_live(&path, &[state(&first)], None, None).unwrap();
    let twice = save_live(&path, &[state(&first), state(&second)], None, None).unwrap();
    assert_eq!((twice.raw, twice.zero), (255, 1));
    let more = twice.bytes - once.bytes;
    assert!((3 * PAGE as u64..3 * PAGE as u64 + 100).contains(&more), "{more}");
    assert!(restore(&path).unwrap() == state(&second));
}

#[test]
fn wrong_use_of_layers_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ckpt");
    let mut cpu = Cpu::best();
    let mut plain =
        CheckpointWriter::create(&path, CheckpointOptions::default(), &mut cpu).unwrap();
    plain.region("m", 8).unwrap();
    assert!(plain.latest().is_none() && plain.begin_layer().is_err());
    drop(plain);
    let options = CheckpointOptions { live: true, ..CheckpointOptions::default() };
    let mut writer = CheckpointWriter::create(&path, options, &mut cpu).unwrap();
    writer.region("m", 8).unwrap();
    writer.region("n", 8).unwrap();
    assert!(writer.region_again(0).is_err());
    writer.begin_layer().unwrap();
    assert!(writer.pages(0, &[1; PAGE]).is_err());
    assert!(writer.region("o", 8).is_err());
    writer.region_again(1).unwrap();
    assert!(writer.region_again(0).is_err() && writer.region_again(2).is_err());
    for _ in 2..64 {
        writer.begin_layer().unwrap();
    }
    assert!(writer.begin_layer().is_err());
}

/// A stream has the bytes of a file, is none before its end, and finds its parent.
#[test]
fn a_stream_is_a_checkpoint() {
    use std::io::Read;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base.ckpt");
    let bytes =
        |age: u64| -> Vec<u8> { (0..300).flat_map(|i| page((i / 50) as u8, i, age)).collect() };
    save(&base, &vec![("m".to_owned(), bytes(0))], None, None).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut cpu = Cpu::best();
    for (publish, live) in [(true, false), (true, true), (false, false)] {
        let (mut reader, writer) = io::pipe().unwrap();
        let read = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        });
        let parent = Some(Checkpoint::open(&base).unwrap());
        let file = fs::File::from(std::os::fd::OwnedFd::from(writer));
        let options = CheckpointOptions { parent, live, ..CheckpointOptions::default() };
        let mut writer =
            CheckpointWriter::stream(file, "standard output", options, &mut cpu, stop.clone())
                .unwrap();
        writer.region("m", 300).unwrap();
        writer.pages(0, &bytes(1)).unwrap();
        if live {
            writer.begin_layer().unwrap();
            writer.region_again(0).unwrap();
            writer.pages(0, &bytes(2)).unwrap();
        }
        let finished = writer.finish(&mut &b"state of devices"[..], b"a machine").unwrap();
        let (id, len) = (finished.id(), finished.summary().bytes);
        if publish {
            finished.publish().unwrap();
        } else {
            drop(finished);
        }
        let all = read.join().unwrap();
        let copy = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&copy, &all, 0).unwrap();
        let opened = Checkpoint::open_file(copy, "standard input");
        if !publish {
            let error = opened.unwrap_err().to_string();
            assert!(
                error.starts_with("standard input: byte ") && error.contains("is missing"),
                "{error}"
            );
            continue;
        }
        let opened = opened.unwrap();
        assert_eq!((opened.id(), opened.bytes()), (id, len));
        let mut restored = Restored::default();
        opened.restore(&mut restored, &mut |_| {}).unwrap();
        assert!(restored.0[&0] == bytes(1 + u64::from(live)));
    }
    // A reader that does not read is waited for only until it is time to stop.
    let (reader, writer) = io::pipe().unwrap();
    let file = fs::File::from(std::os::fd::OwnedFd::from(writer));
    let mut writer = CheckpointWriter::stream(
        file,
        "standard output",
        CheckpointOptions::default(),
        &mut cpu,
        stop.clone(),
    )
    .unwrap();
    writer.region("m", 300).unwrap();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        stop.store(true, Ordering::Relaxed);
    });
    let error = writer.pages(0, &bytes(1)).unwrap_err();
    assert!(error.to_string().contains("interrupted"), "{error}");
    stopper.join().unwrap();
    drop(reader);
}
