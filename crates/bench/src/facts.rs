//! What a system says of itself, and the parity check: categories differ by what they mean to change, and by nothing else.

use std::collections::BTreeSet;

use crate::category::{MatrixCategory, SystemFacts};

/// What may differ between any two boots.
const VARIES: [&str; 1] = ["bounce buffer used at most"];

/// The fact that a category's words are on.
const COMMAND_LINE: &str = "command line";

/// A word that UEFI firmware adds to it (EDK II OvmfPkg, X86QemuLoadImageLib), and with which a kernel finds its initramfs.
const BY_FIRMWARE: &str = "initrd=initrd";

/// Differences between a VM and its baseline that neither category explains; each is a sentence.
pub fn unexplained(
    category: (&MatrixCategory, &SystemFacts),
    baseline: (&MatrixCategory, &SystemFacts),
) -> Vec<String> {
    let (one, facts) = category;
    let (other, base) = baseline;
    let changes = one.changes_against(other);
    let names: BTreeSet<&String> = facts.keys().chain(base.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        if changes.contains(&name.as_str()) || VARIES.contains(&name.as_str()) {
            continue;
        }
        let value = |facts: &SystemFacts, category: &MatrixCategory| {
            let value = facts.get(name).cloned().unwrap_or_else(|| "not there".to_owned());
            if name != COMMAND_LINE {
                return value;
            }
            let words = category.guest_words();
            value
                .split_whitespace()
                .filter(|word| *word != BY_FIRMWARE && !words.iter().any(|own| own == word))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let (here, there) = (value(facts, one), value(base, other));
        if here != there {
            found.push(format!("{name}: {} has {here:?}, {} has {there:?}", one.name, other.name));
        }
    }
    found
}

/// Facts that changed between two boots of one category; each is a sentence.
pub fn changed(name: &str, before: &SystemFacts, now: &SystemFacts) -> Vec<String> {
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    names
        .into_iter()
        .filter(|fact| !VARIES.contains(&fact.as_str()) && before.get(*fact) != now.get(*fact))
        .map(|fact| {
            format!("{fact} of {name} was {:?} and is {:?}", before.get(fact), now.get(fact))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(line: &str, memory: &str, cpu: &str) -> SystemFacts {
        let facts = [("command line", line), ("memory", memory), ("processor", cpu)];
        facts.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn only_what_a_category_means_to_change_may_differ() {
        let [plain, bounce, poll] = ["plain", "plain+swiotlb", "plain+poll"]
            .map(|name| MatrixCategory::read(name).unwrap());
        let base = facts("quiet", "1000 kB", "x");
        let bounced = facts("quiet swiotlb=32768,force", "900 kB", "x");
        assert!(unexplained((&bounce, &bounced), (&plain, &base)).is_empty());
        // Less memory is not what polling does, another processor is what neither does.
        let polled = facts("quiet idle=poll", "900 kB", "y");
        let found = unexplained((&poll, &polled), (&plain, &base));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[1].contains("plain+poll has \"y\", plain has \"x\""));
        let snp = MatrixCategory::read("snp").unwrap();
        let booted = facts("quiet vmtax.mailbox=virtio initrd=initrd", "900 kB", "y");
        assert_eq!(unexplained((&snp, &booted), (&plain, &base)), Vec::<String>::new());
        let other = facts("quiet nosmt idle=poll", "1000 kB", "x");
        assert_eq!(unexplained((&poll, &other), (&plain, &base)).len(), 1);
    }
}
