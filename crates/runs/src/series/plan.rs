//! `plan.json` of a series: what its runs have in common, and which there are.

use std::path::Path;

use serde::{Deserialize, Serialize};
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::output;
use vmtax_durable::FileAccess;

const PLAN: &str = "plan.json";
const SCHEMA: &str = "vmtax-lab-series-plan-1";
/// Larger than any plan.
const MOST: u64 = 16 << 20;

/// What all runs of a series have in common: numbers of others are not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WantedRuns {
    pub(super) suites: Vec<String>,
    pub(super) operations: Vec<String>,
    pub(super) nested: bool,
    pub(super) profile: bool,
    /// Those of series of before this field have one.
    #[serde(default = "one")]
    pub(super) processors: u32,
    pub(super) batches: u32,
}

fn one() -> u32 {
    1
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRun {
    /// Label of its kernel.
    pub kernel: String,
    /// Name of its host.
    pub host: String,
    /// Its options, separated by spaces.
    pub options: String,
    pub run: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredPlan {
    schema: String,
    #[serde(flatten)]
    wanted: WantedRuns,
    /// In the order in which they were asked for first.
    pub(super) runs: Vec<StoredRun>,
}

impl StoredPlan {
    /// The plan of a folder, or a new one. A folder with another plan is refused.
    pub(super) fn open(folder: &Path, wanted: &WantedRuns) -> anyhow::Result<StoredPlan> {
        let path = folder.join(PLAN);
        if path.symlink_metadata().is_err() {
            let is_empty =
                std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
            if !is_empty {
                return fail(
                    Code::Output,
                    format!(
                        "{}: holds something that is no series; name another folder",
                        folder.display()
                    ),
                );
            }
            let (schema, wanted) = (SCHEMA.to_owned(), wanted.clone());
            return Ok(StoredPlan { schema, wanted, runs: Vec::new() });
        }
        let stored = read(&path)?;
        if stored.wanted == *wanted {
            return Ok(stored);
        }
        let WantedRuns { suites, operations, nested, profile, processors, batches } =
            &stored.wanted;
        let mut flags: Vec<String> = Vec::new();
        if !suites.is_empty() {
            flags.push(format!("--suite {}", suites.join(",")));
        }
        if !operations.is_empty() {
            flags.push(format!("--operation {}", operations.join(",")));
        }
        let switches = [("--nested", *nested), ("--profile", *profile)];
        flags.extend(
            switches.iter().filter(|(_, is_on)| *is_on).map(|(flag, _)| (*flag).to_owned()),
        );
        if *processors != 1 {
            flags.push(format!("--processors {processors}"));
        }
        flags.push(format!("--batches {batches}"));
        let flags = vmtax_events::printable(&flags.join(" "));
        fail(
            Code::Usage,
            format!(
                "{}: this series was made with {flags}; use the same flags, or another folder",
                folder.display()
            ),
        )
    }

    /// The folder of a run, which is added to the plan if it is new.
    pub(super) fn point(&mut self, kernel: &str, host: &str, options: &str) -> String {
        let is_it =
            |run: &&StoredRun| run.kernel == kernel && run.host == host && run.options == options;
        if let Some(found) = self.runs.iter().find(is_it) {
            return found.run.clone();
        }
        let run = slug(format!("{kernel}-{host}-{options}").trim_end_matches('-'));
        let [kernel, host, options] = [kernel, host, options].map(str::to_owned);
        self.runs.push(StoredRun { kernel, host, options, run: run.clone() });
        run
    }

    pub(super) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let path = folder.join(PLAN);
        let text = serde_json::to_vec_pretty(self)?;
        vmtax_durable::write(&path, FileAccess::Umask, &text)
            .map_err(|e| output::cannot_write(&path.display().to_string(), &e).into())
    }
}

fn read(path: &Path) -> anyhow::Result<StoredPlan> {
    let name = path.display().to_string();
    let text = vmtax_durable::read_small(path, MOST).map_err(|e| output::cannot_read(&name, &e))?;
    let stored: StoredPlan = match serde_json::from_slice(&text) {
        Ok(stored) => stored,
        Err(error) => {
            return fail(
                Code::Data,
                format!("{name}: is not the plan of a series ({error}); name another folder"),
            );
        }
    };
    if stored.schema != SCHEMA {
        return fail(
            Code::Data,
            format!(
                "{name}: is of another version of vmtax ({}); name another folder",
                vmtax_events::printable(&stored.schema)
            ),
        );
    }
    // Folders are names in this folder, whatever the file says.
    if let Some(one) = stored
        .runs
        .iter()
        .find(|one| one.run != slug(&one.run) || one.run.starts_with('.') || one.run.is_empty())
    {
        return fail(
            Code::Data,
            format!("{name}: {} is not the name of a run", vmtax_events::printable(&one.run)),
        );
    }
    Ok(stored)
}

/// A name that is one plain word in a file system and in an address.
pub fn slug(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-.=+".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}

/// Indices of the runs in the order in which they are shown: by host, as they were asked for, then by the kernel's version, then as they were asked for.
pub(super) fn order(runs: &[StoredRun]) -> Vec<usize> {
    let mut hosts: Vec<&str> = Vec::new();
    for one in runs {
        if !hosts.contains(&one.host.as_str()) {
            hosts.push(&one.host);
        }
    }
    let mut all: Vec<usize> = (0..runs.len()).collect();
    let host = |at: usize| hosts.iter().position(|host| *host == runs[at].host);
    all.sort_by_key(|at| (host(*at), version_key(&runs[*at].kernel)));
    all
}

/// The numbers of a version up to the first word that is none: a release candidate comes before its release.
fn version_key(name: &str) -> Vec<u64> {
    let mut key = Vec::new();
    let (numbers, rest) = match name.split_once("-rc") {
        Some((numbers, rest)) => (numbers, Some(rest)),
        None => (name, None),
    };
    let parse = |text: &str| -> Vec<u64> {
        let parts = text.trim_start_matches('v').split(['.', '-', '+', '_']);
        parts.map_while(|part| part.parse().ok()).collect()
    };
    key.extend(parse(numbers));
    // Pad, so that 6.8-rc1 and 6.8.0-rc1 are the same, and 6.8 without a candidate's number is last.
    key.resize(key.len().max(4), 0);
    key.push(rest.and_then(|rest| parse(rest).first().copied()).unwrap_or(u64::MAX));
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_come_by_version() {
        let names = [
            "6.12.117+deb13",
            "v6.8",
            "6.1.0-56",
            "5.10.0-46",
            "v6.8-rc2",
            "7.3.4+deb13",
            "6.8.0-rc10",
        ];
        let runs: Vec<StoredRun> = names
            .iter()
            .flat_map(|name| ["intel", "amd"].map(|host| (name, host)))
            .map(|(name, host)| StoredRun {
                kernel: (*name).to_owned(),
                host: host.to_owned(),
                options: String::new(),
                run: format!("{name}-{host}"),
            })
            .collect();
        let order: Vec<&str> = order(&runs).iter().map(|at| runs[*at].run.as_str()).collect();
        let expected = [
            "5.10.0-46",
            "6.1.0-56",
            "v6.8-rc2",
            "6.8.0-rc10",
            "v6.8",
            "6.12.117+deb13",
            "7.3.4+deb13",
        ];
        let expected: Vec<String> = ["intel", "amd"]
            .iter()
            .flat_map(|host| expected.map(|name| format!("{name}-{host}")))
            .collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn folders_stay_within_the_series() {
        assert_eq!(
            slug("6.1-amd-kvm_amd.npt=0 mitigations=auto,nosmt"),
            "6.1-amd-kvm_amd.npt=0_mitigations=auto_nosmt"
        );
        assert_eq!(slug("../x"), ".._x");
        let folder = tempfile::tempdir().expect("a folder");
        let wanted = WantedRuns {
            suites: vec!["primitives".into()],
            operations: vec![],
            nested: true,
            profile: false,
            processors: 4,
            batches: 5,
        };
        let mut stored = StoredPlan::open(folder.path(), &wanted).expect("new");
        let run = stored.point("6.1", "amd", "kvm_amd.npt=0");
        assert_eq!(run, "6.1-amd-kvm_amd.npt=0");
        assert_eq!(stored.point("6.1", "amd", "kvm_amd.npt=0"), run);
        stored.write(folder.path()).expect("written");
        assert_eq!(StoredPlan::open(folder.path(), &wanted).expect("read"), stored);
        let others = [
            WantedRuns { nested: false, ..wanted.clone() },
            WantedRuns { processors: 1, ..wanted.clone() },
        ];
        for other in others {
            let error = StoredPlan::open(folder.path(), &other).expect_err("another").to_string();
            let flags = "was made with --suite primitives --nested --processors 4 --batches 5";
            assert!(error.contains(flags), "{error}");
        }
        let text = std::fs::read_to_string(folder.path().join(PLAN)).expect("text");
        for hostile in ["..", "a/b", ".x", ""] {
            std::fs::write(
                folder.path().join(PLAN),
                text.replace(&format!("\"run\": \"{run}\""), &format!("\"run\": \"{hostile}\"")),
            )
            .expect("written");
            let error = StoredPlan::open(folder.path(), &wanted).expect_err(hostile).to_string();
            assert!(error.contains("is not the name of a run"), "{hostile}: {error}");
        }
        std::fs::write(folder.path().join(PLAN), "{").expect("written");
        let error = StoredPlan::open(folder.path(), &wanted).expect_err("damaged").to_string();
        assert!(error.contains("is not the plan of a series"), "{error}");
    }
}
