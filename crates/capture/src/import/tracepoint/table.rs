//! The one table of tracepoints that the analysis understands: which fields make which event, for binary records
//! and for texts alike.
//!
//! A record's fields are found by the names of its format file, a text's by the same names where it gives
//! `key=value`, and else by the printed form, for which each row has a reader. All three give the values of one
//! row, from which one function makes the event. A field that a kernel lacks is 0; one that is there and cannot be
//! read is a loss.

use vmtax_events::arm::{self, registers};
use vmtax_events::event::{HypercallInterface, InterruptAt, MmioAccess};
use vmtax_events::{EventKind, Isa, NO_VCPU, Reason};

use crate::import::text::payload::{
    self, MAX_FIELDS, PayloadReader, SaidEvent, TextPayload, Values,
};
use crate::import::text::reason::Reasons;
use crate::import::text::words::number;

/// How a tracepoint becomes an event.
pub(crate) struct Tracepoint {
    pub(crate) name: &'static str,
    /// Fields without which the record means nothing.
    pub(crate) required: &'static [TableField],
    /// Those that read as 0 when a kernel lacks them.
    pub(crate) optional: &'static [TableField],
    /// A field that the event of this name has on other architectures.
    elsewhere: Option<&'static str>,
    pub(crate) make: Make,
    /// Reads the printed form.
    printed: PayloadReader,
    /// The field that has the guest's instruction pointer.
    pub(crate) rip: Option<&'static str>,
    /// Marks `key=value` texts of an older libtraceevent, which prints all numbers without `0x` in decimal.
    is_decimal: fn(TextPayload<'_>) -> bool,
    /// Its printed form is one of `key=value` that has to be read with care.
    prints_fields: bool,
    /// Some of its records are no events.
    pub(crate) selects: bool,
}

/// A field: its names, the newest first, its width, and the base in which the kernel prints it.
#[derive(Clone, Copy)]
pub(crate) struct TableField {
    pub(crate) names: &'static [&'static str],
    bits: u32,
    is_hex: bool,
}

/// Printed in hexadecimal.
const fn hex(bits: u32, names: &'static [&'static str]) -> TableField {
    TableField { names, bits, is_hex: true }
}

/// Printed in decimal, or as a word.
const fn decimal(bits: u32, names: &'static [&'static str]) -> TableField {
    TableField { names, bits, is_hex: false }
}

impl TableField {
    fn fits(self, value: u64) -> bool {
        let above = value >> (self.bits - 1) >> 1;
        // A negative number is one of two's complement in any width.
        above == 0
            || (self.bits == 32
                && value.cast_signed() >= i32::MIN.into()
                && value.cast_signed() < 0)
    }

    fn read(self, payload: TextPayload<'_>) -> Option<Option<u64>> {
        let Some(word) = self.names.iter().find_map(|name| payload.field(name)) else {
            return Some(None);
        };
        let value = if self.is_hex { payload.hex(word) } else { number(word) }?;
        let mask = u64::MAX >> (64 - self.bits);
        self.fits(value).then_some(Some(value & mask))
    }
}

/// From the values of `required` then `optional`.
#[derive(Clone, Copy)]
pub(crate) enum Make {
    /// `None`: this record is not an event.
    Each(fn(&Values) -> Option<EventKind>),
    /// The first two are `exit_reason` and `isa`.
    OfReason(fn(Reason) -> EventKind),
    /// `kvm_exit` of arm64: `ret` and `esr_ec`.
    Trap,
    /// Most records are of these, which the decoder of records makes without a call: a [`Kind`] that a function returns is
    /// copied in larger words than it was written in, and the processor waits for that. The last value of an exit is
    /// `intr_info`, which only the decoder of records still has to put in the place of `info2`.
    Exit,
    Entry,
    Pio,
}

