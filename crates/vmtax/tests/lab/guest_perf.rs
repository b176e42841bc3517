//! A Linux guest whose stock perf counts and samples by the virtual PMU, and a small VMM that has it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vmtax_guest::job::{Job, JobAnswer, JobOutcome, JobRequest};
use vmtax_lab::{HostKind, VmPlan, VmSetup};
use vmtax_machine::programs::{self, FilesByPath};
use vmtax_machine::{Stop, kernel};

use crate::run::{cache, output};

/// The functions of the sampled program, of which the series published shares.
const FUNCTIONS: [&str; 6] = ["qux", "foo", "main", "bar", "__random_r", "__random"];
/// Rounds of the program, and nanoseconds from sample to sample: about 3,000 samples.
const ROUNDS: &str = "60000";
const PERIOD: &str = "50000";
/// Longer than the emulated Intel host takes to create an event.
const LONGER: &str = "100000";

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab").join(name)
}

/// Runs a program of this computer; what it says.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn compile(name: &str, folder: &Path, flags: &[&str]) -> PathBuf {
    let program = folder.join(name);
    let source = here(&format!("{name}.c"));
    run(Command::new("gcc").arg("-O1").args(flags).arg("-o").arg(&program).arg(source));
    program
}

/// The kernel of emulated hosts and their guests.
fn distribution() -> kernel::Kernel {
    let cache = cache().join("vmtax");
    std::fs::create_dir_all(&cache).unwrap();
    kernel::distribution(&cache).unwrap()
}

/// The guest's module, built for that kernel with the distribution's headers.
fn module(folder: &Path) -> PathBuf {
    let release = distribution().release;
    let headers = PathBuf::from(format!("/usr/src/linux-headers-{release}"));
    assert!(
        headers.exists(),
        "install linux-headers-{release}, or remove the older kernel in {:?}",
        cache()
    );
    let source = folder.join("module");
    let written = output(&["vpmu", "module", source.to_str().unwrap()]);
    assert!(written.status.success());
    run(Command::new("make")
        .arg("-C")
        .arg(headers)
        .arg(format!("M={}", source.display()))
        .arg("modules"));
    source.join("vmtax_rdpmc.ko")
}

/// The share of its instructions that each function has, by single-stepping some rounds of the program.
fn known(program: &Path, folder: &Path) -> Vec<f64> {
    let symbols = run(Command::new("nm").arg("-S").arg(program));
    let range = |function: &str| {
        let line = symbols.lines().find(|line| line.split(' ').nth(3) == Some(function)).unwrap();
        let number = |i| u64::from_str_radix(line.split(' ').nth(i).unwrap(), 16).unwrap();
        let (begin, size) = (number(0), number(1));
        format!("{begin:x}-{:x}", begin + size)
    };
    let steps = compile("steps", folder, &[]);
    let ranges = FUNCTIONS.map(range);
    let counts = run(Command::new(steps).args(ranges).arg("--").arg(program).arg("50"));
    let counts: Vec<f64> = counts.lines().map(|line| line.parse().unwrap()).collect();
    let all: f64 = counts.iter().sum();
    counts.iter().map(|count| count / all).collect()
}

