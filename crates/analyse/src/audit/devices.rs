//! Devices of a VM, and the bounce buffer of a guest.

use vmtax_events::setting::{Fact, Settings, Unknown, VmProcess, files};

use super::view::AuditView;
use super::vmm::{is_off, is_on, is_qemu, object_type, options, property, said};
use super::{CheckFound, Fix, FoundSetting, ManualAdvice, QemuStart, SeenSetting};
use crate::remedy::RemedyId;

/// Devices of a command line whose type starts with one of these.
fn devices<'v>(vm: &'v VmProcess, starts: &[&str]) -> Vec<&'v str> {
    let of_type = |value: &&str| starts.iter().any(|start| object_type(value).starts_with(start));
    options(vm, "device").into_iter().filter(of_type).collect()
}

/// Why nothing can be said of a VM's devices.
fn unknown(vm: &VmProcess) -> Option<CheckFound> {
    match &vm.arguments.value {
        Err(_) => Some(CheckFound::unread(said(vm, String::new()))),
        Ok(_) if !is_qemu(vm) => Some(
            CheckFound::unknown(FoundSetting::DevicesOfOtherVmm)
                .seen(said(vm, SeenSetting::NotQemu)),
        ),
        Ok(_) => None,
    }
}

/// Models whose registers are exits to the VMM: disks and network cards of real hardware, and a tablet that the guest's UHCI
/// controller polls. Tried on an emulated host: IDE 29 exits per read, virtio-blk 3.9; e1000 14.7 per packet, virtio-net 5.3.
const EMULATED: [&str; 8] =
    ["ide-", "e1000", "rtl8139", "pcnet", "ne2k", "lsi", "am53c974", "usb-tablet"];

/// Emulated models that QEMU's short options ask for (QEMU qemu-options.hx: `-hda`, `-net nic`, `-nic`).
fn short(vm: &VmProcess) -> Vec<String> {
    let disks = ["hda", "hdb", "hdc", "hdd"].into_iter().filter(|name| {
        let files = options(vm, name);
        files.iter().any(|file| !file.to_lowercase().ends_with(".iso"))
    });
    let cards = options(vm, "net").into_iter().chain(options(vm, "nic"));
    let models = cards.filter_map(|value| property(value, "model"));
    let is_slow = |model: &&str| EMULATED.iter().any(|start| model.starts_with(start));
    disks.map(|_| "ide-hd").chain(models.filter(is_slow)).map(str::to_owned).collect()
}

pub(super) fn emulated(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if let Some(found) = unknown(vm) {
        return found;
    }
    let is_cd =
        |value: &str| object_type(value) == "ide-cd" || property(value, "media") == Some("cdrom");
    let mut types: Vec<String> = devices(vm, &EMULATED)
        .into_iter()
        .filter(|value| !is_cd(value))
        .map(|value| object_type(value).to_owned())
        .collect();
    // A drive without an interface is an IDE disk.
    let is_ide = |value: &&str| {
        !is_cd(value) && property(value, "if").is_none_or(|interface| interface == "ide")
    };
    types.extend(options(vm, "drive").into_iter().filter(is_ide).map(|_| "ide-hd".to_owned()));
    types.extend(short(vm));
    types.sort();
    types.dedup();
    if types.is_empty() {
        return CheckFound::ok(FoundSetting::NoEmulatedDevices);
    }
    let seen = SeenSetting::Devices { option: "emulated", without: false, types };
    CheckFound::costs(FoundSetting::EmulatedDevices)
        .seen(said(vm, seen))
        .fix(Fix::Advice(ManualAdvice::UseVirtio))
}

