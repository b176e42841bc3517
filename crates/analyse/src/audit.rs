//! Settings, and what a run measured -> what costs time, and what would change it.
//!
//! `rules` is the one table: a row for each thing to look at, with what is wanted and why, and for each check
//! in it the causes of the ledger that it changes. A check looks at [`vmtax_events::setting`] and gives one of
//! four verdicts with its evidence; with a run `gain` adds what the cause cost there and how much of it the
//! setting could remove at most.
//!
//! Left out on purpose: reading anything, and guessing. What is not known is [`Verdict::Unknown`], a gain that
//! no exit shows has no number.

mod counters;
mod devices;
mod gain;
mod idle;
mod interrupts;
mod memory;
mod nested;
mod placement;
mod power;
mod rules;
mod timers;
mod versions;
mod view;
mod vmm;

use vmtax_events::setting::{Fact, Kvm, Settings, VmProcess};
use vmtax_events::{Cause, ExitKey, Isa, words};

use crate::Ledger;
use crate::remedy::{self, Applies, Context, Setting, VmKind};

pub use gain::{CauseMeasured, Gain, Measured, at_most};
pub use rules::RULES;
pub use view::size;
pub use vmm::kind;

use view::View;

words! {
    /// What a check says of a setting.
    pub enum Verdict {
        /// It costs time, or may.
        Costs = "costs you",
        /// It is unknown.
        Unknown = "unknown",
        /// It is as wanted.
        Ok = "ok",
        /// It does not matter here.
        NotApplicable = "not applicable",
    }
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The host.
    Host,
    /// A VM, by its process.
    Vm(u32),
    /// The guest that was named.
    Guest,
}

