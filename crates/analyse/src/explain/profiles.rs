//! What profiles say: where the host's time goes, where the guest's, and whether a difference sits on accesses of memory.

use std::collections::BTreeMap;

use vmtax_events::profile::Weight;
use vmtax_events::{Profile, ProfileOrigin, is_idle_function};

use super::finding::{Evidence, FunctionShare, MemoryAccess};
use super::step::{
    ComparedFunction, ExplainStep, InstructionGain, Question, Says, StepAnswer, ToRecord,
};
use super::sums::NAMED;
use crate::Ledger;

/// Points of a percent that a function's share must differ by to be named as a difference.
const DIFFERS: f64 = 0.005;
/// Part of what hot instructions gained that must sit on memory for it to be what the difference is.
const MOST: f64 = 0.5;

/// What functions of the kernel that a host's profile of KVM shows are for. Linux arch/x86/kvm, 6.8; beginnings of names.
const ENTERS_GUEST: [&str; 11] = [
    "vmx_vcpu_run",
    "vmx_vcpu_enter_exit",
    "vmx_vmexit",
    "__vmx_vcpu_run",
    "vmx_vmenter",
    "svm_vcpu_run",
    "svm_vcpu_enter_exit",
    "__svm_vcpu_run",
    "__svm_sev_es_vcpu_run",
    "tdx_vcpu_run",
    "__seamcall",
];

fn shares(profile: &Profile) -> BTreeMap<&str, FunctionShare> {
    let all = profile.total().max(1) as f64;
    let share = |weight: Weight| FunctionShare {
        own: weight.own as f64 / all,
        total: weight.total as f64 / all,
    };
    profile.functions().into_iter().map(|(name, weight)| (name, share(weight))).collect()
}

/// A part of the samples below which the guest hardly runs.
const ELSEWHERE: f64 = 0.05;

/// A part of the samples in idle functions from which on that is what the profile shows.
const IDLE: f64 = 0.5;

/// The part of a profile that is idle. Who halts below these waits for a lock: Linux arch/x86/kernel/kvm.c, arch/x86/xen/spinlock.c.
fn idle(profile: &Profile) -> f64 {
    const WAITS: [&str; 2] = ["kvm_wait", "xen_qlock_wait"];
    let is_idle = |stack: &str| {
        let mut functions = stack.split(Profile::BETWEEN);
        functions.clone().next_back().is_some_and(is_idle_function)
            && !functions.any(|name| WAITS.contains(&name))
    };
    let idle = profile.stacks.iter().filter(|(stack, _)| is_idle(stack));
    let idle = idle.map(|(_, weight)| *weight).fold(0, u64::saturating_add);
    idle as f64 / profile.total().max(1) as f64
}

/// Where the host's time goes while it handles exits.
pub(super) fn host(ledger: &Ledger, base: Option<&Ledger>) -> ExplainStep {
    let step = functions(ledger, base, ProfileOrigin::Host, Question::Host, ToRecord::HostProfile);
    let enters = |ledger: &Ledger| {
        let profile = ledger.profiles.get(&ProfileOrigin::Host)?;
        let all = profile.total().max(1) as f64;
        let enters = profile.stacks.iter().filter(|(stack, _)| {
            stack
                .split(Profile::BETWEEN)
                .any(|f| ENTERS_GUEST.iter().any(|name| f.starts_with(name)))
        });
        Some(enters.map(|(_, weight)| *weight).fold(0, u64::saturating_add) as f64 / all)
    };
    let is_elsewhere = |here: f64| {
        base.is_none()
            && here < ELSEWHERE
            && matches!(step.says, Says::MostIn(_) | Says::MostlyIdle(..) | Says::Unlisted(..))
    };
    match enters(ledger) {
        // The guest hardly runs: what the VMM does is what is known.
        Some(here) if is_elsewhere(here) => step,
        Some(here) => ExplainStep { says: Says::EntersGuest(here, base.and_then(enters)), ..step },
        None => step,
    }
}

/// Where the guest's time goes.
pub(super) fn guest(ledger: &Ledger, base: Option<&Ledger>) -> ExplainStep {
    functions(ledger, base, ProfileOrigin::Guest, Question::Guest, ToRecord::GuestProfile)
}

