//! Sentences about what cannot be read.

/// More sentences about damage than anyone reads.
const MAX_SENTENCES: usize = 100;

/// Adds a sentence about unreadable data; their number is limited, because a hostile file could cause millions.
pub(super) fn say(sentences: &mut Vec<String>, sentence: impl FnOnce() -> String) {
    match sentences.len() {
        n if n < MAX_SENTENCES => sentences.push(sentence()),
        MAX_SENTENCES => sentences.push("there is more of these kinds".to_owned()),
        _ => {}
    }
}
