//! The text of one event -> [`Kind`].
//!
//! A tracepoint has many spellings: each kernel prints by its `TP_printk`, trace-cmd's
//! plugins print their own, and where a print format cannot be followed the fields come as
//! `key=value`. All of them are read here, by the words before the numbers.
//!
//! Numbers of the `key=value` form follow the print format's base in newer versions of libtraceevent
//! (`ecx=4b564d01` is hexadecimal because the kernel prints `%x`). In older ones, and with `[FAILED TO
//! PARSE]` before them in all, a number without `0x` is decimal.

mod arm;

use vmtax_events::event::{HypercallInterface, MmioAccess};
use vmtax_events::{Isa, Kind, NO_VCPU, Reason, apic, userspace, vmx};

use super::reason::{Reasons, vmx_flag};
use super::words::{
    self, Words, decimal, decimal_u32, find, hex, number, number_u32, split_digits, split_once,
};

/// An event's vCPU (or [`NO_VCPU`]) and kind.
type Said = (u32, Kind);

/// Reads the payload of one tracepoint. `None` if it has no spelling that is known.
type Reader = fn(Payload<'_>, &mut Reasons) -> Option<Said>;

/// Linux `include/uapi/asm-generic/errno-base.h`.
const EFAULT: i32 = 14;

/// The tracepoints that the analysis wants, of x86 and of all architectures; [`arm::TRACEPOINTS`] follow.
const TRACEPOINTS: &[(&str, Reader)] = &[
    ("kvm_exit", exit),
    ("kvm_entry", entry),
    ("kvm_msr", msr),
    ("kvm_pio", pio),
    ("kvm_mmio", mmio),
    ("kvm_fast_mmio", fast_mmio),
    ("kvm_hypercall", hypercall),
    ("kvm_hv_hypercall", hv_hypercall),
    ("kvm_xen_hypercall", xen_hypercall),
    ("kvm_page_fault", page_fault),
    ("kvm_mmu_spte_requested", map_request),
    ("kvm_vm_set_mem_attributes", set_attributes),
    ("kvm_cpuid", cpuid),
    ("kvm_cr", cr),
    ("kvm_apic", apic),
    ("kvm_vmgexit_enter", vmgexit_enter),
    ("kvm_vmgexit_msr_protocol_enter", vmgexit_msr_protocol_enter),
    ("kvm_tdvmcall", tdvmcall),
    ("kvm_userspace_exit", userspace_exit),
    ("kvm_nested_vmexit", nested_vmexit),
    ("kvm_nested_vmexit_inject", nested_vmexit_inject),
    ("kvm_nested_vmenter", nested_vmenter),
    ("kvm_nested_vmrun", nested_vmenter),
    ("kvm_vcpu_wakeup", vcpu_wakeup),
    ("sched_switch", sched_switch),
];

/// How many they are.
pub(crate) const COUNT: usize = TRACEPOINTS.len() + arm::TRACEPOINTS.len();

fn tracepoints() -> impl Iterator<Item = &'static (&'static str, Reader)> {
    TRACEPOINTS.iter().chain(arm::TRACEPOINTS)
}

/// Which tracepoint this is.
pub(crate) fn tracepoint(name: &[u8]) -> Option<usize> {
    tracepoints().position(|(known, _)| known.as_bytes() == name)
}

/// The names of the tracepoints that the analysis wants; [`tracepoint`] counts in this order.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    tracepoints().map(|&(name, _)| name)
}

/// Reads the payload of a tracepoint. `None` if it cannot be decoded.
pub(crate) fn read(tracepoint: usize, text: &[u8], reasons: &mut Reasons) -> Option<Said> {
    let (_, reader) = match tracepoint.checked_sub(TRACEPOINTS.len()) {
        None => TRACEPOINTS.get(tracepoint)?,
        Some(own) => arm::TRACEPOINTS.get(own)?,
    };
    reader(Payload::new(text), reasons)
}

