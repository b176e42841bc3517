//! Pages: transparent huge pages, what KVM has mapped, who splits them.

use vmtax_events::setting::{Fact, Unknown, VmProcess, files};

use super::view::{AuditView, chosen};
use super::vmm;
use super::{CheckFound, Fix, FoundSetting, ManualAdvice, QemuStart, SeenSetting};
use crate::remedy::{RemedyId, VmKind};

/// The last kernel of which it is known that it maps guest_memfd, and a TD's memory, at 4 KiB.
const LAST_AT_4K: (u32, u32) = (7, 3);

/// The file that decides for pages of 2 MiB: the one for that size, unless it leaves it to the one for all.
fn deciding(view: &AuditView, for_2m: &str, for_all: &str) -> Fact<String> {
    let sized = view.host.fact(for_2m);
    match sized.value.as_deref() {
        Ok(text) if chosen(text) == Some("inherit") => view.host.fact(for_all),
        Err(Unknown::Missing) => view.host.fact(for_all),
        _ => sized,
    }
}

/// What is chosen in such a file, or why there is nothing to judge.
#[expect(clippy::result_large_err, reason = "the early end of a check, once for each")]
fn choice(fact: Fact<String>) -> Result<(String, Fact<String>), CheckFound> {
    match &fact.value {
        Ok(text) => match chosen(text) {
            Some(word) => Ok((word.to_owned(), fact)),
            None => Err(CheckFound::strange(fact)),
        },
        Err(Unknown::Missing) => Err(CheckFound::not_applicable(FoundSetting::NoThp).seen(fact)),
        Err(_) => Err(CheckFound::unread(fact)),
    }
}

pub(super) fn thp_enabled(view: &AuditView) -> CheckFound {
    let fact = deciding(view, files::THP_2M, files::THP);
    if view.all_private() {
        return CheckFound::not_applicable(FoundSetting::AllPrivate).seen(fact);
    }
    let (word, fact) = match choice(fact) {
        Ok(found) => found,
        Err(found) => return found,
    };
    if word == "never" && view.all_vms(|vm| !vmm::kind(vm).is_private() && is_of_hugetlbfs(vm)) {
        return CheckFound::not_applicable(FoundSetting::AllOnHugetlbfs).seen(fact);
    }
    let path = fact.path.clone();
    match word.as_str() {
        "always" | "madvise" => CheckFound::ok(FoundSetting::Thp(word)).seen(fact),
        "never" => CheckFound::costs(FoundSetting::ThpNever)
            .seen(fact)
            .fix(Fix::Write { path, value: "madvise" }),
        _ => CheckFound::strange(fact),
    }
}

