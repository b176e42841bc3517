//! Bytes as `trace.dat`; without its magic, as what stands behind it.
#![no_main]

use vmtax_capture::ImportFormat;

const MAGIC: &[u8] = b"\x17\x08\x44tracing";

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if data.starts_with(MAGIC) {
        vmtax_fuzz::check(ImportFormat::TraceDat, data);
    } else {
        vmtax_fuzz::check(ImportFormat::TraceDat, &[MAGIC, data].concat());
    }
});