/// The text after an event's name.
#[derive(Clone, Copy)]
struct Payload<'a> {
    text: &'a [u8],
    /// `key=value` pairs.
    fields: bool,
    /// Numbers without `0x` are decimal whatever the print format says.
    decimal: bool,
}

/// What libtraceevent's plugin for x86 writes before an event of arm64 whose fields it does not find: `<CANT FIND FIELD exit_reason>`,
/// `CAN'T FIND FIELD "vcpu_id"`.
fn without_plugin(mut text: &[u8]) -> &[u8] {
    loop {
        let field = text.strip_prefix(b"<CANT FIND FIELD ").map(|rest| (rest, &b">"[..]));
        let vcpu = text.strip_prefix(b"CAN'T FIND FIELD \"").map(|rest| (rest, &b"\""[..]));
        match field.or(vcpu).and_then(|(rest, end)| split_once(rest, end)) {
            Some((_, rest)) => text = rest,
            None => return text,
        }
    }
}

impl<'a> Payload<'a> {
    fn new(text: &'a [u8]) -> Payload<'a> {
        let text = words::trim_start(text);
        let (text, decimal) = match text.strip_prefix(b"[FAILED TO PARSE]") {
            Some(rest) => (rest, true),
            None => (without_plugin(text), false),
        };
        let fields = Words::new(text).next().is_some_and(|w| w.contains(&b'='));
        Payload { text, fields, decimal }
    }

    fn words(self) -> Words<'a> {
        Words::new(self.text)
    }

    /// The word after this word, a colon or comma at its end or not.
    fn after(self, label: &[u8]) -> Option<&'a [u8]> {
        let mut words = self.words();
        while let Some(word) = words.next() {
            if word == label || word.strip_suffix(b":") == Some(label) {
                let value = words.next()?;
                return Some(value.strip_suffix(b",").unwrap_or(value));
            }
        }
        None
    }

    /// The value of `key=value`, or of `key= value` (a narrow number is padded).
    fn field(self, key: &[u8]) -> Option<&'a [u8]> {
        let mut words = self.words();
        while let Some(word) = words.next() {
            if let Some(value) = word.strip_prefix(key).and_then(|w| w.strip_prefix(b"=")) {
                return if value.is_empty() { words.next() } else { Some(value) };
            }
        }
        None
    }

    /// A field whose print format is decimal or symbolic.
    fn number(self, key: &[u8]) -> Option<u64> {
        number(self.field(key)?)
    }

    /// A field whose print format is hexadecimal.
    fn hex(self, key: &[u8]) -> Option<u64> {
        let value = self.field(key)?;
        if self.decimal { number(value) } else { hex(value) }
    }

    fn u32(self, key: &[u8]) -> Option<u32> {
        number_u32(self.field(key)?)
    }

    /// The vCPU of a `key=value` text. Not every tracepoint has it.
    fn vcpu(self) -> u32 {
        self.u32(b"vcpu_id").unwrap_or(NO_VCPU)
    }

    /// The reason of a `key=value` text, with its vendor where it says.
    fn reason(self, key: &[u8], reasons: &mut Reasons) -> Option<Reason> {
        let raw = self.u32(key)?;
        match self.u32(b"isa").map(Isa::from_trace) {
            Some(isa) if isa != Isa::Unknown => Some(reasons.number_of(isa, raw)),
            _ => Some(reasons.number(raw)),
        }
    }

    /// Which of the two directions the first word gives: `msr_write` or `msr_read`.
    fn direction(self, prefix: &[u8]) -> Option<(bool, Words<'a>)> {
        let mut words = self.words();
        match words.next()?.strip_prefix(prefix)? {
            b"write" => Some((true, words)),
            b"read" => Some((false, words)),
            _ => None,
        }
    }
}

