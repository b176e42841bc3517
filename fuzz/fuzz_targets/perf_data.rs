//! Bytes as `perf.data`, file or stream as the header says; without a magic, as what stands behind it.
#![no_main]

use vmtax_capture::ImportFormat;
use vmtax_capture::import::perf_data::{recognise_file, recognise_pipe};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if recognise_pipe(data) {
        vmtax_fuzz::check(ImportFormat::PerfPipe, data);
    } else if recognise_file(data) {
        vmtax_fuzz::check(ImportFormat::PerfFile, data);
    } else if let Some((first, rest)) = data.split_first() {
        let pipe_size = 16u64;
        match first % 4 {
            0 => vmtax_fuzz::check(ImportFormat::PerfFile, &[b"PERFILE2", rest].concat()),
            1 => vmtax_fuzz::check(ImportFormat::PerfFile, &[b"2ELIFREP", rest].concat()),
            2 => {
                let head = [&b"PERFILE2"[..], &pipe_size.to_le_bytes()].concat();
                vmtax_fuzz::check(ImportFormat::PerfPipe, &[&head, rest].concat());
            }
            _ => {
                let head = [&b"2ELIFREP"[..], &pipe_size.to_be_bytes()].concat();
                vmtax_fuzz::check(ImportFormat::PerfPipe, &[&head, rest].concat());
            }
        }
    }
});
