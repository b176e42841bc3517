//! Kernels by the names that `--kernel` takes.

use std::path::{Path, PathBuf};

use vmtax_machine::kernel::{self, Architecture, Kernel};

use crate::lab::fault;

/// Whether `--kernel` names an image, which has modules of its own.
pub fn is_image(name: &Path) -> bool {
    !matches!(name.to_str(), Some("distribution" | "host")) && version(name).is_none()
}

/// The version in Debian's archive that `--kernel` names: `6.12` of `debian:6.12`, and of `6.12` where no file has that name.
pub fn version(name: &Path) -> Option<&str> {
    let word = name.to_str()?;
    let plain = word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    let is_version = || plain && !word.contains('/') && !name.exists();
    word.strip_prefix(DEBIAN).or_else(|| is_version().then_some(word))
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
        _ => match version(name) {
            Some(version) => kernel::debian(architecture, version, &cache),
            None => kernel::files(name, modules.next().map(PathBuf::as_path)),
        },
    };
    let kernel = kernel.and_then(|kernel| kernel.check(architecture).map(|()| kernel));
    kernel.map_err(|e| fault(e.into(), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_no_image() {
        let named =
            |name: &str| (version(Path::new(name)).map(str::to_owned), is_image(Path::new(name)));
        assert_eq!(named("6.12"), (Some("6.12".to_owned()), false));
        assert_eq!(named("debian:6.12"), (Some("6.12".to_owned()), false));
        assert_eq!(named("distribution"), (None, false));
        for image in ["./6.12", "build-6.12/bzImage", "bzImage", "612"] {
            assert_eq!(named(image), (None, true), "{image}");
        }
    }
}
