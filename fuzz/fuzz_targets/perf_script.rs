//! Bytes as the text of perf script.
#![no_main]

use vmtax_capture::ImportFormat;

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmtax_fuzz::check(ImportFormat::PerfScript, data));
