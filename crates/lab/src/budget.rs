//! Budgets: what an operation may cost, in a file that is kept with the code it guards.
//!
//! ```toml
//! host = "amd"
//! kernel = "6.1.0-56-amd64"
//! emulator = "QEMU TCG 7.2.22 (icount)"
//!
//! [[operation]]
//! name = "cpuid"
//! level = "L2"
//! count = 200
//! path = 13120.0
//! tolerance = 0.005          # of the path, 0.005 when not given
//! exits = { "L2 cpuid" = 200, "L1 vmload" = 400 }
//!
//! [[operation]]
//! name = "touch-4k-guest-memfd"
//! level = "L1"
//! count = 2048
//! faults = 512.0             # for each 2 MiB
//! pages = { 4K = 2048 }      # mapped by the batch
//!
//! [[operation]]
//! name = "slot-first"
//! level = "L1"
//! count = 1
//! path = 43617.0
//! waited = [0.0, 0.0]        # ns, of the VMs that waited least and most
//!
//! [[operation]]
//! name = "matmul-4k-on-4k"
//! level = "L1"
//! count = 262144
//! walks = { zen4 = 256260 }         # simulated page walks of the batch
//! references = { zen4 = 512530 }    # entries of page tables that they read
//! ```
//! Less than a budget is no breach, but for a comparison that is to be exact. Exits are exact (those of an operation whose vCPUs race have an `exits-tolerance`, those left to chance a number in `exits-may-differ`): those of one batch, without the host's own interrupts, which belong to its clock and not to the operation.
//! Left out: where the numbers come from (the binary gives them) and how a breach is printed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use vmtax_durable::read_small_text;

use crate::Error;

/// Most bytes of a file: a thousand times as many operations as there are. What is made of it takes a hundred times as much memory.
const MOST_BYTES: u64 = 1 << 20;
/// The size of small pages in [`Allowance::pages`].
const SMALL: &str = "4K";
/// How much a path may be longer when a budget does not say.
pub const TOLERANCE: f64 = 0.005;
/// How much exits of an operation whose vCPUs race may differ: a twentieth of their number.
pub const RACE_TOLERANCE: f64 = 0.05;
/// As much of any number, where there is a tolerance: a race that ends the other way round twice, each time with two exits (the VMLOADs of L1 for one of
/// L2).
const RACE_LEAST: f64 = 4.0;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Which emulated host it is for.
    pub host: String,
    /// The kernel it was taken from, for people.
    #[serde(default)]
    pub kernel: String,
    /// The emulator that it was taken with, and its version; empty in budgets of before.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub emulator: String,
    /// One for each operation and level.
    #[serde(default, rename = "operation")]
    pub operations: Vec<Allowance>,
}

/// What one operation may cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allowance {
    pub name: String,
    /// `L1` or `L2`.
    pub level: String,
    /// Operations in the batch that the exits were counted in.
    pub count: u64,
    /// Instructions of one operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<f64>,
    /// Part of the path that it may be off, up or down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
    /// Nanoseconds that a step of a VM's life waited: least and most of the VMs. It may wait less, and some VMs longer, but not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<[f64; 2]>,
    /// Page faults for each 2 MiB of memory; of operations about memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<f64>,
    /// Pages that the batch leaves mapped, by size: `4K`, `2M`, `1G`; of operations about memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<BTreeMap<String, u64>>,
    /// Page walks of the batch by simulated processor; of operations whose accesses are recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walks: Option<BTreeMap<String, u64>>,
    /// Entries of page tables that these walks read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub references: Option<BTreeMap<String, u64>>,
    /// Exits of the batch by level, reason and detail; not looked at when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exits: Option<BTreeMap<String, u64>>,
    /// Part of each number of exits that it may be off; they are exact when absent.
    #[serde(default, rename = "exits-tolerance", skip_serializing_if = "Option::is_none")]
    pub exits_tolerance: Option<f64>,
    /// How much the numbers of these exits may be off, because chance decides on them.
    #[serde(default, rename = "exits-may-differ", skip_serializing_if = "BTreeMap::is_empty")]
    pub exits_may_differ: BTreeMap<String, u64>,
}

/// What a number of a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetUnit {
    /// Instructions of one operation.
    Instructions,
    /// Nanoseconds of waiting.
    Nanoseconds,
    /// Exits of the batch.
    Exits,
    /// Page faults for each 2 MiB.
    Faults,
    /// Pages of 4 KiB that the batch leaves mapped.
    SmallPages,
    /// Larger pages that the batch leaves mapped.
    LargePages,
    /// Page walks of the batch.
    Walks,
    /// Entries of page tables that walks read.
    References,
    /// Something that must be as it is.
    Exact,
}

