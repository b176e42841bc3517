//! Figures in sentences: `took 45 s in the VM, 12 s on bare metal`, `25 % slower in a guest`.
//!
//! A sentence is read where two values of one unit stand beside the names of two set-ups and a word compares them. Left out on purpose: lists, values
//! whose set-up another sentence names, ranges and bounds (`< 15 s`, `3 to 4 s`).

use vmtax_events::Sample;

use super::blocks::{LABEL, LINES};
use super::setup::{is_place, named};
use super::value::{Value, digits, known, value};
use super::{is_unmeasured, kind_of, sample};

/// More sentences than a post has, and words of each.
const SENTENCES: usize = 2_000;
const WORDS: usize = 80;

/// A word that compares: without one two values are of two things.
const COMPARING: &[&str] = &[
    "took",
    "takes",
    "take",
    "vs",
    "versus",
    "compared",
    "than",
    "instead",
    "whereas",
    "while",
    "but",
    "same",
    "only",
    "against",
    "from",
    "drops",
    "dropped",
    "improves",
    "improved",
    "gets",
    "get",
    "got",
    "reach",
    "reaches",
    "respectively",
];
/// Where a clause ends.
const CLAUSE: &[&str] =
    &["and", "vs", "versus", "but", "while", "whereas", "compared", "than", "against", "instead"];
/// Values behind these are bounds or parts of ranges.
const BOUNDS: &[&str] = &[
    "over", "than", "least", "most", "under", "below", "above", "past", "to", "by", "within",
    "until", "every", "per", "after", "timeout", "for",
];

/// A value in a sentence: its first word, the word behind it.
struct Placed {
    first: usize,
    end: usize,
    value: Value,
}

fn bare(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric() && c != '%').to_lowercase()
}

/// Sentences of paragraphs: no tables, nothing fenced, no commands.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    let mut all: Vec<Vec<&str>> = Vec::new();
    let mut is_open = false;
    let mut is_fenced = false;
    for line in text.lines().take(LINES) {
        let unquoted = line.trim_start_matches(['>', ' ', '\t']);
        let is_item = ["* ", "- ", "\u{2022} "].iter().any(|mark| unquoted.starts_with(mark));
        is_open &= !is_item;
        let line = unquoted.trim_start_matches(['*', '-', ' ', '\u{2022}']).trim_end();
        if line.starts_with("```") {
            is_fenced = !is_fenced;
            is_open = false;
            continue;
        }
        if is_fenced || line.is_empty() || line.contains('|') || line.starts_with(['$', '#', '[']) {
            is_open = false;
            continue;
        }
        for word in line.split_whitespace() {
            if !is_open {
                if all.len() == SENTENCES {
                    return all;
                }
                all.push(Vec::new());
            }
            if let Some(last) = all.last_mut().filter(|last| last.len() < WORDS) {
                last.push(word);
            }
            let is_end = word.ends_with(['.', ';', '?', '!'])
                && word.chars().filter(|c| *c == '.').count() == 1
                || word.ends_with(";");
            is_open = !is_end || ["vs.", "e.g.", "i.e.", "approx."].contains(&word);
        }
    }
    all
}

/// The values of a sentence, each with a unit.
fn values(words: &[&str]) -> Vec<Placed> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let clean = |word: &str| {
            word.trim_matches(|c: char| "*`()[],;:\"'~\u{2248}".contains(c))
                .trim_end_matches('.')
                .to_owned()
        };
        let word = clean(words[at]);
        let is_bound = at > 0 && BOUNDS.contains(&bare(words[at - 1]).as_str())
            || word.starts_with(['<', '>', '\u{2264}', '\u{2265}'])
            || at > 0 && ["<", ">", "\u{2264}", "\u{2265}"].contains(&words[at - 1]);
        let next = words.get(at + 1).map(|word| clean(word));
        let found = match (value(&word), &next) {
            (Some(Value { number, unit: None }), Some(unit)) if known(unit).is_some() => {
                Some((Value { number, unit: Some(unit.clone()) }, at + 2))
            }
            (Some(found @ Value { unit: Some(_), .. }), _) => Some((found, at + 1)),
            _ => None,
        };
        match found {
            Some((value, end)) => {
                // `541 s to 600 s` is a range; `from 541 s to 600 s` may be a change.
                let is_change = words[..at].iter().any(|word| bare(word) == "from");
                let is_range = words.get(end).is_some_and(|word| bare(word) == "to");
                let ends_change = at > 0 && bare(words[at - 1]) == "to" && is_change;
                if (!is_bound || ends_change) && (!is_range || is_change) {
                    all.push(Placed { first: at, end, value });
                }
                at = end;
            }
            None => at += 1,
        }
    }
    all
}

