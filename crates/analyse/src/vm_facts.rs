//! Properties of VMs that a ledger shows: their kind, and the page sizes in which their memory is mapped.

use std::collections::BTreeMap;

use vmtax_events::{DetailKind, ExitKey, Isa, Profile, ProfileOrigin, Stat, Vm, svm, vmx};

use crate::Ledger;
use crate::remedy::VmKind;

/// Requests that SEV-SNP guests alone make: page state changes, guest requests, creation of vCPUs. AMD 56421.
const SNP_REQUESTS: [u64; 4] = [0x8000_0010, 0x8000_0011, 0x8000_0012, 0x8000_0013];
/// The same in the MSR protocol: GHCB registration, page state changes.
const SNP_MSR_REQUESTS: [u64; 3] = [0x10, 0x12, 0x14];

/// The vendor of the processor, by the exit reasons.
pub(crate) fn vendor(ledger: &Ledger) -> Isa {
    ledger.isa()
}

/// No VM that is encrypted takes these by itself. A TD has no preemption timer of KVM's, no CR exits and no virtual APIC of its own;
/// what a guest with encrypted registers wants of SVM's others it has to ask for.
fn is_of_plain(key: &ExitKey) -> bool {
    match key.reason.isa {
        Isa::Vmx => {
            matches!(key.reason.code, vmx::PREEMPTION_TIMER | vmx::CR_ACCESS | vmx::APIC_WRITE)
        }
        Isa::Svm => {
            matches!(key.reason.code, svm::CPUID | svm::MSR | svm::IOIO | svm::VMMCALL)
        }
        Isa::Arm | Isa::Unknown => false,
    }
}

/// What shows that a VM's registers are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncryptedBy {
    /// KVM's own mark of its vCPUs.
    State,
    /// The instruction pointer 0 of all of its entries and exits.
    Rip,
}

/// What shows that a VM's registers are encrypted, if anything does. Exits that such a VM does not take contradict the instruction
/// pointer: then the text was made anonymous.
pub fn encrypted_by(ledger: &Ledger) -> Option<EncryptedBy> {
    let by = |vm: &Vm| match vm.state_protected {
        Some(true) => Some(EncryptedBy::State),
        None if vm.rips.are_encrypted() => Some(EncryptedBy::Rip),
        _ => None,
    };
    ledger.recording.vms.iter().find_map(|vm| {
        let by = by(vm)?;
        let mut own = ledger.exits.keys().filter(|key| key.vm == vm.id).peekable();
        own.peek()?;
        (by == EncryptedBy::State || !own.any(is_of_plain)).then_some(by)
    })
}

/// The kind of VM, from exit reasons, details, instruction pointers and the host's profile.
pub fn kind(ledger: &Ledger) -> VmKind {
    let runs = |names: &[&str]| {
        ledger.profiles.get(&ProfileOrigin::Host).is_some_and(|profile| {
            let mut functions =
                profile.stacks.keys().flat_map(|stack| stack.split(Profile::BETWEEN));
            functions.any(|function| names.iter().any(|name| function.starts_with(name)))
        })
    };
    let mut found = VmKind::Unknown;
    for key in ledger.exits.keys() {
        let (isa, code) = (key.reason.isa, key.reason.code);
        match (isa, key.detail.kind) {
            (Isa::Vmx, _) if matches!(code, vmx::TDCALL | vmx::SEAMCALL) => return VmKind::Tdx,
            (_, DetailKind::Tdvmcall) => return VmKind::Tdx,
            (_, DetailKind::Ghcb) if SNP_REQUESTS.contains(&key.detail.value) => {
                return VmKind::Snp;
            }
            (_, DetailKind::GhcbMsr) if SNP_MSR_REQUESTS.contains(&key.detail.value) => {
                return VmKind::Snp;
            }
            (_, DetailKind::Ghcb | DetailKind::GhcbMsr) => found = VmKind::Encrypted,
            (Isa::Svm, _) if code == svm::VMGEXIT => found = VmKind::Encrypted,
            _ if is_of_plain(key) && found == VmKind::Unknown => found = VmKind::Plain,
            _ => {}
        }
    }
    if runs(&["__seamcall", "tdx_vcpu_run"]) {
        return VmKind::Tdx;
    }
    if encrypted_by(ledger).is_some() {
        match vendor(ledger) {
            // VMX has no other VM whose registers KVM cannot read.
            Isa::Vmx => return VmKind::Tdx,
            Isa::Svm => return VmKind::Encrypted,
            Isa::Arm | Isa::Unknown => {}
        }
    }
    if found == VmKind::Unknown && runs(&["__svm_sev_es_vcpu_run"]) {
        return VmKind::Encrypted;
    }
    if found == VmKind::Unknown && runs(&["vmx_vcpu_run", "vmx_vmexit"]) {
        return VmKind::Plain;
    }
    found
}