/// Standard output and errors of a shell's commands in a Linux guest with the virtual PMU.
fn in_guest(host: &str, policy: &str, files: &[&Path], script: &str) -> (String, String) {
    let mut arguments = vec!["vpmu", "run", "--host", host, "--policy", policy];
    match files {
        [program] => arguments.extend(["--without-module", "--bring", program.to_str().unwrap()]),
        [program, module] => arguments.extend([
            "--bring",
            program.to_str().unwrap(),
            "--module",
            module.to_str().unwrap(),
        ]),
        _ => unreachable!("a program, and maybe the module"),
    }
    arguments.extend(["--bring", "perf", "--", "sh", "-c", script]);
    let output = output(&arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    (String::from_utf8(output.stdout).unwrap(), errors)
}

/// What perf stat counted, by event, without separators; one list for each time it ran.
fn counted(errors: &str, event: &str) -> Vec<u64> {
    let lines = errors.lines().filter(|line| line.split_whitespace().nth(1) == Some(event));
    lines.map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect()
}

/// What the virtual PMU did, as the last line of a run's errors says.
#[derive(Clone, Copy, Debug)]
struct PmuActivity {
    creates: u64,
    closes: u64,
    interrupts: u64,
    delivered: u64,
    merged: u64,
    dropped: u64,
}

impl PmuActivity {
    fn parse(errors: &str, policy: &str) -> PmuActivity {
        let begin = format!("vmtax: virtual PMU ({policy}): ");
        let line = errors.lines().last().and_then(|line| line.strip_prefix(&begin)).expect(errors);
        let numbers = line.replace(',', "");
        let words = numbers.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        let [creates, closes, interrupts, delivered, merged, dropped] = numbers[..] else {
            panic!("{line}")
        };
        PmuActivity { creates, closes, interrupts, delivered, merged, dropped }
    }
}

/// Samples of the program's functions at one instruction, one after the other.
///
/// They are one observation, not several: under legacy the event's period can end while the host is still creating it, and
/// then the guest is sampled again before it has executed an instruction.
struct SampleCluster<'a> {
    address: &'a str,
    function: &'a str,
    samples: f64,
}

/// Clusters of the lines "address function" of perf script.
fn clusters(script: &str) -> Vec<SampleCluster<'_>> {
    let mut clusters: Vec<SampleCluster<'_>> = Vec::new();
    for line in script.lines() {
        let mut words = line.split_whitespace();
        let (Some(address), Some(function)) = (words.next(), words.next()) else { continue };
        if !FUNCTIONS.contains(&function) {
            continue;
        }
        match clusters.last_mut().filter(|last| last.address == address) {
            Some(last) => last.samples += 1.0,
            None => clusters.push(SampleCluster { address, function, samples: 1.0 }),
        }
    }
    clusters
}

