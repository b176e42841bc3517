//! Bytes as a list of counters: each has a name and a value that is a count.
#![no_main]

use vmtax_capture::stats;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut input = data;
    match stats::read(&mut input) {
        Ok((read, _)) => {
            assert!(!read.is_empty());
            for stat in read {
                assert!(!stat.name.is_empty() && stat.name.len() <= 256, "{stat:?}");
                assert!(stat.value.is_finite() && stat.value >= 0.0, "{stat:?}");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
