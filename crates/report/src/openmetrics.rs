//! The report as metrics for Prometheus: OpenMetrics 1.0, or the older text format that node_exporter's textfile collector reads.
//!
//! Labels are bounded: a VM, a level, a cause, a reason, a kind of thread. Details and vCPUs are left out, and what exceeds
//! [`MOST_VMS`], [`MOST_REASONS`] or [`MOST_TAKERS`] is added up under the name `other`, so that neither a host with many VMs nor a
//! hostile recording creates unbounded series.
//!
//! Durations are counted by log2 of nanoseconds; a bucket's bound is that power of 2, which itself is in the next.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Arc;

use vmtax_analyse::{Ledger, ledger, table};
use vmtax_events::{Cause, ExitKey, OCTAVES, Tally, TimeRow};

use crate::{Document, Renderer, names};

/// VMs with their own series: those with the most exits.
pub const MOST_VMS: usize = 1000;
/// Reasons with their own series: the most frequent.
pub const MOST_REASONS: usize = 128;
/// Kinds of threads that took a VM's processors with their own series: those with the most time.
pub const MOST_TAKERS: usize = 32;
/// What the rest is added up under.
const OTHER: &str = "other";
/// Bounds of the histogram: powers of 2 of a nanosecond, from 256 ns to 17 s.
const BOUNDS: std::ops::RangeInclusive<usize> = 8..=34;
/// Each bound is the previous one times this power of 2.
const STEP: usize = 2;

/// What the metrics are written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsDialect {
    /// OpenMetrics 1.0, which Prometheus asks for.
    OpenMetrics,
    /// Prometheus's text format 0.0.4: it has no units, no end, no type `info`, and gives a type to the name as it is sampled.
    Text,
}

/// Renders OpenMetrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenMetrics;

impl Renderer for OpenMetrics {
    fn render(&self, document: &Document, out: &mut dyn Write) -> io::Result<()> {
        write(&document.ledger, &document.tool_version, MetricsDialect::OpenMetrics, out)
    }
}

/// Writes all metrics of a ledger.
pub fn write(
    ledger: &Ledger,
    tool_version: &str,
    dialect: MetricsDialect,
    out: &mut dyn Write,
) -> io::Result<()> {
    let groups = Groups::of(ledger);
    let mut exits: BTreeMap<MetricSeries, Tally> = BTreeMap::new();
    let mut causes: BTreeMap<(&VmLabels, Cause), Tally> = BTreeMap::new();
    for (key, tally) in &ledger.exits {
        let series = groups.series(key);
        causes.entry((series.vm, series.cause)).or_default().merge(tally);
        exits.entry(series).or_default().merge(tally);
    }
    let mut page = MetricsPage { dialect, out };
    info(&mut page, ledger, tool_version)?;
    page.head("vmtax_exits", "counter", None, "VM exits")?;
    for (series, tally) in &exits {
        page.sample("vmtax_exits_total", &series.labels(), tally.count)?;
    }
    page.head(
        "vmtax_exit_time_seconds",
        "counter",
        Some("seconds"),
        "Time in those exits that are timed, without preempted time",
    )?;
    for (series, tally) in exits.iter().filter(|(_, tally)| tally.timed > 0) {
        page.sample("vmtax_exit_time_seconds_total", &series.labels(), seconds(tally.time_ns))?;
    }
    histograms(&mut page, &causes)?;
    time(&mut page, ledger, &groups)?;
    losses(&mut page, ledger)?;
    match dialect {
        MetricsDialect::OpenMetrics => writeln!(page.out, "# EOF"),
        MetricsDialect::Text => Ok(()),
    }
}

/// Where metrics go.
struct MetricsPage<'a> {
    dialect: MetricsDialect,
    out: &'a mut dyn Write,
}

impl MetricsPage<'_> {
    fn head(&mut self, name: &str, kind: &str, unit: Option<&str>, help: &str) -> io::Result<()> {
        if self.dialect == MetricsDialect::Text {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            writeln!(self.out, "# HELP {name}{suffix} {help}.")?;
            return writeln!(self.out, "# TYPE {name}{suffix} {kind}");
        }
        writeln!(self.out, "# TYPE {name} {kind}")?;
        if let Some(unit) = unit {
            writeln!(self.out, "# UNIT {name} {unit}")?;
        }
        writeln!(self.out, "# HELP {name} {help}.")
    }

    fn sample(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: impl Display,
    ) -> io::Result<()> {
        write!(self.out, "{name}")?;
        for (index, (label, text)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            write!(self.out, "{before}{label}=\"{}\"", escaped(text))?;
        }
        writeln!(self.out, "{} {value}", if labels.is_empty() { "" } else { "}" })
    }
}

