//! Devices of a VM, and the bounce buffer of a guest.

use vmtax_events::setting::{Fact, Settings, Unknown, VmProcess, files};

use super::view::{View, percent};
use super::vmm::{is_off, is_on, is_qemu, object_type, options, property, said};
use super::{Fix, Found};

/// Devices of a command line whose type starts with one of these.
fn devices<'v>(vm: &'v VmProcess, starts: &[&str]) -> Vec<&'v str> {
    let of_type = |value: &&str| starts.iter().any(|start| object_type(value).starts_with(start));
    options(vm, "device").into_iter().filter(of_type).collect()
}

/// Why nothing can be said of a VM's devices.
fn unknown(vm: &VmProcess) -> Option<Found> {
    match &vm.arguments.value {
        Err(_) => Some(Found::unread(said(vm, ""))),
        Ok(_) if !is_qemu(vm) => Some(
            Found::unknown("devices are read from QEMU's command line, and this is another VMM")
                .seen(said(vm, "not QEMU")),
        ),
        Ok(_) => None,
    }
}

pub(super) fn vhost(_: &View, vm: &VmProcess) -> Found {
    if let Some(found) = unknown(vm) {
        return found;
    }
    if devices(vm, &["virtio-net"]).is_empty() {
        return Found::not_applicable("the VM has no virtio-net device");
    }
    let open = Fact::new(
        format!("/proc/{}/fd", vm.pid),
        Ok(format!("/dev/vhost-net {}", if vm.vhost_net { "open" } else { "not open" })),
    );
    let backends = options(vm, "netdev");
    let types: Vec<&str> = backends
        .iter()
        .map(|value| property(value, "type").unwrap_or_else(|| object_type(value)))
        .collect();
    if vm.vhost_net || (!types.is_empty() && types.iter().all(|word| word.starts_with("vhost"))) {
        return Found::ok("the network's data path is not in the VMM").seen(open);
    }
    // QEMU serves the queues itself, with a warning, if it cannot open the device.
    let asks = |value: &&str| property(value, "vhost").is_some_and(is_on);
    if !backends.is_empty() && backends.iter().all(asks) {
        let what = "vhost=on, and yet the VMM moves every packet of the network: QEMU could not open /dev/vhost-net";
        return Found::costs(what)
            .seen(open)
            .seen(said(vm, "vhost=on"))
            .fix(Fix::Advice("modprobe vhost_net, and let the VMM open /dev/vhost-net"));
    }
    Found::costs("the VMM moves every packet of the network: each notification is an exit to it")
        .seen(open)
        .seen(said(vm, format!("-netdev {}", types.join(", "))))
        .remedy("vhost")
}

pub(super) fn ioeventfd(_: &View, vm: &VmProcess) -> Found {
    if let Some(found) = unknown(vm) {
        return found;
    }
    let virtio = devices(vm, &["virtio-"]);
    if virtio.is_empty() {
        return Found::not_applicable("the VM has no virtio device");
    }
    let off: Vec<&str> = virtio
        .iter()
        .filter(|value| property(value, "ioeventfd").is_some_and(is_off))
        .map(|value| object_type(value))
        .collect();
    if off.is_empty() {
        return Found::ok("notifications of virtio devices wake a thread (the default)")
            .seen(said(vm, "no ioeventfd=off"));
    }
    Found::costs("every notification of the device waits for the VMM in the vCPU's thread")
        .seen(said(vm, format!("ioeventfd=off: {}", off.join(", "))))
        .remedy("ioeventfd")
}

pub(super) fn iothread(_: &View, vm: &VmProcess) -> Found {
    if let Some(found) = unknown(vm) {
        return found;
    }
    let disks = devices(vm, &["virtio-blk", "virtio-scsi"]);
    if disks.is_empty() {
        return Found::not_applicable("the VM has no virtio disk");
    }
    let has = |value: &&&str| {
        property(value, "iothread").is_some() || property(value, "iothread-vq-mapping").is_some()
    };
    let without: Vec<&str> =
        disks.iter().filter(|value| !has(value)).map(|value| object_type(value)).collect();
    if without.is_empty() {
        return Found::ok("disks have their own thread").seen(said(vm, "iothread=..."));
    }
    Found::costs("disks share the VMM's main thread with everything else")
        .seen(said(vm, format!("no iothread: {}", without.join(", "))))
        .fix(Fix::Vmm("-object iothread,id=io0 -device virtio-blk-pci,...,iothread=io0"))
}

pub(super) fn swiotlb(_: &View, guest: &Settings) -> Found {
    let (slots, high) = (guest.fact(files::SWIOTLB_SIZE), guest.fact(files::SWIOTLB_HIGH));
    match (&slots.value, &high.value) {
        // If debugfs is readable, the folder exists if there is a buffer.
        (Err(Unknown::Missing), _) => {
            return Found::unknown("the guest has no bounce buffer, or its debugfs is not mounted")
                .seen(slots);
        }
        (Err(_), _) => return Found::unread(slots),
        (_, Err(Unknown::Missing)) => {
            return Found::unknown("peak use is unknown: the guest's kernel is older than 6.4")
                .seen(slots)
                .seen(high);
        }
        (_, Err(_)) => return Found::unread(high),
        _ => {}
    }
    let number =
        |fact: &Fact<String>| fact.value.as_deref().ok().and_then(|text| text.parse::<u64>().ok());
    // The kernel's count of slots in use can fall below 0, which it prints as a huge number.
    let (Some(size), Some(most)) =
        (number(&slots), number(&high).filter(|n| *n <= i64::MAX as u64))
    else {
        return Found::unknown("the counters have impossible values").seen(slots).seen(high);
    };
    let found = if size == 0 {
        Found::ok("the guest has no bounce buffer")
    } else if most >= size {
        Found::costs("the bounce buffer was full: I/O waited or failed")
            .fix(Fix::Kernel(format!("swiotlb={}", size.saturating_mul(2))))
    } else {
        Found::ok(format!("at most {} of the bounce buffer was in use", percent(most, size)))
    };
    found.seen(slots).seen(high)
}
