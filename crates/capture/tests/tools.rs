//! Texts that other tools print: recognised by their content, read where they hold usable data, refused by name where not.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its own file has failed")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use vmtax_capture::import::{self, HEAD, ImportOptions};
use vmtax_capture::profile::{self, perf_data::NoSymbols};
use vmtax_capture::{Error, Feed, ImportFormat, ImportSource, Imported};
use vmtax_events::{
    Detail, DetailKind, Event, ExitRow, Isa, ProfileOrigin, Reason, Tally, octave, svm, tdx, vmx,
};

#[derive(Default)]
struct ToolRows(BTreeMap<(Reason, Detail), Tally>);

impl Feed for ToolRows {
    fn event(&mut self, _: Event) -> Result<(), Error> {
        panic!("a table has no events");
    }

    fn counted(&mut self, row: ExitRow) -> Result<(), Error> {
        assert!(self.0.insert((row.key.reason, row.key.detail), row.tally).is_none());
        Ok(())
    }
}

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures")
}

fn tool(name: &str) -> Vec<u8> {
    std::fs::read(captures().join("tools/input").join(name)).unwrap()
}

fn read(bytes: &[u8], isa: Isa) -> Result<(ImportFormat, ToolRows, Imported), Error> {
    let format = ImportFormat::recognise(&bytes[..bytes.len().min(HEAD)])?;
    let mut rows = ToolRows::default();
    let mut input = bytes;
    let imported = import::import(
        format,
        ImportSource::Stream(&mut input),
        ImportOptions { isa, ..ImportOptions::default() },
        &mut rows,
    )?;
    Ok((format, rows, imported))
}

/// Counts of a table of exits.
fn counts(name: &str, isa: Isa) -> BTreeMap<(Isa, u32, Detail), u64> {
    let (format, rows, imported) = read(&tool(name), isa).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(format, ImportFormat::Counts, "{name}");
    assert!(imported.losses.is_empty(), "{name}: {:?}", imported.losses);
    rows.0.iter().map(|((r, detail), t)| ((r.isa, r.code, *detail), t.count)).collect()
}

fn plain(isa: Isa, all: &[(u32, u64)]) -> BTreeMap<(Isa, u32, Detail), u64> {
    all.iter().map(|(code, count)| ((isa, *code, Detail::NONE), *count)).collect()
}

#[test]
fn names_of_either_vendor_are_told_by_the_others() {
    assert_eq!(
        counts("count-intel.txt", Isa::Unknown),
        plain(
            Isa::Vmx,
            &[(1, 1431), (12, 146), (31, 63), (32, 1432), (49, 267), (52, 1429), (56, 182)]
        )
    );
    assert_eq!(
        counts("kvm_stat-once.txt", Isa::Unknown),
        plain(Isa::Vmx, &[(12, 900), (1, 1010), (32, 3000), (49, 100)])
    );
    assert_eq!(
        counts("kvm_stat-log.csv", Isa::Unknown),
        plain(Isa::Svm, &[(svm::HLT, 45), (svm::INTR, 60), (svm::MSR, 105)])
    );
    let both = b"HLT: 5\nCPUID: 6\n";
    assert!(matches!(read(both, Isa::Unknown), Err(Error::Vendor)));
    assert!(read(both, Isa::Svm).unwrap().1.0.keys().all(|(r, _)| r.isa == Isa::Svm));
}

#[test]
fn requests_split_the_exits_that_they_are() {
    let ghcb = |code| Detail::new(DetailKind::Ghcb, code);
    let found = counts("snoop-snp.txt", Isa::Unknown);
    let of = |code, detail| found.get(&(Isa::Svm, code, detail)).copied();
    assert_eq!(of(svm::INTR, Detail::NONE), Some(60));
    assert_eq!(of(svm::VMGEXIT, ghcb(u64::from(svm::HLT))), Some(45));
    assert_eq!(of(svm::VMGEXIT, ghcb(u64::from(svm::MSR))), Some(35));
    assert_eq!(of(svm::VMGEXIT, ghcb(0x8000_0002)), Some(215));
    assert_eq!(of(svm::VMGEXIT, ghcb(0x8000_0010)), Some(5));
    assert_eq!(of(svm::VMGEXIT, Detail::NONE), None, "300 of 300 are told");
    assert_eq!(found.values().sum::<u64>(), 60 + 15 + 300);
}

