//! Judges in what pages the host maps a VM, by what was measured inside it ([`vmtax_events::setting::host_pages`]).
//!
//! A region of 2 MiB in the guest's huge pages is small if its chain takes as long as one through as many small pages of the guest,
//! and large if it takes as long as one of lines side by side. Both are measured on the same machine at the same time, so no size
//! of a TLB and no frequency is assumed. A second kind of chain, through several regions, confirms both: it needs many TLB entries
//! also where the processor joins neighbouring small pages, or the host's pages are of 16 or 64 KiB. Where a fine chain cannot show
//! these, there is no verdict.
//!
//! In doubt there is no verdict. Between "all" and "some" there is a gap (`SOME`), so that another sample of the same
//! VM does not give the opposite verdict.

use statrs::distribution::{Beta, ContinuousCDF};
use vmtax_events::setting::host_pages::{
    ChainPoint, ConfidentialSigns, GROUP_LINES, HostPages, LINES, MeasuredChains, NotMeasured,
    SystemKind, Timing,
};
use vmtax_events::words;

use crate::remedy::VmKind;

/// Up to this part of the way from packed to spread a chain is quick.
const QUICK: f64 = 0.15;
/// From this part on it is slow.
const SLOW: f64 = 0.6;
/// A spread chain takes at least this much longer, as a part of the packed one. A miss of the first TLB costs 6 of 4 cycles
/// and more in known processors.
const CONTRAST: f64 = 0.3;
/// Fewer regions tell nothing.
const REGIONS: usize = 8;
/// Regions of the rarer kind from which on memory is mixed; with fewer, but not none, there is no verdict. Two samples of 128 regions
/// of one VM give "mixed" and "small" (or "large") with a probability of at most 0.8 % (if the rarer kind has 2.6 %).
const SOME: usize = 6;
/// Regions of unclear times, as a part of all, that are tolerated in mixed memory.
const UNCLEAR: f64 = 0.05;
/// A second-level TLB is exceeded where a miss costs this many times a miss of the first level, and not up to [`SECOND_FITS`].
const SECOND_EXCEEDED: f64 = 2.5;
const SECOND_FITS: f64 = 1.75;

words! {
    /// In what pages the host maps a VM.
    pub enum PagesVerdict {
        /// Smaller than the guest's huge pages: 4 KiB, or up to 64 KiB.
        Small = "small",
        /// As large as the guest's huge pages, or larger.
        Large = "large",
        /// Of both kinds.
        Mixed = "mixed",
        /// The guest has no huge pages to measure with.
        NotMeasured = "none",
        NoVm = "no-vm",
        /// It could not be decided.
        Undecided = "undecided",
    }
}

/// Why there is no verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Chains that need many TLB entries take no longer than others.
    NoContrast,
    /// The first TLB has more entries than the chains need.
    Reach,
    /// Regions whose chains are neither quick nor slow.
    Unclear,
    /// Fine chains are quick, and coarse ones are not: several lines of a fine one share a TLB entry of 16 to 64 KiB. Whether all
    /// of the host's pages are so does not show.
    Grain,
    /// There are too few regions.
    FewRegions,
    /// Regions of the rarer kind: more than none, too few for a share.
    Rare(usize),
    /// Large pages, on a system that nothing shows to be a VM.
    NoSignOfVm,
}

/// Lengths of chains between which a TLB is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The longest chain that fits.
    pub fits: Option<usize>,
    /// The shortest that does not; `None` if none was long enough.
    pub exceeds: Option<usize>,
}

/// Regions by their pages, and the share of small ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RegionShare {
    /// In small pages of the host.
    pub small: usize,
    /// In large ones.
    pub large: usize,
    /// Neither.
    pub unclear: usize,
    /// Ends of the 95 % confidence interval (Clopper and Pearson, 1934) of the share of small ones among the memory that was
    /// sampled.
    pub share: (f64, f64),
}

