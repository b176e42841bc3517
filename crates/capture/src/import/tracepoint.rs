//! Tracepoint records -> [`EventKind`], by the field names, offsets and sizes of the recorded format text.
//!
//! Layouts differ between kernels, so nothing is read at a fixed offset: [`RecordDecoder::parse`] turns a
//! format file (`events/kvm/kvm_exit/format`) into a plan once, and [`RecordDecoder::decode`] follows it.
//! Which fields of which tracepoint make which event is one table, of texts too: `table`.
//!
//! Left out on purpose: the print formats, which are not needed to decode.

pub(crate) mod table;

use vmtax_events::{EventKind, Isa, NO_VCPU, vmx};

use crate::import::text::payload::MAX_FIELDS;
use table::{Make, POINTER_OR_VCPU, TRACEPOINTS, VCPU, reason, trap};

/// Byte order of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    /// x86, arm64.
    Little,
    /// s390, older ppc.
    Big,
}

/// Place of a number in a record, from the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NumberPlace {
    offset: u16,
    /// 1, 2, 4 or 8.
    size: u8,
}

impl NumberPlace {
    fn end(self) -> usize {
        usize::from(self.offset) + usize::from(self.size)
    }
}

/// How a number is read: eight bytes that hold it are loaded whatever its size, shifted and masked, so
/// that every field takes the same few instructions. Every record has at least eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NumberField {
    at: u16,
    shift: u8,
    /// 0 for a field that this kernel does not have: it reads as 0.
    mask: u64,
}

impl NumberField {
    const ABSENT: NumberField = NumberField { at: 0, shift: 0, mask: 0 };

    /// For records of at least `min_len` bytes, which is not below 8.
    fn new(place: Option<NumberPlace>, min_len: usize, endian: Endian) -> NumberField {
        let Some(place) = place else { return NumberField::ABSENT };
        let offset = usize::from(place.offset);
        // A field near the end is loaded with the bytes before it.
        let at = offset.min(min_len.saturating_sub(8));
        let before = offset - at;
        let size = usize::from(place.size);
        let shift = match endian {
            Endian::Little => before,
            Endian::Big => 8usize.saturating_sub(before + size),
        };
        NumberField { at: at as u16, shift: 8 * shift as u8, mask: u64::MAX >> (64 - 8 * size) }
    }

    /// The number, without its sign: who needs that narrows it to the signed type of its size.
    #[inline(always)]
    fn read(self, raw: &[u8], endian: Endian) -> Option<u64> {
        let bytes = raw.get(usize::from(self.at)..)?.first_chunk()?;
        let number = match endian {
            Endian::Little => u64::from_le_bytes(*bytes),
            Endian::Big => u64::from_be_bytes(*bytes),
        };
        Some(number >> self.shift & self.mask)
    }
}

/// Decodes the raw records of one tracepoint.
#[derive(Clone)]
pub struct RecordDecoder {
    /// `kvm_exit`, `sched_switch`, ...
    pub name: String,
    /// The `common_type` of its records.
    pub id: u16,
    endian: Endian,
    min_len: usize,
    common_pid: NumberField,
    vcpu: NumberField,
    /// The guest's instruction pointer, of entries and exits.
    rip: NumberField,
    fields: [NumberField; MAX_FIELDS],
    make: Option<Make>,
    /// Some records are no events.
    selects: bool,
    /// Where sched_switch has the name of the thread that gets the CPU: offset and bytes.
    next_comm: Option<(u16, u8)>,
}

impl std::fmt::Debug for RecordDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("name", &self.name)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedRecord {
    /// vCPU id or [`vmtax_events::NO_VCPU`].
    pub vcpu: u32,
    /// `common_pid`: the thread that was running.
    pub tid: u32,
    /// What happened.
    pub kind: EventKind,
}

