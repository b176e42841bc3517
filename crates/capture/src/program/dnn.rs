//! benchdnn in performance mode: the template line names the columns.

use super::text::{after, brief, number};
use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};

/// All that is compared.
pub fn parse(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let text = output.stdout;
    let template = after(text, "Output template:")?;
    let columns: Vec<&str> = template.split(',').map(str::trim).collect();
    // A column name begins with a flag: `-` is the minimum time, `0` the mean.
    let at = |name: &str| {
        ["-", "0", ""].iter().find_map(|mode| {
            let named = format!("%{mode}{name}%");
            columns.iter().position(|column| *column == named)
        })
    };
    let time = at("time").ok_or_else(|| OutputRefusal::missing("%-time% in the template"))?;
    let speed = at("Gflops");
    let totals = text.lines().find(|line| line.starts_with("tests:"));
    let totals = totals.ok_or_else(|| OutputRefusal::missing("the line tests:"))?;
    let count = |key: &str| {
        let word = totals.split_whitespace().find_map(|word| word.strip_prefix(key));
        number(key, word.ok_or_else(|| OutputRefusal::missing(key))?)
    };
    if count("failed:")? > 0.0 {
        return Err(OutputRefusal::Failed(brief(totals)));
    }
    let mut readings = Vec::new();
    let mut rows = 0.0;
    for line in text.lines().filter(|line| line.starts_with("perf,")) {
        let row = cells(line);
        if row.len() != columns.len() {
            return Err(OutputRefusal::missing(format!("a column of {}", brief(line))));
        }
        rows += 1.0;
        let suffix = if rows > 1.0 { format!("-{rows}") } else { String::new() };
        let ms = number("time", row[time])?;
        readings.push(ProgramReading::lower(format!("time{suffix}"), unit::MICROSECONDS, ms * 1e3));
        if let Some(speed) = speed {
            let value = number("Gflops", row[speed])?;
            readings.push(ProgramReading::higher(format!("speed{suffix}"), unit::GFLOPS, value));
        }
    }
    if rows != count("tests:")? {
        return Err(OutputRefusal::missing(format!(
            "a result: {} says the summary, and {rows} are there",
            brief(totals)
        )));
    }
    sane(readings)
}

/// The columns of a line; commas within quotes belong to a name.
fn cells(line: &str) -> Vec<&str> {
    let mut quoted = false;
    let part = |c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    };
    line.split(part).collect()
}