/// What the times of loads say.
#[derive(Clone, Debug, PartialEq)]
pub struct Paging {
    pub regions: RegionShare,
    /// There are regions whose TLB entries are larger than 4 KiB, and smaller than a huge page.
    pub has_grain: bool,
    /// The first data TLB, in the guest's smallest pages.
    pub first: Reach,
    pub second: Reach,
    /// A load whose data and translation are in the nearest cache and TLB.
    pub hit: Timing,
    /// A load that misses the first TLB alone.
    pub first_miss: Timing,
    /// A load of a program with much data: side by side, and all over the regions.
    pub wide: ChainPoint,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    pub verdict: PagesVerdict,
    /// Why it is undecided.
    pub doubt: Option<Doubt>,
    /// Why nothing was measured.
    pub missing: Option<NotMeasured>,
    pub paging: Option<Paging>,
    /// Whether it is a VM, and by which file.
    pub machine: SystemKind,
    /// The kind of VM, as far as it shows.
    pub kind: VmKind,
}

impl Judged {
    /// It is undecided for a reason that another measurement may not have.
    pub fn is_noisy(&self) -> bool {
        let noisy = [Doubt::NoContrast, Doubt::Reach, Doubt::Unclear, Doubt::Grain];
        self.doubt.as_ref().is_some_and(|doubt| noisy.contains(doubt))
    }
}

/// Judges what was measured.
pub fn judge(pages: &HostPages) -> Judged {
    let kind = kind(pages.confidential);
    let judged = |verdict| Judged {
        verdict,
        doubt: None,
        missing: None,
        paging: None,
        machine: pages.machine.clone(),
        kind,
    };
    match (&pages.machine, &pages.measured) {
        (SystemKind::Bare(_), _) | (_, None) => judged(PagesVerdict::NoVm),
        (_, Some(Err(missing))) => {
            Judged { missing: Some(missing.clone()), ..judged(PagesVerdict::NotMeasured) }
        }
        (machine, Some(Ok(measured))) => {
            let paging = paging(measured);
            let decided = decide(measured, &paging).and_then(|verdict| match (verdict, machine) {
                // Nothing but a host splits huge pages, so the other verdicts prove a VM.
                (PagesVerdict::Large, SystemKind::Unknown) => Err(Doubt::NoSignOfVm),
                _ => Ok(verdict),
            });
            let verdict = *decided.as_ref().unwrap_or(&PagesVerdict::Undecided);
            Judged { doubt: decided.err(), paging: Some(paging), ..judged(verdict) }
        }
    }
}

fn kind(shown: ConfidentialSigns) -> VmKind {
    match shown {
        ConfidentialSigns { tdx: true, .. } => VmKind::Tdx,
        ConfidentialSigns { snp: true, .. } => VmKind::Snp,
        ConfidentialSigns { sev_flag: true, .. } => VmKind::Encrypted,
        _ => VmKind::Unknown,
    }
}

fn decide(measured: &MeasuredChains, paging: &Paging) -> Result<PagesVerdict, Doubt> {
    let RegionShare { small, large, unclear, .. } = paging.regions;
    if contrast(measured, LINES).is_none() {
        return Err(Doubt::NoContrast);
    }
    if contrast(measured, GROUP_LINES).is_none() {
        return Err(Doubt::Reach);
    }
    if paging.has_grain {
        return Err(Doubt::Grain);
    }
    let all = small + large + unclear;
    if unclear as f64 > all as f64 * UNCLEAR {
        return Err(Doubt::Unclear);
    }
    if small + large < REGIONS {
        return Err(Doubt::FewRegions);
    }
    match small.min(large) {
        0 if unclear > 0 => Err(Doubt::Unclear),
        0 => Ok(if small > 0 { PagesVerdict::Small } else { PagesVerdict::Large }),
        SOME.. => Ok(PagesVerdict::Mixed),
        rare => Err(Doubt::Rare(rare)),
    }
}

/// The scale of chains of a length: the time of a packed one, and how much longer a spread one takes. `None` if they cannot be
/// told apart at this length and all longer ones up to [`LINES`]: a single disturbance is no contrast.
fn contrast(measured: &MeasuredChains, lines: usize) -> Option<(f64, f64)> {
    let mut points = measured.curve.iter().filter(|point| (lines..=LINES).contains(&point.lines));
    let first = points.clone().find(|point| point.lines == lines)?;
    if points.all(|point| scale(point).is_some()) { scale(first) } else { None }
}

fn scale(point: &ChainPoint) -> Option<(f64, f64)> {
    let longer = point.spread.min - point.packed.min;
    (longer >= CONTRAST * point.packed.min).then_some((point.packed.min, longer))
}

