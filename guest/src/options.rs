//! Options of the kernel and parameters of KVM's modules. Linux starts with unknown ones as if they were not there, so what it says of them
//! decides: `/sys/module/NAME/parameters`, and its log.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::{Result, system};

/// The modules whose parameters are checked.
const MODULES: [&str; 3] = ["kvm", "kvm_amd", "kvm_intel"];
/// The options of all kernels that are checked.
const OPTIONS: [&str; 5] =
    ["mitigations", "randomize_kstack_offset", "preempt", "tsc_early_khz", "kvm-arm.mode"];
/// What Linux says of an option: of one it does not know, and of a value (init/main.c, kernel/cpu.c).
const SAYS_NO: [&str; 3] = [
    "Unknown kernel command line parameters",
    "Malformed early option",
    "Unsupported mitigations=",
];

/// A word on the command line: modules are at the same addresses in each VM that loads the same ones.
const SETTLED: &str = "vmtax.settled";

/// Loads these modules, each with its parameters on the command line. The problem if a module refuses a value.
pub(crate) fn load(modules: &[PathBuf], words: &[&str]) -> Result<Option<String>> {
    for path in modules {
        let name = name(path);
        let parameters: Vec<&str> =
            words.iter().filter_map(|word| parameter(word)?.of(&name)).collect();
        let parameters = parameters.join(" ");
        if !system::load_module(path, &parameters)? {
            return Ok(Some(format!("the kernel refuses {name} with {parameters}")));
        }
        if words.contains(&SETTLED) {
            system::settle();
        }
    }
    Ok(None)
}

/// An option of the command line that the kernel does not know.
pub(crate) fn unknown(words: &[&str]) -> Option<String> {
    let mut parameters = words.iter().filter_map(|word| parameter(word));
    parameters.find_map(|one| one.unknown()).or_else(refused)
}

/// A word such as `kvm_amd.npt=0`.
struct KernelParameter<'a> {
    module: String,
    /// `npt=0`.
    assignment: &'a str,
}

fn parameter(word: &str) -> Option<KernelParameter<'_>> {
    let (module, assignment) = word.split_once('.')?;
    Some(KernelParameter { module: module.replace('-', "_"), assignment })
}

impl<'a> KernelParameter<'a> {
    fn of(&self, module: &str) -> Option<&'a str> {
        (self.module == module).then_some(self.assignment)
    }

    fn unknown(&self) -> Option<String> {
        let module = MODULES.iter().find(|name| **name == self.module)?;
        let folder = format!("/sys/module/{module}");
        let name = self.assignment.split('=').next().unwrap_or_default().replace('-', "_");
        if !Path::new(&folder).exists() {
            return Some(format!("{module}.{name}: this host has no module {module}"));
        }
        let path = Path::new(&folder).join("parameters").join(&name);
        if !path.exists() {
            return Some(format!("{module}.{name}: the kernel knows no such parameter"));
        }
        // One that cannot be read says nothing.
        let found = std::fs::read_to_string(path).ok()?;
        let (_, asked) = self.assignment.split_once('=')?;
        differ(asked, found.trim()).then(|| {
            let found = found.trim();
            format!(
                "{module}.{}: the kernel runs with {name}={found}; this host's processor or another option may not allow it",
                self.assignment
            )
        })
    }
}

/// Whether a parameter is not what was asked for. Only two booleans or two numbers can be held against each other.
fn differ(asked: &str, found: &str) -> bool {
    let boolean = |text: &str| match text {
        "Y" | "y" | "1" | "on" | "t" => Some(true),
        "N" | "n" | "0" | "off" | "f" => Some(false),
        _ => None,
    };
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let pair = if matches!(found, "Y" | "N") {
        boolean(asked).zip(boolean(found)).map(|(asked, found)| asked != found)
    } else {
        number(asked).zip(number(found)).map(|(asked, found)| asked != found)
    };
    pair == Some(true)
}

/// The name of a module: `kvm_amd` of `02-kvm-amd.ko`.
fn name(path: &Path) -> String {
    let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    stem.split_once('-').map_or(stem, |(_, name)| name).replace('-', "_")
}

/// What the kernel's log says against an option, if anything.
fn refused() -> Option<String> {
    let is_about = |line: &&String| {
        SAYS_NO.iter().any(|words| line.contains(words))
            && OPTIONS.iter().any(|option| line.contains(option))
    };
    log().iter().find(is_about).map(|line| format!("the kernel says: {line}"))
}

/// The lines of the kernel's log, without what is before their text.
pub(crate) fn log() -> Vec<String> {
    let mut lines = Vec::new();
    let options = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
    let Ok(mut log) = options else { return lines };
    let mut record = vec![0; 8192];
    // A record a read; an error at the end.
    while let Ok(length) = log.read(&mut record) {
        let text = String::from_utf8_lossy(&record[..length]);
        let line = text.split_once(';').map_or("", |(_, text)| text);
        lines.push(line.lines().next().unwrap_or_default().to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::differ;

    /// As the kernel prints its parameters: booleans as Y and N.
    #[test]
    fn parameters_that_the_kernel_changed_are_found() {
        for (asked, found, expected) in [
            ("1", "N", true),
            ("on", "N", true),
            ("0", "N", false),
            ("1", "Y", false),
            ("off", "Y", true),
            ("force", "Y", false),
            ("auto", "N", false),
            ("1", "1", false),
            ("0x10", "16", false),
            ("200000", "100000", true),
            ("-1", "-1", false),
            ("100", "none", false),
        ] {
            assert_eq!(differ(asked, found), expected, "{asked} {found}");
        }
    }
}
