//! The objects of the JSON, field for field as `docs/report.schema.json` has them.
//!
//! Integers are exact. Absent means the table is not told apart by it; `null` means not known.

use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Report<'a> {
    pub(super) schema: &'static str,
    pub(super) tool: Tool<'a>,
    pub(super) run: Run<'a>,
    pub(super) operations: Option<Operations>,
    pub(super) tables: Vec<Table>,
    pub(super) nested: Option<Nested>,
    /// Functions of call trees, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) functions: Option<crate::table::Table>,
    pub(super) losses: &'a vmtax_events::Losses,
}

#[derive(Serialize)]
pub(super) struct Tool<'a> {
    pub(super) name: &'static str,
    pub(super) version: &'a str,
}

#[derive(Serialize)]
pub(super) struct Run<'a> {
    pub(super) source: &'a str,
    pub(super) format: Option<String>,
    pub(super) tool: Option<String>,
    pub(super) command: Option<String>,
    pub(super) hostname: Option<String>,
    pub(super) kernel: Option<String>,
    pub(super) arch: Option<String>,
    pub(super) cpu: Option<String>,
    pub(super) cpus: Option<u32>,
    pub(super) clock: Option<String>,
    pub(super) accelerator: String,
    pub(super) coverage: vmtax_events::Coverage,
    pub(super) vms: Vec<Vm>,
    pub(super) complete: bool,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) vcpus: crate::table::Table,
    pub(super) tax: Option<f64>,
    pub(super) contention: Option<f64>,
    pub(super) taken_by: Vec<Taker<'a>>,
}

#[derive(Serialize)]
pub(super) struct Vm {
    pub(super) id: u32,
    pub(super) name: Option<String>,
    pub(super) inferred: bool,
}

#[derive(Serialize)]
pub(super) struct Taker<'a> {
    pub(super) name: &'a str,
    pub(super) count: u64,
    pub(super) time_ns: u64,
}

#[derive(Serialize)]
pub(super) struct Table {
    pub(super) event: &'static str,
    pub(super) by: Vec<&'static str>,
    pub(super) rows: Vec<Row>,
    pub(super) total: Tally,
}

#[derive(Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) key: Key,
    #[serde(flatten)]
    pub(super) tally: Tally,
}

/// What a row is told apart by: the fields of its table's `by`.
#[derive(Default, Serialize)]
pub(super) struct Key {
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) level: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<Detail>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vm: Option<u32>,
    /// `Some(None)`: asked for, not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vcpu: Option<Option<u32>>,
}

#[derive(Serialize)]
pub(super) struct Reason {
    pub(super) reason: String,
    pub(super) reason_code: u32,
    pub(super) reason_flags: u32,
    pub(super) isa: &'static str,
}

#[derive(Serialize)]
pub(super) struct Detail {
    pub(super) kind: &'static str,
    pub(super) value: u64,
    pub(super) hex: String,
    pub(super) name: Option<String>,
}

#[derive(Default, Serialize)]
pub(super) struct Tally {
    pub(super) count: u64,
    pub(super) timed: u64,
    pub(super) time_ns: u64,
    pub(super) min_ns: Option<u64>,
    pub(super) max_ns: Option<u64>,
    pub(super) mean_ns: Option<f64>,
    pub(super) stderr_ns: Option<f64>,
    pub(super) p50_ns: Option<Quantile>,
    pub(super) p90_ns: Option<Quantile>,
    pub(super) p99_ns: Option<Quantile>,
    pub(super) hist: Vec<u64>,
}

#[derive(Serialize)]
pub(super) struct Quantile {
    pub(super) low: u64,
    pub(super) high: u64,
}

#[derive(Serialize)]
pub(super) struct Operations {
    pub(super) rows: Vec<Operation>,
}

#[derive(Serialize)]
pub(super) struct Operation {
    pub(super) name: String,
    pub(super) vm: Option<u32>,
    pub(super) level: &'static str,
    pub(super) count: u64,
    pub(super) recorded: bool,
    pub(super) exits: Vec<OperationExit>,
    pub(super) exits_per_operation: Option<f64>,
    pub(super) l2_exits: u64,
    pub(super) to_l1: u64,
    pub(super) ancillary_exits: u64,
    pub(super) ancillary_per_exit: Option<f64>,
    pub(super) path: Option<Path>,
    pub(super) l2_over_l1: Option<f64>,
    pub(super) window: Window,
}

#[derive(Serialize)]
pub(super) struct OperationExit {
    #[serde(flatten)]
    pub(super) reason: Reason,
    pub(super) level: &'static str,
    pub(super) detail: Detail,
    pub(super) ancillary_of: Option<Reason>,
    pub(super) count: u64,
    pub(super) per_operation: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct Path {
    pub(super) unit: &'static str,
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) spread: Option<f64>,
    pub(super) batches: u64,
}

#[derive(Serialize)]
pub(super) struct Window {
    pub(super) wall_ns: u64,
    pub(super) l0: Option<f64>,
    pub(super) l1: Option<f64>,
    pub(super) l2: Option<f64>,
    pub(super) halted: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct Nested {
    pub(super) known: bool,
    pub(super) rows: Vec<NestedRow>,
}

#[derive(Serialize)]
pub(super) struct NestedRow {
    #[serde(flatten)]
    pub(super) reason: Reason,
    pub(super) l2: Tally,
    pub(super) to_l1: u64,
    pub(super) ancillary_per_exit: Option<f64>,
    pub(super) ancillary: Vec<Ancillary>,
}

#[derive(Serialize)]
pub(super) struct Ancillary {
    #[serde(flatten)]
    pub(super) reason: Reason,
    pub(super) detail: Detail,
    #[serde(flatten)]
    pub(super) tally: Tally,
}
