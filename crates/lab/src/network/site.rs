//! VMs as the host starts them: QEMU's command lines.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use vmtax_guest::traffic::{self, DISK, Site, SiteAddress, TAP, TAPS};

use super::parts::SiteParts;
use super::{Category, ClientPlace};
use crate::category::KINDS;
use crate::host::HostKind;

pub const QEMU: &str = "qemu-system-x86_64";
/// Where it finds its firmware in the host.
pub(super) const FIRMWARE: &str = "usr/share/qemu";
/// The kernel of VMs, in the host.
pub(super) const VMLINUX: &str = "vm/vmlinux";
/// Xen, in the host.
pub(super) const XEN: &str = "vm/xen";
/// Words for Xen: its console is QEMU's, and its dom0 a PVH guest with the memory of a VM.
const XEN_WORDS: &str = "console=com1 com1=115200,8n1 noreboot dom0=pvh dom0_mem=256M";
/// Memory of a VM that is Xen.
pub(super) const XEN_MIB: u32 = 512;
/// The initramfs of an L1.
pub(super) const L1: &str = "vm/l1";
/// Memory of a VM, MiB.
pub(super) const VM_MIB: u32 = 256;
/// Memory of an L1: that of two VMs, and of QEMU and its files, which are also in its initramfs while it unpacks it.
pub(super) const L1_MIB: u32 = 1024;
/// Bytes of the VM's disk.
const DISK_BYTES: u64 = 8 << 20;
/// Timeout of a VM's start and of each traffic, in its host's time.
const LIMIT: Duration = Duration::from_secs(60);
/// And of one that is a guest's guest, for which each exit is a multiple of a guest's.
const NESTED_LIMIT: Duration = Duration::from_secs(300);

/// A word for all kernels: IPv6 sends packets that nobody asked for.
pub(super) const QUIET: &str = "ipv6.disable=1";
/// Networks of the host and of L1: of a client on it, and of a peer.
const NETWORKS: [[u8; 2]; 2] = [[2, 3], [4, 5]];

/// The VMs of a category. One that starts twice has its modules at the same addresses again.
pub(super) fn of(host: HostKind, category: &Category, client: ClientPlace, twice: bool) -> Site {
    let [outside, inside] = NETWORKS;
    let levels = category.levels();
    let (outer, inner) = match levels.as_slice() {
        [outer, inner, ..] => (SiteParts(outer), SiteParts(inner)),
        _ => return vms((host, SiteParts(&category.parts), twice), client, outside, LIMIT),
    };
    let [network, _] = outside;
    let client =
        traffic::Client::Inside(Box::new(vms((host, inner, twice), client, inside, NESTED_LIMIT)));
    let l1 = SiteVm::l1(host, outer, SiteAddress::Vm.address(network));
    let l1 = SiteVm { settled: twice, ..l1 };
    site(outer, &l1, network, client, NESTED_LIMIT)
}

/// QEMU's command lines of a category's VM, and of the one inside, with a client on their host.
pub fn commands(host: HostKind, category: &Category) -> Vec<Vec<String>> {
    let site = of(host, category, ClientPlace::Host, false);
    match site.client {
        traffic::Client::Inside(inner) => vec![site.qemu, inner.qemu],
        _ => vec![site.qemu],
    }
}

fn vms(
    (host, parts, twice): (HostKind, SiteParts<'_>, bool),
    client: ClientPlace,
    networks: [u8; 2],
    limit: Duration,
) -> Site {
    let [of_host, of_peer] = networks;
    let [tap, peers_tap] = TAPS;
    match client {
        ClientPlace::Host => {
            let vm = SiteVm::server(host, parts, SiteAddress::Vm.address(of_host), TAP);
            let vm = SiteVm { settled: twice, ..vm };
            site(parts, &vm, of_host, traffic::Client::Host, limit)
        }
        ClientPlace::Peer => {
            let plain = [&KINDS[0]];
            let peer = SiteVm::peer(
                host,
                SiteParts(&plain),
                SiteAddress::Peer.address(of_peer),
                peers_tap,
            );
            let vm = SiteVm::server(host, parts, SiteAddress::Vm.address(of_peer), tap);
            let [vm, peer] = [vm, peer].map(|vm| SiteVm { settled: true, ..vm });
            site(parts, &vm, of_peer, traffic::Client::Peer(peer.qemu()), limit)
        }
    }
}

fn site(
    parts: SiteParts<'_>,
    vm: &SiteVm<'_>,
    network: u8,
    client: traffic::Client,
    limit: Duration,
) -> Site {
    Site {
        network,
        settings: parts.settings(),
        qemu: vm.qemu(),
        disk: DISK_BYTES,
        client,
        pressure: parts.pressure(),
        in_xen: parts.is_in_xen(),
        limit_ms: limit.as_millis() as u64,
    }
}

/// The file in the host with the initramfs of VMs that load these modules too.
pub(super) fn initramfs(modules: &BTreeSet<&str>) -> String {
    let suffix = modules.iter().map(|module| format!("-{module}")).collect::<String>();
    format!("vm/initramfs{suffix}")
}

/// One VM of QEMU.
struct SiteVm<'a> {
    host: HostKind,
    parts: SiteParts<'a>,
    role: &'static str,
    address: [u8; 4],
    tap: &'static str,
    /// The end of its card's MAC address.
    card: &'static str,
    initramfs: String,
    memory_mib: u32,
    /// Its modules are where those of its peer are, or where they were when it started before.
    settled: bool,
}

