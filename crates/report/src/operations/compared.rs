//! Operations of runs of the lab side by side: exits, paths, and the functions by which they differ.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use vmtax_analyse::calls::profiled;
use vmtax_analyse::operations::{OperationRow, Operations, Paging, Path, Ratio, Waited};
use vmtax_analyse::{Ledger, ProfiledOperation};

use crate::calls::difference::{self, ComparedOperation};
use crate::html::{TablePage, TableSection};
use crate::names;
use crate::numbers::{count, counted, plain, ratio};
use crate::table::{Cell, Column, Table, sort_key};
use crate::tables::AllFormats;
use crate::text::TextLayout;
use crate::text::layout::wrap;

/// Schema of the JSON; docs/json.md.
const SCHEMA: &str = "vmtax-lab-comparison-1";

/// Runs with their names.
type Runs<'a> = [(String, &'a Ledger)];

/// Counts of an operation's exits by name; `None` if they depend on time.
pub type CountsByName = fn(&OperationRow) -> Option<BTreeMap<String, u64>>;

/// Labels of a run: the emulated host, options, ...
type RunLabels = BTreeMap<String, String>;

/// The operations of several runs; the first run is the base. Emulated and other runs cannot be compared: paths are instructions in
/// one and cycles in the other.
pub struct OperationsComparison<'a> {
    runs: &'a Runs<'a>,
    rows: Vec<ComparedRow>,
    /// Call trees of each run.
    trees: Vec<Vec<ProfiledOperation<'a>>>,
    /// Labels of each run, where they are known.
    labels: Vec<RunLabels>,
}

impl<'a> OperationsComparison<'a> {
    /// Compares at least one run.
    pub fn new(runs: &'a Runs<'a>, kinds: CountsByName) -> Self {
        let trees = runs.iter().map(|(_, ledger)| profiled(ledger).0).collect();
        OperationsComparison { runs, rows: rows(runs, kinds), trees, labels: Vec::new() }
    }

    /// With the labels of each run: those that differ are named.
    pub fn labelled(self, labels: Vec<BTreeMap<String, String>>) -> Self {
        OperationsComparison { labels, ..self }
    }

    fn compared(&self) -> Vec<((usize, usize), ComparedOperation<'_>)> {
        compared(self.runs, &self.rows, &self.trees)
    }
}

impl AllFormats for OperationsComparison<'_> {
    /// A line per operation and a column per run.
    fn text(&self, look: TextLayout, out: &mut dyn Write) -> io::Result<()> {
        text(out, self.runs, (&self.rows, &self.compared()), look)
    }

    /// The schema is docs/json.md's.
    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        json(out, self.runs, (&self.rows, &self.compared()))
    }

    /// A row per operation and run.
    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        table(self.runs, &self.rows).csv(out)
    }

    /// A page, with pictures of the functions that differ.
    fn html(&self, out: &mut dyn Write) -> io::Result<()> {
        html(out, self.runs, (&self.rows, &self.compared()), &self.labels)
    }
}

/// One operation in one run.
struct MeasuredRun {
    exits: Ratio,
    path: Option<Path>,
    /// How long it waited, of a step of a VM's life.
    waited: Option<Waited>,
    /// What its accesses cost simulated processors.
    paging: Option<Paging>,
    /// Executions in the batch whose exits were counted.
    count: u64,
    /// Exits of that batch by name; `None` if they depend on time.
    kinds: Option<BTreeMap<String, u64>>,
}

/// One operation in all runs.
struct ComparedRow {
    name: String,
    level: String,
    cells: Vec<Option<MeasuredRun>>,
}

/// The functions by which a run's path of an operation differs from the first run's, where both have call trees.
fn compared<'a>(
    runs: &[(String, &Ledger)],
    rows: &[ComparedRow],
    trees: &'a [Vec<ProfiledOperation<'a>>],
) -> Vec<((usize, usize), ComparedOperation<'a>)> {
    let mut found = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let tree = |column: usize| {
            trees[column].iter().find(|one| one.name == row.name && one.level.name() == row.level)
        };
        let Some(before) = tree(0) else { continue };
        for (column, (name, _)) in runs.iter().enumerate().skip(1) {
            if let Some(after) = tree(column) {
                found.push(((at, column), ComparedOperation::new(name, before, after)));
            }
        }
    }
    found
}

