//! Bytes as a text from a mail or a web page: restored or refused in words, and read as what it then seems to be.
#![no_main]

use vmtax_capture::import::HEAD;
use vmtax_capture::profile::perf_data::NoSymbols;
use vmtax_capture::{ImportFormat, ImportSource, posted, profile};
use vmtax_events::ProfileOrigin;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let is_posted = posted::is_posted(&data[..data.len().min(HEAD)]);
    let text = match posted::restore(data) {
        Ok(text) => text,
        Err(problem) => {
            assert!(is_posted && !problem.is_empty() && !problem.contains('\n'), "{problem:?}");
            return;
        }
    };
    let bytes = text.as_bytes();
    let head = &bytes[..bytes.len().min(HEAD)];
    if let Ok(format) = ImportFormat::recognise(head) {
        vmtax_fuzz::check(format, bytes);
    }
    let mut input = bytes;
    if profile::ProfileFormat::recognise(head).is_ok_and(|format| format == profile::ProfileFormat::PerfReport) {
        let source = ImportSource::Stream(&mut input);
        let format = profile::ProfileFormat::PerfReport;
        let Ok(imported) = profile::import(format, ProfileOrigin::Host, source, &mut NoSymbols) else { return };
        assert!(imported.profile.total() > 0);
    }
});