/// Without KVM QEMU translates each instruction (QEMU docs/system/introduction.rst, "Accelerators"; TCG is the default).
pub(super) fn acceleration(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if let Some(found) = unknown(vm) {
        return found;
    }
    let words = vm.arguments.value.as_deref().unwrap_or_default();
    let name = words.first().map_or("", |word| word.rsplit('/').next().unwrap_or_default());
    let machines = options(vm, "machine").into_iter().chain(options(vm, "M"));
    let of_machines = machines.filter_map(|value| property(value, "accel"));
    let of_options = options(vm, "accel").into_iter().map(object_type);
    let asked: Vec<&str> = of_machines.chain(of_options).collect();
    let is_asked = |word: &str| asked.iter().any(|value| value.split(':').any(|one| one == word));
    // These programs have KVM as their default.
    let by_default = matches!(name, "kvm" | "qemu-kvm")
        || words.iter().any(|word| word.trim_start_matches('-') == "enable-kvm");
    if is_asked("kvm") || by_default && !is_asked("tcg") {
        return CheckFound::ok(FoundSetting::Accelerated);
    }
    // QEMU refuses this model without KVM (QEMU target/i386/cpu.c: "requires KVM or HVF").
    if asked.is_empty()
        && options(vm, "cpu").iter().any(|value| value.split(',').next() == Some("host"))
    {
        return CheckFound::ok(FoundSetting::Accelerated).seen(said(vm, "-cpu host".to_owned()));
    }
    // A process that has a VM of KVM open has it, whatever its command line says.
    if vm.pid != 0 {
        return CheckFound::ok(FoundSetting::Accelerated);
    }
    if asked.is_empty() && vm.is_part() {
        return CheckFound::unknown(FoundSetting::AccelerationNotSaid);
    }
    let seen = if asked.is_empty() {
        SeenSetting::Without("-accel kvm")
    } else {
        SeenSetting::Text(format!("accel={}", asked.join(":")))
    };
    CheckFound::costs(FoundSetting::NotAccelerated).seen(said(vm, seen)).fix(Fix::Vmm(
        QemuStart::With("-accel kvm (libvirt: <domain type='kvm'>), which needs /dev/kvm"),
    ))
}

/// Cargo's folder of builds without optimization, in which the VMM does its devices' work many times slower.
const DEBUG_BUILD: &str = "target/debug/";

pub(super) fn build(_: &AuditView, vm: &VmProcess) -> CheckFound {
    let Ok(words) = &vm.arguments.value else {
        return CheckFound::unread(said(vm, String::new()));
    };
    let program = words.first().map_or("", String::as_str);
    let at = |folder: &str| program.starts_with(folder) || program.contains(&format!("/{folder}"));
    if at(DEBUG_BUILD) {
        return CheckFound::costs(FoundSetting::DebugBuild)
            .seen(said(vm, program.to_owned()))
            .fix(Fix::Advice(ManualAdvice::BuildForRelease));
    }
    CheckFound::ok(FoundSetting::NoDebugBuild)
}

/// Formats that QEMU reads for other hypervisors (QEMU docs/system/images.rst): their drivers are for conversion.
const FOREIGN: [&str; 6] = ["vmdk", "vdi", "vpc", "vhdx", "parallels", "qed"];

pub(super) fn disk_format(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if let Some(found) = unknown(vm) {
        return found;
    }
    let drives = options(vm, "drive").into_iter().chain(options(vm, "blockdev"));
    let format = |value| property(value, "format").or(property(value, "driver"));
    let mut foreign: Vec<String> = drives
        .filter_map(format)
        .filter(|format| FOREIGN.contains(format))
        .map(str::to_owned)
        .collect();
    foreign.dedup();
    if foreign.is_empty() {
        return CheckFound::ok(FoundSetting::OwnDiskFormats);
    }
    let seen = SeenSetting::Devices { option: "format", without: false, types: foreign };
    CheckFound::costs(FoundSetting::ForeignDiskFormat)
        .seen(said(vm, seen))
        .fix(Fix::Advice(ManualAdvice::ConvertDisk))
}

