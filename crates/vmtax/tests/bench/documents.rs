//! docs/measured/where-time-goes.md has the tables of kept runs: of one CPUID of L2 by kernel, of a compile, and of hosts of several processors; and
//! nested-peers.md those of workloads on Xen.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::processors::{TurnsCell, TurnsRun};
use crate::{CsvRow, csv, name, ok, reported};

/// Runs of one CPUID at L1 and L2, by host.
const KERNELS: [&str; 4] = ["6.1.0-56", "6.12.118+deb13", "6.18.15+deb13", "7.3.4+deb13"];
const HOSTS: [(&str, &str); 2] = [("intel", "Intel"), ("amd", "AMD")];
/// Runs of the compile.
const COMPILES: [(&str, &str); 2] = [("profiled-amd-6.1", "AMD"), ("profiled-intel-6.1", "Intel")];

/// Runs of the compile on the AMD host, by the kernel of all levels.
const COMPILES_BY_KERNEL: [(&str, &str); 3] =
    [("profiled-amd-6.1", "6.1"), ("profiled-amd-6.12", "6.12"), ("profiled-amd-7.3", "7.3")];

/// Runs of workloads.
const WORKLOADS: [(&str, &str, &str); 15] = [
    ("profiled-amd-6.1", "AMD", "compile"),
    ("profiled-amd-6.1-wakeups", "AMD", "wakeup"),
    ("profiled-amd-6.1-wakeups", "AMD", "ipi"),
    ("profiled-amd-6.1-streams", "AMD", "send"),
    ("profiled-amd-6.1-streams", "AMD", "receive"),
    ("profiled-amd-6.1-peers", "AMD", "send to a peer"),
    ("profiled-amd-6.1-peers", "AMD", "receive from a peer"),
    ("profiled-amd-6.1-memory", "AMD", "memory"),
    ("amd-6.1-boot", "AMD", "boot"),
    ("profiled-intel-6.1", "Intel", "compile"),
    ("profiled-intel-6.1-wakeup", "Intel", "wakeup"),
    ("profiled-intel-6.1-streams", "Intel", "send"),
    ("profiled-intel-6.1-streams", "Intel", "receive"),
    ("profiled-intel-6.1-memory", "Intel", "memory"),
    ("intel-6.1-boot", "Intel", "boot"),
];

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A number with commas.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A table of these columns; numbers are on the right.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        writeln!(text, "| {} |", row.join(" | ")).unwrap();
    }
    text
}

/// What L0 does for such a CPUID, and the functions that do it, with their callees. Each instruction belongs to the first that has it.
const WORKS: [(&str, &[&str]); 7] = [
    ("finds pages of L1's in memory", &["kvm_vcpu_map", "__kvm_vcpu_map", "kvm_vcpu_unmap"]),
    ("decodes instructions of L1 and L2", &["x86_decode_emulated_instruction"]),
    (
        "merges L1's MSR bitmap into its own",
        &["nested_svm_vmrun_msrpm", "nested_svm_merge_msrpm", "nested_vmx_prepare_msr_bitmap"],
    ),
    ("copies shadowed VMCS fields", &["copy_shadow_to_vmcs12", "nested_sync_vmcs12_to_shadow"]),
    ("updates CPUID's table", &["__kvm_update_cpuid_runtime"]),
    ("sets up walks of page tables", &["nested_vmx_load_cr3", "nested_svm_load_cr3"]),
    ("the rest", &[]),
];

/// One CPUID of L2 in one run.
struct NestedCpuid {
    kernel: &'static str,
    host: &'static str,
    /// Exits of L1, by name: `vmread`, `msr`.
    exits: BTreeMap<String, f64>,
    /// Instructions at L1 and at L2.
    paths: [f64; 2],
    /// Instructions of L2's by part: an instruction of L1 with its handling, or a level.
    parts: BTreeMap<String, f64>,
    /// Those of L0 by what they are for, [`WORKS`].
    works: [f64; WORKS.len()],
    /// Instructions of L0 and L1 by level and function, without callees.
    functions: BTreeMap<(String, String), f64>,
}

