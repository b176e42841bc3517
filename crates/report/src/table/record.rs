//! A line of CSV (RFC 4180).

use std::io::{self, Write};

use crate::names;

/// A text that neither a terminal nor a spreadsheet acts on.
pub(crate) fn guarded(text: &str) -> String {
    let text = names::printable(text);
    // Spreadsheets skip spaces before a formula.
    if text.trim_start().starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text }
}

/// Writes a line, with quotes where they are needed.
pub fn write_record<S: AsRef<str>>(out: &mut dyn Write, cells: &[S]) -> io::Result<()> {
    for (i, cell) in cells.iter().enumerate() {
        let cell = cell.as_ref();
        if i > 0 {
            out.write_all(b",")?;
        }
        if cell.contains(['"', ',', '\n', '\r']) {
            write!(out, "\"{}\"", cell.replace('"', "\"\""))?;
        } else {
            out.write_all(cell.as_bytes())?;
        }
    }
    out.write_all(b"\r\n")
}
