//! Columns of counts, a line each second, below a line of names: what CVM_eval's scripts `intel_monitor_vmexit`,
//! `tdx_count_tdvmcall` and `tdx_count_msr` print.
//!
//! ```text
//! VMCALL,CPUID,HLT,IO,RDMSR,WRMSR,EPT_VIOLATION,TD_VM_CALL_INFO,MAP_GPA,GET_QUOTE,REPORT_FATAL_ERROR
//! 0,2,310,0,0,1892,5,0,0,0,0
//! ```

use vmtax_events::{Detail, DetailKind, Isa, Reason, tdx, vmx};

use super::{CountsTable, at_line};
use crate::Error;
use crate::import::spelling::{Spelled, spelled};

const fn of_td(detail: Detail) -> (Spelled, Detail) {
    (Spelled::Sure(Reason { isa: Isa::Vmx, code: vmx::TDCALL, flags: 0 }), detail)
}

const fn leaf(value: u64) -> Detail {
    Detail { kind: DetailKind::Tdvmcall, value }
}

const fn read_of(value: u64) -> Detail {
    Detail { kind: DetailKind::MsrRead, value }
}

const fn write_of(value: u64) -> Detail {
    Detail { kind: DetailKind::MsrWrite, value }
}

/// Columns of TDVMCALLs by leaf.
const LEAVES: [(&str, Detail); 11] = [
    ("VMCALL", Detail::NONE),
    ("CPUID", leaf(tdx::LEAF_CPUID)),
    ("HLT", leaf(tdx::LEAF_HLT)),
    ("IO", leaf(tdx::LEAF_IO)),
    ("RDMSR", leaf(tdx::LEAF_RDMSR)),
    ("WRMSR", leaf(tdx::LEAF_WRMSR)),
    ("EPT_VIOLATION", leaf(tdx::LEAF_MMIO)),
    ("TD_VM_CALL_INFO", leaf(tdx::LEAF_GET_TD_VM_CALL_INFO)),
    ("MAP_GPA", leaf(tdx::LEAF_MAP_GPA)),
    ("GET_QUOTE", leaf(tdx::LEAF_GET_QUOTE)),
    ("REPORT_FATAL_ERROR", leaf(tdx::LEAF_REPORT_FATAL_ERROR)),
];

/// Columns of TDVMCALLs that read or write an MSR.
const MSRS: [(&str, Detail); 10] = [
    ("RD_IA32_TSC_DEADLINE", read_of(0x6e0)),
    ("RD_IA32_X2APIC_ICR", read_of(0x830)),
    ("RD_IA32_X2APIC_LVT_TIMER", read_of(0x832)),
    ("RD_IA32_X2APIC_INIT_COUNT", read_of(0x838)),
    ("RD_OTHER", leaf(tdx::LEAF_RDMSR)),
    ("WR_IA32_TSC_DEADLINE", write_of(0x6e0)),
    ("WR_IA32_X2APIC_ICR", write_of(0x830)),
    ("WR_IA32_X2APIC_LVT_TIMER", write_of(0x832)),
    ("WR_IA32_X2APIC_INIT_COUNT", write_of(0x838)),
    ("WR_OTHER", leaf(tdx::LEAF_WRMSR)),
];

/// Columns by reason that make such a table.
const ENOUGH: usize = 8;

/// What each column counts; `None` for one that has no name (a number without an exit).
type CountColumns = Vec<Option<(Spelled, Detail)>>;

fn head(line: &str) -> Option<CountColumns> {
    let names: Vec<&str> = line.trim().trim_end_matches(',').split(',').map(str::trim).collect();
    for known in [&LEAVES[..], &MSRS[..]] {
        if names.iter().copied().eq(known.iter().map(|(name, _)| *name)) {
            return Some(known.iter().map(|(_, detail)| Some(of_td(*detail))).collect());
        }
    }
    let columns: CountColumns =
        names.iter().map(|name| Some((spelled(name)?, Detail::NONE))).collect();
    let known = columns.iter().flatten().count();
    (known >= ENOUGH && known * 2 > columns.len()).then_some(columns)
}

pub(super) fn recognise(text: &str) -> bool {
    text.lines().take(16).any(|line| head(line).is_some())
}

pub(super) fn read(text: &str, table: &mut CountsTable) -> Result<(), Error> {
    let mut columns: Option<CountColumns> = None;
    let mut intervals = 0u64;
    for (number, line) in text.lines().enumerate() {
        if let Some(found) = head(line) {
            if columns.replace(found).is_some() {
                return Err(at_line(
                    number,
                    "begins a second table: give each in a file of its own",
                ));
            }
            continue;
        }
        let Some(columns) = &columns else { continue };
        let cells: Vec<&str> = line.trim().trim_end_matches(',').split(',').collect();
        let numbers: Vec<u64> = cells.iter().filter_map(|cell| cell.parse().ok()).collect();
        if numbers.is_empty() {
            continue;
        }
        if (cells.len(), numbers.len()) != (columns.len(), columns.len()) {
            let problem = format!("has {} numbers below {} names", numbers.len(), columns.len());
            return Err(at_line(number, &problem));
        }
        intervals += 1;
        for (column, count) in columns.iter().zip(numbers) {
            match column {
                Some((name, detail)) => table.count(*name, *detail, count),
                None if count > 0 => {
                    return Err(at_line(
                        number,
                        "counts exits in a column that names no exit reason",
                    ));
                }
                None => {}
            }
        }
    }
    if intervals > 1 {
        table.notes.push(format!(
            "the text has {intervals} lines of counts, which were added up: if each is a second, give --length {intervals}s"
        ));
    }
    Ok(())
}
