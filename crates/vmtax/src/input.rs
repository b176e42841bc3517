//! What the user named: a run folder, a recording, or standard input.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Context;
use vmtax_capture::source::{RandomFile, ReadAt};
use vmtax_capture::{Format, import::HEAD};
use vmtax_store::Run;

use crate::exit::{Code, Fault, fail};

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
    /// A pipe, with what was read of it already.
    Stream(Box<dyn Read + Send>),
}

impl Input {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Input> {
        if path.as_os_str() == "-" {
            return open_standard_input().map(Input::Recording);
        }
        let name = path.display().to_string();
        let metadata = path.metadata().with_context(|| cannot_open(&name))?;
        if metadata.is_dir() {
            if !vmtax_store::is_run(path) {
                return fail(
                    Code::Input,
                    format!(
                        "{name}: is a folder and not a run (it has no run.json); name a recording, or a run that `vmtax import` made"
                    ),
                );
            }
            let run = Run::open(path).map_err(|e| Fault::new(Code::Data, e.to_string()))?;
            return Ok(Input::Run(Box::new(run)));
        }
        let file = File::open(path).with_context(|| cannot_open(&name))?;
        open_file(file, name).map(Input::Recording)
    }
}

fn cannot_open(name: &str) -> Fault {
    Fault::new(Code::Input, format!("{name}: cannot open it"))
}

fn cannot_read(name: &str) -> Fault {
    Fault::new(Code::Input, format!("{name}: cannot read it"))
}

fn open_file(mut file: File, name: String) -> anyhow::Result<Recording> {
    let metadata = file.metadata().with_context(|| cannot_read(&name))?;
    if !metadata.is_file() {
        return open_stream(Box::new(file), name);
    }
    // `vmtax report - < FILE` may come with the file read in part; read all of it.
    file.rewind().with_context(|| cannot_read(&name))?;
    let file = RandomFile::new(file).with_context(|| cannot_read(&name))?;
    let mut head = vec![0; HEAD];
    let got = file.read_at(0, &mut head).with_context(|| cannot_read(&name))?;
    head.truncate(got);
    let format = recognise(&head, &name)?;
    Ok(Recording { name, format, bytes: Bytes::File(file) })
}

fn open_standard_input() -> anyhow::Result<Recording> {
    let name = "standard input".to_owned();
    let descriptor =
        io::stdin().as_fd().try_clone_to_owned().with_context(|| cannot_read(&name))?;
    open_file(File::from(descriptor), name)
}

fn open_stream(mut stream: Box<dyn Read + Send>, name: String) -> anyhow::Result<Recording> {
    let mut head = Vec::new();
    (&mut stream).take(HEAD as u64).read_to_end(&mut head).with_context(|| cannot_read(&name))?;
    let format = recognise(&head, &name)?;
    let mut whole = io::Cursor::new(head).chain(stream);
    if !format.needs_seeking() {
        return Ok(Recording { name, format, bytes: Bytes::Stream(Box::new(whole)) });
    }
    // Read out of order, so it is stored first, in a file without a name that goes with the process.
    let failed = || {
        let folder = std::env::temp_dir();
        Fault::new(
            Code::Output,
            format!(
                "{}: cannot store {name} there; set TMPDIR to a folder with room",
                folder.display()
            ),
        )
    };
    let mut file = tempfile::tempfile().with_context(failed)?;
    io::copy(&mut whole, &mut file).with_context(failed)?;
    let file = RandomFile::new(file).with_context(failed)?;
    Ok(Recording { name, format, bytes: Bytes::File(file) })
}

fn recognise(head: &[u8], name: &str) -> anyhow::Result<Format> {
    Format::recognise(head).map_err(|e| Fault::new(Code::Data, format!("{name}: {e}")).into())
}
