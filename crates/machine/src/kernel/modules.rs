//! Kernel modules: found by name, unpacked, in the order in which they load.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection};

use crate::Error;

/// A module, ready for `init_module`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelModule {
    /// Its name as the kernel writes it: `kvm_amd`.
    pub name: String,
    /// The unpacked `.ko`.
    pub bytes: Vec<u8>,
}

impl KernelModule {
    /// Takes the signature off. Checking it hashes the whole module, 60 million instructions for KVM's; without, the
    /// kernel says once that it is tainted, and refuses only if it was built with `MODULE_SIG_FORCE`.
    pub fn strip_signature(&mut self) {
        const MAGIC: &[u8] = b"~Module signature appended~\n";
        /// `struct module_signature`, which ends with the signature's length.
        const TRAILER: usize = 12;
        let Some(end) = self.bytes.strip_suffix(MAGIC).map(<[u8]>::len) else { return };
        let length = end.checked_sub(4).and_then(|at| self.bytes.get(at..end));
        let Some(Ok(length)) = length.map(<[u8; 4]>::try_from) else { return };
        let signature = u32::from_be_bytes(length) as usize;
        if let Some(kept) = end.checked_sub(TRAILER).and_then(|end| end.checked_sub(signature)) {
            self.bytes.truncate(kept);
        }
    }
}

/// The largest that is read; amdgpu has 30 MB.
const LARGEST: u64 = 512 << 20;

/// These modules of a kernel and their dependencies, in the order of loading, without those that are built in. `read` returns an unpacked file,
/// or why there is none.
pub(super) fn in_load_order(
    release: &str,
    folder: Option<&Path>,
    names: &[&str],
    read: &dyn Fn(&Path) -> Result<Vec<u8>, String>,
) -> Result<Vec<KernelModule>, Error> {
    let Some(folder) = folder else {
        return match names.first() {
            None => Ok(Vec::new()),
            Some(name) => Err(no_module(release, name, "no folder of modules was given")),
        };
    };
    let mut search = ModuleSearch {
        release,
        folder,
        read,
        files: find(folder).map_err(Error::io(folder, "read the modules' folder"))?,
        builtin: builtin(folder),
        seen: HashSet::new(),
        found: Vec::new(),
    };
    for name in names {
        search.add(&normal(name), 0)?;
    }
    Ok(search.found)
}

fn no_module(release: &str, module: &str, problem: &str) -> Error {
    let (release, module) = (release.to_owned(), module.to_owned());
    Error::Module { release, module, problem: problem.to_owned() }
}

/// A module of the running kernel, from a folder such as `/lib/modules/RELEASE`; `None` if it is not there.
pub fn module(folder: &Path, name: &str) -> io::Result<Option<KernelModule>> {
    let name = normal(name);
    let Some(path) = find(folder)?.remove(&name) else { return Ok(None) };
    Ok(Some(KernelModule { bytes: unpacked(&path)?, name }))
}

struct ModuleSearch<'a> {
    release: &'a str,
    folder: &'a Path,
    read: &'a dyn Fn(&Path) -> Result<Vec<u8>, String>,
    files: BTreeMap<String, PathBuf>,
    builtin: HashSet<String>,
    seen: HashSet<String>,
    found: Vec<KernelModule>,
}

impl ModuleSearch<'_> {
    fn add(&mut self, name: &str, depth: u32) -> Result<(), Error> {
        if self.builtin.contains(name) || !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let refused = |problem: &str| no_module(self.release, name, problem);
        let Some(path) = self.files.get(name).filter(|_| depth < 32).cloned() else {
            let place = self.folder.display();
            let problem = format!(
                "it is neither built in nor below {place}; use a kernel that was built with it"
            );
            return Err(refused(&problem));
        };
        let bytes = (self.read)(&path)
            .map_err(|problem| refused(&format!("{}: {problem}", path.display())))?;
        let info = ModuleInfo::read(&bytes).map_err(|problem| {
            let problem = format!("{} is damaged ({problem})", path.display());
            refused(&problem)
        })?;
        if let Some(built_for) = info.other_kernel(self.release) {
            let problem = format!(
                "{} was built for {built_for}, and the kernel would refuse it (\"Exec format error\"); give the modules of the same build",
                path.display()
            );
            return Err(refused(&problem));
        }
        for dependency in info.dependencies {
            self.add(&dependency, depth + 1)?;
        }
        self.found.push(KernelModule { name: name.to_owned(), bytes });
        Ok(())
    }
}