#[test]
fn columns_are_summed() {
    let found = counts("monitor-intel.csv", Isa::Unknown);
    assert_eq!(
        found,
        plain(Isa::Vmx, &[(vmx::EXTERNAL_INTERRUPT, 4203), (52, 4173), (32, 4206), (12, 42)])
    );
    let leaf = |leaf| (Isa::Vmx, vmx::TDCALL, Detail::new(DetailKind::Tdvmcall, leaf));
    let found = counts("tdvmcall.csv", Isa::Unknown);
    assert_eq!(found[&leaf(tdx::LEAF_HLT)], 600);
    assert_eq!(found[&leaf(tdx::LEAF_WRMSR)], 3802);
    assert_eq!(found[&leaf(tdx::LEAF_MAP_GPA)], 2);
    let found = counts("tdx-msrs.csv", Isa::Unknown);
    let write = |msr| (Isa::Vmx, vmx::TDCALL, Detail::new(DetailKind::MsrWrite, msr));
    assert_eq!((found[&write(0x6e0)], found[&write(0x830)]), (3610, 170));
    // A line that lacks a number is refused, not shifted.
    let cut = String::from_utf8(tool("tdvmcall.csv")).unwrap().replace("1,0,290,0,", "1,0,290,");
    let error = read(cut.as_bytes(), Isa::Unknown).err().unwrap().to_string();
    assert!(error.contains("line 4 has 10 numbers below 11 names"), "{error}");
}

#[test]
fn stats_and_histograms_give_times() {
    let (format, rows, imported) = read(&tool("latency-amd.txt"), Isa::Unknown).unwrap();
    assert_eq!(format, ImportFormat::Bpftrace);
    assert!(imported.losses.truncated.is_empty());
    let of = |code| &rows.0[&(Reason { isa: Isa::Svm, code, flags: 0 }, Detail::NONE)];
    let msr = of(svm::MSR);
    assert_eq!((msr.count, msr.timed, msr.time_ns), (10, 10, 20_000));
    let octaves = msr.durations.octaves();
    assert_eq!((octaves[octave(1024)], octaves[octave(2048)]), (4, 6));
    assert_eq!((msr.min_ns, msr.max_ns), (1024, 4095));
    assert_eq!(rows.0.len(), 3, "all of them together are no reason");
    assert_eq!(of(svm::HLT).time_ns, 400_000);
}

