//! A profile's text, KVM's counters, or an ordinary tool's text, without a recording of exits: people post each alone.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use vmtax_analyse::explain::POSTED_FIGURES;
use vmtax_analyse::{Filter, Ledger, LedgerBuilder};
use vmtax_capture::import::HEAD;
use vmtax_capture::profile::{self, SymbolNames};

use vmtax_capture::{ImportFormat, ImportSource, figures, observed, posted, stats};
use vmtax_cli::output::cannot_read;
use vmtax_events::{Losses, Profile, ProfileOrigin, Recording};

use crate::input::{Input, open_stream, restored};
use crate::profiles::fault;

/// Longer texts are none of these.
const MOST_BYTES: u64 = 16 << 20;

/// Beginnings of functions that only a host has. Linux arch/x86/kvm, virt/kvm. (A guest has `kvm_clock_*`, `kvm_steal_clock` and others.)
const OF_HOST: [&str; 13] = [
    // Linux drivers/vhost.
    "vhost_",
    "vmx_",
    "svm_",
    "tdx_",
    "__vmx_",
    "__svm_",
    "vcpu_enter_guest",
    "kvm_vcpu_",
    "kvm_mmu_",
    "kvm_arch_vcpu_",
    // QEMU system/memory.c, accel/kvm/kvm-all.c, hw/vfio/region.c.
    "memory_region_",
    "kvm_cpu_exec",
    "vfio_region_",
];

/// Threads and modules of a host, as perf names them.
const OF_VMM: [&str; 9] = [
    "qemu-kvm",
    "qemu-system",
    // perf cuts names of programs to 15 bytes.
    "cloud-hyperviso",
    "firecracker",
    "crosvm",
    "/KVM",
    "[kvm]",
    "[kvm_intel]",
    "[kvm_amd]",
];

/// An input that is looked into before it is read as a recording: its text, where it is a short one. A pipe is read once, so what was read of it
/// is kept.
pub struct EvidenceInput {
    name: String,
    text: Option<String>,
    /// The text with what stands around the output of a tool, where it was posted with that.
    post: Option<String>,
    rest: EvidenceRest,
}

/// What is left to read.
enum EvidenceRest {
    Path(PathBuf),
    /// A pipe from its beginning.
    Stream(Box<dyn Read + Send>),
}

impl EvidenceInput {
    /// Looks into an input; `-` is standard input.
    ///
    /// # Errors
    /// When it cannot be read, or is a text from a mail that cannot be restored.
    pub fn open(path: &Path) -> anyhow::Result<EvidenceInput> {
        let is_standard = path.as_os_str() == "-";
        let name =
            if is_standard { "standard input".to_owned() } else { path.display().to_string() };
        let unreadable = |e| cannot_read(&name, &e);
        let nothing = || EvidenceRest::Path(path.to_owned());
        let file = if is_standard {
            let descriptor = io::stdin().as_fd().try_clone_to_owned().map_err(unreadable)?;
            File::from(descriptor)
        } else {
            // What cannot be opened is refused where it is read.
            let Ok(file) = File::open(path) else {
                return Ok(EvidenceInput { name, text: None, post: None, rest: nothing() });
            };
            file
        };
        let metadata = file.metadata().map_err(unreadable)?;
        if metadata.is_dir() || metadata.is_file() && metadata.len() > MOST_BYTES {
            return Ok(EvidenceInput { name, text: None, post: None, rest: nothing() });
        }
        if metadata.is_file() {
            (&file).rewind().map_err(unreadable)?;
        }
        let mut bytes = Vec::new();
        (&file).take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        let is_whole = bytes.len() as u64 <= MOST_BYTES;
        let written = || std::str::from_utf8(&bytes).ok().map(str::to_owned);
        let (text, post) = match is_whole {
            false => (None, None),
            true if posted::is_posted(bytes.get(..HEAD).unwrap_or(&bytes)) => {
                (Some(restored(bytes.as_slice(), &name)?), written())
            }
            true => (written(), None),
        };
        let rest = match metadata.is_file() {
            true => nothing(),
            false => EvidenceRest::Stream(Box::new(io::Cursor::new(bytes).chain(file))),
        };
        Ok(EvidenceInput { name, text, post, rest })
    }

    /// The text, as the tool printed it; `None` for other inputs, and longer ones.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// The input, to be read as a recording; once, as a pipe is read then.
    pub fn input(&mut self) -> anyhow::Result<Input> {
        let rest = std::mem::replace(&mut self.rest, EvidenceRest::Path(PathBuf::from(&self.name)));
        match rest {
            EvidenceRest::Path(path) => Input::open(&path),
            EvidenceRest::Stream(stream) => {
                open_stream(stream, self.name.clone()).map(Input::Recording)
            }
        }
    }

