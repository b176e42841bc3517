//! Bytes as the text of trace-cmd report.
#![no_main]

use vmtax_capture::Format;

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmtax_fuzz::check(Format::TraceCmdReport, data));
