//! Profiles as flame graphs: one profile, or one with its difference from another's in colour.
//!
//! inferno draws them. What it draws is a document of its own with a style and a script; the page lets neither run, so
//! they are cut out, and the page's style sheet does what is needed. Names are escaped by inferno.

use std::io;

use inferno::differential;
use inferno::flamegraph::color::MultiPalette;
use inferno::flamegraph::{self, Options, Palette};
use maud::{Markup, PreEscaped, html};
use vmtax_analyse::Ledger;
use vmtax_events::{Profile, ProfileOrigin};

use super::frame::PageSection;
use crate::{names, numbers};

/// Width of the drawing's own units.
const WIDTH: usize = 1200;
/// Frames narrower than this part of the width, in percent, are not drawn.
const NARROWEST: f64 = 0.1;

/// A section for each profile, beside that of a base where it has one.
pub(super) fn sections(ledger: &Ledger, base: Option<&Ledger>) -> Vec<PageSection> {
    let profiles = ledger.profiles.values();
    profiles
        .enumerate()
        .map(|(number, profile)| {
            let base = base.and_then(|base| base.profiles.get(&profile.place));
            let id = format!("profile-{}", profile.place.name());
            let body = html! {
                h2 id={ (id) "-title" } { (title(profile.place)) }
                (drawing(profile, base, number))
            };
            PageSection { id, label: label(profile.place).to_owned(), body }
        })
        .collect()
}

fn label(place: ProfileOrigin) -> &'static str {
    match place {
        ProfileOrigin::Host => "Host profile",
        ProfileOrigin::Guest => "Guest profile",
        ProfileOrigin::Instructions => "Instructions",
    }
}

fn title(place: ProfileOrigin) -> &'static str {
    match place {
        ProfileOrigin::Host => "Where the host's time goes",
        ProfileOrigin::Guest => "Where the guest's time goes",
        ProfileOrigin::Instructions => "A function of the guest, by instruction",
    }
}

fn drawing(profile: &Profile, base: Option<&Profile>, number: usize) -> Markup {
    match draw(profile, base).map(|svg| embedded(&svg, number)) {
        Ok(Some(svg)) => html! {
            p.note {
                "Weight " (numbers::count(profile.total())) ". A frame is as wide as the part of it in that function and what it called; "
                "frames under " (NARROWEST) " % are not drawn."
                @if base.is_some() {
                    " Red: more than in the base, blue: less, both of the same total. Functions of the base only are not drawn."
                }
            }
            div.scroll.flame { (PreEscaped(svg)) }
        },
        Ok(None) | Err(_) => html! { p.empty { "The profile cannot be drawn." } },
    }
}

/// Folded stacks whose frames begin with their level, coloured by it; a frame's number is of one operation. `None` where they cannot be
/// drawn.
pub(super) fn levels(lines: &[String], operations: u64, number: usize) -> Option<String> {
    let mut options = options("instructions");
    // What this palette takes for the marks of a language are those of levels here.
    options.colors = Palette::Multi(MultiPalette::Java);
    options.factor = 1.0 / operations.max(1) as f64;
    let lines: Vec<String> = lines.iter().map(|line| marked(line)).collect();
    let mut svg = Vec::new();
    let lines = lines.iter().map(String::as_str);
    flamegraph::from_lines(&mut options, lines, &mut svg).ok()?;
    let svg = String::from_utf8(svg).ok()?;
    // The page has drawings of profiles too.
    embedded(&svg, 1000 + number)
}

/// A picture of a difference, with its heading.
pub struct Picture {
    pub heading: String,
    /// The functions that differ most; empty where none does.
    pub(crate) sentence: String,
    /// `None` where it cannot be drawn.
    pub(crate) svg: Option<String>,
}

