//! CPUID leaves of a guest's PMU.

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

use super::KvmError;
use crate::model::{Leaf, PmuModel};

/// CPUID.7:EBX: transactions.
const HLE: u32 = 1 << 4;
const RTM: u32 = 1 << 11;

/// Replaces the PMU leaves of a vCPU's CPUID by those of a model. An Intel model's event selects lack the two bits for TSX, so HLE and
/// RTM are hidden.
pub fn show(model: &PmuModel, cpuid: &mut CpuId) -> Result<(), KvmError> {
    // The other vendor's leaves too: they show no PMU.
    let nothing = [
        Leaf { leaf: 1, mask: [0, 0, 1 << 15, 0], value: [0; 4] },
        Leaf { leaf: 0xa, mask: [u32::MAX; 4], value: [0; 4] },
        Leaf { leaf: 0x8000_0001, mask: [0, 0, 1 << 23, 0], value: [0; 4] },
        Leaf { leaf: 0x8000_0022, mask: [u32::MAX; 4], value: [0; 4] },
    ];
    let no_tsx = Leaf { leaf: 7, mask: [0, HLE | RTM, 0, 0], value: [0; 4] };
    let hidden = matches!(model, PmuModel::Intel(_)).then_some(no_tsx);
    for leaf in nothing.iter().chain(&hidden).chain(&model.cpuid()) {
        let entries = cpuid.as_mut_slice();
        // All of them are a leaf's first part, where it has several.
        let is = |entry: &&mut kvm_cpuid_entry2| entry.function == leaf.leaf && entry.index == 0;
        if let Some(entry) = entries.iter_mut().find(is) {
            let registers = leaf.merge([entry.eax, entry.ebx, entry.ecx, entry.edx]);
            [entry.eax, entry.ebx, entry.ecx, entry.edx] = registers;
            continue;
        }
        if leaf.value == [0; 4] {
            continue;
        }
        // The first leaf of its kind has the number of the last.
        let first = leaf.leaf & 0x8000_0000;
        if let Some(entry) = entries.iter_mut().find(|entry| entry.function == first) {
            entry.eax = entry.eax.max(leaf.leaf);
        }
        let [eax, ebx, ecx, edx] = leaf.value;
        let entry =
            kvm_cpuid_entry2 { function: leaf.leaf, eax, ebx, ecx, edx, ..Default::default() };
        cpuid.push(entry).map_err(|_| KvmError::Full)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Amd, Intel};

    fn leaf(cpuid: &CpuId, number: u32) -> Option<[u32; 4]> {
        let entry = cpuid.as_slice().iter().find(|e| e.function == number && e.index == 0)?;
        Some([entry.eax, entry.ebx, entry.ecx, entry.edx])
    }

    #[test]
    fn cpuid_shows_the_model_and_no_other() {
        let entry = |function, ecx| kvm_cpuid_entry2 {
            function,
            eax: function & 0x8000_0000 | 1,
            ecx,
            ..Default::default()
        };
        // An AMD processor whose KVM has a PMU, and whose leaves end early.
        let with_tsx = kvm_cpuid_entry2 { ebx: 1 << 11 | 1 << 4 | 1, ..entry(7, 0) };
        let processor = [
            entry(0, 0),
            entry(1, 7),
            // The second part of the leaf is another register.
            kvm_cpuid_entry2 { index: 1, ..with_tsx },
            with_tsx,
            entry(0x8000_0000, 0),
            entry(0x8000_0001, 1 << 23 | 1),
        ];
        let of = |model: &PmuModel| {
            let mut cpuid = CpuId::from_entries(&processor).expect("six entries");
            show(model, &mut cpuid).expect("there is room");
            cpuid
        };
        let intel = of(&PmuModel::Intel(Intel::default()));
        assert_eq!(leaf(&intel, 0xa), Some([0x0830_0402, 0x80, 0, 0x603]));
        assert_eq!(leaf(&intel, 0).map(|leaf| leaf[0]), Some(0xa));
        assert_eq!(leaf(&intel, 1).map(|leaf| leaf[2]), Some(7 | 1 << 15));
        assert_eq!(leaf(&intel, 0x8000_0001).map(|leaf| leaf[2]), Some(1));
        assert_eq!(leaf(&intel, 0x8000_0022), None);
        assert_eq!(leaf(&intel, 7).map(|leaf| leaf[1]), Some(1));
        let amd = of(&PmuModel::Amd(Amd { counters: 6, perfmon_v2: true }));
        assert_eq!(leaf(&amd, 0x8000_0022), Some([1, 6, 0, 0]));
        assert_eq!(leaf(&amd, 0x8000_0000).map(|leaf| leaf[0]), Some(0x8000_0022));
        assert_eq!(leaf(&amd, 0x8000_0001).map(|leaf| leaf[2]), Some(1 << 23 | 1));
        assert_eq!(leaf(&amd, 1).map(|leaf| leaf[2]), Some(7));
        assert_eq!(leaf(&amd, 0xa), None);
        assert_eq!(leaf(&amd, 7).map(|leaf| leaf[1]), Some(1 << 11 | 1 << 4 | 1));
    }
}
