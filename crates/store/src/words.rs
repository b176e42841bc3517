//! Words in columns, back to the vocabulary's types: the inverse of each `name()`.

use vmtax_events::{Level, Outcome};

/// The inverse of [`Level::name`].
pub(crate) fn level(word: &str) -> Option<Level> {
    [Level::L1, Level::L2, Level::Unknown].into_iter().find(|l| l.name() == word)
}

/// The inverse of [`Outcome::name`].
pub(crate) fn outcome(word: &str) -> Option<Outcome> {
    [Outcome::Kernel, Outcome::User, Outcome::Halted, Outcome::L1, Outcome::Unknown]
        .into_iter()
        .find(|o| o.name() == word)
}
