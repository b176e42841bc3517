//! VM categories: a kind of VM, and parts that each change one property of it.
//!
//! A category is written as `plain`, `snp`, `tdx`, `private`, `pkvm` or `protected` and the parts added to it: `plain+swiotlb-x2apic`. Its baseline is the category
//! without its last part; the baseline of the other kinds is `plain`. One table has what each part changes. `+nested` separates two systems:
//! parts before it apply to the VM, parts after it to the guest inside, in which the workload runs.
//!
//! Left out: what makes a VM of it, and what it needs of its host.

mod fill;
mod parts;

use vmtax_guest::traffic::Role;

use crate::host::{PROTECTED, PROTECTED_MODE};

pub use fill::fill;
pub use parts::{
    CategoryPart, Confidential, ConfidentialKind, DiskKind, KINDS, MULTI_QUEUE, NESTED, Need,
    PARTS, Shows, THP,
};
pub(crate) use parts::{PV_EOI, RTC};

#[derive(Clone, Debug)]
pub struct Category {
    /// As written, without spaces.
    pub name: String,
    /// The kind, then what was added.
    pub parts: Vec<&'static CategoryPart>,
}

impl Category {
    /// Reads `plain+vhost-x2apic`.
    ///
    /// # Errors
    /// A sentence: its kind or a part is unknown, a part is there twice, or parts contradict each other.
    pub fn read(name: &str) -> Result<Category, String> {
        let name: String = name.split_whitespace().collect();
        let problem = |problem: String| format!("category {name:?}: {problem}");
        let mut parts = Vec::new();
        let mut rest = name.as_str();
        while parts.is_empty() || !rest.is_empty() {
            let table = if parts.is_empty() { KINDS } else { PARTS };
            // The longest name: one can start as another does.
            let found = table.iter().filter(|part| rest.starts_with(part.name));
            let Some(part) = found.max_by_key(|part| part.name.len()) else {
                let known = table.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
                return Err(problem(format!("{rest:?} is not one of {known}")));
            };
            parts.push(part);
            rest = rest.get(part.name.len()..).unwrap_or_default();
        }
        let category = Category { name: name.clone(), parts };
        match category.contradiction() {
            Some(what) => Err(problem(what)),
            None => Ok(category),
        }
    }

    /// The VM with default settings.
    pub fn plain() -> Category {
        Category { name: KINDS[0].name.to_owned(), parts: vec![&KINDS[0]] }
    }

    fn of(parts: Vec<&'static CategoryPart>) -> Category {
        Category { name: parts.iter().map(|part| part.name).collect(), parts }
    }

    /// Why there can be no such VM; half a sentence.
    fn contradiction(&self) -> Option<String> {
        let count =
            |is: &dyn Fn(&CategoryPart) -> bool| self.parts.iter().filter(|part| is(part)).count();
        let has = |name: &str| count(&|part| part.name == name) > 0;
        let twice = |parts: &[&'static CategoryPart]| {
            let is_twice = |at: usize| parts[..at].iter().any(|one| one.name == parts[at].name);
            (0..parts.len()).find(|at| is_twice(*at)).map(|at| parts[at].name)
        };
        let same = self.levels().into_iter().find_map(twice);
        if let Some(name) = same.or((count(&|part| part.name == NESTED) > 1).then_some(NESTED)) {
            return Some(format!("{name:?} is listed twice"));
        }
        for (what, number) in [
            ("want different memory", count(&|part| part.backing.is_some())),
            ("want different machines", count(&|part| part.machine.is_some())),
            (
                "set the same property of the disk",
                count(&|part| matches!(part.disk, Some(DiskKind::Cache(_)))),
            ),
            (
                "set the same property of the disk",
                count(&|part| matches!(part.disk, Some(DiskKind::Aio(_)))),
            ),
        ] {
            if number > 1 {
                return Some(format!("its parts {what}; take one of them"));
            }
        }
        if self.is_in_xen() && self.is_nested() {
            return Some("a guest of Xen is a guest's guest already; leave nested out".to_owned());
        }
        if has("+native") && !has("+direct") {
            return Some("native needs direct; write plain+direct+native".to_owned());
        }
        (count(&|part| part.confidential.is_some()) > 0 && has("+swiotlb")).then(|| {
            "a confidential VM has its bounce buffer without swiotlb; leave the part out".to_owned()
        })
    }

