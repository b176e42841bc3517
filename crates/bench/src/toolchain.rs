//! The files that a compiler in a VM needs besides its program: helpers such as cc1, as and ld, headers, start files and libraries. The
//! compiler itself is asked where they are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vmtax_machine::programs::{self, FilesByPath};
use vmtax_machine::{Error, Tool, ToolLimits};

/// Limits of a question to the compiler.
const LIMITS: ToolLimits = ToolLimits { time: Duration::from_secs(20), output: 64 << 10 };
/// The compiler's helpers (GCC's manual, "-print-prog-name").
const HELPERS: [&str; 6] = ["cc1", "collect2", "as", "ld", "ar", "ranlib"];
/// Files for the linker of C programs, and the linker's plugin.
const LINKED: [&str; 19] = [
    "crt1.o",
    "Scrt1.o",
    "crti.o",
    "crtn.o",
    "crtbegin.o",
    "crtbeginS.o",
    "crtend.o",
    "crtendS.o",
    "libgcc.a",
    "libgcc_s.so",
    "libgcc_s.so.1",
    "libc.so",
    "libc.so.6",
    "libc_nonshared.a",
    "libm.so",
    "libm.so.6",
    "libmvec.so.1",
    "libpthread.a",
    "liblto_plugin.so",
];
/// Folders of the C library's and the kernel's headers, below the folders of headers.
const HEADERS: [&str; 10] =
    ["arpa", "asm", "asm-generic", "bits", "gnu", "linux", "net", "netinet", "rpc", "sys"];
/// Where headers are, with the folder of this processor's.
const INCLUDE: [&str; 2] = ["/usr/include", "/usr/include/x86_64-linux-gnu"];

/// Adds everything that this compiler needs to compile and link C programs.
pub(crate) fn add(files: &mut FilesByPath, name: &str, compiler: &Path) -> Result<(), Error> {
    let ask =
        |question: &str, what: &str| ask(name, compiler, &format!("-print-{question}-name={what}"));
    for helper in HELPERS {
        let place = ask("prog", helper)?;
        // Those that are not the compiler's own it finds on the PATH, and so it does in the VM.
        let Some(path) = programs::find(&place.to_string_lossy()) else {
            let problem =
                format!("its helper {helper} is not installed; install the package binutils");
            return Err(Error::Program { program: name.to_owned(), problem });
        };
        let inside = if place.is_absolute() { place } else { Path::new("/usr/bin").join(helper) };
        programs::add(files, helper, &path, &inside)?;
    }
    for file in LINKED {
        let place = ask("file", file)?;
        // A name without a folder: this compiler has no such file.
        if place.is_absolute() {
            let inside = place.canonicalize().unwrap_or_else(|_| place.clone());
            // libc.so.6 under the name by which it is found, not by which version it is.
            let folder = inside.parent().unwrap_or(Path::new("/")).to_owned();
            let inside = folder.join(file);
            programs::add(files, file, &place, &inside)?;
            // Linker scripts name libraries in /lib, which is a link to /usr/lib here and a folder in a VM.
            if let Ok(below) = inside.strip_prefix("/usr/lib") {
                programs::add(files, file, &place, &Path::new("/lib").join(below))?;
            }
        }
    }
    // The shell of make.
    if let Some(shell) = programs::find("/bin/sh") {
        programs::add(files, "/bin/sh", &shell, Path::new("/bin/sh"))?;
    }
    let own = ask("file", "include")?;
    if own.is_absolute() {
        folder(files, &own)?;
    }
    for above in INCLUDE.map(Path::new) {
        headers(files, above)?;
        for name in HEADERS {
            folder(files, &above.join(name))?;
        }
    }
    Ok(())
}

fn ask(name: &str, compiler: &Path, question: &str) -> Result<PathBuf, Error> {
    let problem = |problem: String| Error::Program { program: name.to_owned(), problem };
    let mut command = Command::new(compiler);
    command.arg(question).env("LC_ALL", "C");
    let said = Tool::new(command, LIMITS).run().map_err(|e| problem(e.to_string()))?;
    if !said.status.success() {
        return Err(problem(format!("{question}: {}", said.reason())));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&said.stdout).trim()))
}

/// Headers of a folder, without those of folders in it.
fn headers(files: &mut FilesByPath, folder: &Path) -> Result<(), Error> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "h") && path.is_file() {
            programs::add(files, &path.display().to_string(), &path, &path)?;
        }
    }
    Ok(())
}

/// A folder with everything in it, if it is there. Links to files become files; links to folders are left out.
pub(crate) fn folder(files: &mut FilesByPath, path: &Path) -> Result<(), Error> {
    let Ok(entries) = std::fs::read_dir(path) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            folder(files, &path)?;
        } else if path.is_file() {
            programs::add(files, &path.display().to_string(), &path, &path)?;
        }
    }
    Ok(())
}