/// A label's value: hostile text, made harmless for a terminal and for the format.
fn escaped(text: &str) -> String {
    names::printable(text).replace('\\', "\\\\").replace('"', "\\\"")
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The labels of a VM: its name and its number.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct VmLabels {
    name: String,
    id: String,
}

impl VmLabels {
    fn pairs(&self) -> [(&str, &str); 2] {
        [("vm", &self.name), ("vm_id", &self.id)]
    }
}

/// One series of exits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MetricSeries<'a> {
    vm: &'a VmLabels,
    level: &'static str,
    cause: Cause,
    reason: &'a str,
}

impl MetricSeries<'_> {
    fn labels(&self) -> [(&str, &str); 5] {
        let [name, id] = self.vm.pairs();
        [name, id, ("level", self.level), ("cause", self.cause.name()), ("reason", self.reason)]
    }
}

/// Which VMs and reasons have series of their own.
struct Groups {
    vms: BTreeMap<u32, VmLabels>,
    reasons: BTreeMap<vmtax_events::Reason, String>,
    other: VmLabels,
}

impl Groups {
    fn of(ledger: &Ledger) -> Groups {
        let (mut of_vm, mut of_reason) = (BTreeMap::new(), BTreeMap::new());
        for (key, tally) in &ledger.exits {
            add(&mut of_vm, key.vm, tally.count);
            add(&mut of_reason, key.reason, tally.count);
        }
        // A VM that took no exit yet has time all the same.
        ledger.time.keys().for_each(|(vm, _)| add(&mut of_vm, *vm, 0));
        let known = |id: &u32| ledger.recording.vms.iter().find(|vm| vm.id == *id);
        let labels = |id: u32| VmLabels {
            name: known(&id).map_or_else(String::new, |vm| vm.name.clone()),
            id: id.to_string(),
        };
        Groups {
            vms: most(of_vm, MOST_VMS).into_iter().map(|id| (id, labels(id))).collect(),
            reasons: most(of_reason, MOST_REASONS)
                .into_iter()
                .map(|reason| (reason, names::reason(reason)))
                .collect(),
            other: VmLabels { name: OTHER.to_owned(), id: String::new() },
        }
    }

    fn vm(&self, id: u32) -> &VmLabels {
        self.vms.get(&id).unwrap_or(&self.other)
    }

    fn series(&self, key: &ExitKey) -> MetricSeries<'_> {
        MetricSeries {
            vm: self.vm(key.vm),
            level: key.level.name(),
            cause: table::cause_of(key),
            reason: self.reasons.get(&key.reason).map_or(OTHER, String::as_str),
        }
    }
}

fn add<K: Ord>(sums: &mut BTreeMap<K, u64>, key: K, count: u64) {
    let sum = sums.entry(key).or_default();
    *sum = sum.saturating_add(count);
}

/// Those with the most; among equals the first.
fn most<K: Ord + Clone>(sums: BTreeMap<K, u64>, limit: usize) -> BTreeSet<K> {
    let mut sums: Vec<(K, u64)> = sums.into_iter().collect();
    sums.sort_by(|(a, x), (b, y)| y.cmp(x).then(a.cmp(b)));
    sums.into_iter().take(limit).map(|(key, _)| key).collect()
}

fn info(page: &mut MetricsPage<'_>, ledger: &Ledger, tool_version: &str) -> io::Result<()> {
    let recording = &ledger.recording;
    page.head(
        "vmtax_recording",
        "info",
        None,
        "The recording and its host; emulated times do not reflect hardware",
    )?;
    let accelerator = names::accelerator(recording);
    let labels = [
        ("version", tool_version),
        ("hostname", &recording.hostname),
        ("kernel", &recording.kernel),
        ("cpu", &recording.cpu),
        ("accelerator", &accelerator),
    ];
    page.sample("vmtax_recording_info", &labels, 1)
}