    /// The category that it is compared with where nothing else is said; `None` for `plain`.
    pub fn baseline(&self) -> Option<Category> {
        let mut parts = self.parts.clone();
        let last = parts.pop()?;
        match parts.is_empty() {
            true => (last.name != KINDS[0].name).then(Category::plain),
            false => Some(Category::of(parts)),
        }
    }

    /// What its parts are.
    pub fn about(&self) -> Vec<&'static str> {
        self.parts.iter().map(|part| part.about).collect()
    }

    /// The parts of the VM, then those of the guest in it.
    pub fn levels(&self) -> Vec<&[&'static CategoryPart]> {
        self.parts.split(|part| part.name == NESTED).collect()
    }

    /// Whether the workload runs in a guest's guest.
    pub fn is_nested(&self) -> bool {
        self.parts.iter().any(|part| part.name == NESTED)
    }

    /// Whether the workload's VM is a guest of Xen in QEMU's VM.
    pub fn is_in_xen(&self) -> bool {
        self.parts.iter().any(|part| part.xen)
    }

    /// Whether its host is a protected one of arm64, where code at EL2 handles some exits by itself.
    pub fn has_hidden_exits(&self) -> bool {
        self.parts.iter().any(|part| part.host_words.contains(&PROTECTED_MODE))
    }

    /// Whether it is a protected VM of pKVM.
    pub fn is_protected(&self) -> bool {
        self.parts.iter().any(|part| part.host_words.contains(&PROTECTED))
    }

    /// Why there is no such VM of QEMU on an emulated host, if so; half a sentence.
    pub fn impossible_inside(&self) -> Option<String> {
        let known = |is: fn(&CategoryPart) -> bool| {
            let known = PARTS.iter().filter(|part| is(part)).map(|part| part.name);
            known.collect::<Vec<_>>().join(", ")
        };
        if let Some(part) = self.parts.iter().find(|part| !part.inside) {
            let (name, known) = (part.name, known(|part| part.inside));
            return Some(format!(
                "{name}: is none of the parts of VMs of QEMU on an emulated host, which are {known}"
            ));
        }
        let outer = self.levels().first().filter(|_| self.is_nested()).copied().unwrap_or_default();
        let other = outer.iter().skip(1).find(|part| !part.before_nested)?;
        let can = known(|part| part.before_nested);
        Some(format!(
            "{}: is about card, disk or server, which L1 does not use: put it after {NESTED}; before it can be {can}",
            other.name
        ))
    }
}

/// What a VM shows of itself.
pub struct ShownVm<'a> {
    /// The value of a fact of the guest; empty if it has none.
    pub fact: &'a dyn Fn(&str) -> &'a str,
    /// Whether a thread of the host with this role works for it.
    pub thread: &'a dyn Fn(Role) -> bool,
    /// Memory of the guest, and the size of a bounce buffer if one is named; MiB.
    pub memory: (u32, Option<u32>),
}

