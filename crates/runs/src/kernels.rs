//! Kernels by the names that `--kernel` takes.

use std::path::{Path, PathBuf};

use vmtax_machine::kernel::{self, Architecture, Kernel};

use crate::lab::fault;

/// Whether `--kernel` names an image, which has modules of its own.
pub fn is_image(name: &Path) -> bool {
    let word = name.to_str().unwrap_or_default();
    !matches!(word, "distribution" | "host") && !word.starts_with(DEBIAN)
}

/// `debian:6.12`
pub const DEBIAN: &str = "debian:";

/// The kernel of a name; an image takes the next folder of modules.
///
/// # Errors
/// When there is no such kernel, or it is of another architecture.
pub fn named<'a>(
    architecture: Architecture,
    name: &Path,
    modules: &mut impl Iterator<Item = &'a PathBuf>,
) -> anyhow::Result<Kernel> {
    let cache = kernel::cache_folder();
    let kernel = match name.to_str() {
        Some("distribution") => match architecture {
            Architecture::Amd64 => kernel::distribution(&cache),
            other => kernel::of_release(other, &cache),
        },
        Some("host") => kernel::host(),
        word => match word.and_then(|word| word.strip_prefix(DEBIAN)) {
            Some(version) => kernel::debian(architecture, version, &cache),
            None => kernel::files(name, modules.next().map(PathBuf::as_path)),
        },
    };
    let kernel = kernel.and_then(|kernel| kernel.check(architecture).map(|()| kernel));
    kernel.map_err(|e| fault(e.into(), None))
}
