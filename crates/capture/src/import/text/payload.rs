//! The printed text of one event -> the values of its fields.
//!
//! A tracepoint has many spellings: each kernel prints by its `TP_printk`, trace-cmd's
//! plugins print their own, and where a print format cannot be followed the fields come as
//! `key=value`. Here are the printed ones, by the words before the numbers; which field is what is said by
//! the one table of tracepoints, [`crate::import::tracepoint::table`].
//!
//! Numbers of the `key=value` form follow the print format's base in newer versions of libtraceevent
//! (`ecx=4b564d01` is hexadecimal because the kernel prints `%x`). In older ones, and with `[FAILED TO
//! PARSE]` before them in all, a number without `0x` is decimal.

pub(crate) mod arm;

use vmtax_events::{Isa, NO_VCPU, Reason, apic, apicv, tdx, userspace, vmx};

use super::reason::{Reasons, vmx_flag};
use super::words::{
    self, TextWords, decimal, decimal_u32, find, hex, number, number_u32, split_digits, split_once,
};

/// Most fields of an event.
pub(crate) const MAX_FIELDS: usize = 6;

/// The values of a tracepoint's fields, in the order of its row in the table. What a kernel lacks is 0.
pub(crate) type Values = [u64; MAX_FIELDS];

/// What a text says of one event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaidEvent {
    /// The vCPU, or [`NO_VCPU`].
    pub(crate) vcpu: u32,
    pub(crate) values: Values,
    /// The guest's instruction pointer.
    pub(crate) rip: Option<u64>,
}

impl SaidEvent {
    /// Fills the rest with zeros.
    fn new<const N: usize>(vcpu: u32, of: [u64; N]) -> SaidEvent {
        let mut values = [0; MAX_FIELDS];
        for (slot, value) in values.iter_mut().zip(of) {
            *slot = value;
        }
        SaidEvent { vcpu, values, rip: None }
    }
}

