//! The suite `perf` on arm64: a Linux guest whose perf counts or samples by KVM's own virtual PMU.
//!
//! The guest's program opens the events that `perf stat` and `perf record` open, and computes 20 million instructions in a batch, or takes turns
//! with another thread. An operation is a batch, or a turn. What perf costs is what an operation takes more than the one without events.

use vmtax_guest::order::{LinuxPerf, LinuxWork};

use super::definition::{Definition, ExpectedExits, GuestCode, line, nothing};

/// Turns in a batch: the thread with events is switched out and in again in each.
const TURNS: u32 = 100;
const COMPUTES: LinuxPerf = LinuxPerf { events: 0, frequency: 0, turns: false };
const SWITCHES: LinuxPerf = LinuxPerf { turns: true, ..COMPUTES };

pub(super) const OPERATIONS: &[Definition] = &[
    linux("linux-none", "a Linux guest computes, without perf", COMPUTES),
    linux("linux-stat-1", "the same with one event counting", counting(1)),
    linux("linux-stat-3", "with three", counting(3)),
    linux("linux-stat-6", "with six", counting(6)),
    linux("linux-stat-12", "with twelve on seven counters, multiplexed", counting(12)),
    linux("linux-record-1k", "with one that samples 1,000 times a second", sampling(1_000)),
    linux("linux-record-10k", "with one that samples 10,000 times a second", sampling(10_000)),
    linux("linux-turn", "two threads of a Linux guest take a turn each, without perf", SWITCHES),
    linux("linux-turn-1", "the same with one event of one of them", switching(1)),
    linux("linux-turn-6", "with six", switching(6)),
];

const fn counting(events: u32) -> LinuxPerf {
    LinuxPerf { events, ..COMPUTES }
}

const fn sampling(frequency: u32) -> LinuxPerf {
    LinuxPerf { events: 1, frequency, ..COMPUTES }
}

const fn switching(events: u32) -> LinuxPerf {
    LinuxPerf { events, ..SWITCHES }
}

const fn linux(name: &'static str, summary: &'static str, perf: LinuxPerf) -> Definition {
    let code = GuestCode { linux: Some(LinuxWork::Perf(perf)), ..line(nothing) };
    let count = if perf.turns { TURNS } else { 1 };
    Definition { name, summary, count, kind: ExpectedExits::Measured, code: code.only_on_arm() }
}
