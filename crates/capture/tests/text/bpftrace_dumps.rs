//! Dumps of bpftrace maps.

use vmtax_capture::Error;
use vmtax_capture::import::{Imported, bpftrace};
use vmtax_events::{Isa, NO_VCPU, Reason};

use super::{Kept, svm, vmx};

fn dump(text: &str, isa: Isa) -> Result<(Vec<(Reason, u64)>, Imported), Error> {
    let mut kept = Kept::default();
    let imported = bpftrace::import(&mut text.as_bytes(), isa, &mut kept)?;
    assert!(kept.events.is_empty());
    let rows = kept.rows.iter().map(|r| {
        assert_eq!((r.key.vm, r.key.vcpu, r.tally.timed), (0, NO_VCPU, 0));
        (r.key.reason, r.tally.count)
    });
    Ok((rows.collect(), imported))
}

#[test]
fn bpftrace_dumps() {
    let unknown = |code| Reason { isa: Isa::Unknown, code, flags: 0 };
    // The plain VM of source S0.
    let s0 = "Attaching 2 probes...\n\n\n@reason[18]: 1\n@reason[0]: 14\n@reason[31]: 63\n@reason[12]: 146\n\
              @reason[56]: 182\n@reason[49]: 267\n@reason[52]: 142929\n@reason[1]: 143007\n@reason[32]: 143258\n";
    let (rows, imported) = dump(s0, Isa::Vmx).unwrap();
    assert_eq!(rows.len(), 9);
    assert!(rows.contains(&(vmx(32), 143_258)) && rows.contains(&(vmx(52), 142_929)));
    assert!(imported.recording.coverage.exits);
    assert!(imported.losses.is_empty() && imported.losses.notes.is_empty());
    let (rows, _) = dump(s0, Isa::Unknown).unwrap();
    assert!(rows.contains(&(unknown(32), 143_258)));

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
    assert_eq!(imported.losses.notes.len(), 1, "npf stands there twice");

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
