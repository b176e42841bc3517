//! The fixes as a POSIX shell script: for review; vmtax does not run it.
//!
//! Only what can be changed on the running host is a command. The rest (the guest's settings, kernel command
//! lines, how a VM is started) are comments. Texts of the system that was looked at appear in comments alone,
//! made printable, so that they cannot end the line.

use std::io::{self, Write};

use vmtax_analyse::audit::{AuditFinding, AuditSubject, CheckVerdict, Fix};
use vmtax_events::setting::files;

use super::audit::{Audit, module_file, quoted, shell_pattern};
use super::words::{self, fix_line};
use crate::names::printable;

pub(super) fn write(audit: &Audit, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "#!/bin/sh")?;
    writeln!(
        out,
        "# Made by vmtax {} doctor for {}.",
        printable(audit.tool_version),
        printable(audit.root)
    )?;
    writeln!(
        out,
        "# Read it first: each change has its reason above it. Lines that begin with # do nothing."
    )?;
    writeln!(out, "set -eu")?;
    let mut none = true;
    for finding in audit.with(CheckVerdict::Costs) {
        let Some(fix) = &finding.found.fix else { continue };
        none = false;
        writeln!(out)?;
        comment(
            out,
            &format!(
                "{} ({}): {}",
                finding.check.id.name(),
                audit.subject(finding.subject),
                words::found(&finding.found)
            ),
        )?;
        for fact in &finding.found.evidence {
            match &fact.value {
                Ok(value) => comment(
                    out,
                    &format!(
                        "  {}: {}",
                        fact.path,
                        words::seen(value).lines().next().unwrap_or_default()
                    ),
                )?,
                Err(why) => comment(out, &format!("  {}: {why}", fact.path))?,
            }
        }
        comment(out, &format!("  {}", words::rule(finding.rule.id).why))?;
        command(out, finding, fix)?;
    }
    if none {
        writeln!(out, "\n# There is nothing to change.")?;
    }
    Ok(())
}

fn comment(out: &mut dyn Write, text: &str) -> io::Result<()> {
    writeln!(out, "# {}", printable(text))
}

fn command(out: &mut dyn Write, finding: &AuditFinding, fix: &Fix) -> io::Result<()> {
    if finding.subject == AuditSubject::Guest {
        return comment(out, &format!("In the guest: {}", fix_line(fix)));
    }
    match fix {
        // A file whose path holds what was found in the root is none that this program knows.
        Fix::Write { path, value } if files::FILES.contains(&path.as_str()) => {
            writeln!(out, "printf '%s\\n' {} > {}", quoted(value), quoted(path))
        }
        Fix::WriteEach { pattern, value } => {
            writeln!(out, "for file in {}; do", shell_pattern(pattern))?;
            writeln!(out, "  printf '%s\\n' {} > \"$file\"", quoted(value))?;
            writeln!(out, "done")
        }
        Fix::Module { module, option } => {
            let line = format!("options {module} {option}");
            let file = module_file(module, option);
            writeln!(out, "printf '%s\\n' {} > {}", quoted(&line), quoted(&file))?;
            comment(
                out,
                &format!("Then, with no VM running: modprobe -r {module} && modprobe {module}"),
            )
        }
        Fix::Pin(tids) => {
            comment(out, "Choose a CPU for each thread:")?;
            tids.iter().try_for_each(|tid| comment(out, &format!("taskset -pc CPU {tid}")))
        }
        Fix::Write { .. } | Fix::Kernel(_) | Fix::Vmm(_) | Fix::Advice(_) => {
            comment(out, &format!("By hand: {}", fix_line(fix)))
        }
    }
}
