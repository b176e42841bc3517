//! GNU time -v, around a build for one.

use super::text::{after, brief, number};
use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};

const ELAPSED: &str = "Elapsed (wall clock) time (h:mm:ss or m:ss):";

/// All that is compared.
pub fn parse(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let text = output.stderr;
    let status = number("Exit status", after(text, "Exit status:")?)?;
    if status != 0.0 {
        return Err(OutputRefusal::Failed(format!("the command ended with {status}")));
    }
    let word = after(text, ELAPSED)?;
    let parts: Vec<&str> = word.split(':').collect();
    if !(2..=3).contains(&parts.len()) {
        return Err(OutputRefusal::Number {
            what: "the elapsed time".to_owned(),
            found: brief(word),
        });
    }
    let mut seconds = 0.0;
    for part in parts {
        seconds = seconds * 60.0 + number("the elapsed time", part)?;
    }
    let field = |key: &str| number(key, after(text, key)?);
    sane(vec![
        ProgramReading::lower("time", unit::SECONDS, seconds),
        ProgramReading::lower("user-time", unit::SECONDS, field("User time (seconds):")?),
        ProgramReading::lower("system-time", unit::SECONDS, field("System time (seconds):")?),
        ProgramReading::lower(
            "memory",
            unit::KIBIBYTES,
            field("Maximum resident set size (kbytes):")?,
        ),
    ])
}
