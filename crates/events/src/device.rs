//! What device an I/O port or a guest-physical address belongs to: those of a PC are here, others in the module of their ISA.
//!
//! Sources: the IBM AT's ports, Intel ICH9 data sheet (LPC bridge, HPET, I/O APIC), Intel 440FX/PIIX4 and Q35 defaults for the
//! ACPI blocks, QEMU `hw/i386/pc.c`, `hw/i386/q35.c` and `docs/specs/` (fw_cfg, pvpanic, debug ports), TCG PC Client
//! specification (TPM). PCI devices' own addresses are given out at boot: they have no entry here.

use crate::words::words;
use crate::{Detail, DetailKind, Isa, apic};

words! {
    /// A device of a PC.
    pub enum Device {
        /// ACPI power management timer.
        PmTimer = "ACPI PM timer",
        /// High precision event timer.
        Hpet = "HPET",
        /// 8254 interval timer.
        Pit = "PIT",
        /// Real-time clock and CMOS memory.
        Rtc = "RTC/CMOS",
        /// 16550 serial port.
        Serial = "serial port",
        Parallel = "parallel port",
        /// Debug consoles of Bochs and of firmware.
        DebugConsole = "debug console",
        /// POST codes; Linux writes there to wait.
        PostCode = "POST code port (I/O delay)",
        /// IDE disk controller.
        Ide = "IDE controller",
        /// Floppy controller.
        Floppy = "floppy controller",
        /// VGA registers and memory.
        Vga = "VGA",
        /// Keyboard and mouse controller.
        Ps2 = "PS/2 controller (i8042)",
        /// PCI configuration space.
        PciConfig = "PCI configuration space",
        /// QEMU's firmware configuration.
        FwCfg = "fw_cfg",
        /// ACPI power management and hotplug.
        Acpi = "ACPI registers",
        /// 8259 interrupt controllers.
        Pic = "8259 PIC",
        /// 8237 DMA controllers.
        Dma = "DMA controller",
        VmwareBackdoor = "VMware backdoor",
        IoApic = "I/O APIC",
        Tpm = "TPM",
        Flash = "firmware flash",
        /// Another device of the chip set.
        ChipSet = "chip set",
        /// Interrupt controller of arm64: distributor, CPU interfaces, redistributors.
        VirtGic = "GIC, where QEMU's virt machine has it",
        /// Its frame of message-signalled interrupts.
        VirtGicV2m = "GICv2m, where QEMU's virt machine has it",
        /// Its interrupt translation service.
        VirtIts = "GIC ITS, where QEMU's virt machine has it",
        VirtUart = "PL011 serial port, where QEMU's virt machine has it",
        /// Real-time clock.
        VirtRtc = "PL031 real-time clock, where QEMU's virt machine has it",
        VirtFwCfg = "fw_cfg, where QEMU's virt machine has it",
        /// General-purpose I/O: the power button.
        VirtGpio = "PL061 GPIO, where QEMU's virt machine has it",
        VirtSmmu = "SMMUv3, where QEMU's virt machine has it",
        /// ACPI hotplug and events.
        VirtAcpi = "ACPI registers, where QEMU's virt machine has them",
        VirtioMmio = "virtio-mmio, where QEMU's virt machine has it",
        /// Devices that QEMU adds at run time.
        VirtPlatformBus = "platform bus, where QEMU's virt machine has it",
        /// Registers of PCIe devices.
        VirtPciMemory = "PCIe device memory, where QEMU's virt machine has it",
        /// Ports of PCIe devices.
        VirtPciPorts = "PCIe I/O ports, where QEMU's virt machine has them",
        VirtPciConfig = "PCIe configuration space, where QEMU's virt machine has it",
    }
}

