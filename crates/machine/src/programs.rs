//! Programs of this computer to copy into a machine, with the libraries that their loader would load.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vmtax_durable::read_small;

use crate::cpio::ArchiveEntry;
use crate::kernel::Architecture;
use crate::{Error, Tool, ToolLimits};

/// Limits of ldd, which prints a line for each library.
const LIMITS: ToolLimits = ToolLimits { time: Duration::from_secs(60), output: 1 << 20 };

/// Most bytes of a program or a library: all of them are in the memory of a machine.
const LARGEST: u64 = 1 << 30;

/// Files by the path they must have, without the leading slash.
pub type FilesByPath = BTreeMap<String, Vec<u8>>;

/// Adds a file under the path that it is to have, and the libraries of a program; whether it is a program. `name` is what
/// the user called it.
///
/// The dynamic loader lists them; the program is not executed.
pub fn add(files: &mut FilesByPath, name: &str, path: &Path, inside: &Path) -> Result<bool, Error> {
    let problem = |problem: String| Error::Program { program: name.to_owned(), problem };
    let bytes = read_small(path, LARGEST).map_err(|e| problem(format!("cannot be read: {e}")))?;
    let is_program = bytes.starts_with(b"\x7fELF");
    files.insert(relative(inside), bytes);
    if is_program {
        for library in libraries(path).map_err(problem)? {
            let bytes = read_small(&library, LARGEST).map_err(|e| {
                problem(format!("needs {}, which cannot be read: {e}", library.display()))
            })?;
            files.insert(relative(&library), bytes);
        }
    }
    Ok(is_program)
}

/// The content of a file that a build script compressed (zlib).
pub fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    flate2::read::ZlibDecoder::new(packed).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Memory that these files need beside what the host needs: while it boots they are there twice, packed and unpacked, and a
/// root file system in memory may take half of it.
pub fn memory_mib(files: &FilesByPath) -> u32 {
    let bytes: usize = files.values().map(Vec::len).sum();
    u32::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX).saturating_mul(4)
}

/// As entries of an archive, with the folders above them.
pub fn entries(files: &FilesByPath) -> Vec<ArchiveEntry<'_>> {
    let mut entries: Vec<ArchiveEntry<'_>> = Vec::new();
    let mut folders = std::collections::BTreeSet::new();
    for path in files.keys() {
        for (slash, _) in path.match_indices('/') {
            folders.insert(&path[..slash]);
        }
    }
    entries.extend(folders.into_iter().map(ArchiveEntry::folder));
    entries
        .extend(files.iter().map(|(path, bytes)| ArchiveEntry::file(path.clone(), 0o755, bytes)));
    entries
}

/// The file of a program that is named by a path or found on the PATH.
pub fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Path::new(program).canonicalize().ok();
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())?
        .canonicalize()
        .ok()
}

/// Whether a name or a path is a program of an architecture, by the head of its file (ELF-64: `e_machine` at 18).
pub fn is_of(program: &str, architecture: Architecture) -> bool {
    let machine: u16 = match architecture {
        Architecture::Amd64 => 62,
        Architecture::Arm64 => 183,
    };
    let mut head = [0; 20];
    let read = find(program).and_then(|path| File::open(path).ok()?.read_exact(&mut head).ok());
    read.is_some() && head.starts_with(b"\x7fELF\x02") && head[18..] == machine.to_le_bytes()
}

/// Libraries and the loader, as the loader lists them. A static program has none.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let mut command = Command::new("ldd");
    command.arg(program).env("LC_ALL", "C");
    let finished = Tool::new(command, LIMITS).run().map_err(|e| format!("ldd {e}"))?;
    let text = String::from_utf8_lossy(&finished.stdout);
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.contains("not found") {
            return Err(format!("a library is missing: {line}"));
        }
        let place = line.split_once("=> ").map_or(line, |(_, place)| place);
        let place = place.split(" (").next().unwrap_or_default();
        if place.starts_with('/') {
            found.push(PathBuf::from(place));
        }
    }
    Ok(found)
}

fn relative(path: &Path) -> String {
    let parts: Vec<_> = path
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .map(|part| part.as_os_str().to_string_lossy())
        .collect();
    parts.join("/")
}
