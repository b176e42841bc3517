//! ping of iputils: round trips.

use super::text::{TIME, after, brief, number, scaled};
use super::{Output, Reading, Refusal, sane, unit};

const KEY: &str = "rtt min/avg/max/mdev =";

/// All that it says.
pub fn parse(output: &Output<'_>) -> Result<Vec<Reading>, Refusal> {
    let text = output.stdout;
    let (sent, received) = packets(text)?;
    if received > sent {
        let value = format!("{received} of {sent}");
        return Err(Refusal::Unbelievable { what: "packets received".to_owned(), value });
    }
    let line = after(text, KEY)?;
    let values = round_trips(line)?;
    let [least, mean, most, spread] = values[..] else {
        return Err(Refusal::Number { what: "rtt".to_owned(), found: brief(line) });
    };
    if !(least <= mean && mean <= most) {
        return Err(Refusal::Unbelievable { what: "rtt".to_owned(), value: brief(line) });
    }
    sane(vec![
        Reading::lower("latency", unit::MICROSECONDS, mean),
        Reading::lower("latency-min", unit::MICROSECONDS, least),
        Reading::lower("latency-max", unit::MICROSECONDS, most),
        Reading::lower("latency-deviation", unit::MICROSECONDS, spread),
        Reading::lower("loss", unit::PERCENT, (sent - received) / sent * 100.0),
    ])
}

/// The mean round trip alone. Older versions name it otherwise and have no deviation.
pub fn latency(text: &str) -> Result<Reading, Refusal> {
    let line = text.lines().find_map(|line| line.split_once("min/avg/max")?.1.split_once("= "));
    let missing =
        || packets(text).err().unwrap_or_else(|| Refusal::missing("the line of round trips"));
    let values = round_trips(line.ok_or_else(missing)?.1)?;
    let mean = values.get(1).ok_or_else(|| Refusal::missing("the mean of rtt"))?;
    Ok(Reading::lower("latency", unit::MICROSECONDS, *mean))
}

/// How many packets were sent, and how many came back, of which there must be one.
fn packets(text: &str) -> Result<(f64, f64), Refusal> {
    let summary = text
        .lines()
        .find(|line| line.contains(" packets transmitted"))
        .ok_or_else(|| Refusal::missing("the line of packets transmitted"))?;
    let mut sent = None;
    let mut received = None;
    for part in summary.split(", ") {
        if let Some(count) = part.strip_suffix(" packets transmitted") {
            sent = Some(number("packets transmitted", count)?);
        } else if let Some(count) = part.strip_suffix(" received") {
            received = Some(number("packets received", count)?);
        }
    }
    let sent = sent.ok_or_else(|| Refusal::missing("packets transmitted"))?;
    let received = received.ok_or_else(|| Refusal::missing("packets received"))?;
    if received == 0.0 {
        return Err(Refusal::Failed("no packet came back".to_owned()));
    }
    Ok((sent, received))
}

/// `0.273/0.356/0.829/0.064 ms`, in microseconds. What may follow is the depth of the pipe.
fn round_trips(line: &str) -> Result<Vec<f64>, Refusal> {
    let (values, rest) = line.split_once(' ').ok_or_else(|| Refusal::missing("the unit of rtt"))?;
    let times = rest.split(',').next().unwrap_or_default().trim();
    values.split('/').map(|value| scaled("rtt", number("rtt", value)?, times, TIME)).collect()
}
