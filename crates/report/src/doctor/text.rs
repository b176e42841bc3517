//! The audit for a terminal: what costs first, with its evidence; what is good in one line each.

use std::io::{self, Write};

use vmtax_analyse::audit::{
    self, AuditFinding, CheckVerdict, MeasuredGain, SeenSetting, SettingGain,
};
use vmtax_events::setting::{Fact, VmProcess, cpuinfo, files};

use super::audit::{Audit, vm_name};
use super::words::{self, fix_line};
use crate::names::printable;
use crate::numbers::{count, counted, duration, percent};
use crate::text::TextLayout;
use crate::text::layout::{Grid, GridColumn, Paint, Style, wrap};

/// A value of a file beyond this says nothing more to people.
const LONGEST: usize = 200;

struct DoctorPage<'a> {
    paint: Paint,
    width: Option<usize>,
    out: &'a mut dyn Write,
}

impl DoctorPage<'_> {
    fn line(&mut self, style: Style, text: &str) -> io::Result<()> {
        self.paint.line(self.out, style, text)
    }

    fn paragraph(&mut self, style: Style, first: &str, text: &str) -> io::Result<()> {
        let indent = " ".repeat(first.chars().count());
        wrap(text, self.width, first, &indent).iter().try_for_each(|line| self.line(style, line))
    }
}

pub(super) fn write(audit: &Audit, look: TextLayout, out: &mut dyn Write) -> io::Result<()> {
    let mut page = DoctorPage { paint: Paint { color: look.color }, width: look.width, out };
    header(&mut page, audit)?;
    summary(&mut page, audit)?;
    for (verdict, title) in [
        (CheckVerdict::Costs, "Costs you"),
        (CheckVerdict::Unknown, "Unknown"),
        (CheckVerdict::Ok, "Ok"),
        (CheckVerdict::NotApplicable, "Does not apply"),
    ] {
        let findings: Vec<&AuditFinding> = audit.with(verdict).collect();
        if findings.is_empty() {
            continue;
        }
        page.line(Style::Plain, "")?;
        page.line(Style::Heading, title)?;
        if verdict == CheckVerdict::NotApplicable {
            listed(&mut page, audit, &findings)?;
        } else {
            findings.iter().try_for_each(|finding| detailed(&mut page, audit, finding))?;
        }
    }
    Ok(())
}

fn header(page: &mut DoctorPage, audit: &Audit) -> io::Result<()> {
    let version = printable(audit.tool_version);
    page.line(Style::Heading, &format!("vmtax {version}: settings of {}", printable(audit.root)))?;
    let settings = &audit.system.settings;
    let info = settings.text(files::CPUINFO).unwrap_or_default();
    let model = cpuinfo::model(info);
    let kernel = settings.text(files::RELEASE).unwrap_or("unknown");
    let mut host = format!("kernel {}", printable(&short(kernel)));
    if !model.is_empty() {
        host += &format!(", {}", printable(&short(&model)));
    }
    let is_known = settings.iter().next().is_some();
    if is_known {
        page.paragraph(Style::Faint, "  host   ", &host)?;
        page.paragraph(Style::Faint, "  KVM    ", &crate::kvm::line(&audit.system.kvm))?;
    } else {
        let host = match audit.vms.iter().any(VmProcess::is_part) {
            true => {
                "not checked: this is a part of a VM's configuration, or one that was cut; what it lacks is unknown"
            }
            false => {
                "not checked: this is a VM's configuration alone; run `vmtax doctor` on its host for the rest"
            }
        };
        page.paragraph(Style::Faint, "  host   ", host)?;
    }
    let vms: Vec<String> = audit
        .vms
        .iter()
        .map(|vm| {
            format!(
                "{}, {}, {}",
                vm_name(vm),
                audit::kind(vm).name(),
                counted(vm.vcpus.into(), "vCPU")
            )
        })
        .collect();
    let vms = match (vms.is_empty(), audit.system.listed) {
        (true, true) => "none was found".to_owned(),
        (true, false) => "unknown: there is no list of processes".to_owned(),
        _ => vms.join("; "),
    };
    page.paragraph(Style::Faint, "  VMs    ", &vms)?;
    let is_vm = info.lines().any(|line| {
        line.starts_with("flags") && line.split_ascii_whitespace().any(|flag| flag == "hypervisor")
    });
    let guest = match audit.guest {
        Some(name) => printable(name),
        None if is_vm => {
            "not checked; this system is itself a VM: check it as a guest with --guest-root DIR"
                .to_owned()
        }
        None => "not checked: select it with --guest ssh:USER@HOST or --guest-root DIR".to_owned(),
    };
    page.paragraph(Style::Faint, "  guest  ", &guest)?;
    let run = match audit.run {
        None => "none: give one to sort the findings by cost".to_owned(),
        Some((name, ledger)) => {
            let emulated = ledger.recording.emulated.as_ref();
            let suffix = emulated.map(|which| {
                format!(", emulated ({}): its times do not reflect hardware", printable(which))
            });
            printable(name) + &suffix.unwrap_or_default()
        }
    };
    page.paragraph(Style::Faint, "  run    ", &run)?;
    if audit.system.hidden > 0 {
        page.paragraph(Style::Warning, "  ", &super::audit::hidden(audit.system.hidden))?;
    }
    if audit.system.more {
        page.paragraph(Style::Warning, "  ", "not all VMs were checked; select one with -p")?;
    }
    Ok(())
}