/// First and last port, device; sorted.
const PORTS: &[(u64, u64, Device)] = &[
    (0x0000, 0x000f, Device::Dma),
    (0x0020, 0x0021, Device::Pic),
    (0x002e, 0x002f, Device::ChipSet),
    (0x0040, 0x0043, Device::Pit),
    (0x0060, 0x0060, Device::Ps2),
    (0x0061, 0x0061, Device::Pit),
    (0x0064, 0x0064, Device::Ps2),
    (0x0070, 0x0073, Device::Rtc),
    (0x0080, 0x0080, Device::PostCode),
    (0x0081, 0x008f, Device::Dma),
    (0x0092, 0x0092, Device::ChipSet),
    (0x00a0, 0x00a1, Device::Pic),
    (0x00b2, 0x00b3, Device::Acpi),
    (0x00c0, 0x00df, Device::Dma),
    (0x00e9, 0x00e9, Device::DebugConsole),
    (0x00ed, 0x00ed, Device::PostCode),
    (0x0170, 0x0177, Device::Ide),
    (0x01ce, 0x01d0, Device::Vga),
    (0x01f0, 0x01f7, Device::Ide),
    (0x0278, 0x027f, Device::Parallel),
    (0x02e8, 0x02ef, Device::Serial),
    (0x02f8, 0x02ff, Device::Serial),
    (0x0376, 0x0376, Device::Ide),
    (0x0378, 0x037f, Device::Parallel),
    (0x03b0, 0x03df, Device::Vga),
    (0x03e8, 0x03ef, Device::Serial),
    (0x03f0, 0x03f5, Device::Floppy),
    (0x03f6, 0x03f6, Device::Ide),
    (0x03f7, 0x03f7, Device::Floppy),
    (0x03f8, 0x03ff, Device::Serial),
    (0x0402, 0x0402, Device::DebugConsole),
    (0x04d0, 0x04d1, Device::Pic),
    (0x0505, 0x0505, Device::ChipSet),
    (0x0510, 0x0511, Device::FwCfg),
    (0x0514, 0x051b, Device::FwCfg),
    (0x0600, 0x0607, Device::Acpi),
    (0x0608, 0x060b, Device::PmTimer),
    (0x060c, 0x067f, Device::Acpi),
    (0x0700, 0x073f, Device::ChipSet),
    (0x0cc0, 0x0ce3, Device::Acpi),
    (0x0cf8, 0x0cff, Device::PciConfig),
    (0x5658, 0x5659, Device::VmwareBackdoor),
    (0xae00, 0xae17, Device::Acpi),
    (0xaf00, 0xaf1f, Device::Acpi),
    (0xafe0, 0xafe3, Device::Acpi),
    (0xb000, 0xb007, Device::Acpi),
    (0xb008, 0xb00b, Device::PmTimer),
    (0xb00c, 0xb03f, Device::Acpi),
    (0xb100, 0xb13f, Device::ChipSet),
];

/// First and last guest-physical address, device; sorted. The local APIC's registers are in [`apic`]. PCI configuration space (ECAM)
/// is at 0xb0000000 by SeaBIOS and at 0xe0000000 by OVMF (PcdPciExpressBaseAddress), of which bus 0 is here: BARs may be beside it.
pub(crate) const ADDRESSES: &[(u64, u64, Device)] = &[
    (0x000a_0000, 0x000b_ffff, Device::Vga),
    (0xb000_0000, 0xbfff_ffff, Device::PciConfig),
    (0xe000_0000, 0xe00f_ffff, Device::PciConfig),
    (0xfec0_0000, 0xfec0_0fff, Device::IoApic),
    (0xfed0_0000, 0xfed0_03ff, Device::Hpet),
    (0xfed1_c000, 0xfed1_ffff, Device::ChipSet),
    (0xfed4_0000, 0xfed4_4fff, Device::Tpm),
    (0xffc0_0000, 0xffff_ffff, Device::Flash),
];

fn find(table: &[(u64, u64, Device)], value: u64) -> Option<Device> {
    let at = table.partition_point(|row| row.1 < value);
    table.get(at).filter(|row| row.0 <= value).map(|row| row.2)
}

impl Device {
    /// The device that a port or an address belongs to: on every PC, or on arm64 where QEMU has it, which its word says.
    pub fn of(isa: Isa, detail: Detail) -> Option<Device> {
        match detail.kind {
            DetailKind::PortIn | DetailKind::PortOut => find(PORTS, detail.value),
            DetailKind::MmioRead | DetailKind::MmioWrite => {
                find(isa.facts().devices(), detail.value)
            }
            _ => None,
        }
    }
}

/// Whether a write to this address looks like the notification of a virtio queue: where QEMU and crosvm (0x3000) and Cloud
/// Hypervisor (0x6000) have that region of a BAR, legacy virtio's QUEUE_NOTIFY (offset 16 of its ports), or virtio-mmio's
/// QueueNotify (0x50) in QEMU's microvm and, a page for each device, in other VMMs (Firecracker, kvmtool). Source: virtio 1.2, 4.1.4 and 4.2.2; the VMMs' sources.
pub fn looks_like_notification(isa: Isa, detail: Detail) -> bool {
    isa.facts().is_notification(detail)
}

/// The notifications in a BAR of virtio over PCI.
pub(crate) fn is_in_bar(at: u64) -> bool {
    at & 0x3ff == at & 0xfff && matches!(at & 0x7000, 0x3000 | 0x6000 | 0x7000)
}

/// The same on a PC.
pub(crate) fn is_notification_of_pc(detail: Detail) -> bool {
    let at = detail.value;
    match detail.kind {
        DetailKind::PortOut => at >= 0xc000 && at & 0x1f == 0x10,
        DetailKind::MmioWrite
            if apic::register_of_gpa(at).is_some() || find(ADDRESSES, at).is_some() =>
        {
            false
        }
        DetailKind::MmioWrite => {
            let in_microvm = (0xfeb0_0000..0xfeb0_3000).contains(&at) && at & 0x1ff == 0x50;
            let in_page = (0xc000_0000..0xfec0_0000).contains(&at) && at & 0xfff == 0x50;
            is_in_bar(at) || in_microvm || in_page
        }
        _ => false,
    }
}

