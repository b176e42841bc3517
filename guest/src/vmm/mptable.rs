//! The table by which a Linux guest finds its APICs, where it has no ACPI: Intel's MultiProcessor Specification 1.4, chapter 4.
//!
//! Without it Linux takes the machine for one of before 1994, whose timer is a chip behind ports and whose interrupts come
//! through two others: exits that no VM of today has.

/// Where Linux looks: the last KiB below 640 KiB.
pub(crate) const AT: u64 = 0x9_fc00;

const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;
const IO_APIC_ID: u8 = 1;
const INTERRUPTS: u8 = 16;

/// Kinds of interrupt.
const INT: u8 = 0;
const NMI: u8 = 1;
const EXT_INT: u8 = 3;

/// The pointer and the table after it, for one processor.
pub(crate) fn bytes() -> Vec<u8> {
    let mut entries: Vec<Vec<u8>> = vec![
        // A processor: number 0, enabled, the one that boots; family 6 with an FPU and an APIC.
        [&[0, 0, 0x14, 3, 0, 6, 0, 0, 1, 2, 0, 0][..], &[0; 8]].concat(),
        [&[1, 0][..], b"ISA   "].concat(),
        [&[2, IO_APIC_ID, 0x11, 1][..], &IO_APIC.to_le_bytes()].concat(),
    ];
    // KVM's own routing: each interrupt at the pin of its number.
    entries.extend((0..INTERRUPTS).map(|n| vec![3, INT, 0, 0, 0, n, IO_APIC_ID, n]));
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
