//! Bytes as a checkpoint, and as one whose checksum of the whole fits, so that what lies behind it is reached.
#![no_main]

use std::fs;
use std::io::Read;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use vmtax_pageops::checkpoint::{Checkpoint, CheckpointOptions, CheckpointWriter};
use vmtax_pageops::{Cpu, PAGE};

/// Pages that are read of a checkpoint that says it has more.
const MOST: u64 = 4096;

/// A folder with a parent that children may name: `parent`.
fn folder() -> &'static TempDir {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = memory.expect("a folder for temporary files");
        let mut cpu = Cpu::best();
        let path = folder.path().join("parent");
        let mut writer = CheckpointWriter::create(&path, CheckpointOptions::default(), &mut cpu).expect("a parent");
        writer.region("m", 64).expect("a region");
        writer.pages(3, &[7; 5 * PAGE]).expect("pages");
        let finished = writer.finish(&mut std::io::empty(), b"").expect("a parent");
        finished.publish().expect("a parent");
        folder
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let path = folder().path().join("input");
    let mut bytes = data.to_vec();
    open(&path, &bytes);
    // Header, then the rest: sealed as a writer would.
    let len = bytes.len();
    if len < PAGE + 128 {
        return;
    }
    let parent = Checkpoint::open(&folder().path().join("parent")).expect("the parent");
    if bytes[len - 88] & 1 == 1 {
        bytes[len - 88..len - 56].copy_from_slice(&parent.id().0);
    }
    let word =
        |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")) as usize;
    let (state_at, end) = (word(len - 112), len - 128);
    if state_at > end {
        return;
    }
    let mut id = Sha256::new();
    for part in [&bytes[..PAGE], &bytes[state_at..end], &bytes[end..len - 32]] {
        id.update(part);
    }
    let id = id.finalize();
    bytes[len - 32..].copy_from_slice(&id);
    open(&path, &bytes);
});

fn open(path: &std::path::Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("the temporary folder can be written");
    let checkpoint = match Checkpoint::open(path) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut state = Vec::new();
    checkpoint.state().read_to_end(&mut state).expect("the state lies in the file");
    assert_eq!(state.len() as u64, checkpoint.state_len());
    let _ = checkpoint.totals();
    if checkpoint.work() <= MOST
        && let Err(error) = checkpoint.verify(&mut |_| {})
    {
        assert!(!error.to_string().is_empty());
    }
}
