//! Kernels of Debian's releases by version, from Debian's archive through apt. They are not the system's own: apt gets a configuration and lists
//! of its own, so it takes no root and leaves the system's sources alone.
//!
//! ```text
//! CACHE/debian/linux-image-6.12.117+deb13-amd64/  boot/ lib/ SHA256SUMS
//! CACHE/debian/.apt/                              apt.conf sources.list lists/
//! ```
//!
//! The archive has only the newest kernels of a release, so what was fetched is kept until its folder is removed: a version names the newest
//! cached kernel of it, and the archive is queried only if there is none.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::store::{IMAGE, KernelStore, PARTS};
use super::{Architecture, Kernel};
use crate::Error;

/// apt's files in the folder of Debian's kernels.
const APT: &str = ".apt";
/// Debian's releases with kernels that the lab can run, the oldest first, and what they are signed with.
const SOURCES: &[(&str, &str)] = &[
    ("debian", "bullseye"),
    ("debian-security", "bullseye-security"),
    ("debian", "bookworm"),
    ("debian-security", "bookworm-security"),
    ("debian", "bookworm-backports"),
    ("debian", "trixie"),
    ("debian-security", "trixie-security"),
    ("debian", "trixie-backports"),
    ("debian", "sid"),
];
/// The versions of releases, the newest last, which is that of other systems.
const RELEASES: &[(&str, &str)] = &[("bullseye", "5.10"), ("bookworm", "6.1"), ("trixie", "6.12")];
const MIRROR: &str = "http://deb.debian.org";
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The kernel of a version: `6.12` (the newest of it that is kept, or else that the archive has), or a release such as `6.12.117+deb13-amd64`.
pub fn debian(architecture: Architecture, version: &str, cache: &Path) -> Result<Kernel, Error> {
    let store = KernelStore::of_debian(architecture, cache);
    if let Some(kernel) = kept(&store, version) {
        return Ok(kernel);
    }
    let _lock = store.lock()?;
    // Another process may have fetched it meanwhile.
    if let Some(kernel) = kept(&store, version) {
        return Ok(kernel);
    }
    let package = Packages::ask(&store)?.image(version)?;
    store.fetch(&package)
}

/// Debian's kernel of another architecture for the release that runs here.
pub fn of_release(architecture: Architecture, cache: &Path) -> Result<Kernel, Error> {
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = system.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let own = RELEASES.iter().find(|(release, _)| Some(*release) == name);
    let version = own.or(RELEASES.last()).map_or("", |(_, version)| version);
    debian(architecture, version, cache)
}

/// The versions (`5.10`, `6.1`) of all kernels that are kept or can be fetched, the oldest first, and why the archive could not be asked.
pub fn debian_versions(
    architecture: Architecture,
    cache: &Path,
) -> Result<(Vec<String>, Option<String>), Error> {
    let store = KernelStore::of_debian(architecture, cache);
    let names = store.entries();
    let names = names.iter().filter_map(|entry| entry.file_name()?.to_str());
    let mut versions: BTreeSet<Vec<u64>> =
        names.filter_map(|name| Some(numbers(version_of(architecture, name)?))).collect();
    let _lock = store.lock()?;
    let problem = match Packages::ask(&store) {
        Ok(packages) => {
            let whole = packages.images().filter(|name| packages.missing(name).is_none());
            versions.extend(whole.filter_map(|name| version_of(architecture, name)).map(numbers));
            None
        }
        Err(error) if versions.is_empty() => return Err(error),
        Err(error) => Some(error.to_string()),
    };
    let series: BTreeSet<(u64, u64)> =
        versions.iter().filter_map(|numbers| Some((*numbers.first()?, *numbers.get(1)?))).collect();
    Ok((series.iter().map(|(major, minor)| format!("{major}.{minor}")).collect(), problem))
}

