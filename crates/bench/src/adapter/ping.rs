//! ping of iputils: round trips.

use super::text::{TIME, after, brief, number, scaled};
use super::{Output, Reading, Refusal, sane, unit};

const KEY: &str = "rtt min/avg/max/mdev =";

pub(super) fn parse(output: &Output<'_>) -> Result<Vec<Reading>, Refusal> {
    let text = output.stdout;
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
    if received > sent {
        let value = format!("{received} of {sent}");
        return Err(Refusal::Unbelievable { what: "packets received".to_owned(), value });
    }
    let line = after(text, KEY)?;
    let (values, rest) = line.split_once(' ').ok_or_else(|| Refusal::missing("the unit of rtt"))?;
    // What may follow is the depth of the pipe.
    let times = rest.split(',').next().unwrap_or_default().trim();
    let values: Vec<f64> = values
        .split('/')
        .map(|value| scaled("rtt", number("rtt", value)?, times, TIME))
        .collect::<Result<_, _>>()?;
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
