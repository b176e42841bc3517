//! A row of the table of remedies.

use vmtax_events::{ExitKey, words};

use super::context::{Applies, Context};
use super::id::RemedyId;

words! {
    /// Where a remedy is carried out.
    pub enum RemedyPlace {
        Host = "host",
        /// In the VM's configuration.
        Vmm = "VM",
        Guest = "guest",
    }
}

/// The setting that a remedy changes, in the words of the file, module or option: `doctor` gives it as a fix, and the action
/// names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// A value in a file, now.
    File { path: &'static str, value: &'static str },
    /// An option of a kernel module.
    Module { module: &'static str, option: &'static str },
    /// A word on the kernel's command line.
    Kernel(&'static str),
    /// Words of QEMU's command line.
    Qemu {
        /// All that is needed.
        words: &'static str,
        /// The one that matters.
        option: &'static str,
    },
}

/// A row of the table.
pub struct Remedy {
    pub id: RemedyId,
    /// Where it is carried out.
    pub place: RemedyPlace,
    pub action: &'static str,
    /// Exits that it removes; `None`: it makes them cheaper, or helps beside them.
    pub removes: Option<fn(&ExitKey) -> bool>,
    /// It takes away contention.
    pub of_contention: bool,
    /// The one setting that it comes to, where there is one.
    pub setting: Option<Setting>,
    pub applies: fn(&Context) -> Applies,
}

pub(super) const fn row(
    id: RemedyId,
    place: RemedyPlace,
    action: &'static str,
    applies: fn(&Context) -> Applies,
) -> Remedy {
    Remedy { id, place, action, removes: None, of_contention: false, setting: None, applies }
}

impl Remedy {
    pub(super) const fn removes(mut self, exits: fn(&ExitKey) -> bool) -> Remedy {
        self.removes = Some(exits);
        self
    }

    pub(super) const fn file(mut self, path: &'static str, value: &'static str) -> Remedy {
        self.setting = Some(Setting::File { path, value });
        self
    }

    pub(super) const fn module(mut self, module: &'static str, option: &'static str) -> Remedy {
        self.setting = Some(Setting::Module { module, option });
        self
    }

    pub(super) const fn kernel(mut self, word: &'static str) -> Remedy {
        self.setting = Some(Setting::Kernel(word));
        self
    }

    pub(super) const fn qemu(mut self, words: &'static str, option: &'static str) -> Remedy {
        self.setting = Some(Setting::Qemu { words, option });
        self
    }

    pub(super) const fn of_contention(mut self) -> Remedy {
        self.of_contention = true;
        self
    }
}
