//! Configurations of a series' kernels: the `CONFIG_` options that differ from one run to the next.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use vmtax_cli::output;
use vmtax_durable::FileAccess;
use vmtax_machine::kernel::Kernel;

use super::plan::{StoredRun, slug};

/// The file of a run with its kernel's configuration.
const FILE: &str = "config";
/// Larger than any configuration.
const MOST: u64 = 4 << 20;
/// How options begin that change what an exit executes: KVM's own, preemption and timers, mitigations, checks of memory, the compiler.
const SHOWN: [&str; 11] = [
    "CC_VERSION_TEXT",
    "CPU_MITIGATIONS",
    "DEBUG_",
    "FORTIFY",
    "HARDENED",
    "HZ",
    "INIT_ON",
    "KVM",
    "MITIGATION",
    "PREEMPT",
    "TRANSPARENT_HUGEPAGE",
];
/// Most options in a line.
const SHOWN_MOST: usize = 12;
/// An option that is off and one that the kernel does not have are the same.
const OFF: &str = "n";

/// Keeps the configuration of a run's kernel, if there is one beside its image.
pub(super) fn keep(kernel: &Kernel, run: &Path) -> anyhow::Result<()> {
    let Some(text) = beside(kernel) else { return Ok(()) };
    let path = run.join(FILE);
    vmtax_durable::write(&path, FileAccess::Private, text.as_bytes())
        .map_err(|e| output::cannot_write(&path.display().to_string(), &e).into())
}

/// The configuration beside an image: a package's, one that a build has left, that of a source tree.
fn beside(kernel: &Kernel) -> Option<String> {
    let folder = kernel.image.parent()?;
    let packaged = format!("config-{}", kernel.release);
    let places = [packaged.as_str(), FILE, ".config", "../../../.config"];
    places.iter().find_map(|place| read(&folder.join(place)))
}

/// A line for each step between kernels whose configurations differ; all options are written to a file of the series.
pub(super) fn steps(folder: &Path, runs: &[&StoredRun]) -> anyhow::Result<Vec<String>> {
    let mut lines: Vec<String> = Vec::new();
    for pair in runs.windows(2) {
        let [before, after] = pair else { continue };
        if before.host != after.host || before.kernel == after.kernel {
            continue;
        }
        let of = |run: &StoredRun| read(&folder.join(&run.run).join(FILE));
        let (Some(first), Some(second)) = (of(before), of(after)) else { continue };
        let differing = differing(&options(&first), &options(&second));
        if differing.is_empty() {
            continue;
        }
        let name = slug(&format!("config-{}-to-{}.txt", before.kernel, after.kernel));
        let text: String = differing.iter().map(|one| format!("CONFIG_{one}\n")).collect();
        output::write(Some(&folder.join(&name)), |out| Ok(out.write_all(text.as_bytes())?))?;
        let title = format!("{} to {}", before.kernel, after.kernel);
        let line = format!("{title}: {}; all: {name}", summary(&differing));
        // Hosts share kernels.
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    Ok(lines)
}

fn read(path: &Path) -> Option<String> {
    let mut text = Vec::new();
    fs::File::open(path).ok()?.take(MOST).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Options and their values.
fn options(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.trim_end().strip_prefix("CONFIG_")?.split_once('='))
        .collect()
}

/// `NAME y to n`, by name.
fn differing(before: &BTreeMap<&str, &str>, after: &BTreeMap<&str, &str>) -> Vec<String> {
    let mut names: Vec<&str> = before.keys().chain(after.keys()).copied().collect();
    names.sort_unstable();
    names.dedup();
    let value = |of: &BTreeMap<&str, &str>, name: &str| of.get(name).map_or(OFF, |v| *v).to_owned();
    let one = |name: &str| {
        let (before, after) = (value(before, name), value(after, name));
        (before != after).then(|| vmtax_events::printable(&format!("{name} {before} to {after}")))
    };
    names.into_iter().filter_map(one).collect()
}

/// How many differ, and those that may matter.
fn summary(differing: &[String]) -> String {
    let is_shown = |one: &&String| SHOWN.iter().any(|start| one.starts_with(start));
    let shown: Vec<&str> = differing.iter().filter(is_shown).map(String::as_str).collect();
    let count = match differing.len() {
        1 => "1 option differs".to_owned(),
        many => format!("{many} options differ"),
    };
    if shown.is_empty() {
        return count;
    }
    let more = match shown.len().saturating_sub(SHOWN_MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{count}, among them {}{more}", shown[..shown.len().min(SHOWN_MOST)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_differ() {
        let before = "# a comment\nCONFIG_KVM=m\nCONFIG_HZ=250\nCONFIG_X=y\n# CONFIG_Y is not set\nCONFIG_S=\"a=b\"\n";
        let after = "CONFIG_KVM=m\nCONFIG_HZ=1000\n# CONFIG_X is not set\nCONFIG_S=\"a=b\"\nCONFIG_KVM_NEW=y\n";
        let differing = differing(&options(before), &options(after));
        assert_eq!(differing, ["HZ 250 to 1000", "KVM_NEW n to y", "X y to n"]);
        assert_eq!(
            summary(&differing),
            "3 options differ, among them HZ 250 to 1000, KVM_NEW n to y"
        );
        assert_eq!(summary(&differing[2..]), "1 option differs");
        assert_eq!(options("CONFIG_\nCONFIG_=\nno"), BTreeMap::from([("", "")]));
    }
}
