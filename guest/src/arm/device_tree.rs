//! The device tree of L1, flattened: Devicetree Specification 0.4, chapter 5.

use vmtax_guest::layout::arm;

use super::io::DeviceKind;
use super::virtio;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const END: u32 = 9;
const MAGIC: u32 = 0xd00d_feed;
const HEADER: usize = 40;
const VERSION: u32 = 17;
const COMPATIBLE_WITH: u32 = 16;
/// One entry of zeros ends the reserved memory.
const RESERVED: usize = 16;

/// The interrupt controller's phandle.
const GIC: u32 = 1;
/// Memory of its devices with a bounce buffer.
const POOL: u32 = 2;
/// Shared interrupts, as the next.
const SHARED: u32 = 0;
/// Private interrupts, level, active high (Linux, `Documentation/devicetree/bindings/interrupt-controller/arm,gic-v3.yaml`).
const PRIVATE: u32 = 1;
const HIGH: u32 = 4;
/// Those of the timers in the order of `arm,armv8-timer`: secure, non-secure, virtual, of the hypervisor, its virtual one. They are KVM's
/// (`default_ppi` in `arch/arm64/kvm/arch_timer.c`), from 16 on.
const TIMERS: [u32; 5] = [13, 14, 11, 10, 12];

/// What differs between trees.
pub(crate) struct Booted<'a> {
    pub(crate) command_line: &'a str,
    /// The instruction that calls PSCI: `hvc` or `smc`.
    pub(crate) psci: &'a str,
    /// Bytes of memory from [`arm::MEMORY`] on.
    pub(crate) memory: u64,
    /// Addresses of the initramfs.
    pub(crate) initramfs: std::ops::Range<u64>,
    /// It has a PMU.
    pub(crate) counters: bool,
    /// Its devices.
    pub(crate) devices: Vec<DeviceKind>,
}

/// The tree: a processor with EL2, memory, KVM's GICv3 and timers.
pub(crate) fn device_tree(booted: &Booted<'_>) -> Vec<u8> {
    let mut tree = FlatTree::default();
    tree.node("", |tree| {
        tree.text("compatible", "linux,dummy-virt");
        tree.cells("#address-cells", &[2]);
        tree.cells("#size-cells", &[2]);
        tree.cells("interrupt-parent", &[GIC]);
        tree.node("chosen", |tree| {
            tree.text("bootargs", booted.command_line);
            tree.numbers("linux,initrd-start", &[booted.initramfs.start]);
            tree.numbers("linux,initrd-end", &[booted.initramfs.end]);
            // The same in each boot.
            tree.cells("rng-seed", &[0x1234_5678; 16]);
        });
        tree.node(&format!("memory@{:x}", arm::MEMORY), |tree| {
            tree.text("device_type", "memory");
            tree.numbers("reg", &[arm::MEMORY, booted.memory]);
        });
        tree.node("cpus", |tree| {
            tree.cells("#address-cells", &[1]);
            tree.cells("#size-cells", &[0]);
            tree.node("cpu@0", |tree| {
                tree.text("device_type", "cpu");
                tree.text("compatible", "arm,armv8");
                tree.cells("reg", &[0]);
            });
        });
        tree.node("psci", |tree| {
            tree.text("compatible", "arm,psci-1.0");
            tree.text("method", booted.psci);
        });
        tree.node("timer", |tree| {
            tree.text("compatible", "arm,armv8-timer");
            let interrupts: Vec<u32> =
                TIMERS.iter().flat_map(|number| [PRIVATE, *number, HIGH]).collect();
            tree.cells("interrupts", &interrupts);
            tree.property("always-on", &[]);
        });
        if booted.counters {
            tree.node("pmu", |tree| {
                tree.text("compatible", "arm,armv8-pmuv3");
                tree.cells("interrupts", &[PRIVATE, arm::PMU_INTERRUPT - 16, HIGH]);
            });
        }
        if booted.devices.iter().any(|device| device.bounced) {
            tree.node("reserved-memory", |tree| {
                tree.cells("#address-cells", &[2]);
                tree.cells("#size-cells", &[2]);
                tree.property("ranges", &[]);
                tree.node(&format!("dma@{:x}", arm::BOUNCE), |tree| {
                    tree.text("compatible", "restricted-dma-pool");
                    tree.numbers("reg", &[arm::BOUNCE, arm::BOUNCE_BYTES]);
                    tree.cells("phandle", &[POOL]);
                });
            });
        }
        for device in &booted.devices {
            let at = virtio::address(*device);
            tree.node(&format!("virtio_mmio@{at:x}"), |tree| {
                tree.text("compatible", "virtio,mmio");
                tree.numbers("reg", &[at, arm::DEVICE_BYTES]);
                tree.cells("interrupts", &[SHARED, device.number().into(), HIGH]);
                tree.property("dma-coherent", &[]);
                if device.bounced {
                    tree.cells("memory-region", &[POOL]);
                }
            });
        }
        tree.node(&format!("interrupt-controller@{:x}", arm::DISTRIBUTOR), |tree| {
            tree.text("compatible", "arm,gic-v3");
            tree.cells("#interrupt-cells", &[3]);
            tree.property("interrupt-controller", &[]);
            let (distributor, redistributor) = (0x1_0000, 0x2_0000);
            let registers = [arm::DISTRIBUTOR, distributor, arm::REDISTRIBUTOR, redistributor];
            tree.numbers("reg", &registers);
            tree.cells("interrupts", &[PRIVATE, super::vmm::MAINTENANCE - 16, HIGH]);
            tree.cells("phandle", &[GIC]);
        });
    });
    tree.finish()
}

