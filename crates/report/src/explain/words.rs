//! The words of an explanation: what `vmtax-analyse` found, as sentences without their full stops.

mod evidence;
mod findings;
mod observed;
mod phrases;
mod results;
mod trials;

use vmtax_analyse::explain::{
    ComparedFunction, Costliest, FoundKind, Question, Says, ToRecord, Verdict,
};

use crate::numbers::{counted, duration, fixed, percent, whole};
use phrases::SMALL_PAGES;

pub(crate) use evidence::evidence;
pub(crate) use findings::finding;
pub(crate) use results::{figures, workload};
pub(crate) use trials::trial;
pub use trials::whole_trial;

/// The verdict. Hostile text.
pub(crate) fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Polling(share) => format!(
            "the guest is idle and polls: {} of its samples; its processors look busy and do nothing",
            percent(*share)
        ),
        Verdict::Contention { share, tax, takers: None } => format!(
            "vCPUs are held back {} of their running time while their processors are idle, as by a CPU quota{}",
            percent(*share),
            beside_waiting(*tax)
        ),
        Verdict::Contention { share, tax, takers: Some(takers) } => {
            let says = |most: &str| {
                format!(
                    "vCPUs wait for a processor {} of their running time{most}{}",
                    percent(*share),
                    beside_waiting(*tax)
                )
            };
            // Names are of any length.
            let who = takers.first().map(|who| who.split(" (").next().unwrap_or(who));
            let named = says(&who.map_or_else(String::new, |who| format!(", most of all for {who}")));
            if words_of(&named) <= MOST_WORDS { named } else { says("") }
        }
        Verdict::Exits { tax, most, contention } => {
            let beside = contention
                .map(|share| format!("; waiting for a processor {} more", percent(share)));
            format!(
                "exits take {} of the running time{}{}",
                percent(*tax),
                most.as_ref().map(costliest).unwrap_or_default(),
                beside.unwrap_or_default()
            )
        }
        Verdict::Burst(burst) => format!(
            "exits take {} of the time for {}, and {} over all: most are {}",
            percent(burst.worst),
            duration(burst.length_ns as f64),
            percent(burst.mean),
            evidence::kind(&burst.kind)
        ),
        Verdict::WakeUps { rate, within_ns, .. } => format!(
            "the guest waits in short halts: {} a second and vCPU, most within {}; each wake-up costs more than its exit shows",
            whole(*rate),
            duration(*within_ns as f64)
        ),
        Verdict::BounceBuffer(share) => {
            format!("the guest spends {} in its bounce buffer", percent(*share))
        }
        Verdict::Finding(found) => gist(found),
        Verdict::Memory { exits_excluded, pages } => {
            let exits = if *exits_excluded { "exits are not the bottleneck; " } else { "" };
            format!("{exits}the guest waits for memory: {}", gist(pages))
        }
        Verdict::Results(workloads) => results::verdict(workloads),
        Verdict::NotExits(what) => says(what),
        Verdict::Idle { busiest, .. } => format!(
            "the VM is idle: its busiest vCPU is not halted {} of the time; fewer exits would gain nothing",
            percent(*busiest)
        ),
        Verdict::Undecided { says: None, .. } => {
            "undecided: the recording does not show where time goes".to_owned()
        }
        Verdict::Undecided { says: Some(what), most } => {
            let only_counts = matches!(what, Says::OnlyCounts { .. });
            let what = undecided(what);
            let Some(most) = most.as_ref().map(gist) else { return what };
            let cost = if only_counts { "counts alone do not show their cost" } else { &what };
            let both = format!("most frequent exits: {most}; {cost}");
            if words_of(&both) <= MOST_WORDS { both } else { what }
        }
        Verdict::NothingToCompare { has_kinds: true, .. } => {
            "undecided: no workload has results of two kinds of VM in one unit: add those of the plain VM".to_owned()
        }
        Verdict::NothingToCompare { has_kinds: false, .. } => {
            "undecided: no category names a kind of VM: use plain, snp, tdx, and options as plain+vhost".to_owned()
        }
    }
}