impl NestedCpuid {
    fn of(kernel: &'static str, (host, shown): (&str, &'static str)) -> NestedCpuid {
        let run = root(&format!("captures/kernels/l2-cpuid/{kernel}-{host}"));
        let json: Value = serde_json::from_str(&reported(&run, &["--format", "json"])).unwrap();
        let rows = json["operations"]["rows"].as_array().unwrap();
        let of_level = |level: &str| rows.iter().find(|row| row["level"] == level).unwrap();
        let path = |level| of_level(level)["path"]["median"].as_f64().unwrap();
        let mut exits = BTreeMap::new();
        let l2 = of_level("L2");
        for exit in l2["exits"].as_array().unwrap().iter().filter(|exit| exit["level"] == "L1") {
            let reason = exit["reason"].as_str().unwrap().to_lowercase();
            *exits.entry(reason).or_default() += exit["per_operation"].as_f64().unwrap();
        }
        let count = l2["count"].as_f64().unwrap();
        let folded = reported(&run, &["--format", "folded"]);
        let (mut parts, mut functions) = (BTreeMap::new(), BTreeMap::new());
        let mut works = [0.0; WORKS.len()];
        for line in folded.lines().filter(|line| line.starts_with("cpuid L2;")) {
            let (stack, own) = line.rsplit_once(' ').unwrap();
            let own = own.parse::<f64>().unwrap() / count;
            let frames: Vec<&str> = stack.split(';').skip(1).collect();
            let (level, function) = frames.last().unwrap().split_once(' ').unwrap();
            let cause = frames.iter().find_map(|frame| frame.strip_prefix("L1 ["));
            let part = cause.map_or(level, |cause| cause.trim_end_matches(']'));
            if level == "L0" {
                let names = frames.iter().filter_map(|frame| frame.strip_prefix("L0 "));
                let names: Vec<&str> = names.collect();
                let has = |(_, of): &(&str, &[&str])| names.iter().any(|name| of.contains(name));
                works[WORKS.iter().position(has).unwrap_or(WORKS.len() - 1)] += own;
            }
            *parts.entry(part.to_owned()).or_default() += own;
            *functions.entry((level.to_owned(), function.to_owned())).or_default() += own;
        }
        let paths = ["L1", "L2"].map(path);
        let sum: f64 = parts.values().sum();
        assert!((sum - paths[1]).abs() < 5.0, "{kernel} {host}: {sum} of {}", paths[1]);
        NestedCpuid { kernel, host: shown, exits, paths, parts, works, functions }
    }

    fn all() -> Vec<NestedCpuid> {
        let of_host = |host| KERNELS.map(|kernel| NestedCpuid::of(kernel, host));
        HOSTS.into_iter().flat_map(of_host).collect()
    }

    fn named(&self) -> String {
        format!("{} {}", self.host, self.kernel)
    }

    /// Instructions of this function of a level; 0 if it was not executed.
    fn function(&self, level: &str, function: &str) -> f64 {
        self.functions.get(&(level.to_owned(), function.to_owned())).copied().unwrap_or_default()
    }
}

/// A count, or nothing.
fn some(count: f64) -> String {
    if count == 0.0 { String::new() } else { grouped(count) }
}

/// Exits of L1 for one CPUID of L2.
fn ancillary(runs: &[NestedCpuid]) -> String {
    let published = ["Broadwell, Linux 4.13 (published, 2017)", "2", "1", "1", "1", "1", "", "6"];
    let mut rows = vec![published.map(str::to_owned).to_vec()];
    rows[0].extend(["", "", "25 (of cycles)"].map(str::to_owned));
    for run in runs {
        let exits =
            |names: &[&str]| names.iter().filter_map(|name| run.exits.get(*name)).sum::<f64>();
        let kinds = [
            exits(&["vmread"]),
            exits(&["vmwrite"]),
            exits(&["xsetbv"]),
            exits(&["msr", "msr_read", "rdmsr"]),
            exits(&["vmresume", "vmrun"]),
            exits(&["vmload", "vmsave"]),
        ];
        let all: f64 = run.exits.values().sum();
        assert_eq!(kinds.iter().sum::<f64>(), all, "{}: {:?}", run.named(), run.exits);
        let mut row = vec![run.named()];
        row.extend(kinds.map(some));
        row.extend([all, run.paths[0], run.paths[1]].map(grouped));
        row.push(format!("{:.1}", run.paths[1] / run.paths[0]));
        rows.push(row);
    }
    let head = [
        "",
        "VMREAD",
        "VMWRITE",
        "XSETBV",
        "RDMSR",
        "VMRESUME, VMRUN",
        "VMLOAD, VMSAVE",
        "all",
        "instructions at L1",
        "at L2",
        "L2/L1",
    ];
    table(&head, &rows)
}

