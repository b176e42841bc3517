//! The texts of arm64's tracepoints: Linux `arch/arm64/kvm/trace_arm.h` and `trace_handle_exit.h`.
//!
//! Older versions of libtraceevent cannot follow some of the print formats and give fields (`[FAILED TO PARSE]`).

use vmtax_events::arm::{self, registers};
use vmtax_events::event::HypercallInterface;
use vmtax_events::{Kind, NO_VCPU};

use super::{Payload, Reader, Said};
use crate::import::text::reason::Reasons;
use crate::import::text::words::{decimal, decimal_u32, hex};
use crate::import::tracepoint::{nested_eret, nested_exception};

/// The tracepoints that only arm64 has, and `kvm_get_timer_map`, which says a vCPU.
pub(super) const TRACEPOINTS: &[(&str, Reader)] = &[
    ("kvm_guest_fault", guest_fault),
    ("kvm_handle_sys_reg", handle_sys_reg),
    ("kvm_sys_access", sys_access),
    ("kvm_hvc_arm64", hvc),
    ("kvm_wfx_arm64", wfx),
    ("kvm_nested_eret", eret),
    ("kvm_inject_nested_exception", inject_exception),
    ("kvm_get_timer_map", timer_map),
];

fn said(kind: Kind) -> Option<Said> {
    Some((NO_VCPU, kind))
}

/// `ret` of `kvm_exit` by its word.
const EXITS: &[(&[u8], u32)] =
    &[(b"IRQ", 0), (b"SERROR", 1), (b"TRAP", 2), (b"ILLEGAL", 3), (b"HYP_GONE", 0x0bad_ca11)];

/// `TRAP: HSR_EC: 0x0024 (DABT_LOW), PC: 0x...`. `None`: it is no exit of arm64.
pub(super) fn exit(payload: Payload<'_>, reasons: &mut Reasons) -> Option<Said> {
    let (ret, class) = if payload.fields {
        let class = payload.field(b"esr_ec").and_then(|word| match payload.decimal {
            true => decimal(word),
            // Printed by %x, with the prefix or without.
            false => hex(word),
        })?;
        (payload.number(b"ret")? as u32, class)
    } else {
        let word = payload.words().next()?.strip_suffix(b":")?;
        let known = EXITS.iter().find(|(known, _)| *known == word).map(|(_, ret)| *ret);
        let ret = known.or_else(|| decimal_u32(word)).or_else(|| Some(hex(word)? as u32))?;
        // Behind the class: a line that was cut may have a part of its number.
        payload.after(b"PC")?;
        (ret, hex(payload.after(b"HSR_EC")?)?)
    };
    let reason = reasons.given(arm::reason(ret, u32::try_from(class).ok()?));
    said(Kind::Exit { reason, info1: 0, info2: 0 })
}

/// `ipa 0x80b0000, hsr 0x93830045, hxfar 0xffff800083290380, pc 0xffff800080991a60`.
fn guest_fault(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (gpa, error_code) = match payload.fields {
        true => (payload.hex(b"ipa")?, payload.hex(b"hsr")?),
        false => {
            payload.after(b"hxfar")?;
            (hex(payload.after(b"ipa")?)?, hex(payload.after(b"hsr")?)?)
        }
    };
    said(Kind::PageFault { gpa, error_code })
}

/// `HSR 0x62357aa6`.
fn handle_sys_reg(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let syndrome = if payload.fields { payload.hex(b"hsr")? } else { hex(payload.after(b"HSR")?)? };
    let (register, write) = registers::of_syndrome(syndrome);
    said(Kind::Sysreg { write, register: register as u32 })
}

/// `PC: ffff8000800acfb8 CNTV_CVAL_EL02 (3,5,14,3,2) write`.
fn sys_access(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (parts, write) = if payload.fields {
        let keys: [&[u8]; 5] = [b"Op0", b"Op1", b"CRn", b"CRm", b"Op2"];
        let mut parts = [0; 5];
        for (part, key) in parts.iter_mut().zip(keys) {
            *part = payload.number(key)?;
        }
        (parts, payload.number(b"is_write")? != 0)
    } else {
        let listed = payload.words().find(|word| word.starts_with(b"("))?;
        let listed = listed.strip_prefix(b"(")?.strip_suffix(b")")?;
        let mut numbers = listed.split(|byte| *byte == b',').map(decimal);
        let mut parts = [0; 5];
        for part in &mut parts {
            *part = numbers.next()??;
        }
        match payload.words().last()? {
            b"write" => (parts, true),
            b"read" => (parts, false),
            _ => return None,
        }
    };
    let [op0, op1, crn, crm, op2] = parts;
    said(Kind::Sysreg { write, register: registers::id(op0, op1, crn, crm, op2) as u32 })
}

/// `HVC at 0x00000000400013a8 (r0: 0x0000000084000000, imm: 0x0)`.
fn hvc(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (r0, immediate) = if payload.fields {
        (payload.hex(b"r0")?, payload.hex(b"imm")?)
    } else {
        (hex(payload.after(b"(r0")?)?, hex(payload.after(b"imm")?.strip_suffix(b")")?)?)
    };
    let number = arm::call(r0, immediate);
    said(Kind::Hypercall { interface: HypercallInterface::Smccc, number })
}

/// `guest executed wfi at: 0x00000000400013a8`.
fn wfx(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let for_event = match payload.fields {
        true => payload.number(b"is_wfe")? != 0,
        false => match payload.after(b"executed")? {
            b"wfe" => true,
            b"wfi" => false,
            _ => return None,
        },
    };
    said(Kind::Wait { for_event })
}

/// The mode of a `PSTATE`, and HCR_EL2: `... spsr_el2: 0x600003c5 (M: EL1h) hcr_el2: 2403c807d263f`.
fn mode(payload: Payload<'_>) -> Option<(u64, u64)> {
    let value = |key: &[u8]| match payload.fields {
        true => payload.hex(key),
        false => hex(payload.after(key)?),
    };
    Some((value(b"spsr_el2")? & 0x1f, value(b"hcr_el2")?))
}

fn eret(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (mode, hcr) = mode(payload)?;
    said(nested_eret(mode, hcr))
}

/// `IRQ: esr_el2 0x0 elr_el2: ...`; trace-cmd knows no word for the type and gives its number.
fn inject_exception(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let (kind, syndrome) = if payload.fields {
        (payload.number(b"type")?, payload.hex(b"esr_el2")?)
    } else {
        let kind = match payload.words().next()?.strip_suffix(b":")? {
            b"SYNC" => 0,
            b"IRQ" => 0x80,
            b"FIQ" => 0x100,
            b"SERROR" => 0x180,
            word => hex(word.strip_prefix(b"0x")?)?,
        };
        (kind, hex(payload.after(b"esr_el2")?)?)
    };
    said(nested_exception(kind as u32, syndrome, mode(payload)?))
}

/// `VCPU: 0, dv: 1, dp: 0, ev: -1, ep: -1`: the vCPU of the thread.
fn timer_map(payload: Payload<'_>, _: &mut Reasons) -> Option<Said> {
    let vcpu = match payload.fields {
        true => payload.u32(b"vcpu_id")?,
        false => decimal_u32(payload.after(b"VCPU")?)?,
    };
    Some((vcpu, Kind::Runs))
}