/// The newest kernel of a version that is kept and not damaged.
fn kept(store: &KernelStore, version: &str) -> Option<Kernel> {
    let mut entries = store.entries();
    entries.retain(|entry| {
        let name = entry.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| is_of(store.architecture, name, version))
    });
    entries.sort_by_key(|entry| {
        let name = entry.file_name().and_then(|name| name.to_str());
        name.and_then(|name| version_of(store.architecture, name)).map(numbers)
    });
    entries.iter().rev().find_map(|entry| store.open(entry).ok())
}

/// The kernels' packages of the archive.
struct Packages {
    architecture: Architecture,
    names: BTreeSet<String>,
    /// A source of apt's could not be read; others were.
    problem: Option<String>,
}

impl Packages {
    fn ask(store: &KernelStore) -> Result<Packages, Error> {
        configure(store)?;
        let folder = Path::new("/");
        let update = store.apt("apt-get", &["update", "-q"], folder);
        let names = store.apt("apt-cache", &["pkgnames", "linux-"], folder)?;
        let is_kernels = |name: &&str| {
            name.starts_with(IMAGE) || PARTS.iter().any(|part| name.starts_with(part))
        };
        let names: BTreeSet<String> = names.lines().filter(is_kernels).map(str::to_owned).collect();
        match update {
            Err(error) if names.is_empty() => Err(error),
            update => {
                let problem = update.err().map(|error| error.to_string());
                Ok(Packages { architecture: store.architecture, names, problem })
            }
        }
    }

    fn images(&self) -> impl Iterator<Item = &str> {
        let names = self.names.iter().map(String::as_str);
        names.filter(|name| version_of(self.architecture, name).is_some())
    }

    /// A package that an image needs and that the archive no longer has.
    fn missing(&self, image: &str) -> Option<String> {
        let rest = image.strip_prefix(IMAGE)?;
        let [binary, modules] = PARTS.map(|part| format!("{part}{rest}"));
        (self.names.contains(&binary) && !self.names.contains(&modules)).then_some(modules)
    }

    /// The newest image of a version.
    fn image(&self, version: &str) -> Result<String, Error> {
        let is_of = |name: &&str| is_of(self.architecture, name, version);
        let mut images: Vec<&str> = self.images().filter(is_of).collect();
        images.sort_by_key(|name| version_of(self.architecture, name).map(numbers));
        if let Some(image) = images.iter().rev().find(|image| self.missing(image).is_none()) {
            return Ok((*image).to_owned());
        }
        let reason = match images.last().and_then(|image| self.missing(image)) {
            Some(modules) => format!("has its image and no longer {modules}"),
            None => "has none of it".to_owned(),
        };
        let problem =
            self.problem.as_ref().map_or_else(String::new, |problem| format!(" ({problem})"));
        Err(Error::Fetch {
            problem: format!(
                "Linux {version}: Debian's archive {reason}{problem}; give an image and its modules, or another version"
            ),
        })
    }
}

/// Writes apt's configuration.
fn configure(store: &KernelStore) -> Result<(), Error> {
    let apt = store.folder.join(APT);
    let write = |path: &Path, text: &str| {
        fs::write(path, text).map_err(Error::io(path, "write apt's configuration"))
    };
    for folder in ["lists/partial", "cache/archives/partial"].map(|name| apt.join(name)) {
        fs::create_dir_all(&folder).map_err(Error::io(&folder, "make apt's folders"))?;
    }
    if !Path::new(KEYS).exists() {
        return Err(Error::Fetch {
            problem: format!(
                "{KEYS} is missing, which Debian's archive is checked with; install debian-archive-keyring"
            ),
        });
    }
    let line = |(archive, suite): &(&str, &str)| {
        format!("deb [signed-by={KEYS}] {MIRROR}/{archive} {suite} main\n")
    };
    write(&apt.join("sources.list"), &SOURCES.iter().map(line).collect::<String>())?;
    let (apt, file) = (apt.display(), apt.join("apt.conf"));
    let text = format!(
        "Dir::Etc::sourcelist \"{apt}/sources.list\";\nDir::Etc::sourceparts \"-\";\nDir::State::lists \"{apt}/lists\";\n\
         Dir::Cache \"{apt}/cache\";\nAPT::Architecture \"{}\";\nAPT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n",
        store.architecture.name()
    );
    write(&file, &text)
}

