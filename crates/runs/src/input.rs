//! The user's input: a run folder, a recording, or standard input.

mod folder;
mod logs;
mod watched;

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use vmtax_capture::source::{RandomFile, ReadAt};
use vmtax_capture::{ImportFormat, import::HEAD, posted};
use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_cli::output::cannot_read;
use vmtax_store::Run;

use crate::read_fault;
pub use folder::PerfFolder;
pub(crate) use watched::{Watched, WatchedFile};

/// The size of a pipe that is read: what every user may ask for (fs.pipe-max-size).
const PIPE: usize = 1 << 20;

/// An input that can be read.
pub enum Input {
    Run(Box<Run>),
    Recording(RecordingInput),
}

/// A recording of a recognised format.
pub struct RecordingInput {
    /// Its name as given by the user.
    pub name: String,
    pub format: ImportFormat,
    pub bytes: RecordingBytes,
}

/// The bytes of a recording.
pub enum RecordingBytes {
    File(RandomFile),
    /// A folder of `perf record --threads`.
    Folder(PerfFolder),
    /// A pipe, with the bytes already read from it.
    Stream(Box<dyn Read + Send>),
}

impl Input {
    /// Opens an input; `-` is standard input.
    pub fn open(path: &Path) -> anyhow::Result<Input> {
        if path.as_os_str() == "-" {
            return open_standard_input().map(Input::Recording);
        }
        let name = path.display().to_string();
        let metadata = path.metadata().map_err(|e| cannot_read(&name, &e))?;
        if metadata.is_dir() {
            // A folder with a run is a run, whatever other files it has.
            if !vmtax_store::is_run(path)
                && let Some(folder) = PerfFolder::open(path)?
            {
                let bytes = RecordingBytes::Folder(folder);
                return Ok(Input::Recording(RecordingInput {
                    name,
                    format: ImportFormat::PerfFile,
                    bytes,
                }));
            }
            if !vmtax_store::is_run(path)
                && let Some(table) = logs::of_folder(path)?
            {
                return Ok(Input::Recording(of_table(table, name)));
            }
            let run = Run::open(path).map_err(|e| read_fault(&e))?;
            return Ok(Input::Run(Box::new(run)));
        }
        let file = File::open(path).map_err(|e| cannot_read(&name, &e))?;
        open_file(file, name).map(Input::Recording)
    }
}

impl RecordingInput {
    /// How many bytes it has; `None` for a pipe.
    pub fn size(&self) -> Option<u64> {
        match &self.bytes {
            RecordingBytes::File(file) => Some(file.len()),
            RecordingBytes::Folder(folder) => Some(folder.len()),
            RecordingBytes::Stream(_) => None,
        }
    }
}

/// A recording in an open file; `name` is for messages.
pub fn open_file(mut file: File, name: String) -> anyhow::Result<RecordingInput> {
    let metadata = file.metadata().map_err(|e| cannot_read(&name, &e))?;
    if !metadata.is_file() {
        if metadata.file_type().is_fifo() {
            // Fewer switches between the two programs. Users may be allowed less: then it stays as it is.
            let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE);
        }
        return open_stream(Box::new(file), name);
    }
    // `vmtax report - < FILE` may come with the file read in part; read all of it.
    file.rewind().map_err(|e| cannot_read(&name, &e))?;
    let file = RandomFile::new(file).map_err(|e| cannot_read(&name, &e))?;
    let mut head = vec![0; HEAD];
    let got = file.read_at(0, &mut head).map_err(|e| cannot_read(&name, &e))?;
    head.truncate(got);
    if let Some(stream) = unpacked(&head, &file).map_err(|e| cannot_read(&name, &e))? {
        return open_unpacked(stream, name);
    }
    if posted::is_posted(&head) {
        let rest = file.try_clone().map_err(|e| cannot_read(&name, &e))?;
        return open_posted(Box::new(rest), name);
    }
    let format = match recognise(&head, &name) {
        Ok(format) => format,
        Err(fault) => {
            let log = logs::of_file(&file, &name).map_err(|e| cannot_read(&name, &e))?;
            return Ok(of_table(log.ok_or(fault)??, name));
        }
    };
    Ok(RecordingInput { name, format, bytes: RecordingBytes::File(file) })
}

fn of_table(table: String, name: String) -> RecordingInput {
    let bytes = RecordingBytes::Stream(Box::new(io::Cursor::new(table.into_bytes())));
    RecordingInput { name, format: ImportFormat::Results, bytes }
}

/// Refuses several inputs that are standard input.
///
/// # Errors
/// When more than one is `-`.
pub fn check_read_once(paths: &[&Path]) -> anyhow::Result<()> {
    match paths.iter().filter(|path| path.as_os_str() == "-").count() {
        0 | 1 => Ok(()),
        _ => fail(
            Code::Usage,
            "-: standard input can be read only once; name a file for the other input",
        ),
    }
}

