//! The `vmtax` command from outside: the real program on the shipped captures, its exit codes, its sentences
//! and what it leaves behind.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod browser;
#[path = "../captures/mod.rs"]
mod captures;
mod check;

mod damage;
mod dashboard;
mod diff;
mod disk_full;
mod errors;
mod explain;
mod export;
mod fleet;
mod formats;
mod grouped;
mod guests;
mod hostile;
mod inputs;
mod locks;
mod manuals;
mod operations;
mod outputs;
mod posted;
mod profiles;
mod progress;
mod prometheus;
mod runs;
mod service;
mod several;
mod stopped;
mod tables;
#[expect(dead_code, reason = "shared with other tests, which use all of it")]
#[path = "../terminal/mod.rs"]
mod terminal;
mod texts;
mod top;
mod unusual;
mod without_exits;