/// The instructions of that CPUID, by what L1 executes.
fn parts(runs: &[NestedCpuid]) -> String {
    let columns: [(&str, &[&str]); 7] = [
        ("entry to L2", &["vmresume", "vmrun"]),
        ("L0, until it hands the exit to L1", &["L0"]),
        ("VMREAD", &["vmread"]),
        ("RDMSR", &["rdmsr"]),
        ("VMLOAD", &["vmload"]),
        ("VMSAVE", &["vmsave"]),
        ("L1 itself", &["L1"]),
    ];
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            let part =
                |names: &[&str]| names.iter().filter_map(|name| run.parts.get(*name)).sum::<f64>();
            let numbers = columns.map(|(_, names)| part(names));
            // The rest is L2's.
            assert!((numbers.iter().sum::<f64>() - run.paths[1]).abs() < 5.0, "{:?}", run.parts);
            let mut row = vec![run.named()];
            row.extend(numbers.map(some));
            row
        })
        .collect();
    let head: Vec<&str> = [""].into_iter().chain(columns.map(|(title, _)| title)).collect();
    table(&head, &rows)
}

/// What L0 does for that CPUID.
fn works(runs: &[NestedCpuid]) -> String {
    let row = |(at, (title, _)): (usize, &(&str, &[&str]))| {
        let mut row = vec![(*title).to_owned()];
        row.extend(runs.iter().map(|run| some(run.works[at])));
        row
    };
    let mut rows: Vec<Vec<String>> = WORKS.iter().enumerate().map(row).collect();
    let mut all = vec!["all of L0".to_owned()];
    all.extend(runs.iter().map(|run| grouped(run.works.iter().sum())));
    rows.push(all);
    let names: Vec<String> = runs.iter().map(NestedCpuid::named).collect();
    let head: Vec<&str> = ["L0"].into_iter().chain(names.iter().map(String::as_str)).collect();
    table(&head, &rows)
}

/// Functions of L0 with most instructions of that CPUID, in the oldest and in the newest kernel.
fn functions(runs: &[NestedCpuid]) -> String {
    const SHOWN: usize = 14;
    let mut text = String::new();
    for (_, host) in HOSTS {
        let of_host: Vec<&NestedCpuid> = runs.iter().filter(|run| run.host == host).collect();
        let most = |run: &NestedCpuid, function: &str| run.function("L0", function);
        let mut names: Vec<&str> = of_host
            .iter()
            .flat_map(|run| run.functions.keys())
            .filter(|(level, _)| level == "L0")
            .map(|(_, function)| function.as_str())
            .collect();
        names.sort_unstable();
        names.dedup();
        let newest = of_host[of_host.len() - 1];
        names.sort_by(|a, b| most(newest, b).total_cmp(&most(newest, a)));
        let rows: Vec<Vec<String>> = names[..SHOWN]
            .iter()
            .map(|function| {
                let mut row = vec![format!("`{function}`")];
                row.extend(of_host.iter().map(|run| grouped(most(run, function))));
                row
            })
            .collect();
        let title = format!("{host}: function of L0");
        let head: Vec<&str> = [title.as_str()].into_iter().chain(KERNELS).collect();
        text.push_str(&table(&head, &rows));
        text.push('\n');
    }
    text
}

