//! Formats with fields that are no numbers, and files that end early or contradict themselves.

use vmtax_capture::Error;

use super::build::{Spec, record, sample};
use super::{
    EXIT_FIELDS, ORDERS, everything, exit_event, exit_sample, format, forms, import, spec, try_read,
};

#[test]
fn a_field_that_is_used_and_no_number_is_a_loss() {
    let rows = [
        ("u64 info1;\toffset:16;\tsize:8", "__data_loc char[] info1;\toffset:16;\tsize:4"),
        ("u64 info1;\toffset:16;\tsize:8", "__rel_loc char[] info1;\toffset:16;\tsize:4"),
        ("u64 info1;\toffset:16;\tsize:8", "u8 info1[8];\toffset:16;\tsize:8"),
        ("u64 info1;\toffset:16;\tsize:8", "struct x info1;\toffset:16;\tsize:300"),
    ];
    for (number, other) in rows {
        for big in ORDERS {
            let mut s = spec(big, sample::USUAL);
            s.formats[0] = format("kvm_exit", 300, &EXIT_FIELDS.replace(number, other));
            assert!(s.formats[0].contains(other));
            s.sample(0, &exit_sample(big, 100, 0, 1));
            let (imported, collect) = import(&s.file());
            assert_eq!(collect.events, [], "{other}");
            let note = "the format of the event \"kvm_exit\" is not understood: skipped";
            assert_eq!(imported.losses.notes, [note]);
        }
    }
}

#[test]
fn a_format_without_a_required_field_is_reported() {
    for needed in ["unsigned int exit_reason", "__data_loc char[] exit_reason"] {
        let other = if needed.starts_with('_') { needed } else { "u32 why" };
        let mut s = spec(false, sample::USUAL);
        let fields = EXIT_FIELDS.replace("unsigned int exit_reason", other);
        s.formats[0] = format("kvm_exit", 300, &fields);
        s.sample(0, &exit_sample(false, 100, 0, 1));
        for bytes in forms(&s) {
            let (imported, collect) = import(&bytes);
            assert_eq!(collect.events, []);
            assert_eq!(
                imported.losses.notes,
                ["the format of the event \"kvm_exit\" is not understood: skipped"]
            );
        }
    }
}

#[test]
fn data_shorter_than_its_format_cannot_be_decoded() {
    let mut s = spec(false, sample::USUAL);
    let mut short = exit_sample(false, 100, 0, 1);
    short.raw.truncate(20);
    s.sample(0, &short).sample(0, &exit_sample(false, 200, 0, 2));
    let (imported, collect) = import(&s.file());
    assert_eq!(collect.events, [exit_event(200, 0, 2)]);
    assert_eq!(imported.losses.undecodable, 1);
}

/// Two exits, and features behind them. Times 100 and 200.
fn two() -> Spec {
    let mut s = spec(false, sample::USUAL);
    s.sample(0, &exit_sample(false, 100, 0, 1)).sample(0, &exit_sample(false, 200, 0, 2));
    s.features = vec![(3, s.text("host1")), (4, s.text("6.1.0"))];
    s
}

/// Places in the file of `two()`: header, ids, attribute, data, list of features, the features.
const ATTR: usize = 104 + 16;
const DATA: usize = ATTR + 144;
const SAMPLE: usize = 96;
const LIST: usize = DATA + 2 * SAMPLE;
const PAYLOADS: usize = LIST + 3 * 16;

fn set(mut bytes: Vec<u8>, at: usize, n: u64) -> Vec<u8> {
    bytes[at..at + 8].copy_from_slice(&n.to_le_bytes());
    bytes
}

fn cut(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    bytes.truncate(at);
    bytes
}

#[test]
fn the_places_are_right() {
    let (bytes, tracing) = (two().file(), two().tracing_data().len());
    assert_eq!(bytes[DATA..][..8], [9, 0, 0, 0, 0, 0, SAMPLE as u8, 0]);
    assert_eq!(bytes[LIST..][..8], (PAYLOADS as u64).to_le_bytes());
    assert_eq!(bytes.len(), PAYLOADS + tracing + 2 * 68);
}

