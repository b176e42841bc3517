//! Encodings of the whole text: how mail, web pages and terminals store what a tool printed.

use std::borrow::Cow;

/// Spaces that stand for a plain one in copies of web pages and word processors.
const SPACES: [char; 6] = ['\u{a0}', '\u{2002}', '\u{2003}', '\u{2007}', '\u{202f}', '\u{3000}'];
/// Characters without width, among them the byte order mark.
const WITHOUT_WIDTH: [char; 4] = ['\u{200b}', '\u{200c}', '\u{2060}', '\u{feff}'];
/// Entities of HTML that stand for what tables and events have.
const ENTITIES: [(&str, &str); 7] = [
    ("&nbsp;", " "),
    ("&#160;", " "),
    ("&gt;", ">"),
    ("&lt;", "<"),
    ("&quot;", "\""),
    ("&#39;", "'"),
    ("&amp;", "&"),
];
/// Lines of a text that have unusual spaces before it is a copy: names of threads may hold one.
const FEW: usize = 10;
/// The longest line of quoted-printable (RFC 2045, 6.7).
const LONGEST_QUOTED: usize = 76;
/// Characters of a tag of HTML.
const LONGEST_TAG: usize = 400;
const QUOTED: &str = "content-transfer-encoding: quoted-printable";
const BASE64: &str = "content-transfer-encoding: base64";

/// UTF-16 with its byte order mark, as PowerShell and editors write it, or of plain ASCII without one.
pub(super) fn is_utf16(head: &[u8]) -> bool {
    has_mark(head) || is_ascii_of(head, 0) || is_ascii_of(head, 1)
}

/// Whether each unit has a character of ASCII in one byte, and nothing in the other.
fn is_ascii_of(head: &[u8], at: usize) -> bool {
    let is_ascii = |unit: &[u8]| {
        let byte = unit.get(at).copied().unwrap_or(0);
        (byte.is_ascii_graphic() || byte.is_ascii_whitespace()) && unit.get(1 - at) == Some(&0)
    };
    head.len() > 2 && head.chunks_exact(2).take(64).all(is_ascii)
}

fn has_mark(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")
}

pub(super) fn is_encoded(text: &str) -> bool {
    text.starts_with('\u{feff}')
        || text.contains('\u{1b}')
        || has_bare_returns(text)
        || has_unusual_spaces(text)
        || has_entities(text)
        || is_quoted_printable(text)
        || is_base64(text)
}

pub(super) fn restored(bytes: &[u8]) -> Result<String, String> {
    let text = if is_utf16(bytes) { of_utf16(bytes) } else { String::from_utf8_lossy(bytes) };
    if is_base64(&text) {
        return Err("its body is base64, as some mail is sent: give the decoded text (base64 -d)"
            .to_owned());
    }
    let mut text = text.into_owned();
    if is_quoted_printable(&text) {
        text = of_quoted_printable(&text);
    }
    if has_entities(&text) {
        text = without_markup(&text);
    }
    if has_unusual_spaces(&text) {
        text = text.replace(SPACES, " ").replace('\u{2009}', " ");
    }
    text = text.replace(WITHOUT_WIDTH, "");
    if text.contains('\u{1b}') {
        text = without_escapes(&text);
    }
    Ok(text.replace("\r\n", "\n").replace('\r', "\n"))
}

fn of_utf16(bytes: &[u8]) -> Cow<'_, str> {
    let is_little = !bytes.starts_with(b"\xfe\xff") && bytes.first() != Some(&0);
    let from = if has_mark(bytes) { 2 } else { 0 };
    let units = bytes.get(from..).unwrap_or_default().chunks_exact(2).filter_map(|pair| {
        let pair = <[u8; 2]>::try_from(pair).ok()?;
        Some(if is_little { u16::from_le_bytes(pair) } else { u16::from_be_bytes(pair) })
    });
    let text = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER));
    Cow::Owned(text.collect())
}

