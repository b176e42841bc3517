//! perf.data: the recorded files against perf's own text, and small files made here for everything
//! that the recordings do not have.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its own file has failed")]

#[path = "perf_data/build.rs"]
mod build;
#[path = "perf_data/captures.rs"]
mod captures;
