//! Errors of checkpoints and VMs as errors of the command.

use vmtax_cli::exit::{Code, CodedError};
use vmtax_machine::qmp::QmpProblem;
use vmtax_machine::vm::VmError;
use vmtax_pageops::checkpoint::{DamageReason, Error};

/// An error of a checkpoint that is being written, or read.
pub fn fault(error: &Error, writing: bool) -> anyhow::Error {
    let code = match (&error.reason, writing) {
        // Of a stream, and not a report whose reader has seen enough.
        (DamageReason::Io(io), true) if io.kind() == std::io::ErrorKind::BrokenPipe => {
            let what = format!(
                "{}: its reader ended before the checkpoint was complete",
                error.path.display()
            );
            return CodedError::new(Code::Output, what).into();
        }
        (DamageReason::Io(io), true) => {
            return vmtax_cli::output::cannot_write(&error.path.display().to_string(), io).into();
        }
        (DamageReason::Io(io), false) => {
            return vmtax_cli::output::cannot_read(&error.path.display().to_string(), io).into();
        }
        (DamageReason::Ancestor { .. }, _) => Code::Usage,
        (DamageReason::Misused(_), _) => return anyhow::anyhow!("{error}"),
        _ => Code::Data,
    };
    CodedError::new(code, error.to_string()).into()
}

/// The message after a signal.
pub(crate) const INTERRUPTED: &str = "interrupted; nothing was written";

/// An error of a VM.
pub fn vm_fault(error: VmError) -> anyhow::Error {
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
    CodedError::new(code(&error), error.to_string()).into()
}
