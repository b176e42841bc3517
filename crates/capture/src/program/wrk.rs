//! wrk: requests per second and latencies.

use super::text::{TIME, after, brief, in_unit, number, word};
use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};

/// Units of sizes, as bytes: wrk counts in powers of 1024.
const SIZES: &[(&str, f64)] = &[
    ("B", 1.0),
    ("KB", 1024.0),
    ("MB", 1_048_576.0),
    ("GB", 1_073_741_824.0),
    ("TB", 1_099_511_627_776.0),
];

/// All that it says. A run with errors is refused: what it measured is also the speed of errors.
pub fn parse(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let text = output.stdout;
    for bad in ["Socket errors:", "Non-2xx or 3xx responses:"] {
        if let Ok(what) = after(text, bad) {
            return Err(OutputRefusal::Failed(format!("{bad} {}", brief(what))));
        }
    }
    let rate = rate(text)?;
    let transfer = in_unit("Transfer/sec", after(text, "Transfer/sec:")?, SIZES)?;
    // The line of the distribution begins with the same word.
    let line = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Latency "))
        .find(|rest| rest.trim().starts_with(|c: char| c.is_ascii_digit()))
        .ok_or_else(|| OutputRefusal::missing("Latency"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let [mean, _, most, _] = words[..] else {
        return Err(OutputRefusal::missing("a column of Latency"));
    };
    let mut readings = vec![
        rate,
        ProgramReading::higher("transfer", unit::BYTES, transfer),
        ProgramReading::lower("latency", unit::MICROSECONDS, in_unit("Latency", mean, TIME)?),
        ProgramReading::lower("latency-max", unit::MICROSECONDS, in_unit("Latency", most, TIME)?),
    ];
    for (key, metric) in [("50%", "latency-p50"), ("99%", "latency-p99")] {
        if let Ok(value) = after(text, key) {
            readings.push(ProgramReading::lower(
                metric,
                unit::MICROSECONDS,
                in_unit(key, word(value), TIME)?,
            ));
        }
    }
    sane(readings)
}

/// The rate alone.
pub fn rate(text: &str) -> Result<ProgramReading, OutputRefusal> {
    let rate = number("Requests/sec", after(text, "Requests/sec:")?)?;
    Ok(ProgramReading::higher("rate", unit::PER_SECOND, rate))
}