/// Whether words before a value have more than a set-up's name, and one word beside.
fn says_more(words: &[&str], name: &str) -> bool {
    const FILLING: [&str; 24] = [
        "a",
        "an",
        "the",
        "in",
        "inside",
        "on",
        "of",
        "it",
        "that",
        "this",
        "is",
        "was",
        "only",
        "just",
        "about",
        "around",
        "approximately",
        "roughly",
        "up",
        "to",
        "at",
        "with",
        "and",
        "or",
    ];
    let name = name.to_lowercase();
    let is_more = |word: &&&str| {
        let bare = bare(word);
        !bare.is_empty()
            && !FILLING.contains(&bare.as_str())
            && !COMPARING.contains(&bare.as_str())
            && !name.split_whitespace().any(|own| own == bare)
    };
    words.iter().filter(is_more).count() > 1
}

/// The set-ups of a sentence's values, by the words beside each.
fn of_sentence(words: &[&str], samples: &mut Vec<Sample>) {
    let is_comparing = |word: &&str| COMPARING.contains(&bare(word).as_str());
    let all = values(words);
    // `with vhost: 9.4 Gbit/s, without: 3.1 Gbit/s`, `one VM: encrypted 540 MiB/s, unencrypted 697 MiB/s`: each value behind its set-up.
    let is_named =
        |one: &Placed| one.first > 0 && named(&words[one.first - 1..one.first]).is_some();
    let has_labels = words.iter().any(|word| word.ends_with(':')) && all.iter().all(is_named);
    if is_supposed(words, &all) || changed(words, &all).is_some() {
        return;
    }
    if all.len() < 2 || !words.iter().any(is_comparing) && !has_labels {
        return;
    }
    let ends =
        |word: &str| word.ends_with([',', ';', '.', ')']) || CLAUSE.contains(&bare(word).as_str());
    let mut found: Vec<(String, &Value)> = Vec::new();
    for (n, one) in all.iter().enumerate() {
        let next = all.get(n + 1).map_or(words.len(), |next| next.first);
        let before = n.checked_sub(1).map_or(0, |n| all[n].end);
        // Behind the value, to the end of its clause.
        let is_closed = words.get(one.end - 1).is_some_and(|word| word.ends_with([',', ';', '.']));
        let behind: Vec<&str> = match is_closed {
            true => Vec::new(),
            false => {
                let mut clause = Vec::new();
                for word in &words[one.end..next] {
                    if CLAUSE.contains(&bare(word).as_str()) {
                        break;
                    }
                    clause.push(*word);
                    if ends(word) {
                        break;
                    }
                }
                clause
            }
        };
        // Before it, from the beginning of its clause.
        let from = words[before..one.first]
            .iter()
            .rposition(|word| ends(word))
            .map_or(before, |at| before + at + 1);
        let Some(name) = named(&behind).or_else(|| named(&words[from..one.first])) else { return };
        // A later clause that says more than where is of another thing: `but backing up the host took 900 s`.
        if n > 0 && says_more(&words[from..one.first], &name) {
            return;
        }
        found.push((name, &one.value));
    }
    let unit = |value: &Value| value.unit.clone().unwrap_or_default();
    let first = unit(found[0].1);
    let is_alike = found.iter().all(|(_, value)| kind_of(&unit(value)) == kind_of(&first));
    // A VM and a guest are one.
    let place = |name: &str| match name.to_lowercase().as_str() {
        "guest" | "guests" | "vms" => "vm".to_owned(),
        other => other.to_owned(),
    };
    let are_several = found.iter().any(|(name, _)| place(name) != place(&found[0].0));
    if !is_alike || !are_several {
        return;
    }
    let title: String = words.join(" ").chars().take(LABEL).collect();
    samples.extend(
        found.iter().map(|(name, value)| sample(name, (&title, ""), (&unit(value), value.number))),
    );
}

