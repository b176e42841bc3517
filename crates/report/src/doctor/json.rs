//! The audit for programs: the shape `vmtax-doctor-1`, in `docs/doctor.schema.json`.

use std::io::{self, Write};

use serde::Serialize;
use vmtax_analyse::audit::{
    self, AuditFinding, AuditSubject, CauseMeasured, SeenSetting, SettingGain,
};
use vmtax_events::setting::{Fact, VmProcess, files};

use super::audit::{Audit, fix_kind};
use super::words::{self, RuleWords, fix_line};

/// Name and version of the shape.
pub const SCHEMA: &str = "vmtax-doctor-1";

#[derive(Serialize)]
struct Doctor<'a> {
    schema: &'static str,
    tool: DoctorTool<'a>,
    root: &'a str,
    guest: Option<&'a str>,
    run: Option<&'a str>,
    kernel: Option<&'a str>,
    kvm: crate::kvm::ShapedPrograms<'a>,
    hidden_processes: u64,
    vms: Vec<DoctorVm<'a>>,
    findings: Vec<ShapedDoctor<'a>>,
}

#[derive(Serialize)]
struct DoctorTool<'a> {
    name: &'static str,
    version: &'a str,
}

#[derive(Serialize)]
pub(crate) struct DoctorVm<'a> {
    pid: u32,
    name: &'a str,
    kind: &'static str,
    vcpus: u32,
}

#[derive(Serialize)]
struct ShapedDoctor<'a> {
    rule: &'static str,
    check: &'static str,
    subject: &'static str,
    pid: Option<u32>,
    verdict: &'static str,
    what: String,
    evidence: Vec<EvidenceJson<'a>>,
    fix: Option<ShapedFix>,
    causes: Vec<&'static str>,
    measured: Option<MeasuredShape>,
    wanted: &'static str,
    why: &'static str,
    source: Option<&'static str>,
    confidential: bool,
}

#[derive(Serialize)]
struct EvidenceJson<'a> {
    path: &'a str,
    value: Option<String>,
    unknown: Option<String>,
}

#[derive(Serialize)]
struct ShapedFix {
    kind: &'static str,
    text: String,
}

#[derive(Serialize)]
struct MeasuredShape {
    vm: Option<u32>,
    causes: Vec<CauseShape>,
    gain: ShapedGain,
}

#[derive(Serialize)]
struct CauseShape {
    cause: &'static str,
    count: u64,
    per_second: Option<f64>,
    time_ns: Option<u64>,
    share: Option<f64>,
}

#[derive(Serialize)]
struct ShapedGain {
    kind: &'static str,
    exits: Option<u64>,
    time_ns: Option<u64>,
    base_ns: Option<u64>,
    share: Option<f64>,
}

pub(super) fn write(audit: &Audit, out: &mut dyn Write) -> io::Result<()> {
    let document = Doctor {
        schema: SCHEMA,
        tool: DoctorTool { name: "vmtax", version: audit.tool_version },
        root: audit.root,
        guest: audit.guest,
        run: audit.run.map(|(name, _)| name),
        kernel: audit.system.settings.text(files::RELEASE).ok(),
        kvm: crate::kvm::shaped(&audit.system.kvm),
        hidden_processes: audit.system.hidden,
        vms: audit.vms.iter().map(vm).collect(),
        findings: audit.findings.iter().map(finding).collect(),
    };
    crate::json::write(&document, out)
}

pub(crate) fn vm(vm: &VmProcess) -> DoctorVm<'_> {
    DoctorVm { pid: vm.pid, name: &vm.name, kind: audit::kind(vm).name(), vcpus: vm.vcpus }
}

fn finding(finding: &AuditFinding) -> ShapedDoctor<'_> {
    let (subject, pid) = match finding.subject {
        AuditSubject::Host => ("host", None),
        AuditSubject::Vm(pid) => ("vm", Some(pid)),
        AuditSubject::Guest => ("guest", None),
    };
    let found = &finding.found;
    let RuleWords { wanted, why, source, .. } = words::rule(finding.rule.id);
    ShapedDoctor {
        rule: finding.rule.id.name(),
        check: finding.check.id.name(),
        subject,
        pid,
        verdict: found.verdict.name(),
        what: words::found(found),
        evidence: found.evidence.iter().map(evidence).collect(),
        fix: found.fix.as_ref().map(|fix| ShapedFix { kind: fix_kind(fix), text: fix_line(fix) }),
        causes: finding.check.causes.iter().map(|cause| cause.name()).collect(),
        measured: finding.measured.as_ref().map(|measured| MeasuredShape {
            vm: measured.vm,
            causes: measured.causes.iter().map(cause).collect(),
            gain: gain(&measured.gain),
        }),
        wanted,
        why,
        source,
        confidential: finding.check.confidential,
    }
}

fn evidence(fact: &Fact<SeenSetting>) -> EvidenceJson<'_> {
    EvidenceJson {
        path: &fact.path,
        value: fact.value.as_ref().ok().map(words::seen),
        unknown: fact.value.as_ref().err().map(ToString::to_string),
    }
}

fn cause(measured: &CauseMeasured) -> CauseShape {
    CauseShape {
        cause: measured.cause.name(),
        count: measured.count,
        per_second: measured.per_second,
        time_ns: measured.time_ns,
        share: measured.share,
    }
}

fn gain(gain: &SettingGain) -> ShapedGain {
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
    ShapedGain { kind, exits, time_ns, base_ns, share: gain.share() }
}