/// Carriage returns that end lines alone.
fn has_bare_returns(text: &str) -> bool {
    text.contains('\r') && {
        let mut rest = text.split('\r').skip(1).filter(|rest| !rest.is_empty());
        rest.by_ref().take(2).filter(|rest| !rest.starts_with('\n')).count() == 2
    }
}

/// In a tenth of the lines, and in two at least.
fn has_unusual_spaces(text: &str) -> bool {
    if text.is_ascii() {
        return false;
    }
    let with = text.lines().filter(|line| line.contains(SPACES)).count();
    with >= 2 && with * FEW >= text.lines().filter(|line| !line.is_empty()).count()
}

fn has_entities(text: &str) -> bool {
    text.contains("&nbsp;") || text.lines().any(|line| line.trim_start().starts_with("&gt;")) || {
        text.contains("<pre") && text.contains("</pre>")
    }
}

/// Without the tags of a page and with the characters that its entities stand for.
fn without_markup(text: &str) -> String {
    const TAGS: [&str; 8] = ["pre", "code", "p", "br", "div", "span", "blockquote", "b"];
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('<') {
        plain.push_str(before);
        let name = behind.trim_start_matches('/');
        let end = name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len());
        let is_tag = name.get(..end).is_some_and(|name| TAGS.contains(&name));
        let ends = || behind.char_indices().take(LONGEST_TAG).find(|(_, c)| *c == '>');
        match is_tag.then(ends).flatten() {
            Some((at, _)) => rest = behind.get(at + 1..).unwrap_or_default(),
            None => {
                plain.push('<');
                rest = behind;
            }
        }
    }
    plain.push_str(rest);
    ENTITIES.iter().fold(plain, |text, (entity, plain)| text.replace(entity, plain))
}

fn is_base64(text: &str) -> bool {
    text.lines().take(200).any(|line| line.trim().eq_ignore_ascii_case(BASE64))
}

/// A header says so, or lines end in `=` and every other `=` is a code that mail needs.
fn is_quoted_printable(text: &str) -> bool {
    if !text.contains('=') {
        return false;
    }
    if text.lines().take(200).any(|line| line.trim().eq_ignore_ascii_case(QUOTED)) {
        return true;
    }
    let (mut soft, mut codes) = (0usize, 0usize);
    for line in text.lines() {
        let (line, is_soft) = match line.strip_suffix('=') {
            Some(line) => (line, true),
            None => (line, false),
        };
        let mut parts = line.split('=');
        let is_start = parts.next().is_some_and(str::is_empty);
        let is_coded = |(at, rest): (usize, &str)| {
            code(rest).is_some_and(|byte| is_needed(byte, is_start && at == 0))
        };
        if line.len() > LONGEST_QUOTED || !parts.enumerate().all(is_coded) {
            return false;
        }
        soft += usize::from(is_soft);
        codes += line.matches('=').count();
    }
    soft + codes >= 2
}

/// Letters, digits and signs are not encoded but at the beginning of a line, where mail has its own (`From `, `.`): elsewhere it is `key=45`.
fn is_needed(byte: u8, is_at_start: bool) -> bool {
    const ESCAPE: u8 = 0x1b;
    is_at_start || !byte.is_ascii() || b"= \t\r\n".contains(&byte) || byte == ESCAPE
}

/// The byte of the two hexadecimal digits at the front. Mail has capitals.
fn code(rest: &str) -> Option<u8> {
    let digits = rest.get(..2)?;
    let is_code = digits.bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b));
    u8::from_str_radix(digits, 16).ok().filter(|_| is_code)
}

