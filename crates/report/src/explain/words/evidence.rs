//! A line of evidence in words.

use vmtax_analyse::explain::{Access, Evidence, Most, PerWork, Share};
use vmtax_events::{Detail, Device, Reason};

use super::phrases::{ms, part, reasons};
use super::results;
use crate::numbers::percent;

/// The line, without its full stop. Hostile text.
pub(crate) fn evidence(line: &Evidence) -> String {
    match line {
        Evidence::Exits { count, total, reasons, rate, spent_ns } => {
            exits((*count, *total), reasons, *rate, *spent_ns)
        }
        Evidence::Details(most) => details(most),
        Evidence::LongInterrupts(ns) => format!(
            "{} us each on average: without sched:sched_switch, time in which the vCPU was preempted is part of it",
            ns / 1000
        ),
        Evidence::InjectedInterrupts(count) => format!(
            "the guest takes {count} interrupts of its own by exits: without a virtual APIC each may stop the vCPU once"
        ),
        Evidence::InterruptRate(rate) => {
            format!("{rate:.0} a second and vCPU are more than a tick: devices or IPIs")
        }
        Evidence::ShortHalts { short, all, polling, within_ns } => format!(
            "{short} of {all} halts ended within {} us, KVM's usual polling time; polling for all of them costs at most {} of the time",
            within_ns / 1000,
            percent(*polling)
        ),
        Evidence::ShortNotifications(ns) => format!(
            "{:.1} us each on average: an exit to the VMM takes several",
            *ns as f64 / 1000.0
        ),
        Evidence::LongFaults(ns) => format!(
            "{} us each on average: a fault that only maps memory takes a few, and as many as 300 to clear 2 MiB",
            ns / 1000
        ),
        Evidence::Refaults { faults, regions } => format!(
            "{faults} faults in {regions} regions of 2 MiB, which have 512 pages each: pages that were mapped fault again"
        ),
        Evidence::PagesTaken => "something takes them away or write-protects them: dirty logging of a migration, page merging (ksmd), NUMA balancing, a balloon".to_owned(),
        Evidence::FaultyRegions { often, all, faults } => {
            format!("{often} of {all} regions of 2 MiB faulted {faults} times and more")
        }
        Evidence::RotatedCounters => {
            "event selects change at each tick: more events than counters".to_owned()
        }
        Evidence::NoPreemption => {
            "no vCPU was preempted: the lock's owner runs, or the guest polls".to_owned()
        }
        Evidence::ShadowedVmcs(each) => format!(
            "{each:.1} for each entry of L2: without a shadow VMCS there would be dozens"
        ),
        Evidence::TooFewExits(count) => format!("{count} exits are too few for advice"),
        Evidence::ApicInMemory(count) => {
            format!("{count} accesses of the APIC's page, none of an x2APIC MSR")
        }
        Evidence::Preempted { ns, running_ns } => format!(
            "preempted {} ms of {} ms that the vCPUs were not halted",
            ms(*ns),
            ms(*running_ns)
        ),
        Evidence::Takers(takers) => format!("their processors ran: {}", with_shares(takers)),
        Evidence::WorstVcpu(vcpu, share) => format!("most: vCPU {vcpu}, {}", percent(*share)),
        Evidence::Counter { name, here, base } => format!(
            "{name}: {here:.0} here, {base:.0} in the base, x {:.2}",
            here / base
        ),
        Evidence::GuestSamples(share, functions) => {
            format!("{} of the guest's samples: {}", percent(*share), with_shares(functions))
        }
        Evidence::ConversionFaults { conversions, faults, regions, each } => format!(
            "{conversions} conversions, and {faults} faults in {regions} regions of 2 MiB, {each} and more in each"
        ),
        Evidence::MappedSmall { share, all, base } => {
            let base = base.map(|base| format!("; in the base {}", percent(base)));
            format!("{}, by KVM's counters{}", mapped(*share, *all), base.unwrap_or_default())
        }
        Evidence::PrivateMemory(kind) => format!(
            "it is a {} guest: Linux up to 7.3 maps guest_memfd in pages of 4 KiB",
            kind.name()
        ),
        Evidence::MoreMisses { name, here, base, per } => {
            format!("{name}: {here:.2} {}, in the base {base:.2}", per_work(*per))
        }
        Evidence::GuestMemfd => "it comes from guest_memfd: Linux up to 7.3 maps that in pages of 4 KiB, and no setting changes that".to_owned(),
        Evidence::RecoveredPart { workload, part: share, category, loss } => format!(
            "{workload}: {} of the loss of {category} ({})",
            part(*share),
            percent(*loss)
        ),
        Evidence::Harm { workload, category, loss, more } => {
            let more = if *more > 0 { format!(" and {more} more") } else { String::new() };
            format!("but it costs: {workload} ({category} loses {}){more}", percent(*loss))
        }
        Evidence::ExitTax { tax, exits_ns, running_ns } => format!(
            "exit tax {}: {} ms in exits of {} ms that the vCPUs were not halted",
            percent(*tax),
            ms(*exits_ns),
            ms(*running_ns)
        ),
        Evidence::CauseCompared { cause, here, base, verdict } => format!(
            "{}: {here} here, {base} in the base: {}",
            cause.map_or("", vmtax_events::Cause::name),
            verdict.name()
        ),
        Evidence::CauseCount { cause, count, share } => {
            let time = share.map(percent).map(|share| format!(", {share} of the time in exits, halts included"));
            format!("{}: {count} exits{}", cause.name(), time.unwrap_or_default())
        }
        Evidence::Ancillary { reason, value: 0, each } => format!("{}: {each:.2}", reason.name()),
        Evidence::Ancillary { reason, value, each } => {
            format!("{} {value:#x}: {each:.2}", reason.name())
        }
        Evidence::Function { name, here, base } => function(name, *here, *base),
        Evidence::Instruction { of_base, text, share, access } => {
            let access = match access {
                Access::Own => ", accesses memory",
                Access::BehindLoad => ", right behind a load",
                Access::None => "",
            };
            format!("{}{text}: {}{access}", whose(*of_base), percent(*share))
        }
        Evidence::Misses { of_base, name, value, per } => {
            format!("{}{name}: {value:.2} {}", whose(*of_base), per_work(*per))
        }
        Evidence::Mapped { of_base, share, all } => {
            format!("{}{}", whose(*of_base), mapped(*share, *all))
        }
        Evidence::Faults(count, rate) => {
            let rate = rate.map(|rate| format!(", {rate:.0} a second"));
            format!("{count} faults in the nested page tables{}", rate.unwrap_or_default())
        }
        Evidence::Workload(workload) => results::workload(workload),
    }
}

