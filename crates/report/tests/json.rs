//! The JSON: valid by the published schema, and exact in what it says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledgers;

use boon::{Compiler, Schemas};
use serde_json::{Value, json};
use vmtax_report::json::Json;
use vmtax_report::{Document, Renderer};

const SCHEMA: &str = include_str!("../../../docs/report.schema.json");

fn rendered(document: &Document) -> (String, Value) {
    let mut out = Vec::new();
    Json.render(document, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let value = serde_json::from_str(&text).unwrap();
    (text, value)
}

/// The published schema, made to refuse fields that it does not name: a field that is written but
/// not documented fails the test.
fn strict_schema() -> Value {
    fn close(value: &mut Value) {
        match value {
            Value::Object(object) => {
                object.values_mut().for_each(close);
                if object.contains_key("required") && object.contains_key("properties") {
                    object.insert("additionalProperties".to_owned(), json!(false));
                }
            }
            Value::Array(array) => array.iter_mut().for_each(close),
            _ => {}
        }
    }
    let mut schema = serde_json::from_str(SCHEMA).unwrap();
    close(&mut schema);
    schema
}

fn validate(value: &Value) -> Result<(), String> {
    let mut schemas = Schemas::new();
    let mut compiler = Compiler::new();
    compiler.add_resource("schema.json", strict_schema()).unwrap();
    let schema = compiler.compile("schema.json", &mut schemas).unwrap();
    schemas.validate(value, schema).map_err(|error| format!("{error:#}"))
}

#[test]
fn every_document_fits_the_schema() {
    for document in [
        ledgers::small(),
        ledgers::nesting(),
        ledgers::lab(),
        ledgers::hostile_lab(),
        ledgers::called(),
        ledgers::counts(),
        ledgers::empty(),
        ledgers::hostile(),
        ledgers::huge(),
        ledgers::busy(),
        ledgers::large(),
    ] {
        let (text, value) = rendered(&document);
        validate(&value).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(text.ends_with("}\n") && text.lines().count() == 1);
    }
}

#[test]
fn functions_of_call_trees_are_rows() {
    let (_, value) = rendered(&ledgers::called());
    let row = |kind: &str, function: &str, own: f64, total: f64| {
        let (code_level, module) = if kind == "cause" { ("L1", "") } else { ("L0", "kvm") };
        json!({
            "operation": "cpuid", "level": "L1", "self": own, "total": total, "share": total / 3_000.0, "calls": 1.0,
            "code_level": code_level, "kind": kind, "function": function, "module": module
        })
    };
    let expected = json!([
        row("cause", "[cpuid]", 0.0, 3_000.0),
        row("function", "kvm_arch_vcpu_ioctl_run", 2_000.0, 3_000.0),
        row("function", "\u{1b}[31m</script>", 1_000.0, 1_000.0),
    ]);
    assert_eq!(value["functions"], expected);
    let mut without = value;
    without["functions"][0].as_object_mut().unwrap().remove("self");
    assert!(validate(&without).is_err());
}

#[test]
fn the_schema_refuses_what_is_not_a_report() {
    let (_, good) = rendered(&ledgers::small());
    let broken = [
        ("/schema", json!("vmtax-report-1")),
        ("/losses/recorder_lost", json!(-1)),
        ("/tables/0/rows/0/level", json!("L3")),
        ("/tables/0/rows/0/p50_ns", json!(5)),
        ("/tables/0/rows/0/hist", json!([1.5])),
        ("/run/vcpus/0/wall_ns", json!(null)),
        ("/run", json!({})),
    ];
    for (place, value) in broken {
        let mut bad = good.clone();
        *bad.pointer_mut(place).unwrap() = value;
        assert!(validate(&bad).is_err(), "{place}");
    }
    let mut bad = good;
    bad["tables"][0]["rows"][0]["surprise"] = json!(1);
    assert!(validate(&bad).is_err());
}

#[test]
fn rows_are_exact() {
    let (_, report) = rendered(&ledgers::small());
    assert_eq!(report["schema"], "vmtax-report-2");
    assert_eq!(report["tool"], json!({"name": "vmtax", "version": "0.1.0"}));
    let vmexit = &report["tables"][0];
    assert_eq!((&vmexit["event"], &vmexit["by"]), (&json!("vmexit"), &json!(["reason", "level"])));
    let mut hist = vec![0; 11];
    hist.push(3);
    assert_eq!(
        vmexit["rows"][3],
        json!({
            "reason": "cpuid", "reason_code": 114, "reason_flags": 0, "isa": "svm", "level": "L1",
            "count": 3, "timed": 3, "time_ns": 3600, "min_ns": 1100, "max_ns": 1300,
            "mean_ns": 1200.0, "stderr_ns": 57.735026918962575,
            "p50_ns": {"low": 1200, "high": 1207},
            "p90_ns": {"low": 1296, "high": 1300},
            "p99_ns": {"low": 1296, "high": 1300},
            "hist": hist,
        })
    );
    assert_eq!(vmexit["total"]["count"], 2405);
    assert_eq!(
        report["tables"][2]["rows"][0]["detail"],
        json!({"kind": "msr-write", "value": 1760, "hex": "0x6e0", "name": "IA32_TSC_DEADLINE"})
    );
    assert_eq!(report["tables"][3]["rows"][0]["cause"], "idle");
    assert_eq!(report["nested"], Value::Null);
}

#[test]
fn operations_are_exact() {
    let (_, report) = rendered(&ledgers::lab());
    let rows = report["operations"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    let none = json!({"kind": "none", "value": 0, "hex": "0x0", "name": null});
    let cpuid = json!({"reason": "cpuid", "reason_code": 114, "reason_flags": 0, "isa": "svm"});
    let ancillary = |reason: &str, code: u32, detail: &Value, count: u64| {
        json!({
            "reason": reason, "reason_code": code, "reason_flags": 0, "isa": "svm", "level": "L1",
            "detail": detail, "ancillary_of": cpuid, "count": count,
            "per_operation": count as f64 / 200.0,
        })
    };
    let debugctl =
        json!({"kind": "msr-read", "value": 473, "hex": "0x1d9", "name": "IA32_DEBUGCTL"});
    assert_eq!(
        rows[4],
        json!({
            "name": "cpuid", "vm": 101, "level": "L2", "count": 200,
            "exits": [
                {
                    "reason": "cpuid", "reason_code": 114, "reason_flags": 0, "isa": "svm", "level": "L2",
                    "detail": {"kind": "cpuid", "value": 0, "hex": "0x0", "name": null},
                    "ancillary_of": null, "count": 200, "per_operation": 1.0,
                },
                ancillary("vmload", 130, &none, 400),
                ancillary("msr", 124, &debugctl, 200),
                ancillary("vmrun", 128, &none, 200),
                ancillary("vmsave", 131, &none, 200),
            ],
            "recorded": true, "exits_per_operation": 6.0, "l2_exits": 200, "to_l1": 200, "ancillary_exits": 1000,
            "ancillary_per_exit": 5.0,
            "path": {
                "unit": "instructions", "median": 24120.25, "min": 24119.0, "max": 24150.0,
                "spread": 31.0 / 24120.25, "tolerance": 0.005, "batches": 3,
            },
            "l2_over_l1": 24120.25 / 1036.0,
            "window": {
                "wall_ns": 4_900_000, "l0": 3_400_000.0 / 4_900_000.0, "l1": 1_490_000.0 / 4_900_000.0,
                "l2": 10_000.0 / 4_900_000.0, "halted": 0.0,
            },
        })
    );
    let rdtsc = &rows[2];
    assert_eq!((&rdtsc["exits"], &rdtsc["exits_per_operation"]), (&json!([]), &json!(0.0)));
    assert_eq!((&rdtsc["window"]["l0"], &rdtsc["l2_over_l1"]), (&Value::Null, &Value::Null));
    assert_eq!(rows[3]["path"], Value::Null);
    assert_eq!(report["run"]["vcpus"][3]["l2_ns"], 10_000);
    // Asked for, of a recording that has none; and not asked for.
    assert_eq!(rendered(&ledgers::empty()).1["operations"], json!({"rows": []}));
    assert_eq!(rendered(&ledgers::small()).1["operations"], Value::Null);
}

#[test]
fn the_run_shows_the_time_split_and_missing_events() {
    let (_, report) = rendered(&ledgers::small());
    let run = &report["run"];
    assert_eq!((&run["source"], &run["tool"]), (&json!("trace.dat"), &json!("trace-cmd 3.1.6")));
    assert_eq!((&run["accelerator"], &run["complete"]), (&json!("unknown"), &json!(false)));
    assert_eq!((&run["start_ns"], &run["end_ns"]), (&json!(0), &json!(1_000_000_000)));
    assert_eq!(run["vms"], json!([{"id": 1234, "name": "qemu-system-x86", "inferred": false}]));
    let mut vcpu = run["vcpus"][1].clone();
    // Parts of versions since then are 0 there.
    let later = vmtax_events::TimeRow::PARTS.iter().skip(7);
    later.for_each(|part| {
        assert_eq!(vcpu.as_object_mut().unwrap().remove(part.column), Some(json!(0)))
    });
    assert_eq!(
        vcpu,
        json!({
            "vm": 1234, "vcpu": 1, "wall_ns": 900_000_000, "guest_ns": 395_000_000,
            "l2_ns": 0, "exit_kernel_ns": 0, "exit_user_ns": 0, "halted_ns": 500_000_000, "preempted_ns": 0,
            "unknown_ns": 5_000_000, "tax": 0.0, "contention": 0.0,
        })
    );
    // Wall time of both, less 500 ms halted and 5 ms unknown.
    assert_eq!(run["tax"].as_f64(), Some(85_606_600.0 / 1_295_000_000.0));
    assert_eq!(run["contention"].as_f64(), Some(1_000_000.0 / 1_295_000_000.0));
    assert_eq!(
        report["losses"],
        json!({
            "recorder_lost": 47, "recorder_gaps": 0, "unpaired_exits": 1, "unpaired_entries": 0,
            "out_of_order": 0, "undecodable": 0, "sampled": 0, "details_dropped": 0, "accesses_dropped": 0,
            "threads_dropped": 0, "vms_merged": 0, "missing": [],
            "truncated": ["trace.dat ends inside the record at offset 4096."],
            "notes": ["The importer skipped 3 host events."],
        })
    );
}

#[test]
fn unknown_values_are_null() {
    let (_, report) = rendered(&ledgers::counts());
    let row = &report["tables"][0]["rows"][0];
    assert_eq!(
        (&row["count"], &row["timed"], &row["time_ns"]),
        (&json!(143_258), &json!(0), &json!(0))
    );
    for field in ["min_ns", "max_ns", "mean_ns", "stderr_ns", "p50_ns", "p90_ns", "p99_ns"] {
        assert_eq!(row[field], Value::Null, "{field}");
    }
    assert_eq!(row["hist"], json!([]));
    for field in ["tool", "hostname", "cpus", "tax"] {
        assert_eq!(report["run"][field], Value::Null, "{field}");
    }
}

#[test]
fn nested_rows_hold_their_ancillary_exits() {
    let (_, report) = rendered(&ledgers::nesting());
    assert_eq!(report["run"]["accelerator"], "emulated:QEMU TCG");
    let nested = &report["nested"];
    assert_eq!(nested["known"], true);
    let row = &nested["rows"][0];
    assert_eq!((&row["reason"], &row["to_l1"]), (&json!("cpuid"), &json!(100)));
    assert_eq!(row["ancillary_per_exit"], 2.5);
    let first = &row["ancillary"][0];
    assert_eq!((&first["reason"], &first["count"]), (&json!("msr"), &json!(150)));
    assert_eq!(first["detail"]["name"], "IA32_DEBUGCTL");
}

#[test]
fn huge_integers_are_exact() {
    let (text, report) = rendered(&ledgers::huge());
    let row = &report["tables"][0]["rows"][0];
    assert_eq!(row["count"].as_u64(), Some(u64::MAX));
    assert_eq!(row["detail"]["value"].as_u64(), Some(u64::MAX));
    assert_eq!(row["vcpu"], Value::Null);
    assert!(row.as_object().unwrap().contains_key("vcpu"), "asked for, not known");
    assert!(text.contains("\"recorder_lost\":18446744073709551615"));
}

#[test]
fn hostile_strings_come_back_whole_but_do_not_act_on_a_terminal() {
    let (text, report) = rendered(&ledgers::hostile());
    assert_eq!(report["run"]["source"], ledgers::EVIL);
    assert_eq!(report["run"]["vms"][0]["name"], format!("=1+1{}", ledgers::EVIL));
    assert_eq!(text.trim_end_matches('\n').find(vmtax_report::names::is_hidden), None);
}
