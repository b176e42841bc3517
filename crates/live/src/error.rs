//! Why nothing can be recorded here. Every message is one sentence that says what to do.

use std::io;
use std::path::PathBuf;

/// What is in the way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no type information.
    #[error(
        "{path}: the kernel does not describe its types ({source}); a kernel with CONFIG_DEBUG_INFO_BTF and CONFIG_DEBUG_INFO_BTF_MODULES is needed, or record with `perf kvm stat record` and use `vmtax import`"
    )]
    NoTypes {
        /// The file that should have them.
        path: PathBuf,
        source: io::Error,
    },
    /// Its type information is not what it should be.
    #[error("{path}: {problem}; record with `perf kvm stat record` and use `vmtax import`")]
    Types {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// This user may not.
    #[error(
        "recording needs {missing}, which this process does not have; run it as root, or give the capabilities with `setcap`"
    )]
    Privilege { missing: String },
    /// The kernel refused a program.
    #[error("the kernel does not take the recorder's programs: {source}{said}")]
    Load {
        source: libbpf_rs::Error,
        /// What the kernel's verifier said last.
        said: String,
    },
    /// The kernel refused to call a program.
    #[error("the kernel does not let a program watch {tracepoint}: {source}")]
    Attach { tracepoint: &'static str, source: libbpf_rs::Error },
    /// What the programs share with us cannot be used.
    #[error("cannot {what} of the recorder's map {map}: {source}")]
    Map {
        map: &'static str,
        /// What was being done, as a verb.
        what: &'static str,
        source: io::Error,
    },
}
