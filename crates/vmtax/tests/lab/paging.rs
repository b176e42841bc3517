//! The suite `paging`: accesses of guests of a real KVM, and what they cost simulated processors.
//!
//! Misses of the first TLB and of both are those of cachegrind, whose caches are TLBs when their lines are pages. It ran programs with the same loops, and
//! counted by function; their `ret` is left out here:
//!
//! ```text
//! valgrind --tool=cachegrind --cache-sim=yes --I1=65536,8,64 --D1=294912,72,4096 --LL=12582912,12,4096     zen4
//! valgrind --tool=cachegrind --cache-sim=yes --I1=65536,8,64 --D1=262144,64,4096 --LL=8388608,8,4096       zen3
//! valgrind --tool=cachegrind --cache-sim=yes --I1=65536,8,64 --D1=262144,4,4096 --LL=8388608,16,4096       sapphire-rapids
//! valgrind --tool=cachegrind --cache-sim=yes --I1=65536,8,64 --D1=196608,48,4096 --LL=5242880,5,4096       neoverse-n1
//! ```
//! Sapphire Rapids has a TLB for stores, which cachegrind has not: there the 64 of `matmul`, all in one page, miss once.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use vmtax_analyse::explain::SIMULATED_WALKS;

use crate::run::{json, refused, row};

fn on<'a>(row: &'a Value, processor: &str) -> &'a Value {
    on_of(&row["paging"], processor)
}

