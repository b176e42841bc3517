//! Where an output goes: standard output, or a file that appears only when it is whole.

use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use vmtax_durable::{FileAccess, NewFile};

use crate::exit::{Code, CodedError, fail};

/// An output is written to this.
pub type Out<'a> = &'a mut (dyn Write + Send);

const BUFFER: usize = 64 << 10;

/// Standard output is a terminal that is to have colours.
pub fn has_colors() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Columns of the terminal that standard output is.
pub fn width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0))
}

/// Opens the place and writes to it.
pub fn write<T>(
    path: Option<&Path>,
    write: impl FnOnce(Out<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    OutputPlace::open(path)?.write(write)
}

/// Two names of one file: links of either kind, a mount elsewhere, one name written in two ways.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// A report does not take the place of what it is made from.
pub fn check(inputs: &[&Path], output: Option<&Path>) -> anyhow::Result<()> {
    let Some(output) = output.filter(|output| output.is_file()) else { return Ok(()) };
    let is_input = |input: &&&Path| match input.as_os_str() == "-" {
        true => is_same_file(Path::new("/dev/stdin"), output),
        false => is_same_file(input, output) || is_within(input, output),
    };
    match inputs.iter().find(is_input) {
        Some(input) => fail(
            Code::Usage,
            format!("{}: is the input; name another file for the report", input.display()),
        ),
        None => Ok(()),
    }
}

/// A recording can be a folder, whose files are all its own. Of a run see [`run_of`].
fn is_within(folder: &Path, file: &Path) -> bool {
    folder.is_dir()
        && !MANIFESTS.iter().any(|name| folder.join(name).exists())
        && folder
            .canonicalize()
            .is_ok_and(|folder| file.canonicalize().is_ok_and(|file| file.starts_with(folder)))
}

/// What makes a folder a run, or a compacted day of runs.
const MANIFESTS: [&str; 2] = ["run.json", "day.json"];

/// The run that an existing file is part of: its manifest, or in one of its folders. A report beside the manifest is none of it.
fn run_of(file: &Path) -> Option<&Path> {
    let is_run = |folder: &&Path| MANIFESTS.iter().any(|name| folder.join(name).is_file());
    let beside = file.parent()?;
    let above = beside.parent();
    let is_manifest = MANIFESTS.iter().any(|name| file.file_name().is_some_and(|f| f == *name));
    match is_manifest && is_run(&beside) {
        true => Some(beside),
        false => above.filter(is_run),
    }
}

/// A place to write to.
pub enum OutputPlace {
    Standard,
    /// A device or a pipe, which can only be written to.
    Stream(fs::File, String),
    /// A file that has no name yet. A report is no secret: the umask says who may read it.
    File(NewFile, String),
}

impl OutputPlace {
    /// Opens it before any work starts: if it cannot be written, nothing needs to be computed.
    pub fn open(path: Option<&Path>) -> anyhow::Result<OutputPlace> {
        let Some(path) = path else { return Ok(OutputPlace::Standard) };
        let name = path.display().to_string();
        // Through a symbolic link to what it names: renaming would replace the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if let Some(run) = run_of(&path).filter(|_| path.is_file()) {
            let what = format!("{name}: is part of the run {}; name another file", run.display());
            return fail(Code::Usage, what);
        }
        match path.metadata() {
            Ok(found) if found.is_dir() => {
                return fail(Code::Output, format!("{name}: is a folder; name a file in it"));
            }
            Ok(found) if !found.is_file() => {
                let file = fs::File::options().write(true).open(&path);
                return Ok(OutputPlace::Stream(file.map_err(|e| cannot_write(&name, &e))?, name));
            }
            _ => {}
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            let folder = folder.display();
            return fail(
                Code::Output,
                format!("{name}: there is no folder {folder}; make it first"),
            );
        }
        let file =
            NewFile::create(&path, FileAccess::Umask).map_err(|e| cannot_write(&name, &e))?;
        Ok(OutputPlace::File(file, name))
    }

    /// The same, for binary data: a terminal is refused. `what` is the flag that chose the data.
    ///
    /// # Errors
    /// Also when the place is a terminal.
    pub fn open_binary(path: Option<&Path>, what: &str) -> anyhow::Result<OutputPlace> {
        let place = OutputPlace::open(path)?;
        if place.is_terminal() {
            let name = path.map_or("standard output".to_owned(), |path| path.display().to_string());
            let text = format!(
                "{what}: is binary, and {name} is a terminal; name a file with -o, or send it to a program"
            );
            return fail(Code::Usage, text);
        }
        Ok(place)
    }

    pub fn is_terminal(&self) -> bool {
        match self {
            OutputPlace::Standard => io::stdout().is_terminal(),
            OutputPlace::Stream(file, _) => file.is_terminal(),
            OutputPlace::File(..) => false,
        }
    }

    /// Writes, and makes a file appear when all went well.
    pub fn write<T>(self, write: impl FnOnce(Out<'_>) -> anyhow::Result<T>) -> anyhow::Result<T> {
        match self {
            OutputPlace::Standard => through(io::stdout(), "standard output", write),
            OutputPlace::Stream(file, name) => through(file, &name, write),
            OutputPlace::File(file, name) => {
                let done = through(file.file(), &name, write)?;
                file.publish().map_err(|e| cannot_write(&name, &e))?;
                Ok(done)
            }
        }
    }
}

fn through<T>(
    out: impl Write + Send,
    name: &str,
    write: impl FnOnce(Out<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut out = BufWriter::with_capacity(BUFFER, out);
    let done = write(&mut out).map_err(|error| match error.downcast_ref::<io::Error>() {
        Some(source) => cannot_write(name, source).into(),
        None => error,
    })?;
    out.flush().map_err(|e| cannot_write(name, &e))?;
    Ok(done)
}

/// The sentence and the code of an output that cannot be written: its name, the system's words, what to do.
pub fn cannot_write(name: &str, source: &io::Error) -> CodedError {
    let advice = vmtax_durable::advice(source);
    CodedError::new(Code::Output, format!("{name}: cannot be written: {source}{advice}"))
        .answered(source)
}
/// The sentence and the code of an input that cannot be opened or read: its name, the system's words, what to do.
pub fn cannot_read(name: &str, source: &io::Error) -> CodedError {
    let advice = match source.kind() {
        io::ErrorKind::NotFound => "; check its name",
        io::ErrorKind::PermissionDenied => {
            "; run vmtax as its owner, or let the owner change its mode"
        }
        _ => "",
    };
    let code = match source.kind() {
        io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidData => Code::Data,
        _ => Code::Input,
    };
    CodedError::new(code, format!("{name}: cannot be read: {source}{advice}"))
}
