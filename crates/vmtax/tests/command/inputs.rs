//! Standard input, pipes and named pipes read as the file does.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::captures::{json, unpack};
use crate::check::{Program, succeed};

/// One of each format; `perf.data` files and `trace.dat` are stored before they are read.
const INPUTS: [(&str, &str); 8] = [
    ("amd-nested", "v7.trace.dat"),
    ("amd-nested", "v6.trace.dat.zst"),
    ("amd-nested", "all.perf.data.zst"),
    ("amd-pipe", "pipe.perf.data.zst"),
    ("amd-pipe", "pipe-zstd.perf.data.zst"),
    ("amd-same-workload", "workload.ftrace.txt.zst"),
    ("amd-same-workload", "workload.trace-cmd.txt.zst"),
    ("amd-bpftrace", "names.bpftrace.txt"),
];

#[test]
fn standard_input_reads_as_the_file() {
    for (capture, input) in INPUTS {
        let file = unpack(capture, input);
        let expected = nameless(json(&file, &[]));
        let folder = tempfile::tempdir().unwrap();
        let mut redirected = Program::new().command(folder.path(), "report - --format json");
        redirected.stdin(File::open(&file).unwrap());
        assert_eq!(parse(&succeed(&mut redirected)), expected, "{capture}/{input} redirected");
        assert_eq!(parse(&through_pipe(&file, folder.path())), expected, "{capture}/{input} piped");
        let named = folder.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&named).status().unwrap().success());
        let bytes = std::fs::read(&file).unwrap();
        let writer = std::thread::spawn(move || std::fs::write(named, bytes).unwrap());
        let fifo = succeed(&mut Program::new().command(folder.path(), "report fifo --format json"));
        writer.join().unwrap();
        assert_eq!(parse(&fifo), expected, "{capture}/{input} through a named pipe");
    }
}

/// In small pieces, as a slow recorder sends them.
fn through_pipe(file: &Path, folder: &Path) -> Vec<u8> {
    let bytes = std::fs::read(file).unwrap();
    let mut command = Program::new().command(folder, "report - --format json");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        for piece in bytes.chunks(4093) {
            input.write_all(piece).unwrap();
        }
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// A profile, counters, what a tool shows, and a VM's configuration.
#[test]
fn texts_without_exits_come_from_standard_input_and_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let texts = [
        ("explain", "kvm_exit 2000 10\nkvm_entry 2000 10\nkvm_pio 1500 8\n"),
        (
            "explain",
            "# Overhead  Command  Shared Object  Symbol\n  60.00%  x  [kernel]  [k] acpi_pm_read\n",
        ),
        ("explain", "%Cpu(s):  1.0 us,  0.3 sy, 58.5 id,  0.0 wa,  0.0 hi,  0.0 si, 40.2 st\n"),
        ("doctor", "qemu-system-x86_64 -m 2G -cpu host -machine q35,accel=tcg\n"),
    ];
    for (program, text) in texts {
        std::fs::write(folder.path().join("file"), text).unwrap();
        let verdict = |output: &[u8]| {
            let document = parse(output);
            (document["verdict"].clone(), document["findings"][0]["verdict"].clone())
        };
        let words = format!("{program} file --format json");
        let expected = verdict(&succeed(&mut Program::new().command(folder.path(), &words)));
        let named = folder.path().join("fifo");
        if !named.exists() {
            assert!(Command::new("mkfifo").arg(&named).status().unwrap().success());
        }
        for input in ["-", "fifo"] {
            let mut command =
                Program::new().command(folder.path(), &format!("{program} {input} --format json"));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut standard = child.stdin.take().unwrap();
            if input == "-" {
                standard.write_all(text.as_bytes()).unwrap();
            } else {
                std::fs::write(&named, text).unwrap();
            }
            drop(standard);
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(verdict(&output.stdout), expected, "{program} {input}: {text}");
        }
    }
}

#[test]
fn standard_input_can_be_imported() {
    for (capture, input) in [("amd-nested", "v7.trace.dat"), ("amd-pipe", "pipe.perf.data.zst")] {
        let file = unpack(capture, input);
        let folder = tempfile::tempdir().unwrap();
        let mut import = Program::new().command(folder.path(), "import - -o run");
        import.stdin(File::open(&file).unwrap());
        succeed(&mut import);
        let imported = nameless(json(&folder.path().join("run"), &[]));
        assert_eq!(imported, nameless(json(&file, &[])), "{capture}/{input}");
    }
}

/// A report without what it was made from.
fn nameless(mut report: Value) -> Value {
    report["run"]["source"].take();
    report
}

fn parse(json: &[u8]) -> Value {
    nameless(serde_json::from_slice(json).unwrap())
}

/// A text packed by zstd reads as the text; a recording of a format that cannot be read compressed says so.
#[test]
fn packed_texts_read_as_they_are() {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    for (capture, input) in [
        ("amd-same-workload", "workload.ftrace.txt.zst"),
        ("amd-same-workload", "workload.trace-cmd.txt.zst"),
        ("amd-same-workload", "workload.script.txt.zst"),
    ] {
        let packed = captures.join(capture).join("input").join(input);
        assert_eq!(nameless(json(&packed, &[])), nameless(json(&unpack(capture, input), &[])));
    }
    let folder = tempfile::tempdir().unwrap();
    let packed = captures.join("amd-sched/input/sched.perf.data.zst");
    std::fs::copy(packed, folder.path().join("p.zst")).unwrap();
    std::fs::write(folder.path().join("bad.zst"), b"\x28\xb5\x2f\xfd rubbish that is no frame")
        .unwrap();
    crate::check::check(
        &Program::new(),
        folder.path(),
        &[
            (
                "report p.zst",
                4,
                "p.zst: recordings of this format cannot be read compressed; decompress it first (zstd -dk FILE)",
            ),
            ("report bad.zst", 4, "bad.zst: cannot be unpacked (*); check it with `zstd -t`"),
        ],
    );
}
