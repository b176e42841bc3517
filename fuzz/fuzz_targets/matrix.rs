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
    let whole = cells(&matrix, Shard::WHOLE);
    let expected = matrix.categories.len() * matrix.workloads.len() * matrix.repeats as usize;
    assert_eq!(whole.len(), expected);
    let mut numbers: Vec<u32> = (1..=3)
        .flat_map(|number| cells(&matrix, Shard { number, of: 3 }))
        .map(|cell| cell.number(&matrix))
        .collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(1..=expected as u32));
});
