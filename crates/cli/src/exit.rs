//! Exit codes. `docs/commands.md` is their documentation; a test holds the two together.

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;

/// Why the command ends with something other than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A fault of the system, of vmtax, or of a cluster.
    Unexpected = 1,
    /// A flag, its value or SQL is wrong.
    Usage = 2,
    /// The input cannot be opened or read, or a cluster not reached.
    Input = 3,
    /// The input is not what it should be: unknown, damaged, newer, or lacks what was asked for.
    Data = 4,
    /// The output cannot be written.
    Output = 5,
    /// A budget is not kept.
    Breach = 6,
    /// An emulated machine could not be started or did not do its work.
    Machine = 7,
}

/// An error that knows its exit code. The first `Fault` of a chain counts.
#[derive(Debug)]
pub struct CodedError {
    code: Code,
    message: String,
    /// The system's answer, when there was one. The message says it already.
    answer: Option<io::ErrorKind>,
    /// Lines that follow the message.
    details: Vec<String>,
}

impl CodedError {
    /// An error that is this sentence.
    pub fn new(code: Code, message: impl Into<String>) -> CodedError {
        CodedError { code, message: message.into(), answer: None, details: Vec::new() }
    }

    /// Its exit code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// With what the system answered.
    pub fn answered(self, source: &io::Error) -> CodedError {
        CodedError { answer: Some(source.kind()), ..self }
    }

    /// What the system answered, where it is known.
    pub fn answer(&self) -> Option<io::ErrorKind> {
        self.answer
    }

    /// With a line for each of several things that are wrong.
    pub fn detailed(self, details: Vec<String>) -> CodedError {
        CodedError { details, ..self }
    }
}

impl fmt::Display for CodedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CodedError {}

/// `anyhow` result of this code, for short returns.
pub fn fail<T>(code: Code, message: impl Into<String>) -> anyhow::Result<T> {
    Err(CodedError::new(code, message).into())
}

/// Prints the error as one sentence and gives its exit code. A closed pipe is success: the reader of our
/// output had enough.
pub fn report(error: &anyhow::Error) -> ExitCode {
    let fault = error.chain().find_map(|e| e.downcast_ref::<CodedError>());
    if fault.is_some_and(|f| f.code == Code::Output && f.answer == Some(io::ErrorKind::BrokenPipe))
    {
        return ExitCode::SUCCESS;
    }
    say(&format!("{error:#}"));
    fault.into_iter().flat_map(|f| &f.details).for_each(|line| say_more(line));
    ExitCode::from(fault.map_or(Code::Unexpected, |f| f.code) as u8)
}

/// Help and version go to standard output with 0, mistakes to standard error with 2.
pub fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        say(&sentence(&error.to_string()));
    } else {
        // Nothing can be said about a terminal that cannot be written to.
        let _ = error.print();
    }
    ExitCode::from(if error.use_stderr() { Code::Usage as u8 } else { 0 })
}

/// A line on standard error, in which names do nothing to a terminal.
#[expect(clippy::print_stderr, reason = "the one place where errors are shown")]
pub fn say(sentence: &str) {
    eprintln!("vmtax: {}", vmtax_events::printable(sentence));
}

/// A line that belongs to the one before.
#[expect(clippy::print_stderr, reason = "the one place where errors are shown")]
pub fn say_more(line: &str) {
    eprintln!("  {}", vmtax_events::printable(line));
}

/// clap explains a mistake in paragraphs; the first says what is wrong, a `tip` what may have been meant.
fn sentence(text: &str) -> String {
    let mut sentence = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        let line = line.strip_prefix("error: ").unwrap_or(line);
        match line.strip_prefix("tip: ") {
            // "to pass '--x' as a value, use '-- --x'": which is never meant.
            Some(tip) if tip.starts_with("to pass") => continue,
            Some(tip) => sentence.push_str(&format!("; {tip}")),
            None if sentence.is_empty() => sentence.push_str(line),
            None => sentence.push_str(&format!(" {line}")),
        }
    }
    sentence + "; --help lists what there is"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_one_sentence() {
        let cases = [
            (
                "error: unexpected argument '--formt' found\n\n  tip: a similar argument exists: '--format'\n\n\
                 Usage: vmtax report --format <FORMAT>\n\nFor more information, try '--help'.\n",
                "unexpected argument '--formt' found; a similar argument exists: '--format'",
            ),
            (
                "error: invalid value 'x' for '--by <LIST>'\n  [possible values: vm, vcpu]\n",
                "invalid value 'x' for '--by <LIST>' [possible values: vm, vcpu]",
            ),
            (
                "error: the following required arguments were not provided:\n  --output <RUN>\n  <FILE>\n",
                "the following required arguments were not provided: --output <RUN> <FILE>",
            ),
        ];
        for (text, expected) in cases {
            assert!(
                sentence(text).starts_with(&format!("{expected}; --help")),
                "{}",
                sentence(text)
            );
        }
    }
}
