//! The head of the report: what was measured, and the badges that qualify every figure below.

use maud::{Markup, html};
use vmtax_events::Recording;

use super::figures;
use crate::{Document, headline, names, numbers, operations};

/// VMs listed before the rest are only counted.
const MAX_VMS: usize = 12;

/// Title, badges and facts.
pub(super) fn header(doc: &Document) -> Markup {
    let recording = &doc.ledger.recording;
    let host = joined(&[&recording.hostname, &recording.arch], ", ");
    let cpu = match recording.cpus {
        0 => figures::text(&recording.cpu),
        n if recording.cpu.is_empty() => numbers::counted(n.into(), "online CPU"),
        n => format!("{} ({} online)", figures::text(&recording.cpu), numbers::count(n.into())),
    };
    let facts = [
        ("Recorded with", joined(&[&recording.tool, &recording.format], ", ")),
        ("Host", host),
        ("Kernel", figures::text(&recording.kernel)),
        ("CPU", cpu),
        ("Clock", figures::text(&recording.clock)),
    ];
    html! {
        header.top {
            div.title {
                h1 { span.brand { "vmtax" } " report" }
                p.source { (figures::text(&doc.source)) }
                (badges(doc))
            }
            dl.facts {
                @for (name, value) in &facts {
                    @if !value.is_empty() { div { dt { (name) } dd { (value) } } }
                }
                div { dt { "Measured" } dd { (measured(doc)) } }
                div { dt { "Virtual machines" } dd { (vms(recording)) } }
                @if !recording.command.is_empty() {
                    div.wide { dt { "Command" } dd.mono { (figures::text(&recording.command)) } }
                }
            }
            @if let Some(sentence) = operations::emulated(&doc.ledger) {
                p.notice { strong { "Not hardware. " } (figures::text(&sentence)) }
            }
        }
    }
}

fn badges(doc: &Document) -> Markup {
    let ledger = &doc.ledger;
    html! {
        ul.badges {
            @if let Some(emulator) = &ledger.recording.emulated {
                li.badge.warn { "EMULATED: " (figures::text(emulator)) }
            }
            @if !ledger.complete {
                li.badge.bad { "INCOMPLETE: the recording ended early" }
            }
            @if ledger.losses.is_empty() {
                li.badge.good { "No known losses" }
            } @else {
                li.badge.bad { a href="#losses" { "LOSSES: see what is missing" } }
            }
        }
    }
}

fn measured(doc: &Document) -> String {
    let ledger = &doc.ledger;
    let span = headline::duration_ns(ledger);
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

fn joined(parts: &[&String], separator: &str) -> String {
    let parts: Vec<String> =
        parts.iter().filter(|p| !p.is_empty()).map(|p| figures::text(p)).collect();
    parts.join(separator)
}
