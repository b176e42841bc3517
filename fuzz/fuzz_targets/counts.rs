//! Bytes as a table of exits, and as a log, that another tool printed.
#![no_main]

use vmtax_capture::ImportFormat;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(Ok(log)) = vmtax_capture::import::logs::read(&String::from_utf8_lossy(data)) {
        for (_, reading) in log.readings {
            assert!(reading.value.is_finite() && reading.value >= 0.0, "{reading:?}");
        }
    }
    vmtax_fuzz::check(ImportFormat::Counts, data);
});