pub(super) fn thp_defrag(view: &AuditView) -> CheckFound {
    let fact = view.host.fact(files::THP_DEFRAG);
    if view.all_private() {
        return CheckFound::not_applicable(FoundSetting::AllPrivate).seen(fact);
    }
    // Kernels with transparent huge pages have both files.
    if fact.value == Err(Unknown::Missing) && view.host.text(files::THP).is_ok() {
        return CheckFound::unread(fact);
    }
    let (word, fact) = match choice(fact) {
        Ok(found) => found,
        Err(found) => return found,
    };
    match word.as_str() {
        "always" | "defer" | "defer+madvise" | "madvise" => {
            CheckFound::ok(FoundSetting::ThpDefrag(word)).seen(fact)
        }
        "never" => CheckFound::costs(FoundSetting::ThpDefragNever)
            .seen(fact)
            .fix(Fix::Write { path: files::THP_DEFRAG.to_owned(), value: "madvise" }),
        _ => CheckFound::strange(fact),
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

pub(super) fn thp_shmem(view: &AuditView) -> CheckFound {
    let fact = deciding(view, files::THP_SHMEM_2M, files::THP_SHMEM);
    if view.all_private() {
        return CheckFound::not_applicable(FoundSetting::AllPrivate).seen(fact);
    }
    let shared: Vec<Option<bool>> =
        view.vms.iter().filter(|vm| !vmm::kind(vm).is_private()).map(is_shared).collect();
    if !shared.contains(&Some(true)) {
        return if shared.contains(&None) || !view.complete {
            CheckFound::unknown(FoundSetting::SharedMemoryUnknown)
        } else {
            CheckFound::not_applicable(FoundSetting::NoSharedMemory)
        }
        .seen(fact);
    }
    let (word, fact) = match choice(fact) {
        Ok(found) => found,
        Err(found) => return found,
    };
    let path = fact.path.clone();
    match word.as_str() {
        "always" | "within_size" | "advise" | "force" => {
            CheckFound::ok(FoundSetting::ThpShmem(word)).seen(fact)
        }
        "never" | "deny" => CheckFound::costs(FoundSetting::ThpShmemNever)
            .seen(fact)
            .fix(Fix::Write { path, value: "advise" }),
        _ => CheckFound::strange(fact),
    }
}

pub(super) fn thp_backing(_: &AuditView, vm: &VmProcess) -> CheckFound {
    let kind = vmm::kind(vm);
    if kind.is_private() {
        return CheckFound::not_applicable(FoundSetting::PrivateBacking(kind));
    }
    let fact = vm.backing.clone().map(SeenSetting::Backing);
    let Ok(backing) = vm.backing.value else { return CheckFound::unread(fact) };
    if backing.resident == 0 {
        return CheckFound::unknown(FoundSetting::NoMemoryTouched).seen(fact);
    }
    if backing.large() >= backing.resident / 2 {
        return CheckFound::ok(FoundSetting::HugePages(backing)).seen(fact);
    }
    let found = CheckFound::costs(FoundSetting::FewHugePages(backing)).seen(fact);
    // Reserved pages need more memory than a host has that swaps its guests.
    if backing.swapped > 0 { found } else { found.fix(Fix::Vmm(QemuStart::OnHugetlbfs)) }
}

/// Guest memory in the host's swap: each access of it waits for a disk.
pub(super) fn swapped(_: &AuditView, vm: &VmProcess) -> CheckFound {
    let fact = vm.backing.clone().map(|backing| SeenSetting::Swap(backing.swapped));
    let Ok(backing) = vm.backing.value else { return CheckFound::unread(fact) };
    match backing.swapped {
        0 => CheckFound::ok(FoundSetting::NotSwapped).seen(fact),
        bytes if bytes < backing.resident / 100 => {
            CheckFound::ok(FoundSetting::NotSwapped).seen(fact)
        }
        bytes => CheckFound::costs(FoundSetting::Swapped(bytes))
            .seen(fact)
            .fix(Fix::Advice(ManualAdvice::LessMemory)),
    }
}

pub(super) fn mapped_pages(_: &AuditView, vm: &VmProcess) -> CheckFound {
    let fact = vm.mapped().map(SeenSetting::Mapped);
    let kind = vmm::kind(vm);
    if kind.is_private() {
        return CheckFound::not_applicable(FoundSetting::SeePrivatePages(kind)).seen(fact);
    }
    let mapped = match vm.mapped().value {
        Ok(mapped) => mapped,
        Err(Unknown::Denied) => {
            return CheckFound::unknown(FoundSetting::DebugfsDenied).seen(fact);
        }
        Err(Unknown::Missing) => {
            return CheckFound::unknown(FoundSetting::DebugfsMissing).seen(fact);
        }
        Err(_) => return CheckFound::unread(fact),
    };
    if mapped.total() == 0 {
        return CheckFound::unknown(FoundSetting::NothingMapped).seen(fact);
    }
    if mapped.large() >= mapped.total() / 2 {
        CheckFound::ok(FoundSetting::MappedLarge(mapped)).seen(fact)
    } else {
        CheckFound::costs(FoundSetting::MappedSmall(mapped))
            .seen(fact)
            .fix(Fix::Vmm(QemuStart::OnHugetlbfs))
    }
}

pub(super) fn private_pages(view: &AuditView, vm: &VmProcess) -> CheckFound {
    let kind = vmm::kind(vm);
    let release = view.host.fact(files::RELEASE);
    match kind {
        VmKind::Unknown => {
            return CheckFound::unknown(FoundSetting::PrivacyUnknown)
                .seen(vmm::said(vm, String::new()));
        }
        kind if kind.is_private() || vm.guest_memfd => {}
        _ => return CheckFound::not_applicable(FoundSetting::NoPrivateMemory),
    }
    let fact = vm.mapped().map(SeenSetting::Mapped);
    match vm.mapped().value {
        Ok(mapped) if mapped.total() > 0 && mapped.large() >= mapped.total() / 2 => {
            return CheckFound::ok(FoundSetting::PrivateLarge(kind)).seen(fact);
        }
        Ok(mapped) if mapped.total() > 0 => {
            return CheckFound::costs(FoundSetting::PrivateSmall(kind)).seen(fact).seen(release);
        }
        _ => {}
    }
    match view.kernel() {
        Ok(kernel) if kernel <= LAST_AT_4K => {
            CheckFound::costs(FoundSetting::PrivateSmallByKernel(kind)).seen(release).seen(fact)
        }
        Ok(_) => CheckFound::unknown(FoundSetting::PrivateUnknown(kind)).seen(release).seen(fact),
        Err(_) => CheckFound::unread(release),
    }
}

/// Whether the host keeps processors for something that must not wait.
fn is_for_latency(view: &AuditView) -> bool {
    view.host.fact(files::ISOLATED).value.is_ok_and(|cpus| !cpus.trim().is_empty())
}

pub(super) fn nx_huge_pages(view: &AuditView) -> CheckFound {
    let fact = match view.parameter(files::NX_HUGE_PAGES) {
        Ok(fact) => fact,
        Err(found) => return found,
    };
    let multihit = view.host.fact(files::ITLB_MULTIHIT);
    match (fact.value.as_deref(), multihit.value.as_deref()) {
        (Ok("N" | "0" | "off" | "never"), _) => CheckFound::ok(FoundSetting::NxOff).seen(fact),
        (Ok("Y" | "1" | "force"), Ok("Not affected")) => {
            CheckFound::costs(FoundSetting::NxNeedless)
                .seen(fact)
                .seen(multihit)
                .fix(Fix::Write { path: files::NX_HUGE_PAGES.to_owned(), value: "off" })
        }
        // redhat-performance/tuned, pull request 363: executed huge pages are split while the guest runs, for about 100 µs.
        (Ok("Y" | "1" | "force"), Ok(_)) if is_for_latency(view) => {
            CheckFound::unknown(FoundSetting::NxSpikes)
                .seen(fact)
                .seen(multihit)
                .seen(view.host.fact(files::ISOLATED))
        }
        (Ok("Y" | "1" | "force"), Ok(_)) => {
            CheckFound::ok(FoundSetting::NxNeeded).seen(fact).seen(multihit)
        }
        (Ok("Y" | "1" | "force"), Err(_)) => {
            CheckFound::unknown(FoundSetting::NxNeedUnknown).seen(fact).seen(multihit)
        }
        _ => CheckFound::strange(fact),
    }
}

pub(super) fn ksm(view: &AuditView) -> CheckFound {
    let fact = view.host.fact(files::KSM_RUN);
    let sharing = view.host.fact(files::KSM_SHARING);
    match fact.value.as_deref() {
        Ok("0" | "2") => CheckFound::ok(FoundSetting::KsmOff).seen(fact),
        Ok("1") => {
            CheckFound::costs(FoundSetting::Ksm).seen(fact).seen(sharing).remedy(RemedyId::KsmOff)
        }
        Ok(_) => CheckFound::strange(fact),
        Err(Unknown::Missing) => CheckFound::not_applicable(FoundSetting::NoKsm).seen(fact),
        Err(_) => CheckFound::unread(fact),
    }
}
