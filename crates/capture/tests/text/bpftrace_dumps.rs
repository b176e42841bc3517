//! Dumps of bpftrace maps.

use vmtax_capture::Error;
use vmtax_capture::import::{Imported, bpftrace};
use vmtax_events::{Isa, NO_VCPU, Reason};

use super::{KeptText, svm, vmx};

fn dump(text: &str, isa: Isa) -> Result<(Vec<(Reason, u64)>, Imported), Error> {
    let mut kept = KeptText::default();
    let imported = bpftrace::import(&mut text.as_bytes(), isa, &mut kept)?;
    assert!(kept.events.is_empty());
    let rows = kept.rows.iter().map(|r| {
        assert_eq!((r.key.vm, r.key.vcpu, r.tally.timed), (0, NO_VCPU, 0));
        (r.key.reason, r.tally.count)
    });
    Ok((rows.collect(), imported))
}

/// Maps by the fields of `kvm_exit` on arm64: `esr_ec`, both numbers, and names.
#[test]
fn bpftrace_dumps_of_arm64() {
    let arm = |code| Reason { isa: Isa::Arm, code, flags: 0 };
    let (mut rows, imported) =
        dump("@[36]: 500\n@[24]: 400\n@[0]: 101\n@[26]: 5\n", Isa::Arm).unwrap();
    rows.sort();
    let names: Vec<_> = rows.iter().map(|(reason, n)| (reason.name().into_owned(), *n)).collect();
    let expected = [("SYS64", 400), ("ERET", 5), ("DABT_LOW", 500), ("no class", 101)];
    assert_eq!(names, expected.map(|(name, n)| (name.to_owned(), n)));
    assert!(imported.losses.notes.is_empty(), "{:?}", imported.losses.notes);
    let (mut rows, _) = dump("@[2, 36]: 500\n@[0, 0]: 101\n@[2, 1]: 100\n", Isa::Arm).unwrap();
    rows.sort();
    assert_eq!(rows, [(arm(1), 100), (arm(36), 500), (arm(256), 101)]);
    let (mut rows, _) = dump("@[DABT_LOW]: 3\n@[SYS64]: 2\n@[WFx]: 1\n", Isa::Unknown).unwrap();
    rows.sort();
    assert_eq!(rows, [(arm(1), 1), (arm(24), 2), (arm(36), 3)]);
    assert!(matches!(dump("@[36]: 5\n@[24]: 4\n", Isa::Unknown), Err(Error::Vendor)));
}

#[test]
fn bpftrace_dumps() {
    // The plain VM of the oneDNN-on-TDX report.
    let s0 = "Attaching 2 probes...\n\n\n@reason[18]: 1\n@reason[0]: 14\n@reason[31]: 63\n@reason[12]: 146\n\
              @reason[56]: 182\n@reason[49]: 267\n@reason[52]: 142929\n@reason[1]: 143007\n@reason[32]: 143258\n";
    let (rows, imported) = dump(s0, Isa::Vmx).unwrap();
    assert_eq!(rows.len(), 9);
    assert!(rows.contains(&(vmx(32), 143_258)) && rows.contains(&(vmx(52), 142_929)));
    assert!(imported.recording.coverage.exits);
    assert!(imported.losses.is_empty() && imported.losses.notes.is_empty());
    // Each of these is a reason of either vendor.
    assert!(matches!(dump(s0, Isa::Unknown), Err(Error::Vendor)));

    let names = "@[EPT_VIOLATION]: 12\n@[EPT_MISCONF]: 3\n@[npf]: 5\n@[UD excp]: 1\n@[EXIT_NPF]: 2\n\
                 @[SVM_EXIT_MSR]: 4\n@[EXIT_REASON_HLT]: 6\n";
    let (mut rows, imported) = dump(names, Isa::Unknown).unwrap();
    rows.sort();
    assert_eq!(
        rows,
        [
            (vmx(12), 6),
            (vmx(48), 12),
            (vmx(49), 3),
            (svm(0x46), 1),
            (svm(0x7c), 4),
            (svm(0x400), 7)
        ]
    );
    assert!(imported.losses.notes.is_empty(), "two spellings are two keys");

    let (rows, _) = dump("@x[0x80000021]: 1\n@x[0x30]: 2\n", Isa::Vmx).unwrap();
    let failed = Reason { flags: vmx::FAILED_ENTRY, ..vmx(33) };
    assert_eq!(rows, [(failed, 1), (vmx(48), 2)]);
    let (rows, _) = dump("@x[4294967295]: 1\n@x[-1]: 2\n@x[1024]: 1\n", Isa::Svm).unwrap();
    assert_eq!(rows, [(svm(0x400), 1), (svm(u32::MAX), 3)]);
    let (rows, _) = dump("@e[1234, npf]: 1\n@e[1235, npf]: 2\n", Isa::Unknown).unwrap();
    assert_eq!(rows, [(svm(0x400), 3)]);
    let (rows, _) = dump("@s[10]: count 5, average 3, total 15\n", Isa::Vmx).unwrap();
    assert_eq!(rows, [(vmx(10), 5)]);
}

