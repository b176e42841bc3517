//! Tracepoint records -> [`Kind`], by the field names, offsets and sizes of the recorded format text.
//!
//! Layouts differ between kernels, so nothing is read at a fixed offset: [`Decoder::parse`] turns a
//! format file (`events/kvm/kvm_exit/format`) into a plan once, and [`Decoder::decode`] follows it.
//! Which fields of which tracepoint make which event is one table, `TRACEPOINTS`.
//!
//! Left out on purpose: the print formats, which are not needed to decode.

use vmtax_events::arm::{self, registers};
use vmtax_events::event::{HypercallInterface, MmioAccess};
use vmtax_events::{Isa, Kind, NO_VCPU, Reason, vmx};

/// Byte order of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    /// x86, arm64.
    Little,
    /// s390, older ppc.
    Big,
}

/// Most fields of an event.
const MAX_FIELDS: usize = 6;

/// How one tracepoint becomes an event.
struct Tracepoint {
    name: &'static str,
    /// Fields without which the record means nothing, then those that read as 0 when a kernel lacks them.
    required: &'static [&'static str],
    optional: &'static [&'static str],
    make: Make,
}

/// From the values of `required` then `optional`.
#[derive(Clone, Copy)]
enum Make {
    /// `None`: this record is not an event.
    Each(fn(&[u64; MAX_FIELDS]) -> Option<Kind>),
    /// `kvm_exit` of arm64.
    Trap,
    /// Most records are of these, which [`Decoder::give`] makes without a call: a [`Kind`] that a function returns is copied in
    /// larger words than it was written in, and the processor waits for that.
    Exit,
    Entry,
    Pio,
}