/// A function's share of the samples and the standard error of it: of a ratio estimate over clusters of unequal sizes.
fn share(clusters: &[SampleCluster<'_>], function: &str, known: f64) -> (f64, f64) {
    let all: f64 = clusters.iter().map(|c| c.samples).sum();
    let inside = |c: &SampleCluster<'_>| if c.function == function { c.samples } else { 0.0 };
    let squares = clusters.iter().map(|c| (inside(c) - known * c.samples).powi(2));
    (clusters.iter().map(inside).sum::<f64>() / all, squares.sum::<f64>().sqrt() / all)
}

/// Standard errors by which a share may be off: twelve shares are compared in each run of the tests, and three errors would be exceeded
/// by one of them in every thirtieth run.
const ERRORS: f64 = 5.0;

/// Each function's share is within five standard errors, or half a point, of its share of the program's instructions.
fn check_shares(what: &str, script: &str, known: &[f64]) {
    let clusters = clusters(script);
    // Below that a share's error is not normally distributed.
    assert!(clusters.len() >= 600, "{what}: {} clusters\n{script}", clusters.len());
    for (function, known) in FUNCTIONS.iter().zip(known) {
        let (share, error) = share(&clusters, function, *known);
        let [found, expected, error] = [share, *known, error].map(|part| 100.0 * part);
        eprintln!("{what}: {function} {found:.2} % of {expected:.2} %, standard error {error:.2}");
        assert!(
            (found - expected).abs() <= (ERRORS * error).max(0.5),
            "{what}: {function}\n{script}"
        );
    }
}

/// Under each policy perf stat counts exactly, perf record's samples are the interrupts that the guest got, and its shares
/// are those of the program's instructions within their standard errors.
fn perf_works(host: &str, policy: &str, period: &str) {
    let what = format!("{host}, {policy}");
    let folder = tempfile::tempdir().unwrap();
    let program = compile("ftest", folder.path(), &["-static"]);
    let known = known(&program, folder.path());
    // Its handler of a sample takes longer there than perf allows one to take.
    let script = format!(
        "echo 0 > /proc/sys/kernel/perf_cpu_time_max_percent
         perf stat -e cycles,branches ftest 1 1000
         perf stat -e cycles,branches ftest 1 2000
         perf record -q -e cpu-cycles -c {period} --all-user -o /tmp/data ftest {ROUNDS}
         perf script -i /tmp/data -F ip,sym"
    );
    let files = [program.as_path(), &module(folder.path())];
    let (script, errors) = in_guest(host, policy, &files, &script);
    // Branches stand for CPUID instructions, of which the program has so many more.
    let branches = counted(&errors, "branches");
    assert_eq!(branches.len(), 2, "{errors}");
    assert_eq!(branches[1] - branches[0], 1000, "{errors}");
    let cycles = counted(&errors, "cycles");
    assert!(cycles[0] > 100_000 && cycles[0] < cycles[1] && cycles[1] < 1_000_000_000, "{errors}");

    let activity = PmuActivity::parse(&errors, policy);
    let samples = script.lines().filter(|line| line.starts_with(' ')).count() as u64;
    eprintln!("{what}: {samples} samples, {activity:?}");
    let PmuActivity { creates, closes, interrupts, delivered, merged, dropped } = activity;
    assert_eq!(interrupts, delivered + merged + dropped, "{what}");
    assert_eq!((merged, dropped), (0, 0), "{what}: {activity:?}");
    // One that comes as perf disables its event has none.
    assert!(delivered - samples <= 1, "{what}: {samples} samples, {activity:?}");
    match policy {
        // One event for each run of perf and of its counters, but for those that were idle for a slice.
        // Closed after a slice without use, or still open.
        "reuse" => assert!(creates < 20 && closes <= creates, "{what}: {activity:?}"),
        // At an overflow, and as the guest's handler enables its counters again.
        _ => assert!(
            creates >= 2 * interrupts && closes <= creates && closes + 7 >= creates,
            "{what}: {activity:?}"
        ),
    }
    check_shares(&what, &script, &known);
}

#[test]
fn stock_perf_counts_and_samples_in_a_linux_guest() {
    perf_works("amd", "reuse", PERIOD);
}

#[test]
fn stock_perf_counts_and_samples_in_a_linux_guest_under_legacy() {
    perf_works("amd", "legacy", PERIOD);
}

#[test]
#[ignore = "boots an Intel host and its guest; ./x soak runs it"]
fn stock_perf_counts_and_samples_on_intel() {
    perf_works("intel", "reuse", PERIOD);
    perf_works("intel", "legacy", LONGER);
    legacy_loses_samples_on_intel();
}

/// Linux's handler for Intel enables the counters before it unmasks LVTPC (arch/x86/events/intel/core.c:
/// intel_pmu_handle_irq, late_ack). Under legacy, the write that enables them creates an event, which takes the host longer
/// than a short period: the overflow finds LVTPC masked, and its interrupt is lost. Then the counter runs on until the
/// guest's next tick sets it anew.
fn legacy_loses_samples_on_intel() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("ftest", folder.path(), &["-static"]);
    let script = format!(
        "echo 0 > /proc/sys/kernel/perf_cpu_time_max_percent
         perf record -q -e cpu-cycles -c {PERIOD} --all-user -o /tmp/data ftest {ROUNDS}
         perf script -i /tmp/data -F ip,sym"
    );
    let files = [program.as_path(), &module(folder.path())];
    let (script, errors) = in_guest("intel", "legacy", &files, &script);
    let samples = script.lines().filter(|line| line.starts_with(' ')).count() as u64;
    let activity = PmuActivity::parse(&errors, "legacy");
    eprintln!("intel, legacy, short period: {samples} samples, {activity:?}");
    let PmuActivity { interrupts, delivered, merged, dropped, .. } = activity;
    assert_eq!(interrupts, delivered + merged + dropped);
    assert!(delivered - samples <= 1, "{samples} samples, {activity:?}");
    // Each sample's handler loses the next overflow: one interrupt of two, and all samples until the next tick.
    assert!(dropped + 2 >= delivered && dropped <= delivered, "{activity:?}");
    assert!(samples < 500, "{samples} samples, {activity:?}");
}

