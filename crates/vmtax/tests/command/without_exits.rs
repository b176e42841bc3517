//! A recording without exits, or with more VMs than are followed, says so in every output.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::captures::{json, report, unpack};
use crate::check::{Program, check, succeed};

const FORMATS: [&str; 5] = ["text", "json", "csv", "html", "prometheus"];

#[test]
fn losses_are_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    for (file, words) in [
        (
            "pvm.perf.data.zst",
            "kvm_exit was recorded and did not occur among 1914 events of KVM (kvm_emulate_insn 1285, kvm_cpuid 256,",
        ),
        ("pvm.script.txt", "The recording holds 60 events of KVM (kvm_unmap_hva_range 54,"),
        (
            "cpuid.perf.data.zst",
            "The recording holds 256 events of KVM (kvm_cpuid 256) and no kvm_exit",
        ),
        ("sched.perf.data.zst", "The recording holds no event of KVM"),
    ] {
        let recording = unpack("pvm", file);
        let run = folder.path().join(file);
        let import = format!("import {} -o {}", recording.display(), run.display());
        succeed(&mut Program::new().command(folder.path(), &import));
        for input in [&recording, &run] {
            for format in FORMATS {
                let page = report(input, &["--format", format]);
                match format {
                    "prometheus" => {
                        assert!(page.contains("vmtax_losses_total{what=\"missing\"} 1\n"), "{page}")
                    }
                    _ => assert!(page.contains(words), "{file} {format}: {page}"),
                }
                assert!(
                    !page.contains("No known losses") && !page.contains("losses: none known"),
                    "{file} {format}"
                );
            }
            let losses = json(input, &[])["losses"]["missing"].clone();
            assert!(losses[0].as_str().unwrap().starts_with(words), "{losses}");
        }
    }
}

/// As `perf script -F comm,pid,tid,cpu,time,event,trace` prints it: each VM exits once.
fn text_of_vms(vms: u32) -> String {
    let mut text = String::new();
    for vm in 0..vms {
        let (process, thread) = (2 * vm + 10, 2 * vm + 11);
        let (seconds, micros) = (vm / 100_000, 10 * (vm % 100_000));
        for (micros, event) in [
            (
                micros,
                "kvm_exit: vcpu 0 reason EPT_VIOLATION rip 0x1 info1 0x0 info2 0x0 intr_info 0x0 error_code 0x0",
            ),
            (micros + 2, "kvm_entry: vcpu 0, rip 0x1"),
        ] {
            writeln!(text, "vmm {process}/{thread} [000] {seconds}.{micros:06}: kvm:{event}")
                .unwrap();
        }
    }
    text
}

#[test]
fn vms_beyond_those_that_are_followed_are_a_loss_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("vms.txt");
    std::fs::write(&recording, text_of_vms(20_000)).unwrap();
    let run = folder.path().join("run");
    let import = format!("import {} -o {}", recording.display(), run.display());
    succeed(&mut Program::new().command(folder.path(), &import));
    // An exit and an entry of each VM.
    let dropped = 2 * (20_000 - 16_384);
    for input in [&recording, &run] {
        let report_of = |format| report(input, &["--format", format]);
        let sentence = "Limit of 16,384 vCPU threads exceeded: 7,232 events of further threads are in no table.";
        for format in ["text", "html"] {
            let page = report_of(format);
            assert!(
                page.contains(sentence) && page.contains("The first 16,384 VMs lost"),
                "{page}"
            );
            assert!(!page.contains("No known losses"));
        }
        assert!(report_of("csv").contains(&format!("threads_dropped,,,,,,{dropped},")));
        assert!(
            report_of("prometheus")
                .contains(&format!("vmtax_losses_total{{what=\"threads-dropped\"}} {dropped}\n"))
        );
        let losses = json(input, &[])["losses"].clone();
        assert_eq!(
            (&losses["threads_dropped"], &losses["undecodable"]),
            (&Value::from(dropped), &Value::from(0))
        );
    }
}

/// The sentence that refuses a recording of another architecture, and its exit code.
#[test]
fn other_architectures_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let line = "            vmm   109 [000]    10.659558: kvm:kvm_exit: SEPC:0x80200000, SCAUSE:0x15, STVAL:0x0, HTVAL:0x0, HTINST:0x0\n";
    std::fs::write(folder.path().join("riscv.txt"), line).unwrap();
    let sentence = "riscv.txt: at byte 0: architecture: the recording is of KVM on RISC-V, whose exits are not supported; recordings of x86 (Intel VMX, AMD SVM) and arm64 are read";
    check(
        &Program::new(),
        folder.path() as &Path,
        &[
            ("report riscv.txt", 4, sentence),
            ("import riscv.txt -o run", 4, sentence),
            ("explain riscv.txt", 4, sentence),
            ("diff riscv.txt riscv.txt", 4, sentence),
        ],
    );
}

/// A folder of `perf record --threads` is read as a whole, and its files alone are refused.
#[test]
fn a_folder_of_perf_is_an_input() {
    let folder = tempfile::tempdir().unwrap();
    let threads = folder.path().join("threads");
    std::fs::create_dir(&threads).unwrap();
    for name in ["data", "data.0", "data.1", "data.2", "data.3"] {
        let packed = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../../captures/pvm/input/threads/{name}.zst"));
        let packed = std::fs::read(packed).unwrap();
        std::fs::write(threads.join(name), zstd::decode_all(packed.as_slice()).unwrap()).unwrap();
    }
    let page = report(&threads, &[]);
    assert!(page.contains("among 1857 events of KVM"), "{page}");
    std::fs::create_dir(folder.path().join("other")).unwrap();
    check(
        &Program::new(),
        folder.path(),
        &[
            (
                "report threads/data",
                4,
                "threads/data: at byte 0: perf.data header: *: give the folder",
            ),
            (
                "report threads/data.0",
                4,
                "threads/data.0: not a recording that vmtax knows: *: give the folder; *",
            ),
            ("report other", 3, "other: is a folder and not a run *"),
        ],
    );
}