/// The version in the name of an image's package: `6.12.117+deb13`.
fn version_of(architecture: Architecture, package: &str) -> Option<&str> {
    let flavour = architecture.flavour();
    let version = package.strip_prefix(IMAGE)?.strip_suffix(flavour.as_str())?;
    let is_release = version.starts_with(|c: char| c.is_ascii_digit())
        && !["-cloud", "-rt"].iter().any(|flavour| version.ends_with(flavour));
    // `linux-image-6.12-amd64` depends on the newest of them.
    (is_release && numbers(version).len() > 2).then_some(version)
}

/// Whether an image's package is of a version: `6.12`, `6.12.117`, or all of its release.
fn is_of(architecture: Architecture, package: &str, version: &str) -> bool {
    let Some(found) = version_of(architecture, package) else { return false };
    let version = version.strip_suffix(architecture.flavour().as_str()).unwrap_or(version);
    let rest = found.strip_prefix(version);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The numbers of a version, which order it.
fn numbers(version: &str) -> Vec<u64> {
    let parts = version.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    parts.filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(names: &[&str]) -> Packages {
        let architecture = Architecture::Amd64;
        Packages {
            architecture,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            problem: None,
        }
    }

    #[test]
    fn the_newest_of_a_version_is_taken() {
        let archive = packages(&[
            "linux-image-6.1.0-9-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-0.deb11.52-amd64",
            "linux-image-6.12.117+deb13-amd64",
            "linux-image-6.12.95+deb12-amd64",
            "linux-image-6.12-amd64",
            "linux-image-6.12.118+deb13-cloud-amd64",
            "linux-image-6.12.118+deb13-rt-amd64",
            "linux-image-amd64",
            "linux-image-7.2.12+deb13-amd64",
            "linux-binary-7.2.12+deb13-amd64",
            "linux-modules-7.2.12+deb13-amd64",
        ]);
        for (version, image) in [
            ("6.1", "linux-image-6.1.0-56-amd64"),
            ("6.12", "linux-image-6.12.117+deb13-amd64"),
            ("6.12.95", "linux-image-6.12.95+deb12-amd64"),
            ("6.1.0-9-amd64", "linux-image-6.1.0-9-amd64"),
            ("7.2", "linux-image-7.2.12+deb13-amd64"),
        ] {
            assert_eq!(archive.image(version).expect(version), image);
        }
        let error = archive.image("4.19").expect_err("none").to_string();
        assert!(error.contains("Linux 4.19: Debian's archive has none of it"), "{error}");
    }

    #[test]
    fn a_package_that_the_archive_lacks_is_named() {
        let archive = packages(&[
            "linux-image-7.1.13+deb13-amd64",
            "linux-binary-7.1.13+deb13-amd64",
            "linux-image-7.1.8+deb13-amd64",
            "linux-binary-7.1.8+deb13-amd64",
            "linux-image-7.0.4+deb13-amd64",
            "linux-binary-7.0.4+deb13-amd64",
            "linux-modules-7.0.4+deb13-amd64",
            "linux-image-7.0.9+deb13-amd64",
            "linux-binary-7.0.9+deb13-amd64",
        ]);
        let error = archive.image("7.1").expect_err("no modules").to_string();
        assert!(error.contains("no longer linux-modules-7.1.13+deb13-amd64"), "{error}");
        // An older one of the same version is whole.
        assert_eq!(archive.image("7.0").expect("7.0.4"), "linux-image-7.0.4+deb13-amd64");
    }
}