/// What exits take beside waiting.
fn beside_waiting(tax: Option<f64>) -> String {
    tax.map(|tax| format!("; exits take {}", percent(tax))).unwrap_or_default()
}

/// A verdict has at most so many words.
pub(crate) const MOST_WORDS: usize = 25;

/// Words of a sentence.
pub(crate) fn words_of(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count()
}

/// What a finding means, without what follows from it.
fn gist(found: &FoundKind) -> String {
    let means = finding(found).means;
    // What follows an "or" belongs to what is before it.
    let goes_on = |at: usize| means[at..].starts_with(", or ");
    let ends = [", ", ": ", "; ", " ("].into_iter().flat_map(|end| means.match_indices(end));
    let end = ends.map(|(at, _)| at).filter(|at| !goes_on(*at)).min();
    means[..end.unwrap_or(means.len())].to_owned()
}

/// What is known, where a cost is not.
fn undecided(what: &Says) -> String {
    match what {
        Says::NoEntries(share) => format!(
            "the cost of exits is unknown: the recording lacks kvm_entry around {} of the time",
            percent(*share)
        ),
        Says::LongInterrupts(each_ns) => format!(
            "host interrupts take {} each: the vCPUs were probably preempted, which only sched_switch shows",
            duration(*each_ns as f64)
        ),
        Says::OtherKind(_, here, base) => format!(
            "counts decide nothing: one is a {} and the other a {} VM, and what an exit costs in each is unknown",
            here.name(),
            base.name()
        ),
        Says::Unlisted(share, most) => {
            let most = most.as_ref().filter(|name| !name.contains(' '));
            let most =
                most.map_or_else(String::new, |name| format!("; of the others {name} has most"));
            format!(
                "{} of the profile is in functions that the text does not list{most} (all: `perf report --stdio --no-children`)",
                percent(*share)
            )
        }
        Says::MostIn(name) => {
            format!("the profile shows no cost of a VM that is known; most of it is in {name}")
        }
        Says::MostlyIdle(share, works) => {
            let works = works.as_ref().filter(|name| !name.contains(' '));
            let works =
                works.map_or_else(String::new, |name| format!("; of the rest {name} has most"));
            format!(
                "the profile shows no cost of a VM that is known: {} of it is idle time{works}",
                percent(*share)
            )
        }
        Says::EntersGuest(share, _) => format!(
            "the profile shows no cost of a VM that is known; {} of it is the guest, its entries and its exits",
            percent(*share)
        ),
        other => says(other),
    }
}

fn costliest(most: &Costliest) -> String {
    format!("; most for: {}, {}", gist(&most.found), percent(most.share))
}

/// The question of a step.
pub(crate) fn question(question: Question) -> &'static str {
    match question {
        Question::Exits => "Is handling exits the bottleneck?",
        Question::Causes => "Which cause leads?",
        Question::Host => "Where does the host's time go?",
        Question::Guest => "Where does the guest's time go?",
        Question::Instructions => "Does the guest wait for memory?",
        Question::Memory => "Is memory mapped in small pages?",
        Question::Nesting => "What does nesting cost?",
        Question::Results => "Which setup changes the results?",
    }
}

