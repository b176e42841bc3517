//! The printed forms of arm64's tracepoints: Linux `arch/arm64/kvm/trace_arm.h`, `trace_handle_exit.h` and `hyp_trace.h`.

use vmtax_events::NO_VCPU;

use super::{SaidEvent, TextPayload};
use crate::import::text::reason::Reasons;
use crate::import::text::words::{decimal, decimal_u32, hex};

fn said<const N: usize>(values: [u64; N]) -> Option<SaidEvent> {
    Some(SaidEvent::new(NO_VCPU, values))
}

/// `ret` of `kvm_exit` by its word.
const EXITS: &[(&[u8], u64)] =
    &[(b"IRQ", 0), (b"SERROR", 1), (b"TRAP", 2), (b"ILLEGAL", 3), (b"HYP_GONE", 0x0bad_ca11)];

/// `TRAP: HSR_EC: 0x0024 (DABT_LOW), PC: 0x...`.
pub(crate) fn exit(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let word = payload.words().next()?.strip_suffix(b":")?;
    let known = EXITS.iter().find(|(known, _)| *known == word).map(|(_, ret)| *ret);
    let ret = known.or_else(|| decimal_u32(word).map(u64::from)).or_else(|| hex(word))?;
    // Behind the class: a line that was cut may have a part of its number.
    payload.after(b"PC")?;
    let class = u32::try_from(hex(payload.after(b"HSR_EC")?)?).ok()?;
    said([ret, class.into()])
}

/// `PC: 0xffff8000800acfb8`: it says no vCPU.
pub(crate) fn entry(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let mut words = payload.words();
    words.next().filter(|word| *word == b"PC:")?;
    said([hex(words.next()?)?])
}

/// `ipa 0x80b0000, hsr 0x93830045, hxfar 0xffff800083290380, pc 0xffff800080991a60`.
pub(crate) fn guest_fault(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    payload.after(b"hxfar")?;
    said([hex(payload.after(b"ipa")?)?, hex(payload.after(b"hsr")?)?])
}

/// `HSR 0x62357aa6`.
pub(crate) fn handle_sys_reg(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    said([hex(payload.after(b"HSR")?)?])
}

/// `PC: ffff8000800acfb8 CNTV_CVAL_EL02 (3,5,14,3,2) write`.
pub(crate) fn sys_access(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let listed = payload.words().find(|word| word.starts_with(b"("))?;
    let listed = listed.strip_prefix(b"(")?.strip_suffix(b")")?;
    let write = match payload.words().last()? {
        b"write" => 1,
        b"read" => 0,
        _ => return None,
    };
    let mut values = [write, 0, 0, 0, 0, 0];
    let mut numbers = listed.split(|byte| *byte == b',').map(decimal);
    for part in values.iter_mut().skip(1) {
        *part = numbers.next()??;
    }
    said(values)
}

/// `HVC at 0x00000000400013a8 (r0: 0x0000000084000000, imm: 0x0)`.
pub(crate) fn hvc(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    said([hex(payload.after(b"(r0")?)?, hex(payload.after(b"imm")?.strip_suffix(b")")?)?])
}

/// `guest executed wfi at: 0x00000000400013a8`.
pub(crate) fn wfx(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    match payload.after(b"executed")? {
        b"wfe" => said([1]),
        b"wfi" => said([0]),
        _ => None,
    }
}

/// `elr_el2: 0x... spsr_el2: 0x600003c5 (M: EL1h) hcr_el2: 2403c807d263f`.
pub(crate) fn eret(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    said([hex(payload.after(b"spsr_el2")?)?, hex(payload.after(b"hcr_el2")?)?])
}

/// `IRQ: esr_el2 0x0 elr_el2: ...`; trace-cmd knows no word for the type and gives its number.
pub(crate) fn inject_exception(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let kind = match payload.words().next()?.strip_suffix(b":")? {
        b"SYNC" => 0,
        b"IRQ" => 0x80,
        b"FIQ" => 0x100,
        b"SERROR" => 0x180,
        word => hex(word.strip_prefix(b"0x")?)?,
    };
    let value = |label: &[u8]| hex(payload.after(label)?);
    said([kind, value(b"esr_el2")?, value(b"spsr_el2")?, value(b"hcr_el2")?])
}

/// `VCPU: 0, dv: 1, dp: 0, ev: -1, ep: -1`: the vCPU of the thread.
pub(crate) fn timer_map(payload: TextPayload<'_>, _: &mut Reasons) -> Option<SaidEvent> {
    let vcpu = decimal_u32(payload.after(b"VCPU")?)?;
    Some(SaidEvent::new(vcpu, [vcpu.into()]))
}
