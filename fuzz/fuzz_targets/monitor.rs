//! Bytes as answers of QEMU's human monitor: memory that it shows lies within addresses.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmtax_machine::vm::check_answer(&String::from_utf8_lossy(data));
});
