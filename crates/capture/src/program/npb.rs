//! NAS parallel benchmarks: unverified results are refused.

use super::text::{after, brief, number};
use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};

/// All that is compared.
pub fn parse(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let text = output.stdout;
    verified(text)?;
    // The class is the problem size; results of different classes cannot be compared.
    after(text, "Class")?;
    let time = number("Time in seconds", field(text, "Time in seconds")?)?;
    sane(vec![ProgramReading::lower("time", unit::SECONDS, time), speed(text)?])
}

/// The speed alone.
pub fn speed(text: &str) -> Result<ProgramReading, OutputRefusal> {
    verified(text)?;
    let speed = number("Mop/s total", field(text, "Mop/s total")?)?;
    Ok(ProgramReading::higher("speed", unit::MOPS, speed))
}

/// `Verification    =               SUCCESSFUL`
fn verified(text: &str) -> Result<(), OutputRefusal> {
    match field(text, "Verification")? {
        "SUCCESSFUL" => Ok(()),
        other => Err(OutputRefusal::Unverified(brief(other))),
    }
}

/// The value of the first such line that has one: `Verification being performed for class A` has none.
fn field<'a>(text: &'a str, key: &str) -> Result<&'a str, OutputRefusal> {
    let mut lines = text.lines().filter(|line| line.trim_start().starts_with(key));
    let value = lines.find_map(|line| line.split_once('='));
    value.map(|(_, value)| value.trim()).ok_or_else(|| OutputRefusal::missing(key))
}
