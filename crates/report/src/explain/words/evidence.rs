//! A line of evidence in words.

use vmtax_analyse::explain::{Evidence, FunctionShare, MemoryAccess, Most, PerWork};
use vmtax_analyse::timeline::TimelineKey;
use vmtax_events::apicv::ApicvInhibit;
use vmtax_events::observed::Observed;
use vmtax_events::{Detail, DetailKind, Device, Isa, Profile, Reason};

use super::phrases::{part, reasons};
use super::results;
use crate::names;
use crate::numbers::{self, duration, fixed, percent, whole};

/// The line, without its full stop. Hostile text.
pub(crate) fn evidence(line: &Evidence) -> String {
    match line {
        Evidence::Exits { count, total, reasons, rate, spent_ns } => {
            exits((*count, *total), reasons, *rate, *spent_ns)
        }
        Evidence::Details(isa, most) => details(*isa, most),
        Evidence::LongInterrupts(ns) => format!(
            "{} each on average: without sched:sched_switch, time in which the vCPU was preempted is part of it",
            duration(*ns as f64)
        ),
        Evidence::InjectedInterrupts(count) => format!(
            "the guest takes {} interrupts of its own by exits: without a virtual APIC each may stop the vCPU once",
            numbers::count(*count)
        ),
        Evidence::InterruptRate(rate) => {
            format!("{} a second and vCPU are more than a tick: devices or IPIs", whole(*rate))
        }
        Evidence::ShortHalts { short, all, polling, within_ns } => format!(
            "{} of {} halts ended within {}, KVM's usual polling time; polling for all of them costs at most {} of the time",
            numbers::count(*short),
            numbers::count(*all),
            duration(*within_ns as f64),
            percent(*polling)
        ),
        Evidence::ShortNotifications(ns) => format!(
            "{} each on average: an exit to the VMM takes several µs",
            duration(*ns as f64)
        ),
        Evidence::LongFaults(ns) => format!(
            "{} each on average: a fault that only maps memory takes a few µs, one that clears 2 MiB as many as 300 µs",
            duration(*ns as f64)
        ),
        Evidence::Refaults { faults, regions } => format!(
            "{} faults in {} regions of 2 MiB, which have 512 pages each: pages that were mapped fault again",
            numbers::count(*faults),
            numbers::count(*regions)
        ),
        Evidence::PagesTaken => "something takes them away or write-protects them: dirty logging of a migration, page merging (ksmd), NUMA balancing, a balloon".to_owned(),
        Evidence::FaultyRegions { often, all, faults } => {
            let [often, all] = [often, all].map(|n| numbers::count(*n as u64));
            let faults = numbers::count(*faults);
            format!("{often} of {all} regions of 2 MiB faulted {faults} times and more")
        }
        Evidence::RotatedCounters => {
            "event selects change at each tick: more events than counters".to_owned()
        }
        Evidence::NoPreemption => {
            "no vCPU was preempted: the lock's owner runs, or the guest polls".to_owned()
        }
        Evidence::ShadowedVmcs(each) => format!(
            "{} for each entry of L2: without a shadow VMCS there would be dozens",
            fixed(*each, 1)
        ),
        Evidence::TooFewExits(count) => {
            format!("{} exits are too few for advice", numbers::count(*count))
        }
        Evidence::ApicInMemory(count) => {
            let count = numbers::count(*count);
            format!("{count} accesses of the APIC's page, none of an x2APIC MSR")
        }
        Evidence::Preempted { ns, running_ns } => format!(
            "preempted {} of {} that the vCPUs were not halted",
            duration(*ns as f64),
            duration(*running_ns as f64)
        ),
        Evidence::Recorder { ns, running_ns } => format!(
            "the recorder itself had them for another {}, {} of the running time: a cost of recording",
            duration(*ns as f64),
            percent(*ns as f64 / (*running_ns).max(1) as f64)
        ),
        Evidence::FewDebugWrites(count) => format!(
            "{} writes: a release build of the firmware does some hundred at a boot",
            numbers::count(*count)
        ),
        Evidence::Takers(takers) => format!("their processors ran: {}", with_shares(takers)),
        Evidence::WorstVcpu(vcpu, share) => format!("most: vCPU {vcpu}, {}", percent(*share)),
        Evidence::Counter { name, here, base } => format!(
            "{name}: {} here, {} in the base, x {:.2}",
            whole(*here),
            whole(*base),
            here / base
        ),
        Evidence::Samples(place, share, functions) => {
            format!("{} of the {place}'s samples: {}", percent(*share), with_shares(functions))
        }
        Evidence::KvmCounters { exits, counters } => {
            let each = |(name, value): &(&str, f64)| {
                let has = match *name {
                    "io_exits" => " (kvm:kvm_pio has their ports)",
                    "mmio_exits" => " (kvm:kvm_mmio has their addresses)",
                    _ => "",
                };
                format!("{name} {}{has}", whole(*value))
            };
            let listed: Vec<String> = counters.iter().map(each).collect();
            format!("of {} exits: {}", whole(*exits), listed.join(", "))
        }
        Evidence::ConversionFaults { conversions, faults, regions, each } => format!(
            "{} conversions, and {} faults in {} regions of 2 MiB, {} and more in each",
            numbers::count(*conversions),
            numbers::count(*faults),
            numbers::count(*regions as u64),
            numbers::count(*each)
        ),
        Evidence::MappedSmall { share, all, base } => {
            let base = base.map(|base| format!("; in the base {}", percent(base)));
            format!("{}, by KVM's counters{}", mapped(*share, *all), base.unwrap_or_default())
        }
        Evidence::PrivateMemory(kind) => format!(
            "inferred from its kind: it is a {} guest, and Linux up to 7.3 maps guest_memfd in pages of 4 KiB",
            kind.name()
        ),
        Evidence::SimulatedWalks(of) => format!(
            "simulated on {}, not measured here (`vmtax lab run --suite paging`): a loop down the columns of a matrix takes {} page walks a step where the guest or the host has pages of 4 KiB, and {} where both have 2 MiB; a walk reads {} entries of page tables where the guest's frames are contiguous, {} where they are scattered over 24 GiB",
            of.processor,
            fixed(of.small, 2),
            fixed(of.large, 5),
            fixed(of.contiguous, 1),
            fixed(of.scattered, 1)
        ),
        Evidence::Tdcalls(Some(how)) => {
            format!("{}, TDCALL is {} ({})", how.kernels, how.tdcall, how.source)
        }
        Evidence::Tdcalls(None) => {
            let [old, new] = &vmtax_events::tdx::REPORTING;
            format!(
                "which kernel it is was not recorded: {}, TDCALL is {}; {}, {}",
                old.kernels, old.tdcall, new.kernels, new.tdcall
            )
        }
        Evidence::TicksOfBase { here, ticks, interrupts } => format!(
            "inferred from the base: its timer expired {} times a second (PREEMPTION_TIMER) beside {} interrupts of its host, together as many as the {} here; a TD has no preemption timer, so its own timer's ticks are among them",
            whole(*ticks),
            whole(*interrupts),
            whole(*here)
        ),
        Evidence::ArmsOfBase { here, base } => format!(
            "inferred from the base: as many as its MSR writes ({} a second here, {} there), of which a guest's timer takes most: arming the timer",
            whole(*here),
            whole(*base)
        ),
        Evidence::MoreMisses { name, here, base, per } => {
            let [here, base] = [here, base].map(|n| fixed(*n, 2));
            format!("{name}: {here} {}, in the base {base}", per_work(*per))
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
            "exit tax {}: {} in exits of {} that the vCPUs were not halted",
            percent(*tax),
            duration(*exits_ns as f64),
            duration(*running_ns as f64)
        ),
        Evidence::TaxRange(low, high) => format!(
            "of all time, the unknown included, {} to {}: events were lost",
            percent(*low),
            percent(*high)
        ),
        Evidence::Burst(burst) => format!(
            "the worst {} is {} after the beginning: {} of the vCPUs' time in exits, for {} at a stretch; the mean is {}; most frequent: {}",
            duration(burst.step_ns as f64),
            duration(burst.at_ns as f64),
            percent(burst.worst),
            duration(burst.length_ns as f64),
            percent(burst.mean),
            kind(&burst.kind)
        ),
        Evidence::SlowAccess(isa, detail, each_ns) => format!(
            "{} takes {} on average: the VMM works or waits there",
            name(*isa, *detail),
            duration(*each_ns as f64)
        ),
        Evidence::HaltsAtOnce { count, mean_ns, min_ns, others } => format!(
            "{} halts of {} on average, the shortest {}, and {} other exits: nothing that a halt could wait for",
            numbers::count(*count),
            duration(*mean_ns as f64),
            duration(*min_ns as f64),
            numbers::count(*others)
        ),
        Evidence::PeriodicWakeUps(rate, arms) => format!(
            "{} halts a second and vCPU, of lengths that are alike; the guest arms a timer {} times a second",
            whole(*rate),
            whole(*arms)
        ),
        Evidence::Wakers(most) => {
            let each = |(detail, rate): &(Detail, f64)| {
                format!("{} {} times a second", names::detail(*detail), whole(*rate))
            };
            let named: Vec<String> = most.named.iter().map(each).collect();
            let more = if most.more > 0 { format!(" and {} more", most.more) } else { String::new() };
            format!("interrupts of the guest: {}{more}", named.join(", "))
        }
        Evidence::Observed(what) => observed(*what),
        Evidence::HaltsEnd(rate) => format!("{} halts end a second", whole(*rate)),
        Evidence::TimerWakes(timer) => format!(
            "the {timer} ends as many halts as there are: to poll for them would not end them earlier"
        ),
        Evidence::Inhibits(all) => {
            let each = |(number, inhibit): &(u64, Option<ApicvInhibit>)| {
                let number = number & u64::from(u16::MAX);
                let name = inhibit.map_or("which depends on the kernel", ApicvInhibit::name);
                format!("reason {number} ({name})")
            };
            let all: Vec<String> = all.iter().map(each).collect();
            format!("kvm_apicv_inhibit_changed at the end: {}", all.join(", "))
        }
        Evidence::CausesCompared { causes, here, base, verdict } => {
            let causes: Vec<&str> = causes.iter().map(|cause| cause.name()).collect();
            format!(
                "{}: {} here, {} in the base: {}",
                causes.join(" and "),
                numbers::count(*here),
                numbers::count(*base),
                verdict.name()
            )
        }
        Evidence::CauseCount { cause, count, share } => {
            let time = share.map(percent).map(|share| format!(", {share} of the time in exits, halts included"));
            let count = numbers::count(*count);
            format!("{}: {count} exits{}", cause.name(), time.unwrap_or_default())
        }
        Evidence::Ancillary { reason, value: 0, each } => format!("{}: {}", reason.name(), fixed(*each, 2)),
        Evidence::Ancillary { reason, value, each } => {
            format!("{} {}: {}", reason.name(), object(*reason, *value), fixed(*each, 2))
        }
        Evidence::Function { name, here, base } => function(name, *here, *base),
        Evidence::Instruction { of_base, text, share, access } => {
            let access = match access {
                MemoryAccess::Own => ", accesses memory",
                MemoryAccess::BehindLoad => ", right behind a load",
                MemoryAccess::None => "",
            };
            format!("{}{text}: {}{access}", whose(*of_base), percent(*share))
        }
        Evidence::Misses { of_base, name, value, per } => {
            format!("{}{name}: {} {}", whose(*of_base), fixed(*value, 2), per_work(*per))
        }
        Evidence::Mapped { of_base, share, all } => {
            format!("{}{}", whose(*of_base), mapped(*share, *all))
        }
        Evidence::Faults(isa, count, rate) => {
            let rate = rate.map(|rate| format!(", {} a second", whole(rate)));
            let count = numbers::count(*count);
            let tables = isa.facts().guest_memory_tables();
            format!("{count} faults in {tables}{}", rate.unwrap_or_default())
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
    format!("{} of {} MiB mapped in pages of 4 KiB", percent(share), whole(all / 1_048_576.0))
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
    let [count, total] = [count, total].map(numbers::count);
    match (rate, spent_ns) {
        (Some(rate), _) => format!("{count} exits ({names}), {} a second and vCPU", whole(rate)),
        (None, Some((time_ns, all_ns))) => format!(
            "{count} of {total} exits ({names}), {} of the {} in exits that do not halt",
            duration(time_ns as f64),
            duration(all_ns as f64)
        ),
        (None, None) => format!("{count} of {total} exits ({names})"),
    }
}

/// What a tool shows.
pub(crate) fn observed(observed: Observed) -> String {
    match observed {
        Observed::Steal(share) => {
            format!("{} of the guest's processor time is stolen", percent(share))
        }
        Observed::Delayed(share) => format!(
            "vCPUs were ready and waited for a processor for {} of their time",
            percent(share)
        ),
        Observed::LateRuns { count, mean_ns, most_ns } => format!(
            "they waited {} times until they ran, {} on average and {} at most",
            numbers::count(count),
            duration(mean_ns as f64),
            duration(most_ns as f64)
        ),
        Observed::Throttled { throttled, periods } => format!(
            "the quota was used up in {} of {} periods",
            numbers::count(throttled),
            numbers::count(periods)
        ),
        Observed::Clock(clock) => format!("the clock is {clock}"),
        Observed::Thread(thread, share) => {
            format!("the thread {thread} takes {} of a processor", percent(share))
        }
        Observed::Swapping { out, back } => {
            format!("{} KiB a second go to swap, {} come back", whole(out), whole(back))
        }
        Observed::Line { rtc, count, all } => format!(
            "{} of {} interrupts are on line {}",
            numbers::count(count),
            numbers::count(all),
            if rtc { 8 } else { 0 }
        ),
        Observed::NoKvm => {
            "a log, or the names of QEMU's threads, say that KVM does not run it".to_owned()
        }
        Observed::Nodes { most, next, elsewhere } => format!(
            "{} of the process's memory is not on Node {most}; Node {next} has most of the rest",
            percent(elsewhere)
        ),
        Observed::StealCounter => {
            "more time is stolen than all other counters of /proc/stat hold, a hundred times over"
                .to_owned()
        }
        Observed::IdleInside { idle, busy } => format!(
            "the guest's own tools show {} idle (%idle), its host's tools a processor that is busy for {}",
            percent(idle),
            percent(busy)
        ),
        Observed::MigrationBehind { dirtied, sent, limit_ms } => {
            let limit = match limit_ms {
                0.0 => String::new(),
                limit => format!("; it may stand still for {limit} ms at its end"),
            };
            format!(
                "the guest writes {} pages a second, the migration sends {}{limit}",
                numbers::count(dirtied as u64),
                numbers::count(sent as u64)
            )
        }
        Observed::HaltPolls { changes, most_ns } => format!(
            "KVM changed its polling for halted vCPUs (halt_poll_ns) {} times, to {} at most",
            numbers::count(changes),
            duration(most_ns as f64)
        ),
        Observed::StealFalls => {
            "the counter of stolen time (steal, %st) falls or is negative".to_owned()
        }
        Observed::StuckIn(function) => format!("the CPU was in {}", function.as_str()),
        Observed::HostStuckIn(work) => {
            format!("the stack of the CPU that was stuck: {}", work.name())
        }
        Observed::BlockedIn(function) | Observed::VmmBlockedIn(function) => {
            format!("the task was blocked below {}", function.as_str())
        }
        Observed::BootGaps { count, ns, all_ns, before } => format!(
            "{} gaps of half a second and more take {} of the {} between lines; most of that is before lines of {}",
            numbers::count(count.into()),
            duration(ns as f64),
            duration(all_ns as f64),
            before.as_str()
        ),
        Observed::Named(cost, word) => format!("the text names it: {cost} ({})", word.as_str()),
        Observed::Timed(function, ns) => format!("{function} takes {}", duration(ns as f64)),
        Observed::Mitigation(mitigation) => format!("at work: {mitigation}"),
        Observed::DeviceLine { gsi, share } => {
            format!("{} of the changes of interrupt lines are of gsi {gsi}", percent(share))
        }
        Observed::OneProcessor { vcpus, processor } => {
            format!("the threads of {vcpus} vCPUs of one VM all ran on processor {processor} last")
        }
        Observed::Disk { name, busy, await_ms } => format!(
            "the disk {} is busy {} of the time, and a request to it takes {}",
            name.as_str(),
            percent(busy),
            duration(await_ms * 1e6)
        ),
        Observed::LockWaits { count, most_ns } => format!(
            "vCPUs' threads waited for locks {} times, one of them for {} in all",
            numbers::count(count),
            duration(most_ns as f64)
        ),
        Observed::Vcpus(count, share, busiest) => format!(
            "{} up to {} of a processor{}, guest and exits together",
            if count == 1 {
                "a vCPU thread has".to_owned()
            } else {
                format!("{count} vCPU threads have")
            },
            percent(share),
            busiest.map_or_else(String::new, |number| format!(" (CPU {number}/KVM)"))
        ),
        Observed::HostKernel(share) => {
            format!("a processor of the host is in the kernel for {} of its time", percent(share))
        }
        Observed::Message(message) => format!("the text shows: {message}"),
    }
}

/// The kind of exits: what they access, else their reason.
pub(crate) fn kind(kind: &TimelineKey) -> String {
    match kind.detail.kind {
        DetailKind::None | DetailKind::Overflow => names::reason(kind.reason),
        fault if fault.is_fault() => names::reason(kind.reason),
        _ => name(kind.reason.isa, kind.detail),
    }
}

/// Means that are shown: less is what a register takes.
const NOTABLE_NS: u64 = 100_000;

fn details(isa: Isa, most: &Most<(Detail, u64, Option<u64>)>) -> String {
    let named: Vec<String> = most
        .named
        .iter()
        .map(|(detail, count, each_ns)| {
            let each = each_ns.filter(|ns| *ns >= NOTABLE_NS);
            let each = each.map(|ns| format!(" of {} each", duration(ns as f64)));
            format!(
                "{} x {}{}",
                name(isa, *detail),
                numbers::count(*count),
                each.unwrap_or_default()
            )
        })
        .collect();
    let more = if most.more > 0 { format!(" and {} more", most.more) } else { String::new() };
    format!("{}{more}", named.join(", "))
}

/// The value of a detail, by what exits of the reason are about: system registers have names.
fn object(reason: Reason, value: u64) -> String {
    let accesses = reason.isa.facts().accesses();
    let is_register = |(code, kinds): &(u32, &[DetailKind])| {
        *code == reason.code && kinds.contains(&DetailKind::SysregRead)
    };
    match accesses.iter().any(is_register) {
        true => Detail::new(DetailKind::SysregRead, value).label(),
        false => format!("{value:#x}"),
    }
}

/// `port in 0x608`, with the device where it has a name.
fn name(isa: Isa, detail: Detail) -> String {
    let what = detail.kind.name().replace('-', " ");
    match Device::of(isa, detail) {
        Some(device) => format!("{what} {:#x} ({})", detail.value, device.name()),
        None => format!("{what} {}", detail.label()),
    }
}

fn function(name: &str, here: FunctionShare, base: Option<FunctionShare>) -> String {
    if name == Profile::UNLISTED && base.is_none() {
        return format!("functions that the text does not list: {}", percent(here.own));
    }
    let base = base.map(|base| format!("; base {} and {}", percent(base.own), percent(base.total)));
    let base = base.unwrap_or_default();
    format!("{name}: {} itself, {} in all{base}", percent(here.own), percent(here.total))
}
