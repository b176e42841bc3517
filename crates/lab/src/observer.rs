//! A program of this computer for the emulated host: it, and the libraries that its loader would load.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use vmtax_machine::cpio::Entry;

use crate::Error;

/// Files by the path they must have, without the leading slash.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// What a program needs to run elsewhere, and the files that are to be brought for it; nothing for no program.
///
/// The loader itself is asked, and it runs nothing of the program.
pub(crate) fn files(command: &[String], brought: &[PathBuf]) -> Result<Files, Error> {
    let mut files = Files::new();
    let Some(program) = command.first() else { return Ok(files) };
    let problem =
        |problem: &str| Error::Observer { program: program.clone(), problem: problem.to_owned() };
    let path = find(program)
        .ok_or_else(|| problem("there is no such program here; install it, or give its path"))?;
    let named = Path::new(program);
    let inside = if named.is_absolute() {
        named.to_owned()
    } else {
        Path::new("/usr/bin").join(named.file_name().unwrap_or_default())
    };
    if !add(&mut files, program, &path, &inside)? {
        return Err(problem("is a script; give the program that it runs"));
    }
    for path in brought {
        // Relative names are those of the folder that the program starts in.
        let name = path.display().to_string();
        add(&mut files, &name, path, &Path::new("/out").join(path))?;
    }
    Ok(files)
}

/// Adds a file, and the libraries of a program; whether it is a program.
fn add(files: &mut Files, name: &str, path: &Path, inside: &Path) -> Result<bool, Error> {
    let problem = |problem: String| Error::Observer { program: name.to_owned(), problem };
    let bytes = std::fs::read(path).map_err(|e| problem(format!("cannot be read: {e}")))?;
    let is_program = bytes.starts_with(b"\x7fELF");
    files.insert(relative(inside), bytes);
    if is_program {
        for library in libraries(path).map_err(problem)? {
            let bytes = std::fs::read(&library).map_err(|e| {
                problem(format!("needs {}, which cannot be read: {e}", library.display()))
            })?;
            files.insert(relative(&library), bytes);
        }
    }
    Ok(is_program)
}

/// Memory that these files need beside what the host needs: while it boots they are there twice, packed and unpacked, and a
/// root file system in memory may take half of it.
pub(crate) fn memory_mib(files: &Files) -> u32 {
    let bytes: usize = files.values().map(Vec::len).sum();
    u32::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX).saturating_mul(4)
}

/// As entries of an archive, with the folders above them.
pub(crate) fn entries(files: &Files) -> Vec<Entry<'_>> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut folders = std::collections::BTreeSet::new();
    for path in files.keys() {
        for (slash, _) in path.match_indices('/') {
            folders.insert(&path[..slash]);
        }
    }
    entries.extend(folders.into_iter().map(Entry::folder));
    entries.extend(files.iter().map(|(path, bytes)| Entry::file(path.clone(), 0o755, bytes)));
    entries
}

fn find(program: &str) -> Option<PathBuf> {
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

/// Libraries and the loader, as the loader lists them. A static program has none.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        .output()
        .map_err(|e| format!("ldd does not run: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
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
