//! What a VM is made of, as far as another QEMU must be made of the same to go on with its memory and device state.
//!
//! QEMU itself compares the machine's name, the sections of its stream and some fields. It does not compare CPUs (a guest
//! that was started on another model dies at the first instruction it no longer has), nor devices that were added.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{MediumDisk, QemuVm, VmError};
use crate::qmp::QmpRequest;

/// What a VM is made of. Fields that a QEMU could not tell are empty, and not compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hardware {
    /// Version of QEMU. Not compared: a newer one runs the machines of older ones.
    pub qemu: String,
    /// Machine type with its version, such as `pc-i440fx-7.2`; never an alias.
    pub machine: String,
    /// Options of the machine, such as `hpet`.
    pub options: BTreeMap<String, Value>,
    /// `kvm`, or `other` (TCG as a rule).
    pub accelerator: String,
    pub memory_bytes: u64,
    pub memory: Vec<Backend>,
    /// The first vCPU; all are alike.
    pub cpu: CpuModel,
    /// Places for vCPUs, plugged or not: `maxcpus`, `sockets`, `cores`, ... of `-smp`.
    pub processors: BTreeMap<String, Value>,
    /// Places for memory, plugged or not: `slots` and `max-size` of `-m`.
    pub slots: BTreeMap<String, Value>,
    /// Memory of devices and firmware, such as `pc.bios`, and its length.
    pub blocks: BTreeMap<String, Value>,
    /// Place of each vCPU: socket-id, core-id, thread-id, ...
    pub vcpus: Vec<BTreeMap<String, u64>>,
    /// Devices that were asked for, in the order of their names.
    pub devices: Vec<VmDevice>,
    /// Types of the devices that the machine has by itself, and how many of each.
    pub onboard: BTreeMap<String, u64>,
    /// Disks when the VM was stopped. Compared by [`super::DiskCheck`].
    pub disks: Vec<MediumDisk>,
}

/// A memory backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Backend {
    /// Id of the object.
    pub id: String,
    /// Its length.
    pub bytes: u64,
    /// Whether it is a shared file, and so not part of the device state.
    pub share: bool,
}

/// A CPU model as it is: not the name alone, for `max` and `host` differ between computers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuModel {
    /// Such as `qemu64`.
    pub model: String,
    /// Features (booleans) and identity (numbers, texts).
    pub properties: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VmDevice {
    /// Its id, if it has one.
    pub id: String,
    /// Such as `virtio-blk-pci`.
    pub model: String,
    /// The bus it is on.
    pub bus: String,
    /// Place on the bus, and what else must agree: see `DEVICE_PROPERTIES`.
    pub properties: BTreeMap<String, Value>,
}

/// Properties of devices that must agree: where the guest finds the device, and what it has set up with it.
const DEVICE_PROPERTIES: [&str; 33] = [
    // PCI: slot and function, and whether others share the slot.
    "addr",
    "multifunction",
    "rombar",
    "romsize",
    // PCI bridges and root ports.
    "bus_nr",
    "chassis",
    "chassis_nr",
    "slot",
    "port",
    // IDE, SCSI, virtio-serial.
    "unit",
    "channel",
    "scsi-id",
    "lun",
    "nr",
    "max_ports",
    // ISA.
    "iobase",
    "iobase2",
    "irq",
    "index",
    // virtio: queues and how they are found. The negotiated features QEMU compares itself.
    "num-queues",
    "num_queues",
    "queues",
    "queue-size",
    "virtqueue_size",
    "rx_queue_size",
    "tx_queue_size",
    "vectors",
    "disable-legacy",
    "disable-modern",
    // Display memory.
    "vgamem_mb",
    "ram_size_mb",
    "vram_size_mb",
    // NUMA node of plugged memory.
    "node",
];

/// Properties of a CPU that may differ.
const CPU_PROPERTIES_IGNORED: [&str; 21] = [
    // State of the object.
    "type",
    "realized",
    "hotplugged",
    "hotpluggable",
    "start-powered-off",
    // How the model was requested; the result is in the others.
    "check",
    "enforce",
    "migratable",
    "host-cache-info",
    "host-phys-bits",
    "host-phys-bits-limit",
    // Of the first CPU alone; places are compared as such.
    "apic-id",
    "node-id",
    "socket-id",
    "die-id",
    "module-id",
    "cluster-id",
    "core-id",
    "thread-id",
    // Measured at start, and of the host: they change with a reboot or a microcode update.
    "tsc-frequency",
    "ucode-rev",
];

