//! What the accesses of a lab run's operations cost simulated processors: TLB misses, page walks, where walks find the entries of page tables.
//! Described once.

use std::collections::BTreeMap;

use vmtax_analyse::operations::{InstructionPaging, Paging, Ratio};
use vmtax_analyse::{OperationRow, Operations};
use vmtax_events::{Recording, Sample, Simulated};

use crate::names;
use crate::numbers::significant;
use crate::table::{Cell, Column, CsvLine, PEOPLE, Table};

pub(crate) const TITLE: &str =
    "Simulated: TLB misses and page walks of one batch, on named processors";

/// Said below the table.
pub(crate) const NOTE: &str = "Simulated, not measured: accesses of the emulated guest and its real page tables, through a model of TLBs, \
                               page walker and caches (docs/lab-memory.md). instr, branches, accesses: counted, of the operation's own code. L1D: misses of the \
                               first data cache. misses, walks: of each operation, in the first TLB, in both. \
                               +kernel: what the kernel of a Linux guest did for the program. refs: entries of page tables read in a walk; L1 to mem: where. cyc/walk: their latencies. cycles: latencies of \
                               all accesses, as if each waited for the one before.";

/// The heading of the table by instruction.
pub(crate) const BY_INSTRUCTION: &str = "Simulated: which instructions walk";

/// Said below it.
pub(crate) const OF_INSTRUCTIONS: &str = "Instructions with more than one walk of a hundred of their operation, by their offset in its code, or their address in a program's file; of operations \
                                          where several instructions access memory. part: of the operation's walks.";

/// One operation on one processor.
type Simulation<'a> = (&'a OperationRow, &'a Paging, &'a str, &'a Simulated);

fn simulations(operations: &Operations) -> impl Iterator<Item = Simulation<'_>> {
    let with = operations.rows.iter().filter_map(|row| Some((row, row.paging.as_ref()?)));
    with.flat_map(|(row, paging)| of_processors(row, paging))
}

fn of_processors<'a>(
    row: &'a OperationRow,
    paging: &'a Paging,
) -> impl Iterator<Item = Simulation<'a>> {
    paging.processors.iter().map(move |(name, counts)| (row, paging, name.as_str(), counts))
}

/// Each of an operation, and then those of its guest's kernel.
fn with_kernels(operations: &Operations) -> Vec<(Simulation<'_>, bool)> {
    let mut all = Vec::new();
    for row in &operations.rows {
        let Some(paging) = &row.paging else { continue };
        all.extend(of_processors(row, paging).map(|one| (one, false)));
        let kernel = paging.kernel.iter().flat_map(|kernel| of_processors(row, kernel));
        all.extend(kernel.map(|one| (one, true)));
    }
    all
}

/// The sizes that map most pages, and others: `4K on 2M`.
fn pages(paging: &Paging) -> String {
    let mut all: Vec<(&String, &u64)> = paging.pages.iter().collect();
    all.sort_by_key(|(_, pages)| std::cmp::Reverse(**pages));
    all.into_iter().map(|(sizes, _)| names::printable(sizes)).collect::<Vec<_>>().join(", ")
}

/// Empty where it was not simulated.
fn of_walk(part: u64, counts: &Simulated) -> Cell {
    if counts.is_timed() { Cell::Ratio(Ratio { part, whole: counts.walks }) } else { Cell::Empty }
}

/// The same of a count or a ratio.
fn timed(counts: &Simulated, cell: Cell) -> Cell {
    if counts.is_timed() { cell } else { Cell::Empty }
}

fn share(counts: &Simulated, place: usize) -> Cell {
    let all = counts.all_references();
    if all == 0 { Cell::Empty } else { Cell::Share(counts.references[place] as f64 / all as f64) }
}

