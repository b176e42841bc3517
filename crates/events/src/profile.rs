//! Profiles: how often each stack of functions was found running.
//!
//! Left out on purpose: addresses, threads, times. A profile answers where the time of a host or a guest goes, and two of
//! them answer where the difference sits; the rest is what `perf` is for.

use std::collections::{BTreeMap, HashSet};

use crate::words::words;

words! {
    /// Where a profile was taken.
    pub enum ProfileOrigin {
        /// On the host: what it does while it handles exits, among others.
        Host = "host",
        Guest = "guest",
        /// In one hot function of the guest. The stacks are the function and one instruction of it.
        Instructions = "instructions",
    }
}

/// Stacks and their weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Where it was taken.
    pub place: ProfileOrigin,
    /// Weight by stack: the functions from the outermost to the one that ran, with semicolons between them. A weight is a
    /// number of samples, or of whatever the profiler counted; within one profile all are of one kind. Hostile text.
    pub stacks: BTreeMap<String, u64>,
}

/// What one function has of a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// While it ran itself.
    pub own: u64,
    /// Of the function and its callees.
    pub total: u64,
}

impl Profile {
    /// In the place of a stack: samples whose functions the source does not list.
    pub const UNLISTED: &str = "[not in the text]";
    /// Between the functions of a stack.
    pub const BETWEEN: char = ';';

    pub fn new(place: ProfileOrigin) -> Profile {
        Profile { place, stacks: BTreeMap::new() }
    }

    /// Adds to the weight of a stack.
    pub fn add(&mut self, stack: &str, weight: u64) {
        match self.stacks.get_mut(stack) {
            Some(sum) => *sum = sum.saturating_add(weight),
            None => {
                self.stacks.insert(stack.to_owned(), weight);
            }
        }
    }

    /// The weight of all stacks.
    pub fn total(&self) -> u64 {
        self.stacks.values().fold(0, |sum, weight| sum.saturating_add(*weight))
    }

    /// The weight of each function. A function that is in a stack twice (recursion) counts once.
    pub fn functions(&self) -> BTreeMap<&str, Weight> {
        let mut functions: BTreeMap<&str, Weight> = BTreeMap::new();
        let mut seen: HashSet<&str> = HashSet::new();
        for (stack, weight) in &self.stacks {
            seen.clear();
            for function in stack.split(Profile::BETWEEN) {
                if seen.insert(function) {
                    let sum = &mut functions.entry(function).or_default().total;
                    *sum = sum.saturating_add(*weight);
                }
            }
            if let Some(last) = stack.rsplit(Profile::BETWEEN).next() {
                let sum = &mut functions.entry(last).or_default().own;
                *sum = sum.saturating_add(*weight);
            }
        }
        functions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_names_of_files() {
        assert_eq!(ProfileOrigin::ALL.map(ProfileOrigin::name), ["host", "guest", "instructions"]);
        for place in ProfileOrigin::ALL {
            assert_eq!(ProfileOrigin::from_name(place.name()), Some(place));
        }
        assert_eq!(ProfileOrigin::from_name("Host"), None);
    }

    #[test]
    fn a_function_has_a_recursive_stack_once() {
        let mut profile = Profile::new(ProfileOrigin::Host);
        profile.add("main;walk;walk", 3);
        profile.add("main;walk;walk", 1);
        profile.add("main", 6);
        assert_eq!(profile.total(), 10);
        let weights: Vec<_> = profile.functions().into_iter().collect();
        assert_eq!(
            weights,
            [("main", Weight { own: 6, total: 10 }), ("walk", Weight { own: 4, total: 4 }),]
        );
    }
}
