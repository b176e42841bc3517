//! What the checks look at, and how the kernel writes settings.

use std::collections::BTreeSet;

use vmtax_events::Isa;
use vmtax_events::setting::cpuinfo::{self, field};
use vmtax_events::setting::{Fact, Known, Kvm, KvmServer, Settings, Unknown, VmProcess, files};

use super::{AuditInput, AuditSubject, CheckFound, FoundSetting, SeenSetting, Vendor, vmm};
use crate::Ledger;
use crate::host_pages::Judged;
use crate::remedy::VmKind;

pub(super) struct AuditView<'a> {
    pub(super) host: &'a Settings,
    pub(super) kvm: &'a Kvm,
    pub(super) vms: &'a [VmProcess],
    pub(super) complete: bool,
    pub(super) guest: Option<&'a Settings>,
    pub(super) inside: Option<&'a Judged>,
    pub(super) ledger: Option<&'a Ledger>,
    pub(super) vendor: Option<Vendor>,
}

/// No kernel knows of more CPUs.
const CPUS: u32 = 1 << 16;

impl<'a> AuditView<'a> {
    pub(super) fn new(input: AuditInput<'a>) -> AuditView<'a> {
        let AuditInput { host, kvm, vms, complete, guest, inside, ledger } = input;
        AuditView { host, kvm, vms, complete, guest, inside, ledger, vendor: vendor(host) }
    }

    /// A parameter of a module of KVM, or why there is nothing to judge.
    #[expect(clippy::result_large_err, reason = "the early end of a check, once for each")]
    pub(super) fn parameter(&self, path: &str) -> Result<Fact<String>, CheckFound> {
        let fact = self.host.fact(path);
        let (module, witness, vendor) = if path.contains("/kvm_intel/") {
            ("kvm_intel", files::NESTED_INTEL, Some(Vendor::Intel))
        } else if path.contains("/kvm_amd/") {
            ("kvm_amd", files::NESTED_AMD, Some(Vendor::Amd))
        } else {
            ("kvm", files::HALT_POLL, None)
        };
        match &fact.value {
            Ok(_) => Ok(fact),
            Err(Unknown::Missing) => Err(
                if let Some(vendor) =
                    vendor.filter(|vendor| self.vendor.is_some_and(|here| here != *vendor))
                {
                    CheckFound::not_applicable(FoundSetting::OtherVendor(vendor))
                } else if self.host.text(witness) == Err(Unknown::Missing) {
                    self.not_loaded(module).seen(fact)
                } else if self.host.text(witness).is_ok() {
                    CheckFound::not_applicable(FoundSetting::NoParameter(module)).seen(fact)
                } else {
                    CheckFound::unread(fact)
                },
            ),
            Err(_) => Err(CheckFound::unread(fact)),
        }
    }

    /// That a module of KVM is not there, and which is in its place.
    fn not_loaded(&self, module: &'static str) -> CheckFound {
        CheckFound::not_applicable(match self.kvm.server() {
            KvmServer::Other(other) if other.name != module => {
                FoundSetting::ServedByOther { other: other.name.clone(), module }
            }
            _ if self.kvm.module(module).is_some_and(|module| module.built_in) => {
                FoundSetting::BuiltInUnused(module)
            }
            _ if self.kvm.module(module).is_some() => {
                return CheckFound::unknown(FoundSetting::ParametersElsewhere(module));
            }
            _ => FoundSetting::NotLoaded(module),
        })
    }

    /// The same for one that is on or off.
    #[expect(clippy::result_large_err, reason = "the early end of a check, once for each")]
    pub(super) fn switch(&self, path: &str) -> Result<(bool, Fact<String>), CheckFound> {
        let fact = self.parameter(path)?;
        match fact.value.as_deref() {
            Ok("Y" | "1") => Ok((true, fact)),
            Ok("N" | "0") => Ok((false, fact)),
            _ => Err(CheckFound::strange(fact)),
        }
    }

    /// Whose processor runs it. A VM's is that of the VMM's program, where no host is known; a guest's is its own.
    pub(super) fn isa(&self, subject: AuditSubject) -> Isa {
        let of_settings = |settings: &Settings| {
            let info = settings.text(files::CPUINFO).ok()?;
            cpuinfo::is_arm64(info).then_some(Isa::Arm)
        };
        let of_vm = |pid| self.vms.iter().find(|vm| vm.pid == pid).and_then(vmm::isa);
        let own = match subject {
            AuditSubject::Host => None,
            AuditSubject::Vm(pid) => of_vm(pid),
            AuditSubject::Guest => self.guest.and_then(of_settings),
        };
        own.or_else(|| of_settings(self.host)).unwrap_or(Isa::Unknown)
    }

    /// The host kernel's version.
    pub(super) fn kernel(&self) -> Known<(u32, u32)> {
        let release = self.host.text(files::RELEASE)?;
        version(release).ok_or(Unknown::NotText)
    }

    /// There are VMs, and all of them are so.
    pub(super) fn all_vms(&self, are: impl FnMut(&VmProcess) -> bool) -> bool {
        self.complete && !self.vms.is_empty() && self.vms.iter().all(are)
    }

    /// The memory of all VMs is private to them.
    pub(super) fn all_private(&self) -> bool {
        self.all_vms(|vm| vmm::kind(vm).is_private())
    }

    /// All VMs are TDs.
    pub(super) fn all_tds(&self) -> bool {
        self.all_vms(|vm| vmm::kind(vm) == VmKind::Tdx)
    }
}

fn vendor(host: &Settings) -> Option<Vendor> {
    let info = host.text(files::CPUINFO).ok();
    let name = info.and_then(|info| field(info, "vendor_id"));
    match name {
        Some("GenuineIntel") => Some(Vendor::Intel),
        Some("AuthenticAMD" | "HygonGenuine") => Some(Vendor::Amd),
        _ if host.text(files::NESTED_INTEL).is_ok() => Some(Vendor::Intel),
        _ if host.text(files::NESTED_AMD).is_ok() => Some(Vendor::Amd),
        _ => None,
    }
}

/// The first two numbers of a release.
pub(super) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let major = numbers.next()?.parse().ok()?;
    Some((major, numbers.next()?.parse().ok()?))
}

