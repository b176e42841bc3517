//! Pages: transparent huge pages, what KVM has mapped, who splits them.

use vmtax_events::setting::{Fact, Unknown, VmProcess, files};

use super::view::{View, chosen};
use super::vmm;
use super::{Advice, Fix, Found, Seen, Start, What};
use crate::remedy::{RemedyId, VmKind};

/// The last kernel of which it is known that it maps guest_memfd, and a TD's memory, at 4 KiB.
const LAST_AT_4K: (u32, u32) = (7, 3);

/// The file that decides for pages of 2 MiB: the one for that size, unless it leaves it to the one for all.
fn deciding(view: &View, for_2m: &str, for_all: &str) -> Fact<String> {
    let sized = view.host.fact(for_2m);
    match sized.value.as_deref() {
        Ok(text) if chosen(text) == Some("inherit") => view.host.fact(for_all),
        Err(Unknown::Missing) => view.host.fact(for_all),
        _ => sized,
    }
}

/// What is chosen in such a file, or why there is nothing to judge.
#[expect(clippy::result_large_err, reason = "the early end of a check, once for each")]
fn choice(fact: Fact<String>) -> Result<(String, Fact<String>), Found> {
    match &fact.value {
        Ok(text) => match chosen(text) {
            Some(word) => Ok((word.to_owned(), fact)),
            None => Err(Found::strange(fact)),
        },
        Err(Unknown::Missing) => Err(Found::not_applicable(What::NoThp).seen(fact)),
        Err(_) => Err(Found::unread(fact)),
    }
}

pub(super) fn thp_enabled(view: &View) -> Found {
    let fact = deciding(view, files::THP_2M, files::THP);
    if view.all_private() {
        return Found::not_applicable(What::AllPrivate).seen(fact);
    }
    let (word, fact) = match choice(fact) {
        Ok(found) => found,
        Err(found) => return found,
    };
    if word == "never" && view.all_vms(|vm| !vmm::kind(vm).is_private() && is_of_hugetlbfs(vm)) {
        return Found::not_applicable(What::AllOnHugetlbfs).seen(fact);
    }
    let path = fact.path.clone();
    match word.as_str() {
        "always" | "madvise" => Found::ok(What::Thp(word)).seen(fact),
        "never" => {
            Found::costs(What::ThpNever).seen(fact).fix(Fix::Write { path, value: "madvise" })
        }
        _ => Found::strange(fact),
    }
}

pub(super) fn thp_defrag(view: &View) -> Found {
    let fact = view.host.fact(files::THP_DEFRAG);
    if view.all_private() {
        return Found::not_applicable(What::AllPrivate).seen(fact);
    }
    // Kernels with transparent huge pages have both files.
    if fact.value == Err(Unknown::Missing) && view.host.text(files::THP).is_ok() {
        return Found::unread(fact);
    }
    let (word, fact) = match choice(fact) {
        Ok(found) => found,
        Err(found) => return found,
    };
    match word.as_str() {
        "always" | "defer" | "defer+madvise" | "madvise" => {
            Found::ok(What::ThpDefrag(word)).seen(fact)
        }
        "never" => Found::costs(What::ThpDefragNever)
            .seen(fact)
            .fix(Fix::Write { path: files::THP_DEFRAG.to_owned(), value: "madvise" }),
        _ => Found::strange(fact),
    }
}

/// Most of a VM's memory is of hugetlbfs, which transparent huge pages do not concern.
fn is_of_hugetlbfs(vm: &VmProcess) -> bool {
    let backing = vm.backing.value.as_ref();
    backing.is_ok_and(|backing| backing.resident > 0 && backing.hugetlb >= backing.resident / 2)
}

/// A VM's memory is shared and not of hugetlbfs: memfd or tmpfs.
fn is_shared(vm: &VmProcess) -> Option<bool> {
    let backing = vm.backing.value.as_ref().ok()?;
    Some(backing.shared > backing.resident / 2)
}

pub(super) fn thp_shmem(view: &View) -> Found {
    let fact = deciding(view, files::THP_SHMEM_2M, files::THP_SHMEM);
    if view.all_private() {
        return Found::not_applicable(What::AllPrivate).seen(fact);
    }
    let shared: Vec<Option<bool>> =
        view.vms.iter().filter(|vm| !vmm::kind(vm).is_private()).map(is_shared).collect();
    if !shared.contains(&Some(true)) {
        return if shared.contains(&None) || !view.complete {
            Found::unknown(What::SharedMemoryUnknown)
        } else {
            Found::not_applicable(What::NoSharedMemory)
        }
        .seen(fact);
    }
    let (word, fact) = match choice(fact) {
        Ok(found) => found,
        Err(found) => return found,
    };
    let path = fact.path.clone();
    match word.as_str() {
        "always" | "within_size" | "advise" | "force" => Found::ok(What::ThpShmem(word)).seen(fact),
        "never" | "deny" => {
            Found::costs(What::ThpShmemNever).seen(fact).fix(Fix::Write { path, value: "advise" })
        }
        _ => Found::strange(fact),
    }
}

pub(super) fn thp_backing(_: &View, vm: &VmProcess) -> Found {
    let kind = vmm::kind(vm);
    if kind.is_private() {
        return Found::not_applicable(What::PrivateBacking(kind));
    }
    let fact = vm.backing.clone().map(Seen::Backing);
    let Ok(backing) = vm.backing.value else { return Found::unread(fact) };
    if backing.resident == 0 {
        return Found::unknown(What::NoMemoryTouched).seen(fact);
    }
    if backing.large() >= backing.resident / 2 {
        return Found::ok(What::HugePages(backing)).seen(fact);
    }
    let found = Found::costs(What::FewHugePages(backing)).seen(fact);
    // Reserved pages need more memory than a host has that swaps its guests.
    if backing.swapped > 0 { found } else { found.fix(Fix::Vmm(Start::OnHugetlbfs)) }
}

