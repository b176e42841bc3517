//! iperf3: throughput. The receiver's figure is used: a sender also counts data that is still queued.

use serde_json::Value;
use vmtax_events::Better;

use super::text::{brief, number, scaled};
use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};

/// Units of iperf3's text, as bits a second.
const RATES: &[(&str, f64)] = &[
    ("bits/sec", 1.0),
    ("Kbits/sec", 1e3),
    ("Mbits/sec", 1e6),
    ("Gbits/sec", 1e9),
    ("Tbits/sec", 1e12),
    ("Bytes/sec", 8.0),
    // iperf3 counts bytes in powers of 1024 and bits in powers of 1000.
    ("KBytes/sec", 8192.0),
    ("MBytes/sec", 8_388_608.0),
    ("GBytes/sec", 8_589_934_592.0),
];

/// All that it says of TCP.
pub fn tcp(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    if !is_json(output.stdout) {
        return text(output.stdout);
    }
    let end = end(output.stdout)?;
    let mut readings = vec![received(&end)?];
    if let Some(count) = end.pointer("/sum_sent/retransmits").and_then(Value::as_f64) {
        readings.push(ProgramReading::lower("retransmits", unit::COUNT, count));
    }
    readings.extend(cpu(&end));
    sane(readings)
}

/// All that it says of UDP.
pub fn udp(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    if !is_json(output.stdout) {
        return text(output.stdout);
    }
    let end = end(output.stdout)?;
    let mut readings = vec![
        udp_received(&end)?,
        ProgramReading::lower("jitter", unit::MICROSECONDS, sum(&end, "jitter_ms")? * 1e3),
        ProgramReading::lower("loss", unit::PERCENT, sum(&end, "lost_percent")?),
    ];
    readings.extend(cpu(&end));
    sane(readings)
}

/// What the receiver got alone, of a text.
pub fn text_throughput(text: &str) -> Result<ProgramReading, OutputRefusal> {
    Ok(receiver(text)?.0)
}

/// What the receiver got alone, by TCP or UDP, of JSON. The run may have ended with an error after that.
pub fn json_throughput(text: &str) -> Result<ProgramReading, OutputRefusal> {
    let document = document(text)?;
    udp_received(document.get("end").unwrap_or(&Value::Null))
        .map_err(|missing| failure(&document).unwrap_or(missing))
}

fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

fn document(text: &str) -> Result<Value, OutputRefusal> {
    serde_json::from_str(text)
        .map_err(|e| OutputRefusal::missing(format!("the end of the JSON ({e})")))
}

fn failure(document: &Value) -> Option<OutputRefusal> {
    document.get("error").and_then(Value::as_str).map(|error| OutputRefusal::Failed(brief(error)))
}

fn end(text: &str) -> Result<Value, OutputRefusal> {
    let document = document(text)?;
    match failure(&document) {
        Some(failure) => Err(failure),
        None => document.get("end").cloned().ok_or_else(|| OutputRefusal::missing("end")),
    }
}

fn received(end: &Value) -> Result<ProgramReading, OutputRefusal> {
    let rate = end.pointer("/sum_received/bits_per_second").and_then(Value::as_f64);
    let rate = rate.ok_or_else(|| OutputRefusal::missing("end.sum_received.bits_per_second"))?;
    Ok(ProgramReading::higher("throughput", unit::BITS, rate))
}

/// Older versions have no `sum_received` for UDP; their `sum` counts what was sent, and says how much of it was lost.
fn udp_received(end: &Value) -> Result<ProgramReading, OutputRefusal> {
    if end.get("sum_received").is_some() {
        return received(end);
    }
    let (packets, lost) = (sum(end, "packets")?, sum(end, "lost_packets")?);
    if !(packets > 0.0 && (0.0..=packets).contains(&lost)) {
        let value = format!("{lost} of {packets}");
        return Err(OutputRefusal::Unbelievable { what: "lost_packets".to_owned(), value });
    }
    let sent = sum(end, "bits_per_second")?;
    Ok(ProgramReading::higher("throughput", unit::BITS, sent * (packets - lost) / packets))
}

fn sum(end: &Value, field: &str) -> Result<f64, OutputRefusal> {
    let value = end.pointer(&format!("/sum_received/{field}"));
    let value = value.or_else(|| end.pointer(&format!("/sum/{field}")));
    value.and_then(Value::as_f64).ok_or_else(|| OutputRefusal::missing(format!("end.sum.{field}")))
}

fn cpu(end: &Value) -> Vec<ProgramReading> {
    let share = |field: &str| end.pointer(&format!("/cpu_utilization_percent/{field}"))?.as_f64();
    let sides = [("cpu-sender", share("host_total")), ("cpu-receiver", share("remote_total"))];
    sides
        .into_iter()
        .filter_map(|(name, share)| {
            Some(ProgramReading::new(name, unit::PERCENT, share?, Better::Neither))
        })
        .collect()
}

/// The text form.
fn text(text: &str) -> Result<Vec<ProgramReading>, OutputRefusal> {
    if let Some(line) = text.lines().find(|line| line.starts_with("iperf3: error")) {
        return Err(OutputRefusal::Failed(brief(line)));
    }
    let (throughput, rest) = receiver(text)?;
    let mut readings = vec![throughput];
    if let [jitter, "ms", counts, ..] = rest[..] {
        let (lost, packets) =
            counts.split_once('/').ok_or_else(|| OutputRefusal::missing("lost/packets"))?;
        let (lost, packets) = (number("lost packets", lost)?, number("packets", packets)?);
        readings.push(ProgramReading::lower(
            "jitter",
            unit::MICROSECONDS,
            number("jitter", jitter)? * 1e3,
        ));
        readings.push(ProgramReading::lower(
            "loss",
            unit::PERCENT,
            lost / packets.max(1.0) * 100.0,
        ));
    }
    sane(readings)
}

/// The rate of the receiver's line, and its words after that: the line of the sum where there are several streams.
fn receiver(text: &str) -> Result<(ProgramReading, Vec<&str>), OutputRefusal> {
    let lines: Vec<&str> =
        text.lines().filter(|line| line.trim_end().ends_with("receiver")).collect();
    // A text of several streams that was cut before their sum still has a stream's line.
    let is_single = lines.len() == 1 && !text.contains("[SUM]");
    let line = lines
        .iter()
        .find(|line| line.trim_start().starts_with("[SUM]"))
        .or_else(|| lines.first().filter(|_| is_single))
        .ok_or_else(|| OutputRefusal::missing("the receiver's line"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words
        .iter()
        .position(|word| word.ends_with("/sec"))
        .filter(|at| *at > 0)
        .ok_or_else(|| OutputRefusal::missing("the receiver's rate"))?;
    let rate = scaled("throughput", number("throughput", words[at - 1])?, words[at], RATES)?;
    Ok((ProgramReading::higher("throughput", unit::BITS, rate), words[at + 1..].to_vec()))
}
