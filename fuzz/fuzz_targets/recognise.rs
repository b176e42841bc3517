//! Bytes as what they seem to be: a format is found or a sentence says what was found, and what is
//! recognised by its first bytes is read without harm.
#![no_main]

use vmtax_capture::ImportFormat;
use vmtax_capture::import::HEAD;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    match ImportFormat::recognise(&data[..data.len().min(HEAD)]) {
        Ok(format) => vmtax_fuzz::check(format, data),
        Err(error) => assert!(error.to_string().contains("not a recording"), "{error}"),
    }
});
