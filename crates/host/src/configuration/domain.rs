//! libvirt's XML of a domain, or a part of it -> QEMU's words, and where its threads are pinned.

use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;
use vmtax_events::setting::{PART, Thread};

/// Elements of which one makes a text a domain's.
const MARKS: [&str; 20] = [
    "<domain",
    "<cpu ",
    "<memory",
    "<currentMemory",
    "<memballoon",
    "<numatune",
    "<clock",
    "<hyperv",
    "<timer ",
    "<cputune",
    "<vcpupin",
    "<disk ",
    "<interface ",
    "<features>",
    "<controller ",
    "<input ",
    "<relaxed ",
    "<stimer ",
    "<driver ",
    "<launchSecurity",
];
/// Elements of <hyperv>, which may be posted without it.
const ENLIGHTENMENTS: [&str; 14] = [
    "relaxed",
    "vapic",
    "spinlocks",
    "vpindex",
    "runtime",
    "synic",
    "stimer",
    "frequencies",
    "reenlightenment",
    "tlbflush",
    "ipi",
    "evmcs",
    "avic",
    "direct",
];
/// Of them, those that Windows needs for its timers.
const OF_TIMERS: [&str; 3] = ["hv-vpindex", "hv-synic", "hv-stimer"];
/// Pins of vCPUs that are kept.
const PINS: usize = 4096;

pub(super) fn is_domain(text: &str) -> bool {
    let starts = text.trim_start().starts_with('<');
    starts && MARKS.iter().any(|mark| text.contains(mark))
}

/// What is gathered of a domain.
#[derive(Default)]
struct Domain {
    machine: Vec<String>,
    cpu: Vec<String>,
    model: Option<String>,
    words: Vec<String>,
    pins: Vec<Thread>,
    /// The device that is open: its attributes come one by one.
    device: Option<DomainDevice>,
    /// Elements that are open, outermost first.
    path: Vec<String>,
    text: String,
    /// Elements that were there, of those whose absence says something.
    has: Has,
}

/// How much of an element is there.
#[derive(Default, PartialEq)]
enum Whole {
    #[default]
    No,
    Open,
    Yes,
}

#[derive(Default)]
struct Has {
    domain: Option<String>,
    several: bool,
    /// The domain's end: it was not cut.
    end: bool,
    hyperv: bool,
    /// `<hyperv>`, from its beginning to its end, which names each enlightenment that the VM has.
    whole_hyperv: Whole,
    clock: bool,
    /// Of the VM: `x86_64`, `aarch64`.
    arch: Option<String>,
}

#[derive(Default)]
struct DomainDevice {
    kind: String,
    medium: String,
    backend: String,
    bus: String,
    model: String,
    options: Vec<String>,
    cache: Option<String>,
    vhost: bool,
}

/// The words of a domain, and its pinned threads if it pins any.
pub(super) fn read(text: &str) -> Result<(Vec<String>, Option<Vec<Thread>>), String> {
    let mut reader = Reader::from_str(text);
    // A part of a domain may be cut anywhere.
    reader.config_mut().check_end_names = false;
    reader.config_mut().allow_unmatched_ends = true;
    let mut domain = Domain::default();
    loop {
        match reader.read_event() {
            Ok(Event::Start(element)) => {
                domain.begin(&element);
                domain.path.push(local(&element));
                domain.text.clear();
            }
            Ok(Event::Empty(element)) => {
                domain.begin(&element);
                domain.end(&local(&element));
            }
            Ok(Event::End(element)) => {
                let name = String::from_utf8_lossy(element.local_name().as_ref()).into_owned();
                domain.path.pop();
                domain.has.end |= name == "domain" && domain.has.domain.is_some();
                domain.end(&name);
            }
            Ok(Event::Text(piece)) => domain.text.push_str(&String::from_utf8_lossy(&piece)),
            Ok(Event::Eof) => break,
            Ok(_) => {}
            Err(problem) => {
                let at = reader.error_position();
                return Err(format!("is no XML at byte {at}: {problem}"));
            }
        }
    }
    match domain.has.domain.as_deref() {
        _ if domain.has.several => Err("has several VMs; give one at a time".to_owned()),
        Some(kind) if !["kvm", "qemu", ""].contains(&kind) => {
            Err(format!("is a domain of type {kind:?}, which KVM does not run"))
        }
        _ => Ok(domain.finish()),
    }
}

/// A digit of C's numbers.
fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_hexdigit() || byte == b'x'
}

fn local(element: &BytesStart<'_>) -> String {
    String::from_utf8_lossy(element.local_name().as_ref()).into_owned()
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let attribute = element.try_get_attribute(name).ok()??;
    Some(attribute.normalized_value(XmlVersion::Implicit1_0).ok()?.into_owned())
}

