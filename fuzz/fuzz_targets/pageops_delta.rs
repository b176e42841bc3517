//! Deltas of both forms: encoders of all variants agree and what they make comes back; decoders take any bytes.
#![no_main]

use vmtax_pageops::delta::{self, Delta};
use vmtax_pageops::{Cpu, xbzrle};

/// Longest page.
const PAGE: usize = 8192;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [kind, data @ ..] = data else { return };
    if kind % 2 == 0 {
        return any_bytes(data);
    }
    // Two states of a page: the first half, and the second half against it.
    let len = (data.len() / 2).min(PAGE) & !7;
    let old = &data[..len];
    let mut new = data[len..2 * len].to_vec();
    // Mostly equal, or runs would be rare.
    for (i, byte) in new.iter_mut().enumerate() {
        if *byte % 4 != 0 {
            *byte = old[i];
        }
    }
    let mut first: Option<(Result<Vec<u8>, xbzrle::Overflow>, Vec<u8>)> = None;
    for cpu in Cpu::variants() {
        let mut buffer = vec![0; len + usize::from(*kind)];
        let size = cpu.xbzrle_encode(old, &new, &mut buffer);
        let encoded = size.map(|size| buffer[..size].to_vec());
        let mut record = vec![0; 2 * len];
        let size = match cpu.delta_create(old, &new, &mut record) {
            Ok(Delta::Equal) => 0,
            Ok(Delta::Differs(size)) => size,
            other => panic!("{cpu:?}: {other:?}"),
        };
        record.truncate(size);
        if let Ok(encoded) = &encoded {
            let mut page = old.to_vec();
            xbzrle::decode(encoded, &mut page).expect("what was encoded decodes");
            assert_eq!(page, new);
        }
        let mut page = old.to_vec();
        delta::apply(&record, &mut page).expect("what was created applies");
        assert_eq!(page, new);
        match &first {
            None => first = Some((encoded, record)),
            Some(first) => assert_eq!(first, &(encoded, record), "{cpu:?}"),
        }
    }
});

fn any_bytes(data: &[u8]) {
    let mut page = vec![0xa5; 4096];
    if let Ok(end) = xbzrle::decode(data, &mut page) {
        assert!(end <= page.len() && page[end..].iter().all(|b| *b == 0xa5));
    }
    let before = page.clone();
    if delta::apply(data, &mut page).is_err() {
        assert_eq!(page, before, "a refused record changed the region");
    }
}
