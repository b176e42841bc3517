//! Settings of a host, of VM processes and of a guest: their values, sources, and why a value is unknown.
//!
//! A setting is known by the path of the file that holds it, which is its evidence too. The room `host`
//! fills these types in, `analyse::audit` judges them; neither needs the other.
//!
//! All texts come from the system that was looked at, which may be an archive from anywhere or a guest:
//! hostile.

pub mod cpuinfo;
pub mod files;
pub mod host_pages;
mod kvm;

use std::collections::BTreeMap;
use std::fmt;

pub use kvm::{ExitServer as KvmServer, Kvm, KvmModule};

/// Why something is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unknown {
    /// There is no such file.
    Missing,
    Denied,
    /// It is not UTF-8, or not of the form that it should have.
    NotText,
    /// It is longer than such a file can be.
    TooLong,
    /// A folder, a pipe or a device is in its place, or links that lead nowhere.
    NotAFile,
    /// The system's answer to reading it.
    Failed(String),
    NotRead,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unknown::Missing => "missing",
            Unknown::Denied => "permission denied",
            Unknown::NotText => "not the text it should be",
            Unknown::TooLong => "too long",
            Unknown::NotAFile => "not a file",
            Unknown::Failed(answer) => answer,
            Unknown::NotRead => "not read",
        })
    }
}

impl std::error::Error for Unknown {}

/// A value, or why there is none.
pub type Known<T> = Result<T, Unknown>;

/// A value and where it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact<T> {
    /// The file, or the pattern of files, within the system.
    pub path: String,
    pub value: Known<T>,
}

impl<T> Fact<T> {
    pub fn new(path: impl Into<String>, value: Known<T>) -> Fact<T> {
        Fact { path: path.into(), value }
    }

    /// The same fact, put in another way.
    pub fn map<U>(self, with: impl FnOnce(T) -> U) -> Fact<U> {
        Fact { path: self.path, value: self.value.map(with) }
    }
}

/// The files of a system that hold settings, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    files: BTreeMap<String, Known<String>>,
}

impl Settings {
    /// Keeps the text of a file, or why it is unknown. A pattern without files is kept itself.
    pub fn insert(&mut self, path: impl Into<String>, value: Known<String>) {
        self.files.insert(path.into(), value);
    }

    /// Call this when all files are in. Where nothing of `/proc` or of `/sys` was there at all, that a file is
    /// missing says nothing of the system.
    pub fn settle(&mut self) {
        for tree in ["/proc", "/sys"] {
            let inside =
                |path: &str| path.strip_prefix(tree).is_some_and(|rest| rest.starts_with('/'));
            if self.files.iter().any(|(path, value)| inside(path) && value.is_ok()) {
                continue;
            }
            for (path, value) in &mut self.files {
                if inside(path) && *value == Err(Unknown::Missing) {
                    *value = Err(Unknown::Failed(format!("nothing of {tree} is there")));
                }
            }
        }
    }

    /// The text of a file, trimmed.
    pub fn text(&self, path: &str) -> Known<&str> {
        match self.files.get(path) {
            Some(Ok(text)) => Ok(text.trim()),
            Some(Err(why)) => Err(why.clone()),
            None => Err(Unknown::NotRead),
        }
    }

    /// The same with its path.
    pub fn fact(&self, path: &str) -> Fact<String> {
        Fact::new(path, self.text(path).map(str::to_owned))
    }

    /// Every file that fits a pattern of [`files`], in the order of their numbers. Without any: the pattern
    /// itself and why.
    pub fn matching(&self, pattern: &str) -> Vec<Fact<String>> {
        let mut found: Vec<Fact<String>> = self
            .files
            .keys()
            .filter(|path| *path != pattern && files::fits(pattern, path))
            .map(|path| self.fact(path))
            .collect();
        found.sort_by_key(|fact| (numbers(&fact.path), fact.path.clone()));
        if found.is_empty() {
            found.push(self.fact(pattern));
        }
        found
    }

    /// Every file, by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Known<String>)> {
        self.files.iter().map(|(path, value)| (path.as_str(), value))
    }
}

/// The numbers in a path: `cpu10` comes after `cpu9`.
fn numbers(path: &str) -> Vec<u64> {
    path.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// A thread of a VM's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    pub tid: u32,
    /// Its name; hostile text.
    pub name: String,
    /// The CPUs it may run on, as the kernel lists them: `0-3,8`.
    pub allowed: String,
}

/// Kinds of a VM's memory in its process: mappings of 2 MiB and more. The VMM's own large mappings are
/// among them; they cannot be distinguished from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryBacking {
    /// Bytes in memory, huge pages of hugetlbfs included.
    pub resident: u64,
    /// Of it transparent huge pages of anonymous memory.
    pub anon_thp: u64,
    /// Of it transparent huge pages of shared memory (memfd, tmpfs) and of files.
    pub shmem_thp: u64,
    /// Of it pages of hugetlbfs.
    pub hugetlb: u64,
    /// Resident bytes of shared memory and files, hugetlbfs apart.
    pub shared: u64,
    /// Bytes in the host's swap.
    pub swapped: u64,
    /// Resident bytes that the kernel says may not become transparent huge pages.
    pub not_eligible: u64,
}

impl MemoryBacking {
    /// Bytes in pages of 2 MiB and more.
    pub fn large(&self) -> u64 {
        self.anon_thp.saturating_add(self.shmem_thp).saturating_add(self.hugetlb)
    }
}

