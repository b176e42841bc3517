//! A series of kernels: the operations of the lab on each kernel, host and set of options, and where a number changes from one to the next.
//!
//! ```text
//!  runs (kernel, host, options) ──┬──> values     a row for each operation of each run
//!                                 ├──> changes    steps between neighbours: exits, path, functions
//!                                 └──> ancillary  exits of L1 for one CPUID of L2
//! ```
//! Neighbours are two kernels that follow each other on the same host with the same options, and two sets of options that follow each other on the same kernel.

mod changes;

use std::collections::BTreeMap;
use std::io::{self, Write};

use vmtax_analyse::operations::OperationRow;
use vmtax_events::{Level, Reason};

use crate::calls::difference::{self, Compared};
use crate::html::heat::{Heat, HeatCell, HeatRow};
use crate::html::{TablePage, TableSection};
use crate::numbers::{counted, plain};
use crate::operations::compared::Kinds;
use crate::operations::{self, exit_name};
use crate::table::{CSV, Cell, Column, JSON, Table};
use crate::text::Text;

use changes::{Change, Shown, changes, steps, tree};

pub use changes::Point;

/// Schema of the JSON; docs/json.md.
const SCHEMA: &str = "vmtax-lab-series-1";
/// Functions of an operation on the page of a step.
const LINES: usize = 16;
/// Changes of a step that text names; the other formats have all.
const NAMED: usize = 6;

/// A series: runs in the order in which they are shown, by host, then kernel, then options.
pub struct Series<'a> {
    points: Vec<Shown<'a>>,
    changes: Vec<Change>,
    /// Runs that are not there, with the reason.
    missing: Vec<String>,
}

impl<'a> Series<'a> {
    /// Compares the neighbours. `missing` are runs that are not there, each with its reason.
    pub fn new(points: Vec<Point<'a>>, missing: Vec<String>, kinds: Kinds) -> Series<'a> {
        let points: Vec<Shown<'_>> = points.into_iter().map(Shown::new).collect();
        let steps = steps(&points);
        let changes = steps.iter().flat_map(|step| changes(&points, *step, kinds)).collect();
        Series { points, changes, missing }
    }

    /// Paths by kernel, changes and ancillary exits.
    pub fn text(&self, out: &mut dyn Write, look: Text) -> io::Result<()> {
        for group in self.groups() {
            writeln!(out, "Paths on {}, in instructions", self.title(group[0]))?;
            self.matrix(&group).terminal(look, out)?;
            writeln!(out)?;
        }
        writeln!(out, "Changes from one run to the next, largest first")?;
        if self.changes.is_empty() {
            writeln!(out, "  none above the tolerance of both paths")?;
        }
        self.short_changes().terminal(look, out)?;
        let ancillary = self.ancillary();
        if !ancillary.rows.is_empty() {
            writeln!(out, "\nExits of L1 for one CPUID of L2")?;
            ancillary.terminal(look, out)?;
        }
        self.missing.iter().try_for_each(|reason| writeln!(out, "\nmissing: {reason}"))
    }

    /// A row for each operation of each run.
    pub fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        self.values().csv(out)
    }

