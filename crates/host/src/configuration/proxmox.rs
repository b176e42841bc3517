//! Proxmox's configuration of a VM (`/etc/pve/qemu-server/ID.conf`, `qm config ID`) -> the words of QEMU's command line that it makes of it
//! (its manual qm.conf(5); qemu-server, QemuServer.pm and CPUConfig.pm). What the checks do not ask is left out.

use std::collections::BTreeMap;

/// Keys of which two must be there, one of them of the second list or a device, so that other texts of `key: value` are none.
const KEYS: [&str; 25] = [
    "agent",
    "args",
    "balloon",
    "bios",
    "boot",
    "cores",
    "cpu",
    "cpulimit",
    "cpuunits",
    "hugepages",
    "kvm",
    "machine",
    "memory",
    "meta",
    "name",
    "numa",
    "onboot",
    "protection",
    "sockets",
    "startdate",
    "startup",
    "tablet",
    "tags",
    "vcpus",
    "vga",
];
const OWN: [&str; 8] =
    ["ostype", "scsihw", "bootdisk", "smbios1", "vmgenid", "efidisk0", "tpmstate0", "hostpci0"];
/// Keys of devices, with a number behind them.
const DEVICES: [&str; 5] = ["net", "scsi", "virtio", "sata", "ide"];
const MOST_LINES: usize = 4096;

type Keys<'t> = BTreeMap<&'t str, &'t str>;

/// The words of a text that is such a configuration.
pub(super) fn command(text: &str) -> Option<Vec<String>> {
    let keys = keys(text);
    let is_own = |key: &&&str| OWN.contains(key) || device(key).is_some();
    let own = keys.keys().filter(is_own).count();
    let all = own + keys.keys().filter(|key| KEYS.contains(key)).count();
    // Of another architecture it depends on the host whether KVM runs it.
    let is_x86 = keys.get("arch").is_none_or(|arch| *arch == "x86_64");
    (own > 0 && all >= 2 && is_x86).then(|| words(&keys))
}

/// Keys and values of the VM as it is; those of its snapshots stand behind a name in brackets.
fn keys(text: &str) -> Keys<'_> {
    let mut keys = BTreeMap::new();
    for line in text.lines().take(MOST_LINES).map(str::trim) {
        if line.starts_with('[') && line.ends_with(']') && !keys.is_empty() {
            break;
        }
        let Some((key, value)) = line.split_once(": ") else { continue };
        let is_key = !key.is_empty()
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
        if is_key {
            keys.entry(key).or_insert(value.trim());
        }
    }
    keys
}