/// Users write `-` or `_` in names; the kernel uses `_`.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// The name of the module in such a file.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let stem = ["", ".xz", ".zst", ".gz"]
        .iter()
        .find_map(|packing| name.strip_suffix(&format!(".ko{packing}")))?;
    Some(normal(stem))
}

/// All module files below a folder.
fn find(folder: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            // `build` and `source` are links, which are not followed.
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if let Some(name) = module_name(&entry.path()) {
                files.insert(name, entry.path());
            }
        }
    }
    Ok(files)
}

/// Removes all module files below a folder but those of these modules.
pub(super) fn remove_others(folder: &Path, kept: &[KernelModule]) -> io::Result<()> {
    for (name, path) in find(folder)? {
        if !kept.iter().any(|module| module.name == name) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Names in `modules.builtin`: a path a line.
fn builtin(folder: &Path) -> HashSet<String> {
    let text = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
    text.lines().filter_map(|line| module_name(Path::new(line.trim()))).collect()
}

/// A module's file, unpacked.
pub(super) fn unpacked(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let reader: Box<dyn Read> = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => Box::new(lzma_rust2::XzReader::new(io::BufReader::new(file), false)),
        Some("zst") => Box::new(zstd::Decoder::new(file)?),
        Some("gz") => Box::new(flate2::read::GzDecoder::new(file)),
        _ => Box::new(file),
    };
    let mut bytes = Vec::new();
    reader.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What a module says of itself.
#[derive(Debug, PartialEq, Eq)]
struct ModuleInfo {
    /// `depends=` in `.modinfo`.
    dependencies: Vec<String>,
    /// The release of the kernel that it was built for, the first word of `vermagic=`.
    built_for: Option<String>,
    /// It has a checksum of each symbol that it uses (CONFIG_MODVERSIONS), and the kernel compares those in place of the release.
    is_versioned: bool,
}

impl ModuleInfo {
    fn read(bytes: &[u8]) -> object::read::Result<ModuleInfo> {
        let file = object::File::parse(bytes)?;
        let section = file.section_by_name(".modinfo");
        let info = section.map(|section| section.data()).transpose()?.unwrap_or_default();
        let value = |key: &[u8]| {
            let found = info.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(key));
            found.map(|value| String::from_utf8_lossy(value).into_owned())
        };
        let names = value(b"depends=").unwrap_or_default();
        Ok(ModuleInfo {
            dependencies: names.split(',').filter(|name| !name.is_empty()).map(normal).collect(),
            built_for: value(b"vermagic=")
                .and_then(|magic| magic.split_whitespace().next().map(str::to_owned)),
            is_versioned: ["__versions", "__version_ext_crcs"]
                .iter()
                .any(|name| file.section_by_name(name).is_some()),
        })
    }

    /// The kernel that it was built for, if this one is sure to refuse it.
    fn other_kernel(&self, release: &str) -> Option<&str> {
        self.built_for.as_deref().filter(|built_for| *built_for != release && !self.is_versioned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let name = |path: &str| module_name(Path::new(path));
        assert_eq!(name("kernel/arch/x86/kvm/kvm-amd.ko"), Some("kvm_amd".to_owned()));
        assert_eq!(name("a/b.ko.zst"), Some("b".to_owned()));
        assert_eq!(name("a/modules.order"), None);
    }

    #[test]
    fn modules_of_another_kernel() {
        let info = |built_for: Option<&str>, is_versioned| ModuleInfo {
            dependencies: Vec::new(),
            built_for: built_for.map(str::to_owned),
            is_versioned,
        };
        assert_eq!(info(Some("6.1.0"), false).other_kernel("6.1.0"), None);
        assert_eq!(info(Some("6.1.0"), false).other_kernel("6.2.0"), Some("6.1.0"));
        assert_eq!(info(Some("6.1.0"), true).other_kernel("6.2.0"), None);
        assert_eq!(info(None, false).other_kernel("6.2.0"), None);
    }

    #[test]
    fn signatures_come_off() {
        let mut signed = b"module".to_vec();
        signed.extend(b"signature");
        signed.extend([0; 8]);
        signed.extend(9u32.to_be_bytes());
        signed.extend(b"~Module signature appended~\n");
        let mut module = KernelModule { name: "m".to_owned(), bytes: signed };
        module.strip_signature();
        assert_eq!(module.bytes, b"module");
        module.strip_signature();
        assert_eq!(module.bytes, b"module");
        module.bytes = b"\xff\xff\xff\xff~Module signature appended~\n".to_vec();
        module.strip_signature();
        assert_eq!(module.bytes.len(), 32);
    }
}
