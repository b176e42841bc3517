//! Measures, from inside a VM and without privileges, in what pages the host maps it: times of chains of dependent loads
//! ([`vmtax_events::setting::host_pages`]).
//!
//! All chains are repeated in turn, so that a change of frequency or a neighbour touches all of them; the smallest time of
//! each counts. [`Loads`] is the machine: the real one (`memory`), and in tests a model of one.
//!
//! Left out on purpose: judging. What is measured does not depend on what is found, but that regions of like times are measured together.

mod chain;
mod loads;
mod room;
mod system;

use std::time::Instant;

use vmtax_events::setting::host_pages::{
    ChainPoint, CoarseChain, FINE, GROUP, GROUP_LINES, HostPages, HugePageSource, LINES,
    MeasuredChains, NotMeasured, REGION, SystemKind, Timing,
};

pub use chain::{Area, LoadChain};

/// Repeats of each chain of a TLB's first level.
const REPEATS: usize = 15;
/// Repeats of each longer one.
const LONG_REPEATS: usize = 5;
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
    fn source(&self) -> HugePageSource;

    /// Where regions begin in [`Area::Huge`], bytes; one at least.
    fn regions(&self) -> Vec<usize>;

    /// Most pages of [`Area::Small`] that a chain may use; [`LINES`] at least.
    fn small_pages(&self) -> usize;

    /// Lays a chain out, follows it once, and then `times` times. Returns the time of a load, ns.
    fn time(&mut self, chain: &LoadChain, times: usize) -> f64;
}

/// Looks at this system.
pub fn this_system() -> HostPages {
    let start = Instant::now();
    let machine = system::machine();
    let measured = (!matches!(machine, SystemKind::Bare(_))).then(measure);
    let took_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    HostPages { machine, measured, confidential: system::confidential(), took_ns }
}

fn measure() -> Result<MeasuredChains, NotMeasured> {
    Ok(probe(&mut loads::ProbeMemory::new(room::bytes())?))
}

pub fn probe(loads: &mut impl Loads) -> MeasuredChains {
    let (curve, fine) = first_level(loads);
    let (beside_groups, groups) = coarse(loads, &fine);
    let (longer, wide) = second_level(loads);
    MeasuredChains {
        page: loads.page(),
        huge: loads.huge(),
        source: loads.source(),
        curve: [curve, longer].concat(),
        regions: fine,
        groups,
        beside_groups,
        wide,
    }
}

/// Chains of each of these lengths in small pages, and others, repeated together.
fn with_curve(
    loads: &mut impl Loads,
    lines: &[usize],
    others: Vec<LoadChain>,
    repeats: usize,
) -> (Vec<ChainPoint>, Vec<Timing>) {
    let (page, most) = (loads.page(), loads.small_pages());
    let lines: Vec<usize> = lines.iter().copied().filter(|lines| *lines <= most).collect();
    let both = |lines: &usize| [LoadChain::packed(page, *lines), LoadChain::spread(page, *lines)];
    let chains: Vec<LoadChain> = lines.iter().flat_map(both).chain(others).collect();
    let mut times = repeated(loads, &chains, repeats);
    let others = times.split_off(2 * lines.len());
    (points(&lines, &times), others)
}

/// Pairs of packed and spread chains.
fn points(lines: &[usize], times: &[Timing]) -> Vec<ChainPoint> {
    let point = |(lines, pair): (&usize, &[Timing])| ChainPoint {
        lines: *lines,
        packed: pair[0],
        spread: pair[1],
    };
    lines.iter().zip(times.chunks_exact(2)).map(point).collect()
}

/// Chains that fit a second TLB, and a fine chain through each region.
fn first_level(loads: &mut impl Loads) -> (Vec<ChainPoint>, Vec<Timing>) {
    let fine = loads.regions().into_iter().map(|region| LoadChain::fine(region, LINES)).collect();
    with_curve(loads, &SHORT, fine, REPEATS)
}

/// Coarse chains, and those of their length in small pages.
fn coarse(loads: &mut impl Loads, fine: &[Timing]) -> (ChainPoint, Vec<CoarseChain>) {
    let (regions, members) = (loads.regions(), alike(fine));
    let chain = |members: &Vec<usize>| {
        LoadChain::coarse(&members.iter().map(|at| regions[*at]).collect::<Vec<_>>())
    };
    let chains = members.iter().map(chain).collect();
    let (beside, times) = with_curve(loads, &[GROUP_LINES], chains, REPEATS);
    let groups = members.into_iter().zip(times);
    (beside[0], groups.map(|(regions, timing)| CoarseChain { regions, timing }).collect())
}

