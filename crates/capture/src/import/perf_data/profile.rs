//! Records needed only by profiles: samples of events other than tracepoints, and mappings.

use std::borrow::Cow;

use vmtax_events::NO_PID;

use super::layout::{AttributeLayout, OrderedBytes};
use crate::{Error, Feed, Mode, ProfileRecord};

/// Record types (Linux `include/uapi/linux/perf_event.h`).
mod kind {
    pub(super) const MMAP: u32 = 1;
    pub(super) const FORK: u32 = 7;
    pub(super) const MMAP2: u32 = 10;
}

/// Place of a mapping's name.
const MMAP_NAME: usize = 40;
const MMAP2_NAME: usize = 72;
/// Longer names of files than the kernel has.
const LONGEST_NAME: usize = 4096;
/// Longer call chains than the kernel records.
const LONGEST_CHAIN: usize = 2048;

/// Whether a record of this type is one of them.
pub(super) fn is_of(kind: u32) -> bool {
    matches!(kind, kind::MMAP | kind::FORK | kind::MMAP2)
}

/// Hands over a sample.
pub(super) fn sample(
    layout: &AttributeLayout,
    record: &[u8],
    bytes: OrderedBytes,
    feed: &mut impl Feed,
) -> Result<(), Error> {
    let Some(sampled) = layout.sampled(record, bytes) else { return Ok(()) };
    // PERF_RECORD_MISC_CPUMODE_MASK
    let mode = match bytes.u16(record, 4).unwrap_or(0) & 7 {
        1 => Mode::Kernel,
        2 => Mode::User,
        4 | 5 => Mode::Guest,
        _ => Mode::Unknown,
    };
    let (pid, tid) = sampled.tid;
    let mut addresses: Vec<u64> = (0..sampled.chain.len() / 8)
        .take(LONGEST_CHAIN)
        .filter_map(|word| bytes.u64(sampled.chain, word * 8))
        .collect();
    if addresses.iter().all(|address| *address >= ProfileRecord::MODES) {
        addresses = vec![sampled.ip];
    }
    feed.profiled(ProfileRecord::Sample {
        pid,
        tid,
        time_ns: sampled.time,
        period: sampled.period,
        mode,
        addresses: &addresses,
    })
}

/// Passes on one of the other records.
pub(super) fn record(
    kind: u32,
    record: &[u8],
    bytes: OrderedBytes,
    time_ns: u64,
    feed: &mut impl Feed,
) -> Result<(), Error> {
    let (Some(pid), Some(second)) = (bytes.u32(record, 8), bytes.u32(record, 12)) else {
        return Ok(());
    };
    if kind == kind::FORK {
        let (Some(tid), Some(parent_tid)) = (bytes.u32(record, 16), bytes.u32(record, 20)) else {
            return Ok(());
        };
        let parent = second;
        return feed.profiled(ProfileRecord::Fork { pid, tid, parent, parent_tid, time_ns });
    }
    let words = (bytes.u64(record, 16), bytes.u64(record, 24), bytes.u64(record, 32));
    let (Some(start), Some(len), Some(offset)) = words else { return Ok(()) };
    let at = if kind == kind::MMAP { MMAP_NAME } else { MMAP2_NAME };
    let name = name(record.get(at..).unwrap_or_default());
    // The kernel's own mappings are those of process -1.
    let pid = if pid == u32::MAX { NO_PID } else { pid };
    feed.profiled(ProfileRecord::Mapping { pid, time_ns, start, len, offset, name: &name })
}

fn name(bytes: &[u8]) -> Cow<'_, str> {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len()).min(LONGEST_NAME);
    String::from_utf8_lossy(&bytes[..end])
}
