//! sysbench: events or transactions per second.

use super::text::{after, brief, number, word};
use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};

/// All that is compared.
pub fn parse(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let text = output.stdout;
    if let Some(line) = text.lines().find(|line| line.starts_with("FATAL:")) {
        return Err(OutputRefusal::Failed(brief(line)));
    }
    let rate = match after(text, "events per second:") {
        Ok(rate) => number("events per second", rate)?,
        Err(missing) => {
            // `transactions:  1234 (123.4 per sec.)`
            let line = after(text, "transactions:").map_err(|_| missing)?;
            let rate = line.split_once('(').and_then(|(_, rest)| rest.split_once(" per sec"));
            number(
                "transactions",
                rate.ok_or_else(|| OutputRefusal::missing("transactions per sec."))?.0,
            )?
        }
    };
    after(text, "Latency (ms):").map_err(|_| OutputRefusal::missing("Latency (ms)"))?;
    let ms = |key: &str| Ok(number(key, word(after(text, key)?))? * 1e3);
    let mut readings = vec![
        ProgramReading::higher("rate", unit::PER_SECOND, rate),
        ProgramReading::lower("latency", unit::MICROSECONDS, ms("avg:")?),
        ProgramReading::lower("latency-max", unit::MICROSECONDS, ms("max:")?),
    ];
    if text.contains("95th percentile:") {
        readings.push(ProgramReading::lower(
            "latency-p95",
            unit::MICROSECONDS,
            ms("95th percentile:")?,
        ));
    }
    sane(readings)
}
