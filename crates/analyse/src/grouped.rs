//! Digits in groups of three: every count that a person reads.

/// A count with thousands separators: `34,509`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_separators() {
        let cases =
            [(0, "0"), (999, "999"), (1000, "1,000"), (34_509, "34,509"), (1_234_567, "1,234,567")];
        for (n, expected) in cases {
            assert_eq!(count(n), expected);
        }
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
    }
}
