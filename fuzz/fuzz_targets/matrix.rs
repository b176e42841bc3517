//! Bytes as a matrix: it is refused with a sentence, or has cells that are each of one shard; and as what an agent answers.
#![no_main]

use vmtax_bench::matrix::Matrix;
use vmtax_bench::plan::{Shard, cells};
use vmtax_guest::job::{Answer, Request};
use vmtax_guest::order::{Report, decode, encode};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // What is understood is written as it is read.
    if let Some(answer) = decode::<Answer>(data) {
        assert_eq!(decode(&encode(&answer)), Some(answer));
    }
    if let Some(request) = decode::<Request>(data) {
        assert_eq!(decode(&encode(&request)), Some(request));
    }
    if let Some(report) = decode::<Report>(data) {
        assert_eq!(decode(&encode(&report)), Some(report));
    }
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