/// Guest memory in the host's swap: each access of it waits for a disk.
pub(super) fn swapped(_: &View, vm: &VmProcess) -> Found {
    let fact = vm.backing.clone().map(|backing| Seen::Swap(backing.swapped));
    let Ok(backing) = vm.backing.value else { return Found::unread(fact) };
    match backing.swapped {
        0 => Found::ok(What::NotSwapped).seen(fact),
        bytes if bytes < backing.resident / 100 => Found::ok(What::NotSwapped).seen(fact),
        bytes => Found::costs(What::Swapped(bytes)).seen(fact).fix(Fix::Advice(Advice::LessMemory)),
    }
}

pub(super) fn mapped_pages(_: &View, vm: &VmProcess) -> Found {
    let fact = vm.mapped().map(Seen::Mapped);
    let kind = vmm::kind(vm);
    if kind.is_private() {
        return Found::not_applicable(What::SeePrivatePages(kind)).seen(fact);
    }
    let mapped = match vm.mapped().value {
        Ok(mapped) => mapped,
        Err(Unknown::Denied) => {
            return Found::unknown(What::DebugfsDenied).seen(fact);
        }
        Err(Unknown::Missing) => {
            return Found::unknown(What::DebugfsMissing).seen(fact);
        }
        Err(_) => return Found::unread(fact),
    };
    if mapped.total() == 0 {
        return Found::unknown(What::NothingMapped).seen(fact);
    }
    if mapped.large() >= mapped.total() / 2 {
        Found::ok(What::MappedLarge(mapped)).seen(fact)
    } else {
        Found::costs(What::MappedSmall(mapped)).seen(fact).fix(Fix::Vmm(Start::OnHugetlbfs))
    }
}

pub(super) fn private_pages(view: &View, vm: &VmProcess) -> Found {
    let kind = vmm::kind(vm);
    let release = view.host.fact(files::RELEASE);
    match kind {
        VmKind::Unknown => {
            return Found::unknown(What::PrivacyUnknown).seen(vmm::said(vm, String::new()));
        }
        kind if kind.is_private() || vm.guest_memfd => {}
        _ => return Found::not_applicable(What::NoPrivateMemory),
    }
    let fact = vm.mapped().map(Seen::Mapped);
    match vm.mapped().value {
        Ok(mapped) if mapped.total() > 0 && mapped.large() >= mapped.total() / 2 => {
            return Found::ok(What::PrivateLarge(kind)).seen(fact);
        }
        Ok(mapped) if mapped.total() > 0 => {
            return Found::costs(What::PrivateSmall(kind)).seen(fact).seen(release);
        }
        _ => {}
    }
    match view.kernel() {
        Ok(kernel) if kernel <= LAST_AT_4K => {
            Found::costs(What::PrivateSmallByKernel(kind)).seen(release).seen(fact)
        }
        Ok(_) => Found::unknown(What::PrivateUnknown(kind)).seen(release).seen(fact),
        Err(_) => Found::unread(release),
    }
}

/// Whether the host keeps processors for something that must not wait.
fn is_for_latency(view: &View) -> bool {
    view.host.fact(files::ISOLATED).value.is_ok_and(|cpus| !cpus.trim().is_empty())
}

pub(super) fn nx_huge_pages(view: &View) -> Found {
    let fact = match view.parameter(files::NX_HUGE_PAGES) {
        Ok(fact) => fact,
        Err(found) => return found,
    };
    let multihit = view.host.fact(files::ITLB_MULTIHIT);
    match (fact.value.as_deref(), multihit.value.as_deref()) {
        (Ok("N" | "0" | "off" | "never"), _) => Found::ok(What::NxOff).seen(fact),
        (Ok("Y" | "1" | "force"), Ok("Not affected")) => Found::costs(What::NxNeedless)
            .seen(fact)
            .seen(multihit)
            .fix(Fix::Write { path: files::NX_HUGE_PAGES.to_owned(), value: "off" }),
        // redhat-performance/tuned, pull request 363: executed huge pages are split while the guest runs, for about 100 µs.
        (Ok("Y" | "1" | "force"), Ok(_)) if is_for_latency(view) => Found::unknown(What::NxSpikes)
            .seen(fact)
            .seen(multihit)
            .seen(view.host.fact(files::ISOLATED)),
        (Ok("Y" | "1" | "force"), Ok(_)) => Found::ok(What::NxNeeded).seen(fact).seen(multihit),
        (Ok("Y" | "1" | "force"), Err(_)) => {
            Found::unknown(What::NxNeedUnknown).seen(fact).seen(multihit)
        }
        _ => Found::strange(fact),
    }
}

pub(super) fn ksm(view: &View) -> Found {
    let fact = view.host.fact(files::KSM_RUN);
    let sharing = view.host.fact(files::KSM_SHARING);
    match fact.value.as_deref() {
        Ok("0" | "2") => Found::ok(What::KsmOff).seen(fact),
        Ok("1") => Found::costs(What::Ksm).seen(fact).seen(sharing).remedy(RemedyId::KsmOff),
        Ok(_) => Found::strange(fact),
        Err(Unknown::Missing) => Found::not_applicable(What::NoKsm).seen(fact),
        Err(_) => Found::unread(fact),
    }
}
