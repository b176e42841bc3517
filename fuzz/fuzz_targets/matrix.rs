//! Bytes as a matrix: it is refused with a sentence, or has cells that are each of one shard.
#![no_main]

use vmtax_bench::matrix::Matrix;
use vmtax_bench::plan::{Shard, cells};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let matrix = match Matrix::read(text) {
        Ok(matrix) => matrix,
        Err(why) => {
            assert!(!why.is_empty() && !why.contains('\n'), "{why:?}");
            return;
        }
    };
    let all = matrix.categories.len() * matrix.workloads.len() * matrix.repeats as usize;
    let numbers = |shard| cells(&matrix, shard).into_iter().map(|cell| cell.number(&matrix));
    // Workloads that do not fit a category have no cells there.
    let mut whole: Vec<u32> = numbers(Shard::WHOLE).collect();
    let mut parts: Vec<u32> = (1..=3).flat_map(|number| numbers(Shard { number, of: 3 })).collect();
    whole.sort_unstable();
    parts.sort_unstable();
    assert_eq!(whole, parts);
    assert!(
        whole.is_sorted_by(|a, b| a < b)
            && whole.iter().all(|number| (1..=all).contains(&(*number as usize)))
    );
});