#[test]
fn without_the_module_a_linux_guest_reads_wrong_counts() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("ftest", folder.path(), &["-static"]);
    let (_, errors) = in_guest("amd", "reuse", &[&program], "perf stat -e cycles ftest 1");
    // RDPMC reads zero, so each time that perf reads the counter it adds what the counter was set to, half of its width.
    let [count] = counted(&errors, "cycles")[..] else { panic!("{errors}") };
    assert!(count >= (1 << 47) - 1, "{errors}");
}

/// A shell's commands on an emulated host itself.
fn on_host(host: HostKind, programs: &[&Path], script: &str) -> JobOutcome {
    let mut files = FilesByPath::new();
    let last = programs.iter().filter_map(|program| program.file_name()).next_back();
    let console = format!("{}-{}.txt", host.name(), last.unwrap().display());
    for program in programs {
        let path = programs::find(program.to_str().unwrap()).unwrap();
        let inside = Path::new("bin").join(program.file_name().unwrap());
        programs::add(&mut files, &program.display().to_string(), &path, &inside).unwrap();
    }
    let setup = VmSetup {
        plan: VmPlan {
            host,
            options: Vec::new(),
            levels: Vec::new(),
            memory_mib: 256,
            processors: 1,
            cpus: 1,
            pmu: None,
        },
        kernel: distribution(),
        files,
        cache: cache().join("vmtax"),
        fresh: false,
        console: cache().join(console),
        limit: Duration::from_secs(600),
        answer: Duration::from_secs(600),
        profile: false,
        annotate: Vec::new(),
        stop: Stop::default(),
    };
    let mut vm = setup.start(&|_| {}).unwrap();
    let client = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let job = Job { client, limit_ms: 300_000, ..Job::default() };
    match vm.ask(&JobRequest::Do(job)).unwrap().answer {
        JobAnswer::Done(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

/// An example of the library, built.
fn example(name: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    run(Command::new(env!("CARGO")).current_dir(&workspace).args([
        "build",
        "--locked",
        "-q",
        "-p",
        "vmtax-vpmu",
        "--example",
        name,
    ]));
    // CARGO_TARGET_TMPDIR is the target folder's tmp.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    target.join("debug/examples").join(name)
}

#[test]
fn the_example_vmm_counts_exactly_beside_a_busy_program() {
    let vmm = example("vmm");
    // What competes for the one processor makes for switches, through which nothing may be lost.
    let script = "mount -t tracefs tracefs /sys/kernel/tracing
        (while :; do :; done) &
        vmm /sys/kernel/tracing/events/kvm/kvm_cpuid/id
        kill $!";
    let outcome = on_host(HostKind::Amd, &[Path::new("sh"), Path::new("mount"), &vmm], script);
    let text = String::from_utf8_lossy(&outcome.stdout);
    let errors = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.problem.is_empty(), "{}: {errors}", outcome.problem);
    let lines: Vec<&str> = text.lines().collect();
    // The CPUID instructions, and the register that the VMM has for itself.
    assert_eq!(lines[..2], ["guest: 100000", "guest: 4660"], "{text}");
    let slices = lines[2].strip_prefix("slices: ").and_then(|rest| rest.split(',').next());
    assert!(slices.unwrap().parse::<u64>().unwrap() > 0, "{text}");
    assert!(lines[2].ends_with("notices: []"), "{text}");
}
