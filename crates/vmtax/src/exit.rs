//! Exit codes. `docs/exit-codes.md` is their documentation; a test holds the two together.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// Why the command ends with something other than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// A flag or its value is wrong.
    Usage = 2,
    /// The input cannot be opened or read.
    Input = 3,
    /// The input is not what it should be: unknown, damaged, newer, or lacks what was asked for.
    Data = 4,
    /// The output cannot be written.
    Output = 5,
}

/// An error that knows its exit code. The outermost `Fault` of a chain counts.
#[derive(Debug)]
pub(crate) struct Fault {
    code: Code,
    message: String,
}

impl Fault {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

/// `anyhow` result of this code, for short returns.
pub(crate) fn fail<T>(code: Code, message: impl Into<String>) -> anyhow::Result<T> {
    Err(Fault::new(code, message).into())
}

/// Prints the error as one sentence and gives its exit code. A closed pipe is success: whoever read our
/// output had enough.
#[expect(clippy::print_stderr, reason = "the one place where errors are shown")]
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let is_closed_pipe = error
        .chain()
        .filter_map(|e| e.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::BrokenPipe);
    if is_closed_pipe {
        return ExitCode::SUCCESS;
    }
    eprintln!("vmtax: {}", vmtax_report::names::printable(&format!("{error:#}")));
    let fault = error.chain().find_map(|e| e.downcast_ref::<Fault>());
    ExitCode::from(fault.map_or(1, |f| f.code as u8))
}

/// Help and version go to standard output with 0, mistakes to standard error with 2.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // Nothing can be said about a terminal that cannot be written to.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(Code::Usage as u8) } else { ExitCode::SUCCESS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_lists_every_code() {
        let document = include_str!("../../../docs/exit-codes.md");
        for (code, word) in [
            (0, "success"),
            (1, "unexpected"),
            (Code::Usage as u8, "usage"),
            (Code::Input as u8, "input"),
            (Code::Data as u8, "data"),
            (Code::Output as u8, "output"),
        ] {
            let row = format!("| {code} | {word} |");
            assert!(document.contains(&row), "docs/exit-codes.md lacks {row:?}");
        }
        assert_eq!(
            document
                .lines()
                .filter(|l| l.starts_with("| ") && l.as_bytes()[2].is_ascii_digit())
                .count(),
            6
        );
    }
}