/// `scsi` of `scsi0`.
fn device(key: &str) -> Option<&'static str> {
    DEVICES.into_iter().find(|name| {
        let number = key.strip_prefix(name);
        number.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// A value of `a,b=c`: that of `b`.
fn part<'t>(value: &'t str, name: &str) -> Option<&'t str> {
    value.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

fn is_set(value: Option<&&str>) -> bool {
    value.is_some_and(|value| matches!(*value, "1" | "on" | "yes" | "true"))
}

/// The version of Windows, by its `ostype`.
fn windows(ostype: &str) -> u32 {
    match ostype {
        "wxp" | "w2k3" | "w2k" => 5,
        "w2k8" | "wvista" => 6,
        other => other.strip_prefix("win").and_then(|number| number.parse().ok()).unwrap_or(0),
    }
}

fn words(keys: &Keys<'_>) -> Vec<String> {
    let get = |key: &str| keys.get(key).copied();
    let number = |key: &str| get(key).and_then(|value| value.parse::<u32>().ok());
    let mut words = vec!["/usr/bin/kvm".to_owned()];
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
    let name = get("name").unwrap_or("VM");
    option("-name", name.to_owned());
    let all = number("sockets").unwrap_or(1).saturating_mul(number("cores").unwrap_or(1));
    option("-smp", number("vcpus").unwrap_or(all).to_string());
    let version = windows(get("ostype").unwrap_or_default());
    let has_kvm = get("kvm").is_none() || is_set(keys.get("kvm"));
    option("-cpu", cpu(keys, version, has_kvm));
    // Whether Linux gets a HPET depends on QEMU's version (Timer.pm: none from 10.1 on), which is not there.
    let is_linux = matches!(get("ostype"), Some("l24" | "l26"));
    let default = (!is_linux).then_some("pc");
    let mut machine: Vec<String> =
        get("machine").or(default).map(|machine| format!("type={machine}")).into_iter().collect();
    if !has_kvm {
        machine.push("accel=tcg".to_owned());
    }
    if version >= 6 {
        machine.push("hpet=off".to_owned());
        option("-global", "kvm-pit.lost_tick_policy=discard".to_owned());
    }
    if version > 0 {
        let local = match (get("startdate"), get("localtime")) {
            (Some(_), _) => "",
            (None, None) => ",base=localtime",
            (None, _) if is_set(keys.get("localtime")) => ",base=localtime",
            _ => "",
        };
        option("-rtc", format!("driftfix=slew{local}"));
    }
    if !machine.is_empty() {
        option("-machine", machine.join(","));
    }
    let sev = get("amd-sev").map(|sev| part(sev, "type").unwrap_or(sev));
    match sev.and_then(|sev| sev.split(',').next()) {
        Some("snp") => option("-object", "sev-snp-guest,id=sev0".to_owned()),
        // Bit 2 of the policy asks for encrypted registers.
        Some("es") => option("-object", "sev-guest,id=sev0,policy=0x4".to_owned()),
        Some(_) => option("-object", "sev-guest,id=sev0,policy=0x0".to_owned()),
        None => {}
    }
    if get("intel-tdx").is_some() {
        option("-object", "tdx-guest,id=tdx0".to_owned());
    }
    if get("bios") == Some("ovmf") {
        option("-drive", "if=pflash,unit=0,format=raw,readonly=on,file=OVMF_CODE.fd".to_owned());
    }
    if let Some(pages) = get("hugepages") {
        let kib = if pages == "1024" { 1 << 20 } else { 2 << 10 };
        let path = format!("/run/hugepages/kvm/{kib}kB");
        option(
            "-object",
            format!("memory-backend-file,id=ram-node0,mem-path={path},share=on,prealloc=yes"),
        );
    }
    if let Some(source) = get("rng0").map(|rng| part(rng, "source").unwrap_or(rng)) {
        let file = source.split(',').next().unwrap_or_default();
        option("-object", format!("rng-random,filename={file},id=rng0"));
        option("-device", "virtio-rng-pci,rng=rng0".to_owned());
    }
    let vga = get("vga").unwrap_or_default();
    let has_tablet = match get("tablet") {
        Some(_) => is_set(keys.get("tablet")),
        None => !vga.contains("qxl") && !vga.contains("serial"),
    };
    if has_tablet {
        option("-device", "usb-tablet,id=tablet".to_owned());
    }
    if get("balloon") != Some("0") {
        option("-device", "virtio-balloon-pci,id=balloon0".to_owned());
    }
    devices(keys, &mut option);
    if let Some(args) = get("args") {
        words.extend(args.split_whitespace().map(str::to_owned));
    }
    words
}

/// The model, the processor's flags, and what Proxmox gives to Windows.
fn cpu(keys: &Keys<'_>, version: u32, has_kvm: bool) -> String {
    let of = keys.get("cpu").copied().unwrap_or_default();
    let first = of.split(',').next().unwrap_or_default();
    let model = part(of, "cputype").unwrap_or(first);
    let model = if model.is_empty() || model.contains('=') { "kvm64" } else { model };
    let mut cpu = vec![if has_kvm { model } else { "qemu64" }.to_owned()];
    let flags = part(of, "flags").unwrap_or_default();
    cpu.extend(flags.split(';').filter(|flag| !flag.is_empty()).map(str::to_owned));
    let is_old_uefi = keys.get("bios") == Some(&"ovmf") && version < 8;
    if has_kvm && version >= 6 && !is_old_uefi {
        let base = ["spinlocks=0x1fff", "vapic", "time", "reset", "vpindex", "runtime"];
        let later = ["relaxed", "synic", "stimer", "ipi"];
        let later = later.iter().filter(|_| version >= 7);
        cpu.extend(base.iter().chain(later).map(|word| format!("hv_{word}")));
    }
    cpu.join(",")
}

/// Network cards and disks.
fn devices(keys: &Keys<'_>, option: &mut dyn FnMut(&str, String)) {
    let scsi = keys.get("scsihw").copied().unwrap_or("lsi");
    let mut has_controller = false;
    for (key, value) in keys {
        let Some(kind) = device(key) else { continue };
        let thread = is_set(part(value, "iothread").as_ref());
        let with_thread = |model: &str, thread: bool| match thread {
            true => format!("{model},id={key},iothread=iothread-{key}"),
            false => format!("{model},id={key}"),
        };
        if thread && (kind == "virtio" || scsi == "virtio-scsi-single") {
            option("-object", format!("iothread,id=iothread-{key}"));
        }
        match kind {
            "net" => card(key, value, option),
            _ if part(value, "media") == Some("cdrom") => option("-device", "ide-cd".to_owned()),
            "virtio" => option("-device", with_thread("virtio-blk-pci", thread)),
            "scsi" if scsi == "virtio-scsi-single" => {
                option("-device", with_thread("virtio-scsi-pci", thread));
            }
            "scsi" if !has_controller => {
                has_controller = true;
                option("-device", format!("{scsi},id=scsihw0"));
            }
            "scsi" => {}
            _ => option("-device", format!("ide-hd,id={key}")),
        }
    }
}

/// `virtio=AA:BB:...,bridge=vmbr0,queues=4`.
fn card(key: &str, value: &str, option: &mut dyn FnMut(&str, String)) {
    let first = value.split(',').next().unwrap_or_default();
    let model = part(value, "model").unwrap_or_else(|| first.split('=').next().unwrap_or(first));
    let is_virtio = model == "virtio";
    let queues = part(value, "queues").filter(|_| is_virtio);
    let backend = match part(value, "bridge") {
        Some(_) => "type=tap",
        None => "type=user",
    };
    let vhost = if is_virtio && backend == "type=tap" { ",vhost=on" } else { "" };
    let several = queues.map(|queues| format!(",queues={queues}")).unwrap_or_default();
    option("-netdev", format!("{backend},id={key}{vhost}{several}"));
    let model = if is_virtio { "virtio-net-pci" } else { model };
    let mq = if queues.is_some() { ",mq=on" } else { "" };
    option("-device", format!("{model},netdev={key},id={key}{mq}"));
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn configurations_become_words_of_qemu() {
        let of = |text: &str| command(text).map(|words| words[1..].join(" "));
        assert_eq!(
            of("```\nagent: 1\ncores: 4\nsockets: 2\nmemory: 8192\nname: web\nnet0: virtio=AA:BB,bridge=vmbr0,queues=4\n\
                scsi0: local:disk,iothread=1,size=32G\nscsihw: virtio-scsi-single\n[snap]\ncores: 1\nide0: x\n"),
            Some("-name web -smp 8 -cpu kvm64 -machine type=pc -device usb-tablet,id=tablet -device virtio-balloon-pci,id=balloon0 \
                -netdev type=tap,id=net0,vhost=on,queues=4 -device virtio-net-pci,netdev=net0,id=net0,mq=on \
                -object iothread,id=iothread-scsi0 -device virtio-scsi-pci,id=scsi0,iothread=iothread-scsi0".to_owned())
        );
        assert_eq!(
            of(
                "bios: ovmf\ncpu: host,flags=+aes;-pcid\nide2: none,media=cdrom\nmemory: 1024\nnet0: e1000=AA,bridge=vmbr0\n\
                ostype: win7\nrng0: source=/dev/urandom\nsata0: local:disk\nscsi1: local:disk\ntablet: 0\nvcpus: 3\n"
            ),
            Some(
                "-name VM -smp 3 -cpu host,+aes,-pcid -global kvm-pit.lost_tick_policy=discard \
                -rtc driftfix=slew,base=localtime -machine type=pc,hpet=off \
                -drive if=pflash,unit=0,format=raw,readonly=on,file=OVMF_CODE.fd \
                -object rng-random,filename=/dev/urandom,id=rng0 -device virtio-rng-pci,rng=rng0 \
                -device virtio-balloon-pci,id=balloon0 -device ide-cd -netdev type=tap,id=net0 -device e1000,netdev=net0,id=net0 \
                -device ide-hd,id=sata0 -device lsi,id=scsihw0"
                    .to_owned()
            )
        );
        let windows = of("cores: 1\nmemory: 1024\nballoon: 0\nostype: win10\n").unwrap();
        assert!(
            windows.contains(",hv_time,") && windows.contains(",hv_stimer,hv_ipi "),
            "{windows}"
        );
        for text in [
            "cores: 4\ncpu: host\n",
            "memory: 4\nname: x\n",
            "arch: aarch64\nostype: l26\nmemory: 1\n",
            "cpu MHz : 2\nmemory: a\n",
            "",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