impl RecordDecoder {
    /// Parses a format file. `None` if it has no name or ID, if a field that its tracepoint needs is
    /// missing, or if one that is used is not a number.
    pub fn parse(format: &str, endian: Endian) -> Option<RecordDecoder> {
        let mut name = None;
        let mut id = None;
        let mut places: Vec<(&str, NumberPlace)> = Vec::new();
        let mut next_comm = None;
        for line in format.lines() {
            let line = line.trim();
            if let Some(n) = line.strip_prefix("name:") {
                name = Some(n.trim());
            } else if let Some(n) = line.strip_prefix("ID:") {
                id = n.trim().parse::<u16>().ok();
            } else if let Some(rest) = line.strip_prefix("field:") {
                places.extend(parse_field(rest));
                next_comm = next_comm.or_else(|| text_field(rest, "next_comm"));
            } else if line.starts_with("print fmt:") {
                break;
            }
        }
        let (name, id) = (name?, id?);
        let find = |wanted: &str| {
            let place = places.iter().find(|(n, _)| *n == wanted).map(|&(_, p)| p);
            place.or_else(|| element(format, wanted))
        };
        let mut decoder = RecordDecoder {
            name: name.to_owned(),
            id,
            endian,
            min_len: 8,
            common_pid: NumberField::ABSENT,
            vcpu: NumberField::ABSENT,
            rip: NumberField::ABSENT,
            fields: [NumberField::ABSENT; MAX_FIELDS],
            make: None,
            selects: false,
            next_comm,
        };
        let mut of_name = TRACEPOINTS.iter().filter(|t| t.name == name).peekable();
        if of_name.peek().is_none() {
            return Some(decoder);
        }
        let tracepoint = of_name.find(|t| t.is_for(|field| find(field).is_some()))?;
        let mut wanted: Vec<Option<NumberPlace>> = Vec::new();
        for field in tracepoint.fields() {
            let place = field.names.iter().find_map(|name| find(name));
            // `info1[8]` is an array of that name.
            let is_there = || {
                let mut names = field_names(format).filter_map(|name| name.split('[').next());
                names.any(|name| field.names.contains(&name))
            };
            if place.is_none() && is_there() {
                return None;
            }
            wanted.push(place);
        }
        let common_pid = find("common_pid");
        let find_any = |field: table::TableField| field.names.iter().find_map(|name| find(name));
        let vcpu = find_any(VCPU).or_else(|| find_any(POINTER_OR_VCPU).filter(|p| p.size <= 4));
        let rip = tracepoint.rip.and_then(find);
        let used = wanted.iter().chain([&common_pid, &vcpu, &rip]).flatten();
        decoder.min_len = used.map(|p| p.end()).max().unwrap_or(0).max(8);
        let field = |place| NumberField::new(place, decoder.min_len, endian);
        for (slot, &place) in decoder.fields.iter_mut().zip(&wanted) {
            *slot = field(place);
        }
        decoder.common_pid = field(common_pid);
        decoder.vcpu = field(vcpu);
        decoder.rip = field(rip);
        decoder.make = Some(tracepoint.make);
        decoder.selects = tracepoint.selects;
        Some(decoder)
    }

