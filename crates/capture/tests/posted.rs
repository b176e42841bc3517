//! Texts as people post them (captures/posted): each is read as the table that the tool printed, or refused by name.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its own file has failed")]

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use vmtax_capture::import::{self, HEAD, ImportOptions};
use vmtax_capture::profile::{self, perf_data::NoSymbols};
use vmtax_capture::{Error, Feed, ImportFormat, ImportSource, Imported, posted};
use vmtax_events::{AccessRow, Event, ExitRow, Isa, ProfileOrigin};

#[derive(Debug, Default)]
struct KeptPosted {
    /// Count, and time in ns, by reason and detail.
    exits: BTreeMap<String, (u64, u64)>,
    accesses: BTreeMap<String, (u64, u64)>,
    events: usize,
}

impl Feed for KeptPosted {
    fn event(&mut self, _: Event) -> Result<(), Error> {
        self.events += 1;
        Ok(())
    }

    fn counted(&mut self, row: ExitRow) -> Result<(), Error> {
        let name = format!("{} {}", row.key.reason.isa.name(), row.key.reason.name());
        assert!(self.exits.insert(name, (row.tally.count, row.tally.time_ns)).is_none());
        Ok(())
    }

    fn accessed(&mut self, row: AccessRow) -> Result<(), Error> {
        let detail = row.key.detail;
        let name = format!("{} {:#x}", detail.kind.name(), detail.value);
        assert!(self.accesses.insert(name, (row.tally.count, row.tally.time_ns)).is_none());
        Ok(())
    }
}

