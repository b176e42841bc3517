//! The time a run was made, as RFC 3339 in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// `2026-01-31T23:59:59Z`. Times before 1970 are given as 1970.
pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time.max(UNIX_EPOCH)).to_string()
}
