//! Words that name a set-up: what was changed, or where something ran.

/// Words that name one by themselves.
const WORDS: &[&str] = &[
    "with",
    "without",
    "w/o",
    "before",
    "after",
    "old",
    "new",
    "enabled",
    "disabled",
    "encrypted",
    "unencrypted",
    "enable",
    "disable",
    "on",
    "off",
    "host",
    "guest",
    "vm",
    "vms",
    "non-vm",
    "bare",
    "metal",
    "baremetal",
    "bare-metal",
    "native",
    "natively",
    "physical",
    "container",
    "docker",
    "lxc",
    "nested",
    "kvm",
    "tcg",
    "xen",
    "hyper-v",
    "vmware",
    "esxi",
    "virtualbox",
    "qemu",
    "firecracker",
    "cloud-hypervisor",
    "crosvm",
    "virtio",
    "virtio-net",
    "virtio-blk",
    "virtio-scsi",
    "virtiofs",
    "virtio-fs",
    "9p",
    "9p-fs",
    "9pfs",
    "virtio-9p",
    "e1000",
    "e1000e",
    "rtl8139",
    "ide",
    "sata",
    "scsi",
    "vhost",
    "vhost-net",
    "vhost-user",
    "patched",
    "unpatched",
    "vanilla",
    "baseline",
    "base",
    "original",
    "optimized",
    "stock",
    "master",
    "upstream",
    "mainline",
    "reverted",
    "revert",
    "reverts",
    "hugepages",
    "thp",
    "pinned",
    "unpinned",
    "passthrough",
    "sr-iov",
    "emulated",
    "snp",
    "sev",
    "sev-snp",
    "tdx",
    "td",
    "wsl",
    "wsl2",
    "l0",
    "l1",
    "l2",
    "dom0",
    "domu",
    "q35",
    "i440fx",
    "microvm",
    "proxmox",
    "default",
];
/// Those of them that join: what stands behind them belongs to the name.
const JOINING: &[&str] = &["with", "without", "w/o", "before", "after", "enable", "disable"];
/// Words of no meaning in a label.
const FILLING: &[&str] = &[
    "a", "an", "the", "in", "inside", "of", "under", "for", "by", "using", "at", "is", "was", "=",
    "-", "+", "/", "&", "and", "running", "run",
];

fn bare(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
}

/// Whether a word names a set-up: one of the list, a setting (`halt_poll_ns=0`), a version (`6.1`, `v24.05`).
pub(super) fn is_setup_word(word: &str) -> bool {
    let bare = bare(word);
    let version = bare.strip_prefix('v').unwrap_or(&bare);
    let is_version = version.contains('.')
        && version.starts_with(|c: char| c.is_ascii_digit())
        && version.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
    WORDS.contains(&bare.as_str())
        || WORDS.contains(&word.to_lowercase().as_str())
        // `master+reverts`.
        || bare.split('+').all(|part| WORDS.contains(&part))
        || is_version
        || is_setting(word)
}

/// `halt_poll_ns=0`; not what a benchmark is asked to do.
fn is_setting(word: &str) -> bool {
    const OF_LOAD: &[&str] = &[
        "bs", "rw", "size", "name", "runtime", "count", "len", "iodepth", "numjobs", "time",
        "threads", "vcpus", "cpus", "jobs", "qd", "depth", "clients", "rq",
    ];
    word.split_once('=').is_some_and(|(name, value)| {
        let name = name.trim_start_matches('-');
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && !value.is_empty()
            && !OF_LOAD.contains(&name)
    })
}

