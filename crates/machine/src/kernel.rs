//! Kernels: an image to boot and the modules that go with it.
//!
//! There are four sources: the distribution's package archive ([`distribution`]), Debian's kernels of other versions or of another architecture ([`debian`], [`of_release`]), a user's build
//! ([`files`]), and the running system ([`host`]). Nothing is installed. Unpacked kernels go to a cache, whose entries are checked by SHA-256 and recreated when damaged.

mod architecture;
mod debian;
mod distribution;
mod image;
mod modules;
mod store;
mod xen;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use architecture::Architecture;
pub use debian::{debian, debian_versions, of_release};
pub use distribution::distribution;
pub use modules::{KernelModule, module};
pub use xen::xen;

use crate::Error;
use image::KernelImage;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// `6.1.0-56-amd64`.
    pub release: String,
    /// The image: a bzImage, or an ELF file.
    pub image: PathBuf,
    /// The folder with its modules, if it has any: `lib/modules/RELEASE`, or any folder that holds
    /// them at some depth.
    pub modules: Option<PathBuf>,
    /// The cache for files made from the image.
    pub cache: PathBuf,
    /// Its entry in the cache, if it has one.
    entry: Option<PathBuf>,
}

/// The folder for cached kernels: `vmtax` in `$XDG_CACHE_HOME` or `~/.cache`.
pub fn cache_folder() -> PathBuf {
    let variable =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    variable("XDG_CACHE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("vmtax")
}

/// A kernel built by the user: its image, and the folder with its modules.
pub fn files(image: &Path, modules: Option<&Path>) -> Result<Kernel, Error> {
    // Absolute, so that it does not matter later where vmtax or an emulator runs.
    let image = std::path::absolute(image).map_err(Error::io(image, "find the kernel"))?;
    let release = KernelImage::read(&image)?.release()?;
    if let Some(folder) = modules {
        std::fs::read_dir(folder).map_err(Error::io(folder, "read the modules' folder"))?;
    }
    let modules = modules.map(Path::to_owned);
    Ok(Kernel { release, image, modules, cache: cache_folder(), entry: None })
}

/// The running kernel, from /boot and /lib/modules.
pub fn host() -> Result<Kernel, Error> {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let image = PathBuf::from(format!("/boot/vmlinuz-{release}"));
    let modules = PathBuf::from(format!("/lib/modules/{release}"));
    if !image.exists() {
        return Err(Error::Kernel {
            path: image,
            problem: "the running kernel has no image there (a container shares another system's kernel); \
                      use the distribution's kernel, or give an image"
                .to_owned(),
        });
    }
    files(&image, modules.exists().then_some(modules.as_path()))
}

/// The file beside modules that says how they were made, and how much of it counts.
const LABEL: &str = "LABEL";
const LABEL_MOST: u64 = 300;

impl Kernel {
    /// How its modules were made, as the file `LABEL` beside them says: its first line. `./x kvm-modules` writes one.
    pub fn modules_label(&self) -> Option<String> {
        let modules = self.modules.as_ref()?;
        let places = [modules.clone(), modules.join(&self.release)];
        let file = places.iter().find_map(|place| File::open(place.join(LABEL)).ok())?;
        let mut text = Vec::new();
        file.take(LABEL_MOST).read_to_end(&mut text).ok()?;
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// Whether it is of this architecture.
    pub fn check(&self, architecture: Architecture) -> Result<(), Error> {
        let is_arm = matches!(KernelImage::read(&self.image)?, KernelImage::Arm { .. });
        if is_arm == (architecture == Architecture::Arm64) {
            return Ok(());
        }
        let problem = match architecture {
            Architecture::Amd64 => "is a kernel of arm64, and the host is x86-64",
            Architecture::Arm64 => {
                "is no Image of arm64, which is what its build makes beside vmlinux"
            }
        };
        Err(Error::Kernel { path: self.image.clone(), problem: problem.to_owned() })
    }

    /// A checksum of the image and these modules, for a name: builds of one release differ in them.
    pub fn digest(&self, modules: &[&str]) -> Result<String, Error> {
        let image =
            std::fs::read(&self.image).map_err(Error::io(&self.image, "read the kernel"))?;
        let mut parts = vec![image];
        if self.modules.is_some() {
            parts.extend(self.modules_for(modules)?.into_iter().map(|module| module.bytes));
        }
        Ok(crate::checksum::of_parts(&parts))
    }

    /// The uncompressed kernel, an ELF file: the image itself, or unpacked from it into the cache. Of arm64 the image.
    pub fn vmlinux(&self) -> Result<PathBuf, Error> {
        match KernelImage::read(&self.image)? {
            KernelImage::Elf { path } | KernelImage::Arm { path } => Ok(path),
            KernelImage::Packed(packed) => packed.unpack(&self.cache),
        }
    }

    /// The file that QEMU boots fastest: the ELF file if it has the entry for that (a PVH note), since
    /// it spares the machine the unpacking, which is half of the boot; else the image.
    pub(crate) fn bootable(&self) -> Result<PathBuf, Error> {
        match KernelImage::read(&self.image)? {
            KernelImage::Elf { path, .. } if image::has_pvh_entry(&path)? => Ok(path),
            KernelImage::Elf { path, .. } => Err(Error::Kernel {
                path,
                problem: "this ELF file has no PVH entry (CONFIG_PVH=y makes one), so QEMU cannot boot it; \
                          use the bzImage of the same build"
                    .to_owned(),
            }),
            KernelImage::Arm { path } => Ok(path),
            KernelImage::Packed(packed) if packed.can_unpack() => {
                let elf = packed.unpack(&self.cache)?;
                Ok(if image::has_pvh_entry(&elf)? { elf } else { self.image.clone() })
            }
            KernelImage::Packed(_) => Ok(self.image.clone()),
        }
    }
}