/// What the answer to a question says. Hostile text.
pub(crate) fn says(says: &Says) -> String {
    match says {
        Says::TooFew(exits, ns) => {
            format!(
                "{} in {} are too few for a conclusion",
                counted(*exits, "exit"),
                duration(*ns as f64)
            )
        }
        Says::NoEntries(share) => format!(
            "{} of the time between exits is unknown: the recording lacks kvm:kvm_entry, or lost most of it",
            percent(*share)
        ),
        Says::LongInterrupts(each_ns) => format!(
            "interrupts of the host take {} each, which is no time that handling one takes: the vCPUs were probably preempted, and sched:sched_switch was not recorded",
            duration(*each_ns as f64)
        ),
        Says::Tax(tax) => gain_at_most(*tax),
        Says::SmallTax(tax) => format!("exits are not the bottleneck: {}", gain_at_most(*tax)),
        Says::NoRunningTime { spent_ns, all_ns } => {
            let known = format!(
                "exits that do not halt took {} of {} in exits",
                duration(*spent_ns as f64),
                duration(*all_ns as f64)
            );
            if says.gains_nothing() {
                format!("{known}: fewer of them would gain nothing if all vCPUs are alike")
            } else {
                format!("{known}; the table does not contain the running time")
            }
        }
        Says::Counted(name, n, most) => {
            let most = most.map(|(part, count)| {
                format!("; {part} has most, {}", crate::numbers::count(count))
            });
            format!(
                "{} counted ({name}){}, without their reasons and times: their cost is unknown",
                counted(*n, "exit"),
                most.unwrap_or_default()
            )
        }
        Says::NoExits => "the recording contains no exits".to_owned(),
        Says::OnlyCounts { emulated } => {
            let times = "times under an emulator do not reflect hardware, and ";
            let times = if *emulated { times } else { "" };
            format!("{times}counts alone do not show the cost of exits")
        }
        Says::NotComparable => "the base cannot be compared".to_owned(),
        Says::OtherKind(share, here, base) => format!(
            "counts decide nothing: {} of the exits have causes that are equally frequent in both, but one is a {} and the other a {} VM, and the cost of an exit in each is unknown",
            percent(*share),
            here.name(),
            base.name()
        ),
        Says::SameExits(share) => format!(
            "exits are not the bottleneck, if the base is fast: {} of them have causes that are equally frequent there",
            percent(*share)
        ),
        Says::OtherExits(share) => format!(
            "the two do not take the same exits: only {} have causes that are equally frequent in both",
            percent(*share)
        ),
        Says::LeadingCause(cause) => {
            format!("{}: most of it is the guest {}", cause.name(), cause.describe())
        }
        Says::NoCauses => "the recording has no exits".to_owned(),
        Says::NoProfile => "it has no profile".to_owned(),
        Says::Unlisted(share, most) => {
            let most =
                most.as_ref().map(|name| format!("; of those that it lists, {name} has most"));
            let most = most.unwrap_or_default();
            format!("{} of it is in functions that the text does not list{most}", percent(*share))
        }
        Says::MostIn(name) => format!("most of it in {name}"),
        Says::MostlyIdle(share, works) => {
            let works = works.as_ref().map(|name| format!("; of the rest {name} has most"));
            format!("{} of it is idle time{}", percent(*share), works.unwrap_or_default())
        }
        Says::LessIn(name) => {
            format!("the largest difference is that less of it is in {name}")
        }
        Says::MoreIn(name) => {
            format!("the largest difference is that more of it is in {name}")
        }
        Says::AsInBase => "as in the base".to_owned(),
        Says::NothingStandsOut => "no function stands out".to_owned(),
        Says::EntersGuest(here, base) => {
            let base = base.map(|base| format!(", in the base {}", percent(base)));
            let base = base.unwrap_or_default();
            format!("{} of its samples are on the way into the guest and out{base}", percent(*here))
        }
        Says::Observed(observed) => {
            format!("{}: no cost of a VM that is known", evidence::observed(*observed))
        }
        Says::NoInstructions => "no function of it was examined".to_owned(),
        Says::OnMemory { base: None, .. } => {
            format!("{}; only a baseline shows how much is normal", conclusion(says))
        }
        Says::OnMemory { base: Some((_, compared)), .. } => {
            format!("{}{}", conclusion(says), comparison(compared))
        }
        Says::SmallPages { by_faults } => {
            format!("{SMALL_PAGES}{}", if *by_faults { ", by its faults" } else { "" })
        }
        Says::LargePages => "most of it is mapped in large pages".to_owned(),
        Says::UnknownPages => "faults do not show it".to_owned(),
        Says::NoNesting => "L1 handled no exit of L2, or the recording does not show it".to_owned(),
        Says::Nesting(each) => format!(
            "each exit of L2 that L1 handled took {} exits of L1; the minimum is one, the entry",
            fixed(*each, 1)
        ),
        Says::Worst(workload) => results::workload(workload),
    }
}