/// The same of an instruction.
fn on_of<'a>(paging: &'a Value, processor: &str) -> &'a Value {
    let all = paging["processors"].as_array().unwrap();
    all.iter().find(|one| one["name"] == processor).unwrap_or_else(|| panic!("{paging}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

/// Misses of the first TLB and of both.
type Misses = (u64, u64);

const PROCESSORS: [&str; 4] = ["zen4", "zen3", "sapphire-rapids", "neoverse-n1"];

/// Loads and stores, then misses on each processor.
const CACHEGRIND: [(&str, u64, [Misses; 4]); 4] = [
    ("scan", 524_288, [(1_024, 1_024); 4]),
    ("chase", 524_288, [(524_288, 524_288); 4]),
    ("random", 65_536, [(64_969, 41_700), (65_033, 49_459), (65_039, 49_498), (65_166, 55_443)]),
    (
        "matmul",
        524_352,
        [(256_320, 256_320), (256_320, 256_320), (256_257, 256_257), (256_320, 256_320)],
    ),
];

const OPERATIONS: &str = "scan-4k-on-4k,scan-4k-on-2m-32m,scan-2m-on-4k,scan-2m-on-2m,chase-4k-on-4k,chase-2m-on-2m,random-4k-on-4k,\
                          random-2m-on-4k,matmul-4k-on-4k,matmul-4k-on-4k-24g,matmul-4k-on-2m,matmul-2m-on-4k,matmul-2m-on-2m";

#[test]
fn simulated_tlbs_miss_as_cachegrinds_do_and_two_runs_are_equal() {
    let run = ["lab", "run", "--operation", OPERATIONS];
    let report = json(&run);
    for (pattern, accesses, misses) in CACHEGRIND {
        for (mapped, pages) in [
            ("4k-on-4k", "4K on 4K"),
            ("4k-on-4k-24g", "4K on 4K"),
            ("4k-on-2m", "4K on 2M"),
            ("4k-on-2m-32m", "4K on 2M"),
            ("2m-on-4k", "2M on 4K"),
        ] {
            let name = format!("{pattern}-{mapped}");
            if !OPERATIONS.split(',').any(|one| one == name) {
                continue;
            }
            let row = row(&report, &name);
            assert_eq!(row["paging"]["accesses"], accesses, "{name}");
            let found = row["paging"]["pages"].as_array().unwrap();
            assert_eq!((found.len(), &found[0]["sizes"]), (1, &pages.into()), "{name}");
            // Nothing of it faults.
            assert!(!row["exits"].to_string().contains("npf"), "{row}");
            for (processor, (first, both)) in PROCESSORS.into_iter().zip(misses) {
                let on = on(row, processor);
                // Where the walker is not known, walks are all that is.
                let is_timed = processor.starts_with("zen");
                assert_eq!(on["references_per_walk"].is_null(), !is_timed, "{name} {processor}");
                assert_eq!(on["cycles"].is_null(), !is_timed, "{name} {processor}");
                assert_eq!(
                    (&on["l1_misses"], &on["walks"]),
                    (&first.into(), &both.into()),
                    "{name} {processor}"
                );
            }
        }
    }
    // Large pages on both sides: one entry for each 2 MiB.
    for (name, walks) in [("scan-2m-on-2m", 2), ("chase-2m-on-2m", 16), ("matmul-2m-on-2m", 10)] {
        assert_eq!(on(row(&report, name), "zen4")["walks"], walks, "{name}");
    }
    // What costs is where the entries are, not how many levels there are.
    let of = |name: &str| on(row(&report, name), "zen4");
    let refs = |name: &str| number(&of(name)["references_per_walk"]);
    assert!(refs("matmul-4k-on-4k") < 2.1 && refs("matmul-4k-on-4k-24g") > 2.9);
    let cycles = |name: &str| number(&of(name)["walk_cycles"]) / number(&of(name)["walks"]);
    assert!(cycles("matmul-4k-on-4k-24g") > 1.5 * cycles("matmul-4k-on-2m"));
    // `explain` quotes the run.
    let quoted = SIMULATED_WALKS;
    let steps = |name: &str| number(&of(name)["walks_per_operation"]);
    assert!((steps("matmul-4k-on-4k") - quoted.small).abs() < 5e-5);
    assert!((steps("matmul-2m-on-2m") - quoted.large).abs() < 5e-6);
    assert!((refs("matmul-4k-on-4k") - quoted.contiguous).abs() < 5e-3);
    assert!((refs("matmul-4k-on-4k-24g") - quoted.scattered).abs() < 5e-3);
    // Its instructions: 64 columns go through 4,000 pages, the vector through 4 for each, and each has a result.
    let instructions =
        row(&report, "matmul-4k-on-4k")["paging"]["instructions"].as_array().unwrap();
    let walks = |one: &Value| {
        (one["text"].clone(), one["accesses"].clone(), on_of(one, "zen4")["walks"].clone())
    };
    let walks: Vec<(Value, Value, Value)> = instructions.iter().map(walks).collect();
    let expected = [
        ("movss xmm0,[rsi]", 262_144, 256),
        ("mulss xmm0,[rdi]", 262_144, 256_000),
        ("movss [r11+r9*4],xmm1", 64, 64),
    ];
    let expected = expected
        .map(|(text, all, walks)| (Value::from(text), Value::from(all), Value::from(walks)));
    assert_eq!(walks, expected);
    let again = json(&run);
    assert_eq!(report["operations"], again["operations"]);
}

/// 1,024 packets of 64 lines, in 512 steps of 4 instructions each, and as many of a copy.
#[test]
fn events_of_a_bounce_buffer_are_counted() {
    const NAMES: [&str; 3] =
        ["packet-2m-on-2m", "packet-bounced-2m-on-2m", "packet-bounced-2m-on-4k"];
    let report = json(&["lab", "run", "--operation", &NAMES.join(",")]);
    for (name, [instructions, branches, accesses, data, walks]) in NAMES.into_iter().zip([
        [2_102_284, 525_312, 524_288, 65_536, 2],
        [2_630_668, 525_312, 1_572_864, 131_072, 4],
        [2_630_668, 525_312, 1_572_864, 131_072, 2048],
    ]) {
        let paging = &row(&report, name)["paging"];
        let executed = (&paging["instructions_executed"], &paging["branches"], &paging["accesses"]);
        assert_eq!(
            executed,
            (&Value::from(instructions), &Value::from(branches), &Value::from(accesses)),
            "{name}"
        );
        for processor in ["zen4", "zen3"] {
            let on = on_of(paging, processor);
            assert_eq!(
                (&on["data_misses"], &on["walks"]),
                (&Value::from(data), &Value::from(walks)),
                "{name}"
            );
        }
    }
}

/// Kept, as its KVM has to be built; captures/lab-memory/README.md says how.
#[test]
fn private_memory_makes_large_pages_of_the_guest_worth_nothing() {
    let run =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/lab-memory/amd-6.12-paging");
    let report = json(&["report", run.to_str().unwrap()]);
    let (_, accesses, misses) = CACHEGRIND[3];
    for (name, sizes) in
        [("matmul-4k-on-private", "4K on 4K"), ("matmul-2m-on-private", "2M on 4K")]
    {
        let paging = &row(&report, name)["paging"];
        assert_eq!(paging["accesses"], accesses, "{name}");
        let pages = serde_json::json!([{"sizes": sizes, "pages_4k": 4005}]);
        assert_eq!(paging["pages"], pages, "{name}");
        for (processor, (first, both)) in PROCESSORS.into_iter().zip(misses) {
            let on = on_of(paging, processor);
            let expected = (&first.into(), &both.into());
            assert_eq!((&on["l1_misses"], &on["walks"]), expected, "{name} {processor}");
        }
    }
    let small = |name: &str| number(&on(row(&report, name), "zen4")["references_per_walk"]);
    assert_eq!(small("matmul-4k-on-private"), small("matmul-4k-on-4k"));
}

#[test]
fn private_memory_that_a_kernel_lacks_is_skipped() {
    let said = crate::run::printed(&["lab", "run", "--operation", "matmul-4k-on-private"]);
    assert!(said.contains("CONFIG_KVM_SW_PROTECTED_VM"), "{said}");
    assert!(said.contains("skipped: matmul-4k-on-private"), "{said}");
}

/// A static program of matmul.c, by these flags of gcc.
fn program(name: &str, flags: &[&str]) -> String {
    program_of("matmul.c", name, flags)
}

fn program_of(source: &str, name: &str, flags: &[&str]) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join(format!("{name}-{}", std::process::id()));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab").join(source);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-o"]).arg(&program).arg(&path).args(flags);
    assert!(gcc.status().expect("gcc").success(), "{source} does not compile");
    program.to_str().unwrap().to_owned()
}

