//! Values of flags that several commands take.

use std::time::Duration;

/// A time above zero: `100ms`, `90s`, `1h 30m`.
///
/// # Errors
/// What to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if !time.is_zero() && u64::try_from(time.as_nanos()).is_ok() => Ok(time),
        _ => Err("use a time above zero with its unit, such as 100ms, 90s or 1h".to_owned()),
    }
}

/// A label of a run: `KEY=VALUE`.
///
/// # Errors
/// What to write instead.
pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("use KEY=VALUE".to_owned()),
    }
}

/// Length of a live interval. Each interval is a segment of a few synced files, so very short ones cost more than they show.
///
/// # Errors
/// The range.
pub fn live_interval(interval: Duration) -> Result<Duration, String> {
    if interval < Duration::from_millis(10) || interval > Duration::from_secs(3600) {
        return Err("use 10ms to 3600s".to_owned());
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_are_not_zero() {
        assert_eq!(duration("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        for wrong in ["", "0s", "5", "-1s", "1 parsec", "99999999999999999y"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_have_a_key() {
        assert_eq!(label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(label("a="), Ok(("a".to_owned(), String::new())));
        assert!(label("a").is_err() && label("=b").is_err());
    }

    #[test]
    fn live_intervals_have_a_range() {
        assert!(live_interval(Duration::from_millis(10)).is_ok());
        assert!(live_interval(Duration::from_millis(9)).is_err());
        assert!(live_interval(Duration::from_secs(3601)).is_err());
    }
}
