//! Xen, the hypervisor, from the distribution's archive by way of apt: fetched and unpacked as a kernel is, never installed.
//!
//! ```text
//! CACHE/xen/xen-hypervisor-4.17-amd64/  boot/xen-4.17-amd64.gz SHA256SUMS
//! ```

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

use super::store::{Checksums, KernelStore};
use crate::Error;

/// The package that depends on the release's Xen, in Debian and Ubuntu.
const META: &str = "xen-system-amd64";
/// The package with the image begins so.
const HYPERVISOR: &str = "xen-hypervisor-";
/// The image's name in its folder begins and ends so.
const IMAGE: [&str; 2] = ["xen-", ".gz"];
/// More than an image has, which is 3 MB.
const IMAGE_MOST: u64 = 64 << 20;

/// Xen's image, which is an ELF file that multiboot loads: cached in `cache`, or fetched into it through apt.
pub fn xen(cache: &Path) -> Result<Vec<u8>, Error> {
    let store = KernelStore::of_xen(cache);
    let image = match kept(&store) {
        Some(image) => image,
        None => {
            let _lock = store.lock()?;
            // Another process may have fetched it meanwhile.
            match kept(&store) {
                Some(image) => image,
                None => fetch(&store)?,
            }
        }
    };
    let mut bytes = Vec::new();
    File::open(&image)
        .and_then(|file| GzDecoder::new(file).take(IMAGE_MOST).read_to_end(&mut bytes))
        .map_err(Error::io(&image, "read Xen"))?;
    Ok(bytes)
}

/// The image that was fetched last and is not damaged.
fn kept(store: &KernelStore) -> Option<PathBuf> {
    store.entries().iter().find_map(|entry| image_of(entry))
}

fn image_of(entry: &Path) -> Option<PathBuf> {
    let sums = Checksums::read(entry).ok()?;
    let folder = std::fs::read_dir(entry.join("boot")).ok()?;
    let mut images = folder.flatten().map(|file| file.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let [start, end] = IMAGE;
        name.starts_with(start) && name.ends_with(end)
    });
    images.find(|image| sums.matches(entry, image))
}

fn fetch(store: &KernelStore) -> Result<PathBuf, Error> {
    let problem = |problem: String| Error::Xen { problem };
    let unless_known = |error| match error {
        Error::Fetch { problem } => Error::Xen { problem },
        other => other,
    };
    let names = store.depends(META).map_err(unless_known)?;
    let package = names.iter().find(|name| is_hypervisor(name));
    let package = package.ok_or_else(|| problem(format!("{META} names no hypervisor")))?;
    let entry = store.folder.join(package);
    let keep = |e| Error::io(&entry, "keep Xen")(e);
    let new = store.unpack(&entry, std::slice::from_ref(package)).map_err(unless_known)?;
    for folder in ["usr", "etc"] {
        vmtax_durable::remove_folder(&new.path().join(folder)).map_err(keep)?;
    }
    Checksums::write(new.path()).map_err(keep)?;
    new.replace().map_err(keep)?;
    image_of(&entry).ok_or_else(|| problem(format!("{package} has no boot/xen-*.gz")))
}

/// Whether a package has an image. `xen-hypervisor-common` has none.
fn is_hypervisor(package: &str) -> bool {
    let rest = package.strip_prefix(HYPERVISOR);
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_with_the_image_is_taken() {
        for (package, is) in [
            ("xen-hypervisor-4.17-amd64", true),
            ("xen-hypervisor-common", false),
            ("xen-utils-4.17", false),
        ] {
            assert_eq!(is_hypervisor(package), is, "{package}");
        }
    }

    #[test]
    fn a_damaged_image_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let entry = folder.path();
        std::fs::create_dir(entry.join("boot")).expect("a folder");
        let image = entry.join("boot/xen-4.17-amd64.gz");
        for name in
            ["boot/xen-4.17-amd64.config", "boot/xen-4.17-amd64.efi", "boot/xen-4.17-amd64.gz"]
        {
            std::fs::write(entry.join(name), name).expect("a file");
        }
        assert_eq!(image_of(entry), None);
        Checksums::write(entry).expect("a list");
        assert_eq!(image_of(entry), Some(image.clone()));
        std::fs::write(&image, "other").expect("a file");
        assert_eq!(image_of(entry), None);
    }
}