/// For people; `None` for a run without such operations.
pub(crate) fn table(operations: &Operations) -> Option<Table> {
    let number = |title: &'static str| Column::number("", title).only(PEOPLE);
    let minor = |title, rank| Column::minor("", title, rank).only(PEOPLE);
    let place = |title, rank, place: usize| {
        (minor(title, rank), move |((.., counts), _): &(Simulation<'_>, bool)| share(counts, place))
    };
    let mut table = Table::of(with_kernels(operations))
        .column(Column::words("", "operation").only(PEOPLE), |((row, ..), of_kernel)| {
            Cell::Name(format!("{}{}", row.name, if *of_kernel { " +kernel" } else { "" }))
        })
        .column(Column::words("", "on").only(PEOPLE), |((_, _, name, _), _)| {
            Cell::Name((*name).to_owned())
        })
        .column(Column::words("", "pages").only(PEOPLE), |((_, paging, ..), _)| {
            Cell::Name(pages(paging))
        })
        .column(
            minor("instr", 4).help("instructions of the operation's own code"),
            |((row, paging, ..), _)| each(row, paging.executed[0]),
        )
        .column(minor("branches", 4), |((row, paging, ..), of_kernel)| {
            if *of_kernel { Cell::Empty } else { each(row, paging.executed[1]) }
        })
        .column(minor("accesses", 4), |((row, paging, ..), _)| each(row, paging.accesses))
        .column(minor("L1D", 3).help("misses of the first data cache"), |((row, .., counts), _)| {
            per_operation(row, counts.data_misses)
        })
        .column(
            number("misses").help("of the first TLB, of one operation"),
            |((row, .., counts), _)| per_operation(row, counts.l1_misses),
        )
        .column(
            number("walks").help("misses of both TLBs, of one operation").strong(),
            |((row, .., counts), _)| per_operation(row, counts.walks),
        )
        .column(
            number("refs").help("entries of page tables read in a walk"),
            |((.., counts), _)| of_walk(counts.all_references(), counts),
        );
    for (column, cell) in
        [place("L1", 3, 0), place("L2", 2, 1), place("L3", 2, 2), place("mem", 2, 3)]
    {
        table = table.column(column, cell);
    }
    let table = table
        .column(number("cyc/walk").help("latencies of these entries"), |((.., counts), _)| {
            of_walk(counts.walk_cycles, counts)
        })
        .column(
            number("cycles").help("latencies of all accesses of an operation"),
            |((row, .., counts), _)| {
                timed(counts, Cell::Number(counts.cycles as f64 / row.count.max(1) as f64))
            },
        )
        .table();
    (!table.rows.is_empty()).then_some(table)
}

/// What an operation's accesses cost each processor, from the least to the most.
pub(crate) fn sentences(operations: &Operations) -> Vec<String> {
    let mut by_processor: BTreeMap<&str, Vec<(f64, &OperationRow)>> = BTreeMap::new();
    for (row, _, processor, counts) in simulations(operations).filter(|one| one.3.is_timed()) {
        let cycles = counts.cycles as f64 / row.count.max(1) as f64;
        by_processor.entry(processor).or_default().push((cycles, row));
    }
    let sentence = |(processor, mut all): (&str, Vec<(f64, &OperationRow)>)| {
        all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let (least, most) = (all.first()?, all.last()?);
        let one = |(cycles, row): &(f64, &OperationRow)| {
            format!("{} ({})", significant(*cycles), names::printable(&row.name))
        };
        let processor = names::printable(processor);
        Some(match all.len() {
            1 => {
                format!("Simulated, {processor}: cycles of accesses an operation: {}.", one(least))
            }
            _ => format!(
                "Simulated, {processor}: cycles of accesses an operation, from {} to {}.",
                one(least),
                one(most)
            ),
        })
    };
    by_processor.into_iter().filter_map(sentence).collect()
}

/// An instruction, the number of its operation's walks, its own.
type InstructionRow<'a> = (Simulation<'a>, (u64, &'a InstructionPaging), &'a Simulated);

fn instructions(operations: &Operations) -> impl Iterator<Item = InstructionRow<'_>> {
    let is_one_of_several = |(_, paging, ..): &Simulation<'_>| {
        paging.instructions.values().any(|one| one.accesses < paging.accesses)
    };
    let several = simulations(operations).filter(is_one_of_several);
    several.flat_map(|(row, paging, name, all)| {
        paging.instructions.iter().filter_map(move |(offset, one)| {
            let counts = one.processors.get(name)?;
            (counts.walks > all.walks / 100).then_some((
                (row, paging, name, all),
                (*offset, one),
                counts,
            ))
        })
    })
}

/// For people, by instruction; `None` where no operation has several that access memory.
pub(crate) fn by_instruction(operations: &Operations) -> Option<Table> {
    let number = |title: &'static str| Column::number("", title).only(PEOPLE);
    let table = Table::of(instructions(operations))
        .column(Column::words("", "operation").only(PEOPLE), |((row, ..), ..)| {
            Cell::Name(row.name.clone())
        })
        .column(Column::words("", "on").only(PEOPLE), |((_, _, name, _), ..)| {
            Cell::Name((*name).to_owned())
        })
        .column(Column::words("", "instruction").only(PEOPLE), |(_, (offset, one), _)| {
            Cell::Name(format!("+{offset:#x} {}", one.text))
        })
        .column(number("accesses"), |(_, (_, one), _)| Cell::Count(one.accesses))
        .column(number("walks").strong(), |(.., counts)| Cell::Count(counts.walks))
        .column(number("part").help("of the operation's walks"), |((.., all), _, counts)| {
            Cell::Share(counts.walks as f64 / all.walks as f64)
        })
        .column(number("refs").help("entries of page tables read in a walk"), |(.., counts)| {
            of_walk(counts.all_references(), counts)
        })
        .column(number("cyc/walk").help("latencies of these entries"), |(.., counts)| {
            of_walk(counts.walk_cycles, counts)
        })
        .table();
    (!table.rows.is_empty()).then_some(table)
}