#[test]
fn bpftrace_maps_left_out() {
    let text = "@exits[10]: 5\n@start[4711]: 123456789\n@total_ns[10]: 99999\n@usecs[10]:\n\
                [1]      3 |@@@      |\n[2, 4)   9 |@@@@@@@@@|\n@: 12\n@stack[\n  vmx_vcpu_run+1\n]: 4\n";
    let (rows, imported) = dump(text, Isa::Vmx).unwrap();
    assert_eq!(rows, [(vmx(10), 5)]);
    let note = &imported.losses.notes[0];
    for name in ["@start", "@total_ns", "@usecs", "@stack"] {
        assert!(note.contains(name), "{note}");
    }
    for (text, words) in [
        ("", "no line of the form"),
        ("hello\n", "no line of the form"),
        ("@usecs:\n[1, 2) 3 |@@|\n", "no map of counts"),
        ("@exits[1234, 32]: 5\n", "two numbers"),
    ] {
        let error = dump(text, Isa::Vmx).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

fn capture(name: &str) -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = folder.join("../../captures/amd-bpftrace/input").join(name);
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Numbers that only one vendor has tell whose they are.
#[test]
fn bare_numbers_of_one_vendor() {
    for (text, isa) in [
        ("@[77]: 5\n@[1]: 3\n", Isa::Vmx),
        ("@[78]: 5\n", Isa::Vmx),
        ("@[1024]: 5\n@[77]: 1\n", Isa::Unknown),
        ("@[1024]: 5\n@[0]: 1\n", Isa::Svm),
        ("@[129]: 5\n", Isa::Svm),
        ("@[2147483681]: 5\n", Isa::Vmx),
        ("@[12]: 5\n@[48]: 1\n", Isa::Unknown),
    ] {
        match dump(text, Isa::Unknown) {
            Ok((rows, imported)) => {
                assert!(rows.iter().all(|(reason, _)| reason.isa == isa), "{text}");
                assert!(imported.losses.notes[0].contains("--isa overrides this"));
            }
            Err(error) => {
                assert_eq!(isa, Isa::Unknown, "{text}: {error}");
                assert!(
                    error.to_string().contains("--isa intel, --isa amd or --isa arm64"),
                    "{error}"
                );
            }
        }
    }
    // The recorded dump of an SVM host.
    let (rows, _) = dump(&capture("reasons.bpftrace.txt"), Isa::Unknown).unwrap();
    assert!(rows.contains(&(svm(0x72), 500)));
}

/// `captures/amd-bpftrace`: the map of reasons was printed four times, and one of processors at the end.
#[test]
fn prints_are_cumulative_and_other_maps_are_no_exits() {
    let (rows, imported) = dump(&capture("prints.bpftrace.txt"), Isa::Unknown).unwrap();
    assert_eq!(rows, [(svm(0x72), 3), (svm(0x400), 2)]);
    let notes = imported.losses.notes.join("\n");
    assert!(notes.contains("left out: @cpu") && notes.contains("the last count"), "{notes}");
    // Cleared in between.
    let (rows, imported) = dump("@[npf]: 5\n@[npf]: 3\n@[npf]: 4\n", Isa::Unknown).unwrap();
    assert_eq!(rows, [(svm(0x400), 12)]);
    assert!(imported.losses.notes[0].contains("cleared in between"));
    let (rows, _) = dump("@cpu[0]: 9\n@vcpu[1]: 9\n@x[10]: 5\n", Isa::Vmx).unwrap();
    assert_eq!(rows, [(vmx(10), 5)]);
    let (rows, imported) = dump("@x[10]: 9\n@exits[10]: 5\n", Isa::Vmx).unwrap();
    assert_eq!(rows, [(vmx(10), 5)]);
    assert!(imported.losses.notes[0].contains("by the map @exits; left out: @x"));
    let error = dump("@x[10]: 9\n@y[10]: 5\n", Isa::Vmx).unwrap_err().to_string();
    assert!(error.contains("the maps @x, @y may all be counts by exit reason"), "{error}");
    let error = dump("@cpu[0]: 9\n", Isa::Vmx).unwrap_err().to_string();
    assert!(error.contains("no map of counts by exit reason (there is @cpu)"), "{error}");
}

#[test]
fn json_and_text_have_the_same_values() {
    let names = capture("names.bpftrace.json");
    assert!(bpftrace::recognise(names.as_bytes()));
    let (rows, _) = dump(&names, Isa::Unknown).unwrap();
    assert!(rows.contains(&(svm(0x72), 500)) && rows.contains(&(svm(0x400), 78)), "{rows:?}");
    let error = dump("{\"type\": \"map\", \"data\": {\"@\": {\"npf\": 1}\n", Isa::Svm).unwrap_err();
    assert!(error.to_string().contains("no JSON of bpftrace"), "{error}");
}

/// bpf-perf-tools' kvmexits.bt has Intel's names of numbers, on AMD too.
#[test]
fn numbers_beside_intel_s_names() {
    let intel =
        "@exit_ns[12, HLT]: \n[1K, 2K)  9 |@@|\n@exit_ns[30, IO_INSTRUCTION]: \n[4K, 8K)  5 |@@|\n";
    assert!(bpftrace::recognise(intel.as_bytes()));
    let (mut rows, _) = dump(intel, Isa::Unknown).unwrap();
    rows.sort();
    assert_eq!(rows, [(vmx(12), 9), (vmx(30), 5)]);
    let amd = "@exits[20, VMLAUNCH]: 51\n@exits[97, ]: 3\n@exits[123, ]: 8\n";
    let (mut rows, imported) = dump(amd, Isa::Unknown).unwrap();
    rows.sort();
    assert_eq!(rows, [(svm(20), 51), (svm(97), 3), (svm(123), 8)]);
    let notes = imported.losses.notes.join("\n");
    assert!(notes.contains("read as SVM (AMD) reasons"), "{notes}");
}