/// QEMU qemu-options.hx, `-drive cache=`: all but none and directsync use the host's page cache, and writethrough and directsync report a write when it is on
/// the storage. `-blockdev cache.direct=` is the same.
pub(super) fn disk_cache(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if let Some(found) = unknown(vm) {
        return found;
    }
    let is_disk = |value: &&str| property(value, "media") != Some("cdrom");
    let direct = |value: &str| {
        property(value, "cache.direct").map(|word| if is_on(word) { "none" } else { "writeback" })
    };
    let drives = options(vm, "drive").into_iter().filter(is_disk);
    let modes: Vec<String> = drives
        .filter_map(|value| property(value, "cache").or_else(|| direct(value)))
        .chain(options(vm, "blockdev").into_iter().filter_map(direct))
        .map(str::to_owned)
        .collect();
    let seen = |these: &[&str]| {
        let mut types: Vec<String> =
            modes.iter().filter(|mode| these.contains(&mode.as_str())).cloned().collect();
        types.dedup();
        (!types.is_empty())
            .then(|| said(vm, SeenSetting::Devices { option: "cache", without: false, types }))
    };
    if let Some(seen) = seen(&["writethrough", "directsync"]) {
        return CheckFound::costs(FoundSetting::DiskCacheWaits).seen(seen).fix(Fix::Vmm(
            QemuStart::With(
                "-drive ...,cache=none (libvirt: <driver cache='none'/>), if the guest flushes what must last, as Linux and Windows do",
            ),
        ));
    }
    if let Some(seen) = seen(&["writeback", "unsafe"]) {
        return CheckFound::unknown(FoundSetting::DiskCacheOfHost).seen(seen);
    }
    match seen(&["none"]) {
        Some(seen) => CheckFound::ok(FoundSetting::DiskCacheDirect).seen(seen),
        None => CheckFound::not_applicable(FoundSetting::NoDiskCache),
    }
}

pub(super) fn vhost(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if let Some(found) = unknown(vm) {
        return found;
    }
    // QEMU qemu-options.hx: `-net nic,model=virtio -net tap` and `-nic tap,model=virtio-net-pci`.
    let short: Vec<&str> = options(vm, "net").into_iter().chain(options(vm, "nic")).collect();
    let is_virtio =
        |value: &&&str| property(value, "model").is_some_and(|model| model.starts_with("virtio"));
    let is_short = short.iter().any(|value| is_virtio(&value));
    if devices(vm, &["virtio-net"]).is_empty() && !is_short {
        return CheckFound::not_applicable(FoundSetting::NoVirtioNet);
    }
    // A configuration runs in no process: what it asks for is all that is known.
    let open = match vm.pid {
        0 if vm.vhost_net => said(vm, "vhost=on".to_owned()),
        0 => said(vm, SeenSetting::Without("vhost=on")),
        pid => Fact::new(format!("/proc/{pid}/fd"), Ok(SeenSetting::VhostNet(vm.vhost_net))),
    };
    let mut backends = options(vm, "netdev");
    let option = if backends.is_empty() && is_short {
        backends = short.into_iter().filter(|value| object_type(value) != "nic").collect();
        "-net"
    } else {
        "-netdev"
    };
    let types: Vec<&str> = backends
        .iter()
        .map(|value| property(value, "type").unwrap_or_else(|| object_type(value)))
        .collect();
    if vm.vhost_net || (!types.is_empty() && types.iter().all(|word| word.starts_with("vhost"))) {
        return CheckFound::ok(FoundSetting::NetworkOutsideVmm).seen(open);
    }
    // QEMU serves the queues itself, with a warning, if it cannot open the device.
    let asks = |value: &&str| property(value, "vhost").is_some_and(is_on);
    if !backends.is_empty() && backends.iter().all(asks) {
        return CheckFound::costs(FoundSetting::VhostNotOpened)
            .seen(open)
            .seen(said(vm, "vhost=on".to_owned()))
            .fix(Fix::Advice(ManualAdvice::OpenVhost));
    }
    CheckFound::costs(FoundSetting::NetworkInVmm)
        .seen(open)
        .seen(said(vm, format!("{option} {}", types.join(", "))))
        .remedy(RemedyId::Vhost)
}

/// Backends that can have several pairs of queues (QEMU qapi/net.json: `queues`).
const SEVERAL: [&str; 3] = ["tap", "vhost-user", "vhost-vdpa"];

/// Pairs of queues that a network backend offers: `queues=`, or a descriptor for each (QEMU qemu-options.hx, `-netdev tap`).
fn queue_pairs(backend: &str) -> usize {
    let count = property(backend, "queues").and_then(|number| number.parse().ok());
    let descriptors = ["fds", "vhostfds"].into_iter().filter_map(|name| property(backend, name));
    let given = descriptors.map(|list| list.split(':').count()).max();
    count.or(given).unwrap_or(1)
}

