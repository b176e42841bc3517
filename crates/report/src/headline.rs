//! The findings of a report as sentences, shared by the renderers that people read.
//!
//! A sentence claims a time only where exits are timed, and tells parts apart only where the
//! recording could ([`vmtax_events::Coverage`]).

pub(crate) mod lab;

use std::collections::{BTreeMap, BTreeSet};

use vmtax_analyse::ledger::VmLoss;
use vmtax_analyse::vm_facts::EncryptedBy;
use vmtax_analyse::{Ledger, ledger, table, vm_facts};
use vmtax_events::{Cause, Detail, DetailKind, ExitKey, Level, NO_VCPU, Reason, Tally};

use crate::numbers::{count, counted, duration, percent, share};
use crate::{Document, losses, names, numbers, operations};

/// At most this many causes get a sentence.
const CAUSES: usize = 4;
/// VMs beside the worst that are named.
const OTHERS: usize = 4;
/// Threads that are named for having had the processors.
const TAKERS: usize = 3;
/// A cause below this share is not worth one, unless it is the first.
const WORTH_A_SENTENCE: f64 = 0.01;

/// The headline: what the VM lost, to what, and what the numbers do not say.
pub fn sentences(doc: &Document) -> Vec<String> {
    let mut said = findings(doc);
    said.extend(notes(doc));
    said
}

/// What the VM lost, and to what.
pub fn findings(doc: &Document) -> Vec<String> {
    let ledger = &doc.ledger;
    if let Some(operations) = doc.operations.as_ref().filter(|o| !o.rows.is_empty()) {
        let mut said = lab::sentences(operations);
        said.extend(nested(doc));
        return said;
    }
    let total = ledger.total();
    if total.count == 0 {
        return vec!["The recording holds no VM exits.".to_owned()];
    }
    // What the recording lacks decides what its counts mean.
    let mut said = not_recorded(ledger);
    // What costs most comes first.
    let waiting = contention(ledger, &total);
    let exits = tax(ledger, &total).into_iter().chain(others(ledger, &total));
    if waiting_leads(ledger) {
        said.extend(waiting.into_iter().chain(exits));
    } else {
        said.extend(exits.chain(waiting));
    }
    said.push(extent(ledger, &total));
    said.extend(encrypted(ledger));
    said.extend(causes(ledger, &total));
    said.extend(idle(ledger, &total));
    said.extend(nested(doc));
    said
}

/// How to read the numbers: what the recording could not see, what is missing.
pub fn notes(doc: &Document) -> Vec<String> {
    let ledger = &doc.ledger;
    let total = ledger.total();
    let mut said = if total.count == 0 { not_recorded(ledger) } else { Vec::new() };
    said.extend(limits(ledger, &total));
    said.extend(ledger.losses.notes.iter().map(|note| names::printable(note)));
    said.extend(losses::too_low("Counts", ledger));
    said
}

/// What the recording is missing, as its importer says.
fn not_recorded(ledger: &Ledger) -> Vec<String> {
    ledger.losses.missing.iter().map(|sentence| names::printable(sentence)).collect()
}

fn tax(ledger: &Ledger, total: &Tally) -> Option<String> {
    if total.timed == 0 {
        return None;
    }
    let worst = worst(ledger);
    let time = worst.map_or_else(|| ledger.time_total(), |worst| worst.time);
    let base = ledger::running_ns(&time);
    let lost = percent(ledger::tax(&time)?);
    let part = |ns: u64| percent(share(ns, base).unwrap_or(0.0));
    let coverage = ledger.recording.coverage;
    let mut parts = Vec::new();
    if coverage.userspace {
        parts.push(format!("{} in the kernel", part(time.exit_kernel_ns)));
        parts.push(format!("{} in the VMM", part(time.exit_user_ns)));
    } else {
        parts.push(format!("{} in the kernel or the VMM", part(time.exit_kernel_ns)));
    }
    let who = match (worst, vms(ledger).len()) {
        (Some(worst), _) => format!(
            "VM {} lost {lost} of its running time to exits, the worst of {} VMs",
            names::vm(&ledger.recording, worst.vm),
            count(ledger.vms_by_loss().len() as u64)
        ),
        (None, 0 | 1) => format!("The VM lost {lost} of its running time to exits"),
        // There are more than are followed: their number is not that of the host's VMs.
        (None, n) => format!(
            "The {}{} VMs lost {lost} of their running time to exits",
            if are_capped(ledger) { "first " } else { "" },
            count(n as u64)
        ),
    };
    Some(format!("{who}: {}.", parts.join(", ")))
}