/// Options of a machine that may differ: what was loaded from where, and what only the host sees.
const OPTIONS_IGNORED: [&str; 16] = [
    "type",
    "kernel",
    "initrd",
    "append",
    "shim",
    "dtb",
    "dumpdtb",
    "dt-compatible",
    "phandle-start",
    "firmware",
    "memory-backend",
    "mem-merge",
    "dump-guest-core",
    "graphics",
    "suppress-vmdesc",
    "pcspk-audiodev",
];

/// No more features or devices of one sort are listed in a sentence.
const LISTED: usize = 16;

/// Sorts of properties whose values can be compared.
fn is_plain(kind: &str) -> bool {
    matches!(kind, "bool" | "string" | "str" | "int" | "size" | "OnOffAuto")
        || kind.strip_prefix('u').unwrap_or(kind).starts_with("int")
}

/// A child in QEMU's tree of objects, or a property: its name, and its type.
pub(super) struct TreeEntry {
    pub(super) name: String,
    kind: String,
}

impl TreeEntry {
    /// The type of a child.
    fn child(&self) -> Option<&str> {
        self.kind.strip_prefix("child<")?.strip_suffix('>')
    }
}

impl QemuVm {
    /// What it is made of, but for its disks.
    pub fn hardware(&mut self) -> Result<Hardware, VmError> {
        let version = self.ask("query-version", json!({}))?;
        let part = |name: &str| version["qemu"][name].as_u64().unwrap_or(0);
        let kvm = self.ask("query-kvm", json!({}))?;
        let memory = self.ask("query-memory-size-summary", json!({}))?;
        let bytes = |name: &str| memory[name].as_u64().unwrap_or(0);
        let mut machine = self.properties("/machine", &|name| !OPTIONS_IGNORED.contains(&name))?;
        let machine_type = self.property("/machine", "type")?;
        machine.retain(|_, value| *value != "auto");
        Ok(Hardware {
            qemu: format!("{}.{}.{}", part("major"), part("minor"), part("micro")),
            machine: machine_type.strip_suffix("-machine").unwrap_or(&machine_type).to_owned(),
            options: machine,
            accelerator: if kvm["enabled"] == true { "kvm" } else { "other" }.to_owned(),
            memory_bytes: bytes("base-memory") + bytes("plugged-memory"),
            memory: self.backends()?,
            cpu: self.cpu_model()?,
            processors: self.processors()?,
            slots: self.slots()?,
            blocks: self.blocks()?,
            vcpus: self.vcpus()?,
            devices: self.devices()?,
            onboard: self.onboard()?,
            disks: Vec::new(),
        })
    }

    /// The names of all devices, for seeing whether one was added or removed.
    pub fn device_names(&mut self) -> Result<BTreeSet<String>, VmError> {
        let mut names = BTreeSet::new();
        for folder in [PERIPHERAL, ANONYMOUS, UNATTACHED] {
            for entry in self.children(folder)? {
                names.insert(format!("{folder}/{} {}", entry.name, entry.kind));
            }
        }
        Ok(names)
    }

    /// As [`crate::qmp::Qmp::run`], of something that an older QEMU may not know: null.
    pub(super) fn ask(
        &mut self,
        command: &'static str,
        arguments: Value,
    ) -> Result<Value, VmError> {
        Ok(self.qmp.run_all(&[(command, arguments)])?.pop().flatten().unwrap_or_default())
    }

    fn backends(&mut self) -> Result<Vec<Backend>, VmError> {
        let answer = self.ask("query-memdev", json!({}))?;
        let of = |b: &Value| Backend {
            id: b["id"].as_str().unwrap_or_default().to_owned(),
            bytes: b["size"].as_u64().unwrap_or(0),
            share: b["share"] == true,
        };
        let mut backends: Vec<Backend> = array(&answer).iter().map(of).collect();
        backends.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(backends)
    }

    fn cpu_model(&mut self) -> Result<CpuModel, VmError> {
        let cpus = self.ask("query-cpus-fast", json!({}))?;
        let Some(path) = cpus[0]["qom-path"].as_str() else { return Ok(CpuModel::default()) };
        let model = self.property(path, "type")?;
        let target = cpus[0]["target"].as_str().unwrap_or_default();
        let model = model.strip_suffix(&format!("-{target}-cpu")).unwrap_or(&model).to_owned();
        let wanted = |name: &str| !CPU_PROPERTIES_IGNORED.contains(&name);
        Ok(CpuModel { model, properties: self.properties(path, &wanted)? })
    }

