//! `vmtax-fleet` from outside: the real program on runs of real recordings, its rows, its sentences, its exit codes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod causes;
#[cfg(feature = "cluster")]
mod cluster;
mod compact;
mod damage;
mod formats;
mod limits;
mod pruning;
mod questions;
mod readonly;
mod recorded;
#[cfg(feature = "stores")]
mod stores;
#[path = "../../../crates/store/examples/synth/make.rs"]
mod synth;
