//! `onnxruntime_test` of ONNX Runtime: inferences of a model, one after the other.

use super::text::{after, brief, number, word};
use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};

/// All that is compared.
pub fn parse(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let text = output.stdout;
    let iterations = number("iterations", after(text, "iterations:")?)?;
    if iterations < 1.0 {
        return Err(OutputRefusal::Failed("no inference was made".to_owned()));
    }
    // `avg latency: 14.5224 ms`
    let latency = after(text, "avg latency:")?;
    if latency.split_whitespace().nth(1) != Some("ms") {
        return Err(OutputRefusal::Number {
            what: "avg latency".to_owned(),
            found: brief(latency),
        });
    }
    let milliseconds = number("avg latency", word(latency))?;
    sane(vec![
        ProgramReading::lower("latency", unit::MICROSECONDS, milliseconds * 1e3),
        ProgramReading::higher("rate", unit::PER_SECOND, 1e3 / milliseconds),
    ])
}