    /// All tables; the schema is docs/json.md's.
    pub fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let point = |one: &Shown<'_>| {
            let Point { kernel, host, options, folder, ledger } = &one.point;
            serde_json::json!({
                "kernel": kernel, "host": host, "options": options, "run": folder,
                "release": ledger.recording.kernel, "emulated": ledger.recording.emulated,
            })
        };
        let document = serde_json::json!({
            "schema": SCHEMA,
            "runs": self.points.iter().map(point).collect::<Vec<_>>(),
            "values": self.values(),
            "changes": self.changes_table(),
            "ancillary": self.ancillary(),
            "missing": self.missing,
        });
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out)
    }

    /// A page: heat maps of the paths, with links to the steps of [`Series::steps`], and all tables.
    pub fn html(&self, out: &mut dyn Write, tool_version: &str) -> io::Result<()> {
        let page = TablePage {
            command: "lab series",
            tool_version,
            facts: vec![
                ("kernels", self.kernels().join(", ")),
                ("runs", self.points.len().to_string()),
            ],
            answer: self.answer(),
            emulation: self
                .points
                .first()
                .and_then(|one| crate::operations::emulated(one.point.ledger)),
        };
        let (changes, ancillary, values) = (self.changes_table(), self.ancillary(), self.values());
        let mut notes = vec![
            "A path changes if it differs by more than the tolerances of both runs together: each is shown with ±, and is 0.5 % where none is shown."
                .to_owned(),
        ];
        notes.extend(self.missing.iter().map(|reason| format!("Missing: {reason}.")));
        let sections = [
            TableSection { id: "changes", title: "Changes", notes, table: &changes },
            TableSection {
                id: "ancillary",
                title: "Exits of L1 for one CPUID of L2",
                notes: Vec::new(),
                table: &ancillary,
            },
            TableSection { id: "values", title: "All values", notes: Vec::new(), table: &values },
        ];
        let heats: Vec<Heat> = self.groups().iter().map(|group| self.heat(group)).collect();
        // Without L2 there are no such exits.
        let shown: Vec<TableSection<'_>> = sections
            .into_iter()
            .filter(|section| section.id != "ancillary" || !section.table.rows.is_empty())
            .collect();
        page.write_with_heats(&heats, &shown, out)
    }

    /// How many operations changed, and which changed most.
    fn answer(&self) -> Vec<String> {
        let mut said = vec![match self.changes.len() as u64 {
            0 => "No operation changed from one run to the next.".to_owned(),
            n => format!("{} of an operation from one run to the next.", counted(n, "change")),
        }];
        let finite = self.changes.iter().filter(|change| change.size().is_finite());
        if let Some(largest) = finite.max_by(|a, b| a.size().total_cmp(&b.size())) {
            let (before, after) = largest.steps;
            said.push(format!(
                "The largest: {} {} from {} to {}, {:+.1} % of its path.",
                largest.name,
                largest.level.name(),
                named(&self.points[before].point),
                named(&self.points[after].point),
                (largest.ratio().unwrap_or(1.0) - 1.0) * 100.0
            ));
        }
        if !self.missing.is_empty() {
            let missing = counted(self.missing.len() as u64, "measurement");
            said.push(format!("{missing} missing; the reasons are above the changes."));
        }
        said
    }

    /// A page for each step that has changed functions: the name of its file, and the page.
    pub fn steps(&self, tool_version: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut pages = Vec::new();
        for step in steps(&self.points) {
            let compared = self.compared(step);
            if compared.is_empty() {
                continue;
            }
            let (before, after) = (&self.points[step.0].point, &self.points[step.1].point);
            let table = largest(&compared);
            let page = TablePage {
                command: "lab series",
                tool_version,
                facts: vec![("from", named(before)), ("to", named(after))],
                answer: vec![format!(
                    "{} changed by exits, or by more than the tolerance of the path.",
                    counted(compared.len() as u64, "operation")
                )],
                emulation: crate::operations::emulated(after.ledger),
            };
            let section = TableSection {
                id: "functions",
                title: "Functions",
                notes: vec![format!(
                    "Functions by which the paths of changed operations differ, the {LINES} largest of each; with the line of the others their sum is the difference of the paths, exactly. \
                         All are shown by: vmtax lab compare {} {}",
                    before.folder, after.folder
                )],
                table: &table,
            };
            let mut text = Vec::new();
            page.write(&[section], &mut text)?;
            pages.push((self.step_file(step), text));
        }
        Ok(pages)
    }

    /// The call trees of the operations that change in a step.
    fn compared(&self, step: (usize, usize)) -> Vec<Compared<'_>> {
        let changed = self.changes.iter().filter(|change| change.steps == step);
        let compared = |change: &Change| {
            let tree = |at: usize| tree(&self.points[at], &change.name, change.level);
            Some(Compared::new(&self.points[step.1].point.kernel, tree(step.0)?, tree(step.1)?))
        };
        changed.filter_map(compared).collect()
    }

    fn step_file(&self, (before, after): (usize, usize)) -> String {
        let of = |at: usize| &self.points[at].point.folder;
        format!("step-{}-to-{}.html", of(before), of(after))
    }

    /// Runs that are columns of one matrix: those of a host with the same options, or with several options of one kernel.
    fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (at, one) in self.points.iter().enumerate() {
            let is_same =
                |group: &&mut Vec<usize>| self.points[group[0]].point.host == one.point.host;
            match groups.iter_mut().find(is_same) {
                Some(group) => group.push(at),
                None => groups.push(vec![at]),
            }
        }
        groups
    }

    fn title(&self, at: usize) -> String {
        let point = &self.points[at].point;
        match &point.ledger.recording.emulated {
            Some(emulator) => format!("{} ({emulator})", point.host),
            None => point.host.clone(),
        }
    }

    fn kernels(&self) -> Vec<String> {
        let mut kernels: Vec<String> = Vec::new();
        for one in &self.points {
            if !kernels.contains(&one.point.kernel) {
                kernels.push(one.point.kernel.clone());
            }
        }
        kernels
    }

    /// Operations of these runs, in the order of the suites: all of L1, then those of L2.
    fn operations(&self, group: &[usize]) -> Vec<(String, Level)> {
        let mut found: Vec<(String, Level)> = Vec::new();
        for row in group.iter().flat_map(|at| &self.points[*at].rows) {
            let key = (row.name.clone(), row.level);
            if !found.contains(&key) {
                found.push(key);
            }
        }
        found.sort_by_key(|(_, level)| *level != Level::L1);
        found
    }

    fn row(&self, at: usize, (name, level): &(String, Level)) -> Option<&OperationRow> {
        self.points[at].row(name, *level)
    }

    fn path(&self, at: usize, operation: &(String, Level)) -> Option<String> {
        Some(operations::path(&self.row(at, operation)?.path?))
    }

    /// Operations by run: the path.
    fn matrix(&self, group: &[usize]) -> Table {
        let mut columns = vec![Column::words("", "operation"), Column::short("", "level")];
        columns.extend(group.iter().map(|at| Column::number("", label(&self.points[*at].point))));
        let mut table = Table::new(columns);
        for operation in self.operations(group) {
            let mut cells = vec![Cell::Name(operation.0.clone()), Cell::Word(operation.1.name())];
            cells.extend(group.iter().map(|at| {
                let path = self.path(*at, &operation);
                path.map_or(Cell::Absent, Cell::Name)
            }));
            table.row(cells);
        }
        table
    }

    fn heat(&self, group: &[usize]) -> Heat {
        let rows = self.operations(group).into_iter().map(|operation| {
            let path = |at: usize| self.row(at, &operation)?.path.map(|path| path.median);
            let base = group.iter().find_map(|at| path(*at));
            let cells = group.iter().map(|at| {
                let change = self.changes.iter().find(|change| {
                    change.steps.1 == *at
                        && change.name == operation.0
                        && change.level == operation.1
                });
                HeatCell {
                    text: self.path(*at, &operation).unwrap_or_default(),
                    ratio: path(*at).zip(base).map(|(path, base)| path / base),
                    title: change.map(|change| words(change).join("; ")),
                    link: change
                        .filter(|change| change.functions.is_some())
                        .map(|change| self.step_file(change.steps)),
                }
            });
            HeatRow {
                name: format!("{} {}", operation.0, operation.1.name()),
                cells: cells.collect(),
            }
        });
        let rows: Vec<HeatRow> = rows.collect();
        Heat {
            id: format!("paths-{}", self.points[group[0]].point.host),
            title: format!("Paths on {}", self.title(group[0])),
            columns: group.iter().map(|at| label(&self.points[*at].point)).collect(),
            rows: rows
                .into_iter()
                .filter(|row| row.cells.iter().any(|cell| cell.ratio.is_some()))
                .collect(),
        }
    }

    fn values(&self) -> Table {
        let mut table = Table::new(vec![
            Column::words("kernel", "kernel"),
            Column::words("host", "host"),
            Column::words("options", "options"),
            Column::words("operation", "operation"),
            Column::words("level", "level"),
            Column::number("exits_per_operation", "exits").help("of one operation"),
            Column::number("path", "path").help("of one operation, median of the batches"),
            Column::number("path_min", "least").help("path of the shortest batch"),
            Column::number("path_max", "most").help("path of the longest batch"),
            Column::number("path_tolerance", "±")
                .help("how far off the path of another run may be, as a part of it"),
            Column::number("count", "operations").help("of one batch").only(CSV | JSON),
            Column::words("run", "run").help("folder of the run").only(CSV | JSON),
        ]);
        for one in &self.points {
            for row in &one.rows {
                let path = |part: fn(&vmtax_analyse::operations::Path) -> f64| {
                    Cell::of(row.path.as_ref().map(part), Cell::Instructions)
                };
                table.row(vec![
                    Cell::Name(one.point.kernel.clone()),
                    Cell::Name(one.point.host.clone()),
                    Cell::Name(one.point.options.clone()),
                    Cell::Name(row.name.clone()),
                    Cell::Word(row.level.name()),
                    if row.recorded {
                        Cell::Ratio(row.exits_per_operation())
                    } else {
                        Cell::Absent
                    },
                    path(|path| path.median),
                    path(|path| path.min),
                    path(|path| path.max),
                    Cell::of(row.path, |path| Cell::Share(path.tolerance())),
                    Cell::Count(row.count),
                    Cell::Name(one.point.folder.clone()),
                ]);
            }
        }
        table
    }

    fn changes_table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::words("host", "host"),
            Column::words("from", "from"),
            Column::words("to", "to"),
            Column::words("operation", "operation"),
            Column::words("level", "level"),
            Column::number("path_before", "path before"),
            Column::number("path", "path"),
            Column::number("change", "change"),
            Column::number("spread", "±").help(
                "of both paths together, as a part of the first; a smaller difference is no change",
            ),
            Column::number("exits_before", "exits before"),
            Column::number("exits", "exits"),
            Column::words("kinds", "exits that differ").class("described"),
            Column::words("functions", "functions")
                .help("instructions by function; their sum is the change")
                .class("described"),
        ]);
        for change in &self.changes {
            let (before, after) =
                (&self.points[change.steps.0].point, &self.points[change.steps.1].point);
            table.row(vec![
                Cell::Name(after.host.clone()),
                Cell::Name(label(before)),
                Cell::Name(label(after)),
                Cell::Name(change.name.clone()),
                Cell::Word(change.level.name()),
                Cell::of(change.paths[0], |path| Cell::Instructions(path.median)),
                Cell::of(change.paths[1], |path| Cell::Instructions(path.median)),
                Cell::of(change.ratio().map(|ratio| ratio - 1.0), Cell::Share),
                Cell::of(change.tolerance(), Cell::Share),
                Cell::of(change.exits[0], Cell::Number),
                Cell::of(change.exits[1], Cell::Number),
                Cell::Name(change.kinds.join(", ")),
                change.functions.clone().map_or(Cell::Absent, Cell::Name),
            ]);
        }
        table
    }

    /// The largest changes of each step, for a terminal.
    fn short_changes(&self) -> Table {
        let mut table = Table::new(vec![
            Column::words("", "operation"),
            Column::short("", "level"),
            Column::number("", "change"),
            Column::list("", "what"),
        ]);
        for step in steps(&self.points) {
            let changes: Vec<&Change> =
                self.changes.iter().filter(|change| change.steps == step).collect();
            let (before, after) = (&self.points[step.0].point, &self.points[step.1].point);
            let others = changes.len().saturating_sub(NAMED);
            let more = if others == 0 { String::new() } else { format!(", and {others} more") };
            let group = format!("{}: {} to {}{more}", after.host, label(before), label(after));
            for (number, change) in changes.into_iter().take(NAMED).enumerate() {
                let percent =
                    change.ratio().map(|ratio| format!("{:+.1} %", (ratio - 1.0) * 100.0));
                let cells = vec![
                    Cell::Name(change.name.clone()),
                    Cell::Word(change.level.name()),
                    percent.map_or(Cell::Absent, Cell::Name),
                    Cell::Words(
                        words(change).join("; ").split_whitespace().map(str::to_owned).collect(),
                    ),
                ];
                if number == 0 { table.first_of(group.clone(), cells) } else { table.row(cells) }
            }
        }
        table
    }

    /// Exits of L1 for one CPUID of L2, a row for each run.
    fn ancillary(&self) -> Table {
        let mut table = Table::new(vec![
            Column::words("kernel", "kernel"),
            Column::words("host", "host"),
            Column::words("options", "options"),
            Column::number("ancillary_exits", "exits"),
            Column::number("l2_over_l1", "L2/L1").help("path at L2 over path at L1"),
            Column::list("which", "which"),
        ]);
        for one in &self.points {
            let Some(row) =
                one.rows.iter().find(|row| row.name == "cpuid" && row.level == Level::L2)
            else {
                continue;
            };
            let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
            for exit in row.exits.iter().filter(|exit| is_of_cpuid(exit.ancillary_of)) {
                *kinds.entry(exit_name(exit.reason, exit.detail)).or_default() += exit.count;
            }
            let each = |count: u64| count as f64 / row.count.max(1) as f64;
            let which =
                kinds.iter().map(|(name, count)| format!("{name} {},", plain(each(*count))));
            let mut which: Vec<String> = which.collect();
            if let Some(last) = which.last_mut() {
                last.pop();
            }
            table.row(vec![
                Cell::Name(one.point.kernel.clone()),
                Cell::Name(one.point.host.clone()),
                Cell::Name(one.point.options.clone()),
                Cell::Number(each(kinds.values().sum())),
                Cell::of(row.l2_over_l1, Cell::Number),
                Cell::Words(which),
            ]);
        }
        table
    }
}