impl Domain {
    fn is_in(&self, name: &str) -> bool {
        self.path.iter().any(|open| open == name)
    }

    fn option(&mut self, option: &str, value: impl Into<String>) {
        self.words.push(option.to_owned());
        self.words.push(value.into());
    }

    fn begin(&mut self, element: &BytesStart<'_>) {
        let name = local(element);
        let of = |wanted: &str| attribute(element, wanted).unwrap_or_default();
        if self.is_in("hyperv") || self.path.is_empty() && ENLIGHTENMENTS.contains(&name.as_str()) {
            self.has.hyperv = true;
            self.enlightenment(&name, element);
            return;
        }
        match name.as_str() {
            "cpu" if !self.is_in("cpu") => {
                self.model = match of("mode").as_str() {
                    "host-passthrough" => Some("host".to_owned()),
                    "maximum" => Some("max".to_owned()),
                    "host-model" => Some("host-model".to_owned()),
                    _ => None,
                };
            }
            "feature" if self.is_in("cpu") => {
                let is_on = matches!(of("policy").as_str(), "" | "require" | "force");
                self.cpu.push(format!("{}={}", of("name"), if is_on { "on" } else { "off" }));
            }
            "domain" => {
                // Those of `virsh capabilities` are within others.
                self.has.several |= self.has.domain.is_some() && self.path.is_empty();
                self.has.domain = Some(of("type"));
            }
            "type" if self.is_in("os") => self.has.arch = Some(of("arch")),
            "hyperv" => {
                self.has.hyperv = true;
                match of("mode").as_str() {
                    "passthrough" => self.cpu.push("hv-passthrough=on".to_owned()),
                    _ => self.has.whole_hyperv = Whole::Open,
                }
            }
            "timer" if of("name") == "rtc" => {
                if of("track") == "guest" {
                    self.option("-rtc", "clock=vm");
                }
                if of("tickpolicy") == "catchup" {
                    self.option("-rtc", "driftfix=slew");
                }
            }
            "timer" => self.timer(&of("name"), &of("present"), &of("tickpolicy")),
            "clock" => {
                self.has.clock = true;
                if of("offset") == "localtime" {
                    self.option("-rtc", "base=localtime");
                }
            }
            "ioapic" if of("driver") == "qemu" => {
                self.machine.push("kernel-irqchip=split".to_owned())
            }
            "iommu" => self.option("-device", format!("{}-iommu", of("model"))),
            "launchSecurity" => {
                // formatdomain, "Launch Security".
                match of("type").as_str() {
                    "tdx" => self.option("-object", "tdx-guest"),
                    "sev-snp" => self.option("-object", "sev-snp-guest"),
                    "sev" => self.option("-object", "sev-guest"),
                    _ => {}
                }
            }
            "vcpupin" if self.pins.len() < PINS => self.pins.push(Thread {
                tid: 0,
                name: format!("CPU {}/KVM", of("vcpu")),
                allowed: of("cpuset"),
            }),
            "iothreadpin" if self.pins.len() < PINS => self.pins.push(Thread {
                tid: 0,
                name: format!("IO iothread{}", of("iothread")),
                allowed: of("cpuset"),
            }),
            // Of <qemu:commandline>.
            "arg" => self.words.push(of("value")),
            "disk" | "interface" | "controller" | "input" | "video" => {
                let medium = if name == "disk" { of("device") } else { of("type") };
                let (bus, model) = (of("bus"), of("model"));
                self.device = Some(DomainDevice {
                    kind: name,
                    medium,
                    bus,
                    model,
                    ..DomainDevice::default()
                });
            }
            "target" | "model" | "driver" | "source" => self.part(&name, element),
            _ => {}
        }
    }

    /// `<vapic state='on'/>` is hv-vapic.
    fn enlightenment(&mut self, name: &str, element: &BytesStart<'_>) {
        let state = attribute(element, "state").unwrap_or_default();
        let name = match name {
            "direct" if self.path.last().is_some_and(|open| open == "stimer") => {
                "stimer-direct".to_owned()
            }
            other => other.replace('_', "-"),
        };
        self.cpu.push(format!("hv-{name}={}", if state == "off" { "off" } else { "on" }));
    }

    fn timer(&mut self, name: &str, present: &str, policy: &str) {
        match (name, present, policy) {
            ("hypervclock", "yes", _) => self.cpu.push("hv-time=on".to_owned()),
            ("kvmclock", "no", _) => self.cpu.push("kvmclock=off".to_owned()),
            ("hpet", "no", _) => self.machine.push("hpet=off".to_owned()),
            ("hpet", "yes", _) => self.machine.push("hpet=on".to_owned()),
            ("pit", "no", _) => self.machine.push("pit=off".to_owned()),
            // libvirt's default is QEMU's: reinjection.
            ("pit", _, "delay") => self.option("-global", "kvm-pit.lost_tick_policy=delay"),
            ("pit", _, "discard") => self.option("-global", "kvm-pit.lost_tick_policy=discard"),
            _ => {}
        }
    }