fn of_program(command: &str) -> [&str; 6] {
    ["lab", "run", "--suite", "paging", "--program", command]
}

fn of_process(command: &str) -> [&str; 8] {
    ["lab", "run", "--suite", "paging", "--guest", "linux", "--program", command]
}

/// As in a bare guest: its kernel may evict a few entries of TLBs, and counts apart. When its clock interrupts depends on the boot.
#[test]
fn a_process_of_a_linux_guest_walks_as_cachegrind_says() {
    const EVICTED_MOST: u64 = 32;
    let path = program("process", &["-static"]);
    let report = json(&of_process(&path));
    let (_, accesses, misses) = CACHEGRIND[3];
    for (pages, sizes) in [
        ("4k-on-4k", "4K on 4K"),
        ("4k-on-2m", "4K on 2M"),
        ("2m-on-4k", "2M on 4K"),
        ("2m-on-2m", "2M on 2M"),
        ("2m-on-thp", "2M on 2M"),
    ] {
        let paging = &row(&report, &format!("process-{pages}"))["paging"];
        assert_eq!(paging["accesses"], accesses, "{pages}");
        assert_eq!(paging["instructions_executed"], 64 * (4096 * 7 + 8) + 1, "{pages}");
        assert_eq!(paging["branches"], 64 * (4096 + 1), "{pages}");
        let found = serde_json::json!([{"sizes": sizes, "pages_4k": 4005}]);
        assert_eq!(paging["pages"], found, "{pages}");
        for (processor, (first, both)) in PROCESSORS.into_iter().zip(misses) {
            let on = on_of(paging, processor);
            let expected = if sizes == "2M on 2M" { (0, 0) } else { (first, both) };
            for (what, expected) in [("l1_misses", expected.0), ("walks", expected.1)] {
                let found = on[what].as_u64().unwrap();
                assert!(
                    (expected..expected + EVICTED_MOST).contains(&found),
                    "{pages} {processor}: {what} {found}, and {expected} by cachegrind"
                );
            }
        }
        if sizes != "2M on 2M" {
            let references = number(&on_of(paging, "zen4")["references_per_walk"]);
            assert!((references - 2.0).abs() < 5e-3, "{pages} {references}");
            let [walks] = paging["instructions"].as_array().unwrap().as_slice() else {
                panic!("{paging}")
            };
            let text = walks["text"].as_str().unwrap();
            assert!(
                text.starts_with("multiply+0x") && text.ends_with(" mulss xmm0,[rdi]"),
                "{text}"
            );
            assert_eq!(on_of(walks, "zen4")["walks"], 256_000);
        }
    }
    fs::remove_file(path).unwrap();
}

