//! SHA-256 of files, by which cached things are named and checked.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use sha2::{Digest, Sha256};

/// The checksum of what `reader` gives, in lower-case hexadecimal digits, and the number of bytes.
pub(crate) fn of_reader(mut reader: impl Read) -> io::Result<(String, u64)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut bytes = 0;
    loop {
        let n = match reader.read(&mut buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        if n == 0 {
            return Ok((hex(&hash.finalize()), bytes));
        }
        hash.update(&buffer[..n]);
        bytes += n as u64;
    }
}

/// The checksum of several things, in order.
pub(crate) fn of_parts(parts: &[Vec<u8>]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

/// The checksum of a file.
pub(crate) fn of_file(path: &Path) -> io::Result<String> {
    Ok(of_reader(File::open(path)?)?.0)
}

/// The checksum of the blocks of a file that are not zeros, and of where they lie: for images of memory,
/// which are mostly holes. Copies have the same one, whether they kept the holes or not.
pub(crate) fn of_sparse(path: &Path) -> io::Result<String> {
    const BLOCK: usize = 4096;
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut hash = Sha256::new();
    hash.update(length.to_le_bytes());
    let mut buffer = vec![0; 64 * BLOCK];
    let mut at = 0;
    // Behind the last data this is an error, which ends the file too.
    while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
        at = data / BLOCK as u64 * BLOCK as u64;
        let n = file.read_at(&mut buffer, at)?;
        for (index, block) in buffer[..n].chunks(BLOCK).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                hash.update((at + (index * BLOCK) as u64).to_le_bytes());
                hash.update(block);
            }
        }
        at += n as u64;
    }
    Ok(hex(&hash.finalize()))
}

/// The checksum of bytes.
pub(crate) fn of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
