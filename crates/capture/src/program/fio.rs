//! fio with `--output-format=json`.

use serde_json::Value;

use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};

/// All that is compared, of a single job.
pub fn parse(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let start =
        output.stdout.find('{').ok_or_else(|| OutputRefusal::missing("the JSON document"))?;
    let document: Value = serde_json::from_str(&output.stdout[start..])
        .map_err(|e| OutputRefusal::missing(format!("the end of the JSON ({e})")))?;
    let jobs = document
        .get("jobs")
        .and_then(Value::as_array)
        .ok_or_else(|| OutputRefusal::missing("jobs"))?;
    let [job] = jobs.as_slice() else {
        return Err(OutputRefusal::missing("a single job; group several with --group_reporting"));
    };
    match job.get("error").and_then(Value::as_i64) {
        Some(0) => {}
        Some(code) => {
            return Err(OutputRefusal::Failed(format!("the job ended with error {code}")));
        }
        None => return Err(OutputRefusal::missing("jobs[0].error")),
    }
    let mut readings = Vec::new();
    for side in ["read", "write"] {
        let value = |path: &str| job.pointer(&format!("/{side}/{path}")).and_then(Value::as_f64);
        let need = |path: &str| {
            value(path).ok_or_else(|| OutputRefusal::missing(format!("{side}.{path}")))
        };
        // A side that did nothing has zeroes.
        if need("total_ios")? == 0.0 {
            continue;
        }
        readings.push(ProgramReading::higher(
            format!("{side}-rate"),
            unit::PER_SECOND,
            need("iops")?,
        ));
        readings.push(ProgramReading::higher(
            format!("{side}-throughput"),
            unit::BYTES,
            need("bw_bytes")?,
        ));
        let mean = need("clat_ns/mean")? / 1e3;
        readings.push(ProgramReading::lower(format!("{side}-latency"), unit::MICROSECONDS, mean));
        if let Some(ns) = value("clat_ns/percentile/99.000000") {
            readings.push(ProgramReading::lower(
                format!("{side}-latency-p99"),
                unit::MICROSECONDS,
                ns / 1e3,
            ));
        }
    }
    sane(readings)
}
