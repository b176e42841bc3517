//! Exit codes of `vmtax-fleet`. They are those of `vmtax`, and documented with them: `docs/exit-codes.md`.

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;

/// Why the command ends with something other than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// A fault of the system, of vmtax, or of a cluster.
    Unexpected = 1,
    /// A flag, its value or the SQL is wrong.
    Usage = 2,
    /// A path cannot be opened, or a cluster not reached.
    Input = 3,
    /// What was found is damaged, or lacks what was asked for.
    Data = 4,
    /// The output cannot be written.
    Output = 5,
}

/// An error that knows its exit code.
#[derive(Debug)]
pub(crate) struct Fault {
    code: Code,
    message: String,
    answer: Option<io::ErrorKind>,
}

impl Fault {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into(), answer: None }
    }

    pub(crate) fn code(&self) -> Code {
        self.code
    }

    /// With what the system answered.
    pub(crate) fn answered(self, source: &io::Error) -> Fault {
        Fault { answer: Some(source.kind()), ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

/// For short returns.
pub(crate) fn fail<T>(code: Code, message: impl Into<String>) -> anyhow::Result<T> {
    Err(Fault::new(code, message).into())
}

/// Prints the error as one sentence and gives its exit code. A closed pipe is success.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let fault = error.chain().find_map(|e| e.downcast_ref::<Fault>());
    let closed = |f: &Fault| f.code == Code::Output && f.answer == Some(io::ErrorKind::BrokenPipe);
    if fault.is_some_and(closed) {
        return ExitCode::SUCCESS;
    }
    say(&format!("{error:#}"));
    ExitCode::from(fault.map_or(Code::Unexpected, |f| f.code) as u8)
}

/// Help and version go to standard output with 0, mistakes to standard error with 2.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Nothing can be said about a terminal that cannot be written to.
        let _ = error.print();
        return ExitCode::from(if error.use_stderr() { Code::Usage as u8 } else { 0 });
    }
    let text = error.to_string();
    let lines = text.lines().map(str::trim).take_while(|l| !l.starts_with("Usage:"));
    let lines: Vec<&str> =
        lines.filter(|line| !line.is_empty() && !line.starts_with("tip: to pass")).collect();
    let sentence = lines.join(" ");
    say(&format!("{}; --help lists what there is", sentence.trim_start_matches("error: ")));
    ExitCode::from(Code::Usage as u8)
}

/// A line on standard error, in which names do nothing to a terminal.
#[expect(clippy::print_stderr, reason = "the one place where errors are shown")]
pub(crate) fn say(sentence: &str) {
    eprintln!("vmtax: {}", vmtax_report::names::printable(sentence));
}

/// A line that belongs to the one before.
#[expect(clippy::print_stderr, reason = "the one place where errors are shown")]
pub(crate) fn say_more(line: &str) {
    eprintln!("  {}", vmtax_report::names::printable(line));
}