fn functions(
    ledger: &Ledger,
    base: Option<&Ledger>,
    place: ProfileOrigin,
    question: Question,
    next: ToRecord,
) -> ExplainStep {
    let Some(profile) = ledger.profiles.get(&place) else {
        return ExplainStep::new(question, StepAnswer::Unknown, Says::NoProfile).next(next);
    };
    let here = shares(profile);
    let there = base.and_then(|base| base.profiles.get(&place)).map(shares);
    let mut rows: Vec<(&str, FunctionShare, Option<FunctionShare>)> = here
        .iter()
        .map(|(name, share)| {
            let base = there.as_ref().map(|base| base.get(name).copied().unwrap_or_default());
            (*name, *share, base)
        })
        .collect();
    if let Some(there) = &there {
        let gone = there.iter().filter(|(name, _)| !here.contains_key(*name));
        rows.extend(gone.map(|(name, share)| (*name, FunctionShare::default(), Some(*share))));
    }
    // What runs itself is where the time is; with a base, what differs most.
    let weight = |(_, share, base): &(&str, FunctionShare, Option<FunctionShare>)| match base {
        Some(base) => (share.own - base.own).abs(),
        None => share.own,
    };
    rows.retain(|row| weight(row) >= DIFFERS);
    rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)).then(a.0.cmp(b.0)));
    let line = |(name, here, base): &(&str, FunctionShare, Option<FunctionShare>)| {
        Evidence::Function { name: (*name).to_owned(), here: *here, base: *base }
    };
    let evidence = rows.iter().take(NAMED).map(line).collect();
    let idle = idle(profile);
    let says = match (rows.first(), &there) {
        (Some((Profile::UNLISTED, share, _)), None) => {
            Says::Unlisted(share.own, rows.get(1).map(|(name, ..)| (*name).to_owned()))
        }
        (Some(_), None) if idle >= IDLE => {
            let works = rows.iter().find(|(name, ..)| !is_idle_function(name));
            Says::MostlyIdle(idle, works.map(|(name, ..)| (*name).to_owned()))
        }
        (Some((name, ..)), None) => Says::MostIn((*name).to_owned()),
        (Some((name, share, Some(base))), _) if share.own < base.own => {
            Says::LessIn((*name).to_owned())
        }
        (Some((name, ..)), Some(_)) => Says::MoreIn((*name).to_owned()),
        (None, Some(_)) => Says::AsInBase,
        (None, None) => Says::NothingStandsOut,
    };
    ExplainStep::new(question, StepAnswer::Yes, says).evidence(evidence)
}

/// Does the difference of a hot function sit on accesses of memory?
pub(super) fn instructions(ledger: &Ledger, base: Option<&Ledger>) -> ExplainStep {
    let step = |answer, says| ExplainStep::new(Question::Instructions, answer, says);
    let Some(here) = ledger.profiles.get(&ProfileOrigin::Instructions).map(AnnotatedFunction::of)
    else {
        return step(StepAnswer::Unknown, Says::NoInstructions).next(ToRecord::HotFunction);
    };
    let says =
        |base| Says::OnMemory { function: here.name.to_owned(), here: here.on_memory(), base };
    let Some(there) = base
        .and_then(|base| base.profiles.get(&ProfileOrigin::Instructions))
        .map(AnnotatedFunction::of)
    else {
        return step(StepAnswer::Unknown, says(None))
            .evidence(here.hottest(false))
            .next(ToRecord::HotFunctionOfBase);
    };
    let (answer, compared) = match here.gained(&there) {
        // Not the same code: only the shares can be set side by side.
        None => (StepAnswer::Unknown, ComparedFunction::OtherCode),
        Some((all, _)) if all < DIFFERS => (StepAnswer::No, ComparedFunction::Same),
        Some((all, on_memory)) => {
            let part = on_memory / all;
            let answer = if part >= MOST { StepAnswer::Yes } else { StepAnswer::No };
            (answer, ComparedFunction::Gained { part, most: here.most_gained(&there) })
        }
    };
    step(answer, says(Some((there.on_memory(), compared))))
        .evidence([here.hottest(false), there.hottest(true)].concat())
}

/// A function by instruction.
struct AnnotatedFunction<'a> {
    name: &'a str,
    /// In the order of addresses.
    instructions: Vec<Instruction<'a>>,
}

struct Instruction<'a> {
    text: &'a str,
    share: f64,
    /// It accesses memory, or it is the one behind it, where a profiler that is late sees the wait.
    on_memory: bool,
}