    /// A part of the device that is open.
    fn part(&mut self, name: &str, element: &BytesStart<'_>) {
        let of = |wanted: &str| attribute(element, wanted).unwrap_or_default();
        let Some(device) = &mut self.device else { return };
        match name {
            "target" => device.bus = of("bus"),
            "model" => device.model = of("type"),
            "source" => device.backend = of("bridge") + &of("network"),
            _ => {
                device.vhost = of("name") != "qemu";
                // libvirt's cache modes have QEMU's names (formatdomain, "Hard drives").
                let cache = of("cache");
                if device.kind == "disk" && !cache.is_empty() && cache != "default" {
                    device.cache = Some(cache);
                }
                for option in ["ioeventfd", "iothread"] {
                    let value = of(option);
                    if !value.is_empty() {
                        device.options.push(format!("{option}={value}"));
                    }
                }
            }
        }
    }

    fn end(&mut self, name: &str) {
        let text = self.text.trim().to_owned();
        match name {
            "name" if self.path.last().is_some_and(|open| open == "domain") => {
                self.option("-name", format!("guest={}", text.replace(',', ",,")));
            }
            "vcpu" if !text.is_empty() => self.option("-smp", text),
            "model" if self.path.last().is_some_and(|open| open == "cpu") && !text.is_empty() => {
                self.model = Some(text);
            }
            // Without bit 2 of it SEV has no encrypted registers.
            "policy" if self.is_in("launchSecurity") && text.bytes().all(is_of_number) => {
                if let Some(guest) = self.words.last_mut().filter(|word| *word == "sev-guest") {
                    guest.push_str(&format!(",policy={text}"));
                }
            }
            "hyperv" if self.has.whole_hyperv == Whole::Open => self.has.whole_hyperv = Whole::Yes,
            "iothreads" if !text.is_empty() => self.option("-object", "iothread,id=iothread1"),
            "disk" | "interface" | "controller" | "input" | "video" => self.device(),
            _ => {}
        }
        self.text.clear();
    }

    /// The words of the device that ends.
    fn device(&mut self) {
        let Some(device) = self.device.take() else { return };
        let DomainDevice { kind, medium, bus, model, options, cache, vhost, backend } = device;
        if let Some(cache) = cache.filter(|_| medium != "cdrom") {
            self.option("-drive", format!("if=none,cache={}", cache.replace(',', ",,")));
        }
        let with = |name: &str| [vec![name.to_owned()], options.clone()].concat().join(",");
        match (kind.as_str(), bus.as_str(), model.as_str()) {
            ("disk", "ide" | "sata", _) if medium == "cdrom" => self.option("-device", "ide-cd"),
            ("disk", "ide" | "sata", _) => self.option("-device", "ide-hd"),
            ("disk", "virtio", _) => self.option("-device", with("virtio-blk-pci")),
            ("controller", _, "virtio-scsi") => self.option("-device", with("virtio-scsi-pci")),
            ("interface", _, model) if !model.is_empty() => {
                // libvirt opens vhost-net for virtio unless the driver is qemu.
                let is_virtio = model.starts_with("virtio");
                let is_kernels = is_virtio && (vhost || options.is_empty()) && medium != "user";
                let on = if is_kernels { ",vhost=on" } else { "" };
                let backend = if medium == "user" && backend.is_empty() { "user" } else { "tap" };
                self.option("-netdev", format!("{backend},id=net{on}"));
                let name = if is_virtio { "virtio-net-pci" } else { model };
                self.option("-device", with(name));
            }
            ("input", "usb", _) if medium == "tablet" => self.option("-device", "usb-tablet"),
            _ => {}
        }
    }