/// Folded stacks of two runs, each with its number of operations, as one picture: frames are as wide as in the second, red where they
/// have more instructions of one operation than in the first, blue where they have fewer.
pub(crate) fn difference(
    (before, a): (&[String], u64),
    (after, b): (&[String], u64),
    number: usize,
) -> Option<String> {
    let (a, b) = (a.max(1), b.max(1));
    // Of as many operations each.
    let times = |lines: &[String], times: u64| {
        let line = |line: &String| {
            let (stack, weight) = line.rsplit_once(' ')?;
            // Most frames are the host's; those of guests have their level.
            let stack = stack.strip_prefix("L0 ").unwrap_or(stack).replace(";L0 ", ";");
            Some(format!("{stack} {}\n", weight.parse::<u64>().ok()?.checked_mul(times)?))
        };
        lines.iter().map(line).collect::<Option<String>>()
    };
    let (before, after) = (times(before, b)?, times(after, a)?);
    let mut both = Vec::new();
    let plain = differential::Options::default();
    differential::from_readers(plain, before.as_bytes(), after.as_bytes(), &mut both).ok()?;
    let both = String::from_utf8(both).ok()?;
    let mut lines: Vec<&str> = both.lines().collect();
    lines.sort_unstable();
    let mut options = options("instructions");
    options.factor = 1.0 / a.checked_mul(b)? as f64;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, lines, &mut svg).ok()?;
    embedded(&String::from_utf8(svg).ok()?, 2000 + number)
}

/// With a mark behind each frame that says its level.
fn marked(line: &str) -> String {
    let (stack, weight) = line.rsplit_once(' ').unwrap_or((line, "0"));
    // A source line has the mark of its function.
    let mut mark = "";
    let frames = stack.split(';').map(|frame| {
        mark = match frame.get(..2) {
            Some("L0") => "_[k]",
            Some("L1") => "_[j]",
            Some("L2") => "_[i]",
            _ => mark,
        };
        // The colour says that it is the host's.
        format!("{}{mark}", frame.strip_prefix("L0 ").unwrap_or(frame))
    });
    format!("{} {weight}", frames.collect::<Vec<_>>().join(";"))
}

fn options(count_name: &str) -> Options<'static> {
    let mut options = Options::default();
    options.title = String::new();
    options.count_name = count_name.to_owned();
    options.image_width = Some(WIDTH);
    options.min_width = NARROWEST;
    options.no_javascript = true;
    options.deterministic = true;
    options
}