    /// The name of the thread that gets the CPU, of a record of sched_switch: it may have no other record. Untrusted.
    pub fn next_name<'r>(&self, raw: &'r [u8]) -> Option<&'r [u8]> {
        let (offset, size) = self.next_comm?;
        let field = raw.get(usize::from(offset)..)?.get(..usize::from(size))?;
        field.split(|b| *b == 0).next().filter(|name| !name.is_empty())
    }

    /// Whether the analysis wants this tracepoint at all; records of others are skipped unread.
    pub fn is_wanted(&self) -> bool {
        self.make.is_some()
    }

    /// Decodes a record (from its `common_type` on). `None` if it is too short for its fields, or a value
    /// is outside of what its tracepoint can say.
    pub fn decode(&self, raw: &[u8]) -> Option<DecodedRecord> {
        let tid = self.thread(raw, self.endian)?;
        let mut decoded = None;
        self.give(raw, self.endian, |vcpu, kind| decoded = Some(DecodedRecord { vcpu, tid, kind }));
        decoded
    }

    /// Whether a whole record that gives nothing is one that is no event.
    pub(super) fn skips(&self, raw: &[u8]) -> bool {
        self.selects && raw.len() >= self.min_len
    }

    /// The thread of a record.
    #[inline(always)]
    pub(super) fn thread(&self, raw: &[u8], endian: Endian) -> Option<u32> {
        Some(self.common_pid.read(raw, endian)? as u32)
    }

    /// The guest's instruction pointer of a record, if its tracepoint is an entry or exit and this kernel's has it.
    #[inline(always)]
    pub(super) fn rip(&self, raw: &[u8], endian: Endian) -> Option<u64> {
        if self.rip.mask == 0 || raw.len() < self.min_len {
            return None;
        }
        self.rip.read(raw, endian)
    }

    /// [`RecordDecoder::decode`] for a recorder that gives the thread itself: gives vCPU and what happened. The byte order is
    /// that of the format. `false`: the record could not be read.
    #[inline(always)]
    pub(super) fn give(
        &self,
        raw: &[u8],
        endian: Endian,
        mut give: impl FnMut(u32, EventKind),
    ) -> bool {
        self.give_to(raw, endian, &mut give).is_some()
    }

    #[inline(always)]
    fn give_to(
        &self,
        raw: &[u8],
        endian: Endian,
        give: &mut impl FnMut(u32, EventKind),
    ) -> Option<()> {
        let make = self.make?;
        if raw.len() < self.min_len {
            return None;
        }
        let vcpu = match self.vcpu.mask {
            0 => NO_VCPU,
            _ => self.vcpu.read(raw, endian)? as u32,
        };
        let value = |n: usize| self.fields[n].read(raw, endian);
        match make {
            Make::Entry => give(vcpu, EventKind::Entry),
            Make::Exit => {
                let reason = reason(value(1)?, value(0)?);
                let is_interrupt = self.fields[4].mask != 0
                    && reason.isa == Isa::Vmx
                    && reason.code == vmx::EXTERNAL_INTERRUPT;
                // Kernels that have `intr_info` have an interrupt's vector there.
                let info2 = value(if is_interrupt { 4 } else { 3 })?;
                give(vcpu, EventKind::Exit { reason, info1: value(2)?, info2 });
            }
            Make::Pio => {
                let (write, port) = (value(0)? != 0, value(1)? as u16);
                let (size, count) = (value(2)? as u8, value(3)? as u32);
                give(vcpu, EventKind::Pio { write, size, port, count });
            }
            Make::OfReason(make) => give(vcpu, make(reason(value(1)?, value(0)?))),
            Make::Trap => give(vcpu, trap(value(0)?, value(1)?)),
            Make::Each(make) => {
                let mut values = [0; MAX_FIELDS];
                for (n, slot) in values.iter_mut().enumerate() {
                    *slot = value(n)?;
                }
                match make(&values) {
                    Some(kind) => give(vcpu, kind),
                    None if self.selects => {}
                    None => return None,
                }
            }
        }
        Some(())
    }
}

/// The names of the fields of a format file.
pub(super) fn field_names(format: &str) -> impl Iterator<Item = &str> + Clone {
    let lines = format.lines().map(str::trim).take_while(|line| !line.starts_with("print fmt:"));
    lines.filter_map(|line| {
        let declaration = line.strip_prefix("field:")?.split(';').next()?;
        declaration.rsplit([' ', '*', '\t']).next()
    })
}

/// `unsigned int exit_reason; offset:8; size:4; signed:0;` -> name and place, if it is a number.
/// A field `char NAME[N]`: its place and its number of bytes.
fn text_field(text: &str, name: &str) -> Option<(u16, u8)> {
    let mut parts = text.split(';').map(str::trim);
    let array = parts.next()?.strip_prefix("char ")?.strip_prefix(name)?;
    let number = |word: &str, rest: &str| rest.strip_prefix(word)?.parse::<u16>().ok();
    let (mut offset, mut size) = (None, None);
    for part in parts {
        offset = offset.or_else(|| number("offset:", part));
        size = size.or_else(|| number("size:", part));
    }
    let size = u8::try_from(size?).ok().filter(|_| array.starts_with('['))?;
    Some((offset?, size))
}

/// A number of an array, `args[1]` of `unsigned long args[6]; offset:16; size:48; signed:0;`.
fn element(format: &str, wanted: &str) -> Option<NumberPlace> {
    let (array, index) = wanted.strip_suffix(']')?.split_once('[')?;
    let index: u16 = index.parse().ok()?;
    let of = |line: &str| {
        let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
        let name = parts.next()?.rsplit(' ').next()?;
        let count: u16 =
            name.strip_prefix(array)?.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
        let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse::<u16>().ok();
        let (offset, bytes) = (number("offset:")?, number("size:")?);
        let size = u8::try_from(bytes.checked_div(count)?).ok()?;
        let is_number = matches!(size, 1 | 2 | 4 | 8) && index < count;
        let offset = offset.checked_add(index.checked_mul(size.into())?)?;
        is_number.then_some(NumberPlace { offset, size })
    };
    format.lines().find_map(of)
}

