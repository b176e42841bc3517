//! A strict reader of the HTML that the renderer writes: a browser would repair what is wrong.

use std::collections::BTreeSet;

/// Elements that have no end.
const VOID: [&str; 4] = ["meta", "link", "input", "br"];

/// Elements open and closed in order, attributes quoted and not repeated, ids unique and all
/// referred ones there, text escaped.
pub(crate) fn check(page: &str) -> Result<(), String> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").ok_or("no doctype")?;
    let mut open: Vec<&str> = Vec::new();
    let mut ids = BTreeSet::new();
    let mut referred = BTreeSet::new();
    while let Some(start) = rest.find('<') {
        let (text, tail) = rest.split_at(start);
        check_text(text)?;
        let end = tag_end(tail).ok_or_else(|| format!("a tag without end: {:.60}", tail))?;
        let (tag, after) = (&tail[1..end], &tail[end + 1..]);
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            let expected = open.pop();
            if expected != Some(name) {
                return Err(format!("</{name}> closes {expected:?}"));
            }
            continue;
        }
        let name = tag.split([' ', '\n']).next().unwrap_or_default();
        for (attribute, value) in attributes(&tag[name.len()..])? {
            match attribute {
                "id" if !ids.insert(value) => return Err(format!("id {value} twice")),
                "aria-labelledby" | "aria-controls" | "for" => _ = referred.insert(value),
                "href" if value.starts_with('#') => _ = referred.insert(&value[1..]),
                _ => {}
            }
        }
        if VOID.contains(&name) {
            continue;
        }
        if matches!(name, "script" | "style") {
            let close = format!("</{name}>");
            let end = rest.find(&close).ok_or_else(|| format!("<{name}> without end"))?;
            rest = &rest[end + close.len()..];
            continue;
        }
        open.push(name);
    }
    check_text(rest)?;
    if !open.is_empty() {
        return Err(format!("left open: {open:?}"));
    }
    match referred.difference(&ids).next() {
        Some(missing) => Err(format!("nothing has the id {missing}")),
        None => Ok(()),
    }
}

/// The `>` that ends a tag, not one in an attribute.
fn tag_end(tag: &str) -> Option<usize> {
    let mut quoted = false;
    tag.char_indices().find_map(|(i, c)| {
        quoted ^= c == '"';
        (c == '>' && !quoted).then_some(i)
    })
}

fn check_text(text: &str) -> Result<(), String> {
    if text.contains('>') {
        return Err(format!("a bare > in {text:?}"));
    }
    for (i, _) in text.match_indices('&') {
        if !["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"].iter().any(|e| text[i..].starts_with(e)) {
            return Err(format!("a bare & in {text:?}"));
        }
    }
    Ok(())
}

fn attributes(mut text: &str) -> Result<Vec<(&str, &str)>, String> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    loop {
        text = text.trim_start();
        if text.is_empty() {
            return Ok(found);
        }
        let end = text.find(['=', ' ']).unwrap_or(text.len());
        let name = &text[..end];
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(format!("attribute {name:?}"));
        }
        if found.iter().any(|(other, _)| *other == name) {
            return Err(format!("attribute {name} twice"));
        }
        let mut value = "";
        text = &text[end..];
        if let Some(tail) = text.strip_prefix('=') {
            let tail = tail.strip_prefix('"').ok_or_else(|| format!("{name} is not quoted"))?;
            let end = tail.find('"').ok_or_else(|| format!("{name} has no end"))?;
            value = &tail[..end];
            if value.contains('<') {
                return Err(format!("a bare < in {name}"));
            }
            check_text(&value.replace('>', ""))?;
            text = &tail[end + 1..];
        }
        found.push((name, value));
    }
}