/// Packets of a card with one pair of queues are handled by one vCPU and one thread of the host (Linux Documentation/networking/scaling.rst).
pub(super) fn queue_pair(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if let Some(found) = unknown(vm) {
        return found;
    }
    let cards = devices(vm, &["virtio-net"]);
    if cards.is_empty() {
        return CheckFound::not_applicable(FoundSetting::NoVirtioNet);
    }
    let backends = options(vm, "netdev");
    let of_card = |card: &str| {
        let id = property(card, "netdev")?;
        backends.iter().find(|backend| property(backend, "id") == Some(id)).copied()
    };
    let known: Vec<(&str, &str)> =
        cards.iter().filter_map(|card| Some((*card, of_card(card)?))).collect();
    if known.is_empty() {
        return CheckFound::unknown(FoundSetting::QueuePairsNotSaid);
    }
    let has_several = |backend: &str| {
        SEVERAL.contains(&property(backend, "type").unwrap_or_else(|| object_type(backend)))
    };
    let mut able = known.iter().filter(|(_, backend)| has_several(backend)).peekable();
    if able.peek().is_none() {
        return CheckFound::not_applicable(FoundSetting::QueuePairsImpossible);
    }
    let mut single = able.filter(|(_, backend)| queue_pairs(backend) == 1).peekable();
    if single.peek().is_none() {
        return CheckFound::ok(FoundSetting::SeveralQueuePairs)
            .seen(said(vm, "queues=...".to_owned()));
    }
    let asks = single.find(|(card, _)| property(card, "mq").is_some_and(is_on));
    let without = SeenSetting::Without("queues=");
    if asks.is_some() {
        return CheckFound::costs(FoundSetting::QueuePairsLost)
            .seen(said(vm, "mq=on".to_owned()))
            .seen(said(vm, without))
            .fix(Fix::Vmm(QemuStart::With(
                "-netdev tap,...,queues=N -device virtio-net-pci,...,mq=on,vectors=2N+2",
            )));
    }
    if vm.vcpus > 1 {
        return CheckFound::unknown(FoundSetting::OneQueuePair).seen(said(vm, without));
    }
    CheckFound::ok(FoundSetting::OneVcpuOneQueuePair)
}

/// A host's /dev/random waits for entropy before Linux 5.6 (commit 30c08efec888), and a guest that boots waits with it. QEMU's virtio-rng reads it by
/// default before version 4.1 (commit a2230bd778d8), and where it is told to.
pub(super) fn random(view: &AuditView, vm: &VmProcess) -> CheckFound {
    /// The first kernel whose /dev/random does not wait once it is initialized.
    const NEVER_WAITS: (u32, u32) = (5, 6);
    if let Some(found) = unknown(vm) {
        return found;
    }
    if devices(vm, &["virtio-rng"]).is_empty() {
        return CheckFound::not_applicable(FoundSetting::NoVirtioRng);
    }
    let sources: Vec<&str> = options(vm, "object")
        .into_iter()
        .filter(|object| object_type(object).starts_with("rng-"))
        .collect();
    let file = |source: &str| property(source, "filename").map(str::to_owned);
    let is_random = |source: &&str| file(source).is_some_and(|file| file == "/dev/random");
    let asks = sources.iter().any(is_random);
    // An rng-random without a file and a device without a source have QEMU's default.
    let by_default = |source: &&str| object_type(source) == "rng-random" && file(source).is_none();
    if !asks && !sources.is_empty() && !sources.iter().any(by_default) {
        return CheckFound::ok(FoundSetting::RandomNeverWaits);
    }
    let seen = if asks {
        said(vm, SeenSetting::Text("filename=/dev/random".to_owned()))
    } else {
        said(vm, SeenSetting::Without("filename="))
    };
    match (view.kernel(), asks) {
        (Ok(kernel), _) if kernel >= NEVER_WAITS => {
            CheckFound::ok(FoundSetting::RandomNeverWaits).seen(view.host.fact(files::RELEASE))
        }
        (Ok(_), true) => CheckFound::costs(FoundSetting::RandomWaits)
            .seen(seen)
            .seen(view.host.fact(files::RELEASE))
            .fix(Fix::Vmm(QemuStart::With(
                "-object rng-random,id=rng0,filename=/dev/urandom -device virtio-rng-pci,rng=rng0",
            ))),
        _ => CheckFound::unknown(FoundSetting::RandomMayWait).seen(seen),
    }
}

