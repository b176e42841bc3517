//! Bytes as a folder of `perf record --threads`: the first two are the length of a part, what follows is a file of perf,
//! and its end is cut into parts.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(([a, b], rest)) = data.split_first_chunk::<2>() else { return };
    let part = usize::from(u16::from_le_bytes([*a, *b])).max(1);
    let (file, tail) = rest.split_at(rest.len().saturating_sub(4 * part));
    let parts: Vec<&[u8]> = tail.chunks(part).collect();
    vmtax_fuzz::check_folder(file, &parts);
});