impl<'a> AnnotatedFunction<'a> {
    fn of(profile: &'a Profile) -> AnnotatedFunction<'a> {
        let all = profile.total().max(1) as f64;
        let mut name = "";
        let mut rows: Vec<(u64, &str, f64)> = Vec::new();
        for (stack, weight) in &profile.stacks {
            let Some((function, instruction)) = stack.split_once(Profile::BETWEEN) else {
                continue;
            };
            let Some((address, text)) = instruction.split_once(' ') else { continue };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            name = function;
            rows.push((address, text, *weight as f64 / all));
        }
        rows.sort_by_key(|(address, ..)| *address);
        let mut behind = false;
        let instructions = rows.into_iter().map(|(_, text, share)| {
            let accesses = accesses_memory(text);
            let on_memory = accesses || behind;
            behind = accesses && !only_stores(text);
            Instruction { text, share, on_memory }
        });
        AnnotatedFunction { name, instructions: instructions.collect() }
    }

    fn on_memory(&self) -> f64 {
        self.instructions.iter().filter(|i| i.on_memory).map(|i| i.share).sum()
    }

    fn hottest(&self, of_base: bool) -> Vec<Evidence> {
        let mut all: Vec<&Instruction<'_>> = self.instructions.iter().collect();
        all.sort_by(|a, b| b.share.total_cmp(&a.share));
        let line = |i: &&Instruction<'_>| {
            let access = match (i.on_memory, accesses_memory(i.text)) {
                (_, true) => MemoryAccess::Own,
                (true, false) => MemoryAccess::BehindLoad,
                (false, false) => MemoryAccess::None,
            };
            Evidence::Instruction { of_base, text: i.text.to_owned(), share: i.share, access }
        };
        all.iter().filter(|i| i.share >= DIFFERS).take(NAMED).map(line).collect()
    }

    /// Whether both are the same code: instructions of the same names in the same order. Addresses may differ.
    fn is_same(&self, other: &AnnotatedFunction<'_>) -> bool {
        let name = |i: &Instruction<'_>| i.text.split(' ').next().unwrap_or_default().to_owned();
        self.instructions.len() == other.instructions.len()
            && self.instructions.iter().zip(&other.instructions).all(|(a, b)| name(a) == name(b))
    }

    /// What instructions have more of than in the other: of all, and of those on memory.
    fn gained(&self, other: &AnnotatedFunction<'_>) -> Option<(f64, f64)> {
        if !self.is_same(other) {
            return None;
        }
        let pairs = self.instructions.iter().zip(&other.instructions);
        Some(pairs.fold((0.0, 0.0), |(all, on_memory), (a, b)| {
            let more = (a.share - b.share).max(0.0);
            (all + more, on_memory + if a.on_memory { more } else { 0.0 })
        }))
    }

    fn most_gained(&self, other: &AnnotatedFunction<'_>) -> Option<InstructionGain> {
        let pairs = self.instructions.iter().zip(&other.instructions);
        let most =
            pairs.max_by(|(a, b), (c, d)| (a.share - b.share).total_cmp(&(c.share - d.share)));
        most.map(|(here, there)| InstructionGain {
            text: here.text.to_owned(),
            from: there.share,
            to: here.share,
        })
    }
}

/// Whether an instruction, as objdump writes it in either syntax, accesses memory by an operand.
fn accesses_memory(text: &str) -> bool {
    // Behind these there is a comment or a symbol.
    let text = text.split(['#', '<']).next().unwrap_or_default();
    let name = text.split(' ').next().unwrap_or_default();
    let names_an_address = text.contains('(') || text.contains('[');
    let only_computes =
        name.starts_with("lea") || name.starts_with("nop") || name.starts_with("prefetch");
    names_an_address && !only_computes
}

/// Whether an instruction that accesses memory only stores: no instruction waits for that.
fn only_stores(text: &str) -> bool {
    let text = text.split(['#', '<']).next().unwrap_or_default();
    let Some((name, operands)) = text.split_once(' ') else { return false };
    // AT&T's syntax marks registers, and names what is written last.
    let ends_in_memory = match operands.contains('%') {
        true => operands.trim_end().ends_with(')'),
        false => operands.split(',').next().is_some_and(|first| first.contains('[')),
    };
    name.contains("mov") && ends_in_memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_in_memory() {
        for text in [
            "movss (%rax),%xmm0",
            "movss 0x8(%rsp),%xmm1",
            "add %eax,(%rdi,%rcx,4)",
            "mov eax,DWORD PTR [rbp-0x4]",
        ] {
            assert!(accesses_memory(text), "{text}");
        }
        for text in [
            "lea 0x8(%rsp),%rax",
            "nopw 0x0(%rax,%rax,1)",
            "pxor %xmm0,%xmm0",
            "jmp 11d5 <f(int)+0x5>",
            "call 10 # (x)",
        ] {
            assert!(!accesses_memory(text), "{text}");
        }
    }

    #[test]
    fn stores_are_not_waited_for() {
        for text in [
            "movss %xmm0,(%rdx)",
            "mov %eax,0x8(%rsp)",
            "mov DWORD PTR [rax],ecx",
            "movl $0x0,(%rax)",
        ] {
            assert!(accesses_memory(text) && only_stores(text), "{text}");
        }
        for text in ["movss (%rax),%xmm0", "add %eax,(%rdx)", "mov ecx,DWORD PTR [rax]"] {
            assert!(accesses_memory(text) && !only_stores(text), "{text}");
        }
    }
}
