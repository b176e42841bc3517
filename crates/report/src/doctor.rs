//! An audit of settings -> text, CSV, JSON, a page, or a script to read.

mod json;
mod script;
mod text;

use std::io;

use vmtax_analyse::Ledger;
use vmtax_analyse::audit::{Finding, Fix, Subject, Verdict};
use vmtax_events::setting::{System, VmProcess, files};

pub use json::SCHEMA;
pub(crate) use json::{Vm as ShapedVm, vm as shaped_vm};

use crate::html::{TablePage, TableSection};
use crate::names::printable;
use crate::numbers::count;
use crate::table::{Cell, Column, Table};

/// What an audit shows.
pub struct Audit<'a> {
    /// Version of this tool.
    pub tool_version: &'a str,
    /// The root that was read.
    pub root: &'a str,
    /// The guest, as the user named it.
    pub guest: Option<&'a str>,
    /// The run, as the user named it, and its ledger.
    pub run: Option<(&'a str, &'a Ledger)>,
    /// What was read of the host.
    pub system: &'a System,
    /// The VMs that were looked at.
    pub vms: &'a [VmProcess],
    /// The verdicts, in the order to show them.
    pub findings: &'a [Finding],
}

impl Audit<'_> {
    /// For a terminal of this width.
    pub fn text(
        &self,
        color: bool,
        width: Option<usize>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        text::write(self, color, width, out)
    }

    /// For programs: the shape [`SCHEMA`].
    pub fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        json::write(self, out)
    }

    /// For a spreadsheet.
    pub fn csv(&self, out: &mut dyn io::Write) -> io::Result<()> {
        self.table().csv(out)
    }

    /// One page that opens offline.
    pub fn html(&self, out: &mut dyn io::Write) -> io::Result<()> {
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

    fn with(&self, verdict: Verdict) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.found.verdict == verdict)
    }

    /// A subject for people. Printable.
    fn subject(&self, subject: Subject) -> String {
        match subject {
            Subject::Host => "host".to_owned(),
            Subject::Guest => "guest".to_owned(),
            Subject::Vm(pid) => match self.vms.iter().find(|vm| vm.pid == pid) {
                Some(vm) => vm_name(vm),
                None => pid.to_string(),
            },
        }
    }
}

/// A VM for people: `name (pid)`. Printable, and no longer than a line has room for.
pub(crate) fn vm_name(vm: &VmProcess) -> String {
    let name = printable(&vm.name);
    let short: String = name.chars().take(40).collect();
    let cut = if short.len() < name.len() { "…" } else { "" };
    format!("{short}{cut} ({})", vm.pid)
}

/// That VMs may be missing, and what to do.
pub(crate) fn hidden(processes: u64) -> String {
    let n = count(processes);
    format!("Unreadable processes: {n}. VMs may be missing; run as root.")
}

/// A text that a shell takes as one word, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A fix in one line, as a command where it is one. Printable.
fn fix_line(fix: &Fix) -> String {
    let line = match fix {
        Fix::Write { path, value } => format!("echo {value} > {path}"),
        Fix::WriteEach { pattern, value } => {
            format!("for f in {}; do echo {value} > \"$f\"; done", shell_pattern(pattern))
        }
        Fix::Module { module, option } => {
            format!(
                "echo 'options {module} {option}' > {}; load the module again",
                module_file(module, option)
            )
        }
        Fix::Kernel(words) => format!("add to the kernel's command line: {words}"),
        Fix::Vmm(words) => format!("start the VM with: {words}"),
        Fix::Pin(tids) => {
            let shown: Vec<String> = tids.iter().take(16).map(u32::to_string).collect();
            let more = if tids.len() > 16 { " ..." } else { "" };
            format!("taskset -pc CPU TID, for the threads {}{more}", shown.join(" "))
        }
        Fix::Advice(advice) => (*advice).to_owned(),
    };
    printable(&line)
}

/// The word for a kind of fix. These words never change.
fn fix_kind(fix: &Fix) -> &'static str {
    match fix {
        Fix::Write { .. } => "write",
        Fix::WriteEach { .. } => "write-each",
        Fix::Module { .. } => "module",
        Fix::Kernel(_) => "kernel-command-line",
        Fix::Vmm(_) => "vmm",
        Fix::Pin(_) => "pin",
        Fix::Advice(_) => "advice",
    }
}

/// A pattern of files as a shell has it.
fn shell_pattern(pattern: &str) -> String {
    pattern.replace('#', "[0-9]*")
}

/// A file of its own for each option, so that none replaces another.
fn module_file(module: &str, option: &str) -> String {
    let name = option.split('=').next().unwrap_or(option);
    format!("/etc/modprobe.d/{module}-{name}.conf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_one_word() {
        for text in ["a", "a b", "a'b", "$(x)", "`x`", "a\nb", "", "'; rm -rf /; '"] {
            let command = format!("printf %s {}", quoted(text));
            let output = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
    }
}
