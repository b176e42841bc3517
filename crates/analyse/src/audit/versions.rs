//! Versions, and what the processor suffers from. Little of it can be judged from files.

use std::collections::BTreeSet;

use vmtax_events::setting::{Fact, Unknown, files};

use super::view::View;
use super::vmm;
use super::{Fix, Found};
use crate::remedy::VmKind;

/// Mainline's first kernel that runs TDs, and SEV-SNP guests.
const FIRST_TDX: (u32, u32) = (6, 16);
const FIRST_SNP: (u32, u32) = (6, 11);

pub(super) fn kernel(view: &View) -> Found {
    let fact = view.host.fact(files::RELEASE);
    let kernel = match view.kernel() {
        Ok(kernel) => kernel,
        Err(_) => return Found::unread(fact),
    };
    let kinds = view.vms.iter().map(vmm::kind);
    let needed = kinds.filter_map(|kind| match kind {
        VmKind::Tdx => Some((FIRST_TDX, "TDX")),
        VmKind::Snp => Some((FIRST_SNP, "SEV-SNP")),
        _ => None,
    });
    match needed.max() {
        Some((first, name)) if kernel < first => {
            let what = format!(
                "{name} came to mainline Linux with {}.{}: this kernel has a backport, to which these checks may not apply",
                first.0, first.1
            );
            Found::unknown(what).seen(fact)
        }
        Some((_, name)) => Found::ok(format!("has {name} as mainline Linux does")).seen(fact),
        None if !view.complete => Found::unknown(
            "it is unknown whether a VM needs a certain kernel: some could not be read",
        )
        .seen(fact),
        None => Found::not_applicable(
            "no running VM needs a certain kernel; no file shows whether there is a better one",
        )
        .seen(fact),
    }
}

pub(super) fn microcode(view: &View) -> Found {
    let old = view.host.fact(files::OLD_MICROCODE);
    let info = view.host.fact(files::CPUINFO);
    let revisions: Result<BTreeSet<String>, Unknown> = info
        .value
        .as_ref()
        .map(|info| {
            let of = |line: &str| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == "microcode").then(|| value.trim().to_owned())
            };
            info.lines().filter_map(of).collect()
        })
        .map_err(Clone::clone);
    let words: Vec<String> = revisions.iter().flatten().cloned().collect();
    let fact =
        Fact::new(files::CPUINFO, revisions.map(|_| format!("microcode {}", words.join(", "))));
    let update =
        Fix::Advice("install the distribution's microcode package, or a newer firmware, and boot");
    if words.len() > 1 {
        return Found::costs(
            "processors have different microcode: an update was applied to some of them",
        )
        .seen(fact)
        .fix(update);
    }
    match old.value.as_deref() {
        Ok("Not affected") => {
            Found::ok("not older than the version known to the kernel").seen(old).seen(fact)
        }
        Ok(text) if text.starts_with("Vulnerable") => {
            Found::costs("older than the version known to the kernel")
                .seen(old)
                .seen(fact)
                .fix(update)
        }
        Ok(text) if text.starts_with("Unknown") => {
            Found::not_applicable("the host is a VM itself: its microcode is its host's").seen(old)
        }
        Ok(_) => Found::strange(old),
        Err(Unknown::Missing) => Found::unknown(
            "this kernel does not show whether there is a newer one (Linux 6.16 does)",
        )
        .seen(fact),
        Err(_) => Found::unread(old),
    }
}

pub(super) fn tdx_module(view: &View) -> Found {
    // The module has the parameter where it was built for TDs: CONFIG_KVM_INTEL_TDX, which needs CONFIG_INTEL_TDX_HOST.
    let fact = view.host.fact(files::TDX);
    if fact.value == Err(Unknown::Missing) && view.host.text(files::PREEMPTION_TIMER).is_ok() {
        return Found::not_applicable(
            "this kernel cannot run TDs: it was built without CONFIG_INTEL_TDX_HOST or CONFIG_KVM_INTEL_TDX",
        )
        .seen(fact);
    }
    match view.switch(files::TDX) {
        Ok((true, _)) => {}
        Ok((false, fact)) => return Found::not_applicable("this host runs no TDs").seen(fact),
        Err(found) => return found,
    }
    let fact = view.host.fact(files::TDX_MODULE);
    match fact.value {
        Ok(_) => Found::unknown(
            "compare it with Intel's releases of the TDX module: no file shows the latest version",
        )
        .seen(fact),
        Err(Unknown::Missing) => Found::unknown(
            "this kernel does not show its version; dmesg | grep -i 'tdx module' may",
        )
        .seen(fact),
        Err(_) => Found::unread(fact),
    }
}

pub(super) fn snp_firmware(view: &View) -> Found {
    match view.switch(files::SEV_SNP) {
        Ok((true, fact)) => Found::unknown(
            "no file shows its version; snphost ok, or dmesg | grep -i 'sev api', does",
        )
        .seen(fact),
        Ok((false, fact)) => Found::not_applicable("this host runs no SEV-SNP guests").seen(fact),
        Err(found) => found,
    }
}

/// Reported and not judged: they are paid for safety.
pub(super) fn mitigations(view: &View) -> Found {
    let facts = view.host.matching(files::VULNERABILITIES);
    let mut mitigated = 0;
    for fact in &facts {
        match &fact.value {
            Ok(text) => mitigated += usize::from(text.contains("Mitigation")),
            Err(Unknown::Missing) => {
                return Found::unknown("this kernel does not list the processor's vulnerabilities")
                    .seen(fact.clone());
            }
            Err(_) => return Found::unread(fact.clone()),
        }
    }
    let fact =
        Fact::new(files::VULNERABILITIES, Ok(format!("{mitigated} of {} mitigated", facts.len())));
    Found::ok("recorded, because they must be equal in comparisons").seen(fact)
}