/// What is left of a label without the words that name its set-up; `None` if it names none. Labels that leave the same are of one thing in several
/// set-ups: `boot with vhost`, `boot without`.
pub(super) fn remainder(label: &str) -> Option<String> {
    // `halt_poll_ns=0, p99`: a metric stands behind the set-up.
    if let Some((setup, metric)) = label.rsplit_once(", ")
        && setup.split_whitespace().any(is_setting)
        && !metric.split_whitespace().any(is_setting)
    {
        return Some(metric.to_lowercase());
    }
    // Settings beside each other are nothing but a set-up.
    if label.split_whitespace().any(is_setting) {
        return Some(String::new());
    }
    let mut rest = Vec::new();
    let mut is_named = false;
    for word in label.split_whitespace() {
        let lower = bare(word);
        if is_setup_word(word) {
            is_named = true;
            if JOINING.contains(&lower.as_str())
                || lower == "w/o"
                || word.eq_ignore_ascii_case("w/o")
            {
                break;
            }
        } else if !lower.is_empty()
            && !FILLING.contains(&lower.as_str())
            && lower.parse::<u32>().is_err()
        {
            rest.push(lower);
        }
    }
    is_named.then(|| rest.join(" "))
}

/// The part of a phrase that names a set-up: from the first such word to the last, and what a joining word is followed by.
pub(super) fn named(words: &[&str]) -> Option<String> {
    /// Words behind `with`, `without` and their like.
    const BEHIND: usize = 4;
    // Of a sentence neither `on`, nor a setting, nor a number with a point names one.
    let is_named = |word: &&str| {
        let bare = bare(word);
        let is_word = WORDS.contains(&bare.as_str()) || word.eq_ignore_ascii_case("w/o");
        is_word && !["on", "off"].contains(&bare.as_str())
    };
    let first = words.iter().position(is_named)?;
    let last = words.iter().rposition(is_named)?;
    let joins =
        |word: &str| JOINING.contains(&bare(word).as_str()) || word.eq_ignore_ascii_case("w/o");
    let joined = words[first..=last].iter().position(|word| joins(word)).map(|at| first + at);
    let end = match joined {
        Some(at) => words.len().min((at + 1 + BEHIND).max(last + 1)),
        None => last + 1,
    };
    let trimmed = |word: &&str| word.trim_matches(|c: char| ",;.()[]\"'`*".contains(c)).to_owned();
    let name = words[first..end].iter().map(trimmed).collect::<Vec<_>>().join(" ");
    let name = name.trim_end_matches([':', ' ', '=']).to_owned();
    name.chars().any(char::is_alphabetic).then_some(name)
}

/// Words for where something runs: a sentence without one is of no VM.
const PLACES: &[&str] = &[
    "vm",
    "vms",
    "guest",
    "guests",
    "metal",
    "baremetal",
    "bare-metal",
    "native",
    "natively",
    "nested",
    "kvm",
    "qemu",
    "xen",
    "vmware",
    "esxi",
    "virtualbox",
    "firecracker",
    "cloud-hypervisor",
    "crosvm",
    "proxmox",
    "wsl",
    "wsl2",
    "virtio",
    "vhost",
    "passthrough",
    "snp",
    "sev",
    "sev-snp",
    "tdx",
    "l1",
    "l2",
    "domu",
    "dom0",
    "microvm",
];

/// Whether a word says where something runs.
pub(super) fn is_place(word: &str) -> bool {
    PLACES.contains(&bare(word).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_one_thing_leave_the_same() {
        let left = |label: &str| remainder(label);
        let is = |rest: &str| Some(rest.to_owned());
        assert_eq!(left("boot with vhost"), is("boot"));
        assert_eq!(left("boot without"), is("boot"));
        assert_eq!(left("2 VMs"), is(""));
        assert_eq!(left("kernel 5.4"), is("kernel"));
        assert_eq!(left("halt_poll_ns=0"), is(""));
        assert_eq!(left("4 KiB"), None);
        assert_eq!(left("VM start"), is("start"));
        assert_eq!(left("guest boot"), is("boot"));
        assert_eq!(named(&["in", "the", "VM,"]), is("VM"));
        assert_eq!(named(&["on", "bare", "metal"]), is("bare metal"));
        assert_eq!(named(&["with", "virtio-scsi", "disks"]), is("with virtio-scsi disks"));
        assert_eq!(named(&["in", "a", "while"]), None);
    }
}