pub(super) fn ioeventfd(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if let Some(found) = unknown(vm) {
        return found;
    }
    let virtio = devices(vm, &["virtio-"]);
    if virtio.is_empty() {
        return CheckFound::not_applicable(FoundSetting::NoVirtio);
    }
    let off: Vec<String> = virtio
        .iter()
        .filter(|value| property(value, "ioeventfd").is_some_and(is_off))
        .map(|value| object_type(value).to_owned())
        .collect();
    if off.is_empty() {
        return CheckFound::ok(FoundSetting::Ioeventfd)
            .seen(said(vm, SeenSetting::Without("ioeventfd=off")));
    }
    CheckFound::costs(FoundSetting::NoIoeventfd)
        .seen(said(
            vm,
            SeenSetting::Devices { option: "ioeventfd=off", without: false, types: off },
        ))
        .remedy(RemedyId::Ioeventfd)
}

pub(super) fn iothread(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if let Some(found) = unknown(vm) {
        return found;
    }
    let disks = devices(vm, &["virtio-blk", "virtio-scsi"]);
    if disks.is_empty() {
        return CheckFound::not_applicable(FoundSetting::NoVirtioDisk);
    }
    let has = |value: &&&str| {
        property(value, "iothread").is_some() || property(value, "iothread-vq-mapping").is_some()
    };
    let without = disks.iter().filter(|value| !has(value));
    let types: Vec<String> = without.map(|value| object_type(value).to_owned()).collect();
    if types.is_empty() {
        return CheckFound::ok(FoundSetting::DisksWithThread)
            .seen(said(vm, "iothread=...".to_owned()));
    }
    CheckFound::costs(FoundSetting::DisksWithoutThread)
        .seen(said(vm, SeenSetting::Devices { option: "iothread", without: true, types }))
        .fix(Fix::Vmm(QemuStart::With(
            "-object iothread,id=io0 -device virtio-blk-pci,...,iothread=io0",
        )))
}

pub(super) fn swiotlb(_: &AuditView, guest: &Settings) -> CheckFound {
    let (slots, high) = (guest.fact(files::SWIOTLB_SIZE), guest.fact(files::SWIOTLB_HIGH));
    match (&slots.value, &high.value) {
        // If debugfs is readable, the folder exists if there is a buffer.
        (Err(Unknown::Missing), _) => {
            return CheckFound::unknown(FoundSetting::NoBounceBufferSeen).seen(slots);
        }
        (Err(_), _) => return CheckFound::unread(slots),
        (_, Err(Unknown::Missing)) => {
            return CheckFound::unknown(FoundSetting::BouncePeakUnknown).seen(slots).seen(high);
        }
        (_, Err(_)) => return CheckFound::unread(high),
        _ => {}
    }
    let number =
        |fact: &Fact<String>| fact.value.as_deref().ok().and_then(|text| text.parse::<u64>().ok());
    // The kernel's count of slots in use can fall below 0, which it prints as a huge number.
    let (Some(size), Some(most)) =
        (number(&slots), number(&high).filter(|n| *n <= i64::MAX as u64))
    else {
        return CheckFound::unknown(FoundSetting::BounceCountersImpossible).seen(slots).seen(high);
    };
    let found = if size == 0 {
        CheckFound::ok(FoundSetting::NoBounceBuffer)
    } else if most >= size {
        CheckFound::costs(FoundSetting::BounceBufferFull)
            .fix(Fix::Kernel(format!("swiotlb={}", size.saturating_mul(2))))
    } else {
        CheckFound::ok(FoundSetting::BounceBufferUsed { most, size })
    };
    found.seen(slots).seen(high)
}