    /// The ledger of a profile, of counters, or of what an ordinary tool shows; `None` if the input is something else.
    ///
    /// # Errors
    /// When it is one and cannot be read.
    pub fn ledger(&self) -> anyhow::Result<Option<Ledger>> {
        let Some(text) = self.text() else { return Ok(None) };
        if let Some(counters) = counters(text) {
            let mut ledger = LedgerBuilder::new(Filter::default(), 1);
            let (read, losses) =
                stats::read(&mut counters.as_bytes()).map_err(fault(&self.name))?;
            read.iter().for_each(|stat| ledger.stat(stat));
            return Ok(Some(finish(ledger, "counters", losses)));
        }
        if let Some(ledger) = self.profile(text)? {
            return Ok(Some(ledger));
        }
        let head = text.as_bytes().get(..HEAD).unwrap_or(text.as_bytes());
        if ImportFormat::recognise(head).is_ok() {
            return Ok(None);
        }
        // What stands between the parts of a post says what they are.
        let read = |text: &str| observed::read(text).filter(|(_, all)| !all.is_empty());
        let Some((tool, observed)) = read(text).or_else(|| read(self.post.as_deref()?)) else {
            return Ok(None);
        };
        let mut ledger = LedgerBuilder::new(Filter::default(), 1);
        observed.into_iter().for_each(|one| ledger.observed(one));
        Ok(Some(finish(ledger, tool, Losses::default())))
    }

    /// The ledger of results of benchmarks by set-up, and of the costs that the text names.
    pub fn figures(&self) -> Option<Ledger> {
        let text = self.post.as_deref().or(self.text())?;
        let samples = figures::read(text)?;
        let mut ledger = LedgerBuilder::new(Filter::default(), 1);
        samples.iter().for_each(|one| ledger.sample(one));
        observed::named_costs(text).into_iter().for_each(|one| ledger.observed(one));
        Some(finish(ledger, POSTED_FIGURES, Losses::default()))
    }

    /// The ledger of the costs that a text names and does not measure; `None` if it names none.
    pub fn named_costs(&self) -> Option<Ledger> {
        let named = observed::named_costs(self.post.as_deref().or(self.text())?);
        let mut ledger = LedgerBuilder::new(Filter::default(), 1);
        named.iter().for_each(|one| ledger.observed(*one));
        (!named.is_empty()).then(|| finish(ledger, "words", Losses::default()))
    }

    /// Whether it is text of no format that an importer takes: figures of a log that has several results are more than the last of them.
    pub fn is_unknown_text(&self) -> bool {
        self.text().is_some_and(|text| {
            let head = text.as_bytes().get(..HEAD).unwrap_or(text.as_bytes());
            ImportFormat::recognise(head).is_err()
        })
    }

    fn profile(&self, text: &str) -> anyhow::Result<Option<Ledger>> {
        let head = text.as_bytes().get(..HEAD).unwrap_or(text.as_bytes());
        let format = match profile::ProfileFormat::recognise(head) {
            Ok(
                format @ (profile::ProfileFormat::PerfReport | profile::ProfileFormat::CallGraph),
            ) => format,
            Ok(profile::ProfileFormat::Folded) if has_frames(text) => {
                profile::ProfileFormat::Folded
            }
            _ => return Ok(None),
        };
        if ImportFormat::recognise(head).is_ok() {
            return Ok(None);
        }
        let read = |place| {
            let source = &mut text.as_bytes();
            profile::import(format, place, ImportSource::Stream(source), &mut TextHasNames)
                .map_err(fault(&self.name))
        };
        let of_guest = read(ProfileOrigin::Guest)?;
        let is_of_host = is_of_host(&of_guest.profile) || text.lines().any(is_of_vmm);
        let profile::ImportedProfile { profile, mut losses } = match is_of_host {
            true => read(ProfileOrigin::Host)?,
            false => of_guest,
        };
        let whose = match profile.place {
            ProfileOrigin::Host => {
                "the host's, because it has functions of KVM or threads of a VMM"
            }
            _ => "the guest's, because it has neither functions of KVM nor threads of a VMM",
        };
        losses.notes.push(format!("the profile is taken to be {whose}"));
        let mut ledger = LedgerBuilder::new(Filter::default(), 1);
        ledger.profile(profile);
        Ok(Some(finish(ledger, "profile text", losses)))
    }
}

fn finish(ledger: LedgerBuilder, format: &str, losses: Losses) -> Ledger {
    let recording = Recording { format: format.to_owned(), ..Recording::default() };
    ledger.finish(recording, losses, true)
}

/// Where KVM's debugfs has its counters, and lines that make a list of them.
const COUNTERS: &str = "/sys/kernel/debug/kvm/";
const ENOUGH: usize = 3;

/// Counters of kvm_stat without reasons, of `perf stat`, or of debugfs as grep prints it (`PATH:VALUE`).
fn counters(text: &str) -> Option<Cow<'_, str>> {
    let is_stat = text.contains("Performance counter stats for") && !text.contains("# time");
    if stats::are_kvm_counters(text) || is_stat {
        return Some(Cow::Borrowed(text));
    }
    let row = |line: &str| {
        let (path, value) = line.trim().strip_prefix(COUNTERS)?.split_once(':')?;
        let name = path.rsplit('/').next()?;
        value.trim().parse::<u64>().ok().map(|value| format!("{name} {value}\n"))
    };
    let rows: Vec<String> =
        text.lines().filter_map(|line| row(line).or_else(|| of_list(line))).collect();
    (rows.len() >= ENOUGH).then(|| Cow::Owned(rows.concat()))
}

