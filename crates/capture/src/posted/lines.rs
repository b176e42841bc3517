//! What people and programs add to each line: quotes, fences, borders of tables, line numbers.

use std::borrow::Cow;

/// Lines that begin as quotes before the text is quoted mail.
const ENOUGH: usize = 2;
/// Numbered lines of a numbered text, at least.
const NUMBERED: usize = 4;
/// Vertical borders.
const BORDERS: [char; 4] = ['|', '│', '┃', '║'];

pub(super) fn is_marked(text: &str) -> bool {
    is_quoted(text) || has_fences(text) || has_borders(text) || numbering(text).is_some()
}

pub(super) fn restored(text: &str) -> String {
    let mut text = Cow::Borrowed(text);
    // Each may be within the other: a numbered listing in a quoted mail.
    while is_quoted(&text) {
        text = Cow::Owned(each(&text, unquoted));
    }
    if has_fences(&text) {
        text = Cow::Owned(fenced(&text));
    }
    if let Some(separator) = numbering(&text) {
        text = Cow::Owned(each(&text, |line| without_number(line, separator)));
    }
    if has_borders(&text) {
        text = Cow::Owned(without_borders(&text));
    }
    text.into_owned()
}

fn each<'a>(text: &'a str, change: impl Fn(&'a str) -> &'a str) -> String {
    let mut changed = String::with_capacity(text.len());
    for line in text.lines() {
        changed.push_str(change(line));
        changed.push('\n');
    }
    if !text.ends_with('\n') {
        changed.pop();
    }
    changed
}

/// `> `, `>> `: `>` in the first column. (A thread's name in the text of perf stands behind spaces, or is 16 characters long.)
fn is_quoted(text: &str) -> bool {
    text.lines().filter(|line| line.starts_with('>')).take(ENOUGH).count() == ENOUGH
        || is_quoted_by_bars(text)
}

/// Some programs quote with `| `: most lines, without a bar at their end.
fn is_quoted_by_bars(text: &str) -> bool {
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let is_marked = |line: &&str| line.starts_with('|') && !is_bordered(line) && !is_frame(line);
    let marked = lines().filter(is_marked).count();
    marked > ENOUGH && marked * 2 > lines().count()
}

fn unquoted(line: &str) -> &str {
    let mut rest = line;
    while let Some(behind) = rest.strip_prefix(['>', '|']) {
        // One space belongs to the mark; more are the text's.
        rest = match behind.strip_prefix(' ') {
            Some(deeper) if deeper.starts_with(['>', '|']) => deeper,
            _ => behind,
        };
    }
    if rest.len() < line.len() { rest.strip_prefix(' ').unwrap_or(rest) } else { line }
}

fn is_fence(line: &str) -> bool {
    let line = line.trim();
    line.strip_prefix("```").or_else(|| line.strip_prefix("~~~")).is_some_and(|language| {
        language.len() <= 20
            && language.chars().all(|c| c.is_ascii_alphanumeric() || "-+_ `~".contains(c))
    })
}

fn has_fences(text: &str) -> bool {
    text.lines().any(is_fence)
}

/// An excerpt whose first fence closes: it stands right below text and above an empty line, and one fence has no other.
fn begins_inside(text: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    let is_blank = |at: usize| lines.get(at).is_none_or(|line| line.trim().is_empty());
    let is_odd = lines.iter().filter(|line| is_fence(line)).count() % 2 == 1;
    let first = lines.iter().position(|line| is_fence(line)).filter(|_| is_odd);
    first.is_some_and(|at| at > 0 && !is_blank(at - 1) && is_blank(at + 1))
}

/// What is within the fences, each block without the indent of its fence; everything, where nothing is within one.
fn fenced(text: &str) -> String {
    let (mut inside, mut lines) = (begins_inside(text).then_some(0), Vec::new());
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        lines.push(match inside {
            _ if is_fence(line) => {
                inside = if inside.is_none() { Some(indent) } else { None };
                ""
            }
            Some(most) => line.get(most.min(indent)..).unwrap_or(line),
            None => "",
        });
    }
    if lines.iter().all(|line| line.trim().is_empty()) {
        return each(text, |line| if is_fence(line) { "" } else { line });
    }
    lines.join("\n") + "\n"
}

fn is_border(c: char) -> bool {
    BORDERS.contains(&c)
}

/// A row of a table with borders at both ends, of which there are several.
fn is_bordered(line: &str) -> bool {
    let line = line.trim();
    line.starts_with(is_border) && line.ends_with(is_border) && line.matches(is_border).count() > 2
}

