//! Lines for each `kvm_exit` that have no times, so that they are counts: what a bpftrace program of one's own prints, as `key=value`, and ftrace's text
//! whose front was cut.
//!
//! ```text
//! CPU 3/KVM: rip=ffffffffa746d5fa reason=1 isa=1 info1=0 info2=0 intr=2147483894 error=0 vcpu=3
//!  kvm_exit:             reason VMRESUME rip 0xfffff80006a40115 info 0 0
//! ```
//!
//! Names are those of the tracepoint's fields (Linux arch/x86/kvm/trace.h, `kvm_exit`) and what people make of them. `isa` says whose the numbers
//! are; where it is not printed, numbers that one vendor alone has do, else `--isa`.

use std::collections::HashMap;

use vmtax_events::{Detail, Isa, Reason, svm, vmx};

use super::CountsTable;
use crate::Error;
use crate::import::spelling::{Spelled, spelled};

/// Lines that make such a text.
const ENOUGH: usize = 3;
/// Longer lines are none.
const LONGEST: usize = 1024;
/// vCPUs whose last fault is kept.
const MOST_VCPUS: usize = 4096;
/// SVM's first exits behind those of registers and exceptions; VMX has none so large (Linux `arch/x86/include/uapi/asm/vmx.h`: up to 79).
const LEAST_OF_SVM: u32 = 0x60;
/// `isa` of the tracepoint.
const OF_SVM: u64 = 2;

/// An exit as it was printed.
#[derive(Clone, Copy)]
struct PrintedExit<'t> {
    code: u32,
    isa: Option<u64>,
    info1: u64,
    intr: u64,
    rip: Option<&'t str>,
    vcpu: &'t str,
}

fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

fn exit(line: &str) -> Option<PrintedExit<'_>> {
    if line.len() > LONGEST {
        return None;
    }
    let fields = || {
        let words = line.split([' ', ',', ';', '\t']);
        words.filter_map(|word| word.split_once('='))
    };
    let of = |names: &[&str]| {
        fields().find(|(name, _)| names.contains(name)).map(|(_, value)| value.trim())
    };
    let code = number(of(&["reason", "exit_reason"])?)?;
    // What a reason says has to be beside another field: other programs print reasons too.
    let rip = of(&["rip", "guest_rip"]);
    let isa = of(&["isa"]).and_then(number);
    let vcpu = of(&["vcpu", "vcpu_id"]);
    (rip.is_some() || isa.is_some() || vcpu.is_some()).then_some(())?;
    Some(PrintedExit {
        // Flags stand above the number.
        code: u32::try_from(code & 0xffff).ok()?,
        isa,
        // A qualification is printed in hexadecimal or not: it is read where it says so.
        info1: of(&["info1"]).filter(|word| word.starts_with("0x")).and_then(number).unwrap_or(0),
        intr: of(&["intr", "intr_info"]).and_then(number).unwrap_or(0),
        rip,
        vcpu: vcpu.unwrap_or(""),
    })
}

/// The reason of `kvm_exit: [vcpu N] reason NAME ...` that nothing stands before.
fn untimed(line: &str) -> Option<&str> {
    let event = line.trim_start().strip_prefix("kvm_exit:")?;
    let mut words = event.split_whitespace().skip_while(|word| *word != "reason");
    words.nth(1).filter(|_| line.len() <= LONGEST)
}

pub(super) fn recognise(text: &str) -> bool {
    let enough = |found: &mut dyn Iterator<Item = ()>| found.take(ENOUGH).count() == ENOUGH;
    let is_event = |line: &str| line.contains("kvm_exit:");
    let is_timed = |line: &str| is_event(line) && untimed(line).is_none();
    enough(&mut text.lines().filter_map(exit).map(drop)) && !text.lines().any(is_event)
        || enough(&mut text.lines().filter_map(untimed).filter_map(spelled).map(drop))
            && !text.lines().any(is_timed)
}