impl Make {
    fn kind(self, v: &Values) -> Option<EventKind> {
        match self {
            Make::Each(make) => make(v),
            Make::OfReason(make) => Some(make(reason(v[1], v[0]))),
            Make::Trap => Some(trap(v[0], v[1])),
            Make::Exit => {
                Some(EventKind::Exit { reason: reason(v[1], v[0]), info1: v[2], info2: v[3] })
            }
            Make::Entry => Some(EventKind::Entry),
            Make::Pio => Some(EventKind::Pio {
                write: v[0] != 0,
                port: v[1] as u16,
                size: v[2] as u8,
                count: v[3] as u32,
            }),
        }
    }

    fn has_reason(self) -> bool {
        matches!(self, Make::Exit | Make::OfReason(_))
    }
}

const WOKEN_THREAD: &[TableField] = &[decimal(32, &["pid"])];

/// A thread can run again.
const fn woken(name: &'static str) -> Tracepoint {
    Tracepoint::new(
        name,
        payload::woken,
        Make::Each(|v| Some(EventKind::Woken { woken_tid: v[0] as u32 })),
    )
    .needs(WOKEN_THREAD)
    .prints_fields()
}

/// An exit of arm64.
pub(crate) fn trap(ret: u64, class: u64) -> EventKind {
    EventKind::Exit { reason: arm::reason(ret as u32, class as u32), info1: 0, info2: 0 }
}

/// A hypervisor in the VM enters its guest, or itself.
fn nested_eret(spsr: u64, hcr_el2: u64) -> EventKind {
    if arm::is_of_guest(spsr & MODE, hcr_el2) { EventKind::NestedEnter } else { EventKind::Runs }
}

/// An exit is handed to a hypervisor in the VM, or an exception of its own.
fn nested_exception(kind: u64, esr: u64, (spsr, hcr_el2): (u64, u64)) -> EventKind {
    if arm::is_of_guest(spsr & MODE, hcr_el2) {
        EventKind::NestedInject { reason: arm::injected(kind as u32, esr) }
    } else {
        EventKind::Runs
    }
}

/// The mode of a PSTATE (Linux `arch/arm64/include/uapi/asm/ptrace.h`, `PSR_MODE_MASK` and `PSR_MODE32_BIT`).
const MODE: u64 = 0x1f;

pub(crate) fn reason(isa: u64, code: u64) -> Reason {
    Reason::from_trace(Isa::from_trace(isa as u32), code as u32)
}

impl Tracepoint {
    const fn new(name: &'static str, printed: PayloadReader, make: Make) -> Tracepoint {
        let is_decimal = |_: TextPayload<'_>| false;
        let (required, optional): (&[TableField], &[TableField]) = (&[], &[]);
        let (rip, prints_fields, selects, elsewhere) = (None, false, false, None);
        Tracepoint {
            name,
            required,
            optional,
            elsewhere,
            make,
            printed,
            rip,
            is_decimal,
            prints_fields,
            selects,
        }
    }

    const fn needs(self, required: &'static [TableField]) -> Tracepoint {
        Tracepoint { required, ..self }
    }

    const fn may_have(self, optional: &'static [TableField]) -> Tracepoint {
        Tracepoint { optional, ..self }
    }

    const fn has_elsewhere(self, name: &'static str) -> Tracepoint {
        Tracepoint { elsewhere: Some(name), ..self }
    }

    const fn rip(self, name: &'static str) -> Tracepoint {
        Tracepoint { rip: Some(name), ..self }
    }

    const fn prints_fields(self) -> Tracepoint {
        Tracepoint { prints_fields: true, ..self }
    }

    const fn selects(self) -> Tracepoint {
        Tracepoint { selects: true, ..self }
    }