/// Every tracepoint that the analysis understands. Field names as in Linux `arch/x86/kvm/trace.h`,
/// `include/trace/events/kvm.h` and `include/trace/events/sched.h`, 3.10 to 7.2; those of the probes
/// `vmcs_read` and `vmcs_write` as in `crates/lab/src/probe.rs`.
static TRACEPOINTS: &[Tracepoint] = &[
    Tracepoint {
        name: "kvm_exit",
        required: &["exit_reason"],
        optional: &["isa", "info1", "info2", "intr_info"],
        make: Make::Exit,
    },
    // arm64 (`arch/arm64/kvm/trace_arm.h`, `trace_handle_exit.h`, `hyp_trace.h`), as far as it has events of its own.
    Tracepoint { name: "kvm_exit", required: &["ret", "esr_ec"], optional: &[], make: Make::Trap },
    Tracepoint {
        name: "kvm_guest_fault",
        required: &["ipa", "hsr"],
        optional: &[],
        make: Make::Each(|v| Some(Kind::PageFault { gpa: v[0], error_code: v[1] })),
    },
    Tracepoint {
        name: "kvm_handle_sys_reg",
        required: &["hsr"],
        optional: &[],
        make: Make::Each(|v| {
            let (register, write) = registers::of_syndrome(v[0]);
            Some(Kind::Sysreg { write, register: register as u32 })
        }),
    },
    Tracepoint {
        name: "kvm_sys_access",
        required: &["is_write", "Op0", "Op1", "CRn", "CRm", "Op2"],
        optional: &[],
        make: Make::Each(|v| {
            let register = registers::id(v[1], v[2], v[3], v[4], v[5]) as u32;
            Some(Kind::Sysreg { write: v[0] != 0, register })
        }),
    },
    Tracepoint {
        name: "kvm_hvc_arm64",
        required: &["r0", "imm"],
        optional: &[],
        make: Make::Each(|v| {
            let number = arm::call(v[0], v[1]);
            Some(Kind::Hypercall { interface: HypercallInterface::Smccc, number })
        }),
    },
    Tracepoint {
        name: "kvm_wfx_arm64",
        required: &["is_wfe"],
        optional: &[],
        make: Make::Each(|v| Some(Kind::Wait { for_event: v[0] != 0 })),
    },
    Tracepoint {
        name: "kvm_nested_eret",
        required: &["target_mode", "hcr_el2"],
        optional: &[],
        make: Make::Each(|v| Some(nested_eret(v[0], v[1]))),
    },
    Tracepoint {
        name: "kvm_inject_nested_exception",
        required: &["type", "esr_el2", "source_mode", "hcr_el2"],
        optional: &[],
        make: Make::Each(|v| Some(nested_exception(v[0] as u32, v[1], (v[2], v[3])))),
    },
    Tracepoint {
        name: "kvm_get_timer_map",
        required: &["vcpu_id"],
        optional: &[],
        make: Make::Each(|_| Some(Kind::Runs)),
    },
    Tracepoint { name: "kvm_entry", required: &[], optional: &[], make: Make::Entry },
    Tracepoint {
        name: "kvm_msr",
        required: &["write", "ecx"],
        optional: &["data"],
        make: Make::Each(|v| Some(Kind::Msr { write: v[0] != 0, index: v[1] as u32, data: v[2] })),
    },
    Tracepoint {
        name: "kvm_pio",
        required: &["rw", "port"],
        optional: &["size", "count"],
        make: Make::Pio,
    },
    Tracepoint {
        name: "kvm_mmio",
        required: &["type", "gpa"],
        optional: &["len"],
        make: Make::Each(|v| {
            let access = match v[0] {
                0 => MmioAccess::UnsatisfiedRead,
                1 => MmioAccess::Read,
                2 => MmioAccess::Write,
                _ => return None,
            };
            Some(Kind::Mmio { access, gpa: v[1], len: v[2] as u32 })
        }),
    },
    Tracepoint {
        name: "kvm_fast_mmio",
        required: &["gpa"],
        optional: &[],
        make: Make::Each(|v| Some(Kind::FastMmio { gpa: v[0] })),
    },
    Tracepoint {
        name: "kvm_hypercall",
        required: &["nr"],
        optional: &[],
        make: Make::Each(|v| {
            Some(Kind::Hypercall { interface: HypercallInterface::Kvm, number: v[0] })
        }),
    },
    Tracepoint {
        name: "kvm_hv_hypercall",
        required: &["code"],
        optional: &[],
        make: Make::Each(|v| {
            Some(Kind::Hypercall { interface: HypercallInterface::HyperV, number: v[0] })
        }),
    },
    Tracepoint {
        name: "kvm_xen_hypercall",
        required: &["nr"],
        optional: &[],
        make: Make::Each(|v| {
            Some(Kind::Hypercall { interface: HypercallInterface::Xen, number: v[0] })
        }),
    },
    Tracepoint {
        name: "kvm_page_fault",
        required: &["fault_address"],
        optional: &["error_code"],
        make: Make::Each(|v| Some(Kind::PageFault { gpa: v[0], error_code: v[1] })),
    },
    Tracepoint {
        name: "kvm_mmu_spte_requested",
        required: &["gfn", "level"],
        optional: &[],
        make: Make::Each(|v| Some(Kind::MapRequest { gfn: v[0], level: u8::try_from(v[1]).ok()? })),
    },
    Tracepoint {
        name: "kvm_vm_set_mem_attributes",
        required: &["start", "end", "attr"],
        optional: &[],
        make: Make::Each(|v| {
            Some(Kind::SetAttributes { start: v[0], end: v[1], attributes: v[2] })
        }),
    },
    Tracepoint {
        name: "kvm_cpuid",
        required: &["function"],
        optional: &["index"],
        make: Make::Each(|v| Some(Kind::Cpuid { function: v[0] as u32, index: v[1] as u32 })),
    },
    Tracepoint {
        name: "kvm_cr",
        required: &["rw", "cr"],
        optional: &["val"],
        make: Make::Each(|v| Some(Kind::Cr { write: v[0] != 0, number: v[1] as u8, value: v[2] })),
    },
    Tracepoint {
        name: "kvm_apic",
        required: &["rw", "reg"],
        optional: &["val"],
        make: Make::Each(|v| {
            Some(Kind::Apic { write: v[0] != 0, register: v[1] as u32, value: v[2] })
        }),
    },
    Tracepoint {
        name: "kvm_vmgexit_enter",
        required: &["exit_reason"],
        optional: &["info1", "info2"],
        make: Make::Each(|v| Some(Kind::GhcbEnter { code: v[0], info1: v[1], info2: v[2] })),
    },
    Tracepoint {
        name: "kvm_vmgexit_msr_protocol_enter",
        required: &["ghcb_gpa"],
        optional: &[],
        make: Make::Each(|v| Some(Kind::GhcbMsr { value: v[0] })),
    },
    Tracepoint {
        name: "vmcs_read",
        required: &["field"],
        optional: &[],
        make: Make::Each(|v| vmcs_field(false, v[0])),
    },
    Tracepoint {
        name: "vmcs_write",
        required: &["field"],
        optional: &[],
        make: Make::Each(|v| vmcs_field(true, v[0])),
    },
    Tracepoint {
        name: "kvm_userspace_exit",
        required: &["reason"],
        optional: &["errno"],
        make: Make::Each(|v| Some(Kind::UserspaceExit { reason: v[0] as u32, errno: v[1] as i32 })),
    },
    Tracepoint {
        name: "kvm_nested_vmexit",
        required: &["exit_reason"],
        optional: &["isa"],
        make: Make::Each(|v| Some(Kind::NestedExit { reason: reason(v[1], v[0]) })),
    },
    Tracepoint {
        name: "kvm_nested_vmexit_inject",
        required: &["exit_code"],
        optional: &["isa"],
        make: Make::Each(|v| Some(Kind::NestedInject { reason: reason(v[1], v[0]) })),
    },
    Tracepoint {
        name: "kvm_nested_vmenter",
        required: &[],
        optional: &[],
        make: Make::Each(|_| Some(Kind::NestedEnter)),
    },
    // The name until Linux 6.0.
    Tracepoint {
        name: "kvm_nested_vmrun",
        required: &[],
        optional: &[],
        make: Make::Each(|_| Some(Kind::NestedEnter)),
    },
    Tracepoint {
        name: "kvm_vcpu_wakeup",
        required: &["ns"],
        optional: &["waited"],
        make: Make::Each(|v| Some(Kind::Wakeup { ns: v[0], polled: v[1] == 0 })),
    },
    Tracepoint {
        name: "sched_switch",
        required: &["prev_state", "next_pid"],
        optional: &[],
        // The low 8 bits are the states a task sleeps or dies in (TASK_REPORT and TASK_REPORT_IDLE);
        // a task that leaves the CPU without any could have run on. The bit above says so in words ("R+").
        make: Make::Each(|v| {
            Some(Kind::Switch { preempted: v[0] & 0xff == 0, next_tid: v[1] as u32 })
        }),
    },
];