/// perf writes a line for each exit that it has no name for, and calls it UNKNOWN.
#[test]
fn exits_that_perf_cannot_name() {
    let path = captures().join("arm64/expected/7.3-nested.perfkvmstat.txt");
    let text = String::from_utf8(std::fs::read(path).unwrap()).unwrap();
    let (_, rows, imported) = read(text.as_bytes(), Isa::Unknown).unwrap();
    let mut counts: Vec<(String, u64, u64)> = rows
        .0
        .iter()
        .map(|((reason, _), tally)| (reason.name().into_owned(), tally.count, tally.timed))
        .collect();
    counts.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
    let expected = [("SYS64", 3049), ("ERET", 565), ("HVC64", 512), ("DABT_LOW", 156), ("IRQ", 11)];
    assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count, 0)));
    let notes = &imported.losses.notes;
    assert!(
        notes.len() == 1 && notes[0].starts_with("The times of the table are left out"),
        "{notes:?}"
    );
    let message = "unknown kvm exit code:26 on arm64\n";
    let silent = text.replace(message, "");
    // Standard error is not buffered, and so stands before the table.
    for around in [format!("{message}{message}{silent}"), format!("{silent}{message}")] {
        let (_, rows, _) = read(around.as_bytes(), Isa::Unknown).unwrap();
        let eret = rows.0.iter().find(|((reason, _), _)| reason.name() == "ERET").unwrap();
        assert_eq!(eret.1.count, 565);
    }
    // Without that line nobody knows what it is.
    let (_, rows, imported) = read(silent.as_bytes(), Isa::Unknown).unwrap();
    let unknown = rows.0.iter().find(|((reason, _), _)| reason.name() == "UNKNOWN").unwrap();
    assert_eq!(unknown.1.count, 565);
    assert!(imported.losses.notes.iter().any(|note| note.ends_with("they are ERET.")));
    // Of x86 it is none.
    let foreign = silent.replace("SYS64", "  HLT");
    let error = read(foreign.as_bytes(), Isa::Unknown).err().unwrap().to_string();
    assert!(error.contains("\"UNKNOWN\", which is no exit reason of x86 or arm64"), "{error}");
}

