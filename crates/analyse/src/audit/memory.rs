//! Pages: transparent huge pages, what KVM has mapped, who splits them.

use vmtax_events::setting::{Fact, Unknown, VmProcess, files};

use super::view::{View, chosen, percent, size};
use super::vmm;
use super::{Fix, Found};
use crate::remedy::VmKind;

/// The last kernel of which it is known that it maps guest_memfd, and a TD's memory, at 4 KiB.
const LAST_AT_4K: (u32, u32) = (7, 3);

const HUGETLB: &str = "pages reserved on the host first (sysctl vm.nr_hugepages = its memory / 2 MiB), then -object memory-backend-file,id=mem,size=...,mem-path=/dev/hugepages,share=on \
                       -machine memory-backend=mem";

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
fn choice(fact: Fact<String>) -> Result<(String, Fact<String>), Found> {
    match &fact.value {
        Ok(text) => match chosen(text) {
            Some(word) => Ok((word.to_owned(), fact)),
            None => Err(Found::strange(fact)),
        },
        Err(Unknown::Missing) => Err(Found::not_applicable(
            "this kernel has no transparent huge pages; hugetlbfs gives large ones",
        )
        .seen(fact)),
        Err(_) => Err(Found::unread(fact)),
    }
}

const PRIVATE: &str =
    "all VMs have private memory, which comes from guest_memfd and never uses these pages";

pub(super) fn thp_enabled(view: &View) -> Found {
    let fact = deciding(view, files::THP_2M, files::THP);
    if view.all_private() {
        return Found::not_applicable(PRIVATE).seen(fact);
    }
    let (word, fact) = match choice(fact) {
        Ok(found) => found,
        Err(found) => return found,
    };
    if word == "never" && view.all_vms(|vm| !vmm::kind(vm).is_private() && is_of_hugetlbfs(vm)) {
        let what = "the memory of all VMs is on hugetlbfs, already in large pages";
        return Found::not_applicable(what).seen(fact);
    }
    let path = fact.path.clone();
    match word.as_str() {
        "always" | "madvise" => Found::ok(format!("transparent huge pages: {word}")).seen(fact),
        "never" => Found::costs("guest memory gets no transparent huge pages")
            .seen(fact)
            .fix(Fix::Write { path, value: "madvise" }),
        _ => Found::strange(fact),
    }
}

pub(super) fn thp_defrag(view: &View) -> Found {
    let fact = view.host.fact(files::THP_DEFRAG);
    if view.all_private() {
        return Found::not_applicable(PRIVATE).seen(fact);
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
            Found::ok(format!("memory is compacted for huge pages: {word}")).seen(fact)
        }
        "never" => Found::costs("a fault gets a huge page only if one is free")
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
        return Found::not_applicable(PRIVATE).seen(fact);
    }
    let shared: Vec<Option<bool>> =
        view.vms.iter().filter(|vm| !vmm::kind(vm).is_private()).map(is_shared).collect();
    if !shared.contains(&Some(true)) {
        return if shared.contains(&None) || !view.complete {
            Found::unknown(
                "whether a VM has shared memory (memfd) is not known: some could not be read",
            )
        } else {
            Found::not_applicable("no running VM has shared memory (memfd)")
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
            Found::ok(format!("transparent huge pages of shared memory: {word}")).seen(fact)
        }
        "never" | "deny" => {
            Found::costs("a VM's shared memory (memfd) gets no transparent huge pages")
                .seen(fact)
                .fix(Fix::Write { path, value: "advise" })
        }
        _ => Found::strange(fact),
    }
}

pub(super) fn thp_backing(_: &View, vm: &VmProcess) -> Found {
    let kind = vmm::kind(vm);
    if kind.is_private() {
        return Found::not_applicable(format!(
            "private memory ({}) comes from guest_memfd",
            kind.name()
        ));
    }
    let backing = match &vm.backing.value {
        Ok(backing) => *backing,
        Err(why) => return Found::unread(Fact::new(vm.backing.path.clone(), Err(why.clone()))),
    };
    let words = format!(
        "AnonHugePages {}, ShmemPmdMapped {}, hugetlbfs {}, resident {}",
        size(backing.anon_thp),
        size(backing.shmem_thp),
        size(backing.hugetlb),
        size(backing.resident),
    );
    let fact = Fact::new(vm.backing.path.clone(), Ok(words));
    if backing.resident == 0 {
        return Found::unknown("the VM has touched no memory yet").seen(fact);
    }
    let share = percent(backing.large(), backing.resident);
    if backing.large() >= backing.resident / 2 {
        return Found::ok(format!("{share} of the memory is in huge pages")).seen(fact);
    }
    let shared = backing.shared > backing.resident / 2;
    let why = match (backing.not_eligible > backing.resident / 2, shared) {
        (true, true) => "; the kernel does not allow them for most of it (shared memory)",
        (true, false) => "; the kernel does not allow them for most of it",
        _ => "",
    };
    Found::costs(format!("only {share} of the memory is in huge pages{why}"))
        .seen(fact)
        .fix(Fix::Vmm(HUGETLB))
}