/// The VM that lost most, where there are several and all are followed.
pub(crate) fn worst(ledger: &Ledger) -> Option<VmLoss> {
    let all = ledger.vms_by_loss();
    (all.len() > 1 && !are_capped(ledger)).then(|| all[0])
}

/// What the VMs beside the worst lost.
fn others(ledger: &Ledger, total: &Tally) -> Option<String> {
    worst(ledger).filter(|_| total.timed > 0)?;
    let all = ledger.vms_by_loss();
    let others = all.get(1..).filter(|others| !others.is_empty())?;
    Some(format!("{}.", other_vms(ledger, others)))
}

/// `The other VM: ...`: shares of each one's running time, the worst first.
pub(crate) fn other_vms(ledger: &Ledger, others: &[VmLoss]) -> String {
    let one = |vm: &VmLoss| {
        let tax = ledger::tax(&vm.time).map_or_else(|| "?".to_owned(), percent);
        let waited = ledger::contention(&vm.time)
            .filter(|share| ledger.recording.coverage.sched && *share >= WORTH_A_SENTENCE);
        let waited = waited
            .map_or_else(String::new, |s| format!(" and waited {} for a processor", percent(s)));
        let idle = if vm.is_idle() { ", idle" } else { "" };
        format!("{} lost {tax} to exits{waited}{idle}", names::vm(&ledger.recording, vm.vm))
    };
    let mut named: Vec<String> = others.iter().take(OTHERS).map(one).collect();
    if others.len() > OTHERS {
        named.push(format!("{} more", count((others.len() - OTHERS) as u64)));
    }
    let who = if others.len() == 1 { "The other VM" } else { "The other VMs" };
    format!("{who}: {}", named.join("; "))
}

/// What the VM lost to others on its processors, and to whom.
fn contention(ledger: &Ledger, total: &Tally) -> Option<String> {
    let worst = worst(ledger);
    let own = worst.map(|worst| ledger.of_vm(worst.vm));
    let ledger = own.as_ref().unwrap_or(ledger);
    let share = ledger.contention().filter(|share| total.timed > 0 && *share > 0.0)?;
    let who = match worst {
        Some(worst) => format!("vCPUs of {}", names::vm(&ledger.recording, worst.vm)),
        None if vms(ledger).len() > 1 => "The VMs' vCPUs".to_owned(),
        None => "The VM's vCPUs".to_owned(),
    };
    let all = ledger.time_total().preempted_ns;
    let takers: Vec<String> = ledger
        .takers()
        .into_iter()
        .take(TAKERS)
        .filter_map(|(taker, taken)| {
            let part = numbers::share(taken.time_ns, all)?;
            let label = taker.label(&ledger.recording);
            Some(format!("{} {}", names::printable(&label), percent(part)))
        })
        .collect();
    let by = if takers.is_empty() {
        String::new()
    } else {
        format!("; their processors ran {} of that time", takers.join(", "))
    };
    Some(format!("{who} waited {} of their running time for a processor{by}.", percent(share)))
}

/// The VM, the one that lost most where there are several, waits for processors longer than it spends in exits.
pub(crate) fn waiting_leads(ledger: &Ledger) -> bool {
    let time = worst(ledger).map_or_else(|| ledger.time_total(), |worst| worst.time);
    let waited = ledger::contention(&time).filter(|_| ledger.recording.coverage.sched);
    waited.is_some_and(|waited| waited > ledger::tax(&time).unwrap_or(0.0))
}

fn are_capped(ledger: &Ledger) -> bool {
    ledger.losses.threads_dropped > 0 || ledger.losses.vms_merged > 0
}

/// That the guest's registers are closed to the host.
fn encrypted(ledger: &Ledger) -> Option<String> {
    let by = match vm_facts::encrypted_by(ledger)? {
        EncryptedBy::Rip => "rip 0 of all its entries and exits",
        EncryptedBy::State => "KVM's guest_state_protected",
    };
    Some(format!("Encrypted guest, by {by}: {}.", vm_facts::kind(ledger).name()))
}

fn extent(ledger: &Ledger, total: &Tally) -> String {
    let mut vms = counted(vms(ledger).len() as u64, "VM");
    if are_capped(ledger) {
        vms = format!("the first {vms}");
    }
    let who = match vcpus(ledger).len() {
        0 => vms,
        n => format!("{} of {vms}", counted(n as u64, "vCPU")),
    };
    let exits = counted(total.count, "exit");
    if total.timed == 0 {
        // Who took them is not known either when there are counts and nothing else.
        let said =
            if ledger.recording.vms.is_empty() { exits } else { format!("{who} took {exits}") };
        return format!("{said}. Exits have no durations.");
    }
    let Some(rate) = ledger.exits_per_second() else { return format!("{who} took {exits}.") };
    let rate = if rate < 10.0 { format!("{rate:.1}") } else { count(rate.round() as u64) };
    format!("{who} took {exits} in {}: {rate} per second.", duration(ledger.duration_ns() as f64))
}

