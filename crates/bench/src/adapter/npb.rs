//! NAS parallel benchmarks: unverified results are refused.

use super::text::{after, brief, number};
use super::{Output, Reading, Refusal, sane, unit};

pub(super) fn parse(output: &Output<'_>) -> Result<Vec<Reading>, Refusal> {
    let field = |key: &str| {
        let line = output.stdout.lines().find(|line| line.trim_start().starts_with(key));
        let value = line.and_then(|line| line.split_once('='));
        value.map(|(_, value)| value.trim()).ok_or_else(|| Refusal::missing(key))
    };
    // `Verification    =               SUCCESSFUL`
    let verified = field("Verification")?;
    if verified != "SUCCESSFUL" {
        return Err(Refusal::Unverified(brief(verified)));
    }
    // The class is the problem size; results of different classes cannot be compared.
    after(output.stdout, "Class")?;
    sane(vec![
        Reading::lower(
            "time",
            unit::SECONDS,
            number("Time in seconds", field("Time in seconds")?)?,
        ),
        Reading::higher("speed", unit::MOPS, number("Mop/s total", field("Mop/s total")?)?),
    ])
}
