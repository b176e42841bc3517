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

use vmtax_analyse::operations::{CPUID, OperationRow, Path};
use vmtax_events::Level;

use crate::calls::difference::{self, ComparedOperation};
use crate::html::heat::{Heat, HeatCell, HeatRow};
use crate::html::{TablePage, TableSection};
use crate::numbers::{counted, plain};
use crate::operations::compared::CountsByName;
use crate::operations::{self, exit_name};
use crate::table::{CSV, Cell, Column, JSON, PAGE, Table};
use crate::text::TextLayout;

use changes::{OperationChange, ShownRun, changes, steps, tree};

pub use changes::SeriesPoint;

/// Schema of the JSON; docs/json.md.
const SCHEMA: &str = "vmtax-lab-series-1";
/// Functions of an operation on the page of a step.
const LINES: usize = 16;
/// Changes of a step that text names; the other formats have all.
const NAMED: usize = 6;

/// A series: runs in the order in which they are shown, by host, then kernel, then options.
pub struct KernelSeries<'a> {
    points: Vec<ShownRun<'a>>,
    changes: Vec<OperationChange>,
    /// Runs that are not there, with the reason.
    missing: Vec<String>,
}

impl<'a> KernelSeries<'a> {
    /// Compares the neighbours. `missing` are runs that are not there, each with its reason.
    pub fn new(
        points: Vec<SeriesPoint<'a>>,
        missing: Vec<String>,
        kinds: CountsByName,
    ) -> KernelSeries<'a> {
        let points: Vec<ShownRun<'_>> = points.into_iter().map(ShownRun::new).collect();
        let steps = steps(&points);
        let changes = steps.iter().flat_map(|step| changes(&points, *step, kinds)).collect();
        KernelSeries { points, changes, missing }
    }

    /// Paths by kernel, changes and ancillary exits.
    pub fn text(&self, out: &mut dyn Write, look: TextLayout) -> io::Result<()> {
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
        let point = |one: &ShownRun<'_>| {
            let SeriesPoint { kernel, host, options, folder, ledger } = &one.point;
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

    /// A page: heat maps of the paths, with links to the steps of [`KernelSeries::steps`], and all tables.
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
    fn compared(&self, step: (usize, usize)) -> Vec<ComparedOperation<'_>> {
        let changed = self.changes.iter().filter(|change| change.steps == step);
        let compared = |change: &OperationChange| {
            let tree = |at: usize| tree(&self.points[at], &change.name, change.level);
            Some(ComparedOperation::new(
                &self.points[step.1].point.kernel,
                tree(step.0)?,
                tree(step.1)?,
            ))
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
        let mut table = Table::of(self.operations(group))
            .column(Column::words("", "operation"), |(name, _)| Cell::Name(name.clone()))
            .column(Column::short("", "level"), |(_, level)| Cell::Word(level.name()));
        for at in group {
            table = table.column(Column::number("", label(&self.points[*at].point)), |operation| {
                Cell::of(self.path(*at, operation), Cell::Name)
            });
        }
        table.table()
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
        let path = |row: &OperationRow, part: fn(&Path) -> f64| {
            Cell::of(row.path.as_ref().map(part), Cell::Instructions)
        };
        let rows = self.points.iter().flat_map(|one| one.rows.iter().map(|row| (&one.point, row)));
        Table::of(rows)
            .column(Column::words("kernel", "kernel"), |(of, _)| Cell::Name(of.kernel.clone()))
            .column(Column::words("host", "host"), |(of, _)| Cell::Name(of.host.clone()))
            .column(Column::words("options", "options"), |(of, _)| Cell::Name(of.options.clone()))
            .column(Column::words("operation", "operation"), |(_, row)| {
                Cell::Name(row.name.clone())
            })
            .column(Column::words("level", "level"), |(_, row)| Cell::Word(row.level.name()))
            .column(
                Column::number("exits_per_operation", "exits").help("of one operation"),
                |(_, row)| match row.recorded {
                    true => Cell::Ratio(row.exits_per_operation()),
                    false => Cell::Absent,
                },
            )
            .column(
                Column::number("path", "path").help("of one operation, median of the batches"),
                |(_, row)| path(row, |path| path.median),
            )
            .column(
                Column::number("path_min", "least").help("path of the shortest batch"),
                |(_, row)| path(row, |path| path.min),
            )
            .column(
                Column::number("path_max", "most").help("path of the longest batch"),
                |(_, row)| path(row, |path| path.max),
            )
            .column(
                Column::number("path_tolerance", "±")
                    .help("how far off the path of another run may be, as a part of it"),
                |(_, row)| Cell::of(row.path, |path| Cell::Share(path.tolerance())),
            )
            .column(
                Column::number("waited", "waited")
                    .help("ns that the processor was idle, median of the VMs; not in the path"),
                |(_, row)| Cell::of(row.waited.as_ref(), |of| Cell::Number(of.median)),
            )
            .column(
                Column::number("waited_min", "least")
                    .help("of the VM that waited least")
                    .only(CSV | JSON),
                |(_, row)| Cell::of(row.waited.as_ref(), |of| Cell::Number(of.min)),
            )
            .column(
                Column::number("waited_max", "most")
                    .help("of the VM that waited most")
                    .only(CSV | JSON),
                |(_, row)| Cell::of(row.waited.as_ref(), |of| Cell::Number(of.max)),
            )
            .column(
                Column::words("waits_in", "waits in")
                    .help("the function that waits, and its callers"),
                |(_, row)| Cell::of(row.waited.as_ref().and_then(operations::place), Cell::Name),
            )
            .column(
                Column::number("count", "operations").help("of one batch").only(CSV | JSON),
                |(_, row)| Cell::Count(row.count),
            )
            .column(
                Column::words("run", "run").help("folder of the run").only(CSV | JSON),
                |(of, _)| Cell::Name(of.folder.clone()),
            )
            .table()
    }

    fn changes_table(&self) -> Table {
        let path = |path: Option<Path>| Cell::of(path, |path| Cell::Instructions(path.median));
        let point = |at: usize| &self.points[at].point;
        Table::of(&self.changes)
            .column(Column::words("host", "host"), |it| Cell::Name(point(it.steps.1).host.clone()))
            .column(Column::words("from", "from"), |it| Cell::Name(label(point(it.steps.0))))
            .column(Column::words("to", "to"), |it| Cell::Name(label(point(it.steps.1))))
            .column(Column::words("operation", "operation"), |it| Cell::Name(it.name.clone()))
            .column(Column::words("level", "level"), |it| Cell::Word(it.level.name()))
            .column(Column::number("path_before", "path before"), |it| path(it.paths[0]))
            .column(Column::number("path", "path"), |it| path(it.paths[1]))
            .column(Column::number("change", "change"), |it| {
                Cell::of(it.ratio().map(|ratio| ratio - 1.0), Cell::Share)
            })
            .column(
                Column::number("spread", "±").help(
                    "of both paths together, as a part of the first; a smaller difference is no change",
                ),
                |it| Cell::of(it.tolerance(), Cell::Share),
            )
            .column(Column::number("exits_before", "exits before"), |it| {
                Cell::of(it.exits[0], Cell::Number)
            })
            .column(Column::number("exits", "exits"), |it| Cell::of(it.exits[1], Cell::Number))
            .column(
                Column::words("waits", "waiting that differs")
                    .help("every VM of one kernel waited longer than every VM of the other")
                    .class("described"),
                |it| Cell::of(it.waits.as_ref().map(operations::waits_changed), Cell::Name),
            )
            .column(Column::words("kinds", "exits that differ").class("described"), |it| {
                Cell::Name(it.kinds.join(", "))
            })
            .column(
                Column::words("functions", "functions")
                    .help("instructions by function; their sum is the change")
                    .only(CSV | JSON),
                |it| Cell::of(it.functions.clone(), Cell::Name),
            )
            .column(
                Column::words("", "functions")
                    .help("instructions by function; a link in the table above leads to all of them")
                    .class("described")
                    .only(PAGE),
                |it| Cell::of(it.brief.clone(), Cell::Name),
            )
            .table()
    }

    /// The largest changes of each step, for a terminal.
    fn short_changes(&self) -> Table {
        let named = steps(&self.points).into_iter().flat_map(|step| {
            let changes = || self.changes.iter().filter(move |change| change.steps == step);
            let others = changes().count().saturating_sub(NAMED);
            changes().take(NAMED).map(move |change| (change, others))
        });
        Table::of(named)
            .grouped(|(change, others)| {
                let (before, after) = change.steps;
                let (before, after) = (&self.points[before].point, &self.points[after].point);
                let more =
                    if *others == 0 { String::new() } else { format!(", and {others} more") };
                format!("{}: {} to {}{more}", after.host, label(before), label(after))
            })
            .column(Column::words("", "operation"), |(change, _)| Cell::Name(change.name.clone()))
            .column(Column::short("", "level"), |(change, _)| Cell::Word(change.level.name()))
            .column(Column::number("", "change"), |(change, _)| {
                Cell::of(change.ratio(), |ratio| {
                    Cell::Name(format!("{:+.1} %", (ratio - 1.0) * 100.0))
                })
            })
            .column(Column::list("", "what"), |(change, _)| {
                let words = words(change).join("; ");
                Cell::Words(words.split_whitespace().map(str::to_owned).collect())
            })
            .table()
    }

    /// Exits of L1 for one CPUID of L2, a row for each run.
    fn ancillary(&self) -> Table {
        let rows = self.points.iter().filter_map(|one| {
            let row = one.row(CPUID, Level::L2)?;
            let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
            for exit in row.ancillary_of_cpuid() {
                *kinds.entry(exit_name(exit.reason, exit.detail)).or_default() += exit.count;
            }
            Some((&one.point, row, kinds))
        });
        let each = |row: &OperationRow, count: u64| count as f64 / row.count.max(1) as f64;
        Table::of(rows)
            .column(Column::words("kernel", "kernel"), |(of, ..)| Cell::Name(of.kernel.clone()))
            .column(Column::words("host", "host"), |(of, ..)| Cell::Name(of.host.clone()))
            .column(Column::words("options", "options"), |(of, ..)| Cell::Name(of.options.clone()))
            .column(Column::number("ancillary_exits", "exits"), |(_, row, kinds)| {
                Cell::Number(each(row, kinds.values().sum()))
            })
            .column(
                Column::number("l2_over_l1", "L2/L1").help("path at L2 over path at L1"),
                |(_, row, _)| Cell::of(row.l2_over_l1, Cell::Number),
            )
            .column(Column::list("which", "which"), |(_, row, kinds)| {
                let last = kinds.len().saturating_sub(1);
                let word = |(at, (name, count)): (usize, (&String, &u64))| {
                    let comma = if at == last { "" } else { "," };
                    format!("{name} {}{comma}", plain(each(row, *count)))
                };
                Cell::Words(kinds.iter().enumerate().map(word).collect())
            })
            .table()
    }
}

