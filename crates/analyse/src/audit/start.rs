//! What starting a VM waits for.

use vmtax_events::setting::{Fact, files};

use super::view::View;
use super::{Advice, Fix, Found, Seen, What};

/// KVM starts a thread for each VM (Linux arch/x86/kvm/mmu/mmu.c, kvm_mmu_post_init_vm), which joins the VMM's cgroup. The join waits
/// for a grace period of RCU unless cgroup2 favours moves, which it can from 6.0 on (kernel/cgroup/cgroup.c, cgroup_favor_dynmods). From 6.13 on the thread is one of the VMM's own, and starts with the first KVM_RUN; stable kernels
/// of 6.12 have that too.
const WAITS: std::ops::Range<(u32, u32)> = (6, 0)..(6, 12);
const FIRST_WITHOUT: (u32, u32) = (6, 13);

/// The option that makes moves between cgroups quick.
const OPTION: &str = "favordynmods";

/// Tried on an emulated host with Linux 6.1: KVM_CREATE_VM takes 0.285 ms with the option, and waits 11 ms without.
pub(super) fn cgroup_moves(view: &View) -> Found {
    let release = view.host.fact(files::RELEASE);
    let kernel = match view.kernel() {
        Ok(kernel) => kernel,
        Err(_) => return Found::unread(release),
    };
    if !WAITS.contains(&kernel) {
        let waits_perhaps = (WAITS.end..FIRST_WITHOUT).contains(&kernel);
        let found = if waits_perhaps {
            Found::unknown(What::StartsUnknown)
        } else {
            Found::not_applicable(What::StartsWithoutMove)
        };
        return found.seen(release);
    }
    // Then KVM starts no such thread.
    if view.host.text(files::NX_HUGE_PAGES) == Ok("never") {
        return Found::ok(What::CgroupMovesQuick).seen(view.host.fact(files::NX_HUGE_PAGES));
    }
    let mounts = match view.host.text(files::MOUNTS) {
        Ok(mounts) => mounts,
        Err(_) => return Found::unread(view.host.fact(files::MOUNTS)),
    };
    let mut options = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(2);
        (words.next() == Some("cgroup2")).then(|| words.next().unwrap_or_default())
    });
    let Some(options) = options.next() else {
        return Found::not_applicable(What::CgroupOne).seen(release);
    };
    let favours = options.split(',').any(|option| option == OPTION);
    let fact = Fact::new(files::MOUNTS, Ok(Seen::Favordynmods(favours)));
    if favours {
        return Found::ok(What::CgroupMovesQuick).seen(fact);
    }
    Found::costs(What::CgroupMovesWait)
        .seen(fact)
        .seen(release)
        .fix(Fix::Advice(Advice::FavorDynmods))
}