/// Whether a sentence supposes, sets or denies its values, by the words before the last of them.
fn is_supposed(words: &[&str], all: &[Placed]) -> bool {
    all.last().is_some_and(|last| is_unmeasured(&words[..last.end].join(" ")))
}

/// The values of `from 3.1 s to 0.7 s`, if there are no others.
fn changed<'v>(words: &[&str], all: &'v [Placed]) -> Option<[&'v Placed; 2]> {
    let [one, two] = all else { return None };
    let is_before =
        |value: &Placed, word: &str| value.first > 0 && bare(words[value.first - 1]) == word;
    let is_pair = is_before(one, "from") && one.end < two.first && is_before(two, "to");
    is_pair.then_some([one, two])
}

/// `from 3.1 s to 0.7 s`, of a sentence that says that something changed: set-ups are `before` and `after`.
fn of_change(words: &[&str], samples: &mut Vec<Sample>) {
    const CHANGES: [&str; 13] = [
        "reduces",
        "reduced",
        "reduction",
        "improves",
        "improved",
        "improvement",
        "speeds",
        "speedup",
        "increased",
        "decreased",
        "degraded",
        "regressed",
        "shortens",
    ];
    /// Words of another sense, if they do not stand right before it: a VM drops packets.
    const MOVES: [&str; 6] = ["drops", "dropped", "goes", "went", "rose", "fell"];
    let all = values(words);
    let Some([one, two]) = changed(words, &all) else { return };
    let moves = one.first > 1 && MOVES.contains(&bare(words[one.first - 2]).as_str());
    let is_change = moves || words.iter().any(|word| CHANGES.contains(&bare(word).as_str()));
    let unit = |value: &Value| value.unit.clone().unwrap_or_default();
    let is_alike = kind_of(&unit(&one.value)) == kind_of(&unit(&two.value));
    if !is_change || !is_alike || is_supposed(words, &all) {
        return;
    }
    let title: String = words.join(" ").chars().take(LABEL).collect();
    for (setup, value) in [("before", &one.value), ("after", &two.value)] {
        samples.push(sample(setup, (&title, ""), (&unit(value), value.number)));
    }
}

/// `10 times slower`, `3x slower`, `25 % slower`, with the set-up that the sentence names.
fn of_factor(words: &[&str], samples: &mut Vec<Sample>) {
    const RATIOS: [&str; 4] = ["slower", "faster", "longer", "overhead"];
    // `up to 10 times` is a bound.
    if is_unmeasured(&words.join(" ")) || words.iter().any(|word| bare(word) == "up") {
        return;
    }
    for (at, word) in words.iter().enumerate() {
        let word = bare(word);
        if !RATIOS.contains(&word.as_str()) || at == 0 {
            continue;
        }
        let before = words[at - 1].trim_matches(|c: char| "*`()~,\u{2248}".contains(c));
        let two = || {
            at.checked_sub(2)
                .map(|at| words[at].trim_matches(|c: char| "*`()~,\u{2248}".contains(c)))
        };
        let (number, unit) = match before {
            "times" | "x" => (two().and_then(digits), "times"),
            "%" | "percent" => (two().and_then(digits), "%"),
            _ if before.ends_with('%') => (digits(before.trim_end_matches('%')), "%"),
            _ => (before.strip_suffix(['x', '\u{d7}']).and_then(digits), "times"),
        };
        let behind = words[at + 1..].split(|word| bare(word) == "than").next().unwrap_or_default();
        let setup = || named(&words[..at.saturating_sub(1)]).or_else(|| named(behind));
        let (Some(number), Some(setup)) = (number, setup()) else { continue };
        let title: String = words.join(" ").chars().take(LABEL).collect();
        samples.push(sample(&setup, (&title, ""), (&format!("{unit} {word}"), number)));
    }
}