impl SiteVm<'_> {
    fn server<'a>(
        host: HostKind,
        parts: SiteParts<'a>,
        address: [u8; 4],
        tap: &'static str,
    ) -> SiteVm<'a> {
        let (role, card) = ("server", "56");
        let initramfs = initramfs(&parts.modules());
        let memory_mib = if parts.is_in_xen() { XEN_MIB } else { VM_MIB };
        SiteVm { host, parts, role, address, tap, card, initramfs, memory_mib, settled: false }
    }

    fn peer<'a>(
        host: HostKind,
        parts: SiteParts<'a>,
        address: [u8; 4],
        tap: &'static str,
    ) -> SiteVm<'a> {
        SiteVm { role: "driver", card: "57", ..SiteVm::server(host, parts, address, tap) }
    }

    fn l1<'a>(host: HostKind, parts: SiteParts<'a>, address: [u8; 4]) -> SiteVm<'a> {
        let (initramfs, memory_mib) = (L1.to_owned(), L1_MIB);
        SiteVm {
            role: "driver",
            initramfs,
            memory_mib,
            ..SiteVm::server(host, parts, address, TAP)
        }
    }

    fn command_line(&self) -> String {
        let (role, address) = (self.role, Ipv4Addr::from(self.address));
        let clock = self.parts.clock();
        let settled = if self.settled { " vmtax.settled" } else { "" };
        let own = format!("{QUIET}{clock} vmtax.role={role} vmtax.address={address}{settled}");
        self.host.vm_command_line(&own) + &self.parts.words()
    }

    /// What QEMU loads: a kernel, its initramfs, and its command line. Xen's initramfs are its dom0's kernel with its words, and the dom0's initramfs.
    fn boots(&self) -> [(&'static str, String); 3] {
        let mut kernel = format!("/{VMLINUX}");
        let mut initramfs = format!("/{}", self.initramfs);
        let mut words = self.command_line();
        if self.parts.is_in_xen() {
            initramfs = format!("{kernel} {},{initramfs}", words.replace(',', ",,"));
            kernel = format!("/{XEN}");
            words = XEN_WORDS.to_owned();
        }
        [("-kernel", kernel), ("-initrd", initramfs), ("-append", words)]
    }

    /// The VMM's command line.
    fn qemu(&self) -> Vec<String> {
        let parts = self.parts;
        let [netdev, card] = parts.network(self.tap);
        let [kernel, initrd, append] = self.boots();
        let fixed = [
            "-no-user-config",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            "-accel",
            "kvm",
            "-chardev",
            "file,id=console,path=/dev/stdout,append=on",
            "-serial",
            "chardev:console",
        ];
        let own = [
            ("-machine", parts.machine().to_owned()),
            kernel,
            ("-L", format!("/{FIRMWARE}")),
            ("-name", "vm,debug-threads=on".to_owned()),
            ("-cpu", parts.cpu()),
            ("-smp", parts.vcpus().to_string()),
            ("-m", format!("{}M", self.memory_mib)),
            initrd,
            append,
            ("-netdev", netdev),
            ("-device", format!("{card},mac=52:54:00:12:34:{}", self.card)),
        ];
        let mut words = vec![format!("/usr/bin/{QEMU}")];
        words.extend(fixed.map(str::to_owned));
        words.extend(own.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
        words.extend(self.disk());
        words.extend(parts.arguments());
        words
    }

    /// The disk is that of the VM under test.
    fn disk(&self) -> Vec<String> {
        if self.role != "server" {
            return Vec::new();
        }
        let file = format!("driver=file,filename={DISK},node-name=disk0");
        vec!["-blockdev".to_owned(), file, "-device".to_owned(), self.parts.disk()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, client: ClientPlace) -> String {
        of(HostKind::Amd, &Category::read(name).expect("a category"), client, false).qemu.join(" ")
    }

    #[test]
    fn a_part_changes_the_vmm_alone_where_it_says_so() {
        let line = |name: &str| line(name, ClientPlace::Host);
        let plain = line("plain");
        assert!(!plain.contains("vhost") && !plain.contains("swiotlb"), "{plain}");
        for (name, word) in [
            ("plain+vhost", "downscript=no,vhost=on"),
            ("plain+swiotlb", "drive=disk0,disable-legacy=on,iommu_platform=on"),
            ("plain+iothread", "disable-legacy=on,iothread=io0 -object iothread,id=io0"),
            ("plain-ioeventfd", "drive=disk0,disable-legacy=on,ioeventfd=off"),
            ("plain+poll", " idle=poll"),
            ("plain+hpoll", "-initrd /vm/initramfs-cpuidle_haltpoll"),
            ("plain-x2apic", "-kvm-pv-eoi,-x2apic"),
            ("plain+pc+ide", "-machine pc,vmport=off "),
            ("plain+pc+ide", "-device ide-hd,drive=disk0,bus=ide.0"),
            ("plain+pc+ide", "-initrd /vm/initramfs-ata_piix-sd_mod"),
            ("plain+pc+e1000", "-device e1000,netdev=net0,romfile=,mac=52:54:00:12:34:56"),
            ("plain+pv-eoi", "-cpu host -smp"),
            ("plain+locked", "-overcommit mem-lock=on"),
            ("plain+hugetlb", "hugetlbsize=2M -machine memory-backend=ram"),
            ("plain+smp4-pv-ipi", "-kvm-pv-eoi,-kvm-pv-ipi -smp 4"),
        ] {
            assert!(line(name).contains(word) && !plain.contains(word), "{}", line(name));
        }
    }

    #[test]
    fn xen_is_loaded_with_its_dom0() {
        let category = Category::read("plain+xen").expect("a category");
        let words = of(HostKind::Amd, &category, ClientPlace::Host, false).qemu;
        let value = |option: &str| {
            let at = words.iter().position(|word| word == option).expect("an option");
            words[at + 1].as_str()
        };
        assert_eq!(value("-kernel"), "/vm/xen");
        assert_eq!(value("-append"), XEN_WORDS);
        assert_eq!(value("-m"), "512M");
        let [kernel, initramfs] = ["/vm/vmlinux ", ",/vm/initramfs"];
        let modules = value("-initrd").strip_prefix(kernel).expect("the dom0's kernel");
        let words = modules.strip_suffix(initramfs).expect("its initramfs");
        // QEMU takes one comma for the end of a module.
        assert!(words.contains("console=ttyS0,,115200 "), "{words}");
        assert!(!words.replace(",,", "").contains(','), "{words}");
        assert!(words.ends_with(" console=hvc0"), "{words}");
    }

    #[test]
    fn parts_change_the_host() {
        let site = |name: &str| {
            of(HostKind::Amd, &Category::read(name).expect("a category"), ClientPlace::Host, false)
        };
        let setting = |site: &Site, file: &str| {
            let named = site.settings.iter().filter(|(path, _)| path.ends_with(file));
            named.map(|(_, content)| content.clone()).collect::<Vec<_>>()
        };
        let plain = site("plain");
        assert_eq!(plain.pressure, traffic::Pressure::default());
        assert_eq!(setting(&plain, "halt_poll_ns"), ["0"]);
        assert_eq!(setting(&plain, "hugepage/enabled"), ["madvise"]);
        assert_eq!(setting(&plain, "ksm/run"), [""; 0]);
        assert_eq!(setting(&site("plain+halt_poll_ns"), "halt_poll_ns"), ["200000"]);
        assert_eq!(setting(&site("plain+thp-defer"), "defrag"), ["defer"]);
        assert_eq!(setting(&site("plain+ksm"), "ksm/run"), ["1"]);
        let pressed = site("plain+swapped+fragmented+rival+vcpus-on-0").pressure;
        assert!(pressed.swaps && pressed.fragmented && pressed.rivals == 1, "{pressed:?}");
        assert_eq!(pressed.pins, [traffic::Pin { name: "CPU ".to_owned(), cpu: 0 }]);
    }

    #[test]
    fn parts_before_nested_are_those_of_l1() {
        let site = of(
            HostKind::Amd,
            &Category::read("plain-x2apic+nested+vhost").expect("a category"),
            ClientPlace::Host,
            false,
        );
        let l1 = site.qemu.join(" ");
        assert!(l1.contains(",-x2apic") && l1.contains("vmtax.role=driver"), "{l1}");
        assert!(!l1.contains("vhost=on") && !l1.contains(DISK), "{l1}");
        let traffic::Client::Inside(inner) = site.client else { panic!("no site in L1") };
        let vm = inner.qemu.join(" ");
        assert!(vm.contains("vhost=on") && !vm.contains(",-x2apic") && vm.contains(DISK), "{vm}");
        assert!(site.network != inner.network, "both hosts would have the same addresses");
    }

    #[test]
    fn a_peer_is_plain_and_has_a_card_of_its_own() {
        let category = Category::read("plain+vhost").expect("a category");
        let site = of(HostKind::Amd, &category, ClientPlace::Peer, false);
        let traffic::Client::Peer(peer) = &site.client else { panic!("no peer") };
        let (vm, peer) = (site.qemu.join(" "), peer.join(" "));
        for (line, tap, mac, address) in
            [(&vm, "tap1", "34:56", "10.0.3.2"), (&peer, "tap2", "34:57", "10.0.3.3")]
        {
            assert!(line.contains(tap) && line.contains(mac) && line.contains(address), "{line}");
        }
        assert!(vm.contains("vhost=on") && !peer.contains("vhost=on"), "{peer}");
    }
}
