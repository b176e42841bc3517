//! A workload of a matrix: its job, and its readings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use vmtax_analyse::bench::EXITS;
use vmtax_capture::program::{ClientOutput, ProgramReading};
use vmtax_guest::job::{Job, JobOutcome};
use vmtax_lab::category::Category;
use vmtax_lab::network::{self, ClientPlace, PlannedCell, QEMU};
use vmtax_machine::kernel::Architecture;
use vmtax_machine::programs;

use crate::adapter::{Adapter, OwnMetric, words};
use crate::link::Link;
use crate::target::Accel;

#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name in tables.
    pub name: String,
    pub kind: WorkloadProgram,
    /// Parameters given by the matrix.
    pub parameters: BTreeMap<String, String>,
    /// Files of this computer that its command needs in a VM.
    pub bring: Vec<PathBuf>,
    /// Accelerator of its VMs, if not that of the others.
    pub accel: Option<Accel>,
    /// The connection between its client and its server, if they are on different systems.
    pub link: Option<Link>,
}

/// The program of a workload.
#[derive(Clone, Debug)]
pub enum WorkloadProgram {
    Adapter(&'static Adapter),
    /// A user's command.
    Own {
        /// Program and arguments.
        command: Vec<String>,
        own: OwnMetric,
    },
    /// Traffic with a VM of QEMU on an emulated host.
    Traffic(QemuTraffic),
}

/// Traffic with a VM of QEMU on an emulated host.
#[derive(Clone, Copy, Debug)]
pub struct QemuTraffic {
    pub of: &'static network::NetworkWorkload,
    pub client: ClientPlace,
    /// Operations in the recording, if the matrix says how many.
    pub operations: Option<u32>,
}

impl QemuTraffic {
    /// It with a VM of a category.
    pub(crate) fn cell(&self, category: &Category) -> PlannedCell {
        let (category, workload) = (category.clone(), self.of);
        PlannedCell { category, client: self.client, workload, operations: self.operations }
    }
}

impl Workload {
    /// The job of a cell.
    pub fn job(&self, warmup: bool, counters: bool, limit_ms: u64) -> Job {
        let (files, server, client) = match &self.kind {
            WorkloadProgram::Own { command, .. } => (Vec::new(), Vec::new(), command.clone()),
            WorkloadProgram::Traffic(_) => return Job::default(),
            WorkloadProgram::Adapter(adapter) => (
                adapter
                    .files
                    .iter()
                    .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                    .collect(),
                self.command(adapter, adapter.server),
                self.command(adapter, adapter.client),
            ),
        };
        let server_anew =
            matches!(&self.kind, WorkloadProgram::Adapter(adapter) if adapter.one_client);
        let warmups = if warmup { vec![client.clone()] } else { Vec::new() };
        Job { files, server, server_anew, warmups, client, limit_ms, counters, ..Job::default() }
    }

    fn command(&self, adapter: &Adapter, command: &str) -> Vec<String> {
        words(command).into_iter().map(|word| self.filled(adapter, word)).collect()
    }

    fn filled(&self, adapter: &Adapter, word: &str) -> String {
        // A workload with a disk runs in VMs of ours alone, so this is never a disk of this computer.
        let mut word = word.replace("{name}", adapter.name).replace("{disk}", "/dev/vda");
        for (name, default) in adapter.parameters {
            let value = self.parameters.get(*name).map_or(*default, String::as_str);
            word = word.replace(&format!("{{{name}}}"), value);
        }
        word
    }

    /// Programs needed on the system under test, by name or path.
    pub fn programs(&self) -> Vec<String> {
        match &self.kind {
            WorkloadProgram::Own { command, .. } => command.first().cloned().into_iter().collect(),
            WorkloadProgram::Traffic(_) => vec![QEMU.to_owned()],
            WorkloadProgram::Adapter(adapter)
                if adapter.programs.is_empty() && !adapter.is_builtin() =>
            {
                self.command(adapter, adapter.client).into_iter().take(1).collect()
            }
            WorkloadProgram::Adapter(adapter) => {
                adapter.programs.iter().map(|name| (*name).to_owned()).collect()
            }
        }
    }

