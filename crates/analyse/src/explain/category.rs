//! Categories of benchmarks: a kind of VM and its options, in any spelling in use: `SNP+vhost`, `snp+vhost`, `plain+poll`
//! (vmtax bench), `amd-direct-medium-vhost-mq` (CVM_eval).

use vmtax_events::Isa;

use crate::remedy::VmKind;

/// Words for kinds of VM.
const KINDS: &[(&str, VmKind)] = &[
    ("vm", VmKind::Plain),
    ("plain", VmKind::Plain),
    ("normal", VmKind::Plain),
    ("amd", VmKind::Plain),
    ("intel", VmKind::Plain),
    ("snp", VmKind::Snp),
    ("sev-snp", VmKind::Snp),
    ("sev", VmKind::Sev),
    ("tdx", VmKind::Tdx),
    ("td", VmKind::Tdx),
    ("private", VmKind::Protected),
];

/// Words behind a kind that say no more.
const NO_OPTIONS: &[&str] = &["guest", "cvm", "baseline", "default"];

/// Other spellings of options.
const ALIASES: &[(&str, &str)] = &[("idle=poll", "poll"), ("idlepoll", "poll")];

/// A category, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CategoryParts {
    pub(super) kind: String,
    /// Sorted.
    pub(super) options: Vec<String>,
}

fn kind_of(word: &str) -> Option<VmKind> {
    let word = word.to_ascii_lowercase();
    KINDS.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind)
}

/// Whether a word names a kind of VM, and maybe its options: `SNP+vhost`, `amd-direct-medium`.
pub fn is_category(text: &str) -> bool {
    CategoryParts::read(text).is_some()
}

impl CategoryParts {
    pub(super) fn read(text: &str) -> Option<CategoryParts> {
        let text = text.trim();
        // The kind itself may have a dash.
        let first = text.split('+').next().unwrap_or_default().trim();
        let (mut kind, rest) = match kind_of(first) {
            Some(_) => text.split_at(first.len()),
            None => text.split_at(text.find(['+', '-', ' ']).unwrap_or(text.len())),
        };
        kind_of(kind)?;
        let words = || rest.split(['+', '-', ' ']).map(str::trim);
        // `vm-snp`, `intel-tdx`: the closer word.
        let is_closer = |kind| matches!(kind, VmKind::Snp | VmKind::Tdx | VmKind::Sev);
        let closer = words().find(|word| kind_of(word).is_some_and(is_closer));
        let is_open = matches!(kind_of(kind), Some(VmKind::Plain | VmKind::Sev));
        if let Some(closer) = closer.filter(|_| is_open) {
            kind = closer;
        }
        let known = |word: &str| {
            let word = word.trim().to_ascii_lowercase();
            ALIASES
                .iter()
                .find(|(other, _)| *other == word)
                .map_or(word, |(_, name)| (*name).to_owned())
        };
        let mut options: Vec<String> =
            words().filter(|word| kind_of(word).is_none()).map(known).collect();
        options.retain(|word| !word.is_empty() && !NO_OPTIONS.contains(&word.as_str()));
        options.sort();
        options.dedup();
        Some(CategoryParts { kind: kind.to_owned(), options })
    }

    pub(super) fn vm_kind(&self) -> VmKind {
        kind_of(&self.kind).unwrap_or(VmKind::Unknown)
    }

    pub(super) fn with(&self, option: &str) -> CategoryParts {
        let mut other = self.clone();
        other.options.push(option.to_owned());
        other.options.sort();
        other
    }

    /// Whose processor, where the name of the kind says so.
    pub(super) fn vendor(&self) -> Isa {
        match self.kind.to_ascii_lowercase().as_str() {
            "amd" => Isa::Svm,
            "intel" => Isa::Vmx,
            _ => match self.vm_kind() {
                VmKind::Tdx => Isa::Vmx,
                VmKind::Sev | VmKind::Snp => Isa::Svm,
                _ => Isa::Unknown,
            },
        }
    }
}

/// Whether the category of this name has this option.
pub(super) fn has_option(category: &str, option: &str) -> bool {
    CategoryParts::read(category)
        .is_some_and(|category| category.options.iter().any(|one| one == option))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_in_many_spellings() {
        for (text, kind, options) in [
            ("VM", VmKind::Plain, &[][..]),
            ("normal VM", VmKind::Plain, &[]),
            ("TDX VM + vhost", VmKind::Tdx, &["vhost"]),
            ("private+poll", VmKind::Protected, &["poll"]),
            ("vm-snp", VmKind::Snp, &[]),
            ("intel-tdx+poll", VmKind::Tdx, &["poll"]),
            ("sev-snp+idle=poll", VmKind::Snp, &["poll"]),
            ("amd-direct-medium-vhost", VmKind::Plain, &["direct", "medium", "vhost"]),
            ("snp guest", VmKind::Snp, &[]),
            ("sev-snp-direct-vhost", VmKind::Snp, &["direct", "vhost"]),
        ] {
            let category = CategoryParts::read(text).unwrap();
            assert_eq!(category.vm_kind(), kind, "{text}");
            assert_eq!(category.options, options, "{text}");
        }
        for text in ["", "host", "network", "results-snp", "redis"] {
            assert_eq!(CategoryParts::read(text), None, "{text}");
        }
    }
}