pub(super) fn read(text: &str, table: &mut CountsTable) -> Result<(), Error> {
    for reason in text.lines().filter_map(untimed) {
        let Some(name) = spelled(reason) else {
            table.truncated.push(format!("{reason}: no exit reason that vmtax knows: not counted"));
            continue;
        };
        table.count(name, Detail::NONE, 1);
    }
    if text.lines().any(|line| untimed(line).is_some()) {
        table.notes.push("events without their times, so that exits are counted".to_owned());
        return Ok(());
    }
    let exits = || text.lines().filter_map(exit);
    let is_svm = exits().any(|one| one.isa == Some(OF_SVM))
        || exits().all(|one| one.isa.is_none()) && exits().any(|one| one.code >= LEAST_OF_SVM);
    let is_vmx = exits().any(|one| one.isa == Some(1));
    let (mut faults, mut again) = (0_u64, 0_u64);
    let mut last: HashMap<&str, &str> = HashMap::new();
    for one in exits() {
        let (name, detail) = match (is_svm, is_vmx) {
            (true, _) => {
                (Spelled::Sure(Reason { isa: Isa::Svm, code: one.code, flags: 0 }), Detail::NONE)
            }
            (false, true) => {
                let detail = Isa::Vmx.facts().information(one.code, one.info1, one.intr);
                // Without the qualification ports and registers are unknown, and not 0.
                let detail = if one.info1 == 0 && one.code != vmx::EXTERNAL_INTERRUPT {
                    Detail::NONE
                } else {
                    detail
                };
                (Spelled::Sure(Reason { isa: Isa::Vmx, code: one.code, flags: 0 }), detail)
            }
            (false, false) => (Spelled::Either(one.code, one.code), Detail::NONE),
        };
        table.count(name, detail, 1);
        let is_fault = if is_svm { one.code == svm::NPF } else { one.code == vmx::EPT_VIOLATION };
        let Some(rip) = one.rip.filter(|_| is_fault) else { continue };
        faults += 1;
        if last.len() < MOST_VCPUS || last.contains_key(one.vcpu) {
            again += u64::from(last.insert(one.vcpu, rip) == Some(rip));
        }
    }
    table.notes.push(
        "lines of a program of its own: exits without their entries, so that they are counted"
            .to_owned(),
    );
    if again > 0 {
        let fault = if is_svm { "npf" } else { "EPT_VIOLATION" };
        table.notes.push(format!(
            "{again} of {faults} {fault} are at the same instruction as the vCPU's fault before: either it touches several pages, or KVM does not get to map one; `perf record -e kvm:kvm_page_fault -e kvm:kvm_exit` shows the addresses"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Option<Vec<(Spelled, Detail, u64)>> {
        recognise(text).then(|| {
            let mut table = CountsTable::default();
            read(text, &mut table).expect("it is such a text");
            table.rows.iter().map(|((name, detail), tally)| (*name, *detail, tally.count)).collect()
        })
    }

    #[test]
    fn exits_that_a_program_printed() {
        let sure = |isa, code| Spelled::Sure(Reason { isa, code, flags: 0 });
        let text = "CPU 3/KVM: rip=a5f8 reason=32 isa=1 info1=0 intr=0 vcpu=3\nCPU 3/KVM: rip=a5fa reason=1 isa=1 info1=0 intr=2147483894 vcpu=3\nCPU 3/KVM: rip=dd24 reason=48 isa=1 info1=181 vcpu=3\nCPU 3/KVM: rip=dd24 reason=48 isa=1 info1=181 vcpu=3\n";
        let interrupt = Detail::new(vmtax_events::DetailKind::Interrupt, 0xf6);
        let mut rows = counts(text).unwrap_or_default();
        rows.sort_by_key(|(_, _, count)| *count);
        assert_eq!(rows.last(), Some(&(sure(Isa::Vmx, vmx::EPT_VIOLATION), Detail::NONE, 2)));
        assert!(rows.contains(&(sure(Isa::Vmx, vmx::EXTERNAL_INTERRUPT), interrupt, 1)));
        assert!(rows.contains(&(sure(Isa::Vmx, vmx::MSR_WRITE), Detail::NONE, 1)));
        // By a number that SVM alone has.
        let text = "vcpu=0, exit_reason=0x78, rip=0x1\nvcpu=0, exit_reason=0x78, rip=0x2\nvcpu=0, exit_reason=0x400, rip=0x2\n";
        let rows = counts(text).unwrap_or_default();
        assert!(rows.contains(&(sure(Isa::Svm, svm::HLT), Detail::NONE, 2)));
        // Numbers of either.
        let text = "reason=12 vcpu=0\nreason=12 vcpu=0\nreason=12 vcpu=1\n";
        assert_eq!(counts(text), Some(vec![(Spelled::Either(12, 12), Detail::NONE, 3)]));
        // ftrace's text without its front.
        let text = " kvm_entry: vcpu 0\n kvm_exit:             reason VMRESUME rip 0x1 info 0 0\n kvm_exit: vcpu 0 reason EOI_INDUCED rip 0x2\n kvm_exit: reason VMRESUME rip 0x1\n";
        let mut rows = counts(text).unwrap_or_default();
        rows.sort_by_key(|(_, _, count)| *count);
        let expected = [(vmx::EOI_INDUCED, 1), (vmx::VMRESUME, 2)];
        assert_eq!(rows, expected.map(|(code, count)| (sure(Isa::Vmx, code), Detail::NONE, count)));
        // Reasons of other things, and ftrace's text.
        for text in [
            "status=1 reason=12\nstatus=1 reason=12\nstatus=1 reason=12\n",
            "x [001] 1.0: kvm_exit: reason=12 isa=1\nreason=12 isa=1\nreason=12 isa=1\n",
            "x-1 [001] 1.000000: kvm_exit: reason HLT rip 0x1\n kvm_exit: reason HLT rip 0x1\n kvm_exit: reason HLT rip 0x1\n kvm_exit: reason HLT rip 0x1\n",
            " kvm_exit: reason GONE\n kvm_exit: reason GONE\n kvm_exit: reason GONE\n",
        ] {
            assert_eq!(counts(text), None, "{text}");
        }
    }
}