/// Joins lines at their soft breaks and decodes the codes. Empty lines keep the numbers of the others.
fn of_quoted_printable(text: &str) -> String {
    let (mut bytes, mut joined) = (Vec::with_capacity(text.len()), 0);
    for line in text.lines() {
        let (line, is_soft) = match line.strip_suffix('=') {
            // A rule of "====" is none.
            Some(line) if !line.ends_with('=') => (line, true),
            _ => (line, false),
        };
        let mut parts = line.split('=');
        bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
        for part in parts {
            match code(part) {
                Some(byte) => {
                    bytes.push(byte);
                    bytes.extend_from_slice(part.get(2..).unwrap_or_default().as_bytes());
                }
                None => {
                    bytes.push(b'=');
                    bytes.extend_from_slice(part.as_bytes());
                }
            }
        }
        if is_soft {
            joined += 1;
        } else {
            bytes.extend(std::iter::repeat_n(b'\n', 1 + std::mem::take(&mut joined)));
        }
    }
    if joined > 0 {
        bytes.push(b'\n');
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Without colours, cursor movements and titles (ECMA-48: CSI, OSC).
fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut parts = text.split('\u{1b}');
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let behind = match part.chars().next() {
            Some('[') => {
                let end = part.char_indices().skip(1).find(|(_, c)| ('@'..='~').contains(c));
                end.map_or("", |(at, _)| part.get(at + 1..).unwrap_or_default())
            }
            Some(']') => part.split_once('\u{7}').map_or("", |(_, behind)| behind),
            // ESC ( B selects a set of characters; other escapes are of one character.
            Some('(' | ')') => part.get(2..).unwrap_or_default(),
            Some(first) => part.get(first.len_utf8()..).unwrap_or_default(),
            None => "",
        };
        plain.push_str(behind);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        assert!(is_encoded(text), "{text:?}");
        restored(text.as_bytes()).unwrap()
    }

    #[test]
    fn mail_is_decoded() {
        let text = "hlt   39 =3D 2.63% =\n 18.39us\nnext=20\nlast\n";
        assert_eq!(plain(text), "hlt   39 = 2.63%  18.39us\n\nnext \nlast\n");
        assert!(!is_encoded("prev_prio=120 next=12\n====\n"));
        assert!(!is_encoded("some avg10=45.00 avg60=40.00 avg300=30.00 total=123456789\n"));
        assert!(!is_encoded("vcpu.0.time=6000000000\nvcpu.0.delay=2000000000\n"));
        assert_eq!(plain("=46rom here =3D there\n=2E\n"), "From here = there\n.\n");
        assert!(!is_encoded("msr_write 6e0 = 0x0\n"));
        let text = "Content-Transfer-Encoding: quoted-printable\n\n=C2=A0=C2=A0hlt\n=====\n";
        assert_eq!(plain(text).lines().last().unwrap(), "=====");
        let text = "Content-Transfer-Encoding: base64\n\naGx0\n";
        assert!(restored(text.as_bytes()).unwrap_err().contains("base64 -d"));
    }

    #[test]
    fn other_encodings_become_plain_text() {
        let of = |units: Vec<u8>| restored(&units).unwrap();
        let little = "\u{feff}hlt 39\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big = "\u{feff}hlt 39\r\n".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!((of(little), of(big)), ("hlt 39\n".to_owned(), "hlt 39\n".to_owned()));
        let without_mark: Vec<u8> = "hlt 39\n".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert!(is_utf16(&without_mark) && !is_utf16(b"PERFILE2\0\0\0\0"));
        assert_eq!(of(without_mark), "hlt 39\n");
        assert_eq!(plain("\u{feff}hlt\n"), "hlt\n");
        assert_eq!(plain("a\u{a0}1\nb\u{a0}2\n"), "a 1\nb 2\n");
        assert_eq!(plain("\u{1b}[1;31mhlt\u{1b}[0m 39\u{1b}]0;title\u{7}\u{1b}(B\n"), "hlt 39\n");
        assert_eq!(plain("a\rb\rc\n"), "a\nb\nc\n");
        assert_eq!(plain("<pre>\n&gt;&nbsp;hlt 3 < 4\n</pre>\n"), "\n> hlt 3 < 4\n\n");
        for text in
            ["hlt\r\n39\r\n", "comm\u{a0}x 1\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\n", "a <b> c\n"]
        {
            assert!(!is_encoded(text), "{text:?}");
        }
    }
}