fn is_of_cpuid(reason: Option<Reason>) -> bool {
    reason.is_some_and(|reason| crate::names::reason(reason).eq_ignore_ascii_case("cpuid"))
}

/// The functions that make the largest differences, and the sum of the others.
fn largest(all: &[Compared<'_>]) -> Table {
    let mut table = Table::new(vec![
        Column::words("operation", "operation"),
        Column::words("level", "level"),
        Column::words("function", "function").help("an instruction of a guest in brackets"),
        Column::number("delta", "difference").help("instructions of one operation"),
    ]);
    for one in all {
        let mut row = |function: String, delta: f64| {
            table.row(vec![
                Cell::Name(one.after.name.clone()),
                Cell::Word(one.after.level.name()),
                Cell::Name(function),
                Cell::Delta(delta),
            ]);
        };
        let lines = &one.difference.lines;
        lines.iter().take(LINES).for_each(|line| row(difference::name(line), line.delta));
        let others = lines.get(LINES..).unwrap_or_default();
        if !others.is_empty() {
            row(format!("{} others", others.len()), others.iter().map(|line| line.delta).sum());
        }
    }
    table
}

/// What changed, in parts of a sentence.
fn words(change: &Change) -> Vec<String> {
    let mut parts = Vec::new();
    if let [Some(before), Some(after)] = change.paths {
        parts.push(format!("path {} to {}", operations::path(&before), operations::path(&after)));
    }
    parts.extend(change.kinds.iter().cloned());
    parts.extend(change.functions.clone());
    parts
}

/// The kernel, and its options.
fn label(point: &Point<'_>) -> String {
    format!("{} {}", point.kernel, point.options).trim_end().to_owned()
}

fn named(point: &Point<'_>) -> String {
    format!("{}, {}", label(point), point.host)
}