fn causes(ledger: &Ledger, total: &Tally) -> Vec<String> {
    let causes = ledger.causes();
    let idle = causes.iter().find(|(cause, _)| *cause == Cause::Idle);
    let busy_ns = total.time_ns.saturating_sub(idle.map_or(0, |(_, tally)| tally.time_ns));
    let of_what = if idle.is_some() { "time in exits other than idle" } else { "time in exits" };
    let mut said = Vec::new();
    for (cause, tally) in causes.iter().filter(|(cause, _)| *cause != Cause::Idle).take(CAUSES) {
        let weight = if total.timed > 0 {
            share(tally.time_ns, busy_ns)
        } else {
            share(tally.count, total.count)
        };
        if !said.is_empty() && weight.unwrap_or(0.0) < WORTH_A_SENTENCE {
            break;
        }
        let of_all = percent(share(tally.count, total.count).unwrap_or(0.0));
        let mut sentence = format!(
            "{} ({}): {} ({of_all} of all)",
            cause.name(),
            cause.describe(),
            counted(tally.count, "exit")
        );
        if tally.timed > 0 {
            sentence += &format!(" took {}", duration(tally.time_ns as f64));
            if let Some(weight) = weight {
                sentence += &format!(", {} of the {of_what}", percent(weight));
            }
        }
        if let Some(what) = mostly(ledger, *cause, tally) {
            sentence += &format!("; mostly {what}");
        }
        sentence.push('.');
        said.push(sentence);
    }
    said
}

/// What more than half of a cause's exits (by time where they are timed) were about.
fn mostly(ledger: &Ledger, cause: Cause, all: &Tally) -> Option<String> {
    let weight = |tally: &Tally| if all.timed > 0 { tally.time_ns } else { tally.count };
    let half = weight(all) / 2;
    let exits = || ledger.exits.iter().filter(|(key, _)| table::cause_of(key) == cause);
    let mut details: BTreeMap<Detail, u64> = BTreeMap::new();
    let mut reasons: BTreeMap<Reason, u64> = BTreeMap::new();
    for (key, tally) in exits() {
        let ExitKey { detail, reason, .. } = key;
        for sum in [details.entry(*detail).or_default(), reasons.entry(*reason).or_default()] {
            *sum = sum.saturating_add(weight(tally));
        }
    }
    let detail = details.into_iter().find(|(detail, sum)| {
        *sum > half && !matches!(detail.kind, DetailKind::None | DetailKind::Overflow)
    });
    if let Some((detail, _)) = detail {
        return Some(names::detail(detail));
    }
    // One reason alone says nothing that the cause does not.
    if reasons.len() < 2 {
        return None;
    }
    reasons.into_iter().find(|(_, sum)| *sum > half).map(|(reason, _)| names::reason(reason))
}

fn idle(ledger: &Ledger, total: &Tally) -> Option<String> {
    let causes = ledger.causes();
    let tally = causes.iter().find(|(cause, _)| *cause == Cause::Idle).map(|(_, tally)| tally);
    let time = ledger.time_total();
    let exits = tally.map_or(0, |tally| tally.count);
    if total.timed == 0 || time.halted_ns == 0 {
        let of_all = percent(share(exits, total.count)?);
        return (exits > 0).then(|| format!("idle: {} ({of_all} of all).", counted(exits, "exit")));
    }
    let halted = duration(time.halted_ns as f64);
    let of_wall = percent(share(time.halted_ns, time.wall_ns)?);
    let (who, whose) = match vcpus(ledger).len() {
        0 | 1 => ("the vCPU was", "its"),
        _ => ("the vCPUs were", "their"),
    };
    let exits = if exits > 0 { format!("{}; ", counted(exits, "exit")) } else { String::new() };
    Some(format!(
        "idle: {exits}{who} halted for {halted}, {of_wall} of {whose} time, which is not counted as lost."
    ))
}