/// Chains beyond a second TLB: in small pages, and all over the regions.
fn second_level(loads: &mut impl Loads) -> (Vec<ChainPoint>, ChainPoint) {
    let regions = loads.regions();
    let lines = WIDE.min(regions.len() * REGION / FINE);
    let wide = vec![LoadChain::wide_packed(&regions, lines), LoadChain::wide(&regions, lines)];
    let (longer, times) = with_curve(loads, &LONG, wide, LONG_REPEATS);
    (longer, points(&[lines], &times)[0])
}

/// Times of chains, in their order.
fn repeated(loads: &mut impl Loads, chains: &[LoadChain], repeats: usize) -> Vec<Timing> {
    let mut times = vec![Vec::with_capacity(repeats); chains.len()];
    for _ in 0..repeats {
        for (chain, times) in chains.iter().zip(&mut times) {
            times.push(loads.time(chain, TIMED.div_ceil(chain.places.len())));
        }
    }
    times.into_iter().map(Timing::of).collect()
}

/// Groups of regions that are alike: of each side of the largest gap in their times. Those of a group are in different sets of a
/// TLB, as far as the numbers of regions decide on that.
fn alike(fine: &[Timing]) -> Vec<Vec<usize>> {
    let mut sorted: Vec<usize> = (0..fine.len()).collect();
    sorted.sort_by(|a, b| fine[*a].min.total_cmp(&fine[*b].min));
    let gap = |at: &usize| fine[sorted[*at]].min - fine[sorted[at - 1]].min;
    let widest = (1..sorted.len()).max_by(|a, b| gap(a).total_cmp(&gap(b))).unwrap_or(0);
    let (quick, slow) = sorted.split_at(widest);
    if quick.len() < GROUP || slow.len() < GROUP {
        return groups(&sorted);
    }
    [groups(quick), groups(slow)].concat()
}

/// All regions in groups; the last group is filled up with members of the one before.
fn groups(regions: &[usize]) -> Vec<Vec<usize>> {
    let mut by_set = [const { Vec::new() }; GROUP];
    regions.iter().for_each(|region| by_set[region % GROUP].push(*region));
    let longest = by_set.iter().map(Vec::len).max().unwrap_or(0);
    let dealt: Vec<usize> = (0..longest)
        .flat_map(|at| by_set.iter().filter_map(move |set| set.get(at).copied()))
        .collect();
    let last = dealt.len().saturating_sub(GROUP);
    (0..dealt.len())
        .step_by(GROUP)
        .map(|start| start.min(last))
        .filter(|start| start + GROUP <= dealt.len())
        .map(|start| dealt[start..start + GROUP].to_vec())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timings(times: &[f64]) -> Vec<Timing> {
        times.iter().map(|time| Timing { min: *time, ..Timing::default() }).collect()
    }

    #[test]
    fn groups_are_of_regions_that_are_alike() {
        let equal = alike(&timings(&[1.0; 20]));
        let expected: [Vec<usize>; 3] = [(0..8).collect(), (8..16).collect(), (12..20).collect()];
        assert_eq!(equal, expected);
        let halves: Vec<f64> = (0..32).map(|at| if at % 2 == 0 { 3.0 } else { 1.0 }).collect();
        for group in alike(&timings(&halves)) {
            assert!(group.iter().all(|at| at % 2 == group[0] % 2), "{group:?}");
        }
        let mut one = [1.0; 16];
        one[3] = 2.0;
        assert_eq!(alike(&timings(&one)).len(), 2);
        assert!(alike(&timings(&[1.0; 7])).is_empty() && alike(&[]).is_empty());
    }

    /// A TLB of 8 sets would keep all regions of a group in different ones.
    #[test]
    fn members_of_a_group_are_in_different_sets() {
        for group in groups(&(0..64).rev().collect::<Vec<_>>()) {
            let mut sets: Vec<usize> = group.iter().map(|region| region % 8).collect();
            sets.sort_unstable();
            assert_eq!(sets, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }
}
