//! What the operations of a lab run did with memory: page faults of each 2 MiB, and at which level KVM maps it. Described once.

use vmtax_analyse::operations::BatchMemory;
use vmtax_analyse::{OperationRow, Operations};
use vmtax_events::Recording;

use crate::names;
use crate::operations::path_cell;
use crate::table::{Cell, Column, CsvLine, PEOPLE, Table};

pub(crate) const TITLE: &str = "Memory: page faults and pages mapped in one batch";

/// Said below the table.
pub(crate) const NOTE: &str = "faults: page faults for each 2 MiB touched. mapped: the size of the pages mapped at the end, by KVM's counters \
                               (pages_4k, pages_2m, pages_1g); at L1 the recording's kvm_mmu_spte_requested says the same, or the operation is not \
                               shown. At L2 L1's KVM counts, and the recording is L0's. before: instructions for each 4 KiB that \
                               populating and pre-faulting took before the batch.";

/// Sizes of pages, by level.
const SIZES: [&str; 3] = ["4K", "2M", "1G"];

/// The sizes that are mapped: `2M`, `4K+2M`, `none`.
pub(crate) fn sizes(pages: [u64; 3]) -> String {
    let mapped = SIZES.iter().zip(pages).filter(|(_, n)| *n > 0).map(|(size, _)| *size);
    let mapped: Vec<&str> = mapped.collect();
    if mapped.is_empty() { "none".to_owned() } else { mapped.join("+") }
}

fn about_memory(operations: &Operations) -> impl Iterator<Item = (&OperationRow, &BatchMemory)> {
    operations.rows.iter().filter_map(|row| Some((row, row.memory.as_ref()?)))
}

/// Page faults of the second-level page table, by the recording.
fn faults(row: &OperationRow, memory: &BatchMemory) -> Option<u64> {
    memory.faults.filter(|_| row.recorded)
}

/// For people; `None` for a run without operations about memory.
pub(crate) fn table(operations: &Operations) -> Option<Table> {
    let number = |key, title: &'static str| Column::number(key, title).only(PEOPLE);
    let minor = |key, title, rank| Column::minor(key, title, rank).only(PEOPLE);
    let pages = |memory: &BatchMemory, size: usize| {
        Cell::of(memory.pages.map(|pages| pages[size]), Cell::Count)
    };
    let table = Table::of(about_memory(operations))
        .column(Column::words("operation", "operation").only(PEOPLE), |(row, _)| {
            Cell::Name(row.name.clone())
        })
        .column(Column::short("level", "level").only(PEOPLE), |(row, _)| {
            Cell::Word(row.level.name())
        })
        .column(number("faults", "faults"), |(row, memory)| {
            let each = faults(row, memory).and_then(|n| memory.per_region(n).value());
            Cell::of(each, Cell::Number)
        })
        .column(Column::short("mapped", "mapped").only(PEOPLE), |(_, memory)| {
            Cell::of(memory.pages, |pages| Cell::Name(sizes(pages)))
        })
        .column(number("pages_4k", "4K pages"), |(_, memory)| pages(memory, 0))
        .column(number("pages_2m", "2M pages"), |(_, memory)| pages(memory, 1))
        .column(minor("pages_1g", "1G pages", 2), |(_, memory)| pages(memory, 2))
        .column(number("path", "path"), |(row, _)| Cell::of(row.path, |path| path_cell(&path)))
        .column(minor("before", "before", 1), |(_, memory)| {
            Cell::Instructions(memory.prepared / memory.small_pages().max(1) as f64)
        })
        .column(minor("conversions", "conversions", 3), |(_, memory)| {
            Cell::Count(memory.conversions + memory.memory_faults)
        })
        .table();
    (!table.rows.is_empty()).then_some(table)
}

/// For CSV: a line for each count of an operation.
pub(crate) fn lines(recording: &Recording, operations: &Operations) -> Vec<CsvLine> {
    let of_operation = |(row, memory): (&OperationRow, &BatchMemory)| {
        let name = row.vm.and_then(|vm| names::vm_name(recording, vm));
        let first = vec![
            ("table", Cell::Word("memory")),
            ("level", Cell::Word(row.level.name())),
            ("vm", Cell::of(row.vm, |vm| Cell::Count(vm.into()))),
            ("vm_name", Cell::of(name, |name| Cell::Name(name.to_owned()))),
            ("operation", Cell::Name(row.name.clone())),
        ];
        let line = |(what, count): (&'static str, Cell)| {
            let mut line = first.clone();
            line.extend([("detail_name", Cell::Word(what)), ("count", count)]);
            line
        };
        counts(memory).into_iter().map(line).collect::<Vec<_>>()
    };
    about_memory(operations).flat_map(of_operation).collect()
}

/// For JSON: the object of an operation.
pub(crate) fn object(memory: &BatchMemory) -> Cell {
    Cell::Object(counts(memory))
}

fn counts(memory: &BatchMemory) -> Vec<(&'static str, Cell)> {
    let page =
        |pages: Option<[u64; 3]>, size: usize| Cell::of(pages.map(|all| all[size]), Cell::Count);
    vec![
        ("regions", Cell::Count(memory.regions)),
        ("faults", Cell::of(memory.faults, Cell::Count)),
        ("pages_4k", page(memory.pages, 0)),
        ("pages_2m", page(memory.pages, 1)),
        ("pages_1g", page(memory.pages, 2)),
        ("traced_4k", page(memory.traced, 0)),
        ("traced_2m", page(memory.traced, 1)),
        ("traced_1g", page(memory.traced, 2)),
        ("prepared", Cell::Number(memory.prepared)),
        ("conversions", Cell::Count(memory.conversions)),
        ("memory_faults", Cell::Count(memory.memory_faults)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_name_what_is_mapped() {
        for (pages, expected) in [
            ([0, 0, 0], "none"),
            ([2048, 0, 0], "4K"),
            ([0, 4, 0], "2M"),
            ([512, 3, 0], "4K+2M"),
            ([1, 1, 1], "4K+2M+1G"),
        ] {
            assert_eq!(sizes(pages), expected);
        }
    }
}
