//! A VM as its configuration has it, without its host: QEMU's command line, libvirt's XML or Proxmox's configuration, as people post them.
//!
//! libvirt's elements and Proxmox's keys become QEMU's words, by the names that both documents give (libvirt's `formatdomain`, QEMU's `qemu-options.hx` and
//! `docs/system/i386/hyperv.rst`), so that the checks know one language. What is not there is not known: it is unread.

mod domain;
mod proxmox;
mod words;

use std::collections::BTreeMap;

use vmtax_events::setting::{Fact, Settings, Thread, Unknown, VmProcess, files};

use crate::process::name;

/// Longer texts are no configuration.
pub const MOST_BYTES: usize = 1 << 20;

/// Lines that are looked at for parameters, and parameters that make a list of them.
const PARAMETERS: usize = 4096;
const ENOUGH: usize = 3;

/// The VM of a text; `None` if the text is neither.
///
/// # Errors
/// A sentence, when the XML cannot be read.
pub fn vm(text: &str, path: &str) -> Option<Result<VmProcess, String>> {
    if text.len() > MOST_BYTES {
        return None;
    }
    if domain::is_domain(text) {
        return Some(domain::read(text).map(|(words, threads)| process(words, threads, path)));
    }
    let words = words::command(text).or_else(|| proxmox::command(text));
    words.map(|words| Ok(process(words, None, path)))
}

/// Parameters of KVM's modules as `grep -H '' /sys/module/kvm*/parameters/*` prints them: `PATH:VALUE`.
pub fn parameters(text: &str) -> Option<Settings> {
    let mut settings = Settings::default();
    let mut known = 0;
    for line in text.lines().take(PARAMETERS) {
        let Some((path, value)) = line.trim().split_once(':') else { continue };
        if path.starts_with("/sys/module/kvm") && path.contains("/parameters/") {
            settings.insert(path, Ok(value.to_owned()));
            known += usize::from(files::FILES.contains(&path));
        }
    }
    (known >= ENOUGH).then_some(settings)
}

fn process(words: Vec<String>, threads: Option<Vec<Thread>>, path: &str) -> VmProcess {
    let values = |option: &str| -> Vec<&str> {
        let pairs = words.windows(2).filter(|pair| pair[0].trim_start_matches('-') == option);
        pairs.map(|pair| pair[1].as_str()).collect()
    };
    // Whether the kernel's vhost could be opened is not known: what is asked for is taken to be so.
    let backends = values("netdev");
    let vhost_net = !backends.is_empty() && backends.iter().all(|value| value.contains("vhost=on"));
    let vcpus = values("smp").first().and_then(|value| {
        let first = value.split(',').next()?;
        first.strip_prefix("cpus=").unwrap_or(first).parse().ok()
    });
    VmProcess {
        pid: 0,
        name: name(&words).unwrap_or_else(|| "VM".to_owned()),
        vcpus: vcpus.unwrap_or(1),
        vhost_net,
        guest_memfd: false,
        threads: Fact::new(path, threads.ok_or(Unknown::NotRead)),
        backing: Fact::new(path, Err(Unknown::NotRead)),
        nodes: Fact::new(path, Err(Unknown::NotRead)),
        counters: BTreeMap::new(),
        arguments: Fact::new(path, Ok(words)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_vm_of_kvm_is_read() {
        let refused = |text: &str| vm(text, "file").unwrap().unwrap_err();
        let one = "<domain type='kvm'><name>a</name></domain>\n";
        assert!(vm(one, "file").unwrap().is_ok());
        assert_eq!(refused(&one.repeat(2)), "has several VMs; give one at a time");
        for other in ["xen", "lxc", "vmware"] {
            let sentence = format!("is a domain of type {other:?}, which KVM does not run");
            assert_eq!(refused(&one.replace("kvm", other)), sentence);
        }
    }

    #[test]
    fn parameters_are_read_as_grep_prints_them() {
        let text = "$ grep -H '' /sys/module/kvm_intel/parameters/*\n/sys/module/kvm_intel/parameters/ept:Y\n\
            /sys/module/kvm_intel/parameters/enable_apicv:N\n/sys/module/kvm_intel/parameters/nested:Y\n";
        let settings = parameters(text).unwrap();
        assert_eq!(settings.text(files::APICV), Ok("N"));
        assert_eq!(settings.text(files::EPT), Ok("Y"));
        assert!(parameters("/sys/module/kvm_intel/parameters/ept:Y\n").is_none());
        assert!(parameters("hello: world\n").is_none());
    }
}
