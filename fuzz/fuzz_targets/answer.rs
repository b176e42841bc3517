//! Bytes as what an agent is asked, what it answers, and what an emulated host reports.
#![no_main]

use vmtax_guest::job::{JobAnswer, JobRequest};
use vmtax_guest::order::{Report, decode, encode};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // What is understood is written as it is read.
    if let Some(answer) = decode::<JobAnswer>(data) {
        assert_eq!(decode(&encode(&answer)), Some(answer));
    }
    if let Some(request) = decode::<JobRequest>(data) {
        assert_eq!(decode(&encode(&request)), Some(request));
    }
    if let Some(report) = decode::<Report>(data) {
        assert_eq!(decode(&encode(&report)), Some(report));
    }
});
