//! A profile's text, or KVM's counters, without a recording of exits: people post either alone.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use vmtax_analyse::{Filter, Ledger, LedgerBuilder};
use vmtax_capture::import::HEAD;
use vmtax_capture::profile::{self, Symbols};

use vmtax_capture::{Format, Source, posted, stats};
use vmtax_cli::output::cannot_read;
use vmtax_events::{Place, Profile, Recording};

use crate::input::restored;
use crate::profiles::fault;

/// Longer texts are none of these.
const MOST_BYTES: u64 = 16 << 20;

/// Beginnings of functions that only a host has. Linux arch/x86/kvm, virt/kvm. (A guest has `kvm_clock_*`, `kvm_steal_clock` and others.)
const OF_HOST: [&str; 9] = [
    "vmx_",
    "svm_",
    "tdx_",
    "__vmx_",
    "__svm_",
    "vcpu_enter_guest",
    "kvm_vcpu_",
    "kvm_mmu_",
    "kvm_arch_vcpu_",
];

/// Threads and modules of a host, as perf names them.
const OF_VMM: [&str; 6] = ["qemu-kvm", "qemu-system", "/KVM", "[kvm]", "[kvm_intel]", "[kvm_amd]"];

/// The ledger of such a text; `None` if the file is another.
///
/// # Errors
/// When it is one and cannot be read.
pub fn of_path(path: &Path) -> anyhow::Result<Option<Ledger>> {
    let name = path.display().to_string();
    let Some(text) = text(path)? else { return Ok(None) };
    let head = text.as_bytes().get(..HEAD).unwrap_or(text.as_bytes());
    let mut ledger = LedgerBuilder::new(Filter::default(), 1);
    let finish = |ledger: LedgerBuilder, format: &str, losses| {
        let recording = Recording { format: format.to_owned(), ..Recording::default() };
        Ok(Some(ledger.finish(recording, losses, true)))
    };
    if stats::are_kvm_counters(&text) {
        let (read, losses) = stats::read(&mut text.as_bytes()).map_err(fault(&name))?;
        read.iter().for_each(|stat| ledger.stat(stat));
        return finish(ledger, "kvm_stat text", losses);
    }
    let is_profile = Format::recognise(head).is_err()
        && profile::Format::recognise(head)
            .is_ok_and(|format| format == profile::Format::PerfReport);
    if !is_profile {
        return Ok(None);
    }
    let read = |place| {
        let source = &mut text.as_bytes();
        let format = profile::Format::PerfReport;
        profile::import(format, place, Source::Stream(source), &mut NoSymbols).map_err(fault(&name))
    };
    let of_guest = read(Place::Guest)?;
    let is_of_host = is_of_host(&of_guest.profile) || OF_VMM.iter().any(|word| text.contains(word));
    let profile::Imported { profile, mut losses } = match is_of_host {
        true => read(Place::Host)?,
        false => of_guest,
    };
    let whose = match profile.place {
        Place::Host => "the host's, because it has functions of KVM or threads of a VMM",
        _ => "the guest's, because it has neither functions of KVM nor threads of a VMM",
    };
    losses.notes.push(format!("the profile is taken to be {whose}"));
    ledger.profile(profile);
    finish(ledger, "perf report text", losses)
}

/// A text file, as the tool printed it; `None` for other files, longer ones, and those that cannot be opened.
///
/// # Errors
/// When it cannot be read, or is a text from a mail that cannot be restored.
pub fn text(path: &Path) -> anyhow::Result<Option<String>> {
    let name = &path.display().to_string();
    let unreadable = |e| cannot_read(name, &e);
    // What cannot be opened is refused where it is read.
    let Ok(file) = File::open(path) else { return Ok(None) };
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    if posted::is_posted(bytes.get(..HEAD).unwrap_or(&bytes)) {
        return restored(bytes.as_slice(), name).map(Some);
    }
    Ok(String::from_utf8(bytes).ok())
}

fn is_of_host(profile: &Profile) -> bool {
    let functions = profile.functions();
    functions.keys().any(|name| OF_HOST.iter().any(|start| name.starts_with(start)))
}

/// A text has its names.
struct NoSymbols;

impl Symbols for NoSymbols {
    fn kernel(&mut self, _: u64, _: Option<u64>) -> Option<String> {
        None
    }

    fn file(&mut self, _: &str, _: u64) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(text: &str) -> Option<Ledger> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, text).unwrap();
        of_path(&path).unwrap()
    }

    #[test]
    fn whose_a_profile_is_follows_from_its_functions() {
        let profile = |function: &str| {
            format!(
                "# Overhead  Command  Shared Object  Symbol\n  60.00%  x  [kernel]  [k] {function}\n  40.00%  x  [kernel]  [k] memcpy\n"
            )
        };
        for (function, place) in [
            ("vmx_vmexit", Place::Host),
            ("svm_vcpu_run", Place::Host),
            ("kvm_mmu_get_page", Place::Host),
            ("acpi_pm_read", Place::Guest),
            ("kvm_clock_get_cycles", Place::Guest),
        ] {
            let ledger = ledger(&profile(function)).unwrap();
            assert_eq!(ledger.profiles.keys().collect::<Vec<_>>(), [&place], "{function}");
        }
    }

    #[test]
    fn other_texts_are_left_to_the_importers() {
        for text in ["", "hello\n", "kvm_exit(HLT) 12 1\nkvm_exit(CPUID) 3 1\nkvm_entry 15 1\n"] {
            assert!(ledger(text).is_none(), "{text}");
        }
        let counters = ledger("kvm_exit 2000 10\nkvm_entry 2000 10\nkvm_pio 1500 8\n").unwrap();
        assert_eq!(counters.stats.len(), 3);
    }
}
