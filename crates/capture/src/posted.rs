//! Text as people post it -> the text that the tool printed.
//!
//! ```text
//! bytes ──> posted::restore ──> Format::recognise ──> importer
//!           encoding            UTF-16, quoted-printable, entities of HTML, escapes of terminals, unusual spaces
//!           lines               quotes of mail, fences, borders of tables, line numbers
//!           wrap                rows and events that a mail client broke
//!           front               events that lack what stands before their times
//! ```
//!
//! [`is_posted`] looks at the first bytes of an input; large recordings as the tools print them are not touched. Lines keep their numbers: where a
//! line is dropped or joined to the one before, an empty one stays.
//!
//! Left out on purpose: what is said between tables and events. The importers skip it.

mod encoding;
mod front;
mod lines;
mod wrap;

use crate::import::text::is_text;

/// Larger texts are no posts.
pub const MOST_BYTES: u64 = 64 << 20;

/// Whether these first bytes show a text that [`restore`] would change.
pub fn is_posted(head: &[u8]) -> bool {
    encoding::is_utf16(head)
        || !head.is_empty() && is_text(head) && {
            let text = String::from_utf8_lossy(head);
            encoding::is_encoded(&text)
                || lines::is_marked(&text)
                || wrap::is_wrapped(&text)
                || front::is_missing(&text)
        }
}

/// The text as the tool printed it.
///
/// # Errors
/// What the text is, where it cannot be restored: what to give instead.
pub fn restore(bytes: &[u8]) -> Result<String, String> {
    let text = encoding::restored(bytes)?;
    Ok(front::restored(&wrap::restored(&lines::restored(&text))))
}