fn parse_field(text: &str) -> Option<(&str, NumberPlace)> {
    let mut parts = text.split(';').map(str::trim);
    let declaration = parts.next()?;
    let (mut offset, mut size) = (None, None);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", n)) => offset = n.parse::<u16>().ok(),
            Some(("size", n)) => size = n.parse::<u8>().ok(),
            _ => {}
        }
    }
    let name = declaration.rsplit([' ', '*', '\t']).next()?;
    let size = size.filter(|s| matches!(s, 1 | 2 | 4 | 8))?;
    if name.contains('[')
        || declaration.starts_with("__data_loc")
        || declaration.starts_with("__rel_loc")
    {
        return None;
    }
    Some((name, NumberPlace { offset: offset?, size }))
}

#[cfg(test)]
mod tests {
    use vmtax_events::Reason;

    use super::*;

    const EXIT: &str = "name: kvm_exit\nID: 1419\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:u32 isa;\toffset:24;\tsize:4;\tsigned:0;\n\
        \tfield:u64 info1;\toffset:32;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned int vcpu_id;\toffset:56;\tsize:4;\tsigned:0;\n\
        print fmt: \"field:int x; offset:0\"\n";

    fn record(endian: Endian) -> Vec<u8> {
        let mut raw = vec![0; 60];
        let mut put = |at: usize, n: u64, size: usize| {
            let bytes = match endian {
                Endian::Little => n.to_le_bytes()[..size].to_vec(),
                Endian::Big => n.to_be_bytes()[8 - size..].to_vec(),
            };
            raw[at..at + size].copy_from_slice(&bytes);
        };
        put(0, 1419, 2);
        put(4, 77, 4);
        put(8, 0x8000_0021, 4);
        put(24, 1, 4);
        put(32, 0x1234_5678_9abc, 8);
        put(56, 3, 4);
        raw
    }

    #[test]
    fn reads_by_name_in_both_byte_orders() {
        for endian in [Endian::Little, Endian::Big] {
            let decoder = RecordDecoder::parse(EXIT, endian).unwrap();
            assert_eq!((decoder.name.as_str(), decoder.id), ("kvm_exit", 1419));
            let decoded = decoder.decode(&record(endian)).unwrap();
            assert_eq!((decoded.vcpu, decoded.tid), (3, 77));
            // The failed-entry flag is kept apart from the reason; a missing field (info2) reads as 0.
            let reason = Reason { isa: Isa::Vmx, code: 0x21, flags: 0x8000_0000 };
            assert_eq!(decoded.kind, EventKind::Exit { reason, info1: 0x1234_5678_9abc, info2: 0 });
        }
    }

