//! The same run twenty times: `./x soak`.

use crate::run::{assert_exits, assert_same_paths, exits, json};
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