/// Whether a write to this address looks like the doorbell of an NVMe controller's queue: 4 KiB into its BAR of 16 KiB, 8 bytes for each
/// queue, of which the first is for its administration. Source: NVM Express over PCIe transport 1.0, 3.1.2; QEMU `hw/nvme/ctrl.c`.
pub fn looks_like_doorbell(isa: Isa, detail: Detail) -> bool {
    let at = detail.value;
    detail.kind == DetailKind::MmioWrite
        && apic::register_of_gpa(at).is_none()
        && matches!(Device::of(isa, detail), None | Some(Device::VirtPciMemory))
        && (0x1008..0x1400).contains(&(at & 0x3fff))
        && at & 3 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_do_not_overlap() {
        for table in [PORTS, ADDRESSES, Isa::Arm.facts().devices()] {
            assert!(table.iter().all(|row| row.0 <= row.1));
            assert!(table.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }

    #[test]
    fn devices_have_their_addresses() {
        use DetailKind as K;
        for (kind, value, device) in [
            (K::PortIn, 0x608, Some(Device::PmTimer)),
            (K::PortIn, 0xb008, Some(Device::PmTimer)),
            (K::PortIn, 0x40, Some(Device::Pit)),
            (K::PortOut, 0x3f8, Some(Device::Serial)),
            (K::PortIn, 0x3f6, Some(Device::Ide)),
            (K::PortOut, 0xc050, None),
            (K::MmioRead, 0xfed0_00f0, Some(Device::Hpet)),
            (K::MmioRead, 0xfee0_0080, None),
            (K::MmioRead, 0xe000_a010, Some(Device::PciConfig)),
            (K::MmioWrite, 0xe080_3000, None),
            (K::MmioWrite, 0xfebd_3000, None),
            (K::MsrRead, 0x608, None),
            (K::MmioWrite, 0x0a00_0050, None),
        ] {
            assert_eq!(Device::of(Isa::Svm, Detail::new(kind, value)), device, "{value:#x}");
        }
        for (value, device) in [
            (0x0800_0f00, Some(Device::VirtGic)),
            (0x080b_0380, Some(Device::VirtGic)),
            (0x0900_0018, Some(Device::VirtUart)),
            (0x0a00_0020, Some(Device::VirtioMmio)),
            (0x0a00_4000, None),
            (0x1000_0010, Some(Device::VirtPciMemory)),
            (0x3f00_0010, Some(Device::VirtPciConfig)),
            (0x4000_0000, None),
            (0xfed0_00f0, None),
        ] {
            let detail = Detail::new(K::MmioWrite, value);
            assert_eq!(Device::of(Isa::Arm, detail), device, "{value:#x}");
        }
    }

    #[test]
    fn doorbells_are_written_behind_the_controllers_registers() {
        use DetailKind as K;
        for (kind, value, expected) in [
            (K::MmioWrite, 0xfebf_1008, true),
            (K::MmioWrite, 0xfebf_100c, true),
            (K::MmioRead, 0xfebf_1008, false),
            (K::MmioWrite, 0xfebf_1000, false),
            (K::MmioWrite, 0xfebf_2008, false),
            (K::MmioWrite, 0xfebf_100a, false),
            (K::MmioWrite, 0xfed0_0108, false),
        ] {
            assert_eq!(
                looks_like_doorbell(Isa::Vmx, Detail::new(kind, value)),
                expected,
                "{value:#x}"
            );
        }
    }

    #[test]
    fn notifications_are_writes_at_known_places() {
        use DetailKind as K;
        for (kind, value, expected) in [
            (K::MmioWrite, 0xfe00_3000, true),
            (K::MmioWrite, 0x38_0000_300c, true),
            (K::MmioRead, 0xfe00_3000, false),
            (K::MmioWrite, 0xfe00_1000, false),
            (K::MmioWrite, 0xfed0_0000, false),
            (K::PortOut, 0xc050, true),
            (K::PortOut, 0xc040, false),
            (K::PortIn, 0xc050, false),
            (K::MmioWrite, 0xd000_0050, true),
            (K::MmioWrite, 0xfe00_1050, true),
            (K::MmioWrite, 0xfe00_1054, false),
        ] {
            let detail = Detail::new(kind, value);
            assert_eq!(looks_like_notification(Isa::Vmx, detail), expected, "{value:#x}");
        }
        for (value, expected) in [
            (0x0a00_0050, true),
            (0x0a00_3e50, true),
            (0x0a00_0060, false),
            (0xd000_0050, false),
            // A device of QEMU behind PCIe, in its low and its high window; Firecracker.
            (0x1000_3000, true),
            (0x1000_1000, false),
            (0x80_0000_7004, true),
            (0x4000_3050, true),
            (0x4000_3054, false),
        ] {
            let detail = Detail::new(K::MmioWrite, value);
            assert_eq!(looks_like_notification(Isa::Arm, detail), expected, "{value:#x}");
        }
    }
}
