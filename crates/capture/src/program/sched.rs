//! hackbench, perf bench sched and schbench: the scheduler.

use super::text::{after, brief, number, scaled, word};
use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};

/// `Time: 0.225`, in seconds.
pub fn hackbench(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    sane(vec![ProgramReading::lower(
        "time",
        unit::SECONDS,
        number("Time", after(output.stdout, "Time:")?)?,
    )])
}

/// `Total time: 1.476 [sec]`.
pub fn perf_bench(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let line = after(output.stdout, "Total time:")?;
    let (value, times) =
        line.split_once(' ').ok_or_else(|| OutputRefusal::missing("the unit of Total time"))?;
    let seconds =
        scaled("Total time", number("Total time", value)?, times.trim(), &[("[sec]", 1.0)])?;
    sane(vec![ProgramReading::lower("time", unit::SECONDS, seconds)])
}

/// The last block of each kind is used; earlier blocks are intermediate results.
pub fn schbench(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    // It reports on standard error.
    let text = if output.stderr.contains("percentiles") { output.stderr } else { output.stdout };
    let mut readings = Vec::new();
    for (title, prefix) in
        [("Wakeup Latencies", "wakeup-"), ("Request Latencies", "request-"), ("Latency", "")]
    {
        let Some(block) = last_block(text, title)? else { continue };
        for (percentile, value) in block {
            readings.push(ProgramReading::lower(
                format!("{prefix}latency-p{percentile}"),
                unit::MICROSECONDS,
                value,
            ));
        }
    }
    if readings.is_empty() {
        return Err(OutputRefusal::missing("the percentiles of latencies"));
    }
    // Older versions measure no requests and have one title. Where there are two, the line of the mean rate is the last.
    if text.contains("Wakeup Latencies") {
        let rate = after(text, "average rps:")?;
        readings.push(ProgramReading::higher(
            "rate",
            unit::PER_SECOND,
            number("average rps", word(rate))?,
        ));
    }
    sane(readings)
}

/// `Wakeup Latencies percentiles (usec) runtime 30 (s) (N total samples)` and the rows below it.
fn last_block(text: &str, title: &str) -> Result<Option<Vec<(String, f64)>>, OutputRefusal> {
    let lines: Vec<&str> = text.lines().collect();
    let begins = format!("{title} percentiles");
    let Some(at) = lines.iter().rposition(|line| line.trim_start().starts_with(&begins)) else {
        return Ok(None);
    };
    let times = lines[at].split(['(', ')']).nth(1).unwrap_or_default();
    let mut rows = Vec::new();
    for line in &lines[at + 1..] {
        let line = line.trim().trim_start_matches('*').trim();
        let Some((percentile, value)) = line.split_once("th:") else { break };
        let value = number(percentile, word(value))?;
        rows.push((percentile.to_owned(), scaled(title, value, times, &[("usec", 1.0)])?));
    }
    let wanted = rows.iter().any(|(percentile, _)| percentile.starts_with("99"));
    if !wanted {
        return Err(OutputRefusal::missing(format!("the 99th percentile of {}", brief(title))));
    }
    Ok(Some(rows))
}