/// The reason of `... reason NAME [FLAG...] ...`, the vCPU before it, and what follows.
///
/// trace-cmd's plugin puts no space before the word (`rip fff0reason EXIT_NPF`), so it is searched
/// as it stands.
fn spelled_reason<'a>(text: &'a [u8], reasons: &mut Reasons) -> Option<(u32, Reason, Words<'a>)> {
    let (before, after) = split_once(text, b"reason")?;
    let vcpu = match find(before, b"vcpu ").and_then(|at| before.get(at + 5..)) {
        Some(id) => decimal_u32(Words::new(id).next()?)?,
        None => NO_VCPU,
    };
    let after = words::trim_start(after.strip_prefix(b":").unwrap_or(after));
    let mut words = Words::new(after);
    let mut name = words.next()?;
    let mut number = None;
    let mut flags = 0;
    loop {
        let mut ahead = words;
        let Some(word) = ahead.next() else { break };
        match word {
            // "UD excp"
            b"excp" => name = after.get(..after.len() - ahead.rest().len())?,
            b"rip" | b"info" | b"info1" | b"ext_inf1:" | b"p1:" => break,
            _ if word.starts_with(b"(") => {
                // "UNKNOWN (74)"
                number = decimal(word.strip_prefix(b"(")?.strip_suffix(b")")?);
            }
            _ => flags |= vmx_flag(word)?,
        }
        words = ahead;
    }
    let mut reason = match (name, number) {
        (b"UNKNOWN", Some(raw)) => reasons.number(u32::try_from(raw).ok()?),
        _ => reasons.read(name)?,
    };
    if reason.isa == Isa::Vmx {
        reason.flags |= flags;
    }
    Some((vcpu, reason, words))
}

fn is_interrupt(reason: Reason) -> bool {
    reason.isa == Isa::Vmx && reason.code == vmx::EXTERNAL_INTERRUPT
}

/// The second word of an exit: kernels that have `intr_info` have an interrupt's vector there.
fn interrupted(reason: Reason, info2: u64, intr_info: Option<u64>) -> u64 {
    intr_info.filter(|_| is_interrupt(reason)).unwrap_or(info2)
}

fn exit(payload: Payload<'_>, reasons: &mut Reasons) -> Option<Said> {
    if let Some(said) = arm::exit(payload, reasons) {
        return Some(said);
    }
    if payload.fields {
        // Old kernels' on Arm, for other reasons.
        if payload.field(b"vcpu_pc").is_some() {
            return None;
        }
        let reason = payload.reason(b"exit_reason", reasons)?;
        let info1 = payload.hex(b"info1").unwrap_or(0);
        let info2 = payload.hex(b"info2").unwrap_or(0);
        let info2 = interrupted(reason, info2, payload.hex(b"intr_info"));
        return Some((payload.vcpu(), Kind::Exit { reason, info1, info2 }));
    }
    let (mut vcpu, reason, mut tail) = spelled_reason(payload.text, reasons)?;
    let (mut info1, mut info2, mut intr_info) = (0, 0, None);
    while let Some(word) = tail.next() {
        match word {
            b"info" => {
                info1 = hex(tail.next()?)?;
                info2 = hex(tail.next()?)?;
            }
            b"info1" => info1 = hex(tail.next()?)?,
            b"info2" => info2 = hex(tail.next()?)?,
            b"intr_info" => intr_info = Some(hex(tail.next()?)?),
            b"vcpu" => vcpu = decimal_u32(tail.next()?)?,
            _ => continue,
        }
        // Only interrupts have more to say.
        if word == b"info2" && vcpu != NO_VCPU && !is_interrupt(reason) {
            break;
        }
    }
    Some((vcpu, Kind::Exit { reason, info1, info2: interrupted(reason, info2, intr_info) }))
}