/// The functions that the document of 2017 names, and what is there now, on Intel.
fn published(runs: &[NestedCpuid]) -> String {
    let today: [(&str, &str, &[&str]); 5] = [
        (
            "`nested_vmx_disable_intercept_for_msr`: a loop over 256 MSRs of the x2APIC",
            "`nested_vmx_prepare_msr_bitmap`, part of `nested_get_vmcs12_pages`",
            &["nested_get_vmcs12_pages", "nested_vmx_prepare_msr_bitmap"],
        ),
        (
            "`nested_vmx_run`: clearing of the 4 KiB of the MSR bitmap",
            "`nested_vmx_run`",
            &["nested_vmx_run"],
        ),
        (
            "`vmx_vcpu_run`: RDMSR of DEBUGCTL, VMRESUME",
            "`vmx_vcpu_run`, `__vmx_vcpu_run`",
            &["vmx_vcpu_run", "__vmx_vcpu_run"],
        ),
        ("`copy_shadow_to_vmcs12`", "`copy_shadow_to_vmcs12`", &["copy_shadow_to_vmcs12"]),
        ("`read_tsc`", "`read_tsc`", &["read_tsc"]),
    ];
    let intel: Vec<&NestedCpuid> = runs.iter().filter(|run| run.host == "Intel").collect();
    let rows: Vec<Vec<String>> = today
        .iter()
        .map(|(then, now, functions)| {
            let mut row = vec![(*then).to_owned(), (*now).to_owned()];
            row.extend(intel.iter().map(|run| {
                grouped(functions.iter().map(|function| run.function("L0", function)).sum())
            }));
            row
        })
        .collect();
    let head: Vec<&str> = ["2017 (published)", "now"].into_iter().chain(KERNELS).collect();
    table(&head, &rows)
}

/// What `compare` says of a workload of a kept run, beside the baseline.
struct Compared {
    functions: Vec<CsvRow>,
    exits: Vec<CsvRow>,
}

impl Compared {
    fn of(run: &str, workload: &str) -> Compared {
        Compared::beside(run, workload, "plain+nested")
    }

    /// In a category and its baseline.
    fn beside(run: &str, workload: &str, category: &str) -> Compared {
        let run = root(&format!("captures/bench-nested/{run}"));
        let rows = |what: &str| {
            let rows = csv(&ok(&["compare", name(&run), what, "--format", "csv"]));
            // A peer has rows of its own.
            let is_it = |row: &CsvRow| row["workload"] == workload && row["category"] == category;
            rows.into_iter().filter(is_it).collect()
        };
        // The trees of a boot are too large to be kept: what the command says of its largest functions is.
        let functions = match std::fs::read_to_string(run.join("functions.csv")) {
            Ok(kept) => csv(&kept),
            Err(_) => rows("--functions"),
        };
        Compared { functions, exits: rows("--exits") }
    }

    /// Instructions of a function of a code, or of `all`, in the baseline and in the category.
    fn of_function(&self, code: &str, function: &str) -> [Option<f64>; 2] {
        let is_it = |row: &&CsvRow| row["code"] == code && row["function"] == function;
        let row = self.functions.iter().find(is_it);
        ["instructions_baseline", "instructions"].map(|column| number(row, column))
    }

    /// The same, 0 where it has none.
    fn instructions(&self, code: &str, function: &str) -> [f64; 2] {
        self.of_function(code, function).map(Option::unwrap_or_default)
    }

    /// Exits of a guest, or of `all`, likewise.
    fn exits(&self, guest: &str) -> [f64; 2] {
        let is_sum = |row: &&CsvRow| row["guest"] == guest && row["reason"] == "all";
        let row = self.exits.iter().find(is_sum);
        ["exits_baseline", "exits"].map(|column| number(row, column).unwrap_or_default())
    }

    /// The functions of a code with most instructions in the category.
    fn functions(&self, code: &str, most: usize) -> impl Iterator<Item = &str> {
        let of_code = move |row: &&CsvRow| row["code"] == code && row["function"] != "all";
        self.functions.iter().filter(of_code).take(most).map(|row| row["function"].as_str())
    }
}

fn number(row: Option<&CsvRow>, column: &str) -> Option<f64> {
    row?[column].parse().ok()
}

/// Whose code an instruction can be.
const GUEST: &str = "workload's guest";
const L1: &str = "hypervisor in the VM";
const L0: &str = "host";

/// Workloads of VMs of arm64, on an ordinary host and on one of protected VMs.
fn of_arm() -> String {
    let mut rows = Vec::new();
    for workload in ["wakeup", "timer", "touch-4k"] {
        let run = Compared::beside("profiled-arm-6.1", workload, "pkvm");
        let [host, guest] = [L0, GUEST].map(|code| run.instructions(code, "all"));
        let mut cells = vec![format!("`{workload}`")];
        for (at, exits) in run.exits("all").into_iter().enumerate() {
            cells.extend([host[at] + guest[at], host[at], guest[at]].map(some));
            cells.push(format!("{exits:.3}"));
        }
        rows.push(cells);
    }
    let head = ["", "ordinary host", "L0", "guest", "exits", "with pKVM", "L0", "guest", "exits"];
    table(&head, &rows)
}

