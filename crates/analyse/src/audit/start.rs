//! What starting a VM waits for.

use vmtax_events::setting::{Fact, files};

use super::view::AuditView;
use super::{CheckFound, Fix, FoundSetting, ManualAdvice, SeenSetting, Vendor};

/// KVM starts a thread for each VM (Linux arch/x86/kvm/mmu/mmu.c, kvm_mmu_post_init_vm), which joins the VMM's cgroup. The join waits
/// for a grace period of RCU unless cgroup2 favours moves, which it can from 6.0 on (kernel/cgroup/cgroup.c, cgroup_favor_dynmods). From 6.13 on the thread is one of the VMM's own, and starts with the first KVM_RUN; stable kernels
/// of 6.12 have that too.
const WAITS: std::ops::Range<(u32, u32)> = (6, 0)..(6, 12);
const FIRST_WITHOUT: (u32, u32) = (6, 13);

/// The option that makes moves between cgroups quick.
const OPTION: &str = "favordynmods";

/// On the kernel's command line it shortens that grace period.
const EXPEDITED: &str = "rcupdate.rcu_expedited=1";

/// KVM starts a grace period of SRCU for each device on its bus (7d9a0273c459, kvm_io_bus_register_dev), and a slot or the removal of a device
/// waits for it. Seen in Debian's 6.18.15 and 7.3.4 on an emulated host; a patch of 9 March 2026 shortens it (kvm@vger, "KVM: Expedite SRCU callbacks when freeing objects during I/O bus registration").
const GRACE_PERIODS: std::ops::RangeInclusive<(u32, u32)> = (6, 18)..=(7, 3);

/// Tried on an emulated host with Linux 6.1: KVM_CREATE_VM takes 0.285 ms with the option, and waits 11 ms without.
pub(super) fn cgroup_moves(view: &AuditView) -> CheckFound {
    let release = view.host.fact(files::RELEASE);
    let kernel = match view.kernel() {
        Ok(kernel) => kernel,
        Err(_) => return CheckFound::unread(release),
    };
    if !WAITS.contains(&kernel) {
        let waits_perhaps = (WAITS.end..FIRST_WITHOUT).contains(&kernel);
        let found = if waits_perhaps {
            CheckFound::unknown(FoundSetting::StartsUnknown)
        } else {
            CheckFound::not_applicable(FoundSetting::StartsWithoutMove)
        };
        return found.seen(release);
    }
    // Then KVM starts no such thread.
    if view.host.text(files::NX_HUGE_PAGES) == Ok("never") {
        return CheckFound::ok(FoundSetting::CgroupMovesQuick)
            .seen(view.host.fact(files::NX_HUGE_PAGES));
    }
    let line = view.host.fact(files::CMDLINE);
    if line.value.as_ref().is_ok_and(|line| line.split_whitespace().any(|word| word == EXPEDITED)) {
        return CheckFound::ok(FoundSetting::CgroupMovesQuick).seen(line);
    }
    let mounts = match view.host.text(files::MOUNTS) {
        Ok(mounts) => mounts,
        Err(_) => return CheckFound::unread(view.host.fact(files::MOUNTS)),
    };
    let mut options = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(2);
        (words.next() == Some("cgroup2")).then(|| words.next().unwrap_or_default())
    });
    let Some(options) = options.next() else {
        return CheckFound::not_applicable(FoundSetting::CgroupOne).seen(release);
    };
    let favours = options.split(',').any(|option| option == OPTION);
    let fact = Fact::new(files::MOUNTS, Ok(SeenSetting::Favordynmods(favours)));
    if favours {
        return CheckFound::ok(FoundSetting::CgroupMovesQuick).seen(fact);
    }
    CheckFound::costs(FoundSetting::CgroupMovesWait)
        .seen(fact)
        .seen(release)
        .fix(Fix::Advice(ManualAdvice::FavorDynmods))
}

/// Tried on an emulated host with Linux 6.18: a slot after the irqchip waits 7 ms, and before it not at all.
pub(super) fn slot_waits(view: &AuditView) -> CheckFound {
    let release = view.host.fact(files::RELEASE);
    let kernel = match view.kernel() {
        Ok(kernel) => kernel,
        Err(_) => return CheckFound::unread(release),
    };
    if kernel < *GRACE_PERIODS.start() {
        return CheckFound::not_applicable(FoundSetting::SlotsWithoutDevices).seen(release);
    }
    if kernel > *GRACE_PERIODS.end() {
        return CheckFound::unknown(FoundSetting::SlotsUnknown).seen(release);
    }
    // The first vCPU makes a slot, too, where the processor virtualizes the APIC's page: then no order helps.
    let avic = view.switch(files::AVIC);
    let slots_first = view.vendor == Some(Vendor::Amd) && matches!(avic, Ok((false, _)));
    let advice = if slots_first { ManualAdvice::SlotsFirst } else { ManualAdvice::FewerIoeventfds };
    let found = CheckFound::costs(FoundSetting::SlotsWait).seen(release).fix(Fix::Advice(advice));
    match avic {
        Ok((_, avic)) => found.seen(avic),
        Err(_) => found,
    }
}