/// A line of a table's frame: `+----+`, `|---:|`, `├──┼──┤`.
fn is_frame(line: &str) -> bool {
    let line = line.trim();
    let is_drawn = |c: char| ('\u{2500}'..='\u{257f}').contains(&c) || "+-=:| ".contains(c);
    line.len() > 2 && line.chars().all(is_drawn) && line.contains(['+', '|', '─', '═', '━'])
}

fn has_borders(text: &str) -> bool {
    text.lines().filter(|line| is_bordered(line)).filter(|line| !is_frame(line)).take(2).count()
        == 2
}

fn without_borders(text: &str) -> String {
    let lines = text.lines().map(|line| match line {
        line if is_frame(line) => String::new(),
        line if is_bordered(line) => line.replace(BORDERS, " "),
        line => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// What stands behind the numbers of lines, where all lines have them, one above the other: `cat -n`, `grep -n`, listings of web pages.
fn numbering(text: &str) -> Option<char> {
    let lines: Vec<&str> = text.lines().collect();
    // The last may be a part of a line.
    let whole = if text.ends_with('\n') { lines.len() } else { lines.len().saturating_sub(1) };
    let lines = lines.get(..whole)?;
    let (first, separator) = number(lines.first()?)?;
    let is_next = |(n, line): (usize, &&str)| {
        number(line).is_some_and(|(number, behind)| {
            number == first + n as u64 && (behind == separator || behind == '\n')
        })
    };
    (lines.len() >= NUMBERED && lines.iter().enumerate().all(|(n, line)| is_next((n, line))))
        .then_some(separator)
}

/// The number at a line's front and what follows it; `\n` where nothing does.
fn number(line: &str) -> Option<(u64, char)> {
    let line = line.trim_start();
    let end = line.find(|c: char| !c.is_ascii_digit()).unwrap_or(line.len());
    let number = line.get(..end)?.parse().ok()?;
    let behind = line.get(end..)?.chars().next().unwrap_or('\n');
    (matches!(behind, '\t' | ' ' | ':' | '|' | '│' | '.' | ')' | '\n')).then_some((number, behind))
}

fn without_number(line: &str, separator: char) -> &str {
    let behind = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
    behind.strip_prefix(separator).unwrap_or(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        assert!(is_marked(text), "{text:?}");
        restored(text)
    }

    #[test]
    fn quotes_of_mail() {
        assert_eq!(plain("x\n> > a b\n> >\n>>c\n> >   d\n"), "x\na b\n\nc\n  d\n");
        assert_eq!(plain("> a\n>\n> b"), "a\n\nb");
        assert_eq!(plain("so:\n| a\n|\n|  b\n| c\n"), "so:\na\n\n b\nc\n");
        assert!(!is_marked("> a\nb\n"));
    }

    #[test]
    fn fences() {
        let text = "1. so:\n\n   ```text\n   a\n     b\n\n   ```\nwords\n";
        assert_eq!(plain(text), "\n\n\na\n  b\n\n\n\n");
        // The text stands outside.
        assert_eq!(plain("```\n```\na\n"), "\n\na\n");
        assert_eq!(plain("a\n```\n\nwords\n```\nb\n```\n"), "a\n\n\n\n\nb\n\n");
        assert_eq!(plain("words\n```\nb\n"), "\n\nb\n");
    }

    #[test]
    fn borders_of_tables() {
        let text = "| NAME | N |\n|------|--:|\n| hlt  | 1 |\n";
        assert_eq!(plain(text), "  NAME   N  \n\n  hlt    1  \n");
        let text = "┌───┬───┐\n│ a │ b │\n├───┼───┤\n│ c │ 1 │\n└───┴───┘\n";
        assert_eq!(plain(text), "\n  a   b  \n\n  c   1  \n\n");
        let histogram = "[1K, 2K)    3 |@@@   |\n[2K, 4K)   11 |@@@@@@|\n";
        assert!(!is_marked(histogram));
        assert!(!is_marked("  20.12 │     movss (%rax),%xmm0\n   1.00 │     ret\n"));
    }

    #[test]
    fn line_numbers() {
        assert_eq!(plain("  1\ta\n  2\t\n  3\tb\n  4\tc\n"), "a\n\nb\nc\n");
        assert_eq!(plain("7:a\n8:b\n9:c\n10:d\n"), "a\nb\nc\nd\n");
        for text in
            ["reason: count\n1: 2\n2: 3\n3: 4\n4: 5\n", "1 a\n2 b\n4 c\n5 d\n", "1 a\n2 b\n"]
        {
            assert!(!is_marked(text), "{text:?}");
        }
    }
}
