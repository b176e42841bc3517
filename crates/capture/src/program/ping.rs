//! ping of iputils: round trips.

use super::text::{TIME, after, brief, number, scaled};
use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};

const KEY: &str = "rtt min/avg/max/mdev =";

/// All that it says.
pub fn parse(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let text = output.stdout;
    let (sent, received) = packets(text)?;
    if received > sent {
        let value = format!("{received} of {sent}");
        return Err(OutputRefusal::Unbelievable { what: "packets received".to_owned(), value });
    }
    let line = after(text, KEY)?;
    let values = round_trips(line)?;
    let [least, mean, most, spread] = values[..] else {
        return Err(OutputRefusal::Number { what: "rtt".to_owned(), found: brief(line) });
    };
    if !(least <= mean && mean <= most) {
        return Err(OutputRefusal::Unbelievable { what: "rtt".to_owned(), value: brief(line) });
    }
    sane(vec![
        ProgramReading::lower("latency", unit::MICROSECONDS, mean),
        ProgramReading::lower("latency-min", unit::MICROSECONDS, least),
        ProgramReading::lower("latency-max", unit::MICROSECONDS, most),
        ProgramReading::lower("latency-deviation", unit::MICROSECONDS, spread),
        ProgramReading::lower("loss", unit::PERCENT, (sent - received) / sent * 100.0),
    ])
}

/// The mean round trip alone. Older versions name it otherwise and have no deviation.
pub fn latency(text: &str) -> Result<ProgramReading, OutputRefusal> {
    let line = text.lines().find_map(|line| line.split_once("min/avg/max")?.1.split_once("= "));
    let missing =
        || packets(text).err().unwrap_or_else(|| OutputRefusal::missing("the line of round trips"));
    let values = round_trips(line.ok_or_else(missing)?.1)?;
    let mean = values.get(1).ok_or_else(|| OutputRefusal::missing("the mean of rtt"))?;
    Ok(ProgramReading::lower("latency", unit::MICROSECONDS, *mean))
}

/// How many packets were sent, and how many came back, of which there must be one.
fn packets(text: &str) -> Result<(f64, f64), OutputRefusal> {
    let summary = text
        .lines()
        .find(|line| line.contains(" packets transmitted"))
        .ok_or_else(|| OutputRefusal::missing("the line of packets transmitted"))?;
    let mut sent = None;
    let mut received = None;
    for part in summary.split(", ") {
        if let Some(count) = part.strip_suffix(" packets transmitted") {
            sent = Some(number("packets transmitted", count)?);
        } else if let Some(count) = part.strip_suffix(" received") {
            received = Some(number("packets received", count)?);
        }
    }
    let sent = sent.ok_or_else(|| OutputRefusal::missing("packets transmitted"))?;
    let received = received.ok_or_else(|| OutputRefusal::missing("packets received"))?;
    if received == 0.0 {
        return Err(OutputRefusal::Failed("no packet came back".to_owned()));
    }
    Ok((sent, received))
}

/// `0.273/0.356/0.829/0.064 ms`, in microseconds. What may follow is the depth of the pipe.
fn round_trips(line: &str) -> Result<Vec<f64>, OutputRefusal> {
    let (values, rest) =
        line.split_once(' ').ok_or_else(|| OutputRefusal::missing("the unit of rtt"))?;
    let times = rest.split(',').next().unwrap_or_default().trim();
    values.split('/').map(|value| scaled("rtt", number("rtt", value)?, times, TIME)).collect()
}