/// Workloads of a guest of KVM and of one of Xen, in a VM each: exits, and instructions by whose code they are.
fn peers() -> [String; 2] {
    let (mut of_exits, mut of_code) = (Vec::new(), Vec::new());
    for (workload, what) in
        [("touch", " (1 MiB)"), ("timer", " (1 ms)"), ("request", ""), ("read", "")]
    {
        let [kvm, xen] = ["plain+nested", "plain+xen"]
            .map(|category| Compared::beside("profiled-amd-6.1-xen", workload, category));
        let both = |run: &Compared| [GUEST, "its hypervisor"].map(|code| run.exits(code)[1]);
        let ([kvm_l2, kvm_l1], [xen_l2, xen_l1]) = (both(&kvm), both(&xen));
        let is_rdtsc = |row: &&CsvRow| row["guest"] == GUEST && row["reason"] == "rdtsc";
        let rdtsc = number(xen.exits.iter().find(is_rdtsc), "exits").unwrap();
        of_exits.push(vec![
            format!("`{workload}`{what}"),
            format!("{:.2}", kvm.exits(GUEST)[0]),
            format!("{kvm_l2:.2}, {kvm_l1:.1}"),
            format!("{:.1}", kvm_l1 / kvm_l2),
            format!("{xen_l2:.1}, {rdtsc:.1}"),
            format!("{xen_l1:.1}"),
            format!("{:.2}", xen_l1 / xen_l2),
        ]);
        let code = |run: &Compared, codes: &[&str], at: usize| {
            let counts = codes.iter().map(|code| grouped(run.instructions(code, "all")[at]));
            counts.collect::<Vec<_>>().join(", ")
        };
        of_code.push(vec![
            format!("`{workload}`"),
            code(&kvm, &[L0, GUEST], 0),
            code(&kvm, &[L0, L1, GUEST], 1),
            code(&xen, &[L0, L1, GUEST], 1),
        ]);
    }
    let head = [
        "",
        "plain: exits",
        "KVM: exits of L2, of L1",
        "L1's for one of L2's",
        "Xen: exits of L2, of these RDTSC",
        "exits of L1",
        "L1's for one of L2's",
    ];
    let code = ["instructions", "plain: L0, guest", "KVM: L0, L1, guest", "Xen: L0, L1, guest"];
    [table(&head, &of_exits), table(&code, &of_code)]
}

/// Instructions and exits of a compile at L1 and L2, by whose code it is.
fn compile() -> String {
    let mut rows = Vec::new();
    for (run, host) in COMPILES {
        let run = Compared::of(run, "compile");
        let mut add = |what: &str, base: String, own: String| {
            rows.push(vec![host.to_owned(), what.to_owned(), base, own]);
        };
        let codes = [(GUEST, "the guest that compiles"), (L1, "L1 as hypervisor"), (L0, "L0")];
        let mut sums = [0.0, 0.0];
        for (code, shown) in codes {
            let [base, own] = run.instructions(code, "all");
            sums = [sums[0] + base, sums[1] + own];
            add(shown, some(base), grouped(own));
        }
        let all = format!("{} ({:.3} times)", grouped(sums[1]), sums[1] / sums[0]);
        add("all", grouped(sums[0]), all);
        for (guest, shown) in [
            (GUEST, "exits of the guest that compiles"),
            ("its hypervisor", "exits of L1 as hypervisor"),
        ] {
            let [base, own] = run.exits(guest);
            add(shown, some(base), grouped(own));
        }
    }
    table(&["host", "", "at L1", "at L2"], &rows)
}

