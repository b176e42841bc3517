//! Where the time of each vCPU went: a stacked bar per vCPU, with its figures beside it.

use maud::{Markup, html};
use vmtax_analyse::ledger::tax;
use vmtax_events::{Coverage, TimeRow};

use super::{MAX_ROWS, figures, series};
use crate::{Document, names, numbers};

/// One state of a vCPU: class of its colour, name, explanation, time.
struct State {
    class: &'static str,
    name: &'static str,
    explain: &'static str,
    time_ns: fn(&TimeRow) -> u64,
    /// Whether the recording could tell this state from the others.
    told: fn(&Coverage) -> bool,
}

/// The state that only VMs have that nest.
const NESTED: &str = "l2";

const STATES: [State; 7] = [
    State {
        class: "guest",
        name: "guest",
        explain: "running the guest's code",
        time_ns: |t| t.guest_ns.saturating_sub(t.l2_ns),
        told: |_| true,
    },
    State {
        class: NESTED,
        name: "L2",
        explain: "running the code of the guest's guest",
        time_ns: |t| t.l2_ns,
        told: |c| c.nested,
    },
    State {
        class: "kernel",
        name: "exit-kernel",
        explain: "handling exits in the host kernel",
        time_ns: |t| t.exit_kernel_ns,
        told: |_| true,
    },
    State {
        class: "user",
        name: "exit-user",
        explain: "handling exits in the VMM",
        time_ns: |t| t.exit_user_ns,
        told: |c| c.userspace,
    },
    State {
        class: "preempted",
        name: "preempted",
        explain: "off its CPU while handling an exit",
        time_ns: |t| t.preempted_ns,
        told: |c| c.sched,
    },
    State {
        class: "halted",
        name: "halted",
        explain: "idle by the guest's own wish",
        time_ns: |t| t.halted_ns,
        told: |_| true,
    },
    State {
        class: "unknown",
        name: "unknown",
        explain: "events are missing around it",
        time_ns: |t| t.unknown_ns,
        told: |_| true,
    },
];

/// The states that are worth a column.
fn states(doc: &Document) -> Vec<&'static State> {
    let nests = doc.ledger.time.values().any(|time| time.sum.l2_ns > 0);
    STATES.iter().filter(|state| state.class != NESTED || nests).collect()
}

/// Legend and table of bars.
pub(super) fn section(doc: &Document) -> Markup {
    let time = &doc.ledger.time;
    let states = states(doc);
    html! {
        h2 #time-split-title { "Time split per vCPU" }
        @if time.is_empty() {
            p.empty { "The source does not say where the vCPUs' time went." }
        } @else {
            ul.legend {
                @for state in &states {
                    li { (series::swatch(state.class)) b { (state.name) } " " span.aside { (state.explain) } }
                }
            }
            (split_table(doc, &states))
            @if time.len() > MAX_ROWS {
                p.note {
                    "The first " (numbers::count(MAX_ROWS as u64)) " of " (numbers::count(time.len() as u64))
                    " vCPUs are listed; " code { "--format json" } " has them all."
                }
            }
        }
    }
}

fn split_table(doc: &Document, states: &[&State]) -> Markup {
    let time = &doc.ledger.time;
    let several_vms = doc.ledger.recording.vms.len() > 1;
    let total = doc.ledger.time_total();
    let coverage = &doc.ledger.recording.coverage;
    html! {
        div.scroll.capped tabindex="0" role="region" aria-label="Time split per vCPU, table" {
            table.split data-sortable {
                thead {
                    tr {
                        @if several_vms { th scope="col" data-sort="text" { "VM" } }
                        th.n scope="col" data-sort="number" aria-sort=[(!several_vms).then_some("ascending")] { "vCPU" }
                        th.picture scope="col" { "Where its time went" }
                        th.n scope="col" data-sort="number" { "Tax" }
                        @for state in states {
                            th.n scope="col" data-sort="number" { (state.name) }
                        }
                        th.n scope="col" data-sort="number" { "Wall" }
                    }
                }
                tbody {
                    @for (&(vm, vcpu), split) in time.iter().take(MAX_ROWS) {
                        tr {
                            @if several_vms { td { (figures::text(&names::vm(&doc.ledger.recording, vm))) } }
                            th.n scope="row" data-v=(vcpu) { (names::vcpu_name(vcpu)) }
                            (cells(&split.sum, states, coverage))
                        }
                    }
                }
                @if time.len() > 1 {
                    tfoot {
                        tr {
                            th.n scope="row" colspan=[several_vms.then_some("2")] { "all" }
                            (cells(&total, states, coverage))
                        }
                    }
                }
            }
        }
    }
}

fn cells(time: &TimeRow, states: &[&State], coverage: &Coverage) -> Markup {
    let whole = whole(time);
    html! {
        td.picture { (bar(time)) }
        @match tax(time) {
            Some(tax) => td.n data-v=((tax * 1e9) as u64) { b { (figures::percent(tax)) } },
            None => td.n { "–" },
        }
        @for state in states {
            @let ns = (state.time_ns)(time);
            @if ns == 0 && !(state.told)(coverage) {
                td.n.none title="not recorded, so counted elsewhere" { "–" }
            } @else {
                td.n.zero[ns == 0] data-v=(part_per_billion(ns, whole)) title=(figures::duration(ns as f64)) {
                    (figures::percent(figures::share(ns, whole)))
                }
            }
        }
        td.n data-v=(time.wall_ns) { (figures::duration_cell(time.wall_ns as f64)) }
    }
}

fn bar(time: &TimeRow) -> Markup {
    let whole = whole(time);
    let mut x = 0.0;
    html! {
        svg.stack viewBox="0 0 1000 16" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            @for state in &STATES {
                @let ns = (state.time_ns)(time);
                @let width = figures::share(ns, whole) * 1000.0;
                @if ns > 0 {
                    rect class=(state.class) x=(figures::coordinate(x)) width=(figures::coordinate(width)) height="16" {
                        title {
                            (state.name) ": " (figures::duration(ns as f64)) ", "
                            (figures::percent(figures::share(ns, whole)))
                        }
                    }
                }
                @let () = x += width;
            }
        }
    }
}

/// What the bar's length stands for. Spans are counted where they end, so the parts can exceed the
/// wall time of a recording that was cut.
fn whole(time: &TimeRow) -> u64 {
    let parts = STATES.iter().fold(0u64, |sum, state| sum.saturating_add((state.time_ns)(time)));
    parts.max(time.wall_ns)
}

fn part_per_billion(part: u64, whole: u64) -> u64 {
    (figures::share(part, whole) * 1e9) as u64
}
