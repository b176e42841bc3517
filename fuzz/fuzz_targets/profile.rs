//! Bytes as a profile: whatever it is, its weights add up, and its stacks stay stacks.
#![no_main]

use vmtax_capture::ImportSource;
use vmtax_capture::profile::{ProfileFormat, import, perf_data::NoSymbols};
use vmtax_events::ProfileOrigin;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(format) = ProfileFormat::recognise(&data[..data.len().min(64 << 10)]) else { return };
    let place = if format == ProfileFormat::Annotate { ProfileOrigin::Instructions } else { ProfileOrigin::Host };
    let mut input = data;
    let source =
        if format.needs_seeking() { ImportSource::Random(&data) } else { ImportSource::Stream(&mut input) };
    let Ok(imported) = import(format, place, source, &mut NoSymbols) else { return };
    let profile = imported.profile;
    assert!(!profile.stacks.is_empty());
    for (name, weight) in profile.functions() {
        assert!(weight.own <= weight.total, "{name:?}");
    }
    if format != ProfileFormat::Folded {
        assert!(profile.stacks.keys().all(|stack| !stack.contains(char::is_control)));
    }
});
