//! Bytes as the output of a benchmark program: whatever it is, a value that is taken is a number that can be.
#![no_main]

use vmtax_bench::adapter::ADAPTERS;
use vmtax_capture::program::ClientOutput;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&which, rest)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    let adapter = &ADAPTERS[usize::from(which) % ADAPTERS.len()];
    for output in [
        ClientOutput { stdout: &text, ..ClientOutput::default() },
        ClientOutput { stderr: &text, ..ClientOutput::default() },
    ] {
        let Ok(readings) = adapter.readings(&output) else { continue };
        assert!(!readings.is_empty());
        for reading in readings {
            assert!(reading.value.is_finite() && reading.value >= 0.0, "{reading:?}");
            assert!(!reading.unit.is_empty(), "{reading:?}");
        }
    }
});
