//! What the user named: a run folder, a recording, or standard input.

mod folder;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::path::Path;

use vmtax_capture::source::{RandomFile, ReadAt};
use vmtax_capture::{Format, import::HEAD};
use vmtax_store::{Error, Run};

use crate::exit::{Code, Fault};
pub(crate) use folder::PerfFolder;

/// An input that can be read.
pub(crate) enum Input {
    /// A run folder.
    Run(Box<Run>),
    /// A recording.
    Recording(Recording),
}

/// A recording of a recognised format.
pub(crate) struct Recording {
    /// As the user named it.
    pub(crate) name: String,
    pub(crate) format: Format,
    pub(crate) bytes: Bytes,
}

/// Where a recording's bytes are.
pub(crate) enum Bytes {
    File(RandomFile),
    Folder(PerfFolder),
    /// A pipe, with what was read of it already.
    Stream(Box<dyn Read + Send>),
}

impl Input {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Input> {
        if path.as_os_str() == "-" {
            return open_standard_input().map(Input::Recording);
        }
        let name = path.display().to_string();
        let metadata = path.metadata().map_err(|e| cannot_read(&name, &e))?;
        if metadata.is_dir() {
            // A run is a run, whatever else lies in its folder.
            if !vmtax_store::is_run(path)
                && let Some(folder) = PerfFolder::open(path)?
            {
                let bytes = Bytes::Folder(folder);
                return Ok(Input::Recording(Recording { name, format: Format::PerfFile, bytes }));
            }
            let run = Run::open(path).map_err(|e| run_fault(&e))?;
            return Ok(Input::Run(Box::new(run)));
        }
        let file = File::open(path).map_err(|e| cannot_read(&name, &e))?;
        open_file(file, name).map(Input::Recording)
    }
}

/// The sentence and the code of an input that cannot be opened or read: its name, the system's words, what to do.
pub(crate) fn cannot_read(name: &str, source: &io::Error) -> Fault {
    let advice = match source.kind() {
        io::ErrorKind::NotFound => "; check its name",
        io::ErrorKind::PermissionDenied => {
            "; run vmtax as its owner, or let the owner change its mode"
        }
        _ => "",
    };
    Fault::new(Code::Input, format!("{name}: cannot be read: {source}{advice}"))
}

/// An error of reading a run.
pub(crate) fn run_fault(error: &Error) -> Fault {
    match error {
        Error::NotARun { path, .. } => Fault::new(
            Code::Input,
            format!(
                "{}: is a folder and not a run (it has no run.json); name a recording, or a run that `vmtax import` made",
                path.display()
            ),
        ),
        Error::Io { path, source, .. } => cannot_read(&path.display().to_string(), source),
        _ => Fault::new(Code::Data, error.to_string()),
    }
}

pub(crate) fn open_file(mut file: File, name: String) -> anyhow::Result<Recording> {
    let metadata = file.metadata().map_err(|e| cannot_read(&name, &e))?;
    if !metadata.is_file() {
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
    let format = recognise(&head, &name)?;
    Ok(Recording { name, format, bytes: Bytes::File(file) })
}

fn open_standard_input() -> anyhow::Result<Recording> {
    let name = "standard input".to_owned();
    let descriptor =
        io::stdin().as_fd().try_clone_to_owned().map_err(|e| cannot_read(&name, &e))?;
    open_file(File::from(descriptor), name)
}

fn open_stream(mut stream: Box<dyn Read + Send>, name: String) -> anyhow::Result<Recording> {
    let mut head = Vec::new();
    (&mut stream).take(HEAD as u64).read_to_end(&mut head).map_err(|e| cannot_read(&name, &e))?;
    let format = recognise(&head, &name)?;
    let mut whole = io::Cursor::new(head).chain(stream);
    if !format.needs_seeking() {
        return Ok(Recording { name, format, bytes: Bytes::Stream(Box::new(whole)) });
    }
    // Read out of order, so it is stored first, in a file without a name that goes with the process.
    let failed = |source: io::Error| {
        let folder = std::env::temp_dir();
        Fault::new(
            Code::Output,
            format!(
                "{}: cannot store {name} there: {source}; set TMPDIR to a folder with room",
                folder.display()
            ),
        )
    };
    let mut file = tempfile::tempfile().map_err(failed)?;
    io::copy(&mut whole, &mut file).map_err(failed)?;
    let file = RandomFile::new(file).map_err(failed)?;
    Ok(Recording { name, format, bytes: Bytes::File(file) })
}

/// The text in a file that is packed by zstd. Its memory is bounded: larger windows than 128 MiB are refused.
fn unpacked(head: &[u8], file: &RandomFile) -> io::Result<Option<Box<dyn Read + Send>>> {
    if !head.starts_with(b"\x28\xb5\x2f\xfd") {
        return Ok(None);
    }
    let decoder = zstd::stream::read::Decoder::new(file.try_clone()?)?;
    Ok(Some(Box::new(decoder)))
}

/// Texts are read as they are unpacked. What is read out of order would have to be stored first, however large.
fn open_unpacked(mut stream: Box<dyn Read + Send>, name: String) -> anyhow::Result<Recording> {
    let mut head = Vec::new();
    (&mut stream).take(HEAD as u64).read_to_end(&mut head).map_err(|e| {
        let text = format!("{name}: cannot be unpacked ({e}); check it with `zstd -t`");
        Fault::new(Code::Data, text)
    })?;
    let format = recognise(&head, &name)?;
    if format.needs_seeking() {
        let text = format!(
            "{name}: is a packed recording that is read out of order; unpack it first (zstd -dk FILE)"
        );
        return Err(Fault::new(Code::Data, text).into());
    }
    let whole = io::Cursor::new(head).chain(stream);
    Ok(Recording { name, format, bytes: Bytes::Stream(Box::new(whole)) })
}

fn recognise(head: &[u8], name: &str) -> anyhow::Result<Format> {
    Format::recognise(head).map_err(|e| {
        let help = "`vmtax report --help` says what can be read";
        Fault::new(Code::Data, format!("{name}: {e}; {help}")).into()
    })
}