/// Values that sentences compare; without such, the factors that they state.
pub(super) fn read(text: &str) -> Vec<Sample> {
    let all = sentences(text);
    let mut samples = Vec::new();
    for words in &all {
        of_sentence(words, &mut samples);
    }
    if samples.is_empty() {
        for words in &all {
            of_change(words, &mut samples);
        }
    }
    if samples.is_empty() {
        for words in all.iter().filter(|words| words.iter().any(|word| is_place(word))) {
            of_factor(words, &mut samples);
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        read(text)
            .iter()
            .map(|one| format!("{} {} {}", one.category, one.value, one.unit))
            .collect()
    }

    #[test]
    fn a_sentence_compares_setups() {
        for (text, expected) in [
            (
                "The build took 45 s in the VM, 12 s on bare metal.",
                vec!["VM 45 s", "bare metal 12 s"],
            ),
            (
                "Random reads: with vhost: 9.4 Gbit/s, without: 3.1 Gbit/s\n",
                vec!["with vhost 9.4 Gbit/s", "without 3.1 Gbit/s"],
            ),
            (
                "Our tests take 310 seconds inside the guest while\nthe host needs only 95 seconds.",
                vec!["guest 310 seconds", "host 95 seconds"],
            ),
            (
                "I get 120 MB/s natively but only 31 MB/s in KVM.\n",
                vec!["natively 120 MB/s", "KVM 31 MB/s"],
            ),
            ("Compiling is about 25% slower in the guest.\n", vec!["guest 25 % slower"]),
            (
                "This reduces the time to\nlogin from 4.25s to 1.5s here.\n",
                vec!["before 4.25 s", "after 1.5 s"],
            ),
            (
                "* 2 VMs: plain, unencrypted 697 MiB/s, encrypted 540 MiB/s\n",
                vec!["unencrypted 697 MiB/s", "encrypted 540 MiB/s"],
            ),
            ("The VM is 10 times slower than the host here\n", vec!["VM 10 times slower"]),
        ] {
            assert_eq!(said(text), expected, "{text}");
        }
    }

    #[test]
    fn other_sentences_compare_nothing() {
        for text in [
            "",
            "The VM boots in 3 s and the host copies the image in 12 s.\n",
            "It took 45 s.\n",
            "It took 3 s to 4 s in the VM.\n",
            "The VM has 4 GB and the host takes 16 GB of it.\n",
            "```\nThe build took 45 s in the VM, 12 s on bare metal.\n```\n",
            "If the guest is 25% slower, then tell us.\n",
            "It took less than 15 s in the VM, over 20 s on the host.\n",
            "It took 4 s on Monday, 9 s in the VM.\n",
            "The new version is 10 times slower.\n",
            "The disk took 4 ms and the network 3 ms in the VM.\n",
            "It increases the timeout from 4 s to 9 s.\n",
            "Runs range from 4 s to 9 s.\n",
            "The VM drops packets, from 3 ms to 9 ms after the start.\n",
            "The vendor claims that boot improved from 9 s to 3 s in the VM.\n",
            "It would not have improved from 9 s to 3 s.\n",
            "TL;DR: the VM boots in 5 s, the host shuts down in 20 s\n",
            "I get 118 MB/s on the host but only 300 Mb/s in the VM.\n",
            "Reads took 4 s in the guest but 9 s in the VM.\n",
            "Copying a file into the VM took 12 s, but backing up the whole host took 900 s.\n",
            "If the VM took 300 s and the host only 100 s, then tell us.\n",
            "The VM isn't 10 times slower than the host.\n",
        ] {
            assert_eq!(said(text), Vec::<String>::new(), "{text}");
        }
    }
}