    fn finish(self) -> (Vec<String>, Option<Vec<Thread>>) {
        let mut cpu = self.cpu;
        // A part of a domain does not say what the other parts have.
        let is_part = !self.has.end;
        let program = match self.has.arch.as_deref() {
            _ if is_part => PART,
            Some("aarch64") => "qemu-system-aarch64",
            _ => "qemu-system-x86_64",
        };
        let mut words = vec![program.to_owned()];
        if is_part && !self.has.hyperv {
            cpu.retain(|word| !word.starts_with("hv-"));
        } else if is_part && !self.has.clock {
            cpu.push("hv-time=on".to_owned());
        }
        if is_part && self.has.whole_hyperv == Whole::Yes {
            for name in OF_TIMERS {
                if !cpu.iter().any(|word| word.starts_with(&format!("{name}="))) {
                    cpu.push(format!("{name}=off"));
                }
            }
        }
        if let Some(kind) = &self.has.domain {
            let accel = if kind == "qemu" { "tcg" } else { "kvm" };
            words.extend(["-accel".to_owned(), accel.to_owned()]);
        }
        if !self.machine.is_empty() {
            words.extend(["-machine".to_owned(), self.machine.join(",")]);
        }
        if self.model.is_some() || !cpu.is_empty() {
            let model = self.model.unwrap_or_default();
            words.extend(["-cpu".to_owned(), [vec![model], cpu].concat().join(",")]);
        }
        words.extend(self.words);
        (words, (!self.pins.is_empty()).then_some(self.pins))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> String {
        read(text).unwrap().0.join(" ")
    }

    #[test]
    fn a_domain_becomes_words() {
        let text = "<domain type='kvm'>\n  <name>win10</name>\n  <vcpu placement='static'>4</vcpu>\n\
            <features><acpi/><hyperv mode='custom'><relaxed state='on'/><vapic state='on'/>\
            <spinlocks state='on' retries='8191'/><synic state='on'/><stimer state='on'><direct state='on'/></stimer></hyperv>\
            <ioapic driver='qemu'/></features>\n\
            <cpu mode='host-passthrough'><feature policy='disable' name='hypervisor'/></cpu>\n\
            <clock offset='localtime'><timer name='hpet' present='no'/><timer name='hypervclock' present='yes'/></clock>\n\
            <devices><disk type='file' device='disk'><driver name='qemu' type='qcow2' iothread='1'/><target dev='vda' bus='virtio'/></disk>\
            <disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>\
            <interface type='bridge'><source bridge='br0'/><model type='virtio'/></interface>\
            <interface type='user'><model type='e1000e'/></interface>\
            <input type='tablet' bus='usb'/></devices></domain>";
        assert!(is_domain(text));
        assert_eq!(
            words(text),
            "qemu-system-x86_64 -accel kvm -machine kernel-irqchip=split,hpet=off \
             -cpu host,hv-relaxed=on,hv-vapic=on,hv-spinlocks=on,hv-synic=on,hv-stimer=on,hv-stimer-direct=on,hypervisor=off,hv-time=on \
             -name guest=win10 -smp 4 -rtc base=localtime -device virtio-blk-pci,iothread=1 -device ide-cd \
             -netdev tap,id=net,vhost=on -device virtio-net-pci -netdev user,id=net -device e1000e -device usb-tablet"
        );
    }

    #[test]
    fn parts_are_read_and_pins_are_threads() {
        assert_eq!(
            words(
                " <clock offset='localtime'>\n <timer name='hypervclock' present='yes'/>\n </clock>\n"
            ),
            "qemu-system -rtc base=localtime"
        );
        assert_eq!(
            words("<relaxed state='on'/>\n<stimer state='on'/>\n"),
            "qemu-system -cpu ,hv-relaxed=on,hv-stimer=on,hv-time=on"
        );
        assert_eq!(
            words("<hyperv mode='custom'>\n<vapic state='on'/>\n</hyperv>\n"),
            "qemu-system -cpu ,hv-vapic=on,hv-time=on,hv-vpindex=off,hv-synic=off,hv-stimer=off"
        );
        // Cut before its end.
        assert_eq!(
            words("<hyperv>\n<vapic state='on'/>\n"),
            "qemu-system -cpu ,hv-vapic=on,hv-time=on"
        );
        assert_eq!(
            words("<hyperv mode='passthrough'>\n</hyperv>\n<clock/>"),
            "qemu-system -cpu ,hv-passthrough=on"
        );
        assert_eq!(words("<domain type='qemu'>"), "qemu-system -accel tcg");
        for (security, expected) in [
            (
                "<launchSecurity type='tdx'><policy>0x10000001</policy></launchSecurity>",
                "tdx-guest",
            ),
            ("<launchSecurity type='sev-snp'/>", "sev-snp-guest"),
            (
                "<launchSecurity type='sev'>\n <cbitpos>47</cbitpos> <policy> 0x0007 </policy>\n</launchSecurity>",
                "sev-guest,policy=0x0007",
            ),
            ("<launchSecurity type='sev'><policy>1,x=2</policy></launchSecurity>", "sev-guest"),
        ] {
            assert!(is_domain(security));
            assert_eq!(words(security), format!("qemu-system -object {expected}"));
        }
        assert_eq!(words("<launchSecurity type='s390-pv'/>"), "qemu-system");
        let text = "<cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3'/>";
        let (_, pins) = read(text).unwrap();
        let pins: Vec<String> =
            pins.unwrap().iter().map(|pin| format!("{} {}", pin.name, pin.allowed)).collect();
        assert_eq!(pins, ["CPU 0/KVM 2", "CPU 1/KVM 3"]);
        assert!(read("<domain><!-- never closed").unwrap_err().contains("is no XML"));
        assert!(!is_domain("text with <domain"));
    }
}