#[test]
fn unreadable_recordings_are_errors() {
    let file = || two().file();
    let len = file().len();
    let tracing = two().tracing_data().len();
    let no_formats = Spec { formats: Vec::new(), ..two() };
    let none = "at byte 0: tracing data: the recording has none: no tracepoint was recorded; \
                record with -e 'kvm:*' or perf kvm stat record";
    let pipe = two().pipe();
    let payload = pipe.windows(4).position(|w| w == b"\x17\x08\x44t").unwrap();
    let rows: Vec<(&str, Vec<u8>, String)> = vec![
        (
            "killed before it finished",
            set(file(), 48, 0),
            "at byte 40: data section: is empty: perf was stopped before it finished the file; \
             record again, and end perf with Ctrl-C"
                .to_owned(),
        ),
        (
            "header cut",
            cut(file(), 60),
            "at byte 60: perf.data header: the file ends in it".to_owned(),
        ),
        (
            "stream's header cut",
            b"PERFILE2\x10\0\0\0".to_vec(),
            "at byte 0: perf.data header: does not begin with PERFILE2".to_owned(),
        ),
        (
            "attributes beyond the file",
            set(file(), 24, 1 << 40),
            format!(
                "at byte {}: attributes: of 144 bytes does not fit in the file of {len} bytes",
                1u64 << 40
            ),
        ),
        (
            "attributes that wrap around",
            set(file(), 24, u64::MAX),
            format!(
                "at byte {}: attributes: of 144 bytes does not fit in the file of {len} bytes",
                u64::MAX
            ),
        ),
        (
            "ids beyond the file",
            set(file(), ATTR + 128, 1 << 40),
            format!(
                "at byte {}: event ids: of 16 bytes does not fit in the file of {len} bytes",
                1u64 << 40
            ),
        ),
        (
            "small attributes",
            set(file(), 16, 8),
            format!("at byte {ATTR}: attributes: of 8 bytes each"),
        ),
        (
            "file cut in the data",
            cut(file(), DATA + 10),
            format!(
                "at byte {}: tracing data: cut off: the file ends before it, and before byte {LIST}, which gives its \
                 position; without it no sample can be decoded. Copy the file again, or record again",
                DATA + 10
            ),
        ),
        (
            "list of features cut in its first",
            cut(file(), LIST + 8),
            format!(
                "at byte {}: tracing data: cut off: the file ends before it, and before byte {LIST}, which gives its \
                 position; without it no sample can be decoded. Copy the file again, or record again",
                LIST + 8
            ),
        ),
        (
            "tracing data cut",
            cut(file(), PAYLOADS + 30),
            format!(
                "at byte {PAYLOADS}: feature section: of {tracing} bytes does not fit in the file of {} bytes",
                PAYLOADS + 30
            ),
        ),
        ("no tracing data", no_formats.file(), none.to_owned()),
        ("no tracing data in a stream", no_formats.pipe(), none.to_owned()),
        ("a stream of a header", cut(pipe.clone(), 16), none.to_owned()),
        (
            "a stream that claims too much",
            set(pipe.clone(), payload - 4, 0xffff_ffff),
            format!("at byte {}: tracing data: claims 4294967295 bytes", payload - 12),
        ),
    ];
    for (case, bytes, sentence) in rows {
        let error = try_read(&bytes).0.unwrap_err();
        assert_eq!(error.to_string(), sentence, "{case}");
    }
}

#[test]
fn damaged_tracing_data_is_an_error_that_says_where() {
    let file = || two().file();
    let pipe = two().pipe();
    let payload = pipe.windows(4).position(|w| w == b"\x17\x08\x44t").unwrap();
    let rows = [
        (set(file(), PAYLOADS, 0), PAYLOADS, "magic"),
        (set(file(), LIST + 8, 40), PAYLOADS, "header_page"),
        (cut(pipe.clone(), payload + 12), payload, "version"),
        (cut(pipe, payload + 300), payload, "event format"),
    ];
    for (bytes, section, item) in rows {
        let (result, collect) = try_read(&bytes);
        let error = result.unwrap_err();
        let Error::Malformed { offset, item: found, .. } = &error else { panic!("{error}") };
        assert!(found.contains(item), "{error}");
        // A place in the payload, counted from the start of the file.
        assert!((section..bytes.len()).contains(&(*offset as usize)), "{error}");
        assert_eq!(collect.events, []);
    }
}

