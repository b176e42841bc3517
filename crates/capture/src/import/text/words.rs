//! Words and numbers of a line, as bytes. A line is hostile: nothing here can panic.

/// The words of a text, separated by spaces and tabs.
#[derive(Clone, Copy)]
pub(crate) struct TextWords<'a> {
    rest: &'a [u8],
}

impl<'a> TextWords<'a> {
    /// The words of `text`.
    pub(crate) fn new(text: &'a [u8]) -> TextWords<'a> {
        TextWords { rest: text }
    }

    /// The unread rest, with leading spaces.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for TextWords<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let text = trim_start(self.rest);
        let end = text.iter().position(|&b| is_space(b)).unwrap_or(text.len());
        let (word, rest) = text.split_at_checked(end)?;
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }
}

/// Space or tab.
pub(crate) fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Without spaces and tabs at the front.
pub(crate) fn trim_start(mut text: &[u8]) -> &[u8] {
    // Columns are padded with many spaces.
    while let Some((b"        ", rest)) = text.split_first_chunk() {
        text = rest;
    }
    let start = text.iter().position(|&b| !is_space(b)).unwrap_or(text.len());
    text.get(start..).unwrap_or_default()
}

/// Without spaces and tabs at the end.
pub(crate) fn trim_end(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|&b| !is_space(b)).map_or(0, |last| last + 1);
    text.get(..end).unwrap_or_default()
}

/// Without spaces and tabs at both ends.
pub(crate) fn trim(text: &[u8]) -> &[u8] {
    trim_end(trim_start(text))
}

/// Position of the first `pattern`.
pub(crate) fn find(text: &[u8], pattern: &[u8]) -> Option<usize> {
    let (&first, _) = pattern.split_first()?;
    let mut from = 0;
    loop {
        let rest = text.get(from..)?;
        let at = rest.iter().position(|&b| b == first)?;
        if rest.get(at..).is_some_and(|r| r.starts_with(pattern)) {
            return Some(from + at);
        }
        from += at + 1;
    }
}

/// Position of the last `pattern`.
pub(crate) fn rfind(text: &[u8], pattern: &[u8]) -> Option<usize> {
    text.windows(pattern.len().max(1)).rposition(|w| w == pattern)
}

/// The text before and after the first `pattern`.
pub(crate) fn split_once<'a>(text: &'a [u8], pattern: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = find(text, pattern)?;
    Some((text.get(..at)?, text.get(at + pattern.len()..)?))
}

/// The text before and after the last `pattern`.
pub(crate) fn rsplit_once<'a>(text: &'a [u8], pattern: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = rfind(text, pattern)?;
    Some((text.get(..at)?, text.get(at + pattern.len()..)?))
}

/// The digits at the front of a text, and what follows them.
pub(crate) fn split_digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, &[]))
}

/// The decimal number at the front of a text, how many digits it has, and what follows it. `None` if
/// there is none, or it is too large.
pub(crate) fn split_decimal(text: &[u8]) -> Option<(u64, usize, &[u8])> {
    let mut value = 0u64;
    let mut digits = 0;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        digits += 1;
        // 19 digits always fit.
        value = if digits < 20 {
            value * 10 + u64::from(digit)
        } else {
            value.checked_mul(10)?.checked_add(u64::from(digit))?
        };
    }
    Some((value, digits, text.get(digits..)?)).filter(|_| digits > 0)
}

/// A decimal number, the whole word.
pub(crate) fn decimal(word: &[u8]) -> Option<u64> {
    let (value, _, rest) = split_decimal(word)?;
    rest.is_empty().then_some(value)
}

/// A decimal number that fits 32 bits, the whole word.
pub(crate) fn decimal_u32(word: &[u8]) -> Option<u32> {
    u32::try_from(decimal(word)?).ok()
}

/// A hexadecimal number with or without `0x`, the whole word but for a comma at its end.
pub(crate) fn hex(word: &[u8]) -> Option<u64> {
    let word = word.strip_suffix(b",").unwrap_or(word);
    let digits = word.strip_prefix(b"0x").unwrap_or(word);
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    let mut value = 0u64;
    for &byte in digits {
        value = value << 4 | u64::from(nibble(byte)?);
    }
    Some(value)
}

fn nibble(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// A number that says its base: hexadecimal after `0x`, else decimal, perhaps negative (as two's
/// complement), a comma at its end allowed.
pub(crate) fn number(word: &[u8]) -> Option<u64> {
    let word = word.strip_suffix(b",").unwrap_or(word);
    if word.starts_with(b"0x") {
        hex(word)
    } else if let Some(digits) = word.strip_prefix(b"-") {
        decimal(digits).map(u64::wrapping_neg)
    } else {
        decimal(word)
    }
}

/// [`number`] that fits 32 bits; negative ones as two's complement.
pub(crate) fn number_u32(word: &[u8]) -> Option<u32> {
    let value = number(word)?;
    match u32::try_from(value) {
        Ok(value) => Some(value),
        Err(_) => u32::try_from(value.wrapping_neg()).ok().map(u32::wrapping_neg),
    }
}