    const fn decimal_if(self, is_decimal: fn(TextPayload<'_>) -> bool) -> Tracepoint {
        Tracepoint { is_decimal, ..self }
    }

    /// All fields, in the order of the values.
    pub(crate) fn fields(&self) -> impl Iterator<Item = TableField> {
        self.required.iter().chain(self.optional).copied()
    }

    /// Whether it is the row for an event of its name that has these fields.
    pub(crate) fn is_for(&self, has: impl Fn(&str) -> bool) -> bool {
        let has_any = |field: &TableField| field.names.iter().any(|name| has(name));
        self.required.iter().all(has_any) && !self.elsewhere.is_some_and(has)
    }

    fn text(&self, payload: TextPayload<'_>, reasons: &mut Reasons) -> Option<EventText> {
        let said = if payload.fields && !self.prints_fields {
            self.key_values(payload, reasons)?
        } else {
            (self.printed)(payload, reasons)?
        };
        let kind = self.make.kind(&said.values);
        if let (Make::Trap, Some(EventKind::Exit { reason, .. })) = (self.make, kind) {
            reasons.given(reason);
        }
        (kind.is_some() || self.selects).then_some(EventText {
            vcpu: said.vcpu,
            kind,
            rip: said.rip,
        })
    }

    /// The values of a text of the form `key=value`.
    fn key_values(&self, payload: TextPayload<'_>, reasons: &mut Reasons) -> Option<SaidEvent> {
        if !self.is_for(|name| payload.field(name).is_some()) {
            return None;
        }
        let payload = payload.in_decimal((self.is_decimal)(payload));
        let mut values = [0; MAX_FIELDS];
        let mut has = [false; MAX_FIELDS];
        for (n, field) in self.fields().enumerate() {
            let value = field.read(payload)?;
            (values[n], has[n]) = (value.unwrap_or(0), value.is_some());
        }
        if self.make.has_reason() {
            let raw = values[0] as u32;
            let reason = match Isa::from_trace(values[1] as u32) {
                Isa::Unknown => reasons.number(raw),
                isa => reasons.number_of(isa, raw),
            };
            [values[0], values[1]] = payload::as_recorded(reason);
            if matches!(self.make, Make::Exit) {
                let intr_info = has[INTR_INFO].then_some(values[INTR_INFO]);
                values[INFO2] = payload::interrupted(reason, values[INFO2], intr_info);
            }
        }
        let vcpu = match VCPU.read(payload)? {
            Some(vcpu) => vcpu as u32,
            None => POINTER_OR_VCPU.read(payload).flatten().map_or(NO_VCPU, |vcpu| vcpu as u32),
        };
        if matches!(self.make, Make::Entry) && vcpu == NO_VCPU {
            return None;
        }
        let rip = self.rip.and_then(|name| payload.hex(payload.field(name)?));
        Some(SaidEvent { vcpu, values, rip })
    }
}

/// The vCPU, where a tracepoint has it.
pub(crate) const VCPU: TableField = decimal(32, &["vcpu_id"]);
/// On arm64 a field of this name is a pointer.
pub(crate) const POINTER_OR_VCPU: TableField = decimal(32, &["vcpu"]);
/// Places of `kvm_exit`'s values.
const INFO2: usize = 3;
const INTR_INFO: usize = 4;

const EXIT_REASON: TableField = decimal(32, &["exit_reason", "exit_code"]);
const ISA: TableField = decimal(32, &["isa"]);
const INFORMATION: &[TableField] =
    &[ISA, hex(64, &["info1"]), hex(64, &["info2"]), hex(64, &["intr_info"])];

/// Every tracepoint that the analysis understands. Field names as in Linux `arch/x86/kvm/trace.h`,
/// `include/trace/events/kvm.h` and `include/trace/events/sched.h`, 3.10 to 7.3; those of the probes
/// `vmcs_read` and `vmcs_write` as in `crates/lab/src/probe.rs`; of `kvm_tdvmcall` as in the TDX series that were
/// not merged (`arch/x86/kvm/trace.h` and `vmx/tdx_trace.h` there).
pub(crate) static TRACEPOINTS: &[Tracepoint] = &[
    Tracepoint::new("kvm_exit", payload::exit, Make::Exit)
        .needs(&[EXIT_REASON])
        .may_have(INFORMATION)
        .has_elsewhere("vcpu_pc")
        .rip("guest_rip"),
    Tracepoint::new("kvm_entry", payload::entry, Make::Entry).has_elsewhere("vcpu_pc").rip("rip"),
    Tracepoint::new(
        "kvm_msr",
        payload::msr,
        Make::Each(|v| Some(EventKind::Msr { write: v[0] != 0, index: v[1] as u32, data: v[2] })),
    )
    .needs(&[decimal(32, &["write"]), hex(32, &["ecx"])])
    .may_have(&[hex(64, &["data"])])
    // It prints both numbers in decimal.
    .decimal_if(|payload| payload.field("data").is_some_and(|data| !data.starts_with(b"0x"))),
    Tracepoint::new("kvm_pio", payload::pio, Make::Pio)
        .needs(&[decimal(32, &["rw"]), hex(16, &["port"])])
        .may_have(&[decimal(8, &["size"]), decimal(32, &["count"])]),
    Tracepoint::new(
        "kvm_mmio",
        payload::mmio,
        Make::Each(|v| {
            let access = match v[0] {
                0 => MmioAccess::UnsatisfiedRead,
                1 => MmioAccess::Read,
                2 => MmioAccess::Write,
                _ => return None,
            };
            Some(EventKind::Mmio { access, gpa: v[1], len: v[2] as u32 })
        }),
    )
    .needs(&[decimal(32, &["type"]), hex(64, &["gpa"])])
    .may_have(&[decimal(32, &["len"])]),
    Tracepoint::new(
        "kvm_fast_mmio",
        payload::fast_mmio,
        Make::Each(|v| Some(EventKind::FastMmio { gpa: v[0] })),
    )
    .needs(&[hex(64, &["gpa"])]),
    Tracepoint::new(
        "kvm_hypercall",
        payload::hypercall,
        Make::Each(|v| {
            Some(EventKind::Hypercall { interface: HypercallInterface::Kvm, number: v[0] })
        }),
    )
    .needs(&[hex(64, &["nr"])]),
    Tracepoint::new(
        "kvm_hv_hypercall",
        payload::hv_hypercall,
        Make::Each(|v| {
            Some(EventKind::Hypercall { interface: HypercallInterface::HyperV, number: v[0] })
        }),
    )
    .needs(&[hex(64, &["code"])]),
    Tracepoint::new(
        "kvm_xen_hypercall",
        payload::hypercall,
        Make::Each(|v| {
            Some(EventKind::Hypercall { interface: HypercallInterface::Xen, number: v[0] })
        }),
    )
    .needs(&[hex(64, &["nr"])]),
    Tracepoint::new(
        "kvm_page_fault",
        payload::page_fault,
        Make::Each(|v| Some(EventKind::PageFault { gpa: v[0], error_code: v[1] })),
    )
    .needs(&[hex(64, &["fault_address"])])
    .may_have(&[hex(64, &["error_code"])]),
    // A fault of the reverse map table: the same fault, with an address where no kvm_page_fault was recorded.
    Tracepoint::new(
        "kvm_rmp_fault",
        payload::rmp_fault,
        Make::Each(|v| Some(EventKind::PageFault { gpa: v[0], error_code: v[1] })),
    )
    .needs(&[hex(64, &["gpa"]), hex(64, &["error_code"])]),
    Tracepoint::new(
        "kvm_mmu_spte_requested",
        payload::map_request,
        Make::Each(|v| Some(EventKind::MapRequest { gfn: v[0], level: u8::try_from(v[1]).ok()? })),
    )
    .needs(&[decimal(64, &["gfn"]), decimal(32, &["level"])]),
    Tracepoint::new(
        "kvm_vm_set_mem_attributes",
        payload::set_attributes,
        Make::Each(|v| Some(EventKind::SetAttributes { start: v[0], end: v[1], attributes: v[2] })),
    )
    .needs(&[decimal(64, &["start"]), decimal(64, &["end"]), decimal(64, &["attr"])]),
    Tracepoint::new(
        "kvm_cpuid",
        payload::cpuid,
        Make::Each(|v| Some(EventKind::Cpuid { function: v[0] as u32, index: v[1] as u32 })),
    )
    .needs(&[hex(32, &["function"])])
    .may_have(&[hex(32, &["index"])])
    // It prints a long with 0x and an int in decimal.
    .decimal_if(|payload| payload.field("rax").is_some_and(|rax| rax.starts_with(b"0x"))),
    Tracepoint::new(
        "kvm_cr",
        payload::cr,
        Make::Each(|v| Some(EventKind::Cr { write: v[0] != 0, number: v[1] as u8, value: v[2] })),
    )
    .needs(&[decimal(32, &["rw"]), hex(8, &["cr"])])
    .may_have(&[hex(64, &["val"])]),
    Tracepoint::new(
        "kvm_apic",
        payload::apic,
        Make::Each(|v| {
            Some(EventKind::Apic { write: v[0] != 0, register: v[1] as u32, value: v[2] })
        }),
    )
    .needs(&[decimal(32, &["rw"]), decimal(32, &["reg"])])
    .may_have(&[hex(64, &["val"])]),
    Tracepoint::new(
        "kvm_vmgexit_enter",
        payload::vmgexit,
        Make::Each(|v| Some(EventKind::GhcbEnter { code: v[0], info1: v[1], info2: v[2] })),
    )
    .needs(&[hex(64, &["exit_reason"])])
    .may_have(&[hex(64, &["info1"]), hex(64, &["info2"])]),
    Tracepoint::new(
        "kvm_vmgexit_msr_protocol_enter",
        payload::vmgexit_msr_protocol_enter,
        Make::Each(|v| Some(EventKind::GhcbMsr { value: v[0] })),
    )
    .needs(&[hex(64, &["ghcb_gpa"])]),
    Tracepoint::new(
        "kvm_tdvmcall",
        payload::tdvmcall,
        Make::Each(|v| Some(EventKind::Tdvmcall { leaf: v[0] })),
    )
    .needs(&[decimal(64, &["exit_reason"])]),
    Tracepoint::new("vmcs_read", payload::vmcs_field, Make::Each(|v| vmcs_field(false, v[0])))
        .needs(&[decimal(64, &["field"])]),
    Tracepoint::new("vmcs_write", payload::vmcs_field, Make::Each(|v| vmcs_field(true, v[0])))
        .needs(&[decimal(64, &["field"])]),
    Tracepoint::new(
        "kvm_userspace_exit",
        payload::userspace_exit,
        Make::Each(|v| Some(EventKind::UserspaceExit { reason: v[0] as u32, errno: v[1] as i32 })),
    )
    .needs(&[decimal(32, &["reason"])])
    .may_have(&[decimal(32, &["errno"])]),
    Tracepoint::new(
        "kvm_nested_vmexit",
        payload::nested_exit,
        Make::OfReason(|reason| EventKind::NestedExit { reason }),
    )
    .needs(&[EXIT_REASON])
    .may_have(&[ISA]),
    Tracepoint::new(
        "kvm_nested_vmexit_inject",
        payload::nested_exit,
        Make::OfReason(|reason| EventKind::NestedInject { reason }),
    )
    .needs(&[EXIT_REASON])
    .may_have(&[ISA]),
    Tracepoint::new(
        "kvm_nested_vmenter",
        payload::nested_vmenter,
        Make::Each(|_| Some(EventKind::NestedEnter)),
    ),
    // The name until Linux 6.0.
    Tracepoint::new(
        "kvm_nested_vmrun",
        payload::nested_vmenter,
        Make::Each(|_| Some(EventKind::NestedEnter)),
    ),
    Tracepoint::new(
        "kvm_vcpu_wakeup",
        payload::vcpu_wakeup,
        Make::Each(|v| Some(EventKind::Wakeup { ns: v[0], polled: v[1] == 0 })),
    )
    .needs(&[decimal(64, &["ns"])])
    .may_have(&[decimal(32, &["waited"])]),
    Tracepoint::new(
        "sched_switch",
        payload::sched_switch,
        // The low 8 bits are the states a task sleeps or dies in (TASK_REPORT and TASK_REPORT_IDLE);
        // a task that leaves the CPU without any could have run on. The bit above says so in words ("R+").
        Make::Each(|v| {
            Some(EventKind::Switch { preempted: v[0] & 0xff == 0, next_tid: v[1] as u32 })
        }),
    )
    .needs(&[decimal(64, &["prev_state"]), decimal(32, &["next_pid"])])
    .prints_fields(),
    // include/trace/events/sched.h: `sched_wakeup` where the thread is made runnable, `sched_waking` before that, and alone in recordings of
    // `perf sched record`.
    woken("sched_wakeup"),
    woken("sched_wakeup_new"),
    woken("sched_waking"),
    // arm64: `arch/arm64/kvm/trace_arm.h`, `trace_handle_exit.h` and `hyp_trace.h`, 4.2 to 7.3.
    Tracepoint::new("kvm_exit", payload::arm::exit, Make::Trap)
        .needs(&[decimal(32, &["ret"]), hex(32, &["esr_ec"])]),
    Tracepoint::new("kvm_entry", payload::arm::entry, Make::Each(|_| Some(EventKind::Entry)))
        .needs(&[hex(64, &["vcpu_pc"])]),
    Tracepoint::new(
        "kvm_guest_fault",
        payload::arm::guest_fault,
        Make::Each(|v| Some(EventKind::PageFault { gpa: v[0], error_code: v[1] })),
    )
    .needs(&[hex(64, &["ipa"]), hex(64, &["hsr"])]),
    Tracepoint::new(
        "kvm_handle_sys_reg",
        payload::arm::handle_sys_reg,
        Make::Each(|v| {
            let (register, write) = registers::of_syndrome(v[0]);
            Some(EventKind::Sysreg { write, register: register as u32 })
        }),
    )
    .needs(&[hex(64, &["hsr"])]),
    Tracepoint::new(
        "kvm_sys_access",
        payload::arm::sys_access,
        Make::Each(|v| {
            let register = registers::id(v[1], v[2], v[3], v[4], v[5]) as u32;
            Some(EventKind::Sysreg { write: v[0] != 0, register })
        }),
    )
    .needs(&[
        decimal(8, &["is_write"]),
        decimal(8, &["Op0"]),
        decimal(8, &["Op1"]),
        decimal(8, &["CRn"]),
        decimal(8, &["CRm"]),
        decimal(8, &["Op2"]),
    ]),
    Tracepoint::new(
        "kvm_hvc_arm64",
        payload::arm::hvc,
        Make::Each(|v| {
            let number = arm::call(v[0], v[1]);
            Some(EventKind::Hypercall { interface: HypercallInterface::Smccc, number })
        }),
    )
    .needs(&[hex(64, &["r0"]), hex(64, &["imm"])]),
    Tracepoint::new(
        "kvm_wfx_arm64",
        payload::arm::wfx,
        Make::Each(|v| Some(EventKind::Wait { for_event: v[0] != 0 })),
    )
    .needs(&[decimal(8, &["is_wfe"])]),
    Tracepoint::new(
        "kvm_nested_eret",
        payload::arm::eret,
        Make::Each(|v| Some(nested_eret(v[0], v[1]))),
    )
    .needs(&[hex(64, &["spsr_el2"]), hex(64, &["hcr_el2"])]),
    Tracepoint::new(
        "kvm_inject_nested_exception",
        payload::arm::inject_exception,
        Make::Each(|v| Some(nested_exception(v[0], v[1], (v[2], v[3])))),
    )
    .needs(&[
        decimal(32, &["type"]),
        hex(64, &["esr_el2"]),
        hex(64, &["spsr_el2"]),
        hex(64, &["hcr_el2"]),
    ]),
    // The vCPU of a thread.
    Tracepoint::new(
        "kvm_get_timer_map",
        payload::arm::timer_map,
        Make::Each(|_| Some(EventKind::Runs)),
    )
    .needs(&[VCPU]),
    // Interrupts on their way to the guest (include/trace/events/kvm.h, arch/x86/kvm/trace.h). Lines that fall are no interrupts.
    Tracepoint::new(
        "kvm_set_irq",
        payload::set_irq,
        Make::Each(|v| (v[1] != 0).then(|| interrupt(InterruptAt::Gsi, v[0], v[2]))),
    )
    .needs(&[decimal(32, &["gsi"]), decimal(32, &["level"])])
    .may_have(&[decimal(32, &["irq_source_id"])])
    .selects(),
    Tracepoint::new(
        "kvm_pic_set_irq",
        payload::pic_set_irq,
        Make::Each(|v| {
            let is_masked = v[2] >> (v[1] & 7) & 1 != 0;
            (!is_masked).then(|| interrupt(InterruptAt::Pic, v[0] * PINS_OF_8259 + v[1], 0))
        }),
    )
    .needs(&[decimal(8, &["chip"]), decimal(8, &["pin"])])
    .may_have(&[decimal(8, &["imr"])])
    .selects(),
    Tracepoint::new(
        "kvm_ioapic_set_irq",
        payload::ioapic_set_irq,
        Make::Each(|v| (v[0] >> 16 & 1 == 0).then(|| interrupt(InterruptAt::Ioapic, v[1], 0))),
    )
    .needs(&[hex(64, &["e"]), decimal(32, &["pin"])])
    .selects(),
    // KVM also makes it while it looks through its routes: those that are not in use have no vector.
    Tracepoint::new(
        "kvm_msi_set_irq",
        payload::msi_set_irq,
        Make::Each(|v| {
            let vector = v[0] & 0xff;
            (vector >= FIRST_VECTOR).then(|| interrupt(InterruptAt::Msi, vector, 0))
        }),
    )
    .needs(&[hex(64, &["data"])])
    .selects(),
    Tracepoint::new(
        "kvm_apic_accept_irq",
        payload::apic_accept_irq,
        // An INIT, a start-up message or an NMI has no vector.
        Make::Each(|v| {
            let has_vector = matches!(v[1] >> 8 & 7, FIXED | LOWEST_PRIORITY);
            has_vector.then(|| interrupt(InterruptAt::Apic, v[0], 0))
        }),
    )
    .needs(&[decimal(8, &["vec"])])
    .may_have(&[decimal(16, &["dm"])])
    .selects(),
    Tracepoint::new(
        "kvm_ack_irq",
        payload::ack_irq,
        Make::Each(|v| {
            let pin = if v[0] == SECOND_8259 { v[1] + PINS_OF_8259 } else { v[1] };
            Some(interrupt(InterruptAt::Acknowledged, pin, 0))
        }),
    )
    .needs(&[decimal(32, &["irqchip"]), decimal(32, &["pin"])]),
    Tracepoint::new(
        "kvm_apicv_inhibit_changed",
        payload::apicv_inhibit_changed,
        Make::Each(|v| {
            Some(EventKind::ApicvInhibit { reason: v[0] as u32, set: v[1] != 0, inhibits: v[2] })
        }),
    )
    .needs(&[decimal(32, &["reason"]), decimal(8, &["set"])])
    .may_have(&[hex(64, &["inhibits"])]),
    // Requests of KVM: the tracepoints of this system call, and those of all (include/trace/events/syscalls.h).
    Tracepoint::new("sys_enter_ioctl", payload::ioctl, Make::Each(|v| ioctl(v[0], v[1])))
        .needs(&[hex(64, &["fd"]), hex(64, &["cmd"])])
        .selects(),
    Tracepoint::new(
        "sys_exit_ioctl",
        payload::ioctl_return,
        Make::Each(|v| Some(EventKind::IoctlReturn { result: v[0] as i32 })),
    )
    .needs(&[hex(64, &["ret"])]),
    Tracepoint::new(
        "sys_enter",
        payload::system_call,
        Make::Each(|v| IOCTL.contains(&v[0]).then(|| ioctl(v[1], v[2]))?),
    )
    .needs(&[decimal(64, &["id"]), hex(64, &["args[0]"]), hex(64, &["args[1]"])])
    .selects(),
    Tracepoint::new(
        "sys_exit",
        payload::system_call_return,
        Make::Each(|v| {
            let result = v[1] as i32;
            IOCTL.contains(&v[0]).then_some(EventKind::IoctlReturn { result })
        }),
    )
    .needs(&[decimal(64, &["id"]), decimal(64, &["ret"])])
    .selects(),
];

/// Numbers of ioctl(2) on x86-64 and arm64.
const IOCTL: [u64; 2] = [16, 29];

/// A request, if it is one of KVM's: by its type, `KVMIO` (include/uapi/linux/kvm.h).
fn ioctl(descriptor: u64, request: u64) -> Option<EventKind> {
    const KVMIO: u32 = 0xae;
    let (descriptor, request) = (descriptor as u32, u32::try_from(request).ok()?);
    (request >> 8 & 0xff == KVMIO).then_some(EventKind::Ioctl { descriptor, request })
}

/// Pins of each of a PC's two interrupt controllers; the second one's number (include/uapi/asm/kvm.h, `KVM_IRQCHIP_PIC_SLAVE`).
const PINS_OF_8259: u64 = 8;
const SECOND_8259: u64 = 1;
/// Vectors below are illegal (Intel SDM volume 3, "Valid interrupt vectors").
const FIRST_VECTOR: u64 = 16;
/// Delivery modes of interrupts with a vector (Intel SDM volume 3, "Interrupt command register").
const FIXED: u64 = 0;
const LOWEST_PRIORITY: u64 = 1;

fn interrupt(at: InterruptAt, number: u64, source: u64) -> EventKind {
    EventKind::Interrupt { at, number: number as u32, source: source as u32 }
}

/// How many they are: [`TRACEPOINTS`] has a constant length.
pub(crate) const COUNT: usize = 52;

/// No encoding has more than 32 bits; a guest that names such a field gets an error.
fn vmcs_field(write: bool, field: u64) -> Option<EventKind> {
    Some(EventKind::VmcsField { write, field: u32::try_from(field).ok()? })
}

/// The place of the first row of a tracepoint: architectures have tracepoints of the same name with other fields.
pub(crate) fn find(name: &[u8]) -> Option<usize> {
    TRACEPOINTS.iter().position(|tracepoint| tracepoint.name.as_bytes() == name)
}

/// Names of the tracepoints; [`find`] counts in this order.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    TRACEPOINTS.iter().map(|tracepoint| tracepoint.name)
}