/// How fast a chain is, beside others of its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speed {
    Quick,
    Slow,
    Unclear,
}

fn speed(timing: &Timing, (packed, longer): (f64, f64)) -> Speed {
    match (timing.min - packed) / longer {
        part if part <= QUICK => Speed::Quick,
        part if part >= SLOW => Speed::Slow,
        _ => Speed::Unclear,
    }
}

fn paging(measured: &MeasuredChains) -> Paging {
    let point = measured.curve.iter().find(|point| point.lines == LINES);
    let (hit, first_miss) = point.map(|p| (p.packed, p.spread)).unwrap_or_default();
    let (first, second) = reaches(&measured.curve);
    let (regions, has_grain) = regions(measured);
    Paging { regions, has_grain, first, second, hit, first_miss, wide: measured.wide }
}

/// Regions by their fine chains, as the coarse ones confirm or correct them; and whether these contradict them.
fn regions(measured: &MeasuredChains) -> (RegionShare, bool) {
    let scales = (contrast(measured, LINES), scale(&measured.beside_groups));
    let (Some(fine), Some(coarse)) = scales else {
        return (counted(&vec![Speed::Unclear; measured.regions.len()]), false);
    };
    let mut speeds: Vec<Speed> = measured.regions.iter().map(|t| speed(t, fine)).collect();
    let by_fine = speeds.clone();
    let (mut is_confirmed, mut has_grain) = (false, false);
    for group in &measured.groups {
        let all = |are: fn(Speed) -> bool| {
            group.regions.iter().all(|at| by_fine.get(*at).is_some_and(|speed| are(*speed)))
        };
        let (quick, none_quick) = (all(|s| s == Speed::Quick), all(|s| s != Speed::Quick));
        let corrected = match speed(&group.timing, coarse) {
            Speed::Quick if quick => {
                is_confirmed = true;
                continue;
            }
            Speed::Slow if quick => {
                has_grain = true;
                Speed::Unclear
            }
            // Entries of at most 64 KiB, of which a fine chain may need few.
            Speed::Slow if none_quick => Speed::Slow,
            _ if quick || none_quick => Speed::Unclear,
            // Of regions of both kinds, which confirms nothing.
            _ => continue,
        };
        group.regions.iter().for_each(|at| speeds[*at] = corrected);
    }
    if !is_confirmed {
        speeds.iter_mut().filter(|s| **s == Speed::Quick).for_each(|s| *s = Speed::Unclear);
    }
    (counted(&speeds), has_grain)
}

fn counted(speeds: &[Speed]) -> RegionShare {
    let count = |wanted| speeds.iter().filter(|speed| **speed == wanted).count();
    let (small, large) = (count(Speed::Slow), count(Speed::Quick));
    RegionShare { small, large, unclear: count(Speed::Unclear), share: share(small, small + large) }
}

/// The exact confidence interval of a share.
fn share(some: usize, all: usize) -> (f64, f64) {
    let quantile = |a: usize, b: usize, at: f64| {
        Beta::new(a as f64, b as f64).map_or(f64::NAN, |beta| beta.inverse_cdf(at))
    };
    let low = if some == 0 { 0.0 } else { quantile(some, all - some + 1, 0.025) };
    let high = if some == all { 1.0 } else { quantile(some + 1, all - some, 0.975) };
    (low, high)
}

/// Where the first and the second TLB are full.
fn reaches(curve: &[ChainPoint]) -> (Reach, Reach) {
    let longer = |point: &ChainPoint| point.spread.min - point.packed.min;
    let Some(miss) = curve.iter().find(|point| point.lines == LINES).map(longer) else {
        return Default::default();
    };
    let reach = |fits: f64, exceeded: f64| {
        let exceeds = curve.iter().position(|point| longer(point) > exceeded * miss);
        let before = &curve[..exceeds.unwrap_or(curve.len())];
        let fits = before.iter().rfind(|point| longer(point) < fits * miss);
        Reach { fits: fits.map(|point| point.lines), exceeds: exceeds.map(|at| curve[at].lines) }
    };
    (reach(QUICK, SLOW), reach(SECOND_FITS, SECOND_EXCEEDED))
}