    /// `raw_syscalls/sys_enter` has its arguments in an array.
    #[test]
    fn arguments_are_numbers_of_an_array() {
        let format = "name: sys_enter\nID: 7\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\
            \tfield:long id;\toffset:8;\tsize:8;\tsigned:1;\n\
            \tfield:unsigned long args[6];\toffset:16;\tsize:48;\tsigned:0;\n";
        let decoder = RecordDecoder::parse(format, Endian::Little).unwrap();
        let words: [u64; 8] = [7, 16, 11, 0x4040_ae79, 0x7ffd, 0, 0, 0];
        let mut raw = words.map(u64::to_le_bytes).concat();
        raw[4] = 77;
        let decoded = decoder.decode(&raw).unwrap();
        let request = EventKind::Ioctl { descriptor: 11, request: 0x4040_ae79 };
        assert_eq!((decoded.tid, decoded.kind), (77, request));
        // Another call, and another driver's request.
        for (at, value) in [(8, 3), (24, 0x5401)] {
            let mut other = raw.clone();
            other[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
            assert_eq!((decoder.decode(&other), decoder.skips(&other)), (None, true));
        }
        assert!(
            RecordDecoder::parse(&format.replace("args[6]", "args[1]"), Endian::Little).is_none()
        );
    }

    #[test]
    fn short_records_and_incomplete_formats_are_refused() {
        let decoder = RecordDecoder::parse(EXIT, Endian::Little).unwrap();
        for len in 0..60 {
            assert_eq!(decoder.decode(&record(Endian::Little)[..len]), None);
        }
        assert!(
            RecordDecoder::parse(&EXIT.replace("exit_reason", "esr_ec"), Endian::Little).is_none()
        );
        assert!(RecordDecoder::parse("name: kvm_exit\n", Endian::Little).is_none());
    }

    #[test]
    fn an_absent_optional_field_does_not_hide_later_ones() {
        let format = EXIT.replace("u32 isa", "u32 other").replace("u64 info1", "u64 info2");
        let decoder = RecordDecoder::parse(&format, Endian::Little).unwrap();
        let EventKind::Exit { reason, info1, info2 } =
            decoder.decode(&record(Endian::Little)).unwrap().kind
        else {
            panic!("not an exit")
        };
        assert_eq!((reason.isa, info1, info2), (Isa::Unknown, 0, 0x1234_5678_9abc));
    }

    #[test]
    fn an_interrupt_has_its_vector() {
        let format = EXIT.replace(
            "\tfield:unsigned int vcpu_id",
            "\tfield:u64 info2;\toffset:40;\tsize:8;\tsigned:0;\n\
             \tfield:u32 intr_info;\toffset:48;\tsize:4;\tsigned:0;\n\
             \tfield:unsigned int vcpu_id",
        );
        let decoder = RecordDecoder::parse(&format, Endian::Little).unwrap();
        let mut raw = record(Endian::Little);
        raw[40..48].copy_from_slice(&5_u64.to_le_bytes());
        raw[48..52].copy_from_slice(&0x8000_00ec_u32.to_le_bytes());
        let info2 = |raw: &[u8]| match decoder.decode(raw).unwrap().kind {
            EventKind::Exit { info2, .. } => info2,
            other => panic!("{other:?}"),
        };
        // Of another exit it is an exception's, or old.
        assert_eq!(info2(&raw), 5);
        raw[8..12].copy_from_slice(&vmx::EXTERNAL_INTERRUPT.to_le_bytes());
        assert_eq!(info2(&raw), 0x8000_00ec);
    }

    #[test]
    fn probes_name_vmcs_fields() {
        // As Linux 6.1 describes a kprobe event.
        let format = "name: vmcs_write\nID: 1702\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
            \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\
            \tfield:u64 field;\toffset:16;\tsize:8;\tsigned:0;\n\n\
            print fmt: \"(%lx) field=%Lu\", REC->__probe_ip, REC->field\n";
        let decoder = RecordDecoder::parse(format, Endian::Little).unwrap();
        let record = |field: u64| {
            let mut raw = vec![0xa6, 6, 0, 0, 77, 0, 0, 0];
            raw.extend(0xffff_ffff_c0aa_041a_u64.to_le_bytes());
            raw.extend(field.to_le_bytes());
            raw
        };
        let kind = EventKind::VmcsField { write: true, field: 0x681e };
        assert_eq!(
            decoder.decode(&record(0x681e)),
            Some(DecodedRecord { vcpu: NO_VCPU, tid: 77, kind })
        );
        assert_eq!(decoder.decode(&record(0x1_0000_681e)), None);
        let read = RecordDecoder::parse(&format.replace("vmcs_write", "vmcs_read"), Endian::Little)
            .unwrap();
        let kind = EventKind::VmcsField { write: false, field: 0x4402 };
        assert_eq!(
            read.decode(&record(0x4402)),
            Some(DecodedRecord { vcpu: NO_VCPU, tid: 77, kind })
        );
    }

    /// A field that is there and is no number is none of the blanks of older kernels.
    #[test]
    fn a_used_field_that_cannot_be_read_refuses_the_format() {
        let odd = EXIT.replace("u64 info1;\toffset:32;\tsize:8", "u64 info1;\toffset:32;\tsize:3");
        assert!(RecordDecoder::parse(&odd, Endian::Little).is_none());
        let old = EXIT.replace("kvm_exit", "kvm_nested_vmexit").replace("exit_reason", "exit_code");
        let decoder = RecordDecoder::parse(&old, Endian::Little).unwrap();
        let reason = Reason { isa: Isa::Vmx, code: 0x21, flags: 0x8000_0000 };
        let kind = decoder.decode(&record(Endian::Little)).unwrap().kind;
        assert_eq!(kind, EventKind::NestedExit { reason });
    }

    #[test]
    fn entries_and_exits_have_the_instruction_pointer() {
        let format = EXIT.replace("u32 other", "u32 isa").replace(
            "\tfield:u32 isa",
            "\tfield:unsigned long guest_rip;\toffset:16;\tsize:8;\tsigned:0;\n\tfield:u32 isa",
        );
        let decoder = RecordDecoder::parse(&format, Endian::Little).unwrap();
        let mut raw = record(Endian::Little);
        assert_eq!(decoder.rip(&raw, Endian::Little), Some(0));
        raw[16] = 7;
        assert_eq!(decoder.rip(&raw, Endian::Little), Some(7));
        let without = RecordDecoder::parse(EXIT, Endian::Little).unwrap();
        assert_eq!(without.rip(&raw, Endian::Little), None);
    }
}