/// A line of the list of events with which perf report begins, `105K kvm:kvm_exit` (Linux tools/perf/ui/browsers/hists.c, `perf_evsel_menu__write`), as one of counters.
fn of_list(line: &str) -> Option<String> {
    let (count, name) = line.trim().split_once(char::is_whitespace)?;
    let (digits, factor) = match count.as_bytes().last()? {
        b'K' => (&count[..count.len() - 1], 1000),
        b'M' => (&count[..count.len() - 1], 1_000_000),
        _ => (count, 1),
    };
    let value = digits.parse::<u64>().ok()?.checked_mul(factor)?;
    let name = name.trim().strip_prefix("kvm:")?;
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then(|| format!("{name} {value}\n"))
}

/// Lines of a log may end with a number, too: most stacks have several frames.
fn has_frames(text: &str) -> bool {
    let all = text.lines().filter(|line| !line.is_empty());
    let (stacks, others): (Vec<&str>, Vec<&str>) = all.partition(|line| line.contains(';'));
    stacks.len() > others.len()
}

/// A line of a profile, and none of a VM's configuration beside it.
fn is_of_vmm(line: &str) -> bool {
    const OF_CONFIGURATION: [&str; 5] = [" -cpu ", " -m ", " -smp ", " -machine ", "-enable-kvm"];
    OF_VMM.iter().any(|word| line.contains(word))
        && !line.trim_start().starts_with('<')
        && !OF_CONFIGURATION.iter().any(|option| line.contains(option))
}

fn is_of_host(profile: &Profile) -> bool {
    let functions = profile.functions();
    functions.keys().any(|name| OF_HOST.iter().any(|start| name.starts_with(start)))
}

/// A text has its names.
struct TextHasNames;

impl SymbolNames for TextHasNames {
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
        EvidenceInput::open(&path).unwrap().ledger().unwrap()
    }

    #[test]
    fn whose_a_profile_is_follows_from_its_functions() {
        let profile = |function: &str| {
            format!(
                "# Overhead  Command  Shared Object  Symbol\n  60.00%  x  [kernel]  [k] {function}\n  40.00%  x  [kernel]  [k] memcpy\n"
            )
        };
        for (function, place) in [
            ("vmx_vmexit", ProfileOrigin::Host),
            ("svm_vcpu_run", ProfileOrigin::Host),
            ("kvm_mmu_get_page", ProfileOrigin::Host),
            ("acpi_pm_read", ProfileOrigin::Guest),
            ("kvm_clock_get_cycles", ProfileOrigin::Guest),
        ] {
            let ledger = ledger(&profile(function)).unwrap();
            assert_eq!(ledger.profiles.keys().collect::<Vec<_>>(), [&place], "{function}");
        }
    }

    /// A pipe that was looked into is read from its beginning.
    #[test]
    fn pipes_are_read_as_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let status = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(status.success());
        for (text, has_ledger) in [
            ("kvm_exit 2000 10\nkvm_entry 2000 10\nkvm_pio 1500 8\n".to_owned(), true),
            ("kvm_exit(HLT) 12 1\nkvm_exit(CPUID) 3 1\nkvm_entry 15 1\n".to_owned(), false),
            (format!("hello\n{}", "x".repeat(MOST_BYTES as usize)), false),
        ] {
            let (to, sent) = (path.clone(), text.clone());
            let writer = std::thread::spawn(move || std::fs::write(to, sent));
            let evidence = EvidenceInput::open(&path).unwrap();
            assert_eq!(evidence.ledger().unwrap().is_some(), has_ledger);
            let EvidenceRest::Stream(mut stream) = evidence.rest else { panic!("no stream") };
            let mut all = String::new();
            stream.read_to_string(&mut all).unwrap();
            assert!(all == text);
            writer.join().unwrap().unwrap();
        }
    }

    #[test]
    fn counters_and_folded_stacks_are_read_alone() {
        let perf = " Performance counter stats for 'system wide':\n\n             2,000      kvm:kvm_exit\n             1,900      kvm:kvm_pio\n\n       1.0 seconds time elapsed\n";
        assert_eq!(ledger(perf).unwrap().stats.len(), 2);
        let debugfs = "/sys/kernel/debug/kvm/exits:2000\n/sys/kernel/debug/kvm/io_exits:1900\n/sys/kernel/debug/kvm/halt_exits:3\n";
        assert_eq!(ledger(debugfs).unwrap().stats.len(), 3);
        let folded = "qemu;ioctl;kvm_vcpu_ioctl;vmx_vcpu_run 70\nqemu;main 30\n";
        assert_eq!(
            ledger(folded).unwrap().profiles.keys().collect::<Vec<_>>(),
            [&ProfileOrigin::Host]
        );
        let steal =
            "%Cpu(s):  1.0 us,  0.3 sy,  0.0 ni, 58.5 id,  0.0 wa,  0.0 hi,  0.0 si, 40.2 st\n";
        assert_eq!(ledger(steal).unwrap().observed.len(), 1);
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
