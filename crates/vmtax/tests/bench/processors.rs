//! VMs on an emulated host of two processors: what vCPUs ask of each other is counted exactly in each boot, and none waits for another one's processor.

use std::collections::BTreeMap;
use std::path::Path;

use crate::documents::grouped;
use crate::{BenchRows, CsvRow, csv, matrix, name, ok, reported, row, rows, trees_are_whole};

const TWO: &str = r#"
name = "two processors"
repeats = 1
warmup = false
categories = ["plain"]
[vm]
accel = "amd"
processors = 2
memory = 160
[[workload]]
use = "ipi"
set = { seconds = 0.01 }
[[workload]]
use = "wakeup-across"
set = { seconds = 0.01 }
"#;

/// Interrupts for another vCPU that an operation of each workload takes.
const WORKLOADS: [(&str, f64); 2] = [("ipi", 2.0), ("wakeup-across", 1.0)];

/// What a run of such a host says: samples, exits and folded stacks.
pub(crate) struct TurnsRun {
    samples: BenchRows,
    exits: Vec<CsvRow>,
    folded: String,
}

impl TurnsRun {
    pub(crate) fn of(run: &Path) -> TurnsRun {
        let exits = ["--by", "vm,level,reason,detail", "--format", "csv"];
        TurnsRun {
            samples: rows(run),
            exits: csv(&reported(run, &exits)),
            folded: reported(run, &["--format", "folded"]),
        }
    }

    pub(crate) fn cell(&self, workload: &str, category: &str) -> TurnsCell {
        TurnsCell::of(self, workload, category)
    }
}

/// A workload in one boot of a host of several processors.
pub(crate) struct TurnsCell {
    /// Operations of the run whose exits were recorded.
    operations: f64,
    /// Exits of all levels.
    pub(crate) exits: f64,
    /// Interrupts for another vCPU, if the recording names them: of a guest's guest it does not. Halts of the vCPUs with the workload.
    pub(crate) sent: Option<f64>,
    pub(crate) halts: f64,
    /// Instructions of the profiled run by level, for each of its operations.
    instructions: BTreeMap<String, f64>,
    /// Those of the guest with the workload that wait for another processor, as a part of all.
    pub(crate) waits: f64,
}

/// Functions in which Linux spins until another processor has done something.
const SPIN_WAITS: [&str; 6] = [
    "smp_call_function_many_cond",
    "__pv_queued_spin_lock_slowpath",
    "native_queued_spin_lock_slowpath",
    "mutex_spin_on_owner",
    "rwsem_spin_on_owner",
    "osq_lock",
];

impl TurnsCell {
    fn of(run: &TurnsRun, workload: &str, category: &str) -> TurnsCell {
        let value = |metric| {
            row(&run.samples, workload, metric, category)["median"].parse::<f64>().unwrap()
        };
        let vm = format!("{workload} in {category} (repeat 0)");
        let level = if category == "plain" { "L1" } else { "L2" };
        let count = |is: &dyn Fn(&CsvRow) -> bool| -> f64 {
            let of_vm =
                run.exits.iter().filter(|row| row["table"] == "vmexit" && row["vm_name"] == vm);
            of_vm.filter(|row| is(row)).map(|row| row["count"].parse::<f64>().unwrap()).sum()
        };
        let of_guest = |row: &CsvRow| row["level"] == level;
        let exits = count(&|_| true);
        let sent = count(&|row| of_guest(row) && row["detail_name"] == "X2APIC_ICR");
        let operations = value("profile-operations");
        let (mut instructions, mut waits, mut all) = (BTreeMap::new(), 0.0, 0.0);
        for line in run.folded.lines().filter(|line| line.starts_with(&vm)) {
            let (stack, own) = line.rsplit_once(' ').unwrap();
            let own: f64 = own.parse().unwrap();
            let (of, function) = stack.rsplit_once(';').unwrap().1.split_once(' ').unwrap();
            *instructions.entry(of.to_owned()).or_default() += own / operations;
            all += own;
            if of == level && SPIN_WAITS.contains(&function) {
                waits += own;
            }
        }
        assert_eq!(all, value("profile-begun") - value("profile-undone"), "{vm}");
        TurnsCell {
            // Of a program it is one.
            operations: match workload {
                "lock" => 1.0,
                _ => (exits / value("exits")).round(),
            },
            exits,
            sent: Some(sent).filter(|_| level == "L1"),
            halts: count(&|row| of_guest(row) && row["reason"].starts_with("hlt")),
            instructions,
            waits: waits / all,
        }
    }

    pub(crate) fn all(&self) -> f64 {
        self.instructions.values().sum()
    }

    /// A count for each operation.
    pub(crate) fn each(&self, count: f64) -> String {
        match count / self.operations {
            few if self.operations > 1.0 => format!("{few:.2}"),
            all => grouped(all),
        }
    }
}

/// Two boots. Each wake-up is one interrupt and one halt; the program's start, its end and ticks add some. A vCPU whose interrupt comes before it halts does
/// not halt: 2 of 312 were seen.
#[test]
fn interrupts_between_processors_are_the_same_in_each_boot() {
    let folder = tempfile::tempdir().unwrap();
    let path = matrix(folder.path(), TWO);
    let runs = ["one", "two"].map(|boot| {
        let run = folder.path().join(boot);
        let text = ok(&["run", name(&path), "--profile", "--fresh", "-o", name(&run)]);
        assert!(text.contains("(QEMU TCG) with 2 processors that take turns)"), "{text}");
        trees_are_whole(&run);
        TurnsRun::of(&run)
    });
    for (workload, each) in WORKLOADS {
        let [one, two] = runs.each_ref().map(|run| run.cell(workload, "plain"));
        for TurnsCell { operations, sent, halts, waits, .. } in [&one, &two] {
            assert!(*operations > 100.0, "{workload}: {operations}");
            let expected = each * operations;
            let early = 0.02 * expected;
            for (what, found, fewer) in [("sent", sent.unwrap(), 0.0), ("halted", *halts, early)] {
                let more = found - expected;
                assert!(
                    (-fewer..=20.0).contains(&more),
                    "{workload}: {what} {found} of {expected}"
                );
            }
            // On one processor it is a fifth of all.
            assert!(*waits < 0.01, "{workload}: {waits}");
        }
        let (one, two) = (one.all(), two.all());
        assert!((one - two).abs() < 0.05 * one, "{workload}: {one} and {two}");
    }
}

/// What would run, and the run's own words.
#[test]
fn a_dry_run_shows_processors_and_vcpus() {
    let folder = tempfile::tempdir().unwrap();
    let text = TWO.replace("\"plain\"]", "\"plain\", \"plain+nested\"]");
    let text = ok(&["run", name(&matrix(folder.path(), &text)), "--dry-run"]);
    let shown =
        "  processors: 2 of the emulated host, 2 vCPUs, each pinned to one; processors take turns";
    assert_eq!(text.lines().filter(|line| *line == shown).count(), 2, "{text}");
    let lines = |word: &str| text.lines().filter(|line| line.contains(word)).count();
    // The host starts its processors; it and L1 each run a VM of two vCPUs.
    assert_eq!((lines(" maxcpus=1 vmtax.online"), lines(" vmtax.cpus=2")), (2, 3), "{text}");
}
