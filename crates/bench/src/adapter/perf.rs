//! `perf stat -x,` around a client: what the processor counted, or why it did not.

use super::Refusal;
use super::text::{brief, number};

/// What is counted: instructions, and misses of branches, of the data TLB and of the first data cache. Source: S2's metrics.
pub const EVENTS: [&str; 4] =
    ["instructions", "branch-misses", "dTLB-load-misses", "L1-dcache-load-misses"];

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    /// Its name, as asked for.
    pub event: String,
    /// Its count, or why there is none.
    pub count: Result<f64, String>,
}

/// Reads the lines `COUNT,UNIT,EVENT,TIME,SHARE,...`.
pub fn counters(text: &str) -> Result<Vec<Counter>, Refusal> {
    let mut counters = Vec::new();
    for event in EVENTS {
        let line = text.lines().find_map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let named = *cells.get(2)?;
            (named == event || named.strip_prefix(event).is_some_and(|rest| rest.starts_with(':')))
                .then_some(cells)
        });
        let cells = line.ok_or_else(|| Refusal::missing(event))?;
        let count = match cells[0] {
            "<not supported>" => {
                Err("the processor, or the hypervisor below it, offers no such counter".to_owned())
            }
            "<not counted>" => Err("the event was never scheduled on a counter".to_owned()),
            count => {
                let value = number(event, count)?;
                // Below the full share it is an estimate, scaled up by perf.
                match cells.get(4).and_then(|share| share.parse::<f64>().ok()) {
                    Some(share) if share < 99.0 => Err(format!(
                        "counted only {}% of the time: events shared a counter",
                        brief(cells[4])
                    )),
                    _ => Ok(value),
                }
            }
        };
        counters.push(Counter { event: event.to_owned(), count });
    }
    Ok(counters)
}
