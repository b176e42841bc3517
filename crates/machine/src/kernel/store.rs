//! The cache of unpacked kernels, fetched through apt.
//!
//! ```text
//! CACHE/kernels/linux-image-6.1.0-56-amd64/           boot/ lib/ SHA256SUMS
//! CACHE/debian/linux-image-6.12.117+deb13-amd64/      boot/ lib/ SHA256SUMS
//! CACHE/debian-arm64-2/linux-image-6.1.0-56-arm64/      boot/ lib/ SHA256SUMS
//! CACHE/xen/xen-hypervisor-4.17-amd64/                boot/ SHA256SUMS
//! ```
//!
//! The list is as of `sha256sum`, and written last. The image is checked against it each time, a module when it
//! is read, and what does not match is fetched again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use vmtax_durable::{NewFolder, remove_folder};

use super::image::KernelImage;
use super::modules::{self, KernelModule, unpacked};
use super::{Architecture, Kernel, files};
use crate::lock::MachineLock;
use crate::{Error, Tool, ToolLimits, checksum};

const SUMS: &str = "SHA256SUMS";
/// Kernels of the system's own archive.
const KERNELS: &str = "kernels";
/// Xen of the system's own archive.
const XEN: &str = "xen";
/// apt's configuration for Debian's releases, in the folder of their kernels.
const CONFIGURATION: &str = ".apt/apt.conf";
/// The package of an image begins so. It has the image and modules, or (Debian from 6.19 on, Ubuntu) depends on packages that have them.
pub(super) const IMAGE: &str = "linux-image-";
/// The packages that an image's package depends on for its parts.
pub(super) const PARTS: [&str; 2] = ["linux-binary-", "linux-modules-"];
/// Timeout of apt, which may fetch 100 MB over a slow line.
const LIMITS: ToolLimits = ToolLimits { time: Duration::from_secs(600), output: 16 << 20 };

impl Kernel {
    /// These modules and their dependencies, in the order of loading. A module that is built into the kernel needs no loading and is
    /// left out. A damaged file of the cache is fetched again.
    pub fn modules_for(&self, names: &[&str]) -> Result<Vec<KernelModule>, Error> {
        let read = |path: &Path| checked(self, path, unpacked);
        modules::in_load_order(&self.release, self.modules.as_deref(), names, &read)
    }
}

/// A folder of unpacked kernels, and the archive that they come from.
pub(super) struct KernelStore {
    pub(super) folder: PathBuf,
    cache: PathBuf,
    pub(super) architecture: Architecture,
    /// apt's configuration file, where it is not the system's.
    configuration: Option<PathBuf>,
}

impl KernelStore {
    /// The kernels of the system's own archive.
    pub(super) fn of_distribution(cache: &Path) -> KernelStore {
        let (folder, cache) = (cache.join(KERNELS), cache.to_owned());
        KernelStore { folder, cache, architecture: Architecture::Amd64, configuration: None }
    }

    /// Xen of the system's own archive.
    pub(super) fn of_xen(cache: &Path) -> KernelStore {
        KernelStore { folder: cache.join(XEN), ..KernelStore::of_distribution(cache) }
    }

    /// The kernels of Debian's releases, by the apt configuration in their folder.
    pub(super) fn of_debian(architecture: Architecture, cache: &Path) -> KernelStore {
        let folder = cache.join(architecture.folder());
        let configuration = Some(folder.join(CONFIGURATION));
        KernelStore { folder, cache: cache.to_owned(), architecture, configuration }
    }

    /// The store that an entry is in.
    fn of_entry(entry: &Path, cache: &Path) -> KernelStore {
        let folder = entry.parent().and_then(Path::file_name);
        let is_of = |one: &Architecture| folder.is_some_and(|name| name == one.folder());
        match [Architecture::Amd64, Architecture::Arm64].into_iter().find(is_of) {
            Some(architecture) => KernelStore::of_debian(architecture, cache),
            None => KernelStore::of_distribution(cache),
        }
    }

    /// The lock for fetching, so that each kernel is fetched once.
    pub(super) fn lock(&self) -> Result<MachineLock, Error> {
        MachineLock::exclusive(&self.folder)
            .map_err(Error::io(&self.folder, "lock the cached kernels"))
    }

    /// The cached kernels, the one that was fetched last first.
    pub(super) fn entries(&self) -> Vec<PathBuf> {
        let Ok(found) = fs::read_dir(&self.folder) else { return Vec::new() };
        let mut entries: Vec<(SystemTime, PathBuf)> = found
            .flatten()
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            .filter_map(|entry| {
                let list = fs::metadata(entry.path().join(SUMS)).ok()?;
                Some((list.modified().ok()?, entry.path()))
            })
            .collect();
        entries.sort_by(|a, b| b.cmp(a));
        entries.into_iter().map(|(_, path)| path).collect()
    }

