//! Bytes as a bpftrace dump.
#![no_main]

use vmtax_capture::ImportFormat;

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmtax_fuzz::check(ImportFormat::Bpftrace, data));