fn whose(of_base: bool) -> &'static str {
    if of_base { "base: " } else { "" }
}

fn per_work(per: PerWork) -> &'static str {
    match per {
        PerWork::ThousandInstructions => "for a thousand instructions",
        PerWork::Recording => "in all",
    }
}

fn mapped(share: f64, all: f64) -> String {
    format!("{} of {:.0} MiB mapped in pages of 4 KiB", percent(share), all / 1_048_576.0)
}

fn with_shares(all: &[(String, f64)]) -> String {
    let all: Vec<String> =
        all.iter().map(|(name, share)| format!("{name} {}", percent(*share))).collect();
    all.join(", ")
}

fn exits(
    (count, total): (u64, u64),
    most: &Most<Reason>,
    rate: Option<f64>,
    spent_ns: Option<(u64, u64)>,
) -> String {
    let names = reasons(most);
    match (rate, spent_ns) {
        (Some(rate), _) => format!("{count} exits ({names}), {rate:.0} a second and vCPU"),
        (None, Some((time_ns, all_ns))) => format!(
            "{count} of {total} exits ({names}), {} ms of the {} ms in exits that do not halt",
            ms(time_ns),
            ms(all_ns)
        ),
        (None, None) => format!("{count} of {total} exits ({names})"),
    }
}

fn details(most: &Most<(Detail, u64)>) -> String {
    let named: Vec<String> =
        most.named.iter().map(|(detail, count)| format!("{} x {count}", name(*detail))).collect();
    let more = if most.more > 0 { format!(" and {} more", most.more) } else { String::new() };
    format!("{}{more}", named.join(", "))
}

/// `port in 0x608`, with the device where it has a name.
fn name(detail: Detail) -> String {
    let what = detail.kind.name().replace('-', " ");
    match Device::of(detail) {
        Some(device) => format!("{what} {:#x} ({})", detail.value, device.name()),
        None => format!("{what} {}", detail.label()),
    }
}

fn function(name: &str, here: Share, base: Option<Share>) -> String {
    let base = base.map(|base| format!("; base {} and {}", percent(base.own), percent(base.total)));
    let base = base.unwrap_or_default();
    format!("{name}: {} itself, {} in all{base}", percent(here.own), percent(here.total))
}
