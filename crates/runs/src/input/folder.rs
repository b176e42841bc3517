//! A folder that perf wrote instead of a file: `perf record --threads`, `perf record --kcore`.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use vmtax_capture::ImportSource;
use vmtax_capture::import::perf_data::{EventsFile, recognise_file};
use vmtax_capture::source::{RandomFile, ReadAt};
use vmtax_cli::exit::CodedError;
use vmtax_cli::output::cannot_read;
use vmtax_cli::progress::ReadingProgress;

use super::WatchedFile;

/// The files of a folder. `perf record --kcore` has no parts, and what is in its `kcore_dir` is not needed.
pub struct PerfFolder {
    data: RandomFile,
    /// Files `data.N` by number.
    parts: Vec<(u32, RandomFile)>,
}

impl PerfFolder {
    /// Opens the files of a folder; `None` if it has no file `data` that perf wrote.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn open(folder: &Path) -> Result<Option<PerfFolder>, CodedError> {
        let data = folder.join("data");
        if !data.is_file() {
            return Ok(None);
        }
        let data = open(&data)?;
        let mut head = [0; 16];
        let got = data.read_at(0, &mut head).map_err(|e| unreadable(folder, &e))?;
        if !recognise_file(&head[..got]) {
            return Ok(None);
        }
        let mut parts = Vec::new();
        for entry in fs::read_dir(folder).map_err(|e| unreadable(folder, &e))? {
            let path = entry.map_err(|e| unreadable(folder, &e))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let digits =
                name.strip_prefix("data.").filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
            // "data.old" is another recording.
            let Some(number) = digits.and_then(|n| n.parse().ok()) else { continue };
            if path.is_file() {
                parts.push((number, open(&path)?));
            }
        }
        parts.sort_by_key(|(number, _)| *number);
        Ok(Some(PerfFolder { data, parts }))
    }

    /// Bytes of its files.
    pub(crate) fn len(&self) -> u64 {
        self.parts.iter().fold(self.data.len(), |sum, (_, part)| sum.saturating_add(part.len()))
    }

    /// Lends the files to an import, and shows how much of them is read.
    pub(crate) fn read<T>(
        &self,
        progress: &ReadingProgress,
        import: impl FnOnce(ImportSource<'_>) -> T,
    ) -> T {
        let data = WatchedFile::new(&self.data, progress);
        let files = self.parts.iter();
        let files: Vec<(u32, WatchedFile<'_>)> =
            files.map(|(number, file)| (*number, WatchedFile::new(file, progress))).collect();
        let parts: Vec<EventsFile<'_>> =
            files.iter().map(|(number, source)| EventsFile { number: *number, source }).collect();
        import(ImportSource::Folder(&data, &parts))
    }
}

fn open(path: &Path) -> Result<RandomFile, CodedError> {
    File::open(path).and_then(RandomFile::new).map_err(|e| unreadable(path, &e))
}

fn unreadable(path: &Path, error: &io::Error) -> CodedError {
    cannot_read(&path.display().to_string(), error)
}