#[cfg(test)]
mod tests {
    use vmtax_events::setting::host_pages::{CoarseChain, GROUP, HugePageSource};

    use super::*;

    fn timing(min: f64) -> Timing {
        Timing { min, median: min, p90: min }
    }

    /// Packed chains take 1 ns and spread ones 3, from 80 lines on; 10 from 3,072 on. Regions and groups as given.
    fn measured(regions: &[f64], groups: &[f64]) -> HostPages {
        let lines = [8, 64, 80, GROUP_LINES, LINES, 2048, 3072];
        let spread = |lines| match lines {
            0..80 => 1.0,
            80..3072 => 3.0,
            _ => 10.0,
        };
        let point =
            |lines| ChainPoint { lines, packed: timing(1.0), spread: timing(spread(lines)) };
        let mut order: Vec<usize> = (0..regions.len()).collect();
        order.sort_by(|a, b| regions[*a].total_cmp(&regions[*b]));
        let groups = order.chunks_exact(GROUP).zip(groups).map(|(regions, time)| CoarseChain {
            regions: regions.to_vec(),
            timing: timing(*time),
        });
        let measured = MeasuredChains {
            page: 4096,
            huge: 2 << 20,
            source: HugePageSource::Thp,
            curve: lines.map(point).into(),
            regions: regions.iter().copied().map(timing).collect(),
            groups: groups.collect(),
            beside_groups: point(GROUP_LINES),
            wide: ChainPoint { lines: 4096, packed: timing(5.0), spread: timing(20.0) },
        };
        HostPages {
            machine: SystemKind::Vm("/proc/cpuinfo"),
            measured: Some(Ok(measured)),
            confidential: ConfidentialSigns::default(),
            took_ns: 1,
        }
    }

    fn of(parts: &[(usize, f64)]) -> Vec<f64> {
        parts.iter().flat_map(|(n, time)| vec![*time; *n]).collect()
    }

    /// How many took how long.
    type Times = &'static [(usize, f64)];

    #[test]
    fn verdicts_are_by_regions_and_groups() {
        let table: &[(Times, Times, PagesVerdict, Option<Doubt>)] = &[
            (&[(32, 3.0)], &[(4, 3.0)], PagesVerdict::Small, None),
            (&[(32, 1.1)], &[(4, 1.1)], PagesVerdict::Large, None),
            // The host's pages are of 64 KiB, or the processor joins small ones.
            (&[(32, 1.1)], &[(4, 3.0)], PagesVerdict::Undecided, Some(Doubt::Grain)),
            (&[(16, 1.0), (16, 3.0)], &[(2, 1.0), (2, 3.0)], PagesVerdict::Mixed, None),
            (&[(12, 1.0), (20, 3.0)], &[(1, 1.0), (3, 3.0)], PagesVerdict::Mixed, None),
            // Nothing confirms that few quick ones are large.
            (&[(6, 1.0), (26, 3.0)], &[(4, 3.0)], PagesVerdict::Undecided, Some(Doubt::Unclear)),
            (
                &[(27, 1.0), (5, 3.0)],
                &[(3, 1.0), (1, 3.0)],
                PagesVerdict::Undecided,
                Some(Doubt::Rare(5)),
            ),
            (&[(32, 1.8)], &[(4, 1.8)], PagesVerdict::Undecided, Some(Doubt::Unclear)),
            (&[(32, 1.8)], &[(4, 3.0)], PagesVerdict::Small, None),
            (&[(32, 3.0)], &[(4, 1.0)], PagesVerdict::Undecided, Some(Doubt::Unclear)),
            (&[(7, 3.0)], &[], PagesVerdict::Undecided, Some(Doubt::FewRegions)),
            (&[], &[], PagesVerdict::Undecided, Some(Doubt::FewRegions)),
            // A slow group decides on what is unclear in it.
            (&[(99, 3.0), (1, 1.8)], &[(13, 3.0)], PagesVerdict::Small, None),
            (&[(49, 3.0), (1, 1.8), (50, 1.0)], &[(6, 1.0), (6, 3.0)], PagesVerdict::Mixed, None),
        ];
        for (regions, groups, verdict, doubt) in table {
            let judged = judge(&measured(&of(regions), &of(groups)));
            assert_eq!(
                (judged.verdict, &judged.doubt),
                (*verdict, doubt),
                "{regions:?} {groups:?}"
            );
        }
    }