/// A hypervisor in the VM enters its guest, or itself.
pub(super) fn nested_eret(mode: u64, hcr_el2: u64) -> Kind {
    if arm::is_of_guest(mode, hcr_el2) { Kind::NestedEnter } else { Kind::Runs }
}

/// An exit is handed to a hypervisor in the VM, or an exception of its own.
pub(super) fn nested_exception(kind: u32, esr: u64, (mode, hcr_el2): (u64, u64)) -> Kind {
    if arm::is_of_guest(mode, hcr_el2) {
        Kind::NestedInject { reason: arm::injected(kind, esr) }
    } else {
        Kind::Runs
    }
}

fn reason(isa: u64, code: u64) -> Reason {
    Reason::from_trace(Isa::from_trace(isa as u32), code as u32)
}

/// No encoding has more than 32 bits; a guest that names such a field gets an error.
fn vmcs_field(write: bool, field: u64) -> Option<Kind> {
    Some(Kind::VmcsField { write, field: u32::try_from(field).ok()? })
}

/// Place of a number in a record, from the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    offset: u16,
    /// 1, 2, 4 or 8.
    size: u8,
}

impl Place {
    fn end(self) -> usize {
        usize::from(self.offset) + usize::from(self.size)
    }
}

/// How a number is read: eight bytes that hold it are loaded whatever its size, shifted and masked, so
/// that every field takes the same few instructions. Every record has at least eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    at: u16,
    shift: u8,
    /// 0 for a field that this kernel does not have: it reads as 0.
    mask: u64,
}

impl Field {
    const ABSENT: Field = Field { at: 0, shift: 0, mask: 0 };