/// Reads the printed payload of one tracepoint. `None` if it has no spelling that is known.
pub(crate) type PayloadReader = fn(TextPayload<'_>, &mut Reasons) -> Option<SaidEvent>;

/// Linux `include/uapi/asm-generic/errno-base.h`.
const EFAULT: i32 = 14;

/// A reason as the two fields of a record: `exit_reason` and `isa`.
pub(crate) fn as_recorded(reason: Reason) -> [u64; 2] {
    [u64::from(reason.code | reason.flags), u64::from(reason.isa.as_trace())]
}

/// The text after an event's name.
#[derive(Clone, Copy)]
pub(crate) struct TextPayload<'a> {
    text: &'a [u8],
    /// `key=value` pairs.
    pub(crate) fields: bool,
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

impl<'a> TextPayload<'a> {
    pub(crate) fn new(text: &'a [u8]) -> TextPayload<'a> {
        let text = words::trim_start(text);
        let (text, decimal) = match text.strip_prefix(b"[FAILED TO PARSE]") {
            Some(rest) => (rest, true),
            None => (without_plugin(text), false),
        };
        let fields = TextWords::new(text).next().is_some_and(|w| w.contains(&b'='));
        TextPayload { text, fields, decimal }
    }

    fn words(self) -> TextWords<'a> {
        TextWords::new(self.text)
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
    pub(crate) fn field(self, key: &str) -> Option<&'a [u8]> {
        let mut words = self.words();
        while let Some(word) = words.next() {
            let value = word.strip_prefix(key.as_bytes()).and_then(|word| word.strip_prefix(b"="));
            if let Some(value) = value {
                return if value.is_empty() { words.next() } else { Some(value) };
            }
        }
        None
    }

    /// The same, with numbers in decimal if so.
    pub(crate) fn in_decimal(self, is_decimal: bool) -> TextPayload<'a> {
        TextPayload { decimal: self.decimal || is_decimal, ..self }
    }

    /// A number whose print format is hexadecimal.
    pub(crate) fn hex(self, value: &[u8]) -> Option<u64> {
        if self.decimal { number(value) } else { hex(value) }
    }

    /// Which of the two directions the first word gives: `msr_write` or `msr_read`.
    fn direction(self, prefix: &[u8]) -> Option<(bool, TextWords<'a>)> {
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
fn spelled_reason<'a>(
    text: &'a [u8],
    reasons: &mut Reasons,
) -> Option<(u32, Reason, TextWords<'a>)> {
    let (before, after) = split_once(text, b"reason")?;
    let vcpu = match find(before, b"vcpu ").and_then(|at| before.get(at + 5..)) {
        Some(id) => decimal_u32(TextWords::new(id).next()?)?,
        None => NO_VCPU,
    };
    let after = words::trim_start(after.strip_prefix(b":").unwrap_or(after));
    let mut words = TextWords::new(after);
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
    reason.is(vmx::EXTERNAL_INTERRUPT, None)
}

/// The second word of an exit: kernels that have `intr_info` have an interrupt's vector there.
pub(crate) fn interrupted(reason: Reason, info2: u64, intr_info: Option<u64>) -> u64 {
    intr_info.filter(|_| is_interrupt(reason)).unwrap_or(info2)
}

pub(crate) fn exit(payload: TextPayload<'_>, reasons: &mut Reasons) -> Option<SaidEvent> {
    let (mut vcpu, reason, mut tail) = spelled_reason(payload.text, reasons)?;
    let (mut info1, mut info2, mut intr_info, mut rip) = (0, 0, None, None);
    while let Some(word) = tail.next() {
        match word {
            b"rip" => {
                rip = tail.next().and_then(hex);
                continue;
            }
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
    let [raw, isa] = as_recorded(reason);
    let said = SaidEvent::new(vcpu, [raw, isa, info1, interrupted(reason, info2, intr_info)]);
    Some(SaidEvent { rip, ..said })
}

pub(crate) fn entry(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let mut words = payload.words();
    let vcpu = words.next().filter(|w| *w == b"vcpu").and_then(|_| words.next())?;
    let vcpu = decimal_u32(vcpu.strip_suffix(b",").unwrap_or(vcpu))?;
    let rip = words.next().filter(|word| *word == b"rip").and_then(|_| words.next());
    // `0xfff0[immediate exit]`
    let rip = rip.and_then(|rip| hex(rip.split(|b| *b == b'[').next()?));
    Some(SaidEvent { rip, ..SaidEvent::new(vcpu, []) })
}

pub(crate) fn msr(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let (write, mut words) = payload.direction(b"msr_")?;
    let index = u32::try_from(hex(words.next()?)?).ok()?;
    words.next().filter(|w| *w == b"=")?;
    Some(SaidEvent::new(NO_VCPU, [write.into(), index.into(), hex(words.next()?)?]))
}

pub(crate) fn pio(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let (write, _) = payload.direction(b"pio_")?;
    let port = u16::try_from(hex(payload.after(b"at")?)?).ok()?;
    let size = u8::try_from(decimal(payload.after(b"size")?)?).ok()?;
    let count = decimal_u32(payload.after(b"count")?)?;
    Some(SaidEvent::new(NO_VCPU, [write.into(), port.into(), size.into(), count.into()]))
}

pub(crate) fn mmio(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let mut words = payload.words();
    words.next().filter(|w| *w == b"mmio")?;
    let access = match words.next()? {
        b"unsatisfied-read" => 0,
        b"read" => 1,
        b"write" => 2,
        _ => return None,
    };
    let (len, gpa) = (decimal_u32(payload.after(b"len")?)?, hex(payload.after(b"gpa")?)?);
    Some(SaidEvent::new(NO_VCPU, [access, gpa, len.into()]))
}

pub(crate) fn fast_mmio(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    Some(SaidEvent::new(NO_VCPU, [hex(payload.after(b"gpa")?)?]))
}

pub(crate) fn hypercall(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    Some(SaidEvent::new(NO_VCPU, [hex(payload.after(b"nr")?)?]))
}

pub(crate) fn hv_hypercall(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    Some(SaidEvent::new(NO_VCPU, [hex(payload.after(b"code")?)?]))
}

pub(crate) fn page_fault(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let vcpu = payload.after(b"vcpu").map_or(Some(NO_VCPU), decimal_u32)?;
    let (gpa, error) = (payload.after(b"address")?, payload.after(b"error_code")?);
    Some(SaidEvent::new(vcpu, [hex(gpa)?, hex(error)?]))
}

pub(crate) fn cpuid(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let function = u32::try_from(hex(payload.after(b"func")?)?).ok()?;
    // Kernels before 5.7 do not print the sub-leaf.
    let index = u32::try_from(payload.after(b"idx").map_or(Some(0), hex)?).ok()?;
    Some(SaidEvent::new(NO_VCPU, [function.into(), index.into()]))
}

pub(crate) fn cr(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let (write, mut words) = payload.direction(b"cr_")?;
    let number = u8::try_from(hex(words.next()?)?).ok()?;
    words.next().filter(|w| *w == b"=")?;
    Some(SaidEvent::new(NO_VCPU, [write.into(), number.into(), hex(words.next()?)?]))
}

pub(crate) fn apic(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let (write, mut words) = payload.direction(b"apic_")?;
    let name = words.next()?;
    let known = std::str::from_utf8(name).ok().and_then(apic::register_of_kvm_name);
    let number = || number_u32(name).filter(|_| name.starts_with(b"0x"));
    let register = known.or_else(number)?;
    words.next().filter(|w| *w == b"=")?;
    Some(SaidEvent::new(NO_VCPU, [write.into(), register.into(), hex(words.next()?)?]))
}

pub(crate) fn vmgexit(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let vcpu = decimal_u32(payload.after(b"vcpu")?)?;
    let value = |label: &[u8]| hex(payload.after(label)?);
    let values = [value(b"exit_reason")?, value(b"exit_info1")?, value(b"exit_info2")?];
    Some(SaidEvent::new(vcpu, values))
}

pub(crate) fn vmgexit_msr_protocol_enter(
    payload: TextPayload<'_>,
    _: &mut Reasons,
) -> Option<SaidEvent> {
    let vcpu = decimal_u32(payload.after(b"vcpu")?)?;
    Some(SaidEvent::new(vcpu, [hex(payload.after(b"ghcb_gpa")?)?]))
}

/// `vcpu 0 gpa 0000000100000000 pfn 0x1b2c00 error_code 0x500000007 rmp_level 2 psmash_ret 0`
pub(crate) fn rmp_fault(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let vcpu = payload.after(b"vcpu").map_or(Some(NO_VCPU), decimal_u32)?;
    let (gpa, error) = (payload.after(b"gpa")?, payload.after(b"error_code")?);
    Some(SaidEvent::new(vcpu, [hex(gpa)?, hex(error)?]))
}

/// Intel's own trees only. The leaf is printed as the VMX reason of the same number (CPUID is 10 in
/// both), or as a number.
pub(crate) fn tdvmcall(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let (_, after) = split_once(payload.text, b"reason")?;
    let name = TextWords::new(after.strip_prefix(b":").unwrap_or(after)).next()?;
    let leaf = match name.strip_prefix(b"0x") {
        Some(digits) => hex(digits)?,
        None => tdx::leaf_of_series(std::str::from_utf8(name).ok()?)?,
    };
    Some(SaidEvent::new(NO_VCPU, [leaf]))
}

/// `(ffffffffc0aa041a) field=26654`: a probe has no other form.
pub(crate) fn vmcs_field(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    Some(SaidEvent::new(NO_VCPU, [number(payload.field("field")?)?]))
}

/// `gfn 40000 pfn 1c400 level 2 access 7`.
pub(crate) fn map_request(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let (_, gfn) = split_once(payload.text, b"gfn ")?;
    let (_, level) = split_once(payload.text, b"level ")?;
    let level = decimal(TextWords::new(level).next()?)?;
    Some(SaidEvent::new(NO_VCPU, [hex(TextWords::new(gfn).next()?)?, level]))
}

/// `0x00000000040000 -- 0x00000000040200 [0x8]`.
pub(crate) fn set_attributes(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let mut words = payload.words();
    let start = words.next()?;
    words.next().filter(|word| *word == b"--")?;
    let end = words.next()?;
    let attributes = words.next()?.strip_prefix(b"[")?.strip_suffix(b"]")?;
    Some(SaidEvent::new(NO_VCPU, [hex(start)?, hex(end)?, hex(attributes)?]))
}

/// `gsi 8 level 1 source 0`.
pub(crate) fn set_irq(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let value = |label: &[u8]| decimal(payload.after(label)?);
    // A level is a truth value, and prints as any number.
    let level = payload.after(b"level")?;
    let level = u64::from(level != b"0");
    Some(SaidEvent::new(NO_VCPU, [value(b"gsi")?, level, value(b"source").unwrap_or(0)]))
}

/// `chip 1 pin 0 (edge|masked) (coalesced)`.
pub(crate) fn pic_set_irq(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let (chip, pin) = (decimal(payload.after(b"chip")?)?, decimal(payload.after(b"pin")?)?);
    let mask = if is_masked(payload) { 1 << (pin & 7) } else { 0 };
    Some(SaidEvent::new(NO_VCPU, [chip.min(1), pin & 7, mask]))
}

/// `pin 8 dst 1 vec=209 (Fixed|logical|edge)`: of the entry the vector and the mask.
pub(crate) fn ioapic_set_irq(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let pin = u64::from(decimal_u32(payload.after(b"pin")?)?);
    Some(SaidEvent::new(NO_VCPU, [u64::from(is_masked(payload)) << 16, pin]))
}

fn is_masked(payload: TextPayload<'_>) -> bool {
    find(payload.text, b"masked").is_some()
}

/// `dst 1 vec 65 (Fixed|logical|edge)`: Linux before 3.0 printed the vector in hexadecimal.
pub(crate) fn msi_set_irq(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    Some(SaidEvent::new(NO_VCPU, [decimal(payload.after(b"vec")?)?]))
}

/// `apicid 0 vec 236 (Fixed|edge)`.
pub(crate) fn apic_accept_irq(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let (_, mode) = split_once(payload.text, b"(")?;
    let (mode, _) = split_once(mode, b"|")?;
    let modes: [&[u8]; 8] =
        [b"Fixed", b"LowPrio", b"SMI", b"Res3", b"NMI", b"INIT", b"SIPI", b"ExtINT"];
    let mode = modes.iter().position(|name| *name == mode)? as u64;
    Some(SaidEvent::new(NO_VCPU, [decimal(payload.after(b"vec")?)? & 0xff, mode << 8]))
}

/// `irqchip PIC slave pin 0`.
pub(crate) fn ack_irq(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let (_, chip) = split_once(payload.text, b"irqchip ")?;
    let chip = [(&b"PIC master"[..], 0), (b"PIC slave", 1), (b"IOAPIC", 2)]
        .iter()
        .find(|(name, _)| chip.starts_with(name))
        .map(|(_, number)| *number)?;
    Some(SaidEvent::new(NO_VCPU, [chip, u64::from(decimal_u32(payload.after(b"pin")?)?)]))
}

/// `set reason=9, inhibits=0x200 PIT_REINJ`.
pub(crate) fn apicv_inhibit_changed(
    payload: TextPayload<'_>,
    _: &mut Reasons,
) -> Option<SaidEvent> {
    let set = match payload.words().next()? {
        b"set" => 1,
        b"cleared" => 0,
        _ => return None,
    };
    let reason = payload.field("reason")?;
    let reason = decimal_u32(reason.strip_suffix(b",").unwrap_or(reason))?;
    let inhibits = payload.field("inhibits").map_or(Some(0), hex)?;
    let named = payload.words().last()?.first()?.is_ascii_uppercase();
    let reason = if named { reason | apicv::NAMED } else { reason };
    Some(SaidEvent::new(NO_VCPU, [reason.into(), set, inhibits]))
}

pub(crate) fn userspace_exit(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
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
    Some(SaidEvent::new(NO_VCPU, [reason.into(), errno.cast_unsigned().into()]))
}

/// Both tracepoints of a nested exit.
pub(crate) fn nested_exit(payload: TextPayload<'_>, reasons: &mut Reasons) -> Option<SaidEvent> {
    let (vcpu, reason, _) = spelled_reason(payload.text, reasons)?;
    Some(SaidEvent::new(vcpu, as_recorded(reason)))
}

pub(crate) fn nested_vmenter(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    // Its fields are not needed, but a truncated line is detected.
    payload.words().next()?.starts_with(b"rip").then(|| SaidEvent::new(NO_VCPU, []))
}

pub(crate) fn vcpu_wakeup(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let waited = match payload.words().next()? {
        b"wait" => 1,
        b"poll" => 0,
        _ => return None,
    };
    Some(SaidEvent::new(NO_VCPU, [decimal(payload.after(b"time")?)?, waited]))
}

/// Names of threads are shorter (TASK_COMM_LEN of Linux `include/linux/sched.h`).
const LONGEST_NAME: usize = 16;

/// Of the state only whether the thread could have run on is known of every spelling.
/// `fd: 0x0000000b, cmd: 0x0000ae80, arg: 0x00000000`.
pub(crate) fn ioctl(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let value = |label: &[u8]| hex(payload.after(label)?);
    Some(SaidEvent::new(NO_VCPU, [value(b"fd")?, value(b"cmd")?]))
}

/// `0xffffffffffffffea`.
pub(crate) fn ioctl_return(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    Some(SaidEvent::new(NO_VCPU, [hex(payload.words().next()?)?]))
}

/// `NR 16 (b, ae80, 0, 0, 0, 0)`.
pub(crate) fn system_call(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let number = number(payload.after(b"NR")?)?;
    let (_, arguments) = split_once(payload.text, b"(")?;
    let mut arguments = arguments.split(|byte| matches!(byte, b',' | b')'));
    let mut next = || hex(words::trim_start(arguments.next()?));
    Some(SaidEvent::new(NO_VCPU, [number, next()?, next()?]))
}

/// `NR 16 = -22`.
pub(crate) fn system_call_return(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let of = |label: &[u8]| number(payload.after(label)?);
    Some(SaidEvent::new(NO_VCPU, [of(b"NR")?, of(b"=")?]))
}

pub(crate) fn sched_switch(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let text = payload.text;
    let (next_tid, preempted) = match words::rsplit_once(text, b" next_pid=") {
        Some((front, next)) => {
            let (digits, _) = split_digits(words::trim_start(next));
            (decimal_u32(digits)?, left_runnable(front)?)
        }
        None => switch_of_plugin(text)?,
    };
    Some(SaidEvent::new(NO_VCPU, [u64::from(!preempted), next_tid.into()]))
}

/// `comm=NAME pid=TID prio=120 target_cpu=002`, and trace-cmd's plugin: `NAME:TID [120] CPU:002`. No field behind the thread's has its label.
pub(crate) fn woken(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let text = payload.text;
    let tid = match words::rsplit_once(text, b" pid=") {
        Some((_, rest)) => split_digits(words::trim_start(rest)).0,
        None => {
            let (front, _) = words::rsplit_once(text, b" [")?;
            words::trim(words::rsplit_once(front, b":")?.1)
        }
    };
    Some(SaidEvent::new(NO_VCPU, [decimal_u32(tid)?.into()]))
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
        let state = TextWords::new(state).next()?;
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
