//! The pages in which the host maps a guest, as the guest measured them itself.

use vmtax_events::Isa;
use vmtax_events::setting::host_pages::{NotMeasured, SystemKind};
use vmtax_events::setting::{Fact, files};

use super::view::AuditView;
use super::{CheckFound, Fix, FoundSetting, QemuStart, Refused, SeenSetting};
use crate::host_pages::{Doubt, Judged, PagesVerdict, Paging, Reach};
use crate::remedy::{Applies, Context, RemedyId, VmKind};

/// What the guest's measurement says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PagesFound {
    /// It was not made: settings of a guest alone do not show it.
    NotTried,
    NoVm,
    /// The guest has no huge pages to measure with.
    NotMeasured(NotMeasured),
    Undecided(Doubt),
    /// Small, large or mixed.
    Decided {
        verdict: PagesVerdict,
        /// Sampled regions of 2 MiB in small pages.
        small: usize,
        /// In large ones.
        large: usize,
        /// Ends of the 95 % confidence interval of the share of small ones, in thousandths; rounded to the outside.
        share: (u32, u32),
    },
}

/// The figures behind it. Times are of one load, ps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesSeen {
    /// Sampled regions of 2 MiB: small, large, unclear.
    pub regions: [usize; 3],
    /// The first data TLB, in the guest's smallest pages.
    pub first: Reach,
    pub second: Reach,
    /// A load that hits, one that misses the first TLB, one of a program with much data, and one of as much data side by side.
    pub times: [u64; 4],
}

/// The check of `doctor`: nothing where neither a guest was named nor anything measured.
pub(super) fn check(view: &AuditView) -> Option<CheckFound> {
    match view.inside {
        Some(judged) => Some(found(judged)),
        None => {
            view.guest.map(|_| CheckFound::unknown(FoundSetting::HostPages(PagesFound::NotTried)))
        }
    }
}

/// What a judgement means for the user, with its evidence and what can be changed.
pub fn found(judged: &Judged) -> CheckFound {
    let what = FoundSetting::HostPages(pages_found(judged));
    let found = match judged.verdict {
        PagesVerdict::Small | PagesVerdict::Mixed => advised(CheckFound::costs(what), judged.kind),
        PagesVerdict::Large => CheckFound::ok(what),
        PagesVerdict::NoVm => CheckFound::not_applicable(what),
        PagesVerdict::Undecided => CheckFound::unknown(what),
        PagesVerdict::NotMeasured => with_thp(CheckFound::unknown(what), judged),
    };
    let found = match judged.machine {
        SystemKind::Vm(files::CPUINFO) => {
            found.seen(Fact::new(files::CPUINFO, Ok(SeenSetting::Flag("hypervisor", true))))
        }
        SystemKind::Bare(path) => {
            found.seen(Fact::new(path, Ok(SeenSetting::Flag("hypervisor", false))))
        }
        SystemKind::Vm(path) => found.seen(Fact::new(path, Ok(SeenSetting::SignOfVm))),
        SystemKind::Unknown => found,
    };
    match &judged.paging {
        Some(paging) => found.seen(Fact::new(
            "loads in this guest",
            Ok(SeenSetting::HostPages(Box::new(seen(paging)))),
        )),
        None => found,
    }
}

fn pages_found(judged: &Judged) -> PagesFound {
    match (judged.verdict, &judged.doubt, &judged.missing, &judged.paging) {
        (PagesVerdict::NoVm, ..) => PagesFound::NoVm,
        (_, Some(doubt), ..) => PagesFound::Undecided(doubt.clone()),
        (_, _, Some(missing), _) => PagesFound::NotMeasured(missing.clone()),
        (verdict, _, _, Some(paging)) => {
            let (low, high) = paging.regions.share;
            PagesFound::Decided {
                verdict,
                small: paging.regions.small,
                large: paging.regions.large,
                share: ((low * 1000.0).floor() as u32, (high * 1000.0).ceil() as u32),
            }
        }
        _ => PagesFound::NotTried,
    }
}

fn seen(paging: &Paging) -> PagesSeen {
    let regions = paging.regions;
    let times = [paging.hit, paging.first_miss, paging.wide.spread, paging.wide.packed];
    PagesSeen {
        regions: [regions.small, regions.large, regions.unclear],
        first: paging.first,
        second: paging.second,
        times: times.map(|timing| (timing.min * 1000.0).round() as u64),
    }
}