/// 512 pages are touched, and again when they are shared with a child, which itself is not counted: each store finds a page that its TLB does not have.
#[test]
fn pages_that_a_process_has_copied_are_walked_again() {
    let path = program_of("child.c", "child", &["-static-pie"]);
    let report = json(&of_process(&path));
    for pages in ["4k-on-4k", "4k-on-2m"] {
        let paging = &row(&report, &format!("process-{pages}"))["paging"];
        let instructions = paging["instructions"].as_array().unwrap();
        let of = |one: &&Value| one["text"].as_str().unwrap().starts_with("touch+0x");
        let stores = instructions.iter().find(of).unwrap_or_else(|| panic!("{paging}"));
        assert_eq!(stores["accesses"], 2 * 512, "{pages}");
        for processor in PROCESSORS {
            assert_eq!(on_of(stores, processor)["walks"], 2 * 512, "{pages} {processor}");
        }
        // It has zeroed and copied them.
        let kernel = &paging["kernel"];
        assert!(kernel["accesses"].as_u64() > Some(3 * 512 * 512), "{kernel}");
        assert!(kernel["instructions_executed"].as_u64() > kernel["accesses"].as_u64(), "{kernel}");
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn a_process_that_fails_is_not_measured() {
    let (fails, dynamic) = (program("fails-there", &["-static"]), program("dynamic-there", &[]));
    for (command, expected, said) in [
        (
            format!("{fails} you 3"),
            7,
            "process-4k-on-4k: the program exited with code 3; its last line: the product is 8192 for you",
        ),
        (format!("{fails} you 3 aborts"), 7, "the program raised signal 6"),
        (dynamic.clone(), 4, "is linked dynamically; link it with -static"),
    ] {
        let (code, errors) = refused(&of_process(&command));
        assert_eq!(code, expected, "{errors}");
        assert!(errors.contains(said), "{errors}");
        // It is not run where it cannot but fail again.
        let skipped = "process-2m-on-2m: not run, as another operation of the program failed";
        assert_eq!(errors.contains(skipped), code == 7, "{errors}");
    }
    let (code, errors) = refused(&["lab", "run", "--suite", "paging", "--guest", "linux"]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("--program <COMMAND>"), "{errors}");
    [fails, dynamic].iter().for_each(|path| fs::remove_file(path).unwrap());
}

/// Its marked part is the loop of `matmul`, so that cachegrind's counts are the same; they have the instructions of 64 columns of 4,096 rows.
#[test]
fn a_marked_part_of_a_program_walks_as_cachegrind_says() {
    let path = program("marked", &["-static"]);
    let report = json(&of_program(&path));
    let (_, accesses, misses) = CACHEGRIND[3];
    for (pages, sizes) in [
        ("4k-on-4k", "4K on 4K"),
        ("4k-on-4k-24g", "4K on 4K"),
        ("4k-on-2m", "4K on 2M"),
        ("2m-on-4k", "2M on 4K"),
        ("2m-on-2m", "2M on 2M"),
        ("2m-on-thp", "2M on 2M"),
    ] {
        let row = row(&report, &format!("program-{pages}"));
        let paging = &row["paging"];
        assert_eq!(paging["accesses"], accesses, "{pages}");
        // And the MOV of the second mark.
        assert_eq!(paging["instructions_executed"], 64 * (4096 * 7 + 8) + 1, "{pages}");
        assert_eq!(paging["branches"], 64 * (4096 + 1), "{pages}");
        // 4,000 of the matrix, 4 of the vector, 1 of the results.
        let found = paging["pages"].as_array().unwrap();
        assert_eq!(found.len(), 1, "{pages}");
        assert_eq!(found[0], serde_json::json!({"sizes": sizes, "pages_4k": 4005}), "{pages}");
        assert!(!row["exits"].to_string().contains("npf"), "{row}");
        for (processor, (first, both)) in PROCESSORS.into_iter().zip(misses) {
            let on = on_of(paging, processor);
            // Where loads have a TLB of their own, the stores before leave it without the 8 large pages of the matrix and that of the vector.
            let warm = if processor == "sapphire-rapids" { 9 } else { 0 };
            let both = if sizes == "2M on 2M" { (warm, 0) } else { (first, both) };
            assert_eq!(
                (&on["l1_misses"], &on["walks"]),
                (&both.0.into(), &both.1.into()),
                "{pages} {processor}"
            );
        }
        if sizes != "2M on 2M" {
            for processor in ["zen4", "zen3"] {
                let expected = if pages.ends_with("24g") { SIMULATED_WALKS.scattered } else { 2.0 };
                let references = number(&on_of(paging, processor)["references_per_walk"]);
                assert!((references - expected).abs() < 5e-3, "{pages} {processor} {references}");
            }
            let [walks] = paging["instructions"].as_array().unwrap().as_slice() else {
                panic!("{paging}")
            };
            let text = walks["text"].as_str().unwrap();
            let (function, text) = text.split_once(' ').unwrap();
            assert!(function.starts_with("multiply+0x"), "{function}");
            assert_eq!((text, &walks["accesses"]), ("mulss xmm0,[rdi]", &262_144.into()));
            assert_eq!(on_of(walks, "zen4")["walks"], 256_000);
        }
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn a_whole_program_is_the_same_in_two_runs() {
    let path = program("whole", &["-static-pie", "-DWHOLE", "-fno-tree-vectorize"]);
    let run = of_program(&path);
    let report = json(&run);
    let accesses = |name: &str| row(&report, name)["paging"]["accesses"].as_u64().unwrap();
    // Beside the product, which cachegrind's counts have, it writes the matrix.
    let all = accesses("program-4k-on-4k");
    assert!(all > CACHEGRIND[3].1 + 4_096_000 && all < CACHEGRIND[3].1 + 4_200_000, "{all}");
    assert_eq!(all, accesses("program-2m-on-2m"));
    assert_eq!(report["operations"], json(&run)["operations"]);
    let notes = report["losses"]["notes"].to_string();
    assert!(notes.contains(&format!("he program is {path} (CRC-32 ")), "{notes}");
    fs::remove_file(path).unwrap();
}

#[test]
fn programs_that_cannot_run_are_refused() {
    let (fails, dynamic) = (program("fails", &["-static"]), program("dynamic", &[]));
    let high = program("high", &["-static", "-Wl,-Ttext-segment=0x50000000"]);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/matmul.c");
    for (command, expected, said) in [
        (
            format!("{fails} you 3"),
            7,
            "the program exited with code 3; its last line: the product is 8192 for you",
        ),
        (format!("{fails} you 3 aborts"), 7, "the program raised signal 6"),
        (dynamic.clone(), 4, "is linked dynamically; link it with -static"),
        (
            high.clone(),
            4,
            "has a segment at 0x50000000, and programs are loaded from 0x200000 to 0x3a00000; link it with -static-pie",
        ),
        (source.to_str().unwrap().to_owned(), 4, "is no program of x86-64 (a 64-bit ELF file)"),
        ("no/such/program".to_owned(), 3, "no/such/program: cannot read the program"),
    ] {
        let (code, errors) = refused(&of_program(&command));
        assert_eq!(code, expected, "{errors}");
        assert!(errors.contains(said), "{errors}");
    }
    let (code, errors) = refused(&["lab", "run", "--program", &fails]);
    assert_eq!(code, 2, "{errors}");
    assert!(
        errors
            .contains("--program: takes the place of patterns; give --suite paging, and no other"),
        "{errors}"
    );
    for (flags, said) in [
        (&["--program", " "][..], "--program: names no program"),
        (&["--program", &fails, "--batches", "9"], "'--batches <N>'"),
    ] {
        let (code, errors) = refused(&[&["lab", "run", "--suite", "paging"], flags].concat());
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(said), "{errors}");
    }
    [fails, dynamic, high].iter().for_each(|path| fs::remove_file(path).unwrap());
}

/// What a process's frames in this order give: the counts of contiguous frames, and more entries where each is in a region of its own.
#[test]
fn frames_are_those_of_a_layout() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layout.csv").to_str().unwrap().to_owned();
    let run = ["lab", "run", "--operation", "matmul-4k-on-4k-24g", "--layout", &file];
    let references = |frames: String| {
        fs::write(&file, format!("frame,pages\n{frames}")).unwrap();
        let report = json(&run);
        let on = on_of(&row(&report, "matmul-4k-on-4k-24g")["paging"], "zen4").clone();
        assert_eq!(on["walks"], 256_320);
        assert!(report["losses"]["notes"].to_string().contains(&file), "{report}");
        number(&on["references_per_walk"])
    };
    let contiguous = references("0,8192\n".to_owned());
    assert!((contiguous - SIMULATED_WALKS.contiguous).abs() < 5e-3, "{contiguous}");
    let apart = references((0..8192).map(|page| format!("{},1\n", page * 512)).collect());
    assert!(apart > 2.9, "{apart}");
    for (text, code, said) in [
        ("frame,pages\n0,8191\n", 4, "has 8191 frames, and an operation of the run has 8192"),
        ("0,8192\n", 4, "does not begin with the line frame,pages; `vmtax lab layout PID` writes"),
    ] {
        fs::write(&file, text).unwrap();
        let (found, errors) = refused(&run);
        assert_eq!(found, code, "{errors}");
        assert!(errors.contains(said) && errors.contains(&file), "{errors}");
    }
    fs::remove_file(&file).unwrap();
    let (code, errors) = refused(&run);
    assert_eq!(code, 3, "{errors}");
    assert!(errors.contains("layout.csv: cannot read the frames"), "{errors}");
}

#[test]
fn the_layout_of_a_process_is_written() {
    let own = std::process::id().to_string();
    let output = crate::run::output(&["lab", "layout", &own]);
    if output.status.success() {
        let text = String::from_utf8(output.stdout).unwrap();
        let (first, rest) = text.split_once('\n').unwrap();
        assert_eq!(first, "frame,pages");
        assert!(rest.lines().count() > 1, "{text}");
    } else {
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains("the kernel shows its frames to root alone"), "{errors}");
    }
    // No process has this number (PID_MAX_LIMIT is 4,194,304).
    let (code, errors) = refused(&["lab", "layout", "4194305"]);
    assert_eq!(code, 3, "{errors}");
    assert!(errors.contains("process 4194305: cannot read its mappings"), "{errors}");
}

#[test]
fn frames_are_scattered_as_asked() {
    let scattered = |mib: &str| {
        let report =
            json(&["lab", "run", "--operation", "matmul-4k-on-4k-24g", "--scattered", mib]);
        let on = on_of(&row(&report, "matmul-4k-on-4k-24g")["paging"], "zen4").clone();
        assert_eq!(on["walks"], 256_320, "{mib}");
        number(&on["references_per_walk"])
    };
    // The more tables the frames are mapped by, the farther their entries are from each other.
    let [narrow, middle, wide] = ["32", "2048", "24576"].map(scattered);
    assert!(narrow < middle && middle < wide, "{narrow} {middle} {wide}");
    assert!((wide - SIMULATED_WALKS.scattered).abs() < 5e-3, "{wide}");
}

#[test]
fn accesses_are_recorded_on_one_host_and_without_a_profile() {
    for (flags, said) in [
        (
            &["--operation", "scan-4k-on-4k", "--host", "intel"][..],
            "scan-4k-on-4k: accesses to memory are recorded on --host amd alone",
        ),
        (
            &["--operation", "matmul-4k-on-4k,cpuid", "--scattered", "64"],
            "--scattered or --layout: no operation of this run scatters frames over 24 GiB; those of the suite paging whose names end in -24g do",
        ),
        (
            &["--suite", "paging", "--profile"],
            "--profile: the suite paging records accesses to memory, and call trees need a recording of instructions; run it without --profile",
        ),
    ] {
        let (code, errors) = refused(&[&["lab", "run"], flags].concat());
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(said), "{errors}");
    }
}