impl BudgetUnit {
    /// Its word behind a number.
    pub fn name(self) -> &'static str {
        match self {
            BudgetUnit::Instructions => "instructions",
            BudgetUnit::Nanoseconds => "ns",
            BudgetUnit::Exits => "exits",
            BudgetUnit::Faults => "faults",
            BudgetUnit::SmallPages | BudgetUnit::LargePages => "pages",
            BudgetUnit::Walks => "walks",
            BudgetUnit::References => "references",
            BudgetUnit::Exact => "",
        }
    }
}

/// A number that is not the budget's.
#[derive(Clone, Debug, PartialEq)]
pub struct Breach {
    pub name: String,
    /// `L1` or `L2`.
    pub level: String,
    /// `path`, the exit's name, or what is missing.
    pub what: String,
    /// What the numbers count.
    pub unit: BudgetUnit,
    pub allowed: f64,
    pub found: f64,
}

impl Breach {
    /// Whether the present number is good news.
    pub fn is_better(&self) -> bool {
        match self.unit {
            BudgetUnit::Exact => false,
            BudgetUnit::LargePages => self.found > self.allowed,
            BudgetUnit::Instructions
            | BudgetUnit::Nanoseconds
            | BudgetUnit::Exits
            | BudgetUnit::Faults
            | BudgetUnit::Walks
            | BudgetUnit::References
            | BudgetUnit::SmallPages => self.found < self.allowed,
        }
    }
}

