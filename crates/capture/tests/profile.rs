//! Profiles: every cut and every flipped byte is an error or a loss, and never a panic or a hang.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;

use vmtax_capture::ImportSource;
use vmtax_capture::profile::{self, ImportedProfile, ProfileFormat, perf_data::NoSymbols};
use vmtax_events::ProfileOrigin;

fn capture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/profile/input");
    fs::read(folder.join(name)).unwrap()
}

fn import(bytes: &[u8], place: ProfileOrigin) -> Option<ImportedProfile> {
    let format = ProfileFormat::recognise(&bytes[..bytes.len().min(64 << 10)]).ok()?;
    if format.needs_seeking() {
        return profile::import(format, place, ImportSource::Random(&bytes), &mut NoSymbols).ok();
    }
    let mut input = bytes;
    profile::import(format, place, ImportSource::Stream(&mut input), &mut NoSymbols).ok()
}

#[test]
fn formats_are_recognised() {
    for (name, expected) in [
        ("perf.data", ProfileFormat::PerfFile),
        ("script.txt", ProfileFormat::PerfScript),
        ("annotate.txt", ProfileFormat::Annotate),
    ] {
        assert_eq!(ProfileFormat::recognise(&capture(name)).unwrap(), expected);
    }
    assert_eq!(ProfileFormat::recognise(b"a;b;c 12\nd e;f 1\n").unwrap(), ProfileFormat::Folded);
    for other in [&b""[..], b"\0\x01\x02", b"hello\n", b"a;b c\n", b"@reason[1]: 2\n"] {
        assert!(ProfileFormat::recognise(other).is_err(), "{other:?}");
    }
}

#[test]
fn every_cut_and_every_flip() {
    for (name, place) in [
        ("perf.data", ProfileOrigin::Host),
        ("script.txt", ProfileOrigin::Host),
        ("annotate.txt", ProfileOrigin::Instructions),
    ] {
        let whole = capture(name);
        let all = import(&whole, place).unwrap().profile.total();
        assert!(all > 0);
        for at in 0..whole.len() {
            if let Some(imported) = import(&whole[..at], place) {
                assert!(imported.profile.total() <= all, "{name} cut at {at}");
            }
            let mut flipped = whole.clone();
            flipped[at] ^= 0x81;
            // Whatever it makes of it, it ends.
            let _ = import(&flipped, place);
        }
    }
}

/// perf script without call chains has one line per sample; other events are skipped and reported.
#[test]
fn one_line_for_each_sample() {
    let text = "CPU 0/KVM  4711 [002] 100.1:     250000 cycles:  ffffffff8103ce3b vmx_vcpu_run+0x3b ([kvm_intel])\n\
                CPU 0/KVM  4711 [002] 100.2:     250000 cycles:      7f533952bc77 [unknown] (/usr/lib/libc.so.6 (deleted))\n\
                swapper     0 [000] 100.3:          7 instructions:  ffffffff8103ce3b idle+0x1 ([kernel.kallsyms])\n";
    let imported = import(text.as_bytes(), ProfileOrigin::Host).unwrap();
    let stacks: Vec<(String, u64)> = imported.profile.stacks.into_iter().collect();
    assert_eq!(
        stacks,
        [
            ("CPU 0/KVM;[libc.so.6]".to_owned(), 250_000),
            ("CPU 0/KVM;vmx_vcpu_run".to_owned(), 250_000)
        ]
    );
    assert_eq!(
        imported.losses.notes,
        ["host profile: 1 samples of other events than \"cycles\" are left out"]
    );
}

/// Names cannot add frames or lines to a stack.
#[test]
fn hostile_names() {
    let text =
        "a;b\u{7}c  1 [002] 100.1:  1 cycles: \n\tffff8103ce3b f;g\r\u{1b}[31m+0x3b (/x)\n\n";
    let mut input = text.as_bytes();
    let source = ImportSource::Stream(&mut input);
    let imported =
        profile::import(ProfileFormat::PerfScript, ProfileOrigin::Host, source, &mut NoSymbols)
            .unwrap();
    let stacks: Vec<&String> = imported.profile.stacks.keys().collect();
    assert_eq!(stacks.len(), 1);
    assert_eq!(stacks[0].matches(';').count(), 1, "{stacks:?}");
    assert!(!stacks[0].contains(char::is_control), "{stacks:?}");
}

#[test]
fn several_profiles_in_one_text_are_no_profile() {
    let table = |first: &str, share: f64| {
        format!(
            "  {share:.2}%  [kernel]  [k] {first}\n   2.00%  [kernel]  [k] b\n   1.00%  [kernel]  [k] c\n"
        )
    };
    let read = |text: &str| {
        let format = ProfileFormat::recognise(text.as_bytes()).unwrap();
        let source = ImportSource::Stream(&mut text.as_bytes());
        profile::import(format, ProfileOrigin::Host, source, &mut NoSymbols)
    };
    let two =
        format!("{}\n\n{}", table("vmx_vmexit", 15.65), table("queued_spin_lock_slowpath", 45.52));
    let problem = read(&two).unwrap_err().to_string();
    assert!(problem.contains("vmx_vmexit 15.65 %, queued_spin_lock_slowpath 45.52 %"), "{problem}");
    // One table with an empty line in it is one.
    let one = format!("{}\n   0.50%  [kernel]  [k] d\n", table("vmx_vmexit", 15.65));
    assert_eq!(read(&one).unwrap().profile.stacks.len(), 5);
}

#[test]
fn one_row_with_its_callees_is_a_profile_without_titles() {
    let read = |text: &str| {
        let format = ProfileFormat::recognise(text.as_bytes()).unwrap();
        let source = ImportSource::Stream(&mut text.as_bytes());
        profile::import(format, ProfileOrigin::Host, source, &mut NoSymbols)
    };
    let row = "    13.75%     6.02%  vcpu0  vmm  [.] load_full\n            |\n            ---load_full\n";
    let stacks = read(row).unwrap().profile.stacks;
    assert_eq!((stacks["load_full"], stacks.len()), (602, 2), "{stacks:?}");
    let all_below = row.replace("6.02%", "0.00%");
    let problem = read(&all_below).unwrap_err().to_string();
    assert!(problem.contains("load_full has 13.75 % with what it calls"), "{problem}");
    assert!(problem.contains("`perf report --stdio --no-children`"), "{problem}");
}