/// With what the table of remedies allows for this kind of VM.
fn advised(mut found: CheckFound, kind: VmKind) -> CheckFound {
    let context = Context {
        kind,
        vendor: Isa::Unknown,
        has_virtual_apic: false,
        is_contended: false,
        polls: false,
        guest_memfd: false,
        logs_writes: false,
        converts: false,
        may_shadow: false,
        is_windows: false,
        has_hyperv_timer: false,
        is_of_other_host: false,
    };
    match RemedyId::HugePages.row().applies_to(&context) {
        Applies::Yes => found.fix(Fix::Vmm(QemuStart::InHugePages)),
        Applies::If(_) => found.fix(Fix::Vmm(QemuStart::InHugePagesUnlessSnp)),
        Applies::No(why) => {
            found.refuse(Refused::Remedy(why));
            found
        }
    }
}

/// With transparent huge pages switched on, if they are off.
fn with_thp(found: CheckFound, judged: &Judged) -> CheckFound {
    let Some(NotMeasured::Off { thp, .. }) = &judged.missing else { return found };
    let found = found.seen(Fact::new(files::THP, thp.clone()));
    match thp {
        Ok(_) => found.fix(Fix::Write { path: files::THP.to_owned(), value: "madvise" }),
        Err(_) => found,
    }
}

#[cfg(test)]
mod tests {
    use vmtax_events::setting::Unknown;
    use vmtax_events::setting::host_pages::ChainPoint;

    use super::*;
    use crate::audit::CheckVerdict as Says;
    use crate::host_pages::RegionShare;

    fn judged(verdict: PagesVerdict, kind: VmKind) -> Judged {
        let regions = RegionShare { small: 128, large: 0, unclear: 0, share: (0.97159, 1.0) };
        let paging = Paging {
            regions,
            has_grain: false,
            first: Reach::default(),
            second: Reach::default(),
            hit: Default::default(),
            first_miss: Default::default(),
            wide: ChainPoint { lines: 1, packed: Default::default(), spread: Default::default() },
        };
        let machine = SystemKind::Vm(files::CPUINFO);
        Judged { verdict, doubt: None, missing: None, paging: Some(paging), machine, kind }
    }

    /// A remedy that does not help a kind of VM is the worst that can be said.
    #[test]
    fn remedies_are_those_that_the_kind_of_vm_allows() {
        for (kind, fix) in [
            (VmKind::Unknown, Some(QemuStart::InHugePages)),
            (VmKind::Encrypted, Some(QemuStart::InHugePagesUnlessSnp)),
            (VmKind::Tdx, None),
            (VmKind::Snp, None),
            (VmKind::Protected, None),
        ] {
            for verdict in [PagesVerdict::Small, PagesVerdict::Mixed] {
                let found = found(&judged(verdict, kind));
                assert_eq!(found.verdict, Says::Costs);
                assert_eq!(found.fix, fix.map(Fix::Vmm), "{kind}");
                assert_eq!(found.refused.is_some(), fix.is_none(), "{kind}");
            }
            let large = found(&judged(PagesVerdict::Large, kind));
            assert_eq!((large.verdict, large.fix), (Says::Ok, None));
        }
    }

    #[test]
    fn shares_are_rounded_to_the_outside() {
        let FoundSetting::HostPages(PagesFound::Decided { share, .. }) =
            found(&judged(PagesVerdict::Small, VmKind::Unknown)).what
        else {
            unreachable!("it is decided")
        };
        assert_eq!(share, (971, 1000));
    }

    #[test]
    fn thp_that_is_off_can_be_switched_on() {
        let off = |thp| {
            let missing = Some(NotMeasured::Off { thp, hugetlb: Ok(0) });
            let none = Judged {
                missing,
                paging: None,
                ..judged(PagesVerdict::NotMeasured, VmKind::Unknown)
            };
            let found = found(&none);
            assert_eq!(found.verdict, Says::Unknown);
            found.fix
        };
        let fix = Fix::Write { path: files::THP.to_owned(), value: "madvise" };
        assert_eq!(off(Ok("always madvise [never]".to_owned())), Some(fix));
        assert_eq!(off(Err(Unknown::Missing)), None);
    }
}
