//! Bytes as the text of trace-cmd report.
#![no_main]

use vmtax_capture::ImportFormat;

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmtax_fuzz::check(ImportFormat::TraceCmdReport, data));