fn summary(page: &mut DoctorPage, audit: &Audit) -> io::Result<()> {
    let number = |verdict| count(audit.with(verdict).count() as u64);
    let text = format!(
        "Of {}: {} cost you, {} unknown, {} ok, {} do not apply.",
        counted(audit.findings.len() as u64, "check"),
        number(CheckVerdict::Costs),
        number(CheckVerdict::Unknown),
        number(CheckVerdict::Ok),
        number(CheckVerdict::NotApplicable),
    );
    page.line(Style::Plain, "")?;
    page.paragraph(Style::Heading, "", &text)?;
    let untried = audit.findings.iter().any(|finding| {
        finding.check.confidential
            && matches!(finding.found.verdict, CheckVerdict::Costs | CheckVerdict::Ok)
    });
    if untried {
        let text = "The checks of TDX and SEV-SNP have never been tried on such hardware.";
        page.paragraph(Style::Warning, "", text)?;
    }
    Ok(())
}

fn detailed(page: &mut DoctorPage, audit: &Audit, finding: &AuditFinding) -> io::Result<()> {
    let found = &finding.found;
    let title = format!(
        "{}, {}: {}",
        finding.check.id.name(),
        audit.subject(finding.subject),
        printable(&words::found(found))
    );
    page.paragraph(Style::Plain, "- ", &title)?;
    for fact in &found.evidence {
        page.paragraph(Style::Faint, "    seen  ", &evidence(fact))?;
    }
    if let Some(measured) = &finding.measured {
        page.paragraph(Style::Plain, "    run   ", &measured_text(measured))?;
    }
    if let Some(fix) = &found.fix {
        let line = match finding.subject {
            // A VM is started from outside, also when the option is for the guest.
            audit::AuditSubject::Guest if !matches!(fix, audit::Fix::Vmm(_)) => {
                format!("in the guest: {}", fix_line(fix))
            }
            _ => fix_line(fix),
        };
        page.paragraph(Style::Plain, "    fix   ", &line)?;
    }
    if found.verdict == CheckVerdict::Costs {
        let rule = words::rule(finding.rule.id);
        let source = rule.source.map(|source| format!(" [{source}]")).unwrap_or_default();
        page.paragraph(Style::Faint, "    why   ", &format!("{}{source}", rule.why))?;
    }
    Ok(())
}

/// A setting as it was read. Printable.
pub(crate) fn evidence(fact: &Fact<SeenSetting>) -> String {
    match &fact.value {
        Ok(value) => {
            let value = short(&words::seen(value).replace('\n', " | "));
            printable(&format!("{} = {value}", fact.path))
        }
        Err(why) => printable(&format!("{}: {why}", fact.path)),
    }
}

fn short(text: &str) -> String {
    let mut short: String = text.chars().take(LONGEST).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// What the run says, with the arithmetic.
fn measured_text(measured: &MeasuredGain) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in &measured.causes {
        let rate = match cause.per_second {
            Some(rate) => format!("{} exits/s", count(rate.round() as u64)),
            None => counted(cause.count, "exit"),
        };
        let share = cause.share.map(|share| format!(", {} of the time", percent(share)));
        parts.push(format!("{} {rate}{}", cause.cause.name(), share.unwrap_or_default()));
    }
    parts.push(gain_text(&measured.gain));
    let whose = match measured.vm {
        Some(vm) => format!("VM {vm}: "),
        None => String::new(),
    };
    whose + &parts.join("; ")
}

fn gain_text(gain: &SettingGain) -> String {
    let share = gain.share().map(percent).unwrap_or_default();
    match *gain {
        SettingGain::AtMost { count: 0, .. } => "the run has no such exits: no gain".to_owned(),
        SettingGain::AtMost { count: exits, time_ns, base_ns } => format!(
            "gain at most {share} ({} in {} / {} not halted)",
            duration(time_ns as f64),
            counted(exits, "exit"),
            duration(base_ns as f64)
        ),
        SettingGain::Preempted { time_ns, base_ns } => format!(
            "gain at most {share} ({} preempted / {} not halted)",
            duration(time_ns as f64),
            duration(base_ns as f64)
        ),
        SettingGain::Counts { count: exits } => {
            format!(
                "gain: at most {} fewer; times of an emulated host do not reflect hardware",
                counted(exits, "exit")
            )
        }
        SettingGain::NoExits => "gain: unknown, because the setting removes no exits".to_owned(),
        SettingGain::Unknown => {
            "gain: unknown, because the run has no preempted time (sched_switch)".to_owned()
        }
    }
}

/// What does not apply has a line each.
fn listed(page: &mut DoctorPage, audit: &Audit, findings: &[&AuditFinding]) -> io::Result<()> {
    let mut grid = Grid::new(vec![
        GridColumn::words("check"),
        GridColumn::words("of"),
        GridColumn::key("why"),
    ]);
    for finding in findings {
        let what = printable(&words::found(&finding.found));
        let cells = [finding.check.id.name().to_owned(), audit.subject(finding.subject), what];
        grid.row(Style::Plain, cells.into());
    }
    grid.write(page.out, page.paint, page.width)?;
    Ok(())
}
