//! `vmtax lab run --flat`: a program as a guest, its output, its verdict and its exits.

use vmtax_cli::exit::{Code, CodedError, say};
use vmtax_cli::output;
use vmtax_events::printable;
use vmtax_lab::program::ProgramImage;
use vmtax_lab::{EndedProgram, ProgramVerdict};
use vmtax_machine::kernel::Kernel;
use vmtax_runs::lab::{DoneKernel, HostWork};
use vmtax_store::Claim;

use super::args::LabRunArgs;
use super::measure::{shown, work};
use crate::report::{ReportFormat, render};

/// Runs the program and writes its output and verdict, and then the report of its exits.
pub(super) fn run(
    args: &LabRunArgs,
    kernel: &Kernel,
    image: &ProgramImage,
    claim: Option<Claim>,
) -> anyhow::Result<()> {
    let DoneKernel { ledger, program, .. } = work(args, kernel, HostWork::Program(image), claim)?;
    let Some(ended) = program else { return Ok(()) };
    if args.format == ReportFormat::Text {
        output::write(None, |out| Ok(write!(out, "{}", text(&ended))?))?;
    } else {
        // Standard output has the report alone.
        say(&format!("{}: {}", ended.name, ended.said()));
    }
    let source = args
        .output
        .as_ref()
        .map_or_else(|| image.name().to_owned(), |folder| folder.display().to_string());
    // A program may end by an error of the emulator, and of this version alone.
    let emulator = ledger.recording.emulated.clone().unwrap_or_else(|| "KVM".to_owned());
    render(&shown(args, source), ledger, None)?;
    let failed = |code, message: String| {
        let lines = ended.reported().into_iter().map(str::to_owned).collect();
        Err(CodedError::new(code, message).detailed(lines).into())
    };
    match ended.verdict() {
        ProgramVerdict::Passed | ProgramVerdict::Skipped => Ok(()),
        ProgramVerdict::Failed => failed(Code::Breach, format!("{}: {}", ended.name, ended.said())),
        ProgramVerdict::None => failed(
            Code::Machine,
            format!(
                "{}: {}, on {}{}",
                ended.name,
                ended.failure.as_deref().unwrap_or("it ended without a verdict"),
                printable(&emulator),
                last_line(&ended.output)
            ),
        ),
    }
}

/// What the program wrote last, for a message.
fn last_line(output: &str) -> String {
    let last = output.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.map_or_else(
        || "; it printed nothing".to_owned(),
        |line| format!("; its last line: {:?}", line.chars().take(LINE_MOST).collect::<String>()),
    )
}

/// Characters of a line in a message.
const LINE_MOST: usize = 120;

/// Output, verdict, and all exits.
fn text(ended: &EndedProgram) -> String {
    let mut text = ended.output.clone();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&format!("\n{}: {}\n", ended.name, ended.said()));
    if let Some(exits) = &ended.exits {
        let sum: u64 = exits.iter().map(|(_, count)| count).sum();
        let named =
            |(reason, count): &(vmtax_events::Reason, u64)| format!("{} {count}", reason.name());
        let named: Vec<String> = exits.iter().map(named).collect();
        text.push_str(&format!("{sum} exits, counted by the kernel: {}\n", named.join(", ")));
    }
    text.push('\n');
    // What a program writes may be anything.
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}