fn capture(path: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    std::fs::read(folder.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn sample(name: &str) -> Vec<u8> {
    capture(&format!("posted/input/{name}"))
}

/// As the command reads an input.
fn read(bytes: &[u8]) -> Result<(KeptPosted, Imported), String> {
    read_as(bytes, Isa::Unknown)
}

fn read_as(bytes: &[u8], isa: Isa) -> Result<(KeptPosted, Imported), String> {
    let head = &bytes[..bytes.len().min(HEAD)];
    let restored;
    let mut bytes = match posted::is_posted(head) {
        true => {
            restored = posted::restore(bytes)?;
            restored.as_bytes()
        }
        false => bytes,
    };
    let head = &bytes[..bytes.len().min(HEAD)];
    let format = ImportFormat::recognise(head).map_err(|e| e.to_string())?;
    let mut kept = KeptPosted::default();
    let options = ImportOptions { isa, ..ImportOptions::default() };
    let imported = if format.needs_seeking() {
        import::import(format, ImportSource::Random(&bytes), options, &mut kept)
    } else {
        import::import(format, ImportSource::Stream(&mut bytes), options, &mut kept)
    };
    imported.map(|imported| (kept, imported)).map_err(|e| e.to_string())
}

/// Exits, and what is said to be missing.
#[track_caller]
fn check(text: &[u8], exits: &[(&str, u64, u64)], truncated: &[&str]) {
    let (kept, imported) = read(text).unwrap();
    let expected: BTreeMap<String, (u64, u64)> =
        exits.iter().map(|(name, count, time)| ((*name).to_owned(), (*count, *time))).collect();
    assert_eq!(kept.exits, expected);
    assert_eq!(imported.losses.truncated, truncated);
}

/// The table of [`sample`] perf-kvm-quoted-wrapped.txt.
const HYPERV: [(&str, u64, u64); 4] = [
    ("vmx MSR_WRITE", 924_045, 924_045 * 1260),
    ("vmx DR_ACCESS", 44_669, 44_669 * 760),
    ("vmx EXTERNAL_INTERRUPT", 29_809, 29_809 * 3100),
    ("vmx VMCALL", 17_819, 17_819 * 4200),
];
const HYPERV_GAP: &str = "the table's last line says 1027227 samples, its rows have 1016342";

#[test]
fn quoted_and_wrapped_mail() {
    check(&sample("perf-kvm-quoted-wrapped.txt"), &HYPERV, &[HYPERV_GAP]);
    check(
        &sample("perf-kvm-wrapped.txt"),
        &[
            ("vmx APIC_WRITE", 172_232, 172_232 * 1480),
            ("vmx DR_ACCESS", 19_136, 19_136 * 850),
            ("vmx EXTERNAL_INTERRUPT", 15_921, 15_921 * 3210),
            ("vmx VMCALL", 6971, 6971 * 5480),
        ],
        &["the table's last line says 219802 samples, its rows have 214260"],
    );
}

/// The mail once more as mail programs, terminals and editors store it.
#[test]
fn the_same_table_in_other_clothes() {
    let mail = String::from_utf8(sample("perf-kvm-quoted-wrapped.txt")).unwrap();
    let plain = posted::restore(mail.as_bytes()).unwrap();
    let numbered = |separator: &str| -> String {
        plain.lines().enumerate().map(|(n, l)| format!("{:>5}{separator}{l}\n", n + 1)).collect()
    };
    let each = |change: &dyn Fn(&str) -> String| -> String {
        plain.lines().map(|line| change(line) + "\n").collect()
    };
    let utf16 = |text: &str| -> Vec<u8> {
        format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect()
    };
    let quoted_printable = {
        let mut text = String::from(
            "Content-Type: text/plain\nContent-Transfer-Encoding: quoted-printable\n\n",
        );
        for line in plain.lines() {
            let chars: Vec<char> = line.replace('=', "=3D").chars().collect();
            let parts: Vec<String> = chars.chunks(70).map(|part| part.iter().collect()).collect();
            text += &(parts.join("=\n") + "\n");
        }
        text
    };
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let clothes: Vec<(&str, Vec<u8>)> = vec![
        ("plain", plain.clone().into_bytes()),
        ("CRLF", plain.replace('\n', "\r\n").into_bytes()),
        ("quoted CRLF", mail.replace('\n', "\r\n").into_bytes()),
        ("UTF-16", utf16(&plain)),
        ("UTF-16 CRLF", utf16(&plain.replace('\n', "\r\n"))),
        ("UTF-8 mark", format!("\u{feff}{plain}").into_bytes()),
        ("quoted three times", each(&|l| format!("> >> {l}")).into_bytes()),
        ("quoted without spaces", each(&|l| format!(">{l}")).into_bytes()),
        ("HTML", each(&|l| format!("&gt; {}", l.replace(' ', "&nbsp;"))).into_bytes()),
        ("unusual spaces", plain.replace("  ", " \u{a0}").into_bytes()),
        ("indented", each(&|l| format!("    {l}")).into_bytes()),
        ("tabs", each(&|l| cells(l).join("\t")).into_bytes()),
        ("cat -n", numbered("\t").into_bytes()),
        ("grep -n", numbered(":").into_bytes()),
        (
            "fence",
            format!("Look:\n\n```console\n$ perf kvm stat report\n{plain}$ \n```\nWhat is it?\n")
                .into_bytes(),
        ),
        (
            "terminal",
            format!("[root@host ~]# perf kvm stat report\n{plain}[root@host ~]# \n").into_bytes(),
        ),
        ("colours", each(&|l| format!("\u{1b}[31m{l}\u{1b}[0m")).into_bytes()),
        ("quoted-printable", quoted_printable.into_bytes()),
        ("twice in a thread", format!("{plain}\nWhat is this?\n\n{mail}").into_bytes()),
        ("decimal commas", plain.replace('.', ",").into_bytes()),
        (
            "decimal commas and groups",
            plain.replace('.', ",").replace("924045", "924.045").into_bytes(),
        ),
    ];
    for (name, text) in clothes {
        let (kept, imported) = read(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let expected: BTreeMap<String, (u64, u64)> =
            HYPERV.iter().map(|(name, n, time)| ((*name).to_owned(), (*n, *time))).collect();
        assert_eq!(kept.exits, expected, "{name}");
        assert_eq!(imported.losses.truncated, [HYPERV_GAP], "{name}");
    }
}

/// Comments between the rows, as answers in a thread have them; a table with borders; one without a heading.
#[test]
fn tables_that_people_edit() {
    let rows = [
        "           hlt     114046    22.60%    98.85%      0.42us  16666.32us   1903.26us ( +-   0.66% )",
        "            io     344654    68.29%     1.10%      0.67us   2132.72us      7.01us ( +-   0.19% )",
    ];
    let expected = [("svm hlt", 114_046, 114_046 * 1_903_260), ("svm io", 344_654, 344_654 * 7010)];
    let early = "the table has no line \"Total Samples\": it ends early";
    check((rows.join("\n") + "\n").as_bytes(), &expected, &[early]);
    let head = "             VM-EXIT    Samples  Samples%     Time%    Min Time    Max Time         Avg time";
    let text = format!(
        "> {head}\n>\n> {}\n\nHalts are 22.60% of 5 kinds, 98.85% of the time.\n\n> {}\n> [snip]\n",
        rows[0], rows[1]
    );
    check(
        text.as_bytes(),
        &expected,
        &["rows are cut out of the table: those that are left are 90.9 % of its samples"],
    );
    let bordered = |line: &str| {
        format!(
            "| {} |\n",
            line.replace("( +- ", "(+-").split_whitespace().collect::<Vec<_>>().join(" | ")
        )
    };
    let text = bordered("VM-EXIT Samples Samples% Time% Min_Time Max_Time Avg_time")
        + "|---|--:|--:|--:|--:|--:|--:|\n"
        + &bordered(rows[0])
        + &bordered(rows[1]);
    check(text.as_bytes(), &expected, &[early]);
    // Times that the right margin cut off are unknown, and the count is not.
    let text = format!(
        "{head}\n\n  hlt  114046  22.60%  98.85%  0.42us  16666\n  io  344654  68.29%  1.10%\n\nTotal Samples:458700, Total\n"
    );
    let (kept, imported) = read(text.as_bytes()).unwrap();
    assert_eq!(kept.exits["svm io"], (344_654, 0));
    assert!(imported.losses.notes[0].contains("end before their times"), "{:?}", imported.losses);
}

#[test]
fn cut_rows_are_said() {
    check(
        &sample("perf-kvm-gap.txt"),
        &[
            ("vmx EPT_VIOLATION", 760_998, 760_998 * 7780),
            ("vmx MSR_WRITE", 170_599, 170_599 * 2520),
            ("vmx EXTERNAL_INTERRUPT", 159_510, 159_510 * 8450),
        ],
        &["rows are cut out of the table: those that are left have 1091107 of 1387305 samples"],
    );
    check(
        &sample("perf-kvm-dots.txt"),
        &[
            ("svm io", 344_654, 344_654 * 7010),
            ("svm hlt", 114_046, 114_046 * 1_903_260),
            ("svm avic_incomplete_ipi", 19_679, 19_679 * 3660),
            ("svm npf", 8186, 8186 * 1460),
        ],
        &["rows are cut out of the table: those that are left are 96.4 % of its samples"],
    );
}

#[test]
fn markdown_with_a_fenced_table() {
    let (kept, imported) = read(&sample("perf-kvm-fenced.md")).unwrap();
    assert_eq!(kept.exits.len(), 10);
    assert_eq!(kept.exits["vmx IO_INSTRUCTION"], (55_654, 55_654 * 13_630));
    assert_eq!(kept.exits.values().map(|(count, _)| count).sum::<u64>(), 70_746);
    assert!(imported.losses.is_empty(), "{:?}", imported.losses);
}

/// The real tables of one recording, in one text.
#[test]
fn tables_of_accesses_stand_beside_the_exits() {
    let of = |event: &str| capture(&format!("intel-cpuid/expected/intel.kvmstat-{event}.txt"));
    let all = ["vmexit", "ioport", "mmio", "msr"].map(of).concat();
    let (kept, imported) = read(&all).unwrap();
    let exits = read(&of("vmexit")).unwrap().0.exits;
    assert_eq!(kept.exits, exits);
    let accesses: Vec<(&str, u64, u64)> =
        kept.accesses.iter().map(|(name, (n, time))| (name.as_str(), *n, *time)).collect();
    assert_eq!(
        accesses,
        [
            ("mmio-read 0xfe800000", 20, 20 * 244_910),
            ("mmio-write 0xfe800000", 30, 30 * 134_370),
            ("mmio-write 0xfee000b0", 20, 20 * 92_200),
            ("mmio-write 0xfee000f0", 1, 103_130),
            ("mmio-write 0xfee00320", 1, 122_900),
            ("mmio-write 0xfee00380", 20, 20 * 92_480),
            ("mmio-write 0xfee003e0", 1, 60_350),
            ("msr-read 0x1b", 50, 50 * 31_170),
            ("msr-write 0x6e0", 50, 50 * 28_400),
            ("port-in 0xe4", 50, 50 * 34_090),
            ("port-out 0xe0", 50, 50 * 134_460),
        ]
    );
    assert!(imported.losses.is_empty(), "{:?}", imported.losses);
    let coverage = imported.recording.coverage;
    assert!(coverage.exits && coverage.pio && coverage.msr && coverage.mmio);
    // Alone they are accesses, and nothing is said of exits.
    let (kept, imported) = read(&of("ioport")).unwrap();
    assert_eq!((kept.exits.len(), kept.accesses.len()), (0, 2));
    assert!(!imported.recording.coverage.exits && imported.recording.coverage.pio);
    // The headings of perf 6.4 do not tell MSRs from addresses; the numbers do.
    let newer = "  Event name  Samples  Sample%  Time (ns)  Time%  Max Time (ns)  Min Time (ns)  Mean Time (ns)\n  0x6e0:W  50  50.00%  1420000  47.68%  33200  28270  28400\n  0x1b:R  50  50.00%  1558500  52.32%  31300  31140  31170\n";
    let (kept, _) = read(newer.as_bytes()).unwrap();
    assert_eq!(kept.accesses["msr-write 0x6e0"], (50, 1_420_000));
}

#[test]
fn two_tables_of_exits_are_told_apart() {
    let of = |name: &str| String::from_utf8(capture(&format!("intel-{name}"))).unwrap();
    let text = of("cpuid/expected/intel.kvmstat-vmexit.txt")
        + &of("nested/expected/intel-nested.kvmstat-vmexit.txt");
    let error = read(text.as_bytes()).unwrap_err();
    assert!(error.contains("has tables of exits in lines 5 to 17 and "), "{error}");
    assert!(
        error.contains("sed -n 5,17p FILE > A") && error.contains("`vmtax diff A B`"),
        "{error}"
    );
    // Of two vCPUs they are one recording.
    let of = |n: u32| capture(&format!("amd-midrun/expected/midrun.kvmstat-vmexit-vcpu{n}.txt"));
    let (kept, _) = read(&[of(0), of(1)].concat()).unwrap();
    let sum = |n| read(&of(n)).unwrap().0.exits.values().map(|(count, _)| count).sum::<u64>();
    assert_eq!(kept.exits.values().map(|(count, _)| count).sum::<u64>(), sum(0) + sum(1));
}

/// Counts and shares of the same recording, by perf top and perf report.
#[test]
fn shares_of_perf_top_and_perf_report() {
    check(
        &sample("perf-top.txt"),
        &[
            ("vmx EXTERNAL_INTERRUPT", 8649, 0),
            ("vmx MSR_WRITE", 377, 0),
            ("vmx PREEMPTION_TIMER", 178, 0),
            ("vmx HLT", 73, 0),
            ("vmx PAUSE_INSTRUCTION", 28, 0),
        ],
        &["the rows are 93.1 % of the events: the rest is not in the text"],
    );
    // By the same recording: `perf script | grep -c`.
    let counts = [
        ("svm cpuid", 334, 0),
        ("svm io", 32, 0),
        ("svm msr", 16, 0),
        ("svm npf", 28, 0),
        ("svm interrupt", 14, 0),
        ("svm hlt", 8, 0),
    ];
    for name in ["perf-report-trace-n.txt", "perf-report-trace.txt"] {
        check(&sample(name), &counts, &[]);
        let (kept, _) = read(&sample(name)).unwrap();
        assert_eq!(kept.accesses["port-out 0xe0"], (16, 0), "{name}");
        assert_eq!(kept.accesses["msr-write 0x6e0"], (4, 0), "{name}");
        assert_eq!(kept.accesses["mmio-write 0xfe800000"], (12, 0), "{name}");
    }
}

#[test]
fn perf_prof() {
    let (kept, imported) = read(&sample("perf-prof.txt")).unwrap();
    assert_eq!(kept.exits.len(), 8);
    assert_eq!(kept.exits["vmx HLT"], (1208, 903_477_145));
    assert_eq!(kept.exits["vmx APIC_WRITE"], (1481, 22_191_956));
    assert_eq!(kept.exits["vmx VMCALL"], (1, 5370));
    assert!(imported.losses.is_empty(), "{:?}", imported.losses);
}

/// The figures that were published beside it: no --isa is needed.
#[test]
fn names_behind_counts_say_the_vendor() {
    let counts = |name: &str| {
        let (kept, imported) = read(&sample(name)).unwrap();
        assert!(imported.losses.is_empty(), "{name}: {:?}", imported.losses);
        kept.exits.into_iter().map(|(name, (count, _))| (name, count)).collect::<Vec<_>>()
    };
    let of = |all: &[(&str, u64)]| -> Vec<(String, u64)> {
        all.iter().map(|(name, count)| (format!("vmx {name}"), *count)).collect()
    };
    assert_eq!(
        counts("s0-plain.txt"),
        of(&[
            ("APIC_WRITE", 182),
            ("EPT_MISCONFIG", 267),
            ("EXCEPTION_NMI", 14),
            ("EXTERNAL_INTERRUPT", 143_007),
            ("HLT", 146),
            ("MSR_READ", 63),
            ("MSR_WRITE", 143_258),
            ("PREEMPTION_TIMER", 142_929),
            ("VMCALL", 1),
        ])
    );
    assert_eq!(
        counts("s0-td.txt"),
        of(&[("EPT_VIOLATION", 5121), ("EXTERNAL_INTERRUPT", 271_561), ("TDCALL", 137_299)])
    );
}

/// A share of Self is a share of everything, whatever the text leaves out.
#[test]
fn profiles_keep_their_shares() {
    let profile = |name: &str| {
        let bytes = sample(name);
        let format = profile::ProfileFormat::recognise(&bytes).unwrap();
        let mut input = bytes.as_slice();
        let source = ImportSource::Stream(&mut input);
        profile::import(format, ProfileOrigin::Host, source, &mut NoSymbols).unwrap().profile
    };
    let host = profile("s0-plain-host.txt");
    assert_eq!(
        host.stacks.into_iter().collect::<Vec<_>>(),
        [
            ("[not in the text]".to_owned(), 3585),
            ("add_atomic_switch_msr.constprop.0".to_owned(), 1034),
            ("kvm_load_host_xsave_state".to_owned(), 813),
            ("vmx_vcpu_run".to_owned(), 1634),
            ("vmx_vmexit".to_owned(), 2934),
        ]
    );
    let host = profile("perf-report-host.txt");
    assert_eq!((host.stacks["rtl8169_poll"], host.total()), (1110, 10_000));
}

/// The shares that were published of the hot function, as the screen of perf annotate shows them.
#[test]
fn annotations_copied_from_the_screen() {
    let bytes = sample("s0-plain-screen.annotate");
    for bytes in [bytes.clone(), String::from_utf8(bytes).unwrap().replace('│', "|").into_bytes()]
    {
        let format = profile::ProfileFormat::recognise(&bytes).unwrap();
        let mut input = bytes.as_slice();
        let source = ImportSource::Stream(&mut input);
        let place = ProfileOrigin::Instructions;
        let profile = profile::import(format, place, source, &mut NoSymbols).unwrap().profile;
        assert_eq!(
            profile.stacks.into_iter().collect::<Vec<_>>(),
            [
                ("compute_ref_matmul;0 movss (%rsi,%rax,4),%xmm1".to_owned(), 2000),
                ("compute_ref_matmul;1 pxor %xmm0,%xmm0".to_owned(), 0),
                ("compute_ref_matmul;2 mulss %xmm2,%xmm1".to_owned(), 3800),
                ("compute_ref_matmul;3 addss (%rdx),%xmm1".to_owned(), 4200),
            ]
        );
        assert!(read(&bytes).unwrap_err().contains("`vmtax import --guest-instructions`"));
    }
}

#[test]
fn texts_without_exits_say_what_to_give() {
    for (name, words) in [
        (
            "kvm_stat-counters.txt",
            "counts no exit by its reason (of 705683003 exits: irq_exits 443033416, io_exits 15393558, halt_exits 204769): run `kvm_stat -1 -t -f '^kvm_exit'`",
        ),
        ("split-lock-dmesg.txt", "boot the host with split_lock_detect=off"),
        ("split-lock-journal.txt", "boot the host with split_lock_detect=off"),
        ("dmesg-tdx.txt", "this is a kernel's log, which has no exits"),
        ("perf-stat-interval.txt", "this is perf stat's text in intervals"),
        ("perf-report-host.txt", "`vmtax import --host-profile`"),
        ("s0-plain-host.txt", "`vmtax import --host-profile`"),
        ("perf-report-symbols.txt", "run `perf report --stdio -s trace`"),
    ] {
        let error = read(&sample(name)).unwrap_err();
        assert!(error.contains(words), "{name}: {error}");
    }
    let base64 = "Content-Transfer-Encoding: base64\n\naGx0ICAgMzkKbXNyIDQK\n";
    assert!(read(base64.as_bytes()).unwrap_err().contains("base64 -d"));
}

/// Events in mail: quoted, broken at a column, or copied with a prompt.
#[test]
fn quoted_events() {
    let text = String::from_utf8(capture("amd-nested/input/trace-cmd-report.txt")).unwrap();
    let (whole, imported) = read(text.as_bytes()).unwrap();
    assert!(whole.events > 100 && !posted::is_posted(text.as_bytes()));
    let quoted: String = text.lines().map(|line| format!("> {line}\n")).collect();
    let (same, _) = read(quoted.as_bytes()).unwrap();
    assert_eq!(same.events, whole.events);
    let fenced = format!("Trace:\n```\n{text}```\n");
    let (same, of_fence) = read(fenced.as_bytes()).unwrap();
    assert_eq!(same.events, whole.events);
    assert_eq!(of_fence.losses.undecodable, imported.losses.undecodable);
    let line = "  qemu-system-x86-5665  [000] .... 1907374.500029: kvm_exit: reason EXTERNAL_INTERRUPT rip 0xffffffff81c01f58 info 0 800000fd\n  qemu-system-x86-5665  [000] d..1 1907374.500032: kvm_entry: vcpu 0, rip 0xffffffff81c01f58\n";
    let wrapped = line
        .repeat(3)
        .replace("reason ", "reason\n")
        .replace("rip 0xffffffff81c01f58\n", "rip\n0xffffffff81c01f58\n");
    let (broken, imported) = read(wrapped.as_bytes()).unwrap();
    assert_eq!((broken.events, imported.losses.undecodable), (6, 0));
}

/// What tools print themselves is not touched.
#[test]
fn recordings_as_printed_are_not_posts() {
    for path in [
        "amd-nested/input/perf-script.txt",
        "amd-nested/input/perf-script-lost.txt",
        "amd-nested/input/trace-cmd-report.txt",
        "amd-nested/input/trace-cmd-report-R.txt",
        "amd-bpftrace/input/names.bpftrace.txt",
        "amd-two-vms/expected/two-vms.kvmstat-vmexit.txt",
        "tools/input/latency-amd.txt",
        "tools/input/monitor-intel.csv",
        "tools/input/kvm-report-6.8.txt",
        "tools/input/perf-report-children.txt",
        "tools/input/perf-annotate-stdio2.txt",
        "profile/input/script.txt",
    ] {
        let bytes = capture(path);
        assert!(!posted::is_posted(&bytes[..bytes.len().min(HEAD)]), "{path}");
    }
    for path in [
        "amd-same-workload/input/workload.ftrace.txt.zst",
        "amd-same-workload/input/workload.script.txt.zst",
    ] {
        let bytes = zstd::decode_all(capture(path).as_slice()).unwrap();
        assert!(!posted::is_posted(&bytes[..bytes.len().min(HEAD)]), "{path}");
    }
}

/// Nothing takes longer than a pass over the text, or more memory than a few times its size.
#[test]
fn hostile_posts_end() {
    let texts = [
        ("> ".to_owned() + &"<p".repeat(1 << 19)) + "\n&gt; a\n</pre>",
        "> ".repeat(1 << 19) + "\n> x\n",
        "x 1 [000] 1.5: kvm_exit:\n".to_owned() + &"0x1\n".repeat(1 << 18),
        "hlt 1 1.00%\n".to_owned() + &"2us\n".repeat(1 << 18),
        "> a b ".to_owned() + &"1 2% ".repeat(1 << 18) + "\n> b\n",
        "```\n".repeat(1 << 18),
        "\u{1b}[".repeat(1 << 18),
    ];
    for text in texts {
        let restored = posted::restore(text.as_bytes()).unwrap();
        assert!(restored.len() <= 2 * text.len());
        let _ = read_as(text.as_bytes(), Isa::Vmx);
    }
    // A compressed file is none, whatever bytes are in it.
    let packed = b"\x1f\x8b\x08\x01\x1b\x5b\x03\x02\x1b\x0c\x05> \n> a\n";
    assert!(!posted::is_posted(packed));
}

fn all_samples() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/posted/input");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 15);
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Cut anywhere, a text is refused or gives no count above the whole's, and says that it may be cut where a row is missing.
#[test]
fn every_cut() {
    for whole in all_samples() {
        let all = read(&whole).ok();
        for at in 0..whole.len() {
            let Ok((kept, imported)) = read(&whole[..at]) else { continue };
            let Some((all, _)) = &all else { panic!("{}", String::from_utf8_lossy(&whole[..at])) };
            let is_said = !imported.losses.truncated.is_empty() || whole[..at].ends_with(b"\n");
            assert!(is_said || kept.exits == all.exits, "cut at {at}: {:?}", kept.exits);
            for (name, (count, _)) in &kept.exits {
                let most = all.exits.get(name).map_or(0, |(count, _)| *count);
                // Shares without a number of events are parts of a fixed sum.
                assert!(*count <= most || all.events > 0, "cut at {at}: {name} {count} of {most}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever is changed: a sentence, or counts; and what was restored needs nothing more.
    #[test]
    fn damaged_posts_are_refused_or_read(
        which in 0usize..64,
        keep in 0.0f64..=1.0,
        changes in proptest::collection::vec((0.0f64..1.0, any::<u8>()), 0..8),
    ) {
        let all = all_samples();
        let mut text = all[which % all.len()].clone();
        for (at, byte) in changes {
            let at = (at * text.len() as f64) as usize;
            text[at] = byte;
        }
        text.truncate((keep * text.len() as f64) as usize);
        if let Ok(restored) = posted::restore(&text) {
            prop_assert!(restored.lines().count() <= text.len() + 1);
        }
        if let Err(error) = read_as(&text, Isa::Vmx) {
            prop_assert!(!error.is_empty() && !error.contains('\n'), "{error:?}");
        }
    }
}
