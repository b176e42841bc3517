//! Measures, from inside a VM and without privileges, in what pages the host maps it: times of chains of dependent loads
//! ([`vmtax_events::setting::host_pages`]).
//!
//! All chains are repeated in turn, so that a change of frequency or a neighbour touches all of them; the smallest time of
//! each counts. [`Loads`] is the machine: the real one ([`memory`]), and in tests a model of one.
//!
//! Left out on purpose: judging. What is measured does not depend on what is found, but that regions are sorted by their times.

mod chain;
mod memory;
mod room;
mod system;

use std::time::Instant;

use vmtax_events::setting::host_pages::{
    GROUP, GROUP_LINES, Group, HostPages, LINES, Machine, Measured, NotMeasured, Point, Source,
    Timing,
};

pub use chain::{Area, Chain};

/// Repeats of each chain of a TLB's first level.
const REPEATS: usize = 15;
/// Repeats of each longer one.
const LONG_REPEATS: usize = 7;
/// Loads that are timed at once at least: some microseconds, so that most repeats run without an interruption.
const TIMED: usize = 1792;
/// Lengths of chains up to [`LINES`]: those of first-level TLBs and between them.
const SHORT: [usize; 16] =
    [8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 192, GROUP_LINES, 320, LINES];
/// Longer lengths: those of second-level TLBs.
const LONG: [usize; 8] = [768, 1024, 1536, 2048, 3072, 4096, 6144, 8192];
/// Loads of a program with much data.
const WIDE: usize = 16384;

/// Memory to measure, and a clock.
pub trait Loads {
    /// Bytes of the guest's smallest page.
    fn page(&self) -> usize;

    /// Bytes of its huge page.
    fn huge(&self) -> usize;

    /// Where its huge pages come from.
    fn source(&self) -> Source;

    /// Where regions begin in [`Area::Huge`], bytes.
    fn regions(&self) -> Vec<usize>;

    /// Most pages of [`Area::Small`] that a chain may use.
    fn small_pages(&self) -> usize;

    /// Lays a chain out, follows it once, and then `times` times. Returns the time of a load, ns.
    fn time(&mut self, chain: &Chain, times: usize) -> f64;
}

/// Looks at this system.
pub fn this_system() -> HostPages {
    let start = Instant::now();
    let machine = system::machine();
    let measured = (!matches!(machine, Machine::Bare(_))).then(measure);
    let took_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    HostPages { machine, measured, confidential: system::confidential(), took_ns }
}

fn measure() -> Result<Measured, NotMeasured> {
    Ok(probe(&mut memory::Memory::new(room::bytes())?))
}

/// Measures all chains.
pub fn probe(loads: &mut impl Loads) -> Measured {
    let (page, regions) = (loads.page(), loads.regions());
    let curve = |lines: &[usize]| -> Vec<Chain> {
        let both = |lines: &usize| [Chain::packed(page, *lines), Chain::spread(page, *lines)];
        lines.iter().filter(|lines| **lines <= loads.small_pages()).flat_map(both).collect()
    };
    let (short, mut long) = (curve(&SHORT), curve(&LONG));
    let fine = regions.iter().map(|region| Chain::fine(*region, LINES)).collect::<Vec<_>>();
    let wide_lines = WIDE.min(regions.len() * vmtax_events::setting::host_pages::REGION / 4096);
    long.push(Chain::wide(&regions, wide_lines));
    long.push(Chain::wide_packed(&regions, wide_lines));

    let mut first = repeated(loads, &[short, fine].concat(), REPEATS);
    let fine = first.split_off(first.len() - regions.len());
    let members = alike(&fine);
    let group = |members: &Vec<usize>| {
        Chain::coarse(&members.iter().map(|at| regions[*at]).collect::<Vec<_>>())
    };
    let coarse = repeated(loads, &members.iter().map(group).collect::<Vec<_>>(), REPEATS);
    let mut second = repeated(loads, &long, LONG_REPEATS);
    let wide = second.split_off(second.len() - 2);

    let lengths = SHORT.iter().chain(&LONG).copied();
    let pairs = [first, second].concat();
    Measured {
        page,
        huge: loads.huge(),
        source: loads.source(),
        curve: lengths
            .zip(pairs.chunks(2))
            .map(|(lines, pair)| Point { lines, packed: pair[0], spread: pair[1] })
            .collect(),
        regions: fine,
        groups: members
            .into_iter()
            .zip(coarse)
            .map(|(regions, timing)| Group { regions, timing })
            .collect(),
        wide: wide[0],
        wide_packed: wide[1],
        wide_lines,
    }
}

/// Times of chains, in their order.
fn repeated(loads: &mut impl Loads, chains: &[Chain], repeats: usize) -> Vec<Timing> {
    let mut times = vec![Vec::with_capacity(repeats); chains.len()];
    for _ in 0..repeats {
        for (chain, times) in chains.iter().zip(&mut times) {
            times.push(loads.time(chain, TIMED.div_ceil(chain.places.len())));
        }
    }
    times.into_iter().map(Timing::of).collect()
}

/// Groups of regions, sorted by their times. What is left over is in no group.
fn alike(fine: &[Timing]) -> Vec<Vec<usize>> {
    let mut sorted: Vec<usize> = (0..fine.len()).collect();
    sorted.sort_by(|a, b| fine[*a].min.total_cmp(&fine[*b].min));
    sorted.chunks_exact(GROUP).map(<[usize]>::to_vec).collect()
}