/// A toml error as one sentence with its line, without toml's drawing of the place.
pub fn toml_problem(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

impl Budget {
    /// Reads a budget file.
    pub fn read(path: &Path) -> Result<Budget, Error> {
        let text = read_small_text(path, MOST_BYTES).map_err(Error::io(path, "read the budget"))?;
        let budget: Budget = toml::from_str(&text).map_err(|error| Error::Budget {
            path: path.to_owned(),
            problem: format!("is no budget: {}", toml_problem(&text, &error)),
        })?;
        for one in &budget.operations {
            let [least, most] = one.waited.map_or([None; 2], |waited| waited.map(Some));
            let numbers = [one.path, one.tolerance, one.exits_tolerance, least, most];
            if numbers.into_iter().flatten().any(|number| !number.is_finite() || number < 0.0) {
                let problem = format!(
                    "operation {} {}: path, waited and tolerances must be numbers from 0 on",
                    one.name, one.level
                );
                return Err(Error::Budget { path: path.to_owned(), problem });
            }
        }
        Ok(budget)
    }

    pub fn to_text(&self) -> String {
        let head = "# What the operations may cost, by `vmtax lab run --bless`. Exits of a batch are exact; a path may be off by its\n\
                    # tolerance (0.005 when not given). `vmtax lab run --budget FILE` holds a run against it.\n\n";
        // These types have nothing that TOML cannot say.
        let text = toml::to_string(self).unwrap_or_default();
        format!("{head}{text}")
    }

    /// Everything that is not as it says, better or worse. Operations that were not run are breaches too: a budget that is not looked
    /// at guards nothing.
    pub fn breaches(&self, found: &[Allowance]) -> Vec<Breach> {
        let mut breaches = Vec::new();
        for allowed in &self.operations {
            match found.iter().find(|one| one.name == allowed.name && one.level == allowed.level) {
                Some(found) => allowed.compare(found, &mut breaches),
                None => breaches.push(allowed.breach("was not run", BudgetUnit::Exact, 1.0, 0.0)),
            }
        }
        breaches
    }
}

impl Allowance {
    fn breach(
        &self,
        what: impl Into<String>,
        unit: BudgetUnit,
        allowed: f64,
        found: f64,
    ) -> Breach {
        Breach {
            name: self.name.clone(),
            level: self.level.clone(),
            what: what.into(),
            unit,
            allowed,
            found,
        }
    }

    /// How far a number of exits may be off.
    fn most_apart(&self, exit: &str, allowed: f64) -> f64 {
        let race = self.exits_tolerance.map_or(0.0, |part| (allowed * part).max(RACE_LEAST));
        let chance = self.exits_may_differ.get(exit).copied().unwrap_or(0);
        race.max(chance as f64)
    }

    /// Counts by name that are further apart than they may be.
    fn compare_counts(
        &self,
        (allowed, found): (&BTreeMap<String, u64>, &BTreeMap<String, u64>),
        most_apart: impl Fn(&str, f64) -> f64,
        called: impl Fn(&str) -> (String, BudgetUnit),
        breaches: &mut Vec<Breach>,
    ) {
        let names: BTreeSet<&String> = allowed.keys().chain(found.keys()).collect();
        for name in names {
            let number = |of: &BTreeMap<String, u64>| of.get(name).copied().unwrap_or(0) as f64;
            let (allowed, found) = (number(allowed), number(found));
            if (allowed - found).abs() > most_apart(name, allowed) {
                let (what, unit) = called(name);
                breaches.push(self.breach(what, unit, allowed, found));
            }
        }
    }

    fn compare_memory(&self, found: &Allowance, breaches: &mut Vec<Breach>) {
        if let Some(allowed) = self.faults {
            match found.faults {
                Some(now) if now == allowed => {}
                Some(now) => breaches.push(self.breach(
                    "page faults for each 2 MiB",
                    BudgetUnit::Faults,
                    allowed,
                    now,
                )),
                None => {
                    let what = "page faults were not counted";
                    breaches.push(self.breach(what, BudgetUnit::Exact, allowed, 0.0));
                }
            }
        }
        if let Some(allowed) = &self.pages {
            let Some(now) = &found.pages else {
                let all = allowed.values().sum::<u64>() as f64;
                breaches.push(self.breach("pages were not counted", BudgetUnit::Exact, all, 0.0));
                return;
            };
            let called = |size: &str| {
                let unit =
                    if size == SMALL { BudgetUnit::SmallPages } else { BudgetUnit::LargePages };
                (format!("pages of {size} mapped"), unit)
            };
            self.compare_counts((allowed, now), |_, _| 0.0, called, breaches);
        }
    }

    fn compare_simulated(&self, found: &Allowance, breaches: &mut Vec<Breach>) {
        for (allowed, now, unit) in [
            (&self.walks, &found.walks, BudgetUnit::Walks),
            (&self.references, &found.references, BudgetUnit::References),
        ] {
            let Some(allowed) = allowed else { continue };
            let Some(now) = now else {
                let all = allowed.values().sum::<u64>() as f64;
                let what = format!("{} were not simulated", unit.name());
                breaches.push(self.breach(what, BudgetUnit::Exact, all, 0.0));
                continue;
            };
            let called = |processor: &str| (format!("{} on {processor}", unit.name()), unit);
            self.compare_counts((allowed, now), |_, _| 0.0, called, breaches);
        }
    }

    fn compare(&self, found: &Allowance, breaches: &mut Vec<Breach>) {
        if self.count != found.count {
            breaches.push(self.breach(
                "operations in a batch",
                BudgetUnit::Exact,
                self.count as f64,
                found.count as f64,
            ));
            return;
        }
        self.compare_memory(found, breaches);
        self.compare_simulated(found, breaches);
        if let (Some(exits), None) = (&self.exits, &found.exits) {
            let allowed: u64 = exits.values().sum();
            let what = "exits were not recorded";
            breaches.push(self.breach(what, BudgetUnit::Exact, allowed as f64, 0.0));
        }
        if let (Some(exits), Some(now)) = (&self.exits, &found.exits) {
            let most_apart = |exit: &str, allowed| self.most_apart(exit, allowed);
            let called = |exit: &str| (exit.to_owned(), BudgetUnit::Exits);
            self.compare_counts((exits, now), most_apart, called, breaches);
        }
        if let Some([_, most]) = self.waited {
            match found.waited {
                Some([least, _]) if least <= most => {}
                Some([least, _]) => {
                    breaches.push(self.breach(
                        "waited at least",
                        BudgetUnit::Nanoseconds,
                        most,
                        least,
                    ));
                }
                None => {
                    breaches.push(self.breach(
                        "waiting was not measured",
                        BudgetUnit::Exact,
                        most,
                        0.0,
                    ));
                }
            }
        }
        if let Some(path) = self.path {
            let tolerance = self.tolerance.unwrap_or(TOLERANCE);
            match found.path {
                Some(now) if (now - path).abs() <= path * tolerance => {}
                Some(now) => {
                    breaches.push(self.breach("path", BudgetUnit::Instructions, path, now))
                }
                None => {
                    breaches.push(self.breach(
                        "path was not measured",
                        BudgetUnit::Exact,
                        path,
                        0.0,
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(path: f64, exits: &[(&str, u64)]) -> Allowance {
        Allowance {
            name: "cpuid".to_owned(),
            level: "L1".to_owned(),
            count: 200,
            path: Some(path),
            tolerance: None,
            waited: None,
            faults: None,
            pages: None,
            walks: None,
            references: None,
            exits: Some(exits.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()),
            exits_tolerance: None,
            exits_may_differ: BTreeMap::new(),
        }
    }

    fn budget(allowed: Allowance) -> Budget {
        Budget {
            host: "amd".to_owned(),
            kernel: String::new(),
            emulator: String::new(),
            operations: vec![allowed],
        }
    }

    fn what(budget: &Budget, found: &[Allowance]) -> Vec<(String, f64, f64)> {
        budget.breaches(found).into_iter().map(|b| (b.what, b.allowed, b.found)).collect()
    }

    #[test]
    fn exits_are_exact_and_paths_have_a_tolerance() {
        let budget = budget(one(1000.0, &[("L1 cpuid", 200)]));
        assert_eq!(what(&budget, &[one(1005.0, &[("L1 cpuid", 200)])]), []);
        assert_eq!(
            what(&budget, &[one(1005.1, &[("L1 cpuid", 200)])]),
            [("path".to_owned(), 1000.0, 1005.1)]
        );
        assert_eq!(
            what(&budget, &[one(994.9, &[("L1 cpuid", 200)])]),
            [("path".to_owned(), 1000.0, 994.9)]
        );
        assert_eq!(
            what(&budget, &[one(1000.0, &[("L1 cpuid", 201), ("L1 msr", 3)])]),
            [("L1 cpuid".to_owned(), 200.0, 201.0), ("L1 msr".to_owned(), 0.0, 3.0)]
        );
        assert_eq!(what(&budget, &[]), [("was not run".to_owned(), 1.0, 0.0)]);
    }

    /// Two vCPUs that take turns: 39 or 43 of an exit are the same, 30 are not.
    #[test]
    fn exits_of_a_race_have_a_tolerance() {
        let race =
            |exits| Allowance { exits_tolerance: Some(RACE_TOLERANCE), ..one(1000.0, exits) };
        let budget = budget(race(&[("L1 ICR", 39), ("L1 vmload", 200)]));
        for near in [[("L1 ICR", 43), ("L1 vmload", 190)], [("L1 ICR", 35), ("L1 vmload", 210)]] {
            assert_eq!(what(&budget, &[one(1000.0, &near)]), []);
        }
        let far = [("L1 ICR", 44), ("L1 vmload", 211), ("L1 cpuid", 5)];
        let expected =
            [("L1 ICR", 39.0, 44.0), ("L1 cpuid", 0.0, 5.0), ("L1 vmload", 200.0, 211.0)];
        let expected = expected.map(|(name, allowed, now)| (name.to_owned(), allowed, now));
        assert_eq!(what(&budget, &[one(1000.0, &far)]), expected);
    }

    /// Four writes of five are the same, none is not; another exit of the operation stays exact, and so does this one where the budget has none.
    #[test]
    fn exits_left_to_chance_may_differ_by_a_number() {
        let write = "L1 VMWRITE VMCS field HOST_RSP";
        let mut allowed = one(1000.0, &[(write, 5), ("L1 VMRESUME", 40)]);
        let without = budget(one(1000.0, &[("L1 VMRESUME", 40)]));
        allowed.exits_may_differ = BTreeMap::from([(write.to_owned(), 3)]);
        let budget = budget(allowed);
        let run = |writes, resumes| one(1000.0, &[(write, writes), ("L1 VMRESUME", resumes)]);
        assert_eq!(what(&budget, &[run(2, 40)]), []);
        assert_eq!(what(&budget, &[run(8, 40)]), []);
        assert_eq!(what(&budget, &[run(0, 40)]), [(write.to_owned(), 5.0, 0.0)]);
        assert_eq!(what(&budget, &[run(5, 41)]), [("L1 VMRESUME".to_owned(), 40.0, 41.0)]);
        assert_eq!(what(&without, &[run(1, 40)]), [(write.to_owned(), 0.0, 1.0)]);
    }

    /// 6.18 waits 5 ms for a memory slot after the irqchip, where 6.17 did not wait; 6.1 waits 14 to 38 ms for KVM_CREATE_VM, so that some VMs wait longer.
    #[test]
    fn a_step_may_not_wait_longer_in_all_lives() {
        let step = |waited| Allowance { waited, exits: None, ..one(1000.0, &[]) };
        let against = |allowed, found| what(&budget(step(allowed)), &[step(found)]);
        let none = Some([0.0, 0.0]);
        let (grace, longer) = (Some([14.5e6, 38.6e6]), Some([36.0e6, 60.0e6]));
        assert_eq!(against(none, none), []);
        assert_eq!(against(grace, longer), []);
        assert_eq!(against(grace, none), []);
        assert_eq!(
            against(none, Some([5.0e6, 5.4e6])),
            [("waited at least".to_owned(), 0.0, 5.0e6)]
        );
        assert_eq!(against(grace, None), [("waiting was not measured".to_owned(), 38.6e6, 0.0)]);
        assert_eq!(against(None, grace), []);
    }

    /// This is how a kernel that gains huge pages for guest_memfd is noticed.
    #[test]
    fn simulated_walks_are_exact_and_less_is_better() {
        let walks = |walks: u64| Allowance {
            walks: Some(BTreeMap::from([("zen4".to_owned(), walks)])),
            ..one(1000.0, &[])
        };
        let budget = budget(walks(4096));
        assert_eq!(what(&budget, &[walks(4096)]), []);
        for (now, is_better) in [(4095, true), (4097, false)] {
            let breaches = budget.breaches(&[walks(now)]);
            let [breach] = breaches.as_slice() else { panic!("{breaches:?}") };
            assert_eq!((breach.what.as_str(), breach.is_better()), ("walks on zen4", is_better));
        }
        let none = one(1000.0, &[]);
        let expected = [("walks were not simulated".to_owned(), 4096.0, 0.0)];
        assert_eq!(what(&budget, &[none]), expected);
        let text = budget.to_text();
        assert!(text.contains("[operation.walks]\nzen4 = 4096"), "{text}");
    }

    #[test]
    fn faults_and_sizes_of_pages_are_exact() {
        let memory = |faults: Option<f64>, pages: &[(&str, u64)]| Allowance {
            faults,
            pages: Some(pages.iter().map(|(size, n)| ((*size).to_owned(), *n)).collect()),
            ..one(1000.0, &[])
        };
        let small = memory(Some(512.0), &[("4K", 2048)]);
        let budget = budget(small.clone());
        assert_eq!(what(&budget, &[small]), []);
        assert_eq!(
            what(&budget, &[memory(Some(1.0), &[("2M", 4)])]),
            [
                ("page faults for each 2 MiB".to_owned(), 512.0, 1.0),
                ("pages of 2M mapped".to_owned(), 0.0, 4.0),
                ("pages of 4K mapped".to_owned(), 2048.0, 0.0),
            ]
        );
        let unknown = Allowance { pages: None, ..memory(None, &[]) };
        assert_eq!(
            what(&budget, &[unknown]),
            [
                ("page faults were not counted".to_owned(), 512.0, 0.0),
                ("pages were not counted".to_owned(), 2048.0, 0.0),
            ]
        );
    }

    /// Fewer exits, shorter paths and larger pages are better; what was not measured is not.
    #[test]
    fn better_is_told_from_worse() {
        let memory = |path, faults, pages: &[(&str, u64)], exits: &[(&str, u64)]| Allowance {
            faults: Some(faults),
            pages: Some(pages.iter().map(|(size, n)| ((*size).to_owned(), *n)).collect()),
            ..one(path, exits)
        };
        let small = memory(1000.0, 512.0, &[("4K", 512)], &[("L1 npf", 512)]);
        let large = memory(500.0, 1.0, &[("2M", 1)], &[("L1 npf", 1)]);
        let better = |budget: &Allowance, run: &Allowance| {
            let all = self::budget(budget.clone()).breaches(std::slice::from_ref(run));
            all.iter().map(Breach::is_better).collect::<Vec<_>>()
        };
        assert_eq!(better(&small, &large), [true; 5]);
        assert_eq!(better(&large, &small), [false; 5]);
        let unknown = Allowance { path: None, exits: None, pages: None, ..large.clone() };
        assert_eq!(better(&large, &unknown), [false; 3]);
    }

    #[test]
    fn a_file_survives_a_round_trip() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("budget.toml");
        let mut kept = one(1000.0, &[("L1 cpuid 0x0", 200)]);
        kept.exits_may_differ = BTreeMap::from([("L1 cpuid 0x0".to_owned(), 2)]);
        let budget = budget(kept);
        std::fs::write(&path, budget.to_text()).expect("written");
        assert_eq!(Budget::read(&path).expect("read"), budget);
        for (text, problem) in [
            ("host = 3", "is no budget"),
            ("", "is no budget"),
            ("host = \"amd\"\nx = 1", "is no budget"),
            (
                "host = \"amd\"\n[[operation]]\nname=\"a\"\nlevel=\"L1\"\ncount=1\npath=nan\n",
                "must be numbers",
            ),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = Budget::read(&path).expect_err(text).to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