/// Whether the first processor has a flag; `list` is `flags` or `vmx flags`.
pub(super) fn has_flag(settings: &Settings, list: &str, flag: &str) -> Known<bool> {
    let info = settings.text(files::CPUINFO)?;
    let flags = field(info, list).ok_or(Unknown::NotText)?;
    Ok(flags.split_ascii_whitespace().any(|word| word == flag))
}

/// A flag as evidence.
pub(super) fn flag_fact(settings: &Settings, flag: &'static str) -> Fact<SeenSetting> {
    let value = has_flag(settings, "flags", flag);
    Fact::new(files::CPUINFO, value.map(|has| SeenSetting::Flag(flag, has)))
}

/// The word that is chosen: `always [madvise] never`.
pub(super) fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

/// A list of CPUs: `0-3,8`. Without any the kernel writes nothing, or `(null)`.
pub(super) fn cpus(text: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    let text = text.trim();
    if text.is_empty() || text == "(null)" {
        return Some(cpus);
    }
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last >= CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// CPUs as the kernel lists them.
pub(super) fn list(cpus: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let part = |(a, b): (u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    ranges.into_iter().map(part).collect::<Vec<_>>().join(",")
}

/// The value of a word `NAME=VALUE` on a kernel's command line; of several the last.
pub(super) fn argument<'t>(cmdline: &'t str, name: &str) -> Option<&'t str> {
    let of = |word: &'t str| word.strip_prefix(name)?.strip_prefix('=');
    cmdline.split_ascii_whitespace().filter_map(of).next_back()
}

/// Only that word of a command line, as evidence: the rest is private.
pub(super) fn argument_fact(settings: &Settings, name: &'static str) -> Fact<SeenSetting> {
    let value = settings.text(files::CMDLINE).map(|cmdline| match argument(cmdline, name) {
        Some(value) => SeenSetting::Text(format!("{name}={value}")),
        None => SeenSetting::Without(name),
    });
    Fact::new(files::CMDLINE, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_and_written() {
        for (text, expected) in [
            ("0-3,8", Some("0-3,8")),
            ("5", Some("5")),
            ("1,2,3", Some("1-3")),
            ("", Some("")),
            ("  (null)\n", Some("")),
            ("3-1", None),
            ("0-4294967295", None),
            ("x", None),
            ("1,,2", None),
        ] {
            assert_eq!(cpus(text).map(|c| list(&c)).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn words_are_found() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!([chosen("never"), chosen("[never"), chosen("")], [None; 3]);
        assert_eq!(argument("a idle=x idle=poll idlepoll=1", "idle"), Some("poll"));
        assert_eq!(argument("cpuidle=poll", "idle"), None);
        for (release, expected) in
            [("6.1.0-9-amd64", Some((6, 1))), ("7.2", Some((7, 2))), ("7", None), ("x", None)]
        {
            assert_eq!(version(release), expected, "{release}");
        }
    }
}