    /// The kernel in an entry, if its image matches its checksum.
    pub(super) fn open(&self, entry: &Path) -> Result<Kernel, Error> {
        let sums = Checksums::read(entry)?;
        let problem = |problem: &str| Error::Kernel {
            path: entry.to_owned(),
            problem: format!("{problem}; remove this folder to have it fetched again"),
        };
        let image = sums
            .0
            .keys()
            .find(|path| path.starts_with("boot/vmlinuz-"))
            .ok_or_else(|| problem("the package holds no kernel image"))?;
        let image = entry.join(image);
        if !sums.matches(entry, &image) {
            return Err(problem("the image is damaged"));
        }
        let release = KernelImage::read(&image)?.release()?;
        let modules = entry.join("lib/modules").join(&release);
        Ok(Kernel {
            release,
            image,
            modules: modules.exists().then_some(modules),
            cache: self.cache.clone(),
            entry: Some(entry.to_owned()),
        })
    }
}

/// Runs `read` on a file of a kernel after checking its checksum. A damaged file of the cache is fetched again first.
fn checked<T>(
    kernel: &Kernel,
    path: &Path,
    read: impl Fn(&Path) -> io::Result<T>,
) -> Result<T, String> {
    let Some(entry) = &kernel.entry else { return read(path).map_err(|e| e.to_string()) };
    let is_sound = || Checksums::read(entry).is_ok_and(|sums| sums.matches(entry, path));
    if !is_sound() {
        let store = KernelStore::of_entry(entry, &kernel.cache);
        let _lock = store.lock().map_err(|e| e.to_string())?;
        if !is_sound() {
            let package = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            store
                .fetch(&package)
                .map_err(|e| format!("it is damaged and could not be fetched again ({e})"))?;
        }
    }
    read(path).map_err(|e| e.to_string())
}

/// The checksum list of an entry: path in the entry -> SHA-256.
pub(super) struct Checksums(BTreeMap<String, String>);

impl Checksums {
    pub(super) fn read(entry: &Path) -> Result<Checksums, Error> {
        let path = entry.join(SUMS);
        let text = fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
        let lines = text.lines().filter_map(|line| line.split_once("  "));
        Ok(Checksums(lines.map(|(sum, path)| (path.to_owned(), sum.to_owned())).collect()))
    }

    pub(super) fn matches(&self, entry: &Path, file: &Path) -> bool {
        let name = file.strip_prefix(entry).ok().and_then(|name| name.to_str());
        let Some(expected) = name.and_then(|name| self.0.get(name)) else { return false };
        checksum::of_file(file).is_ok_and(|found| found == *expected)
    }

    /// Lists all files of a new entry.
    pub(super) fn write(entry: &Path) -> io::Result<()> {
        let mut list = String::new();
        let mut folders = vec![entry.to_owned()];
        while let Some(folder) = folders.pop() {
            for item in fs::read_dir(folder)? {
                let item = item?;
                if item.file_type()?.is_dir() {
                    folders.push(item.path());
                } else if item.file_type()?.is_file() {
                    let path = item.path();
                    let name = path.strip_prefix(entry).unwrap_or(&path).to_string_lossy();
                    list.push_str(&format!("{}  {name}\n", checksum::of_file(&path)?));
                }
            }
        }
        fs::write(entry.join(SUMS), list)
    }
}

