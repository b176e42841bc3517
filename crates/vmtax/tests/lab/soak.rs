//! The same run twenty times, and budgets: `./x soak`.

use crate::run::{assert_exits, assert_same_paths, exits, json, output, refused};
use crate::{amd, intel};

/// Runs in a row; the first may boot, the others go on from its saved state.
const RUNS: usize = 20;

/// All runs take the exits they must, and their paths are those of the first.
fn in_a_row(arguments: &[&str], expected: &[(&str, &str)]) {
    let first = json(arguments);
    assert_exits(&first, expected);
    for _ in 1..RUNS {
        let report = json(arguments);
        assert_exits(&report, expected);
        assert_same_paths(&first, &report);
    }
    eprintln!("{arguments:?}: {RUNS} runs alike, {} operations", exits(&first).len());
}

#[test]
#[ignore = "many minutes; ./x soak runs it"]
fn twenty_runs_in_a_row_on_amd() {
    in_a_row(&["lab", "run", "--nested"], amd::L1);
}

#[test]
#[ignore = "many minutes; ./x soak runs it"]
fn twenty_runs_in_a_row_on_intel() {
    in_a_row(&["lab", "run", "--host", "intel"], intel::L1);
}

/// A list of an environment variable, or this one.
fn listed(variable: &str, usual: &str) -> Vec<String> {
    let list = std::env::var(variable).unwrap_or_else(|_| usual.to_owned());
    list.split(',').map(str::to_owned).collect()
}

/// On each kernel and host a budget is blessed, and kept by each run after it: `./x soak budgets`. `VMTAX_BUDGET_KERNELS=6.1,7.3`, `VMTAX_BUDGET_HOSTS=amd` and
/// `VMTAX_BUDGET_RUNS=5` select others.
#[test]
#[ignore = "many minutes; ./x soak runs it"]
fn budgets_hold_on_every_kernel() {
    let runs: usize = listed("VMTAX_BUDGET_RUNS", "20")[0].parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut broken = Vec::new();
    for host in listed("VMTAX_BUDGET_HOSTS", "amd,intel") {
        for version in listed("VMTAX_BUDGET_KERNELS", "6.1,6.12,6.18,7.3") {
            let (kernel, budget) =
                (format!("debian:{version}"), folder.path().join(format!("{host}-{version}.toml")));
            let budget = budget.to_str().unwrap();
            let run = [
                "lab", "run", "--nested", "--host", &host, "--kernel", &kernel, "--budget", budget,
            ];
            let blessed = output(&[&run[..], &["--bless"]].concat());
            let said = String::from_utf8_lossy(&blessed.stderr);
            assert!(blessed.status.success(), "{host} {version}: {said}");
            let mut kept = 0;
            for number in 1..=runs {
                let (code, said) = refused(&run);
                match code {
                    0 => kept += 1,
                    _ => broken.push(format!("{host} {version}, run {number}: {said}")),
                }
            }
            eprintln!(
                "{host} {version}: {kept} of {runs} runs keep their budget; not in it: {said:?}"
            );
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
