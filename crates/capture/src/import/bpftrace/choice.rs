//! Which map of a dump has the counts by exit reason, and which vendor's reasons its numbers are.

use std::collections::BTreeMap;

use vmtax_events::{Isa, svm};

use super::line::{HIGHEST_VMX, ReasonCode, VMX_FLAGS};
use crate::Error;
use crate::import::spelling::vendor as vendor_of_names;

/// Parts of names of maps that hold times or sizes, not counts.
const NO_COUNTS: &[&str] = &[
    "ns", "us", "ms", "time", "lat", "latency", "dur", "duration", "start", "ts", "avg", "max",
    "min", "bytes",
];

/// Parts of names of maps whose keys are not reasons.
const NO_REASONS: &[&str] =
    &["cpu", "cpus", "tid", "tids", "pid", "pids", "vcpu", "vcpus", "comm", "vm", "vms", "thread"];
/// Reasons of VMX that guests on SVM do not have: there they are #GP and #PF, which KVM does not intercept with
/// nested paging.
const VMX_ONLY: &[u32] = &[77, 78];

/// The map of counts by reason. If there are several candidates, the one with a name that says so.
pub(super) fn choose<Map>(
    mut candidates: Vec<(Vec<u8>, String, Map)>,
    left_out: &mut Vec<String>,
) -> Result<(String, Map), Error> {
    if candidates.is_empty() {
        let problem = if left_out.is_empty() {
            "no line of the form @map[reason]: count".to_owned()
        } else {
            format!("no map of counts by exit reason (there is {})", left_out.join(", "))
        };
        return Err(Error::malformed(0, "bpftrace dump", problem));
    }
    if candidates.len() > 1 {
        let named = candidates.iter().filter(|(name, ..)| names_reason(name)).count();
        if named != 1 {
            let names: Vec<String> = candidates.into_iter().map(|(_, shown, _)| shown).collect();
            let problem = format!(
                "the maps {} may all be counts by exit reason: keep one of them",
                names.join(", ")
            );
            return Err(Error::Unsupported { offset: 0, item: "bpftrace dump", problem });
        }
        let (of_reason, others): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|(name, ..)| names_reason(name));
        left_out.extend(others.into_iter().map(|(_, shown, _)| shown));
        candidates = of_reason;
    }
    let chosen = candidates.pop().map(|(_, shown, map)| (shown, map));
    chosen.ok_or_else(|| Error::malformed(0, "bpftrace dump", "no map"))
}

/// The vendor of numeric reasons, if only one vendor has them.
pub(super) fn vendor(
    counts: &BTreeMap<ReasonCode, u64>,
    notes: &mut Vec<String>,
) -> Result<Isa, Error> {
    let bare = || {
        counts
            .keys()
            .filter_map(|code| if let ReasonCode::Bare(raw) = code { Some(*raw) } else { None })
    };
    let names = || {
        counts
            .keys()
            .filter_map(|code| if let ReasonCode::Named(name) = code { Some(*name) } else { None })
    };
    let of_names = vendor_of_names(names(), Isa::Unknown)?;
    if bare().next().is_none() {
        return Ok(of_names);
    }
    if of_names != Isa::Unknown {
        return Ok(of_names);
    }
    let of_vmx = |raw: &u32| VMX_ONLY.contains(raw) || raw & VMX_FLAGS != 0 && *raw != u32::MAX;
    let of_svm = |raw: &u32| *raw > HIGHEST_VMX && svm::name(*raw).is_some();
    let (isa, code) = match (bare().find(of_vmx), bare().find(of_svm)) {
        (Some(code), None) if bare().all(|raw| raw <= HIGHEST_VMX || of_vmx(&raw)) => {
            (Isa::Vmx, code)
        }
        (None, Some(code)) => (Isa::Svm, code),
        _ => return Err(Error::Vendor),
    };
    let vendor = if isa == Isa::Vmx { "VMX (Intel)" } else { "SVM (AMD)" };
    notes.push(format!(
        "numeric exit reasons were read as {vendor} reasons, because the other vendor has no reason {code}; --isa overrides this"
    ));
    Ok(isa)
}

/// Whether a map's name means that its keys are exit reasons.
fn names_reason(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    name.split(|&b| b == b'_')
        .any(|part| matches!(part, b"reason" | b"reasons" | b"exit" | b"exits"))
}

/// Whether a map's name means that it has times or sizes, or that its keys are not reasons.
pub(super) fn names_other(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    !names_reason(&name)
        && name
            .split(|&b| b == b'_')
            .any(|part| NO_COUNTS.iter().chain(NO_REASONS).any(|n| n.as_bytes() == part))
        || name.split(|&b| b == b'_').any(|part| NO_COUNTS.iter().any(|n| n.as_bytes() == part))
}