impl KernelStore {
    /// Names of the packages that a package depends on, the first of each group of alternatives.
    pub(super) fn depends(&self, package: &str) -> Result<Vec<String>, Error> {
        let show = ["show", "--no-all-versions", package];
        let text = self.apt("apt-cache", &show, Path::new("/"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or_default();
        let name = |group: &str| group.split_whitespace().next().map(str::to_owned);
        Ok(line.split(',').filter_map(name).collect())
    }

    /// Fetches an image's package, and the packages of its parts where those are others, in place of
    /// what the cache has of it.
    pub(super) fn fetch(&self, package: &str) -> Result<Kernel, Error> {
        let mut packages = vec![package.to_owned()];
        let is_part = |name: &String| PARTS.iter().any(|part| name.starts_with(part));
        packages.extend(self.depends(package)?.into_iter().filter(is_part));
        let entry = self.folder.join(package);
        let keep = |e| Error::io(&entry, "keep the kernel")(e);
        let new = self.unpack(&entry, &packages)?;
        tidy(new.path()).map_err(keep)?;
        if self.configuration.is_some() {
            keep_modules(new.path(), self.architecture)?;
        }
        Checksums::write(new.path()).map_err(keep)?;
        new.replace().map_err(keep)?;
        self.open(&entry)
    }

    /// Fetches packages and unpacks them into a new folder beside an entry.
    pub(super) fn unpack(&self, entry: &Path, packages: &[String]) -> Result<NewFolder, Error> {
        let keep = |e| Error::io(entry, "keep a package")(e);
        let new = NewFolder::beside(entry).map_err(keep)?;
        let mut arguments = vec!["download"];
        arguments.extend(packages.iter().map(String::as_str));
        let unless_full = |e| full(new.path()).map_or(e, keep);
        self.apt("apt-get", &arguments, new.path()).map_err(unless_full)?;
        for file in fs::read_dir(new.path()).map_err(keep)? {
            let path = file.map_err(keep)?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                let name = path.to_string_lossy().into_owned();
                self.apt("dpkg-deb", &["-x", &name, "."], new.path()).map_err(unless_full)?;
                fs::remove_file(&path).map_err(keep)?;
            }
        }
        Ok(new)
    }

    /// Runs a program of the package manager in a folder and returns what it prints.
    pub(super) fn apt(
        &self,
        program: &'static str,
        arguments: &[&str],
        folder: &Path,
    ) -> Result<String, Error> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).env("LC_ALL", "C");
        if let Some(file) = &self.configuration {
            command.env("APT_CONFIG", file);
        }
        let problem = |problem: String| Error::Fetch {
            problem: format!("`{program} {}`: {problem}", arguments.join(" ")),
        };
        let finished =
            Tool::new(command, LIMITS).run().map_err(|e| problem(format!("{program} {e}")))?;
        if finished.status.success() {
            return Ok(String::from_utf8_lossy(&finished.stdout).into_owned());
        }
        // apt marks its errors; the last line is often another one.
        let errors = String::from_utf8_lossy(&finished.stderr);
        let marked = errors.lines().find_map(|line| line.trim().strip_prefix("E: "));
        Err(problem(marked.map_or_else(|| finished.reason(), str::to_owned)))
    }
}

/// The error of a full disk, if this folder's disk is full: the programs above only report that they failed.
fn full(folder: &Path) -> Option<io::Error> {
    let error = fs::write(folder.join("room"), vec![0; 1 << 20]).err()?;
    (error.kind() == io::ErrorKind::StorageFull).then_some(error)
}

/// Keeps the image and the modules, at the same place for every distribution.
fn tidy(folder: &Path) -> io::Result<()> {
    let merged = folder.join("usr/lib/modules");
    if merged.exists() && !folder.join("lib/modules").exists() {
        fs::create_dir_all(folder.join("lib"))?;
        fs::rename(merged, folder.join("lib/modules"))?;
    }
    image_to_boot(folder)?;
    remove_folder(&folder.join("usr"))?;
    remove_folder(&folder.join("etc"))
}

/// Debian's linux-binary packages have the image beside the modules, as `vmlinuz`.
fn image_to_boot(folder: &Path) -> io::Result<()> {
    let boot = folder.join("boot");
    for release in fs::read_dir(folder.join("lib/modules")).into_iter().flatten() {
        let release = release?;
        let image = release.path().join("vmlinuz");
        if fs::symlink_metadata(&image).is_ok_and(|found| found.is_file()) {
            fs::create_dir_all(&boot)?;
            let name = format!("vmlinuz-{}", release.file_name().to_string_lossy());
            fs::rename(image, boot.join(name))?;
        }
    }
    Ok(())
}

/// Removes the modules of an unpacked package that are not kept, nor needed by those.
fn keep_modules(folder: &Path, architecture: Architecture) -> Result<(), Error> {
    let boot = folder.join("boot");
    let images = fs::read_dir(&boot).map_err(Error::io(&boot, "read the kernel's package"))?;
    let image = images.flatten().map(|entry| entry.path()).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
    });
    let (Some(image), modules) = (image, folder.join("lib/modules")) else { return Ok(()) };
    let files = files(&image, Some(&modules))?;
    let mut kept = files.modules_for(architecture.kept())?;
    let too = architecture.kept_too().iter();
    kept.extend(too.filter_map(|name| files.modules_for(&[name]).ok()).flatten());
    modules::remove_others(&modules, &kept).map_err(Error::io(&modules, "keep modules"))
}