/// A row for each of the functions that make the largest differences, and for the sum of the others.
fn largest(all: &[ComparedOperation<'_>]) -> Table {
    let rows = all.iter().flat_map(|one| {
        let (named, others) = one.difference.lines.split_at(LINES.min(one.difference.lines.len()));
        let sum = others.iter().map(|line| line.delta).sum();
        let others = (!others.is_empty()).then(|| (format!("{} others", others.len()), sum));
        let named = named.iter().map(|line| (difference::short_name(line), line.delta));
        named.chain(others).map(move |(function, delta)| (one.after, function, delta))
    });
    Table::of(rows)
        .column(Column::words("operation", "operation"), |(of, ..)| Cell::Name(of.name.clone()))
        .column(Column::words("level", "level"), |(of, ..)| Cell::Word(of.level.name()))
        .column(
            Column::words("function", "function").help("of the host, or of the guest that its level names; an instruction of a guest in brackets"),
            |(_, function, _)| Cell::Name(function.clone()),
        )
        .column(
            Column::number("delta", "difference").help("instructions of one operation"),
            |(.., delta)| Cell::Delta(*delta),
        )
        .table()
}

/// What changed, in parts of a sentence.
fn words(change: &OperationChange) -> Vec<String> {
    let mut parts = Vec::new();
    if let [Some(before), Some(after)] = change.paths {
        parts.push(format!("path {} to {}", operations::path(&before), operations::path(&after)));
    }
    parts.extend(change.waits.as_ref().map(operations::waits_changed));
    parts.extend(change.kinds.iter().cloned());
    parts.extend(change.functions.clone());
    parts
}

/// The kernel, and its options.
fn label(point: &SeriesPoint<'_>) -> String {
    format!("{} {}", point.kernel, point.options).trim_end().to_owned()
}

fn named(point: &SeriesPoint<'_>) -> String {
    format!("{}, {}", label(point), point.host)
}
