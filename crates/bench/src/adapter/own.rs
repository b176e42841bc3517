//! Any other program: its value is found by a pattern or a JSON pointer.

use regex_lite::Regex;
use serde_json::Value;
use vmtax_capture::program::{ClientOutput, OutputRefusal, ProgramReading, number, sane};
use vmtax_events::Better;

/// Where to find the value.
#[derive(Clone, Debug)]
pub enum Extract {
    /// The group `value` of a regular expression, or its first group, in the last match.
    Pattern(Regex),
    /// A JSON pointer into standard output: `/results/0/seconds`.
    Json(String),
    /// Run time of the command, in seconds.
    Elapsed,
}

/// The metric of a user's command.
#[derive(Clone, Debug)]
pub struct OwnMetric {
    /// Name of the value.
    pub metric: String,
    pub unit: String,
    /// Whether higher or lower values are better.
    pub better: Better,
    /// Where to find it.
    pub extract: Extract,
}

impl OwnMetric {
    /// The value in an output.
    pub fn parse(&self, output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
        let value = match &self.extract {
            Extract::Elapsed => output.elapsed_ns as f64 / 1e9,
            Extract::Pattern(pattern) => {
                let found = pattern.captures_iter(output.stdout).last();
                let found = found.or_else(|| pattern.captures_iter(output.stderr).last());
                let found =
                    found.ok_or_else(|| OutputRefusal::missing("a match of the pattern"))?;
                let group = found.name("value").or_else(|| found.get(1));
                let group =
                    group.ok_or_else(|| OutputRefusal::missing("a group in the pattern"))?;
                number(&self.metric, group.as_str())?
            }
            Extract::Json(pointer) => {
                let document: Value = serde_json::from_str(output.stdout.trim())
                    .map_err(|e| OutputRefusal::missing(format!("a JSON document ({e})")))?;
                let value =
                    document.pointer(pointer).ok_or_else(|| OutputRefusal::missing(pointer))?;
                let found =
                    || OutputRefusal::Number { what: pointer.clone(), found: value.to_string() };
                value.as_f64().ok_or_else(found)?
            }
        };
        sane(vec![ProgramReading::new(self.metric.clone(), &self.unit, value, self.better)])
    }
}
