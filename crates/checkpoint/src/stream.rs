//! Checkpoints on standard input and output, for sending them to another host without a local file.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_cli::output::{cannot_read, cannot_write};
use vmtax_pageops::checkpoint::Checkpoint;

use crate::fault;

/// The name of standard output in errors.
pub const OUTPUT: &str = "standard output";
/// The name of standard input in errors.
const INPUT: &str = "standard input";

/// Whether a path means a standard stream.
pub fn is_stream(path: &Path) -> bool {
    path.as_os_str() == OsStr::new("-")
}

/// The name of an output in messages.
pub fn name(output: &Path) -> String {
    if is_stream(output) { OUTPUT.to_owned() } else { output.display().to_string() }
}

/// Standard output, for a checkpoint.
///
/// # Errors
/// When it is a terminal.
pub fn output() -> anyhow::Result<File> {
    let out = io::stdout();
    if out.is_terminal() {
        let what = format!("{OUTPUT}: is a terminal; send the checkpoint to a file or a program");
        return fail(Code::Usage, what);
    }
    let descriptor = out.as_fd().try_clone_to_owned().map_err(|e| cannot_write(OUTPUT, &e))?;
    Ok(File::from(descriptor))
}

/// Opens a checkpoint. A stream is first copied to a temporary file without a name, because the index of pages is at its end, and nothing is
/// used before all of it is verified.
///
/// # Errors
/// When it cannot be read, or is not a whole checkpoint.
pub fn open(path: &Path) -> anyhow::Result<Checkpoint> {
    if !is_stream(path) {
        return Checkpoint::open(path).map_err(|e| fault(&e, false));
    }
    let folder = std::env::temp_dir();
    let wrap = |e: io::Error| -> CodedError {
        cannot_write(&format!("{} (for a copy of {INPUT})", folder.display()), &e)
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let copy = rustix::fs::open(&folder, flags, Mode::RUSR | Mode::WUSR);
    let mut copy = File::from(copy.map_err(|errno| wrap(errno.into()))?);
    let mut input = io::stdin().lock();
    let mut block = vec![0; 256 << 10];
    loop {
        match io::Read::read(&mut input, &mut block) {
            Ok(0) => break,
            Ok(read) => io::Write::write_all(&mut copy, &block[..read]).map_err(wrap)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(cannot_read(INPUT, &error).into()),
        }
    }
    Checkpoint::open_file(copy, INPUT).map_err(|e| fault(&e, false))
}