/// How to change a setting. Every text in it is of this program, but for paths and numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// Write a value into a file, now.
    Write {
        /// The file.
        path: String,
        /// What to write.
        value: &'static str,
    },
    /// Write a value into each file of a pattern of [`vmtax_events::setting::files`], now.
    WriteEach {
        /// The pattern.
        pattern: &'static str,
        /// What to write.
        value: &'static str,
    },
    /// An option of a kernel module, from when it is loaded next.
    Module {
        /// The module.
        module: &'static str,
        /// The option.
        option: &'static str,
    },
    /// Words for the kernel's command line, from the next boot.
    Kernel(String),
    /// How the VM is to be started, in QEMU's words.
    Vmm(&'static str),
    /// Give each of these threads a CPU of its own.
    Pin(Vec<u32>),
    /// Something else to do.
    Advice(&'static str),
}

impl Fix {
    /// The setting of this row of the table of remedies.
    fn of_remedy(id: &str) -> Option<Fix> {
        remedy::find(id).and_then(|row| row.setting).map(Fix::of_setting)
    }

    fn of_setting(setting: Setting) -> Fix {
        match setting {
            Setting::File { path, value } => Fix::Write { path: path.to_owned(), value },
            Setting::Module { module, option } => Fix::Module { module, option },
            Setting::Kernel(word) => Fix::Kernel(word.to_owned()),
            Setting::Qemu { words, .. } => Fix::Vmm(words),
        }
    }

    /// The option of a module that is built in belongs on the kernel's command line.
    fn for_kernel(self, kvm: &Kvm) -> Fix {
        match self {
            Fix::Module { module, option }
                if kvm.module(module).is_some_and(|module| module.built_in) =>
            {
                Fix::Kernel(format!("{module}.{option}"))
            }
            fix => fix,
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The verdict.
    pub verdict: Verdict,
    /// Why, in one sentence without its full stop; may hold hostile text.
    pub what: String,
    /// The settings that it rests on; hostile text.
    pub evidence: Vec<Fact<String>>,
    /// How to change it.
    pub fix: Option<Fix>,
}

impl Found {
    fn new(verdict: Verdict, what: impl Into<String>) -> Found {
        Found { verdict, what: what.into(), evidence: Vec::new(), fix: None }
    }

    fn ok(what: impl Into<String>) -> Found {
        Found::new(Verdict::Ok, what)
    }

    fn costs(what: impl Into<String>) -> Found {
        Found::new(Verdict::Costs, what)
    }

    fn unknown(what: impl Into<String>) -> Found {
        Found::new(Verdict::Unknown, what)
    }

    fn not_applicable(what: impl Into<String>) -> Found {
        Found::new(Verdict::NotApplicable, what)
    }

    fn seen(mut self, fact: Fact<String>) -> Found {
        self.evidence.push(fact);
        self
    }

    fn remedy(mut self, id: &str) -> Found {
        self.fix = Fix::of_remedy(id);
        self
    }

    fn fix(mut self, fix: Fix) -> Found {
        self.fix = Some(fix);
        self
    }

    /// A setting could not be read.
    fn unread(fact: Fact<String>) -> Found {
        let why = fact.value.as_ref().err().map(ToString::to_string).unwrap_or_default();
        Found::unknown(format!("the setting could not be read: {why}")).seen(fact)
    }

    /// A setting says something that it should not.
    fn strange(fact: Fact<String>) -> Found {
        Found::unknown("the setting has an unknown value").seen(fact)
    }
}

/// What a setting can remove of a run.
#[derive(Clone, Copy, Debug)]
pub enum Removes {
    /// No exits: what it changes shows elsewhere.
    Nothing,
    /// At most these exits.
    Exits(fn(&ExitKey) -> bool),
    /// At most the time that vCPUs were preempted.
    Preemption,
}

/// Looks at a setting.
#[derive(Clone, Copy)]
enum Judge {
    Host(fn(&View) -> Found),
    Vm(fn(&View, &VmProcess) -> Found),
    Guest(fn(&View, &Settings) -> Found),
}

/// A row of the table: something to look at.
pub struct Rule {
    /// Its word. These words never change.
    pub id: &'static str,
    /// What is looked at.
    pub title: &'static str,
    /// What is wanted.
    pub wanted: &'static str,
    /// Why, and how much it was measured to matter.
    pub why: &'static str,
    /// Who measured it.
    pub source: Option<&'static str>,
    /// The settings that it consists of.
    pub checks: &'static [Check],
}

/// One setting of a rule.
pub struct Check {
    /// Its word. These words never change.
    pub id: &'static str,
    /// The files that it is read from.
    pub files: &'static str,
    /// The causes of exits that it changes.
    pub causes: &'static [Cause],
    /// What it can remove at most.
    pub removes: Removes,
    /// It is about TDX or SEV-SNP, and has never been tried on such hardware.
    pub confidential: bool,
    judge: Judge,
}

impl Check {
    /// `host`, `VM` or `guest`: whose setting it is.
    pub fn place(&self) -> &'static str {
        match self.judge {
            Judge::Host(_) => "host",
            Judge::Vm(_) => "VM",
            Judge::Guest(_) => "guest",
        }
    }
}

/// What is audited.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The host.
    pub host: &'a Settings,
    /// Its KVM.
    pub kvm: &'a Kvm,
    /// The VMs to look at.
    pub vms: &'a [VmProcess],
    /// There are no others that matter.
    pub complete: bool,
    /// A guest, when one was named.
    pub guest: Option<&'a Settings>,
    /// A run on this host, when one was named.
    pub ledger: Option<&'a Ledger>,
}

/// A verdict about one setting of one subject.
pub struct Finding {
    /// The row.
    pub rule: &'static Rule,
    /// The check.
    pub check: &'static Check,
    /// Whose setting.
    pub subject: Subject,
    /// What was found.
    pub found: Found,
    /// What the run says of it, where that was given and the verdict is not good.
    pub measured: Option<Measured>,
}

/// Every check of the table: first what costs, most measured time first, then what is unknown, what is good, and
/// what does not apply. Without a run the order is the table's.
pub fn audit(input: Input<'_>) -> Vec<Finding> {
    let view = View::new(input);
    let mut findings = Vec::new();
    for rule in RULES {
        for check in rule.checks {
            let found: Vec<(Subject, Found)> = match check.judge {
                Judge::Host(judge) => vec![(Subject::Host, judge(&view))],
                Judge::Vm(judge) => {
                    input.vms.iter().map(|vm| (Subject::Vm(vm.pid), judge(&view, vm))).collect()
                }
                Judge::Guest(judge) => {
                    input.guest.iter().map(|guest| (Subject::Guest, judge(&view, guest))).collect()
                }
            };
            for (subject, mut found) in found {
                found.fix = found.fix.map(|fix| fix.for_kernel(input.kvm));
                allow(&mut found, check, subject, input, &view);
                let is_bad = matches!(found.verdict, Verdict::Costs | Verdict::Unknown);
                let measured = input
                    .ledger
                    .filter(|_| is_bad)
                    .map(|ledger| gain::measure(ledger, check, subject, input.vms));
                findings.push(Finding { rule, check, subject, found, measured });
            }
        }
    }
    // Stable: equal ones stay in the table's order.
    let share = |f: &Finding| f.measured.as_ref().and_then(|m| m.gain.share()).unwrap_or(-1.0);
    findings
        .sort_by(|a, b| a.found.verdict.cmp(&b.found.verdict).then(share(b).total_cmp(&share(a))));
    findings
}

/// Takes away a fix that the table of remedies rules out for this VM, or that is in the words of another VMM.
fn allow(found: &mut Found, check: &Check, subject: Subject, input: Input<'_>, view: &View<'_>) {
    if found.fix.is_none() {
        return;
    }
    let vm = match (subject, input.vms) {
        (Subject::Vm(pid), vms) => vms.iter().find(|vm| vm.pid == pid),
        (_, [only]) => Some(only),
        _ => None,
    };
    if let (Some(Fix::Vmm(_)), Some(vm)) = (&found.fix, vm)
        && vm.arguments.value.is_ok()
        && !vmm::is_qemu(vm)
    {
        found.fix = None;
        found.what += "; the option is known for QEMU alone, and this is another VMM";
        return;
    }
    let context = Context {
        kind: vm.map_or(VmKind::Unknown, vmm::kind),
        vendor: match view.vendor {
            Some(view::Vendor::Intel) => Isa::Vmx,
            Some(view::Vendor::Amd) => Isa::Svm,
            None => Isa::Unknown,
        },
        has_virtual_apic: false,
        is_contended: false,
        polls: false,
        guest_memfd: vm.is_some_and(|vm| vm.guest_memfd),
        converts: false,
        logs_writes: false,
        may_shadow: false,
        is_windows: false,
    };
    if let Some(remedy) = remedy::of_check(check.id)
        && let Applies::No(why) = remedy.applies_to(&context)
    {
        found.fix = None;
        found.what += &format!("; {why}");
    }
}