/// Memory that KVM has mapped in EPT or NPT, in pages of each size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvmMapped {
    /// Pages of 4 KiB.
    pub pages_4k: u64,
    /// Pages of 2 MiB.
    pub pages_2m: u64,
    /// Pages of 1 GiB.
    pub pages_1g: u64,
}

impl KvmMapped {
    /// Bytes by size of page: 4 KiB, 2 MiB, 1 GiB.
    pub fn bytes(&self) -> [u64; 3] {
        let sizes = [(self.pages_4k, 12), (self.pages_2m, 21), (self.pages_1g, 30)];
        sizes.map(|(pages, shift)| pages.saturating_mul(1 << shift))
    }

    pub fn total(&self) -> u64 {
        self.bytes().into_iter().fold(0, u64::saturating_add)
    }

    /// Bytes in pages of 2 MiB and more.
    pub fn large(&self) -> u64 {
        let [_, m2, g1] = self.bytes();
        m2.saturating_add(g1)
    }
}

/// The counters of KVM that are read for each VM.
pub const COUNTERS: [&str; 6] =
    ["pages_4k", "pages_2m", "pages_1g", "halt_poll_success_ns", "halt_poll_fail_ns", "nested_run"];

/// In place of the program, where a command line is a part of one.
pub const PART: &str = "qemu-system";

/// A process that runs a VM: it holds a VM of KVM open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmProcess {
    pub pid: u32,
    /// The name that its command line gives the VM, else the process's; hostile text.
    pub name: String,
    /// vCPUs that it holds open.
    pub vcpus: u32,
    /// It holds `/dev/vhost-net` open.
    pub vhost_net: bool,
    /// It holds a guest_memfd open: memory of its VM may come from there.
    pub guest_memfd: bool,
    /// Its command line, word by word; hostile text.
    pub arguments: Fact<Vec<String>>,
    pub threads: Fact<Vec<Thread>>,
    pub backing: Fact<MemoryBacking>,
    /// Its memory by NUMA node, bytes.
    pub nodes: Fact<BTreeMap<u32, u64>>,
    /// KVM's counters by name, see [`COUNTERS`]; those of several VMs of one process added up.
    pub counters: BTreeMap<String, Fact<u64>>,
}

impl VmProcess {
    /// What its command line lacks is not known.
    pub fn is_part(&self) -> bool {
        self.arguments
            .value
            .as_ref()
            .is_ok_and(|words| words.first().is_some_and(|word| word == PART))
    }

    /// A counter of KVM.
    pub fn counter(&self, name: &str) -> Fact<u64> {
        let missing = || {
            Fact::new(format!("/sys/kernel/debug/kvm/{}-*/{name}", self.pid), Err(Unknown::NotRead))
        };
        self.counters.get(name).cloned().unwrap_or_else(missing)
    }

    /// Pages that KVM has mapped for it.
    pub fn mapped(&self) -> Fact<KvmMapped> {
        let [k4, m2, g1] = ["pages_4k", "pages_2m", "pages_1g"].map(|name| self.counter(name));
        let path = k4.path.replace("pages_4k", "pages_{4k,2m,1g}");
        let mapped =
            || Ok(KvmMapped { pages_4k: k4.value?, pages_2m: m2.value?, pages_1g: g1.value? });
        Fact::new(path, mapped())
    }
}

/// A system that was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct System {
    pub settings: Settings,
    pub kvm: Kvm,
    /// The VMs that run on it, by process id.
    pub vms: Vec<VmProcess>,
    /// Its processes could be listed.
    pub listed: bool,
    /// Unreadable processes, so that VMs may be missing.
    pub hidden: u64,
    /// There are more VMs than are looked at.
    pub more: bool,
}

impl System {
    /// No VM is missing.
    pub fn knows_all_vms(&self) -> bool {
        self.listed && self.hidden == 0 && !self.more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_gives_its_files_in_the_order_of_their_numbers() {
        let mut settings = Settings::default();
        for cpu in [10, 9, 0] {
            settings.insert(files::GOVERNOR.replace('#', &cpu.to_string()), Ok(format!("{cpu}\n")));
        }
        let found = settings.matching(files::GOVERNOR);
        let values: Vec<_> = found.into_iter().map(|fact| fact.value.unwrap()).collect();
        assert_eq!(values, ["0", "9", "10"]);
    }

    #[test]
    fn an_empty_pattern_names_the_reason() {
        let mut settings = Settings::default();
        settings.insert(files::GOVERNOR, Err(Unknown::Denied));
        let denied = Fact::new(files::GOVERNOR, Err(Unknown::Denied));
        assert_eq!(settings.matching(files::GOVERNOR), [denied]);
        assert_eq!(settings.text(files::CMDLINE), Err(Unknown::NotRead));
    }

    #[test]
    fn sizes_of_pages_add_up_and_cannot_overflow() {
        let mapped = KvmMapped { pages_4k: 1, pages_2m: 2, pages_1g: 1 };
        assert_eq!(mapped.bytes(), [4096, 4 << 20, 1 << 30]);
        assert_eq!(
            (mapped.large(), mapped.total()),
            ((4 << 20) + (1 << 30), (4 << 20) + (1 << 30) + 4096)
        );
        let huge = KvmMapped { pages_4k: u64::MAX, pages_2m: u64::MAX, pages_1g: u64::MAX };
        assert_eq!(huge.total(), u64::MAX);
    }
}