fn gain_at_most(tax: f64) -> String {
    format!("without any exit at most {} of the time would be gained", percent(tax))
}

/// What a hot function shows, without how it compares with the base's.
fn conclusion(shown: &Says) -> String {
    let Says::OnMemory { function, here, base } = shown else { return says(shown) };
    let base = base.as_ref().map(|(share, _)| format!(", in the base {}", percent(*share)));
    format!(
        "{} of {function} is on accesses of memory or right behind a load{}",
        percent(*here),
        base.unwrap_or_default()
    )
}

fn comparison(compared: &ComparedFunction) -> String {
    match compared {
        ComparedFunction::OtherCode => "; the code differs".to_owned(),
        ComparedFunction::Same => ": the same".to_owned(),
        ComparedFunction::Gained { part, most } => {
            let most = most.as_ref().map(|gain| {
                format!("{} from {} to {}", gain.text, percent(gain.from), percent(gain.to))
            });
            format!(
                "; of what instructions gained, {} is there: {}",
                percent(*part),
                most.unwrap_or_default()
            )
        }
    }
}

/// What to record or give to know more.
pub(crate) fn record(record: ToRecord) -> &'static str {
    match record {
        ToRecord::Longer => "ten seconds and more while the load runs",
        ToRecord::Entries => {
            "kvm:kvm_entry beside kvm:kvm_exit: `perf kvm stat record -a`, or `perf record -a -e 'kvm:*' -e sched:sched_switch`"
        }
        ToRecord::Sched => {
            "sched:sched_switch beside the exits: `perf record -a -e 'kvm:*' -e sched:sched_switch`, which shows who had the processors"
        }
        ToRecord::BetweenExits => {
            "what the guest does between exits: a profile of it, its page sizes"
        }
        ToRecord::Recording => {
            "the recording itself (perf.data.guest of `perf kvm stat record`), which contains the running time of the vCPUs"
        }
        ToRecord::Times => {
            "a recording with times: `perf kvm stat record -a`, or `perf record -a -e 'kvm:*' -e sched:sched_switch`"
        }
        ToRecord::TimesOfBoth => "a recording with times (`perf kvm stat record`)",
        ToRecord::TimesOrTrial => {
            "times of exits on both hosts (`perf kvm stat record -a`); or take the exits away (nohz_full in the guest) and see whether the gap stays"
        }
        ToRecord::HostProfile => {
            "a profile of the host: `perf record -a -g`, then `vmtax import --host-profile`"
        }
        ToRecord::GuestProfile => {
            "a profile of the guest: `perf record -g` in it, then `vmtax import --guest-profile`"
        }
        ToRecord::HotFunction => {
            "the hot function: `perf annotate --stdio` in the guest, then `vmtax import --guest-instructions`"
        }
        ToRecord::HotFunctionOfBase => {
            "the same function where it is fast: --against a run that has it"
        }
        ToRecord::PageSizes => {
            "`vmtax doctor --pages` on the host while the VM runs, then `vmtax import --stats`"
        }
        ToRecord::HugePagesOfVmm => {
            "AnonHugePages in /proc/PID/smaps_rollup of the VMM; KVM has no counts of mapped pages on this architecture"
        }
        ToRecord::NestedExits => {
            "a recording with kvm:kvm_nested_vmexit (`perf record -e 'kvm:*'`)"
        }
        ToRecord::Nested => {
            "a recording with kvm:kvm_nested_eret and kvm:kvm_inject_nested_exception (`perf record -e 'kvm:*'`)"
        }
        ToRecord::ExitsOfSetups => {
            "`perf kvm stat record -a` of both setups: results do not show why they differ"
        }
        ToRecord::Repetitions => "each setup at least five times: one run has no spread",
    }
}
