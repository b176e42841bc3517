//! An observer: a program of this computer to copy into the emulated host, with the libraries that its loader would load.

use std::path::{Path, PathBuf};

use vmtax_machine::kernel::Architecture;
use vmtax_machine::programs::{FilesByPath, add, find, is_of};

use crate::Error;

/// The files that a program needs: itself, libraries, and those of --bring. Empty without a program.
///
/// The loader lists the libraries, without running the program.
pub(crate) fn files(
    command: &[String],
    brought: &[PathBuf],
    architecture: Architecture,
) -> Result<FilesByPath, Error> {
    let mut files = FilesByPath::new();
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
    if !add(&mut files, program, &path, &inside).map_err(of_observer)? {
        return Err(problem("is a script; give the program that it runs"));
    }
    if !is_of(&path.display().to_string(), architecture) {
        return Err(problem(match architecture {
            Architecture::Amd64 => "is no program of x86-64, and the host is x86-64",
            Architecture::Arm64 => {
                "is no program of arm64, and the host is arm64; give a static one, as `./x package arm64` makes of vmtax"
            }
        }));
    }
    for path in brought {
        // Relative names are relative to the program's working folder.
        let name = path.display().to_string();
        add(&mut files, &name, path, &Path::new("/out").join(path)).map_err(of_observer)?;
    }
    Ok(files)
}

fn of_observer(error: vmtax_machine::Error) -> Error {
    match error {
        vmtax_machine::Error::Program { program, problem } => Error::Observer { program, problem },
        error => error.into(),
    }
}