/// Bytes that are mapped in pages of 4 KiB, and in all sizes; the last reading of each VM counts.
pub(crate) fn mapped(ledger: &Ledger) -> Option<(f64, f64)> {
    let mut last: BTreeMap<(u32, u64), &Stat> = BTreeMap::new();
    for stat in &ledger.stats {
        let Some((_, size)) = Stat::PAGES.iter().find(|(name, _)| stat.name == *name) else {
            continue;
        };
        let known = last.entry((stat.vm, *size)).or_insert(stat);
        if stat.time_ns >= known.time_ns {
            *known = stat;
        }
    }
    let bytes = |stats: &mut dyn Iterator<Item = (&(u32, u64), &&Stat)>| -> f64 {
        stats.map(|((_, size), stat)| stat.value * *size as f64).sum()
    };
    let all = bytes(&mut last.iter());
    let small = bytes(&mut last.iter().filter(|((_, size), _)| *size == Stat::PAGES[0].1));
    (all > 0.0).then_some((small, all))
}

#[cfg(test)]
mod tests {
    use vmtax_events::{ExitRow, Reason, Recording, RipCounts, Tally};

    use super::*;
    use crate::{Filter, LedgerBuilder};

    fn ledger(isa: Isa, code: u32, vm: Vm) -> Ledger {
        let mut builder = LedgerBuilder::new(Filter::default(), 1);
        let key = ExitKey::of(vm.id, Reason { isa, code, flags: 0 });
        let mut tally = Tally::default();
        tally.add(1000);
        builder.exit(&ExitRow { interval_start_ns: 0, key, tally });
        builder.finish(
            Recording { vms: vec![vm], ..Recording::default() },
            Default::default(),
            true,
        )
    }

    /// A steady state has no exit that only a TD, or an SEV-ES guest, takes.
    #[test]
    fn the_kernels_mark_of_a_vcpu_is_its_vms_kind() {
        let zero = RipCounts { zero: 64, other: 0 };
        for (isa, code, state_protected, rips, by, found) in [
            (
                Isa::Vmx,
                vmx::HLT,
                Some(true),
                RipCounts::default(),
                Some(EncryptedBy::State),
                VmKind::Tdx,
            ),
            (
                Isa::Svm,
                0x60,
                Some(true),
                RipCounts::default(),
                Some(EncryptedBy::State),
                VmKind::Encrypted,
            ),
            (Isa::Vmx, vmx::HLT, Some(false), RipCounts::default(), None, VmKind::Unknown),
            (Isa::Vmx, vmx::HLT, None, RipCounts::default(), None, VmKind::Unknown),
            (Isa::Vmx, vmx::HLT, None, zero, Some(EncryptedBy::Rip), VmKind::Tdx),
            // KVM itself says that it can read them.
            (Isa::Vmx, vmx::HLT, Some(false), zero, None, VmKind::Unknown),
        ] {
            let vm = Vm { id: 7, rips, state_protected, ..Vm::default() };
            let ledger = ledger(isa, code, vm);
            assert_eq!((encrypted_by(&ledger), kind(&ledger)), (by, found), "{state_protected:?}");
        }
    }
}