    fn vcpus(&mut self) -> Result<Vec<BTreeMap<String, u64>>, VmError> {
        let answer = self.ask("query-cpus-fast", json!({}))?;
        let place = |cpu: &Value| {
            let props = cpu["props"].as_object().into_iter().flatten();
            props.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect()
        };
        let mut places: Vec<BTreeMap<String, u64>> = array(&answer).iter().map(place).collect();
        places.sort();
        Ok(places)
    }

    /// Configured devices: from -device, -drive and similar options, or hotplugged.
    fn devices(&mut self) -> Result<Vec<VmDevice>, VmError> {
        let mut devices = Vec::new();
        for folder in [PERIPHERAL, ANONYMOUS] {
            for entry in self.children(folder)? {
                let Some(model) = entry.child() else { continue };
                let path = format!("{folder}/{}", entry.name);
                let wanted = |name: &str| DEVICE_PROPERTIES.contains(&name);
                let mut properties = self.properties(&path, &wanted)?;
                properties.retain(|_, value| *value != "auto");
                let bus = self.property(&path, "parent_bus")?;
                let id = if folder == PERIPHERAL { entry.name.clone() } else { String::new() };
                devices.push(VmDevice { id, model: model.to_owned(), bus, properties });
            }
        }
        self.name_buses(&mut devices)?;
        devices.sort_by(|a, b| (&a.id, &a.model, &a.bus).cmp(&(&b.id, &b.model, &b.bus)));
        Ok(devices)
    }

    /// A bus of another device is named by that device's type: its id and its number may be others in another QEMU.
    fn name_buses(&mut self, devices: &mut [VmDevice]) -> Result<(), VmError> {
        for device in devices {
            for folder in [PERIPHERAL, ANONYMOUS, UNATTACHED] {
                let rest = device.bus.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
                let Some((owner, bus)) = rest.and_then(|rest| rest.split_once('/')) else {
                    continue;
                };
                let model = self.property(&format!("{folder}/{owner}"), "type")?;
                // The bus of a device with an id is called by that id and a number.
                let bus = match bus.rsplit('/').next().and_then(|last| last.rsplit_once('.')) {
                    Some((_, number)) if folder == PERIPHERAL => number,
                    _ => bus,
                };
                device.bus = format!("{model}/{bus}");
                break;
            }
        }
        Ok(())
    }

    fn onboard(&mut self) -> Result<BTreeMap<String, u64>, VmError> {
        let mut onboard = BTreeMap::new();
        for entry in self.children(UNATTACHED)? {
            // Of other children there are memory regions and interrupt lines.
            let Some(model) = entry.child().filter(|_| entry.name.starts_with("device[")) else {
                continue;
            };
            if !model.ends_with("-cpu") {
                *onboard.entry(model.to_owned()).or_default() += 1;
            }
        }
        Ok(onboard)
    }

    pub(super) fn children(&mut self, path: &str) -> Result<Vec<TreeEntry>, VmError> {
        let answer = self.ask("qom-list", json!({ "path": path }))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of = |e: &Value| TreeEntry { name: text(&e["name"]), kind: text(&e["type"]) };
        Ok(array(&answer).iter().map(of).collect())
    }

    /// A property that is a text; empty where there is none.
    pub(super) fn property(&mut self, path: &str, name: &str) -> Result<String, VmError> {
        let value = self.ask("qom-get", json!({ "path": path, "property": name }))?;
        Ok(value.as_str().unwrap_or_default().to_owned())
    }

