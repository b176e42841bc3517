//! What an audit shows, and how its parts are written.

use vmtax_analyse::Ledger;
use vmtax_analyse::audit::{AuditFinding, AuditSubject, CheckVerdict, Fix};
use vmtax_events::setting::{System, VmProcess};

use crate::names::printable;
use crate::numbers::count;

/// What an audit shows.
pub struct Audit<'a> {
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
    pub findings: &'a [AuditFinding],
}

impl Audit<'_> {
    pub(super) fn with(&self, verdict: CheckVerdict) -> impl Iterator<Item = &AuditFinding> {
        self.findings.iter().filter(move |finding| finding.found.verdict == verdict)
    }

    /// A subject for people. Printable.
    pub(super) fn subject(&self, subject: AuditSubject) -> String {
        match subject {
            AuditSubject::Host => "host".to_owned(),
            AuditSubject::Guest => "guest".to_owned(),
            AuditSubject::Vm(pid) => match self.vms.iter().find(|vm| vm.pid == pid) {
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
    // One of a configuration runs in no process.
    if vm.pid == 0 {
        return format!("{short}{cut}");
    }
    format!("{short}{cut} ({})", vm.pid)
}

/// That VMs may be missing, and what to do.
pub(crate) fn hidden(processes: u64) -> String {
    let n = count(processes);
    format!("Unreadable processes: {n}. VMs may be missing; run as root.")
}

/// A text that a shell takes as one word, whatever is in it.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The word for a kind of fix. These words never change.
pub(super) fn fix_kind(fix: &Fix) -> &'static str {
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
pub(super) fn shell_pattern(pattern: &str) -> String {
    pattern.replace('#', "[0-9]*")
}

/// A file of its own for each option, so that none replaces another.
pub(super) fn module_file(module: &str, option: &str) -> String {
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
