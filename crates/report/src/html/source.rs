//! What was measured, and the badges that qualify every figure.

use maud::{Markup, html};
use vmtax_events::Recording;

use super::figures;
use super::frame::PageFact;
use crate::{Document, losses, names, numbers};

/// VMs listed before the rest are only counted.
const MAX_VMS: usize = 12;

/// How it was recorded, and where.
pub(super) fn facts(doc: &Document) -> Vec<PageFact> {
    let recording = &doc.ledger.recording;
    let cpu = match recording.cpus {
        0 => recording.cpu.clone(),
        n if recording.cpu.is_empty() => numbers::counted(n.into(), "online CPU"),
        n => format!("{} ({} online)", recording.cpu, numbers::count(n.into())),
    };
    let command = html! { (figures::text(&recording.command)) };
    vec![
        PageFact::new("recorded with", &joined(&[&recording.tool, &recording.format])),
        PageFact::new("host", &joined(&[&recording.hostname, &recording.arch])),
        PageFact::new("kernel", &recording.kernel),
        PageFact::new("CPU", &cpu),
        PageFact::new("clock", &recording.clock),
        PageFact::new("measured", &measured(doc)),
        PageFact { name: "virtual machines", value: vms(recording), is_code: false },
        PageFact { name: "command", value: command, is_code: true },
    ]
}

/// What qualifies every figure.
pub(super) fn badges(doc: &Document) -> Markup {
    let ledger = &doc.ledger;
    html! {
        ul.badges {
            @if !ledger.complete {
                li.badge.bad { "INCOMPLETE: the recording ended early" }
            }
            @if ledger.losses.is_empty() {
                li.badge.good { "No known losses" }
            } @else if losses::is_only_ends(ledger) {
                @let ends = numbers::counted(ledger.losses.unpaired_exits, "exit");
                li.badge { a href="#losses" { "Complete but for " (ends) " at its end" } }
            } @else {
                li.badge.bad { a href="#losses" { "LOSSES: see what is missing" } }
            }
        }
    }
}

fn measured(doc: &Document) -> String {
    let ledger = &doc.ledger;
    let span = ledger.duration_ns();
    let vcpus = numbers::counted(ledger.time.len() as u64, "vCPU");
    match (span, ledger.time.len()) {
        (0, 0) => "length not known".to_owned(),
        (0, _) => vcpus,
        (span, 0) => figures::duration(span as f64),
        (span, _) => format!("{}, {vcpus}", figures::duration(span as f64)),
    }
}

fn vms(recording: &Recording) -> Markup {
    let vms = &recording.vms;
    html! {
        @if vms.is_empty() { "none seen" }
        ul.vms {
            @for vm in vms.iter().take(MAX_VMS) {
                li {
                    (figures::text(&names::vm(recording, vm.id)))
                    @if vm.inferred {
                        " " span.aside title="The recording has no process ids, or one process ran several VMs: which threads belong to this VM is inferred." {
                            "inferred"
                        }
                    }
                }
            }
            @if vms.len() > MAX_VMS {
                li { "and " (numbers::count((vms.len() - MAX_VMS) as u64)) " more" }
            }
        }
    }
}

fn joined(parts: &[&String]) -> String {
    let parts: Vec<&str> =
        parts.iter().filter(|part| !part.is_empty()).map(|part| part.as_str()).collect();
    parts.join(", ")
}