fn entry(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    if payload.fields {
        let is_of_arm = payload.field(b"vcpu_pc").is_some();
        let vcpu = payload.u32(b"vcpu_id").or(is_of_arm.then_some(NO_VCPU));
        return Some((vcpu?, Kind::Entry));
    }
    let mut words = payload.words();
    // arm64 says no vCPU.
    if words.clone().next() == Some(b"PC:") {
        return words.nth(1).and_then(hex).map(|_| (NO_VCPU, Kind::Entry));
    }
    let vcpu = words.next().filter(|w| *w == b"vcpu").and_then(|_| words.next())?;
    Some((decimal_u32(vcpu.strip_suffix(b",").unwrap_or(vcpu))?, Kind::Entry))
}

fn msr(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (write, index, data) = if payload.fields {
        // An older libtraceevent prints both numbers in decimal.
        let old = !payload.field(b"data")?.starts_with(b"0x");
        let payload = Payload { decimal: payload.decimal || old, ..payload };
        (payload.number(b"write")? != 0, payload.hex(b"ecx")?, payload.hex(b"data")?)
    } else {
        let (write, mut words) = payload.direction(b"msr_")?;
        let index = hex(words.next()?)?;
        words.next().filter(|w| *w == b"=")?;
        (write, index, hex(words.next()?)?)
    };
    Some((NO_VCPU, Kind::Msr { write, index: u32::try_from(index).ok()?, data }))
}

fn pio(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (write, port, size, count) = if payload.fields {
        (
            payload.number(b"rw")? != 0,
            payload.hex(b"port")?,
            payload.number(b"size")?,
            payload.u32(b"count")?,
        )
    } else {
        let (write, _) = payload.direction(b"pio_")?;
        (
            write,
            hex(payload.after(b"at")?)?,
            decimal(payload.after(b"size")?)?,
            decimal_u32(payload.after(b"count")?)?,
        )
    };
    let (port, size) = (u16::try_from(port).ok()?, u8::try_from(size).ok()?);
    Some((NO_VCPU, Kind::Pio { write, size, port, count }))
}

fn mmio(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (access, len, gpa) = if payload.fields {
        let access = match payload.number(b"type")? {
            0 => MmioAccess::UnsatisfiedRead,
            1 => MmioAccess::Read,
            2 => MmioAccess::Write,
            _ => return None,
        };
        (access, payload.u32(b"len")?, payload.hex(b"gpa")?)
    } else {
        let mut words = payload.words();
        words.next().filter(|w| *w == b"mmio")?;
        let access = match words.next()? {
            b"unsatisfied-read" => MmioAccess::UnsatisfiedRead,
            b"read" => MmioAccess::Read,
            b"write" => MmioAccess::Write,
            _ => return None,
        };
        (access, decimal_u32(payload.after(b"len")?)?, hex(payload.after(b"gpa")?)?)
    };
    Some((NO_VCPU, Kind::Mmio { access, len, gpa }))
}

fn fast_mmio(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let gpa = if payload.fields { payload.hex(b"gpa")? } else { hex(payload.after(b"gpa")?)? };
    Some((NO_VCPU, Kind::FastMmio { gpa }))
}

fn any_hypercall(
    payload: Payload<'_>,
    label: &[u8],
    interface: HypercallInterface,
) -> Option<Said> {
    let number = if payload.fields { payload.hex(label)? } else { hex(payload.after(label)?)? };
    Some((NO_VCPU, Kind::Hypercall { interface, number }))
}

fn hypercall(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    any_hypercall(payload, b"nr", HypercallInterface::Kvm)
}

fn hv_hypercall(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    any_hypercall(payload, b"code", HypercallInterface::HyperV)
}

fn xen_hypercall(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    any_hypercall(payload, b"nr", HypercallInterface::Xen)
}

fn page_fault(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (vcpu, gpa, error_code) = if payload.fields {
        (payload.vcpu(), payload.hex(b"fault_address")?, payload.hex(b"error_code")?)
    } else {
        let vcpu = payload.after(b"vcpu").map_or(Some(NO_VCPU), decimal_u32)?;
        (vcpu, hex(payload.after(b"address")?)?, hex(payload.after(b"error_code")?)?)
    };
    Some((vcpu, Kind::PageFault { gpa, error_code }))
}

