//! `vmtax mem`: a VM's memory scanned, saved and restored; the operations on pages measured.

mod accel;
mod bench;
mod flags;
mod passes;
mod restore;
mod save;
mod saved;
mod scan;
mod stream;

use vmtax_cli::exit::{Code, Fault};
use vmtax_machine::qmp::QmpProblem;
use vmtax_machine::vm::VmError;
use vmtax_pageops::checkpoint::{Error, Reason};
use vmtax_report::numbers::size;

pub(crate) use flags::MemArgs;
use flags::{MemCommand, OutputFormat};

pub(crate) fn run(args: &MemArgs) -> anyhow::Result<()> {
    match &args.command {
        MemCommand::Scan(args) => scan::run(args),
        MemCommand::Save(args) => save::run(args),
        MemCommand::Restore(args) => restore::run(args),
        MemCommand::Verify(args) => restore::verify(args),
        MemCommand::Bench(args) => bench::run(args),
    }
}

/// A checkpoint's error as one of the command's.
fn fault(error: &Error, writing: bool) -> anyhow::Error {
    let code = match (&error.reason, writing) {
        // Of a stream, and not a report whose reader has seen enough.
        (Reason::Io(io), true) if io.kind() == std::io::ErrorKind::BrokenPipe => {
            let what = format!(
                "{}: its reader ended before the checkpoint was complete",
                error.path.display()
            );
            return Fault::new(Code::Output, what).into();
        }
        (Reason::Io(io), true) => {
            return vmtax_cli::output::cannot_write(&error.path.display().to_string(), io).into();
        }
        (Reason::Io(io), false) => {
            return vmtax_cli::output::cannot_read(&error.path.display().to_string(), io).into();
        }
        (Reason::Ancestor { .. }, _) => Code::Usage,
        (Reason::Misused(_), _) => return anyhow::anyhow!("{error}"),
        _ => Code::Data,
    };
    Fault::new(code, error.to_string()).into()
}

/// What a signal comes to.
const INTERRUPTED: &str = "interrupted; nothing was written";

/// What a VM's error comes to.
fn vm_fault(error: VmError) -> anyhow::Error {
    if let VmError::Qmp(error) = &error
        && matches!(error.problem, QmpProblem::Stopped)
    {
        return anyhow::anyhow!(INTERRUPTED);
    }
    fn code(error: &VmError) -> Code {
        match error {
            VmError::Qmp(error) if matches!(error.problem, QmpProblem::Stopped) => Code::Unexpected,
            VmError::Qmp(_) | VmError::Unfit { .. } => Code::Input,
            VmError::Disturbed { .. } | VmError::Failed { .. } => Code::Machine,
            VmError::LeftStopped(error) => code(error),
        }
    }
    Fault::new(code(&error), error.to_string()).into()
}

/// Writes what was found: `text` for people, `json` for programs.
fn print(
    format: OutputFormat,
    text: impl FnOnce() -> String,
    json: impl FnOnce() -> serde_json::Value,
) -> anyhow::Result<()> {
    let text = match format {
        OutputFormat::Text => text(),
        OutputFormat::Json => format!("{:#}\n", json()),
    };
    vmtax_cli::output::write(None, |out| Ok(out.write_all(text.as_bytes())?))
}