/// Structure and names of properties.
#[derive(Default)]
struct FlatTree {
    structure: Vec<u8>,
    names: Vec<u8>,
}

impl FlatTree {
    fn word(&mut self, word: u32) {
        self.structure.extend(word.to_be_bytes());
    }

    /// Padded to whole words.
    fn bytes(&mut self, bytes: &[u8]) {
        self.structure.extend(bytes);
        self.structure.resize(self.structure.len().next_multiple_of(4), 0);
    }

    fn node(&mut self, name: &str, content: impl FnOnce(&mut FlatTree)) {
        self.word(BEGIN_NODE);
        self.bytes(&[name.as_bytes(), &[0]].concat());
        content(self);
        self.word(END_NODE);
    }

    fn property(&mut self, name: &str, value: &[u8]) {
        self.word(PROPERTY);
        self.word(value.len() as u32);
        self.word(self.names.len() as u32);
        self.names.extend(name.as_bytes());
        self.names.push(0);
        self.bytes(value);
    }

    fn text(&mut self, name: &str, value: &str) {
        self.property(name, &[value.as_bytes(), &[0]].concat());
    }

    fn cells(&mut self, name: &str, cells: &[u32]) {
        let value: Vec<u8> = cells.iter().flat_map(|cell| cell.to_be_bytes()).collect();
        self.property(name, &value);
    }

    /// Numbers of two cells.
    fn numbers(&mut self, name: &str, numbers: &[u64]) {
        let value: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        self.property(name, &value);
    }

    fn finish(mut self) -> Vec<u8> {
        self.word(END);
        let structure = HEADER + RESERVED;
        let names = structure + self.structure.len();
        let total = names + self.names.len();
        let (boot_cpu, reserved) = (0, HEADER as u32);
        let header = [
            MAGIC,
            total as u32,
            structure as u32,
            names as u32,
            reserved,
            VERSION,
            COMPATIBLE_WITH,
            boot_cpu,
            self.names.len() as u32,
            self.structure.len() as u32,
        ];
        let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.resize(structure, 0);
        bytes.extend(self.structure);
        bytes.extend(self.names);
        bytes
    }
}