fn histograms(
    page: &mut MetricsPage<'_>,
    causes: &BTreeMap<(&VmLabels, Cause), Tally>,
) -> io::Result<()> {
    let name = "vmtax_exit_duration_seconds";
    page.head(name, "histogram", Some("seconds"), "Durations of exits by cause")?;
    for ((vm, cause), tally) in causes.iter().filter(|(_, tally)| tally.timed > 0) {
        let [vm, id] = vm.pairs();
        let labels = [vm, id, ("cause", cause.name())];
        let with = |bound: &str, below: u64, page: &mut MetricsPage<'_>| {
            let [a, b, c] = labels;
            page.sample(&format!("{name}_bucket"), &[a, b, c, ("le", bound)], below)
        };
        let octaves = tally.durations.octaves();
        for power in BOUNDS.step_by(STEP) {
            let below = octaves[..=power.min(OCTAVES - 1)].iter().sum();
            with(&format!("{:e}", seconds(1 << power)), below, page)?;
        }
        with("+Inf", tally.timed, page)?;
        page.sample(&format!("{name}_count"), &labels, tally.timed)?;
        page.sample(&format!("{name}_sum"), &labels, seconds(tally.time_ns))?;
    }
    Ok(())
}

fn time(page: &mut MetricsPage<'_>, ledger: &Ledger, groups: &Groups) -> io::Result<()> {
    let mut times: BTreeMap<&VmLabels, TimeRow> = BTreeMap::new();
    for ((vm, _), time) in &ledger.time {
        times.entry(groups.vm(*vm)).or_default().add(&time.sum);
    }
    let coverage = ledger.recording.coverage;
    page.head(
        "vmtax_vcpu_time_seconds",
        "counter",
        Some("seconds"),
        "Wall time of a VM's vCPUs by what they did",
    )?;
    for (vm, time) in &times {
        for part in TimeRow::whole_parts() {
            let Some(ns) = part.told(time, &coverage) else { continue };
            let [name, id] = vm.pairs();
            page.sample(
                "vmtax_vcpu_time_seconds_total",
                &[name, id, ("part", part.name)],
                seconds(ns),
            )?;
        }
    }
    page.head(
        "vmtax_tax_ratio",
        "gauge",
        Some("ratio"),
        "Exit tax: time in exits, kernel and VMM, of the known time not halted",
    )?;
    for (vm, time) in &times {
        if let Some(tax) = ledger::tax(time) {
            page.sample("vmtax_tax_ratio", &vm.pairs(), tax)?;
        }
    }
    if !coverage.sched {
        return Ok(());
    }
    page.head(
        "vmtax_contention_ratio",
        "gauge",
        Some("ratio"),
        "Time that vCPUs were preempted in exits, of the known time not halted",
    )?;
    for (vm, time) in &times {
        if let Some(contention) = ledger::contention(time) {
            page.sample("vmtax_contention_ratio", &vm.pairs(), contention)?;
        }
    }
    takers(page, ledger, groups)
}

/// Who had the processors of preempted vCPUs, by kind of thread.
fn takers(page: &mut MetricsPage<'_>, ledger: &Ledger, groups: &Groups) -> io::Result<()> {
    let mut sums: BTreeMap<&VmLabels, BTreeMap<Arc<str>, u64>> = BTreeMap::new();
    for ((vm, _, taker), taken) in &ledger.taken_by {
        add(sums.entry(groups.vm(*vm)).or_default(), taker.group().name, taken.time_ns);
    }
    page.head(
        "vmtax_preempted_by_seconds",
        "counter",
        Some("seconds"),
        "Time that preempted vCPUs waited while a thread of this kind had their processor",
    )?;
    for (vm, by_name) in sums {
        let named: BTreeSet<Arc<str>> = most(by_name.clone(), MOST_TAKERS);
        let mut shown: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, ns) in &by_name {
            add(&mut shown, if named.contains(name) { name } else { OTHER }, *ns);
        }
        let [name, id] = vm.pairs();
        for (by, ns) in shown {
            let labels = [name, id, ("by", by)];
            page.sample("vmtax_preempted_by_seconds_total", &labels, seconds(ns))?;
        }
    }
    Ok(())
}

fn losses(page: &mut MetricsPage<'_>, ledger: &Ledger) -> io::Result<()> {
    let losses = &ledger.losses;
    page.head("vmtax_losses", "counter", None, "Losses")?;
    let lists =
        [("missing", losses.missing.len() as u64), ("truncated", losses.truncated.len() as u64)];
    for (what, count) in losses.counts().chain(lists) {
        let what = what.replace('_', "-");
        page.sample("vmtax_losses_total", &[("what", &what)], count)?;
    }
    page.head("vmtax_complete", "gauge", None, "1 if the recording is complete or in progress")?;
    page.sample("vmtax_complete", &[], u8::from(ledger.complete))
}
