//! `vmtax doctor` and `vmtax doctor --pages`: verdicts on made-up systems, hostile ones, and the real commands.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "shared with other tests, which use all of it")]
#[path = "../captures/mod.rs"]
mod captures;
#[expect(dead_code, reason = "shared with other tests, which use all of it")]
#[path = "../command/check.rs"]
mod check;
mod root;

mod command;
mod documents;
mod unreadable;
mod verdicts;