fn cpuid(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (function, index) = if payload.fields {
        // An older libtraceevent prints a long with 0x and an int in decimal.
        let old = payload.field(b"rax")?.starts_with(b"0x");
        let payload = Payload { decimal: payload.decimal || old, ..payload };
        (payload.hex(b"function")?, payload.hex(b"index").unwrap_or(0))
    } else {
        // Kernels before 5.7 do not print the sub-leaf.
        (hex(payload.after(b"func")?)?, payload.after(b"idx").map_or(Some(0), hex)?)
    };
    let (function, index) = (u32::try_from(function).ok()?, u32::try_from(index).ok()?);
    Some((NO_VCPU, Kind::Cpuid { function, index }))
}

fn cr(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (write, number, value) = if payload.fields {
        (payload.number(b"rw")? != 0, payload.hex(b"cr")?, payload.hex(b"val")?)
    } else {
        let (write, mut words) = payload.direction(b"cr_")?;
        let number = hex(words.next()?)?;
        words.next().filter(|w| *w == b"=")?;
        (write, number, hex(words.next()?)?)
    };
    Some((NO_VCPU, Kind::Cr { write, number: u8::try_from(number).ok()?, value }))
}

fn apic(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (write, register, value) = if payload.fields {
        (payload.number(b"rw")? != 0, payload.u32(b"reg")?, payload.hex(b"val")?)
    } else {
        let (write, mut words) = payload.direction(b"apic_")?;
        let name = words.next()?;
        let known = std::str::from_utf8(name).ok().and_then(apic::register_of_kvm_name);
        let number = || number_u32(name).filter(|_| name.starts_with(b"0x"));
        let register = known.or_else(number)?;
        words.next().filter(|w| *w == b"=")?;
        (write, register, hex(words.next()?)?)
    };
    Some((NO_VCPU, Kind::Apic { write, register, value }))
}

fn vmgexit_enter(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (vcpu, code, info1, info2) = if payload.fields {
        (
            payload.vcpu(),
            payload.hex(b"exit_reason")?,
            payload.hex(b"info1")?,
            payload.hex(b"info2")?,
        )
    } else {
        (
            decimal_u32(payload.after(b"vcpu")?)?,
            hex(payload.after(b"exit_reason")?)?,
            hex(payload.after(b"exit_info1")?)?,
            hex(payload.after(b"exit_info2")?)?,
        )
    };
    Some((vcpu, Kind::GhcbEnter { code, info1, info2 }))
}

fn vmgexit_msr_protocol_enter(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (vcpu, value) = if payload.fields {
        (payload.vcpu(), payload.hex(b"ghcb_gpa")?)
    } else {
        (decimal_u32(payload.after(b"vcpu")?)?, hex(payload.after(b"ghcb_gpa")?)?)
    };
    Some((vcpu, Kind::GhcbMsr { value }))
}

/// Intel's own trees only. The leaf is printed as the VMX reason of the same number (CPUID is 10 in
/// both), or as a number.
fn tdvmcall(payload: Payload<'_>, reasons: &mut Reasons) -> Option<Said> {
    let leaf = if payload.fields {
        payload.number(b"exit_reason")?
    } else {
        let (_, after) = split_once(payload.text, b"reason")?;
        let name = Words::new(after.strip_prefix(b":").unwrap_or(after)).next()?;
        match name.strip_prefix(b"0x") {
            Some(digits) => hex(digits)?,
            None => u64::from(reasons.read(name).filter(|r| r.isa == Isa::Vmx)?.code),
        }
    };
    Some((payload.vcpu(), Kind::Tdvmcall { leaf }))
}