fn each(row: &OperationRow, count: u64) -> Cell {
    Cell::Number(count as f64 / row.count.max(1) as f64)
}

/// Shares of an operation are small: the number needs its digits.
fn per_operation(row: &OperationRow, count: u64) -> Cell {
    let each = count as f64 / row.count.max(1) as f64;
    Cell::Written(format!("{each:.4}"), crate::table::sort_key(each))
}

/// For CSV: a line for each count of an operation on a processor.
pub(crate) fn lines(recording: &Recording, operations: &Operations) -> Vec<CsvLine> {
    let line = |row: &OperationRow, what: String, count: u64| {
        let name = row.vm.and_then(|vm| names::vm_name(recording, vm));
        vec![
            ("table", Cell::Word("paging")),
            ("level", Cell::Word(row.level.name())),
            ("vm", Cell::of(row.vm, |vm| Cell::Count(vm.into()))),
            ("vm_name", Cell::of(name, |name| Cell::Name(name.to_owned()))),
            ("operation", Cell::Name(row.name.clone())),
            ("detail_name", Cell::Name(what)),
            ("count", Cell::Count(count)),
        ]
    };
    let of = |((row, _, name, counts), of_kernel): (Simulation<'_>, bool)| {
        let whose = if of_kernel { Sample::PAGING_KERNEL } else { "" };
        let one = |(metric, _, count)| line(row, format!("{whose}{metric} {name}"), count);
        counts.known_figures().map(one).collect::<Vec<_>>()
    };
    let walks = |((row, _, name, _), (offset, one), counts): InstructionRow<'_>| {
        let what = format!("paging-walks {name} +{offset:#x} {}", one.text);
        line(row, what, counts.walks)
    };
    let all = with_kernels(operations).into_iter().flat_map(of);
    all.chain(instructions(operations).map(walks)).collect()
}

/// For JSON: the object of an operation.
pub(crate) fn object(row: &OperationRow, paging: &Paging) -> Cell {
    let instructions = paging.instructions.iter().map(|(offset, one)| {
        Cell::Object(vec![
            ("offset", Cell::Count(*offset)),
            ("text", Cell::Name(one.text.clone())),
            ("accesses", Cell::Count(one.accesses)),
            ("processors", processors(row, &one.processors)),
        ])
    });
    Cell::Object(vec![
        ("simulated", Cell::Flag(true)),
        ("accesses", Cell::Count(paging.accesses)),
        ("instructions_executed", Cell::Count(paging.executed[0])),
        ("branches", Cell::Count(paging.executed[1])),
        ("pages", Cell::List(pages_by_size(paging))),
        ("processors", processors(row, &paging.processors)),
        ("instructions", Cell::List(instructions.collect())),
        ("kernel", Cell::of(paging.kernel.as_deref(), |kernel| of_kernel(row, kernel))),
    ])
}

/// What the guest's kernel did for the program.
fn of_kernel(row: &OperationRow, kernel: &Paging) -> Cell {
    Cell::Object(vec![
        ("accesses", Cell::Count(kernel.accesses)),
        ("instructions_executed", Cell::Count(kernel.executed[0])),
        ("pages", Cell::List(pages_by_size(kernel))),
        ("processors", processors(row, &kernel.processors)),
    ])
}

fn pages_by_size(paging: &Paging) -> Vec<Cell> {
    let object = |(sizes, pages): (&String, &u64)| {
        Cell::Object(vec![("sizes", Cell::Name(sizes.clone())), ("pages_4k", Cell::Count(*pages))])
    };
    paging.pages.iter().map(object).collect()
}

fn processors(row: &OperationRow, of: &BTreeMap<String, Simulated>) -> Cell {
    Cell::List(of.iter().map(|(name, counts)| processor(row, name, counts)).collect())
}

fn processor(row: &OperationRow, name: &str, counts: &Simulated) -> Cell {
    let [l1, l2, l3, memory] = counts.references;
    Cell::Object(vec![
        ("name", Cell::Name(name.to_owned())),
        ("data_misses", Cell::Count(counts.data_misses)),
        ("l1_misses", Cell::Count(counts.l1_misses)),
        ("walks", Cell::Count(counts.walks)),
        ("walks_per_operation", Cell::Ratio(row.per_operation(counts.walks))),
        ("references_l1", timed(counts, Cell::Count(l1))),
        ("references_l2", timed(counts, Cell::Count(l2))),
        ("references_l3", timed(counts, Cell::Count(l3))),
        ("references_memory", timed(counts, Cell::Count(memory))),
        ("references_per_walk", of_walk(counts.all_references(), counts)),
        ("walk_cycles", timed(counts, Cell::Count(counts.walk_cycles))),
        ("cycles", timed(counts, Cell::Count(counts.cycles))),
        ("cycles_per_operation", timed(counts, Cell::Ratio(row.per_operation(counts.cycles)))),
    ])
}