    /// For records of at least `min_len` bytes, which is not below 8.
    fn new(place: Option<Place>, min_len: usize, endian: Endian) -> Field {
        let Some(place) = place else { return Field::ABSENT };
        let offset = usize::from(place.offset);
        // A field near the end is loaded with the bytes before it.
        let at = offset.min(min_len.saturating_sub(8));
        let before = offset - at;
        let size = usize::from(place.size);
        let shift = match endian {
            Endian::Little => before,
            Endian::Big => 8usize.saturating_sub(before + size),
        };
        Field { at: at as u16, shift: 8 * shift as u8, mask: u64::MAX >> (64 - 8 * size) }
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
pub struct Decoder {
    /// `kvm_exit`, `sched_switch`, ...
    pub name: String,
    /// The `common_type` of its records.
    pub id: u16,
    endian: Endian,
    min_len: usize,
    common_pid: Field,
    vcpu: Field,
    fields: [Field; MAX_FIELDS],
    make: Option<Make>,
    /// Where sched_switch has the name of the thread that gets the CPU: offset and bytes.
    next_comm: Option<(u16, u8)>,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("name", &self.name)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// vCPU id or [`vmtax_events::NO_VCPU`].
    pub vcpu: u32,
    /// `common_pid`: the thread that was running.
    pub tid: u32,
    /// What happened.
    pub kind: Kind,
}

impl Decoder {
    /// Parses a format file. `None` if it has no name or ID, or if a field that its tracepoint needs is
    /// missing or not a number.
    pub fn parse(format: &str, endian: Endian) -> Option<Decoder> {
        let mut name = None;
        let mut id = None;
        let mut places: Vec<(&str, Place)> = Vec::new();
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
        let find = |wanted: &str| places.iter().find(|(n, _)| *n == wanted).map(|&(_, p)| p);
        let mut decoder = Decoder {
            name: name.to_owned(),
            id,
            endian,
            min_len: 8,
            common_pid: Field::ABSENT,
            vcpu: Field::ABSENT,
            fields: [Field::ABSENT; MAX_FIELDS],
            make: None,
            next_comm,
        };
        let mut of_name = TRACEPOINTS.iter().filter(|t| t.name == name).peekable();
        if of_name.peek().is_none() {
            return Some(decoder);
        }
        // Architectures have tracepoints of the same name with other fields.
        let tracepoint = of_name.find(|t| t.required.iter().all(|name| find(name).is_some()))?;
        let names = tracepoint.required.iter().chain(tracepoint.optional);
        let wanted: Vec<Option<Place>> = names.map(|name| find(name)).collect();
        let common_pid = find("common_pid");
        // On arm64 it is a long, and a field `vcpu` is a pointer.
        let vcpu = find("vcpu_id").or_else(|| find("vcpu").filter(|p| p.size <= 4));
        let used = wanted.iter().chain([&common_pid, &vcpu]).flatten();
        decoder.min_len = used.map(|p| p.end()).max().unwrap_or(0).max(8);
        let field = |place| Field::new(place, decoder.min_len, endian);
        for (slot, &place) in decoder.fields.iter_mut().zip(&wanted) {
            *slot = field(place);
        }
        decoder.common_pid = field(common_pid);
        decoder.vcpu = field(vcpu);
        decoder.make = Some(tracepoint.make);
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
    pub fn decode(&self, raw: &[u8]) -> Option<Decoded> {
        let tid = self.thread(raw, self.endian)?;
        let mut decoded = None;
        self.give(raw, self.endian, |vcpu, kind| decoded = Some(Decoded { vcpu, tid, kind }));
        decoded
    }

    /// The thread of a record.
    #[inline(always)]
    pub(super) fn thread(&self, raw: &[u8], endian: Endian) -> Option<u32> {
        Some(self.common_pid.read(raw, endian)? as u32)
    }

    /// [`Decoder::decode`] for a recorder that gives the thread itself: gives vCPU and what happened. The byte order is
    /// that of the format. `false`: nothing was given.
    #[inline(always)]
    pub(super) fn give(&self, raw: &[u8], endian: Endian, mut give: impl FnMut(u32, Kind)) -> bool {
        self.give_to(raw, endian, &mut give).is_some()
    }

    #[inline(always)]
    fn give_to(&self, raw: &[u8], endian: Endian, give: &mut impl FnMut(u32, Kind)) -> Option<()> {
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
            Make::Entry => give(vcpu, Kind::Entry),
            Make::Exit => {
                let reason = reason(value(1)?, value(0)?);
                let is_interrupt = self.fields[4].mask != 0
                    && reason.isa == Isa::Vmx
                    && reason.code == vmx::EXTERNAL_INTERRUPT;
                // Kernels that have `intr_info` have an interrupt's vector there.
                let info2 = value(if is_interrupt { 4 } else { 3 })?;
                give(vcpu, Kind::Exit { reason, info1: value(2)?, info2 });
            }
            Make::Trap => {
                let (ret, class) = (value(0)? as u32, value(1)? as u32);
                give(vcpu, Kind::Exit { reason: arm::reason(ret, class), info1: 0, info2: 0 });
            }
            Make::Pio => {
                let (write, port) = (value(0)? != 0, value(1)? as u16);
                let (size, count) = (value(2)? as u8, value(3)? as u32);
                give(vcpu, Kind::Pio { write, size, port, count });
            }
            Make::Each(make) => {
                let mut values = [0; MAX_FIELDS];
                for (n, slot) in values.iter_mut().enumerate() {
                    *slot = value(n)?;
                }
                give(vcpu, make(&values)?);
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

fn parse_field(text: &str) -> Option<(&str, Place)> {
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
    Some((name, Place { offset: offset?, size }))
}

#[cfg(test)]
mod tests {
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
            let decoder = Decoder::parse(EXIT, endian).unwrap();
            assert_eq!((decoder.name.as_str(), decoder.id), ("kvm_exit", 1419));
            let decoded = decoder.decode(&record(endian)).unwrap();
            assert_eq!((decoded.vcpu, decoded.tid), (3, 77));
            // The failed-entry flag is kept apart from the reason; a missing field (info2) reads as 0.
            let reason = Reason { isa: Isa::Vmx, code: 0x21, flags: 0x8000_0000 };
            assert_eq!(decoded.kind, Kind::Exit { reason, info1: 0x1234_5678_9abc, info2: 0 });
        }
    }

    #[test]
    fn short_records_and_incomplete_formats_are_refused() {
        let decoder = Decoder::parse(EXIT, Endian::Little).unwrap();
        for len in 0..60 {
            assert_eq!(decoder.decode(&record(Endian::Little)[..len]), None);
        }
        assert!(Decoder::parse(&EXIT.replace("exit_reason", "esr_ec"), Endian::Little).is_none());
        assert!(Decoder::parse("name: kvm_exit\n", Endian::Little).is_none());
    }

    #[test]
    fn an_absent_optional_field_does_not_hide_later_ones() {
        let format = EXIT.replace("u32 isa", "u32 other").replace("u64 info1", "u64 info2");
        let decoder = Decoder::parse(&format, Endian::Little).unwrap();
        let Kind::Exit { reason, info1, info2 } =
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
        let decoder = Decoder::parse(&format, Endian::Little).unwrap();
        let mut raw = record(Endian::Little);
        raw[40..48].copy_from_slice(&5_u64.to_le_bytes());
        raw[48..52].copy_from_slice(&0x8000_00ec_u32.to_le_bytes());
        let info2 = |raw: &[u8]| match decoder.decode(raw).unwrap().kind {
            Kind::Exit { info2, .. } => info2,
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
        let decoder = Decoder::parse(format, Endian::Little).unwrap();
        let record = |field: u64| {
            let mut raw = vec![0xa6, 6, 0, 0, 77, 0, 0, 0];
            raw.extend(0xffff_ffff_c0aa_041a_u64.to_le_bytes());
            raw.extend(field.to_le_bytes());
            raw
        };
        let kind = Kind::VmcsField { write: true, field: 0x681e };
        assert_eq!(decoder.decode(&record(0x681e)), Some(Decoded { vcpu: NO_VCPU, tid: 77, kind }));
        assert_eq!(decoder.decode(&record(0x1_0000_681e)), None);
        let read =
            Decoder::parse(&format.replace("vmcs_write", "vmcs_read"), Endian::Little).unwrap();
        let kind = Kind::VmcsField { write: false, field: 0x4402 };
        assert_eq!(read.decode(&record(0x4402)), Some(Decoded { vcpu: NO_VCPU, tid: 77, kind }));
    }

    #[test]
    fn every_tracepoint_fits_the_plan() {
        for t in TRACEPOINTS {
            assert!(t.required.len() + t.optional.len() <= MAX_FIELDS, "{}", t.name);
        }
    }
}
