//! How the lines of a screen are divided.

/// Lines above the rows.
const HEAD: u16 = 6;

/// Rows that have room on a screen of this height, above the line of columns that have none, the figures and the keys.
pub(super) fn rows_in(height: u16) -> usize {
    usize::from(height.saturating_sub(HEAD + 1 + figures_in(height) + 1))
}

/// Lines of the figures with their titles.
pub(super) fn figures_in(height: u16) -> u16 {
    if height >= 40 { 12 } else { 7 }
}
