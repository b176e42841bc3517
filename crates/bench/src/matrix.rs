//! The matrix file: what is to be run, where, how often.

use std::collections::BTreeMap;
use std::path::PathBuf;

use regex_lite::Regex;
use serde::Deserialize;
use vmtax_events::Better;
use vmtax_lab::budget::toml_problem;
use vmtax_lab::network::{self, ClientPlace, WORKLOADS};
use vmtax_machine::ssh::{AddressError, SshAddress};

use crate::adapter::{Adapter, Extract, OwnMetric};
use crate::category::MatrixCategory;
use crate::link::{Link, Netdev, Side};
use crate::target::{Accel, Platform, Target};
use crate::workload::{QemuTraffic, Workload, WorkloadProgram};

/// Most cells of a matrix.
const CELLS_MOST: usize = 1 << 20;
/// Most processors of an emulated host, as of `vmtax lab run --processors`.
const PROCESSORS_MOST: u64 = 8;
/// Most bytes of a file.
pub const BYTES_MOST: u64 = 1 << 20;

/// A matrix that can be run.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub name: String,
    /// Measured runs of each workload in each category.
    pub repeats: u32,
    /// Run each client once unmeasured before.
    pub warmup: bool,
    /// Have the processor count events while each client runs.
    pub counters: bool,
    /// Run each client once more and record the exits meanwhile, where that is possible.
    pub exits: bool,
    /// How long a cell may take, ms.
    pub limit_ms: u64,
    pub target: Target,
    /// Categories, or places: in order.
    pub categories: Vec<Where>,
    /// Workloads, in order.
    pub workloads: Vec<Workload>,
}

/// A category of VM, or a system that is there already.
#[derive(Clone, Debug)]
pub enum Where {
    /// This computer, without a VM.
    Host,
    /// A system that is reached by ssh, under the name that tables give it.
    Ssh {
        /// Its name in tables.
        name: String,
        address: SshAddress,
    },
    /// A VM that is launched.
    Vm(MatrixCategory),
}

