//! Instructions that change how a guest's addresses are translated.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// MOV to CR3.
    Cr3,
    /// INVLPG of an address.
    Page(Operand),
    /// INVPCID, INVLPG of an address that is not decoded, or INVLPGA of the host.
    All,
}

/// The address of an operand in memory: registers by their numbers in instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operand {
    pub(crate) base: Option<u8>,
    /// And the number of bits by which it is shifted.
    pub(crate) index: Option<(u8, u8)>,
    pub(crate) offset: i32,
}

impl Operand {
    /// Its address, without a segment's base, if registers have these values.
    pub(crate) fn address(self, register: impl Fn(u8) -> u64) -> u64 {
        let base = self.base.map_or(0, &register);
        let index = self.index.map_or(0, |(number, shift)| register(number) << shift);
        base.wrapping_add(index).wrapping_add_signed(self.offset.into())
    }
}

/// What an instruction in 64-bit mode changes, of a guest or of its host.
pub(crate) fn change(bytes: &[u8], is_guest: bool) -> Option<Change> {
    let is_prefix = |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 | 0x40..=0x4f);
    let first = bytes.iter().position(|byte| !is_prefix(byte))?;
    // REX is the last of the prefixes.
    let rex = first.checked_sub(1).map_or(0, |at| bytes[at]);
    let rex = if rex & 0xf0 == 0x40 { rex } else { 0 };
    match (&bytes[first..], is_guest) {
        ([0x0f, 0x01, 0xdf], false) | ([0x0f, 0x38, 0x82, ..], true) => Some(Change::All),
        ([0x0f, 0x22, form], true) if form >> 3 & 7 == 3 && rex & 4 == 0 => Some(Change::Cr3),
        ([0x0f, 0x01, form, rest @ ..], true) if form >> 3 & 7 == 7 && form >> 6 != 3 => {
            Some(operand(rex, *form, rest).map_or(Change::All, Change::Page))
        }
        _ => None,
    }
}

/// The operand behind a ModRM byte. `None` for one that is relative to RIP, or cut off.
fn operand(rex: u8, form: u8, rest: &[u8]) -> Option<Operand> {
    let (mode, low) = (form >> 6, form & 7);
    let (base, index, rest) = if low == 4 {
        let (sib, rest) = rest.split_first()?;
        let index = (sib >> 3 & 7) | (rex & 2) << 2;
        let base = sib & 7;
        let base = (mode != 0 || base != 5).then_some(base | (rex & 1) << 3);
        (base, (index != 4).then_some((index, sib >> 6)), rest)
    } else if mode == 0 && low == 5 {
        return None;
    } else {
        (Some(low | (rex & 1) << 3), None, rest)
    };
    let offset = match (mode, base) {
        (1, _) => i32::from(*rest.first()? as i8),
        (2, _) | (0, None) => i32::from_le_bytes(rest.get(..4)?.try_into().ok()?),
        _ => 0,
    };
    Some(Operand { base, index, offset })
}
