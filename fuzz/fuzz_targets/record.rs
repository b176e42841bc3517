//! Bytes as the record of a recorder inside an emulator: a call tree that adds up, or a sentence.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Err(problem) = vmtax_lab::imagined::check_record(data) {
        assert!(!problem.is_empty());
    }
});
