//! The objects of the JSON, field for field as `docs/report.schema.json` has them.
//!
//! Integers are exact. An absent field is not a column of the table; `null` means unknown.

use serde::Serialize;

use crate::table::{self, Cell};

#[derive(Serialize)]
pub(super) struct ReportJson<'a> {
    pub(super) schema: &'static str,
    pub(super) tool: ToolJson<'a>,
    pub(super) run: RunJson<'a>,
    pub(super) operations: Option<OperationsJson>,
    pub(super) tables: Vec<TableJson>,
    pub(super) nested: Option<NestedJson>,
    /// How a lab run keeps its budget, when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) budget: Option<BudgetJson<'a>>,
    /// Functions of call trees, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) functions: Option<table::Table>,
    pub(super) losses: &'a vmtax_events::Losses,
}

#[derive(Serialize)]
pub(super) struct BudgetJson<'a> {
    pub(super) file: &'a str,
    pub(super) violations: u64,
    pub(super) notes: &'a [String],
    pub(super) numbers: table::Table,
}

#[derive(Serialize)]
pub(super) struct ToolJson<'a> {
    pub(super) name: &'static str,
    pub(super) version: &'a str,
}

#[derive(Serialize)]
pub(super) struct RunJson<'a> {
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
    pub(super) vms: Vec<VmJson>,
    pub(super) complete: bool,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) vcpus: table::Table,
    pub(super) tax: Option<f64>,
    pub(super) contention: Option<f64>,
    pub(super) taken_by: Vec<TakerJson<'a>>,
}

#[derive(Serialize)]
pub(super) struct VmJson {
    pub(super) id: u32,
    pub(super) name: Option<String>,
    pub(super) inferred: bool,
}

#[derive(Serialize)]
pub(super) struct TakerJson<'a> {
    pub(super) name: &'a str,
    pub(super) vm: Option<u32>,
    pub(super) vcpu: Option<u32>,
    pub(super) own: bool,
    pub(super) recorder: bool,
    pub(super) count: u64,
    pub(super) time_ns: u64,
}

#[derive(Serialize)]
pub(super) struct TableJson {
    pub(super) event: &'static str,
    pub(super) by: Vec<&'static str>,
    pub(super) rows: table::Table,
    pub(super) total: Cell,
}

#[derive(Serialize)]
pub(super) struct OperationsJson {
    pub(super) rows: table::Table,
}

#[derive(Serialize)]
pub(super) struct NestedJson {
    pub(super) known: bool,
    pub(super) rows: table::Table,
}
