//! Instances whose events another buffer has too: each event is counted once.
//!
//! A file does not list which events were enabled in which buffer, so those of files with several are counted first.

use std::collections::{BTreeMap, HashSet};

use vmtax_events::Event;

use super::chunk::Codec;
use super::contents::CpuData;
use super::options::TraceDatOptions;
use super::stream::{self, StreamInput, StreamSum};
use crate::{Error, Feed};

/// Fewer events of an instance may be of a time of which the buffers before have none.
const FEW: u64 = 20;

/// Buffers that are left out, by number, and how many of their events another has.
pub(super) struct LeftOut(BTreeMap<usize, u64>);

impl LeftOut {
    /// What is said of them.
    pub(super) fn sentence(&self, options: &TraceDatOptions) -> String {
        let one = |(number, events): (&usize, &u64)| {
            format!("{:?} ({events} events)", options.name_of(*number))
        };
        let names: Vec<String> = self.0.iter().map(one).collect();
        format!(
            "instances that record what the buffers before them have are left out: {}",
            names.join(", ")
        )
    }
}

/// Leaves out what instances record once more.
///
/// # Errors
/// When an instance has events of both kinds, of which only some are in another buffer.
pub(super) fn once(
    input: StreamInput<'_>,
    codec: &Codec,
    data: Vec<CpuData>,
) -> Result<(Vec<CpuData>, Option<LeftOut>), Error> {
    let mut buffers: BTreeMap<usize, Vec<CpuData>> = BTreeMap::new();
    for one in data.iter().filter(|one| one.len > 0) {
        buffers.entry(one.buffer).or_default().push(*one);
    }
    if buffers.len() < 2 {
        return Ok((data, None));
    }
    let mut recorded: BTreeMap<String, u64> = BTreeMap::new();
    let mut left_out = BTreeMap::new();
    for (number, data) in buffers {
        let counts = wanted(input, codec, data)?;
        let again =
            |(name, count): &(&String, &u64)| **count >= FEW && recorded.contains_key(*name);
        let alike = |(name, count): (&String, &u64)| {
            recorded.get(name).is_some_and(|before| before.abs_diff(*count) <= before / 20)
        };
        if counts.values().any(|count| *count >= FEW) && counts.iter().all(alike) {
            left_out.insert(number, counts.values().sum());
        } else if let Some((name, _)) = counts.iter().find(again) {
            return Err(Error::Unsupported {
                offset: 0,
                item: "instances",
                problem: format!(
                    "{name} is in two buffers of the recording, and its events would be counted twice; record each event in one buffer"
                ),
            });
        }
        for (name, count) in counts {
            *recorded.entry(name).or_default() += count;
        }
    }
    let is_kept = |one: &CpuData| !left_out.contains_key(&one.buffer);
    let kept = data.into_iter().filter(is_kept).collect();
    Ok((kept, Some(left_out).filter(|left_out| !left_out.is_empty()).map(LeftOut)))
}

/// How often each tracepoint that the analysis wants occurs.
fn wanted(
    input: StreamInput<'_>,
    codec: &Codec,
    data: Vec<CpuData>,
) -> Result<BTreeMap<String, u64>, Error> {
    let formats = input.decoder.formats;
    let mut sum = StreamSum::new(formats, HashSet::new());
    // What is damaged is said when it is read in earnest.
    stream::run(input, (codec, 0), data, &mut sum, &mut TakesNothing)?;
    let count = |id: u16| sum.counts.get(usize::from(id)).copied().unwrap_or(0);
    let of = formats.decoders.iter().map(|decoder| (decoder.name.clone(), count(decoder.id)));
    Ok(of.filter(|(_, count)| *count > 0).collect())
}

/// Takes nothing.
struct TakesNothing;

impl Feed for TakesNothing {
    fn event(&mut self, _: Event) -> Result<(), Error> {
        Ok(())
    }
}