/// Instructions and exits of one operation of each workload.
fn workloads() -> String {
    let mut rows = Vec::new();
    for (run, host, workload) in WORKLOADS {
        let run = Compared::of(run, workload);
        let [l0, l1, guest] = [L0, L1, GUEST].map(|code| run.instructions(code, "all"));
        let [at_l1, at_l2] = [0, 1].map(|level| l0[level] + l1[level] + guest[level]);
        let exits = run.exits("all").map(|exits| match exits {
            many if many >= 100.0 => grouped(many),
            few => format!("{few:.2}"),
        });
        let mut cells = vec![format!("{host} `{workload}`")];
        let counts = [at_l1, l0[0], guest[0], at_l2, l0[1], l1[1], guest[1]];
        cells.extend(counts.map(grouped));
        cells.push(format!("{:.2}", at_l2 / at_l1));
        cells.push(exits.join(", "));
        rows.push(cells);
    }
    let head = [
        "",
        "at L1",
        "L0",
        "guest",
        "at L2",
        "L0",
        "L1 as hypervisor",
        "guest",
        "L2/L1",
        "exits at L1, L2",
    ];
    table(&head, &rows)
}

/// How late a thread wakes by the VM's own clock: percentiles that the workload prints.
fn latencies() -> String {
    const SHOWN: [&str; 5] = ["p50", "p90", "p99", "p99.9", "max"];
    const CELLS: [(&str, &str); 4] = [
        ("AMD, L1", "profiled-amd-6.1-wakeups/cells/00000-wakeup-plain-0.txt"),
        ("AMD, L2", "profiled-amd-6.1-wakeups/cells/00002-wakeup-plain+nested-0.txt"),
        ("Intel, L1", "profiled-intel-6.1-wakeup/cells/00000-wakeup-plain-0.txt"),
        ("Intel, L2", "profiled-intel-6.1-wakeup/cells/00001-wakeup-plain+nested-0.txt"),
    ];
    let rows = CELLS.map(|(shown, cell)| {
        let text = std::fs::read_to_string(root("captures/bench-nested").join(cell)).unwrap();
        let of = |name: &str| {
            let key = format!("latency_{name}_ns ");
            let value = text.lines().find_map(|line| line.strip_prefix(&key)).unwrap();
            grouped(value.parse().unwrap())
        };
        [vec![shown.to_owned()], SHOWN.map(of).to_vec()].concat()
    });
    table(&[&["ns"][..], &SHOWN].concat(), &rows)
}

/// The compile by kernel: instructions of each level, then functions of L0 at L2.
fn compile_by_kernel() -> String {
    const SHOWN: usize = 14;
    let runs = COMPILES_BY_KERNEL.map(|(run, _)| Compared::of(run, "compile"));
    let each = |label: &str, cell: &dyn Fn(&Compared) -> String| {
        [vec![label.to_owned()], runs.each_ref().map(cell).to_vec()].concat()
    };
    let of_code = |code: &'static str, level: usize| {
        move |run: &Compared| grouped(run.instructions(code, "all")[level])
    };
    let all = |run: &Compared, level: usize| -> f64 {
        [GUEST, L1, L0].map(|code| run.instructions(code, "all")[level]).iter().sum()
    };
    let rows = [
        each("at L1: the guest", &of_code(GUEST, 0)),
        each("at L1: L0", &of_code(L0, 0)),
        each("at L2: the guest", &of_code(GUEST, 1)),
        each("at L2: L1 as hypervisor", &of_code(L1, 1)),
        each("at L2: L0", &of_code(L0, 1)),
        each("all at L2 / all at L1", &|run| format!("{:.3}", all(run, 1) / all(run, 0))),
        each("exits of the guest, at L1", &|run| grouped(run.exits(GUEST)[0])),
        each("exits of the guest, at L2", &|run| grouped(run.exits(GUEST)[1])),
        each("exits of L1 as hypervisor", &|run| grouped(run.exits("its hypervisor")[1])),
    ];
    let head = |title| [&[title], &COMPILES_BY_KERNEL.map(|(_, kernel)| kernel)[..]].concat();
    let functions: Vec<Vec<String>> = runs[runs.len() - 1]
        .functions(L0, SHOWN)
        .map(|function| {
            each(&format!("`{function}`"), &|run| grouped(run.instructions(L0, function)[1]))
        })
        .collect();
    format!("{}\n{}", table(&head("AMD"), &rows), table(&head("L0 at L2"), &functions))
}