    /// The properties of an object that are wanted, can be read and compared.
    fn properties(
        &mut self,
        path: &str,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, Value>, VmError> {
        // From QEMU 10.1 on; a processor has some 400 properties, and QEMU reads commands byte by byte.
        let all = self.ask("qom-list-get", json!({ "paths": [path] }))?;
        if let Some(all) = all[0]["properties"].as_array() {
            let plain = |one: &Value| {
                let (name, kind) = (one["name"].as_str()?, one["type"].as_str()?);
                let value = one.get("value")?;
                (is_plain(kind) && wanted(name)).then(|| (name.to_owned(), value.clone()))
            };
            return Ok(all.iter().filter_map(plain).collect());
        }
        let names: Vec<String> = self
            .children(path)?
            .into_iter()
            .filter(|entry| is_plain(&entry.kind) && wanted(&entry.name))
            .map(|entry| entry.name)
            .collect();
        let request = |name: &String| -> QmpRequest {
            ("qom-get", json!({ "path": path, "property": name }))
        };
        let values = self.qmp.run_all(&names.iter().map(request).collect::<Vec<_>>())?;
        Ok(names.into_iter().zip(values).filter_map(|(name, value)| Some((name, value?))).collect())
    }
}

pub(super) const PERIPHERAL: &str = "/machine/peripheral";
pub(super) const ANONYMOUS: &str = "/machine/peripheral-anon";
const UNATTACHED: &str = "/machine/unattached";

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

impl Hardware {
    /// What differs in the machine `here`, a sentence each; nothing if it can go on with what was saved.
    pub fn differences(&self, here: &Hardware) -> Vec<String> {
        let mut found = Vec::new();
        changed(&mut found, "machine type", &self.machine, &here.machine);
        changed(&mut found, "accelerator", &self.accelerator, &here.accelerator);
        self.compare_memory(here, &mut found);
        self.cpu.compare(&here.cpu, &mut found);
        if self.vcpus.len() != here.vcpus.len() {
            changed(&mut found, "vCPUs", &self.vcpus.len(), &here.vcpus.len());
        } else if self.vcpus != here.vcpus {
            let (a, b) = (topology(&self.vcpus), topology(&here.vcpus));
            changed(&mut found, "vCPU topology", &a, &b);
        } else {
            compare_values(&mut found, "vCPU", &self.processors, &here.processors);
        }
        // Another type of machine, or KVM's own interrupt controllers, is one difference and not twenty.
        let same_board = self.machine == here.machine && self.accelerator == here.accelerator;
        if same_board {
            compare_values(&mut found, "machine option", &self.options, &here.options);
            self.compare_onboard(here, &mut found);
            compare_values(&mut found, "length of", &self.blocks, &here.blocks);
        }
        compare_devices(&self.devices, &here.devices, same_board, &mut found);
        found
    }

    fn compare_memory(&self, here: &Hardware, found: &mut Vec<String>) {
        let known = self.memory_bytes != 0 && here.memory_bytes != 0;
        if known && self.memory_bytes != here.memory_bytes {
            changed(found, "memory", &mib(self.memory_bytes), &mib(here.memory_bytes));
        } else {
            compare_values(found, "memory", &self.slots, &here.slots);
        }
        for ours in &self.memory {
            let what = format!("memory backend {}", ours.id);
            match here.memory.iter().find(|theirs| theirs.id == ours.id) {
                None => found.push(format!("{what}: this QEMU does not have it")),
                Some(theirs) => {
                    if ours.bytes != theirs.bytes {
                        changed(found, &what, &mib(ours.bytes), &mib(theirs.bytes));
                    }
                    if ours.share != theirs.share {
                        changed(found, &format!("{what}: share"), &ours.share, &theirs.share);
                    }
                }
            }
        }
        for theirs in &here.memory {
            if !self.memory.iter().any(|ours| ours.id == theirs.id) {
                found.push(format!("memory backend {}: the saved VM did not have it", theirs.id));
            }
        }
    }

