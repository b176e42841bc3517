//! An audit of settings -> text, CSV, JSON, a page, or a script to read.

mod audit;
mod json;
mod script;
mod text;

use std::io;

use vmtax_events::setting::files;

pub use audit::Audit;
pub(crate) use audit::{hidden, vm_name};
pub use json::SCHEMA;
pub(crate) use json::{Vm as ShapedVm, vm as shaped_vm};

use self::audit::fix_line;
use crate::html::{TablePage, TableSection};
use crate::table::{Cell, Column, Table};
use crate::tables::Formats;
use crate::text::Text;

impl Formats for Audit<'_> {
    fn text(&self, look: Text, out: &mut dyn io::Write) -> io::Result<()> {
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
                ("Host", self.root.to_owned()),
                ("Kernel", kernel.to_owned()),
                ("KVM", crate::kvm::line(&self.system.kvm)),
                ("VMs", if vms.is_empty() { "none was found".to_owned() } else { vms.join(", ") }),
                ("Guest", or_none(self.guest)),
                ("Run", or_none(self.run.map(|(name, _)| name))),
            ],
            notice: None,
        };
        let hidden = Some(self.system.hidden).filter(|processes| *processes > 0).map(hidden);
        let notes = hidden.into_iter().collect();
        page.write(&[TableSection { id: "checks", title: "Checks", notes, table: &table }], out)
    }
}

impl Audit<'_> {
    /// A row for each check and subject.
    fn table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::words("verdict", "verdict"),
            Column::words("check", "check"),
            Column::words("subject", "of"),
            Column::words("what", "found"),
            Column::words("evidence", "seen"),
            Column::number("gain_share", "gain at most").help("of the run's time not halted"),
            Column::words("fix", "fix"),
            Column::words("why", "why"),
        ]);
        for finding in self.findings {
            let found = &finding.found;
            let seen: Vec<String> = found.evidence.iter().map(text::evidence).collect();
            let gain = finding.measured.as_ref().and_then(|measured| measured.gain.share());
            table.row(vec![
                Cell::Word(found.verdict.name()),
                Cell::Word(finding.check.id),
                Cell::Name(self.subject(finding.subject)),
                Cell::Name(found.what.clone()),
                Cell::Name(seen.join("; ")),
                gain.map_or(Cell::Empty, Cell::Share),
                found.fix.as_ref().map_or(Cell::Empty, |fix| Cell::Name(fix_line(fix))),
                Cell::Word(finding.rule.why),
            ]);
        }
        table
    }

    /// A POSIX shell script with the fixes. It is there to be read; nothing runs it.
    pub fn script(&self, out: &mut dyn io::Write) -> io::Result<()> {
        script::write(self, out)
    }
}
