//! The audit for programs: the shape `vmtax-doctor-1`, in `docs/doctor.schema.json`.

use std::io::{self, Write};

use vmtax_analyse::audit::{
    self, AuditFinding, AuditSubject, CauseMeasured, Fix, MeasuredGain, SeenSetting, SettingGain,
};
use vmtax_events::setting::{Fact, VmProcess, files};

use super::audit::{Audit, fix_kind};
use super::words::{self, RuleWords, fix_line};
use crate::table::Cell;

/// Name and version of the shape.
pub const SCHEMA: &str = "vmtax-doctor-1";

pub(super) fn write(audit: &Audit, out: &mut dyn Write) -> io::Result<()> {
    let kernel = audit.system.settings.text(files::RELEASE).ok();
    let document = Cell::Object(vec![
        ("schema", Cell::Word(SCHEMA)),
        ("tool", tool(audit.tool_version)),
        ("root", name(audit.root)),
        ("guest", Cell::of(audit.guest, name)),
        ("run", Cell::of(audit.run, |(run, _)| name(run))),
        ("kernel", Cell::of(kernel, name)),
        ("kvm", crate::kvm::object(&audit.system.kvm)),
        ("hidden_processes", Cell::Count(audit.system.hidden)),
        ("vms", Cell::List(audit.vms.iter().map(|one| Cell::Object(vm(one))).collect())),
        ("findings", Cell::List(audit.findings.iter().map(finding).collect())),
    ]);
    crate::json::write(&document, out)
}

/// This program with its version.
pub(crate) fn tool(version: &str) -> Cell {
    Cell::Object(vec![("name", Cell::Word("vmtax")), ("version", name(version))])
}

fn name(text: &str) -> Cell {
    Cell::Name(text.to_owned())
}

/// The fields of a VM.
pub(crate) fn vm(vm: &VmProcess) -> Vec<(&'static str, Cell)> {
    vec![
        ("pid", Cell::Count(vm.pid.into())),
        ("name", name(&vm.name)),
        ("kind", Cell::Word(audit::kind(vm).name())),
        ("vcpus", Cell::Count(vm.vcpus.into())),
    ]
}

fn finding(finding: &AuditFinding) -> Cell {
    let (subject, pid) = match finding.subject {
        AuditSubject::Host => ("host", None),
        AuditSubject::Vm(pid) => ("vm", Some(pid)),
        AuditSubject::Guest => ("guest", None),
    };
    let (found, check) = (&finding.found, finding.check);
    let RuleWords { wanted, why, source, .. } = words::rule(finding.rule.id);
    let fix = |fix: &Fix| {
        Cell::Object(vec![("kind", Cell::Word(fix_kind(fix))), ("text", Cell::Name(fix_line(fix)))])
    };
    let measured = |of: &MeasuredGain| {
        Cell::Object(vec![
            ("vm", Cell::of(of.vm, |vm| Cell::Count(vm.into()))),
            ("causes", Cell::List(of.causes.iter().map(cause).collect())),
            ("gain", gain(&of.gain)),
        ])
    };
    let causes = check.causes.iter().map(|cause| Cell::Word(cause.name()));
    Cell::Object(vec![
        ("rule", Cell::Word(finding.rule.id.name())),
        ("check", Cell::Word(check.id.name())),
        ("subject", Cell::Word(subject)),
        ("pid", Cell::of(pid, |pid| Cell::Count(pid.into()))),
        ("verdict", Cell::Word(found.verdict.name())),
        ("what", Cell::Name(words::found(found))),
        ("evidence", Cell::List(found.evidence.iter().map(evidence).collect())),
        ("fix", Cell::of(found.fix.as_ref(), fix)),
        ("causes", Cell::List(causes.collect())),
        ("measured", Cell::of(finding.measured.as_ref(), measured)),
        ("wanted", Cell::Word(wanted)),
        ("why", Cell::Word(why)),
        ("source", Cell::of(source, Cell::Word)),
        ("confidential", Cell::Flag(check.confidential)),
    ])
}

fn evidence(fact: &Fact<SeenSetting>) -> Cell {
    Cell::Object(vec![
        ("path", name(&fact.path)),
        ("value", Cell::of(fact.value.as_ref().ok(), |seen| Cell::Name(words::seen(seen)))),
        ("unknown", Cell::of(fact.value.as_ref().err(), |why| Cell::Name(why.to_string()))),
    ])
}

fn cause(measured: &CauseMeasured) -> Cell {
    Cell::Object(vec![
        ("cause", Cell::Word(measured.cause.name())),
        ("count", Cell::Count(measured.count)),
        ("per_second", Cell::of(measured.per_second, Cell::Number)),
        ("time_ns", Cell::of(measured.time_ns, Cell::Time)),
        ("share", Cell::of(measured.share, Cell::Share)),
    ])
}

fn gain(gain: &SettingGain) -> Cell {
    let (kind, exits, time_ns, base_ns) = match *gain {
        SettingGain::AtMost { count, time_ns, base_ns } => {
            ("at-most", Some(count), Some(time_ns), Some(base_ns))
        }
        SettingGain::Preempted { time_ns, base_ns } => {
            ("preempted", None, Some(time_ns), Some(base_ns))
        }
        SettingGain::Counts { count } => ("counts", Some(count), None, None),
        SettingGain::NoExits => ("no-exits", None, None, None),
        SettingGain::Unknown => ("unknown", None, None, None),
    };
    Cell::Object(vec![
        ("kind", Cell::Word(kind)),
        ("exits", Cell::of(exits, Cell::Count)),
        ("time_ns", Cell::of(time_ns, Cell::Time)),
        ("base_ns", Cell::of(base_ns, Cell::Time)),
        ("share", Cell::of(gain.share(), Cell::Share)),
    ])
}
