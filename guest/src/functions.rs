//! Where the functions of a kernel are, so that addresses can be named.

use serde::{Deserialize, Serialize};

/// What a host knows of the kernels in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernels {
    /// The host's functions.
    pub functions: Functions,
    /// What is loaded where in the host.
    pub host: Loaded,
    /// And in its guest that nests, if it has one: the same kernel, so its functions are the host's.
    pub guest: Option<Loaded>,
}

/// The functions of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Functions {
    /// The kernel's own (without a name), those of each module, and of other code: `bpf`, `__builtin__kprobes`.
    pub parts: Vec<Part>,
}

/// Functions that came into the kernel together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Of the module.
    pub name: String,
    /// By address: how far from the one before (the first: from 0), and its name.
    pub functions: Vec<(u64, String)>,
}

/// What distinguishes two boots of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// CRC-32 of the notes of the kernel, its build among them.
    pub notes: u32,
    /// Modules and where they are.
    pub modules: Vec<(String, u64)>,
}
