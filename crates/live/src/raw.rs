//! Single events as the programs send them -> the vocabulary's.

use vmtax_events::event::{HypercallInterface, MmioAccess};
use vmtax_events::{DetailKind, Event, EventKind, Isa, NO_VCPU};

use crate::layout::Sent;
use crate::rows;

/// The event, if it is one.
pub(crate) fn event(isa: Isa, sent: &Sent) -> Option<Event> {
    Some(Event {
        time_ns: sent.time,
        pid: (sent.id >> 32) as u32,
        tid: sent.id as u32,
        cpu: sent.cpu,
        vcpu: if sent.vcpu == u32::from(u16::MAX) { NO_VCPU } else { sent.vcpu },
        kind: kind(isa, sent)?,
    })
}

/// In the order of `enum what`.
fn kind(isa: Isa, sent: &Sent) -> Option<EventKind> {
    let Sent { a, b, c, .. } = *sent;
    let (reason, is_write) = (|| rows::reason(isa, sent.reason), a != 0);
    Some(match sent.what {
        1 => EventKind::Exit { reason: reason(), info1: a, info2: b },
        2 => EventKind::Entry,
        3 => EventKind::Msr { write: is_write, index: b as u32, data: c },
        4 => EventKind::Pio {
            write: is_write,
            size: (b >> 32) as u8,
            port: b as u16,
            count: c as u32,
        },
        5 => EventKind::Mmio { access: mmio(a)?, len: c as u32, gpa: b },
        6 => EventKind::FastMmio { gpa: a },
        7 => EventKind::Hypercall { interface: interface(a)?, number: b },
        8 => EventKind::PageFault { gpa: a, error_code: b },
        9 => EventKind::Cpuid { function: a as u32, index: b as u32 },
        10 => EventKind::Cr { write: is_write, number: b as u8, value: c },
        11 => EventKind::Apic { write: is_write, register: b as u32, value: c },
        12 => EventKind::GhcbEnter { code: a, info1: b, info2: c },
        13 => EventKind::GhcbMsr { value: a },
        14 => EventKind::VmcsField { write: is_write, field: b as u32 },
        15 => EventKind::UserspaceExit { reason: a as u32, errno: b as u32 as i32 },
        16 => EventKind::NestedExit { reason: reason() },
        17 => EventKind::NestedInject { reason: reason() },
        18 => EventKind::NestedEnter,
        19 => EventKind::Wakeup { ns: a, polled: b == 0 },
        20 => EventKind::Switch { next_tid: a as u32, preempted: b != 0 },
        21 => EventKind::Lost { count: a },
        22 => EventKind::ThreadEnd,
        23 => EventKind::Information { info1: a, info2: b },
        24 => EventKind::SetAttributes { start: a, end: b, attributes: c },
        25 => EventKind::MapRequest { gfn: a, level: b as u8 },
        26 => EventKind::Sysreg { write: is_write, register: b as u32 },
        27 => EventKind::Wait { for_event: is_write },
        _ => return None,
    })
}

/// KVM's numbers: `KVM_TRACE_MMIO_*`.
fn mmio(number: u64) -> Option<MmioAccess> {
    Some(match number {
        0 => MmioAccess::UnsatisfiedRead,
        1 => MmioAccess::Read,
        2 => MmioAccess::Write,
        _ => return None,
    })
}

/// The programs say it by the kind of detail.
fn interface(kind: u64) -> Option<HypercallInterface> {
    Some(match DetailKind::from_u8(u8::try_from(kind).ok()?)? {
        DetailKind::Hypercall => HypercallInterface::Kvm,
        DetailKind::HypervHypercall => HypercallInterface::HyperV,
        DetailKind::XenHypercall => HypercallInterface::Xen,
        DetailKind::Smccc => HypercallInterface::Smccc,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_kind_of_its_own() {
        let sent = |what| Sent { what, a: 2, ..Sent::default() };
        let name = |kind: EventKind| format!("{kind:?}").split(' ').next().unwrap().to_owned();
        let calls = Sent { what: 7, a: 8, b: 3, ..Sent::default() };
        let mut names: Vec<String> = (1..=27)
            .map(|what| if what == 7 { calls } else { sent(what) })
            .map(|sent| name(kind(Isa::Svm, &sent).unwrap()))
            .collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 27);
        assert_eq!((kind(Isa::Svm, &sent(0)), kind(Isa::Svm, &sent(28))), (None, None));
        assert_eq!(kind(Isa::Svm, &sent(7)), None);
    }

    #[test]
    fn words_are_where_the_programs_put_them() {
        let mut bytes = vec![0; 56];
        bytes[0] = 9;
        bytes[8..16].copy_from_slice(&(7_u64 << 32 | 8).to_le_bytes());
        bytes[20..24].copy_from_slice(&0xffff_u32.to_le_bytes());
        bytes[24] = 4;
        bytes[32] = 1;
        bytes[40..48].copy_from_slice(&(2_u64 << 32 | 0x3f8).to_le_bytes());
        bytes[48] = 5;
        let event = event(Isa::Vmx, &Sent::read(&bytes).unwrap()).unwrap();
        assert_eq!((event.time_ns, event.pid, event.tid, event.vcpu), (9, 7, 8, NO_VCPU));
        assert_eq!(event.kind, EventKind::Pio { write: true, size: 2, port: 0x3f8, count: 5 });
        assert!(Sent::read(&bytes[..55]).is_none());
    }
}