    /// Files and folders of this computer that it needs in a VM, and those of its parameters.
    pub fn brought(&self) -> Vec<PathBuf> {
        let WorkloadProgram::Adapter(adapter) = &self.kind else { return self.bring.clone() };
        let trees = adapter.parameters.iter().filter(|(name, _)| adapter.brings.contains(name));
        let value = |(name, default): &(&str, &'static str)| {
            self.parameters.get(*name).map_or(*default, String::as_str).into()
        };
        self.bring.iter().cloned().chain(trees.map(value)).collect()
    }

    /// Whether it uses the disk of a VM.
    pub fn has_disk(&self) -> bool {
        matches!(&self.kind, WorkloadProgram::Adapter(adapter) if adapter.disk)
    }

    /// Why VMs of this accelerator cannot run it; half a sentence.
    pub(crate) fn impossible(&self, accel: Accel) -> Option<String> {
        let architecture = accel.architecture();
        if let WorkloadProgram::Adapter(adapter) = &self.kind
            && adapter.only.is_some_and(|only| only != architecture)
        {
            return Some(format!("{} is not there with accel = {:?}", adapter.name, accel.name()));
        }
        if architecture == Architecture::Amd64 {
            return None;
        }
        if self.cpus() > 1 {
            return Some(format!(
                "it takes {} vCPUs, and VMs of the emulated arm64 host have one",
                self.cpus()
            ));
        }
        let mut needed = self.programs().into_iter();
        let other = needed.find(|name| !programs::is_of(name, architecture))?;
        Some(format!(
            "{other} is no program of arm64 here, which VMs of the emulated arm64 host take; use a built-in workload, or a static program of arm64"
        ))
    }

    /// Minimum number of processors.
    pub fn cpus(&self) -> u32 {
        match &self.kind {
            WorkloadProgram::Adapter(adapter) => adapter.cpus,
            WorkloadProgram::Own { .. } | WorkloadProgram::Traffic(_) => 1,
        }
    }

    /// The command that prints its version, if known.
    pub fn version(&self) -> Option<Vec<String>> {
        match &self.kind {
            WorkloadProgram::Adapter(adapter) if !adapter.version.is_empty() => {
                Some(words(adapter.version).into_iter().map(str::to_owned).collect())
            }
            WorkloadProgram::Traffic(_) => Some(vec![QEMU.to_owned(), "--version".to_owned()]),
            _ => None,
        }
    }

    /// The metric shown in short tables.
    pub fn headline(&self) -> &str {
        match &self.kind {
            WorkloadProgram::Adapter(adapter) => adapter.headline,
            WorkloadProgram::Own { own, .. } => &own.metric,
            WorkloadProgram::Traffic(_) => EXITS,
        }
    }

    /// The readings of an outcome; the error is a sentence.
    pub fn readings(&self, outcome: &JobOutcome) -> Result<Vec<ProgramReading>, String> {
        if !outcome.problem.is_empty() {
            return Err(outcome.problem.clone());
        }
        if outcome.code != Some(0) {
            return Err("it did not end with success".to_owned());
        }
        let (stdout, stderr) =
            (String::from_utf8_lossy(&outcome.stdout), String::from_utf8_lossy(&outcome.stderr));
        let output =
            ClientOutput { stdout: &stdout, stderr: &stderr, elapsed_ns: outcome.elapsed_ns };
        let readings = match &self.kind {
            WorkloadProgram::Adapter(adapter) => adapter.readings(&output),
            WorkloadProgram::Own { own, .. } => own.parse(&output),
            WorkloadProgram::Traffic(_) => return Err("it has no output".to_owned()),
        };
        readings.map_err(|refusal| format!("its output is refused: {refusal}"))
    }
}