/// A comparison: the measurements, and the functions that differ, by row and column.
type ComparedParts<'a, 'b> = (&'a [ComparedRow], &'a [((usize, usize), ComparedOperation<'b>)]);

fn rows(runs: &[(String, &Ledger)], kinds: CountsByName) -> Vec<ComparedRow> {
    let all: Vec<Operations> = runs.iter().map(|(_, ledger)| Operations::new(ledger)).collect();
    let mut rows: Vec<ComparedRow> = Vec::new();
    for (column, operations) in all.iter().enumerate() {
        for one in &operations.rows {
            let level = one.level.name();
            let at = rows
                .iter()
                .position(|row| row.name == one.name && row.level == level)
                .unwrap_or_else(|| {
                    let cells = runs.iter().map(|_| None).collect();
                    rows.push(ComparedRow {
                        name: one.name.clone(),
                        level: level.to_owned(),
                        cells,
                    });
                    rows.len() - 1
                });
            rows[at].cells[column] = Some(cell(one, kinds));
        }
    }
    rows
}

fn cell(row: &OperationRow, kinds: CountsByName) -> MeasuredRun {
    MeasuredRun {
        exits: row.exits_per_operation(),
        path: row.path,
        waited: row.waited.clone(),
        paging: row.paging.clone(),
        count: row.count,
        kinds: kinds(row),
    }
}

impl MeasuredRun {
    /// Exits of a kind in one operation.
    fn of_one(&self, kind: &str) -> f64 {
        let count = self.kinds.as_ref().and_then(|kinds| kinds.get(kind)).copied().unwrap_or(0);
        count as f64 / self.count.max(1) as f64
    }

    /// Page walks of one operation, by simulated processor.
    fn walks(&self) -> BTreeMap<&str, f64> {
        let processors = self.paging.iter().flat_map(|paging| &paging.processors);
        let each = |count: u64| count as f64 / self.count.max(1) as f64;
        processors.map(|(name, counts)| (name.as_str(), each(counts.walks))).collect()
    }
}

impl ComparedRow {
    /// The path of a column divided by that of the first.
    fn ratio(&self, column: usize) -> Option<f64> {
        let [first, here] = self.paths(column)?.map(|path| path.median);
        Some(here / first).filter(|_| first > 0.0 && here > 0.0)
    }

    /// The path of the first column, and that of this one.
    fn paths(&self, column: usize) -> Option<[Path; 2]> {
        let path = |cell: &Option<MeasuredRun>| cell.as_ref()?.path;
        Some([path(self.cells.first()?)?, path(self.cells.get(column)?)?])
    }

    /// Whether the path of a column differs from the first by more than both tolerances.
    fn differs(&self, column: usize) -> Option<bool> {
        self.paths(column).map(|[first, here]| first.differs(&here))
    }

    /// Exits and path of a column: `1 exit, 2,770 x0.987`; a path that is the same within the tolerances has no factor.
    fn in_words(&self, column: usize) -> String {
        let Some(Some(cell)) = self.cells.get(column) else { return "not run".to_owned() };
        let exits = ratio(cell.exits);
        let word = if exits == "1" { "exit" } else { "exits" };
        let path = cell.path.as_ref().map_or_else(|| "-".to_owned(), super::path);
        let is_shown = column > 0 && self.differs(column).is_some();
        let of_first = match self.ratio(column).filter(|_| is_shown) {
            Some(ratio) if self.differs(column) == Some(true) => format!(" x{ratio:.3}"),
            Some(_) => " same".to_owned(),
            None => String::new(),
        };
        match &cell.waited {
            None => format!("{exits} {word}, {path}{of_first}"),
            Some(waited) if waited.is_some() => {
                format!("{path}{of_first}, waited {}", super::waited(waited))
            }
            Some(_) => format!("{path}{of_first}"),
        }
    }

    /// How long the first run's and this one's waited, where every life of one waited longer than every life of the other.
    fn waits(&self, column: usize) -> Option<[Waited; 2]> {
        let waited = |cell: &Option<MeasuredRun>| cell.as_ref()?.waited.clone();
        let (first, here) = (waited(self.cells.first()?)?, waited(self.cells.get(column)?)?);
        first.differs(&here).then_some([first, here])
    }

    /// Kinds of exits whose number differs from the first run's: name, first run's number, this run's number.
    fn differences(&self, column: usize) -> Vec<(String, f64, f64)> {
        let (Some(Some(base)), Some(Some(cell))) = (self.cells.first(), self.cells.get(column))
        else {
            return Vec::new();
        };
        let (Some(before), Some(now)) = (&base.kinds, &cell.kinds) else { return Vec::new() };
        let kinds: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        kinds
            .into_iter()
            .map(|kind| (kind.clone(), base.of_one(kind), cell.of_one(kind)))
            .filter(|(_, before, now)| before != now)
            .collect()
    }
}

/// Simulated page walks of a column that are not those of the first.
fn walks_differ(row: &ComparedRow, column: usize) -> Vec<String> {
    let cell = |column: usize| row.cells.get(column)?.as_ref();
    let (Some(first), Some(here)) = (cell(0), cell(column)) else { return Vec::new() };
    let before = first.walks();
    let differ = here.walks().into_iter().filter_map(|(processor, now)| {
        let then = before.get(processor).filter(|then| **then != now)?;
        let processor = names::printable(processor);
        Some(format!("walks on {processor} (simulated): {now:.4}, not {then:.4}"))
    });
    differ.collect()
}

fn text(
    out: &mut dyn Write,
    runs: &[(String, &Ledger)],
    (rows, compared): ComparedParts<'_, '_>,
    look: TextLayout,
) -> io::Result<()> {
    let mut table = Table::of(rows.iter().enumerate())
        .below(|(at, row)| below(runs, (*at, row), compared))
        .column(Column::words("", "operation"), |(_, row)| Cell::Name(row.name.clone()))
        .column(Column::short("", "level"), |(_, row)| Cell::Name(row.level.clone()));
    for (column, (name, _)) in runs.iter().enumerate() {
        table = table
            .column(Column::number("", name.clone()), |(_, row)| Cell::Name(row.in_words(column)));
    }
    table.table().terminal(look, out)?;
    let unit = if runs[0].1.recording.emulated.is_some() {
        "Exits of one operation, and its path in instructions (emulated: exact; they do not reflect time)."
    } else {
        "Exits of one operation, and its cycles."
    };
    writeln!(out)?;
    let mut said = vec![format!(
        "{unit} x: path / path of the first run. same: not further from it than ± of both together; ± is 0.5 % where none is shown."
    )];
    if compared.iter().any(|(_, one)| one.sentence().is_some()) {
        said.push("Functions: difference in instructions per operation from the first run; the sum is the difference of the paths.".to_owned());
    }
    let lines = said.iter().flat_map(|sentence| wrap(sentence, look.width, "", ""));
    lines.into_iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// Lines below an operation: the exits and functions by which each run differs from the first.
fn below(
    runs: &[(String, &Ledger)],
    (at, row): (usize, &ComparedRow),
    compared: &[((usize, usize), ComparedOperation<'_>)],
) -> Vec<String> {
    let mut below = Vec::new();
    for (column, (name, _)) in runs.iter().enumerate() {
        let differences = row.differences(column).into_iter();
        below.extend(differences.map(|(kind, before, now)| {
            format!("{name}: {kind}: {}, not {}", plain(now), plain(before))
        }));
        below.extend(walks_differ(row, column).iter().map(|walks| format!("{name}: {walks}")));
        let waits = row.waits(column);
        below.extend(waits.map(|waits| format!("{name}: {}", super::waits_changed(&waits))));
        let functions = functions(compared, (at, column)).and_then(ComparedOperation::sentence);
        below.extend(functions.map(|functions| format!("{name}: {functions}")));
    }
    below
}

fn functions<'a, 'b>(
    compared: &'a [((usize, usize), ComparedOperation<'b>)],
    cell: (usize, usize),
) -> Option<&'a ComparedOperation<'b>> {
    compared.iter().find(|(at, _)| *at == cell).map(|(_, one)| one)
}

/// A row for each operation and run.
fn table(runs: &[(String, &Ledger)], rows: &[ComparedRow]) -> Table {
    let measured = rows.iter().flat_map(|row| {
        let cells = row.cells.iter().enumerate();
        cells.filter_map(move |(column, cell)| Some((row, column, cell.as_ref()?)))
    });
    let mut cells = rows.iter().flat_map(|row| row.cells.iter().flatten());
    let is_simulated = cells.any(|cell| cell.paging.is_some());
    Table::of(measured)
        .column(Column::words("operation", "operation"), |(row, ..)| Cell::Name(row.name.clone()))
        .column(Column::words("level", "level"), |(row, ..)| Cell::Name(row.level.clone()))
        .column(Column::words("run", "run"), |(_, at, _)| Cell::Name(name_of(runs, *at)))
        .column(
            Column::number("exits_per_operation", "exits").help("of one operation"),
            |(.., cell)| Cell::Ratio(cell.exits),
        )
        .column(
            Column::number("path", "path").help("of one operation, median of the batches"),
            |(.., cell)| Cell::of(cell.path, |path| Cell::Instructions(path.median)),
        )
        .column(
            Column::number("path_ratio", "path ratio").help("path over that of the first run"),
            |(row, at, _)| Cell::of(row.ratio(*at), Cell::Number),
        )
        .column(
            Column::number("path_tolerance", "±")
                .help("how far off the path of another run may be, as a part of it"),
            |(.., cell)| Cell::of(cell.path, |path| Cell::Share(path.tolerance())),
        )
        .column(
            Column::number("waited", "waited")
                .help("ns that the processor was idle, median of the VMs"),
            |(.., cell)| Cell::of(cell.waited.as_ref(), |of| Cell::Number(of.median)),
        )
        .column(
            Column::words("waited_differs", "waiting differs")
                .help("every VM of one run waited longer than every VM of the other"),
            |(row, at, _)| {
                let is_known = |cell: &Option<MeasuredRun>| {
                    cell.as_ref().is_some_and(|one| one.waited.is_some())
                };
                let known = [0, *at].iter().all(|at| is_known(&row.cells[*at]));
                if known { Cell::Flag(row.waits(*at).is_some()) } else { Cell::Absent }
            },
        )
        .column(
            Column::words("walks", "walks")
                .help("simulated page walks of one operation, by processor")
                .shown_if(is_simulated),
            |(.., cell)| {
                let walks = cell.walks();
                let each = walks.iter().map(|(name, walks)| format!("{name} {walks:.4}"));
                let all: Vec<String> = each.collect();
                if all.is_empty() { Cell::Absent } else { Cell::Name(all.join(", ")) }
            },
        )
        .column(
            Column::words("path_differs", "differs")
                .help("from the first run's, by more than both tolerances together"),
            |(row, at, _)| Cell::of(row.differs(*at), Cell::Flag),
        )
        .table()
}

/// A row for each operation, the runs side by side.
fn beside(runs: &[(String, &Ledger)], rows: &[ComparedRow]) -> Table {
    let mut table = Table::of(rows)
        .column(Column::words("", "operation"), |row| Cell::Name(row.name.clone()))
        .column(Column::short("", "level"), |row| Cell::Name(row.level.clone()));
    for at in 0..runs.len() {
        let exits = Column::number("", format!("{}: exits", name_of(runs, at)));
        let path = Column::number("", "path").help("of one operation, median of the batches");
        table = table
            .column(exits.help("of one operation"), |row| {
                Cell::of(row.cells[at].as_ref(), |cell| Cell::Ratio(cell.exits))
            })
            .column(path, |row| {
                let path = row.cells[at].as_ref().and_then(|cell| cell.path);
                Cell::of(path, |path| super::path_cell(&path))
            });
        if at > 0 {
            let factor = Column::number("", "x")
                .help("path over that of the first run; same: within the tolerances");
            table = table.column(factor, |row| {
                let is_same = row.differs(at) != Some(true);
                let text = |x: f64| if is_same { "same".to_owned() } else { format!("{x:.3}") };
                Cell::of(row.ratio(at), |x| Cell::Written(text(x), sort_key(x)))
            });
        }
    }
    table.table()
}

/// How many operations differ from the first run, and the largest difference.
fn answer(runs: &[(String, &Ledger)], rows: &[ComparedRow]) -> Vec<String> {
    let cells = || rows.iter().flat_map(|row| (1..runs.len()).map(move |column| (row, column)));
    let is_in_both =
        |(row, at): &(&ComparedRow, usize)| row.cells[0].is_some() && row.cells[*at].is_some();
    let both: Vec<(&ComparedRow, usize)> = cells().filter(is_in_both).collect();
    let change =
        |row: &ComparedRow, at: usize| row.ratio(at).map_or(0.0, |ratio| (ratio - 1.0).abs());
    let is_different = |(row, at): &&(&ComparedRow, usize)| {
        row.differs(*at) == Some(true)
            || !row.differences(*at).is_empty()
            || row.waits(*at).is_some()
    };
    let different = both.iter().filter(is_different).count() as u64;
    let (first, all) = (name_of(runs, 0), counted(both.len() as u64, "measurement"));
    let mut said = vec![match (runs.len(), different) {
        (1, _) => format!("{} of one run.", counted(rows.len() as u64, "operation")),
        (_, 0) => format!(
            "None of {all} differs from {first}: the exits are the same, and no path differs by more than its tolerance."
        ),
        (_, n) => format!(
            "{} of {all} differ from {first}: by their exits, or by more than the tolerance of the path.",
            count(n)
        ),
    }];
    let differing = both.iter().filter(|(row, at)| row.differs(*at) == Some(true));
    let largest = differing.max_by(|(a, i), (b, j)| change(a, *i).total_cmp(&change(b, *j)));
    if let Some((row, at)) = largest {
        said.push(format!(
            "The largest difference of a path: {} {} in {}, x{:.3}.",
            row.name,
            row.level,
            name_of(runs, *at),
            row.ratio(*at).unwrap_or(1.0)
        ));
    }
    let missing = (cells().count() - both.len()) as u64;
    if missing > 0 {
        said.push(format!(
            "{} had no counterpart in one of the runs.",
            counted(missing, "further measurement")
        ));
    }
    said
}

/// What was measured, where it is not the same in all runs: kernels, processors, and what their labels say.
fn setups(runs: &[(String, &Ledger)], labels: &[RunLabels]) -> Vec<String> {
    let all = |of: &dyn Fn(usize) -> String| (0..runs.len()).map(of).collect::<Vec<String>>();
    let mut setups = vec![
        ("kernel".to_owned(), all(&|at| runs[at].1.recording.kernel.clone())),
        ("processor".to_owned(), all(&|at| runs[at].1.recording.cpu.clone())),
    ];
    let keys: BTreeSet<&String> = labels.iter().flat_map(BTreeMap::keys).collect();
    let label = |key: &String, at: usize| labels.get(at)?.get(key).cloned();
    setups.extend(
        keys.into_iter().map(|key| {
            (key.clone(), all(&|at| label(key, at).unwrap_or_else(|| "none".to_owned())))
        }),
    );
    setups.retain(|(_, values)| values.iter().any(|value| *value != values[0]));
    let said = setups.into_iter().map(|(what, values)| {
        let each = runs.iter().zip(values).map(|((name, _), value)| format!("{name} {value}"));
        format!("Different {what}: {}.", each.collect::<Vec<_>>().join(", "))
    });
    said.collect()
}

fn html(
    out: &mut dyn Write,
    runs: &[(String, &Ledger)],
    (rows, compared): ComparedParts<'_, '_>,
    labels: &[RunLabels],
) -> io::Result<()> {
    let names: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
    let emulated = runs[0].1.recording.emulated.as_ref();
    let table = beside(runs, rows);
    let mut different = Vec::new();
    for (row, column) in rows.iter().flat_map(|row| (0..runs.len()).map(move |i| (row, i))) {
        for (kind, before, now) in row.differences(column) {
            different.push(format!(
                "{}: {} {}: {kind}: {}, not {}",
                name_of(runs, column),
                row.name,
                row.level,
                plain(now),
                plain(before)
            ));
        }
        let walks = walks_differ(row, column);
        let title = format!("{}: {} {}", name_of(runs, column), row.name, row.level);
        different.extend(walks.iter().map(|walks| format!("{title}: {walks}")));
    }
    let page = TablePage {
        command: "lab compare",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: vec![("runs", names.join(", "))],
        answer: answer(runs, rows).into_iter().chain(setups(runs, labels)).collect(),
        emulation: emulated.map(|which| {
            format!("Emulated ({which}): paths are instructions, exact; they do not reflect time.")
        }),
    };
    let section =
        TableSection { id: "operations", title: "Operations", notes: different, table: &table };
    let compared: Vec<&ComparedOperation<'_>> = compared.iter().map(|(_, one)| one).collect();
    let functions = difference::table(&compared);
    let functions = TableSection {
        id: "functions",
        title: "Functions",
        notes: vec![
            "Functions by which the paths differ from the first run; the sum is exactly the difference of the paths.".to_owned(),
        ],
        table: &functions,
    };
    let sections = if compared.is_empty() { vec![section] } else { vec![section, functions] };
    page.write_with_pictures(&sections, &difference::pictures(&compared), out)
}

fn name_of(runs: &[(String, &Ledger)], column: usize) -> String {
    runs.get(column).map_or_else(String::new, |(name, _)| name.clone())
}

fn differences(row: &ComparedRow, column: usize) -> Vec<serde_json::Value> {
    let one = |(exit, first, here)| serde_json::json!({ "exit": exit, "first_run": first, "this_run": here });
    row.differences(column).into_iter().map(one).collect()
}

/// The functions of a cell; null where it is not compared or there are no call trees.
fn json_functions(compared: Option<&ComparedOperation<'_>>) -> serde_json::Value {
    let Some(ComparedOperation { difference, .. }) = compared else {
        return serde_json::Value::Null;
    };
    let line = |line: &vmtax_analyse::calls::difference::DifferenceLine| {
        serde_json::json!({
            "function": line.label.name,
            "kind": line.label.kind.name(),
            "code_level": format!("L{}", line.label.level),
            "delta": line.delta,
            "was": line.was,
            "only_first": line.gone,
            "only_this": line.new,
        })
    };
    difference.lines.iter().map(line).collect()
}

fn json(
    out: &mut dyn Write,
    runs: &[(String, &Ledger)],
    (rows, compared): ComparedParts<'_, '_>,
) -> io::Result<()> {
    let rows: Vec<serde_json::Value> = rows
        .iter()
        .enumerate()
        .map(|(at, row)| {
            let cells: Vec<serde_json::Value> = row
                .cells
                .iter()
                .enumerate()
                .map(|(column, cell)| match cell {
                    None => serde_json::Value::Null,
                    Some(cell) => serde_json::json!({
                        "exits_per_operation": cell.exits.value(),
                        "path": cell.path.map(|path| path.median),
                        "path_tolerance": cell.path.map(|path| path.tolerance()),
                        "path_ratio": row.ratio(column),
                        "path_differs": row.differs(column),
                        "walks": cell.paging.as_ref().map(|_| cell.walks()),
                        "differences": differences(row, column),
                        "functions": json_functions(functions(compared, (at, column))),
                    }),
                })
                .collect();
            serde_json::json!({ "operation": row.name, "level": row.level, "runs": cells })
        })
        .collect();
    let runs: Vec<serde_json::Value> = runs
        .iter()
        .map(|(name, ledger)| serde_json::json!({ "name": name, "kernel": ledger.recording.kernel, "emulated": ledger.recording.emulated }))
        .collect();
    let document = serde_json::json!({ "schema": SCHEMA, "runs": runs, "rows": rows });
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}