#[test]
fn truncated_input_is_read_up_to_the_cut() {
    let file = || two().file();
    let tracing = two().tracing_data().len();
    let pipe = two().pipe();
    let records = pipe.len() - 2 * SAMPLE;
    let mut aux = two();
    aux.words(record::AUXTRACE, 0, &[1000, 0, 0, 0, 0]).words(0, 0, &[]);
    let mut packed = two();
    packed.compress(record::COMPRESSED2, SAMPLE + 20);
    let first = usize::from(packed.records[6]);
    packed.records.truncate(first);
    let packed_pipe = packed.pipe();
    let packed_end = packed_pipe.len();
    // Case, bytes, how many exits come before, the sentence.
    let rows: Vec<(&str, Vec<u8>, usize, String)> = vec![
        (
            "last feature cut",
            cut(file(), PAYLOADS + tracing + 68 + 10),
            2,
            format!(
                "feature 4 cannot be read: at byte {}: feature section: of 68 bytes does not fit in the file of {} bytes",
                PAYLOADS + tracing + 68,
                PAYLOADS + tracing + 78
            ),
        ),
        (
            "a record of no bytes",
            set(file(), DATA + SAMPLE, 9),
            1,
            format!(
                "at byte {}: a record of 0 bytes cannot be; nothing after it was read",
                DATA + SAMPLE
            ),
        ),
        (
            "a record of fewer bytes than its head",
            set(file(), DATA, 9 | 7 << 48),
            0,
            format!("at byte {DATA}: a record of 7 bytes cannot be; nothing after it was read"),
        ),
        (
            "a record longer than what is left",
            set(file(), DATA + SAMPLE, 9 | 97 << 48),
            1,
            format!("the input ends at byte {LIST} within a record"),
        ),
        (
            "a stream cut in a record",
            cut(pipe.clone(), records + SAMPLE + 7),
            1,
            format!("the input ends at byte {} within a record", records + SAMPLE + 7),
        ),
        (
            "a stream cut in its first record",
            cut(pipe.clone(), records + 1),
            0,
            format!("the input ends at byte {} within a record", records + 1),
        ),
        (
            "a stream cut in the bytes between records",
            aux.pipe(),
            2,
            format!("the input ends at byte {} within a record", aux.pipe().len()),
        ),
        (
            "a file cut in the bytes between records",
            aux.file(),
            2,
            format!("the input ends at byte {} within a record", LIST + 56),
        ),
        (
            "compressed records that end within a record",
            packed_pipe,
            1,
            format!("the input ends at byte {packed_end} within a record"),
        ),
    ];
    for (case, bytes, exits, sentence) in rows {
        let (imported, collect) = import(&bytes);
        let expected = [exit_event(100, 0, 1), exit_event(200, 0, 2)];
        assert_eq!(collect.events, expected[..exits], "{case}");
        assert_eq!(imported.losses.truncated, [sentence], "{case}");
    }
}

#[test]
fn a_list_of_features_that_is_cut_costs_facts_only() {
    // The tracing data precedes the data here, so that the file can end in the list.
    let s = two();
    let tracing = s.tracing_data();
    let mut bytes = s.file();
    let data_end = LIST + tracing.len();
    let payload = bytes[PAYLOADS..PAYLOADS + tracing.len()].to_vec();
    bytes.splice(DATA..DATA, payload);
    let bytes = set(bytes, 40, (DATA + tracing.len()) as u64);
    let bytes = set(bytes, data_end, DATA as u64);
    let (imported, collect) = import(&cut(bytes, data_end + 20));
    assert_eq!(collect.events, [exit_event(100, 0, 1), exit_event(200, 0, 2)]);
    assert_eq!(imported.recording.hostname, "");
    assert_eq!(
        imported.losses.truncated,
        [format!("the file ends at byte {}, in its list of features", data_end + 20)]
    );
}

#[test]
fn data_beyond_the_end_of_the_file_is_a_loss() {
    // No attribute and no feature in the header: all of it comes with the records, as in a stream.
    let mut bytes = two().file();
    bytes.truncate(DATA);
    bytes.extend(&two().pipe()[16..]);
    let size = (bytes.len() - DATA) as u64;
    let bytes = set(set(set(bytes, 48, size + 100), 72, 0), 32, 0);
    let (imported, collect) = import(&bytes);
    assert_eq!(collect.events, [exit_event(100, 0, 1), exit_event(200, 0, 2)]);
    assert_eq!(
        imported.losses.truncated,
        [format!("the file ends at byte {}, 100 bytes before the end of its data", bytes.len())]
    );
}

