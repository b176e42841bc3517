//! Interrupt vectors of the host: who interrupts a guest; and lines of a PC: what interrupts for a guest.
//!
//! VMX acknowledges the interrupt at the exit, and KVM sets that (`vmx_vcpu_ctrl`, VM_EXIT_ACK_INTR_ON_EXIT), so `kvm_exit` has
//! its vector. SVM's exits have none. Linux gives its own vectors out from 0xff down, in
//! `arch/x86/include/asm/irq_vectors.h`; devices have the others.

use crate::detail::table;

/// Who sends an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The CPU's own timer.
    Timer,
    Cpu,
    /// A device, or the CPU's own error reporting.
    Device,
}

/// First and last vector, who sends it, and what for. The local timer had 0xef until Linux 4.14, and 0xec since 4.17; 0xed is
/// the timer of a host that runs on Hyper-V.
const VECTORS: &[(u32, u32, (Sender, &str))] = &[
    (0xec, 0xec, (Sender::Timer, "local timer")),
    (0xed, 0xed, (Sender::Timer, "Hyper-V timer")),
    (0xef, 0xef, (Sender::Timer, "local timer")),
    (0xf0, 0xf0, (Sender::Cpu, "posted interrupt, nested")),
    (0xf1, 0xf1, (Sender::Cpu, "posted interrupt, wake-up")),
    (0xf2, 0xf2, (Sender::Cpu, "posted interrupt")),
    (0xf6, 0xf6, (Sender::Cpu, "IRQ work")),
    (0xf8, 0xf8, (Sender::Cpu, "reboot")),
    (0xfb, 0xfb, (Sender::Cpu, "call function single")),
    (0xfc, 0xfc, (Sender::Cpu, "call function")),
    (0xfd, 0xfd, (Sender::Cpu, "reschedule")),
];

fn row(vector: u64) -> Option<&'static (u32, u32, (Sender, &'static str))> {
    table::range_of(VECTORS, u32::try_from(vector).ok()?)
}

/// Who sends an interrupt with this vector.
pub fn sender(vector: u64) -> Sender {
    row(vector).map_or(Sender::Device, |(_, _, (sender, _))| *sender)
}

/// What Linux has this vector for; `None` for those of devices.
pub fn name(vector: u64) -> Option<&'static str> {
    row(vector).map(|(_, _, (_, name))| *name)
}

/// The vector of VMX's interruption information, if that is of an external interrupt: Intel SDM volume 3, "Format of the
/// VM-exit interruption-information field": bit 31 valid, bits 10:8 the type (0: external), bits 7:0 the vector.
pub fn vector(information: u64) -> Option<u64> {
    (information & (1 << 31 | 7 << 8) == 1 << 31).then_some(information & 0xff)
}

/// Of a line: KVM's PIT raised it. It has the source 2 (Linux arch/x86/kvm/i8254.c, `kvm_request_irq_source_id`, later
/// `KVM_PIT_IRQ_SOURCE_ID`), or a thread kvm-pit/PID raised it.
pub const BY_PIT: u64 = 1 << 32;
/// Sources from this one on are KVM's devices: before are user space and irqfds (include/linux/kvm_host.h).
pub const FIRST_SOURCE_IN_KERNEL: u32 = 2;

/// Lines that the ISA gave to one device of a PC, and QEMU still does (hw/i386/pc.c, hw/isa). In legacy mode the HPET takes those of the PIT and the RTC
/// (IA-PC HPET specification 1.0a, 2.4.5).
const LINES: &[(u64, &str)] = &[
    (0, "PIT or HPET"),
    (1, "keyboard"),
    (3, "serial port"),
    (4, "serial port"),
    (6, "floppy"),
    (7, "parallel port"),
    (8, "RTC"),
    (12, "mouse"),
    (14, "IDE"),
    (15, "IDE"),
    (BY_PIT, "PIT"),
];

/// What a PC has on this line; with [`BY_PIT`] where KVM's PIT raised it. VMMs without ISA devices use these numbers for others.
pub fn line_name(line: u64) -> Option<&'static str> {
    table::name_of(LINES, line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_senders() {
        table::check::ranges(VECTORS);
        assert!(LINES.is_sorted_by_key(|(line, _)| *line));
        for (vector, sent_by, named) in [
            (0xec, Sender::Timer, Some("local timer")),
            (0xfd, Sender::Cpu, Some("reschedule")),
            (0xfb, Sender::Cpu, Some("call function single")),
            (0x21, Sender::Device, None),
            (0xeb, Sender::Device, None),
            (u64::MAX, Sender::Device, None),
        ] {
            assert_eq!((sender(vector), name(vector)), (sent_by, named), "{vector:#x}");
        }
    }

    /// 0x8000_0b0e is the page fault of a guest (type 3), 0x8000_0202 an NMI.
    #[test]
    fn only_valid_external_interrupts_have_a_vector() {
        for (information, expected) in [
            (0x8000_00ec, Some(0xec)),
            (0x8000_0021, Some(0x21)),
            (0x8000_0b0e, None),
            (0x8000_0202, None),
            (0xec, None),
            (0, None),
        ] {
            assert_eq!(vector(information), expected, "{information:#x}");
        }
    }
}