    fn compare_onboard(&self, here: &Hardware, found: &mut Vec<String>) {
        let models: BTreeSet<&String> = self.onboard.keys().chain(here.onboard.keys()).collect();
        for model in models {
            let count = |hardware: &Hardware| hardware.onboard.get(model).copied().unwrap_or(0);
            if count(self) != count(here) {
                changed(found, &format!("onboard {model}"), &count(self), &count(here));
            }
        }
    }
}

impl CpuModel {
    fn compare(&self, here: &CpuModel, found: &mut Vec<String>) {
        changed(found, "CPU model", &self.model, &here.model);
        let (mut lost, mut gained) = (Vec::new(), Vec::new());
        let mut others = [BTreeMap::new(), BTreeMap::new()];
        for (name, ours) in &self.properties {
            // A newer QEMU knows more properties, and gives them values under which older machines are as they were.
            let Some(theirs) = here.properties.get(name) else { continue };
            match (ours, theirs) {
                (Value::Bool(true), Value::Bool(false)) => lost.push(name.as_str()),
                (Value::Bool(false), Value::Bool(true)) => gained.push(name.as_str()),
                _ => {
                    others[0].insert(name.clone(), ours.clone());
                    others[1].insert(name.clone(), theirs.clone());
                }
            }
        }
        for (names, what) in [
            (lost, "CPU features that the saved VM had and this QEMU does not have"),
            (gained, "CPU features that the saved VM did not have and this QEMU has"),
        ] {
            if !names.is_empty() {
                found.push(format!("{what}: {}", listed(&names)));
            }
        }
        compare_values(found, "CPU property", &others[0], &others[1]);
    }
}

fn compare_devices(
    saved: &[VmDevice],
    here: &[VmDevice],
    same_board: bool,
    found: &mut Vec<String>,
) {
    // By another name, or in another order, it is the same device.
    let same = |a: &VmDevice, b: &VmDevice| {
        a.model == b.model && (!same_board || (a.bus == b.bus && a.properties == b.properties))
    };
    let mut theirs: Vec<&VmDevice> = here.iter().collect();
    let mut take = |fits: &dyn Fn(&VmDevice) -> bool| {
        let at = theirs.iter().position(|device| fits(device))?;
        Some(theirs.remove(at))
    };
    let ours: Vec<&VmDevice> = saved.iter().filter(|d| take(&|t| same(d, t)).is_none()).collect();
    let mut gone = Vec::new();
    for device in ours {
        let by_id = take(&|t| !device.id.is_empty() && t.id == device.id);
        match by_id.or_else(|| take(&|t| t.model == device.model)) {
            Some(other) => device.compare(other, same_board, found),
            None => gone.push(device.title()),
        }
    }
    for device in gone {
        found.push(format!("device {device}: this QEMU does not have it"));
    }
    for device in theirs {
        found.push(format!("device {}: the saved VM did not have it", device.title()));
    }
}

impl VmDevice {
    fn title(&self) -> String {
        let place = self.properties.get("addr").map(|addr| format!(" at {}", shown("addr", addr)));
        let place = place.unwrap_or_default();
        match self.id.as_str() {
            "" => format!("{}{place}", self.model),
            id => format!("{id} ({}{place})", self.model),
        }
    }

    fn compare(&self, other: &VmDevice, same_board: bool, found: &mut Vec<String>) {
        let title = format!("device {}", self.title());
        if self.model != other.model {
            found.push(format!("{title}: this QEMU has {} instead", other.title()));
            return;
        }
        if same_board {
            changed(found, &format!("{title}: bus"), &self.bus, &other.bus);
            compare_values(found, &format!("{title}:"), &self.properties, &other.properties);
        }
    }
}

/// Names the values that differ among those that both have.
fn compare_values(
    found: &mut Vec<String>,
    what: &str,
    saved: &BTreeMap<String, Value>,
    here: &BTreeMap<String, Value>,
) {
    for (name, ours) in saved {
        if let Some(theirs) = here.get(name).filter(|theirs| *theirs != ours) {
            let (ours, theirs) = (shown(name, ours), shown(name, theirs));
            found.push(format!("{what} {name}: saved with {ours}, this QEMU has {theirs}"));
        }
    }
}

/// Adds a sentence if two values differ. What a QEMU could not tell is not compared.
fn changed<T: ToString + PartialEq>(found: &mut Vec<String>, what: &str, saved: &T, here: &T) {
    let (ours, theirs) = (saved.to_string(), here.to_string());
    if saved != here && !ours.is_empty() && !theirs.is_empty() {
        found.push(format!("{what}: saved with {ours}, this QEMU has {theirs}"));
    }
}

fn shown(name: &str, value: &Value) -> String {
    match (name, value) {
        // As lspci writes it.
        ("addr", Value::Number(n)) if n.as_u64().is_some_and(|n| n < 256) => {
            let addr = n.as_u64().unwrap_or(0);
            format!("{:02x}.{}", addr >> 3, addr & 7)
        }
        (_, Value::Bool(true)) => "on".to_owned(),
        (_, Value::Bool(false)) => "off".to_owned(),
        (_, Value::String(text)) => format!("{text:?}"),
        _ => value.to_string(),
    }
}

fn topology(vcpus: &[BTreeMap<String, u64>]) -> String {
    let place = |vcpu: &BTreeMap<String, u64>| {
        let ids: Vec<String> = vcpu.values().map(u64::to_string).collect();
        ids.join(":")
    };
    let names: Vec<&str> =
        vcpus.iter().take(1).flat_map(|v| v.keys()).map(String::as_str).collect();
    let places: Vec<String> = vcpus.iter().map(place).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    format!("{} {}", names.join(":"), listed(&places))
}

fn listed(names: &[&str]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let text = names[..names.len() - more].join(", ");
    if more == 0 { text } else { format!("{text} and {more} more") }
}

/// Bytes in MiB.
pub fn mib(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{bytes} bytes")
    }
}