fn mapped_fact(vm: &VmProcess) -> Fact<String> {
    vm.mapped().map(|mapped| {
        let [k4, m2, g1] = mapped.bytes().map(size);
        format!("4K {k4}, 2M {m2}, 1G {g1}")
    })
}

pub(super) fn mapped_pages(_: &View, vm: &VmProcess) -> Found {
    let fact = mapped_fact(vm);
    let kind = vmm::kind(vm);
    if kind.is_private() {
        return Found::not_applicable(format!(
            "private memory ({}): see private-pages",
            kind.name()
        ))
        .seen(fact);
    }
    let mapped = match vm.mapped().value {
        Ok(mapped) => mapped,
        Err(Unknown::Denied) => {
            return Found::unknown("KVM's counters are in debugfs, which only root may read")
                .seen(fact);
        }
        Err(Unknown::Missing) => {
            let what = "KVM's counters are missing: debugfs is not mounted, or the kernel is older than 5.15";
            return Found::unknown(what).seen(fact);
        }
        Err(_) => return Found::unread(fact),
    };
    if mapped.total() == 0 {
        return Found::unknown("nothing is mapped, or KVM uses shadow paging").seen(fact);
    }
    let share = percent(mapped.large(), mapped.total());
    if mapped.large() >= mapped.total() / 2 {
        Found::ok(format!("{share} is mapped in pages of 2M and 1G")).seen(fact)
    } else {
        let what = format!("only {share} is mapped in pages of 2M and 1G, the rest in 4K");
        Found::costs(what).seen(fact).fix(Fix::Vmm(HUGETLB))
    }
}

pub(super) fn private_pages(view: &View, vm: &VmProcess) -> Found {
    let kind = vmm::kind(vm);
    let release = view.host.fact(files::RELEASE);
    match kind {
        VmKind::Unknown => {
            let what =
                "whether the VM has private memory is in its command line, which cannot be read";
            return Found::unknown(what).seen(vmm::said(vm, ""));
        }
        kind if kind.is_private() || vm.guest_memfd => {}
        _ => return Found::not_applicable("the VM has no private memory (TDX, SEV-SNP)"),
    }
    let fact = mapped_fact(vm);
    let kind = kind.name();
    match vm.mapped().value {
        Ok(mapped) if mapped.total() > 0 && mapped.large() >= mapped.total() / 2 => {
            return Found::ok(format!("{kind}: most of it is mapped in pages of 2M and 1G"))
                .seen(fact);
        }
        Ok(mapped) if mapped.total() > 0 => {
            let what = format!(
                "{kind}: most of it is mapped in 4K; no setting changes that (mainline Linux up to 7.3 maps \
                 private memory so), and THP does not"
            );
            return Found::costs(what).seen(fact).seen(release);
        }
        _ => {}
    }
    match view.kernel() {
        Ok(kernel) if kernel <= LAST_AT_4K => {
            let what = format!(
                "{kind}: mainline Linux up to 7.3 maps private memory at 4K; no setting changes that, and THP \
                 does not"
            );
            Found::costs(what).seen(release).seen(fact)
        }
        Ok(_) => {
            let what = format!(
                "{kind}: how this kernel maps private memory is not known (known: up to 7.3)"
            );
            Found::unknown(what).seen(release).seen(fact)
        }
        Err(_) => Found::unread(release),
    }
}

pub(super) fn nx_huge_pages(view: &View) -> Found {
    let fact = match view.parameter(files::NX_HUGE_PAGES) {
        Ok(fact) => fact,
        Err(found) => return found,
    };
    let multihit = view.host.fact(files::ITLB_MULTIHIT);
    match (fact.value.as_deref(), multihit.value.as_deref()) {
        (Ok("N" | "0" | "off" | "never"), _) => Found::ok("executable huge pages stay whole").seen(fact),
        (Ok("Y" | "1" | "force"), Ok("Not affected")) => {
            Found::costs("KVM splits huge pages that guests execute, to mitigate an erratum that this processor does not have")
                .seen(fact)
                .seen(multihit)
                .fix(Fix::Write { path: files::NX_HUGE_PAGES.to_owned(), value: "off" })
        }
        (Ok("Y" | "1" | "force"), Ok(_)) => {
            Found::ok("KVM splits huge pages that guests execute, as this processor needs").seen(fact).seen(multihit)
        }
        (Ok("Y" | "1" | "force"), Err(_)) => {
            Found::unknown("it is unknown whether the processor needs it").seen(fact).seen(multihit)
        }
        _ => Found::strange(fact),
    }
}

pub(super) fn ksm(view: &View) -> Found {
    let fact = view.host.fact(files::KSM_RUN);
    let sharing = view.host.fact(files::KSM_SHARING);
    match fact.value.as_deref() {
        Ok("0" | "2") => Found::ok("same pages are not merged").seen(fact),
        Ok("1") => Found::costs(
            "KSM merges pages of VMs: it splits huge pages, and a write to a merged page faults",
        )
        .seen(fact)
        .seen(sharing)
        .remedy("ksm-off"),
        Ok(_) => Found::strange(fact),
        Err(Unknown::Missing) => Found::not_applicable("this kernel cannot merge pages").seen(fact),
        Err(_) => Found::unread(fact),
    }
}