/// Tables that perf printed of the captures: the rows add up to what perf says they do.
#[test]
fn tables_of_perf_kvm_stat() {
    let mut tables = 0;
    for folder in std::fs::read_dir(captures()).unwrap() {
        let Ok(files) = std::fs::read_dir(folder.unwrap().path().join("expected")) else {
            continue;
        };
        for path in files.map(|file| file.unwrap().path()) {
            let name = path.display().to_string();
            if !name.contains("kvmstat") || !name.ends_with(".txt") || name.ends_with(".exits.txt")
            {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let number = |after: &str| -> Option<f64> {
                let rest = text.split_once(after)?.1;
                rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok()
            };
            if !text.contains("VM-EXIT") {
                // Tables of accesses: crates/capture/tests/posted.rs.
                let rows = read(&bytes, Isa::Unknown).map(|(_, rows, _)| rows.0.len());
                let is_empty = number("Total Samples:") == Some(0.0);
                assert!(rows.is_ok_and(|rows| rows == 0) != is_empty, "{name}");
                continue;
            }
            if number("Total Samples:") == Some(0.0) || text.matches("VM-EXIT").count() > 1 {
                continue;
            }
            let (format, rows, imported) =
                read(&bytes, Isa::Unknown).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(format, ImportFormat::Counts, "{name}");
            assert!(imported.losses.truncated.is_empty(), "{name}: {:?}", imported.losses);
            let count: u64 = rows.0.values().map(|t| t.count).sum();
            let us = rows.0.values().map(|t| t.time_ns).sum::<u64>() as f64 / 1000.0;
            assert_eq!(count as f64, number("Total Samples:").unwrap(), "{name}");
            // On arm64 perf times the guest and not its exits, so that these times are left out.
            let is_of_arm64 = rows.0.keys().any(|(reason, _)| reason.isa == Isa::Arm);
            let all = if is_of_arm64 { 0.0 } else { number("handled time:").unwrap() };
            // Means are printed with two digits behind the point.
            assert!((us - all).abs() <= 0.01 * count as f64 + 0.01, "{name}: {us} of {all}");
            tables += 1;
            // Cut, it says so.
            let cut = &text[..text.find("Total Samples").unwrap()];
            let (.., imported) = read(cut.as_bytes(), Isa::Unknown).unwrap();
            assert!(
                imported.losses.truncated.iter().any(|line| line.contains("ends early")),
                "{name}"
            );
        }
    }
    assert!(tables >= 5, "{tables}");
    let (_, rows, _) = read(&tool("kvm-report-6.8.txt"), Isa::Unknown).unwrap();
    let hlt = &rows.0[&(Reason { isa: Isa::Vmx, code: vmx::HLT, flags: 0 }, Detail::NONE)];
    assert_eq!((hlt.count, hlt.time_ns, hlt.max_ns), (900, 900_000_000, 2_000_000));
}

fn profile(name: &str, place: ProfileOrigin) -> Result<vmtax_events::Profile, Error> {
    let bytes = tool(name);
    let format = profile::ProfileFormat::recognise(&bytes)?;
    let mut input = bytes.as_slice();
    let imported =
        profile::import(format, place, ImportSource::Stream(&mut input), &mut NoSymbols)?;
    assert!(imported.losses.is_empty(), "{name}: {:?}", imported.losses);
    Ok(imported.profile)
}

#[test]
fn reports_of_perf_are_profiles() {
    for name in ["perf-report.txt", "perf-report-children.txt"] {
        let profile = profile(name, ProfileOrigin::Host).unwrap();
        let functions = profile.functions();
        assert_eq!(functions["compute"].own, 4839, "{name}");
        assert_eq!(functions["exc_page_fault"].own, 3548, "{name}");
        // Shares are rounded.
        assert!((9900..=10_100).contains(&profile.total()), "{name}: {}", profile.total());
    }
    let without =
        b"# Samples: 1  of event 'x'\n# Overhead  Command\n# ........  .......\n   100.00%  hot\n";
    let format = profile::ProfileFormat::recognise(without).unwrap();
    let mut input = &without[..];
    let error = profile::import(
        format,
        ProfileOrigin::Host,
        ImportSource::Stream(&mut input),
        &mut NoSymbols,
    );
    assert!(error.unwrap_err().to_string().contains("has no column Symbol"));
}

/// The same function in the three forms of `perf annotate`.
#[test]
fn annotations_of_perf_are_one_function() {
    let instructions = |name: &str| {
        let profile = profile(name, ProfileOrigin::Instructions).unwrap();
        let mut all: Vec<(u64, String, u64)> = Vec::new();
        for (stack, weight) in &profile.stacks {
            let (function, rest) = stack.split_once(';').unwrap();
            assert_eq!(function, "compute", "{name}");
            let (address, text) = rest.split_once(' ').unwrap();
            let operation = text.split(' ').next().unwrap().to_owned();
            all.push((u64::from_str_radix(address, 16).unwrap(), operation, *weight));
        }
        all.sort();
        all.into_iter().map(|(_, operation, weight)| (operation, weight)).collect::<Vec<_>>()
    };
    let shares = instructions("perf-annotate.txt");
    assert_eq!(shares.len(), 23);
    assert_eq!(shares.iter().find(|(name, _)| name == "mulsd").unwrap().1, 6667);
    assert_eq!(instructions("perf-annotate-stdio2.txt"), shares);
    let samples = instructions("perf-annotate-n.txt");
    assert_eq!(samples.iter().map(|(_, n)| n).sum::<u64>(), 15);
    let names =
        |all: &[(String, u64)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&samples), names(&shares));
}

#[test]
fn inputs_without_exits_are_rejected_by_name() {
    for (name, start) in [
        ("mpstat.txt", "this is mpstat's output, which has no exits: record `perf kvm stat record"),
        ("perf-report.txt", "this is perf report's text"),
        ("perf-annotate.txt", "this is perf annotate's text"),
        ("perf-annotate-n.txt", "this is perf annotate's text"),
        ("perf-annotate-stdio2.txt", "this is perf annotate's text"),
    ] {
        let error = read(&tool(name), Isa::Unknown).err().unwrap().to_string();
        assert!(error.contains(start), "{name}: {error}");
    }
    let counters = b"exits 123 4\nhalt_exits 5 6\n";
    let error = read(counters, Isa::Unknown).err().unwrap().to_string();
    assert!(error.contains("counts no exit by its reason"), "{error}");
}