fn open_standard_input() -> anyhow::Result<RecordingInput> {
    let name = "standard input".to_owned();
    let descriptor =
        io::stdin().as_fd().try_clone_to_owned().map_err(|e| cannot_read(&name, &e))?;
    open_file(File::from(descriptor), name)
}

pub(crate) fn open_stream(
    mut stream: Box<dyn Read + Send>,
    name: String,
) -> anyhow::Result<RecordingInput> {
    let mut head = Vec::new();
    (&mut stream).take(HEAD as u64).read_to_end(&mut head).map_err(|e| cannot_read(&name, &e))?;
    if posted::is_posted(&head) {
        return open_posted(Box::new(io::Cursor::new(head).chain(stream)), name);
    }
    let format = match recognise(&head, &name) {
        Ok(format) => format,
        Err(fault) => {
            let log = logs::of_stream(head, &mut stream, &name);
            let log = log.map_err(|e| cannot_read(&name, &e))?;
            return Ok(of_table(log.ok_or(fault)??, name));
        }
    };
    let whole = io::Cursor::new(head).chain(stream);
    if !format.needs_seeking() {
        return Ok(RecordingInput { name, format, bytes: RecordingBytes::Stream(Box::new(whole)) });
    }
    // It is read out of order, so it is copied to a temporary file without a name first.
    let failed = |source: io::Error| {
        let folder = std::env::temp_dir();
        CodedError::new(
            Code::Output,
            format!(
                "{}: cannot store {name} there: {source}; set TMPDIR to a folder with enough space",
                folder.display()
            ),
        )
    };
    let mut file = tempfile::tempfile().map_err(failed)?;
    // Without the large buffer this is a read and a write for every 8 KiB.
    io::copy(&mut BufReader::with_capacity(PIPE, whole), &mut file).map_err(failed)?;
    let file = RandomFile::new(file).map_err(failed)?;
    Ok(RecordingInput { name, format, bytes: RecordingBytes::File(file) })
}

/// The text in a zstd file. Windows larger than 128 MiB are refused, to bound memory.
fn unpacked(head: &[u8], file: &RandomFile) -> io::Result<Option<Box<dyn Read + Send>>> {
    if !head.starts_with(b"\x28\xb5\x2f\xfd") {
        return Ok(None);
    }
    let decoder = zstd::stream::read::Decoder::new(file.try_clone()?)?;
    Ok(Some(Box::new(decoder)))
}

/// Text formats are decompressed while they are read. Formats that are read out of order are refused: they would have to be stored
/// first.
fn open_unpacked(mut stream: Box<dyn Read + Send>, name: String) -> anyhow::Result<RecordingInput> {
    let mut head = Vec::new();
    (&mut stream).take(HEAD as u64).read_to_end(&mut head).map_err(|e| {
        let text = format!("{name}: cannot be unpacked ({e}); check it with `zstd -t`");
        CodedError::new(Code::Data, text)
    })?;
    if posted::is_posted(&head) {
        return open_posted(Box::new(io::Cursor::new(head).chain(stream)), name);
    }
    let format = recognise(&head, &name)?;
    if format.needs_seeking() {
        let text = format!(
            "{name}: recordings of this format cannot be read compressed; decompress it first (zstd -dk FILE)"
        );
        return Err(CodedError::new(Code::Data, text).into());
    }
    let whole = io::Cursor::new(head).chain(stream);
    Ok(RecordingInput { name, format, bytes: RecordingBytes::Stream(Box::new(whole)) })
}

/// A text from a mail or a web page, as the tool printed it.
fn open_posted(stream: Box<dyn Read + Send>, name: String) -> anyhow::Result<RecordingInput> {
    let text = restored(stream, &name)?;
    let head = text.as_bytes().get(..HEAD).unwrap_or(text.as_bytes());
    let format = match recognise(head, &name) {
        Ok(format) => format,
        Err(fault) => {
            let log = logs::of_text(text.as_bytes(), &name);
            return Ok(of_table(log.ok_or(fault)??, name));
        }
    };
    let bytes = RecordingBytes::Stream(Box::new(io::Cursor::new(text.into_bytes())));
    Ok(RecordingInput { name, format, bytes })
}

/// The whole text of a post, restored.
pub(crate) fn restored(stream: impl Read, name: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let read = stream.take(posted::MOST_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|e| cannot_read(name, &e))?;
    let refuse = |problem: &str| CodedError::new(Code::Data, format!("{name}: {problem}"));
    if bytes.len() as u64 > posted::MOST_BYTES {
        let problem = "is a text from a mail or a web page of more than 64 MiB: give the text as the tool printed it";
        return Err(refuse(problem).into());
    }
    posted::restore(&bytes).map_err(|problem| refuse(&problem).into())
}

fn recognise(head: &[u8], name: &str) -> anyhow::Result<ImportFormat> {
    ImportFormat::recognise(head).map_err(|e| {
        let help = "`vmtax report --help` says what can be read";
        CodedError::new(Code::Data, format!("{name}: {e}; {help}")).into()
    })
}