/// `gfn 40000 pfn 1c400 level 2 access 7`.
fn map_request(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (gfn, level) = if payload.fields {
        (payload.number(b"gfn")?, payload.number(b"level")?)
    } else {
        let (_, gfn) = split_once(payload.text, b"gfn ")?;
        let (_, level) = split_once(payload.text, b"level ")?;
        (hex(Words::new(gfn).next()?)?, decimal(Words::new(level).next()?)?)
    };
    Some((NO_VCPU, Kind::MapRequest { gfn, level: u8::try_from(level).ok()? }))
}

/// `0x00000000040000 -- 0x00000000040200 [0x8]`.
fn set_attributes(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let [start, end, attributes] = if payload.fields {
        [payload.number(b"start")?, payload.number(b"end")?, payload.number(b"attr")?]
    } else {
        let mut words = payload.words();
        let start = words.next()?;
        words.next().filter(|word| *word == b"--")?;
        let end = words.next()?;
        let attributes = words.next()?.strip_prefix(b"[")?.strip_suffix(b"]")?;
        // No prefix before a zero: %#lx.
        let number = |word: &[u8]| hex(word.strip_prefix(b"0x").unwrap_or(word));
        [number(start)?, number(end)?, number(attributes)?]
    };
    Some((NO_VCPU, Kind::SetAttributes { start, end, attributes }))
}

fn userspace_exit(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    if payload.fields {
        let errno = payload.u32(b"errno")?.cast_signed();
        return Some((NO_VCPU, Kind::UserspaceExit { reason: payload.u32(b"reason")?, errno }));
    }
    let mut words = payload.words();
    words.next().filter(|w| *w == b"reason")?;
    let name = words.next()?;
    let value = words.next()?.strip_prefix(b"(")?.strip_suffix(b")")?;
    let value = i32::try_from(decimal(value)?).ok()?;
    // With an error the reason is not printed: the number is the error. Of a VM that runs on, EFAULT is
    // KVM_EXIT_MEMORY_FAULT: KVM returns both together.
    let (reason, errno) = match name {
        b"error" if value == EFAULT => (userspace::MEMORY_FAULT, -value),
        b"restart" | b"error" => (0, -value),
        _ => (value.cast_unsigned(), 0),
    };
    Some((NO_VCPU, Kind::UserspaceExit { reason, errno }))
}

/// Both tracepoints of a nested exit: the newer has the layout of `kvm_exit`, the older has
/// `exit_code`.
fn nested_reason(payload: Payload<'_>, reasons: &mut Reasons) -> Option<(u32, Reason)> {
    if payload.fields {
        let key: &[u8] =
            if payload.field(b"exit_code").is_some() { b"exit_code" } else { b"exit_reason" };
        return Some((payload.vcpu(), payload.reason(key, reasons)?));
    }
    let (vcpu, reason, _) = spelled_reason(payload.text, reasons)?;
    Some((vcpu, reason))
}

fn nested_vmexit(payload: Payload<'_>, reasons: &mut Reasons) -> Option<Said> {
    let (vcpu, reason) = nested_reason(payload, reasons)?;
    Some((vcpu, Kind::NestedExit { reason }))
}

fn nested_vmexit_inject(payload: Payload<'_>, reasons: &mut Reasons) -> Option<Said> {
    let (vcpu, reason) = nested_reason(payload, reasons)?;
    Some((vcpu, Kind::NestedInject { reason }))
}

fn nested_vmenter(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    // Its fields are not needed, but a truncated line is detected.
    payload.words().next()?.starts_with(b"rip").then_some((NO_VCPU, Kind::NestedEnter))
}

fn vcpu_wakeup(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (ns, polled) = if payload.fields {
        (payload.number(b"ns")?, payload.number(b"waited")? == 0)
    } else {
        let polled = match payload.words().next()? {
            b"wait" => false,
            b"poll" => true,
            _ => return None,
        };
        (decimal(payload.after(b"time")?)?, polled)
    };
    Some((NO_VCPU, Kind::Wakeup { ns, polled }))
}

