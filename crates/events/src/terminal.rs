//! Text from a recording, a guest or a user, made safe for a terminal.

/// Hostile text made harmless for a terminal: control characters, invisible characters and those
/// that change the direction of writing become `\u{..}`.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// A character that a terminal acts on, or that cannot be seen.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\n\u{9b}c"), r"a\u{1b}[31mb\u{a}\u{9b}c");
        assert_eq!(
            printable("\u{202e}txt.exe\u{2028}\u{200b}"),
            r"\u{202e}txt.exe\u{2028}\u{200b}"
        );
        assert_eq!(printable("qemu-système 虚拟机 \"x\""), "qemu-système 虚拟机 \"x\"");
    }
}