impl Where {
    /// Its name in tables.
    pub fn name(&self) -> &str {
        match self {
            Where::Host => "host",
            Where::Ssh { name, .. } => name,
            Where::Vm(category) => &category.name,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MatrixFile {
    name: Option<String>,
    #[serde(default = "five")]
    repeats: u32,
    #[serde(default = "yes")]
    warmup: bool,
    #[serde(default)]
    counters: bool,
    #[serde(default = "yes")]
    exits: bool,
    #[serde(default = "limit")]
    limit_seconds: u64,
    categories: Vec<String>,
    #[serde(default)]
    vm: Target,
    #[serde(default)]
    ssh: BTreeMap<String, String>,
    #[serde(rename = "workload")]
    workloads: Vec<MatrixEntry>,
}

fn five() -> u32 {
    5
}

fn yes() -> bool {
    true
}

fn limit() -> u64 {
    120
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MatrixEntry {
    #[serde(rename = "use")]
    adapter: Option<String>,
    name: Option<String>,
    #[serde(default)]
    set: BTreeMap<String, toml::Value>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    bring: Vec<PathBuf>,
    accel: Option<Accel>,
    network: Option<Netdev>,
    #[serde(default)]
    client: Side,
    #[serde(default)]
    server: Side,
    metric: Option<String>,
    unit: Option<String>,
    better: Option<String>,
    pattern: Option<String>,
    json: Option<String>,
}

impl Matrix {
    /// Reads a matrix; the error is a sentence about the text.
    pub fn read(text: &str) -> Result<Matrix, String> {
        let file: MatrixFile = toml::from_str(text).map_err(|e| toml_problem(text, &e))?;
        let between = |what: &str, value: u64, most: u64| {
            if (1..=most).contains(&value) {
                Ok(())
            } else {
                Err(format!("{what} = {value}: use 1 to {most}"))
            }
        };
        between("repeats", file.repeats.into(), 1000)?;
        between("limit_seconds", file.limit_seconds, 86_400)?;
        between("vm.cpus", file.vm.cpus.into(), 1024)?;
        between("vm.processors", file.vm.processors.into(), PROCESSORS_MOST)?;
        between("vm.memory", file.vm.memory.into(), 1 << 24)?;
        if let Some(mib) = file.vm.swiotlb {
            between("vm.swiotlb", mib.into(), u64::from(file.vm.memory) / 2)?;
        }
        if let Some(problem) = file.vm.problem_inside() {
            return Err(problem.to_owned());
        }
        if file.vm.is_inside() && (!file.exits || file.counters) {
            return Err("vm.vmm = \"qemu\": its VMs are measured by their exits; leave exits and counters out".to_owned());
        }
        let mut categories = Vec::new();
        for name in &file.categories {
            let place = match (name.as_str(), file.ssh.get(name)) {
                ("host", None) => Where::Host,
                (_, Some(address)) => {
                    let address = address
                        .parse()
                        .map_err(|e: AddressError| format!("ssh: {address:?}: {e}"))?;
                    Where::Ssh { name: plain(name)?, address }
                }
                (_, None) => Where::Vm(MatrixCategory::read(name)?.of(&file.vm)),
            };
            if file.vm.is_inside() && !matches!(place, Where::Vm(_)) {
                return Err(format!("categories: {name:?} is no VM of QEMU on an emulated host"));
            }
            if categories.iter().any(|other: &Where| other.name() == place.name()) {
                return Err(format!("categories: {name:?} is listed twice"));
            }
            categories.push(place);
        }
        if let Some(name) = file.ssh.keys().find(|name| !file.categories.contains(name)) {
            return Err(format!("ssh: {name:?} is not among the categories"));
        }
        let mut workloads: Vec<Workload> = Vec::new();
        for entry in &file.workloads {
            let workload = entry.workload(&file.vm)?;
            if workloads.iter().any(|other| other.name == workload.name) {
                return Err(format!(
                    "workload {:?} is listed twice; give one of them a name",
                    workload.name
                ));
            }
            workloads.push(workload);
        }
        for workload in &workloads {
            let accel = workload.accel.unwrap_or(file.vm.accel);
            if let Some(problem) = file.vm.problem_processors(accel) {
                return Err(format!("workload {:?}: {problem}", workload.name));
            }
        }
        for workload in workloads.iter().filter(|workload| workload.has_disk()) {
            let name = &workload.name;
            let other = categories.iter().find(|place| !matches!(place, Where::Vm(_)));
            if let Some(place) = other {
                return Err(format!(
                    "workload {name:?} uses the disk of a VM that vmtax starts, and {:?} is none; take the category or the workload out",
                    place.name()
                ));
            }
            let accel = workload.accel.unwrap_or(file.vm.accel);
            if accel.is_emulated_host() {
                return Err(format!(
                    "workload {name:?}: a VM on an emulated host has no disk; use accel = \"tcg\" or \"kvm\", not \"{}\"",
                    accel.name()
                ));
            }
        }
        if categories.is_empty() || workloads.is_empty() {
            return Err("a matrix has at least one category and one workload".to_owned());
        }
        if categories.len() * workloads.len() * file.repeats as usize > CELLS_MOST {
            return Err(format!("it has more than {CELLS_MOST} cells"));
        }
        Ok(Matrix {
            name: printable(file.name.as_deref().unwrap_or("matrix"))?,
            repeats: file.repeats,
            warmup: file.warmup,
            counters: file.counters,
            exits: file.exits,
            limit_ms: file.limit_seconds * 1000,
            target: file.vm,
            categories,
            workloads,
        })
    }

    /// Keeps the categories and workloads that are named; an error names what there is not.
    pub fn only(&mut self, names: &[String]) -> Result<(), String> {
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            let known = self.categories.iter().any(|place| place.name() == name)
                || self.workloads.iter().any(|workload| &workload.name == name);
            if !known {
                return Err(format!("{name}: is neither a category nor a workload of the matrix"));
            }
        }
        if self.categories.iter().any(|place| names.iter().any(|name| name == place.name())) {
            self.categories.retain(|place| names.iter().any(|name| name == place.name()));
        }
        if self.workloads.iter().any(|workload| names.contains(&workload.name)) {
            self.workloads.retain(|workload| names.contains(&workload.name));
        }
        Ok(())
    }

    /// What runs the VMs of a workload.
    pub fn accel(&self, workload: &Workload) -> Accel {
        workload.accel.unwrap_or(self.target.accel)
    }

    /// The same, and with how many vCPUs.
    pub fn platform(&self, workload: &Workload) -> Platform {
        let accel = self.accel(workload);
        if self.target.is_inside() {
            return Platform { accel, cpus: 1, link: None };
        }
        let cpus = match accel.is_emulated_host() {
            true => workload.cpus().max(self.target.processors),
            false => self.target.cpus,
        };
        Platform { accel, cpus, link: workload.link }
    }

    /// Whether a workload uses what a category changes. A category that no workload uses has them all: it is refused elsewhere.
    pub(crate) fn fits(&self, place: &Where, workload: &Workload) -> bool {
        let Where::Vm(category) = place else { return true };
        if self.target.is_inside() {
            return true;
        }
        let crosses = |workload: &Workload| category.missing_link(workload.link).is_none();
        crosses(workload) || !self.workloads.iter().any(crosses)
    }

    /// Cells that a category does not have, and why; a sentence for each category and reason.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let mut found: Vec<(&MatrixCategory, String, Vec<&str>)> = Vec::new();
        for place in &self.categories {
            let Where::Vm(category) = place else { continue };
            for workload in self.workloads.iter().filter(|workload| !self.fits(place, workload)) {
                let why = category.missing_link(workload.link).unwrap_or_default();
                let same = found
                    .iter_mut()
                    .find(|(other, reason, _)| other.name == category.name && *reason == why);
                match same {
                    Some((.., workloads)) => workloads.push(&workload.name),
                    None => found.push((category, why, vec![&workload.name])),
                }
            }
        }
        let sentence = |(category, why, workloads): (&MatrixCategory, String, Vec<&str>)| {
            format!(
                "category {} is not measured with {}: {why}",
                category.name,
                workloads.join(", ")
            )
        };
        found.into_iter().map(sentence).collect()
    }

    /// What runs its VMs, in the order of its workloads; nothing where it has no VMs.
    pub fn platforms(&self) -> Vec<Platform> {
        let has_vms = self.categories.iter().any(|place| matches!(place, Where::Vm(_)));
        let workloads = if has_vms { self.workloads.as_slice() } else { &[] };
        distinct(workloads.iter().map(|workload| self.platform(workload)))
    }

    /// As [`Matrix::platforms`], whatever the vCPUs.
    pub fn accels(&self) -> Vec<Accel> {
        distinct(self.platforms().into_iter().map(|platform| platform.accel))
    }

    /// What emulates VMs of it, if anything does.
    pub fn emulated(&self) -> Option<String> {
        let names: Vec<&str> = self.accels().into_iter().filter_map(Accel::emulator).collect();
        let turns = match self.target.processors {
            1 => String::new(),
            several => format!(" with {several} processors that take turns"),
        };
        (!names.is_empty()).then(|| names.join("; ") + &turns)
    }
}

impl MatrixEntry {
    fn workload(&self, target: &Target) -> Result<Workload, String> {
        if target.is_inside() {
            return self.traffic();
        }
        let named = self.name.as_ref().or(self.adapter.as_ref()).cloned().unwrap_or_default();
        let link = self.link(target).map_err(|problem| format!("workload {named:?}: {problem}"))?;
        let parameters =
            self.set.iter().map(|(name, value)| Ok((name.clone(), word(name, value)?)));
        let parameters: BTreeMap<String, String> = parameters.collect::<Result<_, String>>()?;
        let own_fields = [&self.metric, &self.unit, &self.better, &self.pattern, &self.json];
        match (&self.adapter, self.command.as_slice()) {
            (Some(adapter), []) => {
                let name = self.name.clone().unwrap_or_else(|| adapter.clone());
                let found = Adapter::named(adapter)
                    .ok_or_else(|| format!("workload {adapter:?}: there is no such adapter; `vmtax bench list` lists them"))?;
                for (parameter, value) in &parameters {
                    found
                        .check(parameter, value)
                        .map_err(|problem| format!("workload {name:?}: {problem}"))?;
                }
                if own_fields.iter().any(|field| field.is_some()) {
                    return Err(format!(
                        "workload {name:?}: metric, unit, better, pattern and json belong to a command of your own"
                    ));
                }
                let kind = WorkloadProgram::Adapter(found);
                Ok(Workload {
                    name: printable(&name)?,
                    kind,
                    parameters,
                    bring: self.bring.clone(),
                    accel: self.accel,
                    link,
                })
            }
            (None, [_, ..]) => {
                let name = self.name.as_deref().ok_or("a workload with a command needs a name")?;
                let kind =
                    WorkloadProgram::Own { command: self.command.clone(), own: self.own(name)? };
                Ok(Workload {
                    name: printable(name)?,
                    kind,
                    parameters,
                    bring: self.bring.clone(),
                    accel: self.accel,
                    link,
                })
            }
            _ => {
                Err("a workload has either `use`, an adapter, or `command`, the words of your own"
                    .to_owned())
            }
        }
    }

    /// Traffic with a VM of QEMU on an emulated host.
    fn traffic(&self) -> Result<Workload, String> {
        let word = self.adapter.as_deref().unwrap_or_default();
        let name = self.name.as_deref().unwrap_or(word);
        let problem = |what: String| Err(format!("workload {name:?}: {what}"));
        let known = |is: fn(&network::NetworkWorkload) -> bool| {
            let known = WORKLOADS.iter().filter(|one| is(one)).map(|one| one.name);
            known.collect::<Vec<_>>().join(", ")
        };
        let Some(of) = network::NetworkWorkload::named(word) else {
            let known = known(|_| true);
            return problem(format!(
                "is none of those of VMs of QEMU on an emulated host, which are {known}"
            ));
        };
        let others = [&self.metric, &self.unit, &self.better, &self.pattern, &self.json];
        let has_others = others.iter().any(|field| field.is_some())
            || !(self.command.is_empty() && self.bring.is_empty())
            || self.accel.is_some_and(|accel| accel != Accel::Amd)
            || self.network.is_some()
            || self.server != Side::Here;
        if has_others || self.set.keys().any(|key| key != "operations") {
            return problem("takes name, client and set = { operations = N } only".to_owned());
        }
        let operations = match self.set.get("operations") {
            None => None,
            Some(toml::Value::Integer(number @ 1..=10_000)) => u32::try_from(*number).ok(),
            Some(_) => return problem("operations: use 1 to 10000".to_owned()),
        };
        let client = match self.client {
            Side::Here | Side::Host => ClientPlace::Host,
            Side::Peer if of.has_client() => ClientPlace::Peer,
            Side::Peer => {
                let can = known(network::NetworkWorkload::has_client);
                return problem(format!("has no client; the workloads with one are {can}"));
            }
            Side::Remote => {
                return problem("its client is on the host or in a peer".to_owned());
            }
        };
        let other = if client == ClientPlace::Peer { Side::Peer } else { Side::Host };
        let link = Link { other, server_there: false, netdev: Netdev::Tap };
        Ok(Workload {
            name: printable(name)?,
            kind: WorkloadProgram::Traffic(QemuTraffic { of, client, operations }),
            parameters: BTreeMap::new(),
            bring: Vec::new(),
            accel: None,
            link: of.has_client().then_some(link),
        })
    }

    /// Where client and server are; the error is half a sentence.
    fn link(&self, target: &Target) -> Result<Option<Link>, String> {
        let Some(link) = Link::new(self.client, self.server, self.network.or(target.network))?
        else {
            return match self.network {
                None => Ok(None),
                Some(_) => Err(
                    "its client and server are in one system, which no network leaves: leave `network` out".to_owned()
                ),
            };
        };
        if link.other == Side::Remote {
            let (end, address, whose) = match link.server_there {
                true => (target.remote_address, "remote_address", "of that system, for the VM"),
                false => (target.address, "address", "of this computer, for it"),
            };
            if target.remote.is_none() || end.is_none() {
                let side = if link.server_there { "server" } else { "client" };
                return Err(format!(
                    "a remote {side} needs remote = \"USER@HOST\", where it runs, and {address} = \"ADDRESS\" {whose}, in [vm]"
                ));
            }
        }
        let accel = self.accel.unwrap_or(target.accel);
        if accel.is_emulated_host() {
            return Err(format!(
                "a VM on an emulated host has no network to the outside; use accel = \"tcg\" or \"kvm\", not \"{}\"",
                accel.name()
            ));
        }
        let adapter = self.adapter.as_deref().and_then(Adapter::named);
        let Some(adapter) = adapter.filter(|adapter| adapter.has_ends()) else {
            return Err("it has no server, so it cannot run as client and server".to_owned());
        };
        if adapter.server.is_empty() && link.netdev == Netdev::User {
            return Err(
                "a user-mode network forwards TCP and UDP only; use network = \"tap\" in [vm]"
                    .to_owned(),
            );
        }
        Ok(Some(link))
    }

    fn own(&self, name: &str) -> Result<OwnMetric, String> {
        let extract = match (&self.pattern, &self.json) {
            (Some(pattern), None) => Extract::Pattern(Regex::new(pattern).map_err(|e| {
                format!("workload {name:?}: pattern: {}", one_line(&e.to_string()))
            })?),
            (None, Some(pointer)) if pointer.starts_with('/') => Extract::Json(pointer.clone()),
            (None, Some(pointer)) => {
                return Err(format!(
                    "workload {name:?}: json = {pointer:?}: begin with /, as in /results/0/time"
                ));
            }
            (None, None) => Extract::Elapsed,
            (Some(_), Some(_)) => {
                return Err(format!("workload {name:?}: give a pattern or json, not both"));
            }
        };
        let elapsed = matches!(extract, Extract::Elapsed);
        let need = |field: &Option<String>, what: &str, default: &str| match field {
            Some(value) => printable(value),
            None if elapsed => Ok(default.to_owned()),
            None => Err(format!("workload {name:?}: say the {what} of its value")),
        };
        if elapsed && self.unit.as_deref().is_some_and(|unit| unit != "s") {
            return Err(format!(
                "workload {name:?}: without a pattern or json its time is measured, and its unit is s"
            ));
        }
        let better = need(&self.better, "direction (better = \"lower\" or \"higher\")", "lower")?;
        let better = Better::from_name(&better).ok_or_else(|| {
            format!("workload {name:?}: better = {better:?}: use lower or higher")
        })?;
        Ok(OwnMetric {
            metric: need(&self.metric, "metric", "time")?,
            unit: need(&self.unit, "unit", "s")?,
            better,
            extract,
        })
    }
}

fn distinct<T: PartialEq>(of: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in of {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// A parameter as a word.
fn word(name: &str, value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(word) => Ok(word.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        _ => Err(format!("set.{name}: use a number or a text")),
    }
}

/// A name that tables and file names can have.
fn printable(name: &str) -> Result<String, String> {
    let fine = !name.is_empty() && name.len() <= 80 && !name.chars().any(char::is_control);
    if fine {
        Ok(name.to_owned())
    } else {
        Err(format!("{name:?}: a name has 1 to 80 characters, none of them a control character"))
    }
}

/// The name of a system behind ssh, which names a file of facts.
fn plain(name: &str) -> Result<String, String> {
    if name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
        printable(name)
    } else {
        Err(format!("ssh: {name:?}: a name there has letters, digits and . _ - only"))
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
