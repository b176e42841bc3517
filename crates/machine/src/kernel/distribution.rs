//! The distribution's kernel, from its package archive by way of apt: fetched and unpacked, never
//! installed, so it takes no root and changes nothing of the system.
//!
//! ```text
//! CACHE/kernels/linux-image-6.1.0-56-amd64/  boot/ lib/ SHA256SUMS
//! ```
//!
//! The list is as of `sha256sum`, and written last. The image is checked against it each time, a module when it
//! is read, and what does not match is fetched again. A cached kernel is used without asking apt, so it
//! stays the same until its folder, or `CACHE/kernels`, is removed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use vmtax_durable::{NewFolder, remove_folder};

use super::Kernel;
use super::image::Image;
use crate::lock::Lock;
use crate::{Error, Limits, Tool, checksum};

const SUMS: &str = "SHA256SUMS";
const KERNELS: &str = "kernels";
/// Timeout of apt, which may fetch 100 MB over a slow line.
const LIMITS: Limits = Limits { time: Duration::from_secs(600), output: 16 << 20 };
/// The meta packages of the kernel: Debian's and Ubuntu's.
const META: [&str; 2] = ["linux-image-amd64", "linux-image-generic"];

/// The distribution's kernel: cached in `cache`, or fetched into it through apt.
pub fn distribution(cache: &Path) -> Result<Kernel, Error> {
    if let Some(kernel) = cached(cache) {
        return Ok(kernel);
    }
    let _lock = lock(cache)?;
    // Another process may have fetched it meanwhile.
    if let Some(kernel) = cached(cache) {
        return Ok(kernel);
    }
    let package = image_package()?;
    fetch(&package, cache)
}

/// The most recently fetched kernel that is not damaged.
fn cached(cache: &Path) -> Option<Kernel> {
    entries(cache).into_iter().find_map(|entry| open(&entry, cache).ok())
}

/// The lock for fetching, so that each kernel is fetched once.
fn lock(cache: &Path) -> Result<Lock, Error> {
    let folder = cache.join(KERNELS);
    Lock::exclusive(&folder).map_err(Error::io(&folder, "lock the cached kernels"))
}

/// The cached kernels, the one that was fetched last first.
fn entries(cache: &Path) -> Vec<PathBuf> {
    let Ok(found) = fs::read_dir(cache.join(KERNELS)) else { return Vec::new() };
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
fn open(entry: &Path, cache: &Path) -> Result<Kernel, Error> {
    let sums = Sums::read(entry)?;
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
    let release = Image::read(&image)?.release()?;
    let modules = entry.join("lib/modules").join(&release);
    Ok(Kernel {
        release,
        image,
        modules: modules.exists().then_some(modules),
        cache: cache.to_owned(),
        entry: Some(entry.to_owned()),
    })
}

/// Runs `read` on a file of a kernel after checking its checksum. A damaged file of the cache is fetched again first.
pub(super) fn checked<T>(
    kernel: &Kernel,
    path: &Path,
    read: impl Fn(&Path) -> io::Result<T>,
) -> Result<T, String> {
    let Some(entry) = &kernel.entry else { return read(path).map_err(|e| e.to_string()) };
    let is_sound = || Sums::read(entry).is_ok_and(|sums| sums.matches(entry, path));
    if !is_sound() {
        let _lock = lock(&kernel.cache).map_err(|e| e.to_string())?;
        if !is_sound() {
            let package = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            fetch(&package, &kernel.cache)
                .map_err(|e| format!("it is damaged and could not be fetched again ({e})"))?;
        }
    }
    read(path).map_err(|e| e.to_string())
}

/// The checksum list of an entry: path in the entry -> SHA-256.
struct Sums(BTreeMap<String, String>);

impl Sums {
    fn read(entry: &Path) -> Result<Sums, Error> {
        let path = entry.join(SUMS);
        let text = fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
        let lines = text.lines().filter_map(|line| line.split_once("  "));
        Ok(Sums(lines.map(|(sum, path)| (path.to_owned(), sum.to_owned())).collect()))
    }

    fn matches(&self, entry: &Path, file: &Path) -> bool {
        let name = file.strip_prefix(entry).ok().and_then(|name| name.to_str());
        let Some(expected) = name.and_then(|name| self.0.get(name)) else { return false };
        checksum::of_file(file).is_ok_and(|found| found == *expected)
    }

    /// Lists all files of a new entry.
    fn write(entry: &Path) -> io::Result<()> {
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

/// The package that the distribution's meta package depends on: `linux-image-6.1.0-56-amd64`.
fn image_package() -> Result<String, Error> {
    let problem = |problem: String| Error::Fetch { problem };
    let mut reasons = Vec::new();
    for meta in META {
        match depends(meta) {
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
    package
        .strip_prefix("linux-image-")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Names of the packages that a package depends on, the first of each group of alternatives.
fn depends(package: &str) -> Result<Vec<String>, Error> {
    let text = apt("apt-cache", &["show", "--no-all-versions", package], Path::new("/"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or_default();
    let name = |group: &str| group.split_whitespace().next().map(str::to_owned);
    Ok(line.split(',').filter_map(name).collect())
}

/// Fetches an image's package, and the package of its modules where that is another one, in place of
/// what the cache has of it.
fn fetch(package: &str, cache: &Path) -> Result<Kernel, Error> {
    let mut packages = vec![package.to_owned()];
    let is_modules = |name: &String| name.starts_with("linux-modules-");
    packages.extend(depends(package)?.into_iter().filter(is_modules));
    let entry = cache.join(KERNELS).join(package);
    let keep = |e| Error::io(&entry, "keep the kernel")(e);
    let new = NewFolder::beside(&entry).map_err(keep)?;
    let mut arguments = vec!["download"];
    arguments.extend(packages.iter().map(String::as_str));
    let unless_full = |e| full(new.path()).map_or(e, keep);
    apt("apt-get", &arguments, new.path()).map_err(unless_full)?;
    for file in fs::read_dir(new.path()).map_err(keep)? {
        let path = file.map_err(keep)?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            let name = path.to_string_lossy().into_owned();
            apt("dpkg-deb", &["-x", &name, "."], new.path()).map_err(unless_full)?;
            fs::remove_file(&path).map_err(keep)?;
        }
    }
    tidy(new.path()).map_err(keep)?;
    Sums::write(new.path()).map_err(keep)?;
    new.replace().map_err(keep)?;
    open(&entry, cache)
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
    remove_folder(&folder.join("usr"))?;
    remove_folder(&folder.join("etc"))
}

/// Runs a program of the package manager in a folder and returns what it prints.
fn apt(program: &'static str, arguments: &[&str], folder: &Path) -> Result<String, Error> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env("LC_ALL", "C");
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