/// Names of threads are shorter (TASK_COMM_LEN of Linux `include/linux/sched.h`).
const LONGEST_NAME: usize = 16;

fn sched_switch(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let text = payload.text;
    let (next_tid, preempted) = match words::rsplit_once(text, b" next_pid=") {
        Some((front, next)) => {
            let (digits, _) = split_digits(words::trim_start(next));
            (decimal_u32(digits)?, left_runnable(front)?)
        }
        None => switch_of_plugin(text)?,
    };
    Some((NO_VCPU, Kind::Switch { next_tid, preempted }))
}

/// The thread that gets the CPU, and its name.
pub(super) fn next_of_switch(text: &[u8]) -> Option<(u32, &[u8])> {
    let (tid, name) = match words::rsplit_once(text, b" next_pid=") {
        Some((front, next)) => {
            let (digits, _) = split_digits(words::trim_start(next));
            (decimal_u32(digits)?, words::rsplit_once(front, b" next_comm=")?.1)
        }
        None => {
            let (_, next) = words::rsplit_once(text, b" ==> ")?;
            let (next, _) = words::rsplit_once(next, b" [")?;
            let (name, tid) = words::rsplit_once(next, b":")?;
            (decimal_u32(words::trim(tid))?, name)
        }
    };
    let name = words::trim(name);
    (!name.is_empty() && name.len() <= LONGEST_NAME).then_some((tid, name))
}

/// The thread that leaves the CPU.
pub(super) fn previous_of_switch(text: &[u8]) -> Option<u32> {
    let tid = match words::split_once(text, b" prev_pid=") {
        Some((_, rest)) => split_digits(words::trim_start(rest)).0,
        None => {
            let (before, _) = words::rsplit_once(text, b" ==> ")?;
            let (before, _) = words::rsplit_once(before, b" [")?;
            words::rsplit_once(before, b":")?.1
        }
    };
    decimal_u32(tid)
}

/// Whether `prev_state` says that the thread could have run on. Names of threads are hostile (at most
/// 15 bytes, and any of them): the fields after `prev_comm` are those that follow each other rightly.
fn left_runnable(mut text: &[u8]) -> Option<bool> {
    loop {
        let (_, rest) = split_once(text, b" prev_pid=")?;
        text = rest;
        let (_, rest) = split_digits(words::trim_start(rest));
        let Some(rest) = rest.strip_prefix(b" prev_prio=") else { continue };
        let rest = rest.strip_prefix(b"-").unwrap_or(rest);
        let (_, rest) = split_digits(words::trim_start(rest));
        let Some(state) = rest.strip_prefix(b" prev_state=") else { continue };
        let state = Words::new(state).next()?;
        return match decimal(state) {
            // The low byte holds the states in which a thread does not run.
            Some(bits) => Some(bits & 0xff == 0),
            None if state.starts_with(b"0x") => Some(hex(state)? & 0xff == 0),
            None => Some(state.starts_with(b"R")),
        };
    }
}

/// trace-cmd's plugin: `COMM:TID [PRIO] STATE ==> COMM:TID [PRIO]`.
fn switch_of_plugin(text: &[u8]) -> Option<(u32, bool)> {
    let (mut before, next) = words::rsplit_once(text, b" ==> ")?;
    // A thread's name may contain the arrow: then the text before it is not a state.
    let runnable = loop {
        let (rest, state) = words::rsplit_once(before, b" ")?;
        if rest.ends_with(b"]") && state.iter().all(|b| b.is_ascii_alphabetic() || *b == b'|') {
            break state.starts_with(b"R");
        }
        (before, _) = words::rsplit_once(before, b" ==> ")?;
    };
    let (next, _) = words::rsplit_once(next, b" [").unwrap_or((next, &[]));
    let (_, tid) = words::rsplit_once(next, b":")?;
    Some((decimal_u32(words::trim(tid))?, runnable))
}