#[test]
fn damaged_compressed_data_stops_with_a_sentence() {
    let inner = |kind: u32, words: &[u64]| {
        let mut s = two();
        s.words(kind, 0, words).sample(0, &exit_sample(false, 300, 0, 3));
        s.compress(record::COMPRESSED, 100_000);
        s
    };
    let mut garbage = two();
    garbage.raw(record::COMPRESSED, 0, b"no zstd!").sample(0, &exit_sample(false, 300, 0, 3));
    let rows = [
        (garbage, DATA + 2 * SAMPLE, ""),
        (inner(record::COMPRESSED, &[0]), DATA, "(a compressed record in a compressed record)"),
        (inner(record::AUXTRACE, &[8, 0, 0, 0, 0]), DATA, "(a record of type 71)"),
    ];
    for (spec, at, problem) in rows {
        let (imported, collect) = import(&spec.file());
        assert_eq!(collect.events, [exit_event(100, 0, 1), exit_event(200, 0, 2)]);
        let [sentence] = &imported.losses.truncated[..] else { panic!("{:?}", imported.losses) };
        let start = format!("at byte {at}: compressed data is damaged (");
        assert!(sentence.starts_with(&start) && sentence.contains(problem), "{sentence}");
        assert!(sentence.ends_with("); nothing after it was read"), "{sentence}");
    }
}

#[test]
fn a_compressed_record_that_claims_more_than_it_has_is_left_out() {
    let mut s = two();
    s.words(record::COMPRESSED2, 0, &[9, 0]).words(record::COMPRESSED2, 0, &[]);
    s.sample(0, &exit_sample(false, 300, 0, 3));
    let (imported, collect) = import(&s.file());
    assert_eq!(collect.events.len(), 3);
    assert_eq!(imported.losses.undecodable, 2);
}

/// Where a stream may end without a word: before its first event, and between two records of no round.
fn silent_ends(spec: &Spec, pipe: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = pipe.len() - spec.records.len();
    let mut in_round = false;
    while at < pipe.len() {
        if !in_round {
            ends.push(at);
        }
        let kind = pipe[at..at + 4].iter().fold(0, |n, b| n | b);
        in_round = match u32::from(kind) {
            record::FINISHED_ROUND => false,
            record::SAMPLE | record::LOST | record::EXIT | record::COMPRESSED => true,
            _ => in_round,
        };
        let size = [pipe[at + 6], pipe[at + 7]];
        at += usize::from(match spec.big {
            true => u16::from_be_bytes(size),
            false => u16::from_le_bytes(size),
        });
    }
    ends
}

#[test]
fn truncation_is_an_error_or_a_loss() {
    for (big, packed) in ORDERS.into_iter().flat_map(|b| [(b, false), (b, true)]) {
        let (mut spec, whole) = everything(big);
        if packed {
            // In two: the first ends within a record, and a truncation after it is reported.
            let half = spec.records.len() / 2;
            spec.compress(record::COMPRESSED, half);
        }
        let (file, pipe) = (spec.file(), spec.pipe());
        let ends = silent_ends(&spec, &pipe);
        assert_eq!(ends.len(), if packed { 1 } else { 6 });
        // A file states its length, unused features included.
        for (bytes, ends) in [(file, Vec::new()), (pipe, ends)] {
            for len in 0..bytes.len() {
                let (result, collect) = try_read(&bytes[..len]);
                assert!(whole.events.starts_with(&collect.events), "{len}");
                let told = result.map_or(true, |i| !i.losses.truncated.is_empty());
                assert_eq!(told, !ends.contains(&len), "{big} {packed} {len} of {}", bytes.len());
            }
        }
    }
}

/// A stream can describe events for ever.
#[test]
fn events_beyond_the_table_are_a_loss() {
    let mut s = two();
    let first = s.attrs[0].clone();
    s.attrs.resize((1 << 16) + 3, first);
    let (imported, collect) = import(&s.pipe());
    assert_eq!(collect.events.len(), 2);
    assert_eq!(imported.losses.undecodable, 3);
}
