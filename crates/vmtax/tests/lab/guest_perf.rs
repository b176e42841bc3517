//! A Linux guest whose stock perf counts and samples by the virtual PMU, and a small VMM that has it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vmtax_guest::job::{Answer, Job, Outcome, Request};
use vmtax_lab::{Host, VmPlan, VmSetup};
use vmtax_machine::programs::{self, Files};
use vmtax_machine::{Stop, kernel};

use crate::run::{cache, output};

/// The functions of the sampled program, of which the series published shares.
const FUNCTIONS: [&str; 6] = ["qux", "foo", "main", "bar", "__random_r", "__random"];
/// Rounds of the program, and nanoseconds from sample to sample: about 3,000 samples.
const ROUNDS: &str = "60000";
const PERIOD: &str = "50000";

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

/// perf stat counts exactly, and perf record's shares are those of the program's instructions, under reuse. Under legacy they
/// need not be: an event that is created anew counts time while the host is still creating it, so that many samples are of
/// the guest's write that had it created.
fn perf_works(host: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("ftest", folder.path(), &["-static"]);
    let known = known(&program, folder.path());
    // Its handler of a sample takes longer there than perf allows one to take.
    let script = format!(
        "echo 0 > /proc/sys/kernel/perf_cpu_time_max_percent
         perf stat -e cycles,branches ftest 1 1000
         perf stat -e cycles,branches ftest 1 2000
         perf record -q -e cpu-cycles -c {PERIOD} --all-user -o /tmp/data ftest {ROUNDS}
         perf report -i /tmp/data --stdio -q -F sample,symbol"
    );
    let files = [program.as_path(), &module(folder.path())];
    let (report, errors) = in_guest(host, "reuse", &files, &script);
    // Branches stand for CPUID instructions, of which the program has so many more.
    let branches = counted(&errors, "branches");
    assert_eq!(branches.len(), 2, "{errors}");
    assert_eq!(branches[1] - branches[0], 1000, "{errors}");
    let cycles = counted(&errors, "cycles");
    assert!(cycles[0] > 100_000 && cycles[0] < cycles[1] && cycles[1] < 1_000_000_000, "{errors}");

    let samples = FUNCTIONS.map(|function| {
        let line = report.lines().find(|l| l.trim_end().ends_with(&format!("[.] {function}")));
        line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0)
    });
    let all: f64 = samples.iter().sum();
    assert!(all > 1000.0, "{report}");
    for ((function, samples), known) in FUNCTIONS.iter().zip(samples).zip(known) {
        let share = samples / all;
        let gate = (3.0 * (known * (1.0 - known) / all).sqrt()).max(0.005);
        eprintln!("{host}: {function} {:.2} % of {:.2} %", 100.0 * share, 100.0 * known);
        assert!((share - known).abs() <= gate, "{function}: {share} of {known}\n{report}");
    }
}

#[test]
fn stock_perf_counts_and_samples_in_a_linux_guest() {
    perf_works("amd");
}

#[test]
#[ignore = "boots an Intel host and its guest; ./x soak runs it"]
fn stock_perf_counts_and_samples_on_intel() {
    perf_works("intel");
}

#[test]
fn without_the_module_a_linux_guest_reads_nonsense() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("ftest", folder.path(), &["-static"]);
    let (_, errors) = in_guest("amd", "reuse", &[&program], "perf stat -e cycles ftest 1");
    // RDPMC reads zero, so each time that perf reads the counter it adds what the counter was set to, half of its width.
    let [count] = counted(&errors, "cycles")[..] else { panic!("{errors}") };
    assert!(count >= (1 << 47) - 1, "{errors}");
}

/// A shell's commands on an emulated host itself.
fn on_host(programs: &[&Path], script: &str) -> Outcome {
    let mut files = Files::new();
    for program in programs {
        let path = programs::find(program.to_str().unwrap()).unwrap();
        let inside = Path::new("bin").join(program.file_name().unwrap());
        programs::add(&mut files, &program.display().to_string(), &path, &inside).unwrap();
    }
    let setup = VmSetup {
        plan: VmPlan {
            host: Host::Amd,
            options: Vec::new(),
            levels: Vec::new(),
            memory_mib: 256,
            cpus: 1,
            pmu: None,
        },
        kernel: distribution(),
        files,
        cache: cache().join("vmtax"),
        console: cache().join("example.txt"),
        limit: Duration::from_secs(600),
        answer: Duration::from_secs(600),
        stop: Stop::default(),
    };
    let mut vm = setup.start(&|_| {}).unwrap();
    let client = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let job = Job { client, limit_ms: 300_000, ..Job::default() };
    match vm.ask(&Request::Do(job)).unwrap().answer {
        Answer::Done(outcome) => outcome,
        Answer::Facts(facts) => panic!("{facts:?}"),
    }
}

#[test]
fn the_example_vmm_counts_exactly_beside_a_busy_program() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    run(Command::new(env!("CARGO")).current_dir(&workspace).args([
        "build",
        "--locked",
        "-q",
        "-p",
        "vmtax-vpmu",
        "--example",
        "vmm",
    ]));
    // CARGO_TARGET_TMPDIR is the target folder's tmp.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let vmm = target.join("debug/examples/vmm");
    // What competes for the one processor makes for switches, through which nothing may be lost.
    let script = "mount -t tracefs tracefs /sys/kernel/tracing
        (while :; do :; done) &
        vmm /sys/kernel/tracing/events/kvm/kvm_cpuid/id
        kill $!";
    let outcome = on_host(&[Path::new("sh"), Path::new("mount"), &vmm], script);
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