fn draw(profile: &Profile, base: Option<&Profile>) -> io::Result<String> {
    let mut options = options("weight");
    let mut svg = Vec::new();
    match base {
        None => {
            let lines = folded(profile);
            flamegraph::from_lines(&mut options, lines.lines(), &mut svg)?;
        }
        Some(base) => {
            let normalize = differential::Options { normalize: true, ..Default::default() };
            let mut both = Vec::new();
            let (before, after) = (folded(base), folded(profile));
            differential::from_readers(normalize, before.as_bytes(), after.as_bytes(), &mut both)?;
            let both = String::from_utf8_lossy(&both).into_owned();
            let mut lines: Vec<&str> = both.lines().collect();
            lines.sort_unstable();
            flamegraph::from_lines(&mut options, lines, &mut svg)?;
        }
    }
    String::from_utf8(svg).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// As inferno reads it, in the order that it wants.
fn folded(profile: &Profile) -> String {
    let mut text = String::new();
    for (stack, weight) in &profile.stacks {
        text.push_str(&names::printable(stack));
        text.push_str(&format!(" {weight}\n"));
    }
    text
}

/// The drawing as an element of the page; its ids are its own. `None` when it is not of the form that is known.
fn embedded(svg: &str, number: usize) -> Option<String> {
    let svg = &svg[svg.find("<svg")?..];
    let svg = without(&without(svg, "<style", "</style>")?, "<script", "</script>")?;
    // Names cannot hold this: in them quotes are escaped.
    let svg = svg.replace(" onload=\"init(evt)\"", "");
    let svg = svg.replace("id=\"", &format!("id=\"flame-{number}-"));
    let svg = svg.replace("url(#", &format!("url(#flame-{number}-"));
    let is_plain = !svg.contains("<script") && !svg.contains("<style");
    is_plain.then(|| with_labelled_root(svg))
}

/// With a label in the lowest frame, which has all others above it: inferno leaves it empty.
fn with_labelled_root(mut svg: String) -> String {
    const TITLE: &str = "<title>";
    let mut from = 0;
    while let Some(found) = svg[from..].find("<title>all (") {
        let start = from + found + TITLE.len();
        let Some(end) = svg[start..].find("</title>").map(|length| start + length) else { break };
        let text = svg[end..].find("</text>").map(|length| end + length);
        // Another function can have that name.
        if let Some(text) =
            text.filter(|at| svg[..*at].ends_with('>') && svg[start..end].ends_with(", 100%)"))
        {
            let label = svg[start..end].to_owned();
            svg.insert_str(text, &label);
            break;
        }
        from = end;
    }
    svg
}

/// The text without the one element of this kind. Names cannot hold one: in them `<` is escaped.
fn without(text: &str, begin: &str, end: &str) -> Option<String> {
    let from = text.find(begin)?;
    let to = from + text[from..].find(end)? + end.len();
    Some(format!("{}{}", &text[..from], &text[to..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(stacks: &[(&str, u64)]) -> Profile {
        let mut profile = Profile::new(ProfileOrigin::Host);
        stacks.iter().for_each(|(stack, weight)| profile.add(stack, *weight));
        profile
    }

    #[test]
    fn frames_are_as_wide_as_their_weight() {
        let svg = draw(&profile(&[("a;b", 3), ("a;c", 1)]), None).unwrap();
        for expected in ["a (4 weight, 100.00%)", "b (3 weight, 75.00%)", "c (1 weight, 25.00%)"] {
            assert!(svg.contains(expected), "{expected}");
        }
    }

    #[test]
    fn the_lowest_frame_has_a_label() {
        // A function that has its name, too narrow for a label of its own.
        let lines = ["L1 payload;all 1".to_owned(), "L1 payload 999".to_owned()];
        let svg = levels(&lines, 1, 0).unwrap();
        assert_eq!(svg.matches(">all (1,000 instructions, 100%)</text>").count(), 1, "{svg}");
        assert!(svg.contains(">L1 payload</text>"), "{svg}");
        assert!(!svg.contains("0.10%)</text>"), "{svg}");
    }

    #[test]
    fn a_difference_is_of_one_operation() {
        let lines =
            |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let (before, after) = (lines(&["a;b 10", "a;c 4"]), lines(&["a;b 30", "a;d 6"]));
        // b has 10 in the first and 15 in the second, of one operation; c is gone.
        let svg = difference((&before, 1), (&after, 2), 0).unwrap();
        assert!(svg.contains("b (15 instructions"), "{svg}");
        assert!(svg.contains("a (18 instructions"), "{svg}");
        assert_eq!(difference((&lines(&["a x"]), 1), (&after, 2), 0), None);
        assert_eq!(difference((&before, u64::MAX), (&after, u64::MAX), 0), None);
    }

    #[test]
    fn a_difference_is_of_equal_totals() {
        let (slow, fast) =
            (profile(&[("a;b", 10), ("a;c", 10)]), profile(&[("a;b", 1), ("a;c", 3)]));
        let svg = draw(&slow, Some(&fast)).unwrap();
        // b has half of the one and a quarter of the other.
        assert!(svg.contains("b (10 weight, 50.00%; +25.00%)"), "{svg}");
        assert!(svg.contains("c (10 weight, 50.00%; -25.00%)"), "{svg}");
    }

    #[test]
    fn hostile_names_are_escaped() {
        let hostile =
            "</svg><script>alert(1)</script>;<style>x</style>;a\"onload=\"b javascript:x\u{1b}[31m";
        let svg = embedded(&draw(&profile(&[(hostile, 1)]), None).unwrap(), 0);
        if let Some(svg) = svg {
            assert!(
                !svg.contains("<script") && !svg.contains("<style") && !svg.contains('\u{1b}'),
                "{svg}"
            );
            // The drawing and the part of it that is zoomed.
            assert_eq!((svg.matches("<svg").count(), svg.matches("</svg>").count()), (2, 2));
            assert!(!svg.contains("\"onload"));
        }
        assert!(
            embedded(&draw(&profile(&[("<script>", 1)]), None).unwrap(), 3)
                .unwrap()
                .contains("&lt;script")
        );
    }
}
