//! The distribution's kernel, from its package archive by way of apt: fetched and unpacked, never
//! installed, so it takes no root and changes nothing of the system.
//!
//! A cached kernel is used without asking apt, so it stays the same until its folder, or `CACHE/kernels`, is removed.

use std::path::Path;

use super::Kernel;
use super::store::{IMAGE, KernelStore};
use crate::Error;

/// The meta packages of the kernel: Debian's and Ubuntu's.
const META: [&str; 2] = ["linux-image-amd64", "linux-image-generic"];

/// The distribution's kernel: cached in `cache`, or fetched into it through apt.
pub fn distribution(cache: &Path) -> Result<Kernel, Error> {
    if let Some(kernel) = cached(cache) {
        return Ok(kernel);
    }
    let store = KernelStore::of_distribution(cache);
    let _lock = store.lock()?;
    // Another process may have fetched it meanwhile.
    if let Some(kernel) = cached(cache) {
        return Ok(kernel);
    }
    let package = image_package(&store)?;
    store.fetch(&package)
}

/// The most recently fetched kernel that is not damaged.
fn cached(cache: &Path) -> Option<Kernel> {
    let store = KernelStore::of_distribution(cache);
    store.entries().into_iter().find_map(|entry| store.open(&entry).ok())
}

/// The package that the distribution's meta package depends on: `linux-image-6.1.0-56-amd64`.
fn image_package(store: &KernelStore) -> Result<String, Error> {
    let problem = |problem: String| Error::Fetch { problem };
    let mut reasons = Vec::new();
    for meta in META {
        match store.depends(meta) {
            Ok(names) => match names.iter().find(|name| is_image(name)) {
                Some(name) => return Ok(name.clone()),
                None => reasons.push(format!("{meta} names no kernel")),
            },
            Err(Error::Fetch { problem }) => reasons.push(problem),
            Err(e) => return Err(e),
        }
    }
    Err(problem(format!(
        "apt knows neither {} nor {} ({}); run `apt-get update` as root, or give a kernel image and its modules",
        META[0],
        META[1],
        reasons.join("; ")
    )))
}

fn is_image(package: &str) -> bool {
    package.strip_prefix(IMAGE).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}