/// The first of these parts that a VM does not have, and why; half a sentence.
pub fn missing(
    parts: &[&'static CategoryPart],
    shown: &ShownVm<'_>,
) -> Option<(&'static str, String)> {
    let (memory_mib, bounce_mib) = shown.memory;
    let filled = |word: &'static str| fill(word, memory_mib, bounce_mib);
    let value = |fact: &str| (shown.fact)(fact);
    let has = |fact: &str, word: &str| value(fact).split_whitespace().any(|one| one == word);
    parts.iter().find_map(|part| {
        let problem = match part.shows {
            Shows::Word(fact, word) if !has(fact, &filled(word)) => {
                format!("its {fact} is \"{}\", without {}", value(fact), filled(word))
            }
            Shows::NoWord(fact, word) if has(fact, word) => format!("its {fact} has {word}"),
            Shows::Thread(role, thread) if !(shown.thread)(role) => format!("there is no {thread}"),
            _ => return None,
        };
        Some((part.name, problem))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_are_read_and_have_baselines() {
        let name = |word: &str| Category::read(word).map(|category| category.name);
        assert_eq!(name("plain + poll").unwrap(), "plain+poll");
        for fine in ["plain+vhost+swiotlb-tsc-deadline-x2apic", "plain-x2apic+nested+vhost-x2apic"]
        {
            let category = Category::read(fine).unwrap();
            assert_eq!(Category::of(category.parts).name, fine);
        }
        for (wrong, problem) in [
            ("", "\"\" is not one of plain"),
            ("poll", "is not one of plain, snp"),
            ("plain+", "\"+\" is not one of +vhost"),
            ("plain+x", "\"+x\" is not one of +vhost"),
            ("plain+poll+poll", "\"+poll\" is listed twice"),
            ("plain+nested+nested", "twice"),
            ("snp+hugepages", "different machines"),
            ("private+gmem", "different memory"),
            ("plain+nested+xen", "is a guest's guest already"),
            ("PLAIN", "is not one of"),
        ] {
            let error = name(wrong).unwrap_err();
            assert!(error.contains(problem), "{wrong}: {error}");
        }
        let baseline = |word: &str| Category::read(word).unwrap().baseline().map(|c| c.name);
        assert_eq!(baseline("plain"), None);
        assert_eq!(baseline("snp").unwrap(), "plain");
        assert_eq!(baseline("snp+poll").unwrap(), "snp");
        assert_eq!(baseline("plain+swiotlb-x2apic").unwrap(), "plain+swiotlb");
    }

    #[test]
    fn qemu_on_an_emulated_host_has_parts_of_its_own() {
        let impossible = |name: &str| Category::read(name).unwrap().impossible_inside();
        for fine in ["plain", "plain-x2apic+nested+vhost", "plain+pc+ide", "plain+nested+smp"] {
            assert_eq!(impossible(fine), None, "{fine}");
        }
        for (name, problem) in [
            ("snp", "snp: is none of the parts of VMs of QEMU on an emulated host"),
            ("plain+gmem", "+gmem: is none of the parts"),
            ("plain+vhost+nested", "+vhost: is about card, disk or server"),
            ("plain+smp+nested", "before it can be +poll, +halt_poll_ns, -tsc-deadline, -x2apic"),
        ] {
            let said = impossible(name).unwrap();
            assert!(said.contains(problem), "{name}: {said}");
        }
    }

    #[test]
    fn a_vm_without_a_required_feature_is_reported() {
        let missing = |name: &str, fact: &str, thread: Option<Role>| {
            let fact = |_: &str| fact;
            let thread = |role| thread == Some(role);
            let shown = ShownVm { fact: &fact, thread: &thread, memory: (256, None) };
            missing(&Category::read(name).unwrap().parts, &shown).map(|(_, problem)| problem)
        };
        assert_eq!(missing("plain", "", None), None);
        assert!(missing("plain-x2apic", "fpu x2apic tsc_deadline_timer", None).is_some());
        assert_eq!(missing("plain-x2apic", "fpu", None), None);
        assert!(missing("plain+poll", "quiet", None).is_some());
        assert_eq!(missing("plain+poll", "a idle=poll", None), None);
        let menu = missing("plain+hpoll", "menu", None);
        assert_eq!(menu.as_deref(), Some("its idle governor is \"menu\", without haltpoll"));
        assert_eq!(missing("plain+hpoll", "haltpoll", None), None);
        for (name, role) in [("plain+vhost", Role::Vhost), ("plain+iothread", Role::Io)] {
            assert!(missing(name, "", Some(Role::Vmm)).is_some());
            assert_eq!(missing(name, "", Some(role)), None);
        }
    }
}
