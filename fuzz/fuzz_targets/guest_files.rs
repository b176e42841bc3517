//! Bytes as a program of the lab's suite `paging`, and as the frames of a process.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vmtax_lab::paging::check_files(data));