/// Functions of L0 and of L1 as hypervisor with most instructions of that compile.
fn of_compile() -> String {
    const SHOWN: usize = 12;
    let mut text = String::new();
    for (run, host) in COMPILES {
        let run = Compared::of(run, "compile");
        for (code, shown) in [(L0, "L0"), (L1, "L1 as hypervisor")] {
            // L1 is no hypervisor at L1.
            let levels = if code == L0 { 0..2 } else { 1..2 };
            let rows: Vec<Vec<String>> = run
                .functions(code, SHOWN)
                .map(|function| {
                    let each = run.of_function(code, function);
                    let each = each.map(|count| count.map_or_else(String::new, grouped));
                    [vec![format!("`{function}`")], each[levels.clone()].to_vec()].concat()
                })
                .collect();
            let title = format!("{host}, {shown}");
            let head = [&[title.as_str()], &["at L1", "at L2"][levels]].concat();
            text.push_str(&table(&head, &rows));
            text.push('\n');
        }
    }
    text
}

/// Two boots of a host of one, two and four processors.
fn processors() -> String {
    let mut rows = Vec::new();
    let numbers = [1, 2, 4];
    let runs = numbers.map(|processors| {
        ["a", "b"].map(|boot| {
            let run = root(&format!("captures/bench-processors/{processors}-{boot}"));
            TurnsRun::of(&run)
        })
    });
    for workload in ["ipi", "wakeup-across", "lock"] {
        for (category, level) in [("plain", "L1"), ("plain+nested", "L2")] {
            for (processors, boots) in numbers.iter().zip(&runs) {
                let cells = boots.each_ref().map(|boot| boot.cell(workload, category));
                let both = |of: &dyn Fn(&TurnsCell) -> String| {
                    let [one, two] = cells.each_ref().map(of);
                    if one == two { one } else { format!("{one}; {two}") }
                };
                let [one, two] = cells.each_ref().map(TurnsCell::all);
                let mut row = vec![format!("`{workload}`, {level}"), processors.to_string()];
                row.push(both(&|cell| cell.sent.map_or_else(String::new, |sent| cell.each(sent))));
                row.push(both(&|cell| cell.each(cell.halts)));
                row.push(both(&|cell| cell.each(cell.exits)));
                row.push(both(&|cell| grouped(cell.all())));
                row.push(format!("{:.1} %", 100.0 * (one - two).abs() / one.min(two)));
                row.push(both(&|cell| format!("{:.1} %", 100.0 * cell.waits)));
                rows.push(row);
            }
        }
    }
    let head = [
        "workload",
        "processors",
        "IPIs",
        "halts",
        "exits",
        "instructions",
        "differ by",
        "of them spin waits",
    ];
    table(&head, &rows)
}

/// The document has this between its two marks.
fn holds(mark: &str, table: &str) {
    is_in("where-time-goes", mark, table);
}

fn is_in(document: &str, mark: &str, table: &str) {
    let path = root(&format!("docs/measured/{document}.md"));
    let text = fs::read_to_string(&path).unwrap();
    let (start, end) = (format!("<!-- {mark} -->\n"), format!("<!-- end of {mark} -->"));
    let (before, rest) = text.split_once(&start).unwrap();
    let (there, after) = rest.split_once(&end).unwrap();
    if there == table {
        return;
    }
    if std::env::var_os("VMTAX_WRITE_DOCS").is_some() {
        fs::write(&path, format!("{before}{start}{table}{end}{after}")).unwrap();
        return;
    }
    panic!("{} has another table {mark}; VMTAX_WRITE_DOCS=1 writes it", path.display());
}

#[test]
fn the_document_has_the_tables_of_kept_runs() {
    let runs = NestedCpuid::all();
    holds("ancillary", &ancillary(&runs));
    holds("parts", &parts(&runs));
    holds("published", &published(&runs));
    holds("works", &works(&runs));
    holds("functions", &functions(&runs));
    holds("workloads", &workloads());
    holds("latencies", &latencies());
    holds("arm64", &of_arm());
    holds("compile", &compile());
    holds("of the compile", &of_compile());
    holds("compile by kernel", &compile_by_kernel());
    holds("processors", &processors());
    let [exits, instructions] = peers();
    is_in("nested-peers", "exits of workloads", &exits);
    is_in("nested-peers", "instructions of workloads", &instructions);
}
