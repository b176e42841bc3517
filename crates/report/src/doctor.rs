//! An audit of settings -> text, CSV, JSON, a page, or a script to read.

mod audit;
mod json;
mod script;
mod text;
pub mod words;

use std::io;

use vmtax_analyse::audit::{AuditFinding, CheckVerdict};
use vmtax_events::setting::files;

pub use audit::Audit;
pub(crate) use audit::{hidden, vm_name};
pub use json::SCHEMA;
pub(crate) use json::{tool, vm as vm_fields};
pub(crate) use text::evidence;

use self::words::fix_line;
use crate::explain::sentence;
use crate::html::{TablePage, TableSection};
use crate::numbers;
use crate::table::{Cell, Column, PAGE, Table};
use crate::tables::AllFormats;
use crate::text::TextLayout;

impl AllFormats for Audit<'_> {
    fn text(&self, look: TextLayout, out: &mut dyn io::Write) -> io::Result<()> {
        text::write(self, look, out)
    }

    /// The shape [`SCHEMA`].
    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        json::write(self, out)
    }

    fn csv(&self, out: &mut dyn io::Write) -> io::Result<()> {
        self.table().csv(out)
    }

    fn html(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let table = self.table();
        let kernel = self.system.settings.text(files::RELEASE).unwrap_or("unknown");
        let or_none = |name: Option<&str>| name.unwrap_or("none").to_owned();
        let vms: Vec<String> = self.vms.iter().map(vm_name).collect();
        let page = TablePage {
            command: "doctor",
            tool_version: self.tool_version,
            facts: vec![
                ("host", self.root.to_owned()),
                ("kernel", kernel.to_owned()),
                ("KVM", crate::kvm::line(&self.system.kvm)),
                (
                    "virtual machines",
                    if vms.is_empty() { "none was found".to_owned() } else { vms.join(", ") },
                ),
                ("guest", or_none(self.guest)),
                ("run", or_none(self.run.map(|(name, _)| name))),
            ],
            answer: self.answer(),
            emulation: None,
        };
        let hidden = Some(self.system.hidden).filter(|processes| *processes > 0).map(hidden);
        let notes = hidden.into_iter().collect();
        page.write(&[TableSection { id: "checks", title: "Checks", notes, table: &table }], out)
    }
}

/// Costly settings that are explained above the table.
const NAMED: usize = 5;

impl Audit<'_> {
    /// How many settings cost time, and which.
    fn answer(&self) -> Vec<String> {
        let with = |verdict: CheckVerdict| {
            self.findings.iter().filter(move |finding| finding.found.verdict == verdict)
        };
        let checks = numbers::counted(self.findings.len() as u64, "check");
        let costly: Vec<&AuditFinding> = with(CheckVerdict::Costs).collect();
        let mut said = vec![match costly.len() {
            0 => format!("None of {checks} found a setting that costs time."),
            n => {
                let n = numbers::count(n as u64);
                format!("{n} of {checks} found a setting that costs time.")
            }
        }];
        let named = costly.iter().take(NAMED);
        said.extend(named.map(|finding| {
            let why = sentence(words::rule(finding.rule.id).why);
            format!("{}: {}. {why}.", finding.check.id.name(), words::found(&finding.found))
        }));
        let unknown = with(CheckVerdict::Unknown).count() as u64;
        if unknown > 0 {
            let unknown = numbers::counted(unknown, "check");
            said.push(format!("{unknown} could not be decided; the table has the reasons."));
        }
        said
    }

    /// A row for each check and subject.
    fn table(&self) -> Table {
        let why = |finding: &AuditFinding| words::rule(finding.rule.id).why;
        Table::of(self.findings)
            .column(Column::words("verdict", "verdict"), |finding| {
                Cell::Word(finding.found.verdict.name())
            })
            .column(Column::words("check", "check"), |finding| {
                Cell::Word(finding.check.id.name()).titled(why(finding).to_owned())
            })
            .column(Column::words("subject", "of"), |finding| {
                Cell::Name(self.subject(finding.subject))
            })
            .column(Column::words("what", "found").class("described"), |finding| {
                Cell::Name(words::found(&finding.found))
            })
            .column(Column::words("evidence", "seen").class("described"), |finding| {
                let seen: Vec<String> = finding.found.evidence.iter().map(text::evidence).collect();
                Cell::Name(seen.join("; "))
            })
            .column(
                Column::number("gain_share", "gain at most").help("of the run's time not halted"),
                |finding| {
                    let gain = finding.measured.as_ref().and_then(|found| found.gain.share());
                    Cell::of(gain, Cell::Share)
                },
            )
            .column(Column::words("fix", "fix").class("described"), |finding| {
                Cell::of(finding.found.fix.as_ref(), |fix| Cell::Name(fix_line(fix)))
            })
            .column(Column::words("why", "why").without(PAGE), |finding| Cell::Word(why(finding)))
            .table()
    }

    /// A POSIX shell script with the fixes. It is there to be read; nothing runs it.
    pub fn script(&self, out: &mut dyn io::Write) -> io::Result<()> {
        script::write(self, out)
    }
}