fn nested(doc: &Document) -> Option<String> {
    let nested = doc.nested.as_ref().filter(|nested| nested.known)?;
    let handed: u64 = nested.rows.iter().map(|row| row.to_l1).sum();
    let ancillary: u64 =
        nested.rows.iter().flat_map(|row| &row.ancillary).map(|a| a.tally.count).sum();
    (handed > 0).then(|| {
        format!(
            "nested: {} of L2 {} forwarded to L1, which took {} to handle them, {:.2} each.",
            counted(handed, "exit"),
            if handed == 1 { "was" } else { "were" },
            counted(ancillary, "further exit"),
            ancillary as f64 / handed as f64
        )
    })
}

/// What the recording could not see.
fn unseen(ledger: &Ledger, total: &Tally) -> Vec<String> {
    let coverage = ledger.recording.coverage;
    let time = ledger.time_total();
    let mut said = Vec::new();
    if !ledger.complete && !coverage.exits {
        // An import of a text knows what it saw only at its end.
        said.push(
            "What else was recorded is not known: time in the VMM may be counted as time in the kernel."
                .to_owned(),
        );
        return said;
    }
    if !coverage.nested && ledger.exits.keys().any(|key| key.level == Level::Unknown) {
        let tracepoint = ledger.isa().facts().nested_tracepoint();
        said.push(format!(
            "The VM runs a VM of its own, but {tracepoint} was not recorded: exits of L1 and L2 cannot be distinguished."
        ));
    }
    if total.timed > 0 && !coverage.userspace {
        said.push(
            "kvm_userspace_exit was not recorded: time in the VMM is counted as time in the kernel."
                .to_owned(),
        );
    }
    if total.timed > 0 && !coverage.sched {
        said.push(
            "sched_switch was not recorded: time preempted is counted as time in exits.".to_owned(),
        );
    }
    if time.halted_ns > 0 && !coverage.wakeup {
        said.push(
            "kvm_vcpu_wakeup was not recorded: the complete duration of a halting exit is counted as halted."
                .to_owned(),
        );
    }
    said
}

/// What the numbers do not say.
fn limits(ledger: &Ledger, total: &Tally) -> Vec<String> {
    let recording = &ledger.recording;
    let time = ledger.time_total();
    let mut said = Vec::new();
    said.extend(operations::emulated(ledger));
    said.extend(unseen(ledger, total));
    if let Some(unknown) = share(time.unknown_ns, time.wall_ns).filter(|s| *s >= WORTH_A_SENTENCE) {
        said.push(format!(
            "{} of the time is unknown: exits or entries are missing around it.",
            percent(unknown)
        ));
    }
    let untimed = total.count.saturating_sub(total.timed);
    if total.timed > 0 && share(untimed, total.count).unwrap_or(0.0) >= 0.01 {
        said.push(format!(
            "{} of {} have no duration: times are those of the others.",
            count(untimed),
            counted(total.count, "exit")
        ));
    }
    said.extend(missing(ledger, total));
    let seen = vms(ledger);
    let inferred: Vec<String> = recording
        .vms
        .iter()
        .filter(|vm| vm.inferred && seen.contains(&vm.id))
        .map(|vm| names::vm(recording, vm.id))
        .collect();
    if !inferred.is_empty() {
        said.push(format!(
            "Which threads make up {} {} is inferred from thread numbers and vCPU ids: the recording has no process ids, or one process ran several VMs.",
            if inferred.len() == 1 { "VM" } else { "VMs" },
            inferred.join(", ")
        ));
    }
    said
}

/// What the recording lacks to say more of exits, where that matters.
pub(crate) fn missing(ledger: &Ledger, total: &Tally) -> Vec<String> {
    let mut lacking: BTreeMap<&str, u64> = BTreeMap::new();
    for (key, tally) in &ledger.exits {
        if let Some(what) = table::missing_of(key) {
            let sum = lacking.entry(what).or_default();
            *sum = sum.saturating_add(tally.count);
        }
    }
    let matters = |n: u64| share(n, total.count).is_some_and(|share| share >= WORTH_A_SENTENCE);
    lacking
        .into_iter()
        .filter(|(_, n)| matters(*n))
        .map(|(what, n)| format!("Not known of {}: {what}.", counted(n, "exit")))
        .collect()
}

fn vms(ledger: &Ledger) -> BTreeSet<u32> {
    ledger.exits.keys().map(|key| key.vm).chain(ledger.time.keys().map(|key| key.0)).collect()
}

fn vcpus(ledger: &Ledger) -> BTreeSet<(u32, u32)> {
    let of_exits = ledger.exits.keys().map(|key| (key.vm, key.vcpu));
    let of_time = ledger.time.keys().copied();
    of_exits.chain(of_time).filter(|(_, vcpu)| *vcpu != NO_VCPU).collect()
}
