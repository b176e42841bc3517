//! Addresses of kernel functions.

use serde::{Deserialize, Serialize};

/// Kernels of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernels {
    /// The host's functions.
    pub functions: Functions,
    /// Modules of the host and their addresses.
    pub host: Loaded,
    /// Modules of L1, if there is one. It runs the same kernel, so the functions are the host's.
    pub guest: Option<Loaded>,
}

/// The functions of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Functions {
    /// The kernel's own (without a name), those of each module, and of other code: `bpf`, `__builtin__kprobes`.
    pub parts: Vec<Part>,
}

/// Functions of one module or other code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Name of the module.
    pub name: String,
    /// Functions by address: the offset from the previous one (the first: from 0), and the name.
    pub functions: Vec<(u64, String)>,
}

/// Addresses that differ between boots of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// CRC-32 of the notes of the kernel, its build among them.
    pub notes: u32,
    /// Modules and their addresses.
    pub modules: Vec<(String, u64)>,
}
