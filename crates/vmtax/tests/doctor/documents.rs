//! docs/doctor-settings.md shows the table of rules; the schemas fit what is written.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use vmtax_analyse::audit::{Isas, RULES};
use vmtax_analyse::remedy::REMEDIES;
use vmtax_report::doctor::words;
use vmtax_report::explain::whole_trial;

use crate::captures::unpack;
use crate::check::stdout;
use crate::root::MadeRoot;

fn docs(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// The table between the two marks of the document.
fn table() -> String {
    let mut text =
        String::from("| rule, check | of | read from | causes | wanted |\n|---|---|---|---|---|\n");
    for rule in RULES {
        let words = words::rule(rule.id);
        let source = words.source.map(|source| format!(" *{source}*")).unwrap_or_default();
        writeln!(
            text,
            "| **{}** | | {} | | {}. {}.{source} |",
            rule.id, words.title, words.wanted, words.why
        )
        .unwrap();
        for check in rule.checks {
            let causes: Vec<&str> = check.causes.iter().map(|cause| cause.name()).collect();
            let mark = if check.confidential { " †" } else { "" };
            writeln!(
                text,
                "| `{}`{mark} | {}{} | {} | {} | |",
                check.id.name(),
                check.place(),
                match check.isas {
                    Isas::Any => "",
                    Isas::X86 => ", x86",
                    Isas::Arm64 => ", arm64",
                },
                check.files,
                causes.join(", ")
            )
            .unwrap();
        }
    }
    text
}

/// Every remedy with its trial.
fn remedies() -> String {
    let mut text = String::from("| remedy | where | what to do | trial |\n|---|---|---|---|\n");
    for row in REMEDIES {
        let (trial, action) = (whole_trial(&row.id.trial()), row.action.replace('|', "\\|"));
        writeln!(text, "| `{}` | {} | {action} | {trial} |", row.id, row.place).unwrap();
    }
    text
}

/// The document has this between its two marks.
fn holds(name: &str, mark: &str, table: &str) {
    let path = docs(name);
    let text = fs::read_to_string(&path).unwrap();
    let (start, end) = (format!("<!-- {mark} -->\n"), format!("<!-- end of {mark} -->"));
    let (before, rest) = text.split_once(&start).unwrap();
    let (table_there, after) = rest.split_once(&end).unwrap();
    if table_there == table {
        return;
    }
    if std::env::var_os("VMTAX_WRITE_DOCS").is_some() {
        fs::write(&path, format!("{before}{start}{table}{end}{after}")).unwrap();
        return;
    }
    panic!(
        "docs/{name} is not as the table is; VMTAX_WRITE_DOCS=1 cargo test -p vmtax --test doctor documents writes it"
    );
}

#[test]
fn the_document_has_the_table_of_rules() {
    holds("doctor-settings.md", "rules", &table());
}

#[test]
fn the_document_has_every_remedy_with_its_trial() {
    holds("remedies.md", "remedies", &remedies());
}

/// A command of vmtax in the repository's folder, and what it prints.
fn shown(words: &str) -> String {
    let printed = stdout(&docs(".."), words);
    format!("```sh\nvmtax {words}\n```\n```\n{}```\n", String::from_utf8(printed).unwrap())
}

/// A user's way from the symptom to what its remedy changed, by two recordings of the repository.
#[test]
fn the_document_has_the_session_of_a_remedy() {
    let [before, after] =
        ["ide", "virtio"].map(|disk| format!("captures/cases/remedy-dev-disk-{disk}/run"));
    holds("remedies.md", "symptom", &shown(&format!("explain {before}")));
    let change = format!("explain --before {before} --after {after} --operations 200");
    holds("remedies.md", "change", &shown(&change));
}

/// A published schema, made to refuse fields that it does not name.
fn validate(schema: &str, document: &serde_json::Value) {
    fn close(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(object) => {
                object.values_mut().for_each(close);
                if object.contains_key("required") && object.contains_key("properties") {
                    object.insert("additionalProperties".to_owned(), false.into());
                }
            }
            serde_json::Value::Array(array) => array.iter_mut().for_each(close),
            _ => {}
        }
    }
    let mut schema: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(docs(schema)).unwrap()).unwrap();
    close(&mut schema);
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    compiler.add_resource("schema.json", schema).unwrap();
    let compiled = compiler.compile("schema.json", &mut schemas).unwrap();
    schemas.validate(document, compiled).map_err(|error| format!("{error:#}")).unwrap();
}

#[test]
fn the_json_fits_its_schemas() {
    let folder = tempfile::tempdir().unwrap();
    let recording = unpack("amd-cpuid", "zstd.perf.data.zst");
    fs::copy(recording, folder.path().join("recording")).unwrap();
    let bad = MadeRoot::intel()
        .with("/sys/module/kvm_intel/parameters/enable_apicv", "N\n")
        .without("/proc/4711/smaps")
        .without("/sys/kernel/debug");
    for (name, root) in [
        ("intel", MadeRoot::intel()),
        ("amd", MadeRoot::amd()),
        ("bad", bad),
        ("none", MadeRoot::default()),
    ] {
        root.write(&folder.path().join(name));
        for (words, schema) in [
            (format!("doctor --root {name} --format json"), "doctor.schema.json"),
            (
                format!("doctor --root {name} --guest-root {name} --format json"),
                "doctor.schema.json",
            ),
            (format!("doctor recording --root {name} --format json"), "doctor.schema.json"),
            (format!("doctor --pages --root {name} --format json"), "pages.schema.json"),
        ] {
            let document = serde_json::from_slice(&stdout(folder.path(), &words)).unwrap();
            validate(schema, &document);
        }
    }
    let document = serde_json::from_slice(&stdout(folder.path(), INSIDE)).unwrap();
    validate("host-pages.schema.json", &document);
    // Whatever this machine is, doctor says the same of it.
    let doctor: serde_json::Value =
        serde_json::from_slice(&stdout(folder.path(), "doctor --format json")).unwrap();
    let findings = doctor["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["check"] == "host-pages").unwrap();
    let expected = match document["verdict"].as_str().unwrap() {
        "small" | "mixed" => ["costs you", "unknown"],
        "large" => ["ok", "unknown"],
        "no-vm" => ["not applicable"; 2],
        _ => ["unknown"; 2],
    };
    assert!(expected.contains(&found["verdict"].as_str().unwrap()), "{document} {found}");
}

const INSIDE: &str = "doctor --host-pages --format json";

#[test]
fn ids_are_plain_and_stand_once() {
    let mut ids: Vec<&str> =
        RULES.iter().flat_map(|rule| rule.checks).map(|check| check.id.name()).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all);
    let plain =
        |id: &&str| id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    assert!(ids.iter().all(plain) && RULES.iter().all(|rule| plain(&rule.id.name())));
    // One row for each row of the list that the table was made from, two for how VMs are started, and two of arm64.
    assert_eq!(RULES.len(), 28);
}
