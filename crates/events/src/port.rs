//! I/O ports of a PC, and of the devices that QEMU adds to it.
//!
//! Sources: the IBM AT's ports and the Intel ICH9 data sheet (LPC bridge) for the fixed ones; QEMU
//! `docs/specs/` and `hw/` for fw_cfg, pvpanic, debug ports, ACPI and hotplug; Intel 440FX/PIIX4 and
//! Q35 defaults for the relocatable ACPI blocks, which firmware puts at these places in QEMU guests.
//! PCI devices' own ports are given out at boot and stay numbers.

use crate::detail::table;

/// First and last port, name; sorted.
const PORTS: &[(u16, u16, &str)] = &[
    (0x0000, 0x000f, "DMA controller 1"),
    (0x0020, 0x0020, "PIC 1 command"),
    (0x0021, 0x0021, "PIC 1 data"),
    (0x002e, 0x002f, "Super I/O"),
    (0x0040, 0x0040, "PIT channel 0"),
    (0x0041, 0x0041, "PIT channel 1"),
    (0x0042, 0x0042, "PIT channel 2"),
    (0x0043, 0x0043, "PIT command"),
    (0x004e, 0x004f, "Super I/O 2"),
    (0x0060, 0x0060, "i8042 data"),
    (0x0061, 0x0061, "NMI status and speaker"),
    (0x0064, 0x0064, "i8042 command"),
    (0x0070, 0x0070, "RTC/CMOS index"),
    (0x0071, 0x0071, "RTC/CMOS data"),
    (0x0072, 0x0073, "CMOS extended"),
    (0x0080, 0x0080, "POST code / I/O delay"),
    (0x0081, 0x008f, "DMA page"),
    (0x0092, 0x0092, "A20 and fast reset"),
    (0x00a0, 0x00a0, "PIC 2 command"),
    (0x00a1, 0x00a1, "PIC 2 data"),
    (0x00b2, 0x00b2, "APM command (SMI)"),
    (0x00b3, 0x00b3, "APM status"),
    (0x00c0, 0x00df, "DMA controller 2"),
    (0x00e9, 0x00e9, "Bochs debug console"),
    (0x00ed, 0x00ed, "I/O delay"),
    (0x00f0, 0x00f1, "FPU"),
    (0x00f4, 0x00f4, "isa-debug-exit"),
    (0x0170, 0x0177, "IDE secondary"),
    (0x01ce, 0x01d0, "Bochs VBE"),
    (0x01f0, 0x01f7, "IDE primary"),
    (0x0278, 0x027f, "LPT2"),
    (0x02e8, 0x02ef, "COM4"),
    (0x02f8, 0x02ff, "COM2"),
    (0x0376, 0x0376, "IDE secondary control"),
    (0x0378, 0x037f, "LPT1"),
    (0x03b0, 0x03df, "VGA"),
    (0x03e8, 0x03ef, "COM3"),
    (0x03f0, 0x03f5, "floppy"),
    (0x03f6, 0x03f6, "IDE primary control"),
    (0x03f7, 0x03f7, "floppy"),
    (0x03f8, 0x03ff, "COM1"),
    (0x0402, 0x0402, "firmware debug console"),
    (0x04d0, 0x04d1, "PIC ELCR"),
    (0x0501, 0x0501, "isa-debug-exit"),
    (0x0505, 0x0505, "pvpanic"),
    (0x0510, 0x0510, "fw_cfg selector"),
    (0x0511, 0x0511, "fw_cfg data"),
    (0x0514, 0x051b, "fw_cfg DMA"),
    (0x0600, 0x0603, "ACPI PM1 event (Q35)"),
    (0x0604, 0x0607, "ACPI PM1 control (Q35)"),
    (0x0608, 0x060b, "ACPI PM timer (Q35)"),
    (0x060c, 0x061f, "ACPI PM (Q35)"),
    (0x0620, 0x062f, "ACPI GPE0 (Q35)"),
    (0x0630, 0x065f, "ACPI PM (Q35)"),
    (0x0660, 0x067f, "ACPI TCO (Q35)"),
    (0x0700, 0x073f, "SMBus (Q35)"),
    (0x0cc0, 0x0cd7, "ACPI PCI hotplug (Q35)"),
    (0x0cd8, 0x0ce3, "ACPI CPU hotplug (Q35)"),
    (0x0cf8, 0x0cf8, "PCI config address"),
    (0x0cf9, 0x0cf9, "reset control"),
    (0x0cfa, 0x0cfb, "PCI config address"),
    (0x0cfc, 0x0cff, "PCI config data"),
    (0x5658, 0x5658, "VMware backdoor"),
    (0x5659, 0x5659, "VMware backdoor bulk"),
    (0xae00, 0xae17, "ACPI PCI hotplug (PIIX4)"),
    (0xaf00, 0xaf1f, "ACPI CPU hotplug (PIIX4)"),
    (0xafe0, 0xafe3, "ACPI GPE0 (PIIX4)"),
    (0xb000, 0xb003, "ACPI PM1 event (PIIX4)"),
    (0xb004, 0xb007, "ACPI PM1 control (PIIX4)"),
    (0xb008, 0xb00b, "ACPI PM timer (PIIX4)"),
    (0xb00c, 0xb03f, "ACPI PM (PIIX4)"),
    (0xb100, 0xb13f, "SMBus (PIIX4)"),
];

/// The device at this port of a QEMU PC.
pub fn name(port: u16) -> Option<&'static str> {
    table::range_of(PORTS, port).map(|row| row.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_sorted() {
        table::check::ranges(PORTS);
    }

    #[test]
    fn names() {
        for (port, expected) in [
            (0x20, Some("PIC 1 command")),
            (0x40, Some("PIT channel 0")),
            (0x43, Some("PIT command")),
            (0x44, None),
            (0x3f8, Some("COM1")),
            (0x3f7, Some("floppy")),
            (0x518, Some("fw_cfg DMA")),
            (0xcf8, Some("PCI config address")),
            (0xcf9, Some("reset control")),
            (0xcfb, Some("PCI config address")),
            (0xcff, Some("PCI config data")),
            (0xb008, Some("ACPI PM timer (PIIX4)")),
            (0x608, Some("ACPI PM timer (Q35)")),
            (0xffff, None),
        ] {
            assert_eq!(name(port), expected, "{port:#x}");
        }
    }
}
