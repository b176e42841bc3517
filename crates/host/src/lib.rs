//! Reads the settings of a system below a root path, as [`vmtax_events::setting`].
//!
//! The root is `/`, or a folder that holds another system's `/proc` and `/sys`: an archive from anywhere.
//! Nothing in it is trusted. Links are resolved inside the root, only regular files are opened, and each is read up to a limit. An
//! unreadable setting is a value too, with the reason.
//!
//! [`ram`] reads and surveys the memory of a running VM.
//!
//! [`symbols`] names the functions of such a system's programs.
//!
//! Left out on purpose: judging settings, and changing them.

pub mod configuration;
pub mod host_pages;
mod kvm;
mod process;
pub mod ram;
pub mod remote;
mod root;
pub mod smaps;
pub mod symbols;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use vmtax_events::setting::files::{FILES, name_fits};
use vmtax_events::setting::{Known, Kvm, Settings, System, Unknown};

use crate::root::{Root, TEXT};

/// Most files of a pattern: four for each of 4,096 CPUs.
const MATCHES: usize = 16_384;

/// Reads a system. Fails only when the root itself cannot be opened.
pub fn system(root: &Path) -> io::Result<System> {
    let root = Root::open(root)?;
    let processes = process::vms(&root);
    Ok(System {
        settings: of_root(&root),
        kvm: kvm::read(&root),
        vms: processes.vms,
        listed: processes.listed,
        hidden: processes.hidden,
        more: processes.more,
    })
}

/// The KVM of a system.
pub fn kvm(root: &Path) -> io::Result<Kvm> {
    Ok(kvm::read(&Root::open(root)?))
}

/// Reads the settings alone, as of a guest.
pub fn settings(root: &Path) -> io::Result<Settings> {
    Ok(of_root(&Root::open(root)?))
}

/// Processes that run VMs, with the names of the VMs; untrusted. Settings are not read.
pub fn running(root: &Path) -> io::Result<Vec<(u32, String)>> {
    Ok(process::running(&Root::open(root)?))
}

/// The name of the VM of a process; untrusted, empty if it has ended.
pub fn vm_name(root: &Path, pid: u32) -> io::Result<String> {
    Ok(process::vm_name(&Root::open(root)?, pid))
}

/// KVM's counters of the VMs of a process, by name. Missing and unreadable ones are omitted.
pub fn counters(root: &Path, pid: u32) -> io::Result<Vec<(&'static str, u64)>> {
    Ok(process::counters(&Root::open(root)?, pid))
}

fn of_root(root: &Root) -> Settings {
    let mut settings = Settings::default();
    for pattern in FILES {
        if !pattern.contains(['#', '*']) {
            settings.insert(*pattern, root.text(pattern, TEXT));
            continue;
        }
        match expand(root, pattern) {
            Ok(paths) => {
                for path in paths {
                    let text = root.text(&path, TEXT);
                    settings.insert(path, text);
                }
            }
            Err(why) => settings.insert(*pattern, Err(why)),
        }
    }
    settings.settle();
    settings
}

/// The files of a pattern, or why there are none.
fn expand(root: &Root, pattern: &str) -> Known<Vec<String>> {
    let mut paths = vec![String::new()];
    let mut denied = None;
    let components: Vec<&str> = pattern.split('/').skip(1).collect();
    for (at, component) in components.iter().enumerate() {
        if !component.contains(['#', '*']) {
            paths.iter_mut().for_each(|path| {
                path.push('/');
                path.push_str(component);
            });
            continue;
        }
        let is_last = at + 1 == components.len();
        let mut next = BTreeSet::new();
        for path in &paths {
            match root.names(path) {
                Ok(names) => next.extend(
                    names
                        .into_iter()
                        .filter(|name| name_fits(component, name))
                        .map(|name| format!("{path}/{name}")),
                ),
                Err(Unknown::Missing) => {}
                Err(why) => denied = Some(why),
            }
        }
        paths = next.into_iter().take(MATCHES).collect();
        if is_last {
            break;
        }
    }
    // Names that only look like one of the pattern's have no such file below them.
    paths.retain(|path| root.text(path, 0) != Err(Unknown::Missing));
    if paths.is_empty() { Err(denied.unwrap_or(Unknown::Missing)) } else { Ok(paths) }
}
