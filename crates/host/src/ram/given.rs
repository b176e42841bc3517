//! What memory a VM was given, by QEMU's command line.

use serde_json::Value;

/// QEMU's default of `-m`.
const DEFAULT: u64 = 128 << 20;

/// A block of memory that an option gives a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GivenBlock {
    /// The option, as a person would write it: `-m 192M`, `-object mem`.
    pub(super) option: String,
    pub(super) bytes: u64,
}

/// The blocks that this command line of QEMU gives. Empty where it does not say: its options are in a file, or have a form that is not known.
pub(super) fn by_qemu(words: &[String]) -> Vec<GivenBlock> {
    let mut backends = Vec::new();
    let mut main = GivenBlock { option: "the default of -m".to_owned(), bytes: DEFAULT };
    let mut has_backend = false;
    for (option, value) in options(words) {
        match option {
            "readconfig" => return Vec::new(),
            "m" => {
                let pairs = pairs(value);
                let Some(size) =
                    field(&pairs, "size").or(pairs.first().map(|pair| pair.1.as_str()))
                else {
                    continue;
                };
                let Some(bytes) = bytes(size, 1 << 20) else { return Vec::new() };
                main = GivenBlock { option: format!("-m {size}"), bytes };
            }
            "object" => match backend(value) {
                Ok(Some(given)) => backends.push(given),
                Ok(None) => {}
                Err(()) => return Vec::new(),
            },
            "machine" | "M" => has_backend |= field(&pairs(value), "memory-backend").is_some(),
            "numa" => has_backend |= field(&pairs(value), "memdev").is_some(),
            _ => {}
        }
    }
    if !has_backend {
        backends.insert(0, main);
    }
    backends.retain(|given| given.bytes > 0);
    backends
}

/// Options with their values, without dashes.
fn options(words: &[String]) -> impl Iterator<Item = (&str, &str)> {
    words.windows(2).filter_map(|pair| {
        let option = pair[0].strip_prefix('-')?;
        Some((option.strip_prefix('-').unwrap_or(option), pair[1].as_str()))
    })
}

/// A memory backend of `-object`, in either form. Another object is `None`.
fn backend(value: &str) -> Result<Option<GivenBlock>, ()> {
    let pairs = match value.starts_with('{') {
        true => match serde_json::from_str(value) {
            Ok(Value::Object(fields)) => {
                fields.iter().map(|(k, v)| (k.clone(), plain(v))).collect()
            }
            _ => return Err(()),
        },
        false => pairs(value),
    };
    let kind = field(&pairs, "qom-type").or(pairs.first().map(|pair| pair.1.as_str()));
    if !kind.is_some_and(|kind| kind.starts_with("memory-backend-")) {
        return Ok(None);
    }
    let bytes = field(&pairs, "size").and_then(|size| bytes(size, 1)).ok_or(())?;
    Ok(Some(GivenBlock {
        option: format!("-object {}", field(&pairs, "id").unwrap_or("?")),
        bytes,
    }))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `first,key=value,...`; two commas are one that is part of a value. A value without a key has the empty one.
fn pairs(text: &str) -> Vec<(String, String)> {
    let escaped = text.replace(",,", "\0");
    let pair = |part: &str| {
        let (key, value) = part.split_once('=').unwrap_or(("", part));
        (key.to_owned(), value.replace('\0', ","))
    };
    escaped.split(',').map(pair).collect()
}

fn field<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// A size as QEMU reads it: a number, with a fraction if need be, and a letter.
fn bytes(text: &str, without_letter: u64) -> Option<u64> {
    let (number, letter) = match text.char_indices().next_back() {
        Some((at, letter)) if letter.is_ascii_alphabetic() => (&text[..at], Some(letter)),
        _ => (text, None),
    };
    let unit = match letter.map(|letter| letter.to_ascii_uppercase()) {
        None => without_letter,
        Some('B') => 1,
        Some(letter) => 1 << (10 * (1 + "KMGTPE".find(letter)?)),
    };
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(unit);
    }
    match number.parse::<f64>() {
        Ok(number) if number >= 0.0 => Some((number * unit as f64) as u64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines() {
        const M: u64 = 1 << 20;
        let cases: &[(&str, &[(&str, u64)])] = &[
            ("qemu", &[("the default of -m", 128 * M)]),
            ("qemu -m 192", &[("-m 192", 192 * M)]),
            ("qemu -m 4G -m 1.5G", &[("-m 1.5G", 1536 * M)]),
            ("qemu -m size=512k,slots=2,maxmem=4G", &[("-m 512k", M / 2)]),
            ("qemu --m size=2097152b", &[("-m 2097152b", 2 * M)]),
            (
                "qemu -m 64 -object memory-backend-memfd,id=a,size=64M,share=on -machine q35,memory-backend=a",
                &[("-object a", 64 * M)],
            ),
            (
                "qemu -m 3G -object memory-backend-ram,id=a,size=1G -object memory-backend-file,id=b,size=2G,mem-path=/x,,y -numa node,memdev=a -numa node,memdev=b",
                &[("-object a", 1024 * M), ("-object b", 2048 * M)],
            ),
            // Memory beside the main one: hot-plugged, or shared with other VMs.
            (
                "qemu -m 64 -object memory-backend-ram,id=more,size=1G -device pc-dimm,memdev=more -object rng-random,id=r",
                &[("-m 64", 64 * M), ("-object more", 1024 * M)],
            ),
            (
                r#"qemu -machine pc,memory-backend=pc.ram -object {"qom-type":"memory-backend-ram","id":"pc.ram","size":1073741824}"#,
                &[("-object pc.ram", 1024 * M)],
            ),
            ("qemu -m 64 -readconfig vm.cfg", &[]),
            ("qemu -m lots", &[]),
            ("qemu -m 9999999999999999999", &[]),
            ("qemu -m -1", &[]),
            ("qemu -object memory-backend-ram,id=a", &[]),
            ("qemu -object {broken", &[]),
        ];
        for (line, expected) in cases {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let found = by_qemu(&words);
            let found: Vec<(&str, u64)> =
                found.iter().map(|g| (g.option.as_str(), g.bytes)).collect();
            assert_eq!(found, *expected, "{line}");
        }
    }
}