/// Found by fuzzing: the number behind a name of a register is any number.
/// `esr_ec` is 0 of all that is no trap: "UNKNOWN" is what interrupts of the host are called.
#[test]
fn tables_of_arm64_count_what_is_no_trap() {
    let stat = "kvm_exit                                     477754    8.4     3691\n  kvm_exit(WFx)                              413413   86.5     3228\n  kvm_exit(SYS64)                             33750    7.1      234\n  kvm_exit(UNKNOWN)                           28805    6.0      212\nkvm_entry                                    477754    8.4     3690\n";
    let bcc = "TGID     TID      COMM             KVM_EXIT_REASON  COUNT    AVG_TIME\n24877    24901    b'CPU 3/KVM'     EC_WFx           7        503369309.4\n24877    24900    b'CPU 2/KVM'     UNKNOWN_EC       4        1020.0\n";
    let name = |(reason, _): &(Reason, Detail)| reason.name().into_owned();
    for (text, expected) in [
        (stat, vec![("IRQ", 28_805, 0), ("SYS64", 33_750, 0), ("WFx", 413_413, 0)]),
        (bcc, vec![("IRQ", 4, 4080), ("WFx", 7, 3_523_585_165)]),
    ] {
        let (_, rows, imported) = read(text.as_bytes(), Isa::Unknown).unwrap();
        let mut found: Vec<(String, u64, u64)> =
            rows.0.iter().map(|(key, tally)| (name(key), tally.count, tally.time_ns)).collect();
        found.sort();
        let expected: Vec<(String, u64, u64)> =
            expected.iter().map(|(name, count, ns)| ((*name).to_owned(), *count, *ns)).collect();
        assert_eq!(found, expected);
        assert!(imported.losses.notes.iter().any(|note| note.contains("no traps")));
    }
    // Of x86 there is no such reason.
    let stat = stat.replace("WFx", "HLT").replace("SYS64", "MSR_WRITE");
    assert!(read(stat.as_bytes(), Isa::Unknown).is_err());
}

#[test]
fn a_register_that_no_processor_has_is_no_reason() {
    let text = b"RD\x0a\x0a\xffnal% )\x0a                 hlt         55     1.         @ 3     0.07,EXIT_WRITE_DR18446744073709551615,,,,,,,,,,,EXIT_REASON_HLT,,,,,,e:713617.54us\xac.\x0a\x0a";
    assert!(read(text, Isa::Unknown).is_err());
}

fn all_tools() -> Vec<Vec<u8>> {
    let mut names: Vec<_> = std::fs::read_dir(captures().join("tools/input"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    names.push(captures().join("amd-two-vms/expected/two-vms.kvmstat-vmexit.txt"));
    names.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever is changed or cut off: an error in words, or rows whose times fit their counts.
    #[test]
    fn damaged_texts_are_refused_or_read(
        which in 0usize..16,
        keep in 0.0f64..=1.0,
        changes in proptest::collection::vec((0.0f64..1.0, any::<u8>()), 0..8),
    ) {
        let all = all_tools();
        let mut text = all[which % all.len()].clone();
        for (at, byte) in changes {
            let at = (at * text.len() as f64) as usize;
            text[at] = byte;
        }
        text.truncate((keep * text.len() as f64) as usize);
        match read(&text, Isa::Svm) {
            Ok((_, rows, _)) => {
                for tally in rows.0.values() {
                    prop_assert!(tally.timed <= tally.count && tally.durations.count() <= tally.timed);
                    prop_assert!(tally.timed == 0 || tally.min_ns <= tally.max_ns && tally.max_ns <= tally.time_ns, "{tally:?}");
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        let mut input = text.as_slice();
        if let Ok(format) = profile::ProfileFormat::recognise(&text) && !format.needs_seeking() {
            let place = if format == profile::ProfileFormat::Annotate { ProfileOrigin::Instructions } else { ProfileOrigin::Host };
            let _ = profile::import(format, place, ImportSource::Stream(&mut input), &mut NoSymbols);
        }
    }
}