/// What the text of an event says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventText {
    /// The vCPU, or [`NO_VCPU`].
    pub(crate) vcpu: u32,
    /// `None`: this one is no event.
    pub(crate) kind: Option<EventKind>,
    /// The guest's instruction pointer, of entries and exits.
    pub(crate) rip: Option<u64>,
}

/// Reads the text behind an event's name. `None` if it cannot be decoded.
pub(crate) fn read(tracepoint: usize, text: &[u8], reasons: &mut Reasons) -> Option<EventText> {
    let first = TRACEPOINTS.get(tracepoint)?;
    let payload = TextPayload::new(text);
    if let Some(text) = first.text(payload, reasons) {
        return Some(text);
    }
    let rest = TRACEPOINTS.iter().skip(tracepoint + 1);
    rest.filter(|row| row.name == first.name).find_map(|row| row.text(payload, reasons))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_fits() {
        assert_eq!(TRACEPOINTS.len(), COUNT);
        for row in TRACEPOINTS {
            assert!(row.fields().count() <= MAX_FIELDS, "{}", row.name);
            // Fields of one row are those of no other of its name.
            let has = |name: &str| row.required.iter().any(|field| field.names.contains(&name));
            let rows = TRACEPOINTS.iter().filter(|other| other.name == row.name);
            let fitting = rows.filter(|other| other.is_for(has)).count();
            assert_eq!(fitting, 1, "{} is there twice", row.name);
        }
    }
}
