//! The table by which a Linux guest finds its APICs, where it has no ACPI: Intel's MultiProcessor Specification 1.4, chapter 4.
//!
//! Without it Linux takes the machine for one of before 1994, whose timer is a chip behind ports and whose interrupts come
//! through two others: exits that no VM of today has.

/// Where Linux looks: the last KiB below 640 KiB.
pub(crate) const AT: u64 = 0x9_fc00;

const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;
const INTERRUPTS: u8 = 16;

/// Kinds of interrupt.
const INT: u8 = 0;
const NMI: u8 = 1;
const EXT_INT: u8 = 3;

/// Most processors for which the table has room.
pub(crate) const MOST: u32 = 16;

/// The pointer and the table after it, for so many processors, at most [`MOST`], of which the first boots.
pub(crate) fn bytes(cpus: u32) -> Vec<u8> {
    let cpus = cpus as u8;
    let mut entries: Vec<Vec<u8>> = Vec::new();
    for number in 0..cpus {
        // Enabled, and the one that boots; family 6 with an FPU and an APIC.
        let flags = if number == 0 { 3 } else { 1 };
        entries.push([&[0, number, 0x14, flags, 0, 6, 0, 0, 1, 2, 0, 0][..], &[0; 8]].concat());
    }
    // Its number is one that no processor has.
    let io_apic = cpus;
    entries.push([&[1, 0][..], b"ISA   "].concat());
    entries.push([&[2, io_apic, 0x11, 1][..], &IO_APIC.to_le_bytes()].concat());
    // KVM's own routing: each interrupt at the pin of its number.
    entries.extend((0..INTERRUPTS).map(|n| vec![3, INT, 0, 0, 0, n, io_apic, n]));
    entries.push(vec![4, EXT_INT, 0, 0, 0, 0, 0, 0]);
    entries.push(vec![4, NMI, 0, 0, 0, 0, 0xff, 1]);
    let body = entries.concat();
    let mut table = b"PCMP".to_vec();
    table.extend((44 + body.len() as u16).to_le_bytes());
    table.extend([4, 0]);
    table.extend(b"VMTAX   GUEST       ");
    table.extend([0; 6]);
    table.extend((entries.len() as u16).to_le_bytes());
    table.extend(LOCAL_APIC.to_le_bytes());
    table.extend([0; 4]);
    table.extend(body);
    balance(&mut table, 7);
    let mut pointer = b"_MP_".to_vec();
    pointer.extend((AT as u32 + 16).to_le_bytes());
    pointer.extend([1, 4, 0, 0, 0, 0, 0, 0]);
    balance(&mut pointer, 10);
    [pointer, table].concat()
}

/// Sets the byte that makes the sum of all zero.
fn balance(bytes: &mut [u8], at: usize) {
    let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[at] = sum.wrapping_neg();
}