    /// Changes what was measured of a VM that is large or small.
    fn changed(
        regions: f64,
        change: impl Fn(&mut HostPages, fn(&mut HostPages) -> &mut MeasuredChains),
    ) -> Judged {
        let mut pages = measured(&[regions; 32], &[regions; 4]);
        change(&mut pages, |pages| match &mut pages.measured {
            Some(Ok(measured)) => measured,
            _ => unreachable!("it was measured"),
        });
        judge(&pages)
    }

    #[test]
    fn without_a_contrast_there_is_no_verdict() {
        let flat = changed(1.0, |pages, measured| {
            measured(pages).curve.iter_mut().for_each(|point| point.spread = timing(1.1));
        });
        assert_eq!((flat.verdict, flat.doubt), (PagesVerdict::Undecided, Some(Doubt::NoContrast)));
        // One long chain was disturbed.
        let disturbed = changed(1.0, |pages, measured| {
            let curve = &mut measured(pages).curve;
            curve.iter_mut().for_each(|point| point.spread = timing(1.0));
            curve
                .iter_mut()
                .filter(|p| p.lines == GROUP_LINES)
                .for_each(|p| p.spread = timing(3.0));
        });
        assert_eq!(
            (disturbed.verdict, disturbed.doubt),
            (PagesVerdict::Undecided, Some(Doubt::NoContrast))
        );
        let far = changed(1.0, |pages, measured| {
            let curve = &mut measured(pages).curve;
            let short = curve.iter_mut().filter(|point| point.lines < LINES);
            short.for_each(|point| point.spread = timing(1.0));
        });
        assert_eq!((far.verdict, far.doubt), (PagesVerdict::Undecided, Some(Doubt::Reach)));
        let none = changed(1.0, |pages, measured| measured(pages).curve.clear());
        assert_eq!((none.verdict, none.doubt), (PagesVerdict::Undecided, Some(Doubt::NoContrast)));
    }

    #[test]
    fn what_is_no_vm_has_no_host() {
        let bare = changed(3.0, |pages, _| {
            (pages.machine, pages.measured) = (SystemKind::Bare("/proc/cpuinfo"), None);
        });
        assert_eq!((bare.verdict, bare.paging), (PagesVerdict::NoVm, None));
        let unknown = |time| changed(time, |pages, _| pages.machine = SystemKind::Unknown);
        assert_eq!(unknown(1.0).doubt, Some(Doubt::NoSignOfVm));
        assert_eq!(unknown(3.0).verdict, PagesVerdict::Small);
        let missing = NotMeasured::Few { got: 0, asked: 128 };
        let none = changed(3.0, |pages, _| pages.measured = Some(Err(missing.clone())));
        assert_eq!(
            (none.verdict, none.missing),
            (PagesVerdict::NotMeasured, Some(missing.clone()))
        );
    }

    #[test]
    fn reaches_and_shares_are_found() {
        let paging = judge(&measured(&[3.0; 32], &[3.0; 4])).paging.unwrap();
        assert_eq!(paging.first, Reach { fits: Some(64), exceeds: Some(80) });
        assert_eq!(paging.second, Reach { fits: Some(2048), exceeds: Some(3072) });
        let RegionShare { small, large, unclear, share: (low, high) } = paging.regions;
        assert_eq!((small, large, unclear, high), (32, 0, 0, 1.0));
        // 0.025^(1/32).
        assert!((low - 0.8911).abs() < 1e-4, "{low}");
        // With these shares 13 and more of 128, and 13 and fewer, have a probability of 2.5 %.
        let (low, high) = share(13, 128);
        assert!((low - 0.0552).abs() < 1e-4 && (high - 0.1674).abs() < 1e-4, "{low} {high}");
    }

    #[test]
    fn kinds_of_vms_are_told_by_what_they_show() {
        let of = |tdx, snp, sev_flag| kind(ConfidentialSigns { tdx, snp, sev_flag });
        assert_eq!(of(true, false, false), VmKind::Tdx);
        assert_eq!(of(false, true, true), VmKind::Snp);
        assert_eq!(of(false, false, true), VmKind::Encrypted);
        assert_eq!(of(false, false, false), VmKind::Unknown);
    }
}
