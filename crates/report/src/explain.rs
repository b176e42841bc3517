//! An explanation -> text or JSON.

use std::io::{self, Write};

use serde::Serialize;
use vmtax_analyse::audit::Gain;
use vmtax_analyse::explain::{Answer, Expected, Explanation, Finding};

use crate::json::shape::Losses;
use crate::names::printable;
use crate::numbers::{count, duration, percent};
use crate::text::Page;
use crate::text::layout::{Paint, Style, wrap};
use crate::{Subject, losses};

/// Name and version of the JSON's shape.
pub const SCHEMA: &str = "vmtax-explain-1";

/// What an explanation shows.
pub struct Explained<'a> {
    /// Version of this tool.
    pub tool_version: &'a str,
    /// The run.
    pub run: Subject<'a>,
    /// What it was held against.
    pub base: Option<Subject<'a>>,
    /// The explanation.
    pub explanation: &'a Explanation,
}

/// With a capital to begin with.
pub(crate) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// What a change could gain, in words.
pub(crate) fn expected(expected: &Expected) -> String {
    match expected {
        Expected::Exits(exits) => gain(exits),
        Expected::BesideExits(what) => format!("not known: {what}"),
        Expected::Tried(tried) => format!(
            "{} of the loss where it was tried: {} from {} to {} {}; a plain VM has {}",
            percent(tried.share),
            tried.what,
            tried.values[0],
            tried.values[1],
            tried.unit,
            tried.plain
        ),
    }
}

fn gain(gain: &Gain) -> String {
    match *gain {
        Gain::AtMost { count: exits, time_ns, base_ns } => format!(
            "at most {} of the time: {} in {} exits, of {} that the vCPUs were not halted",
            percent(time_ns as f64 / base_ns.max(1) as f64),
            duration(time_ns as f64),
            count(exits),
            duration(base_ns as f64)
        ),
        Gain::Preempted { time_ns, .. } => format!("at most {}", duration(time_ns as f64)),
        Gain::Counts { count: exits } => {
            format!("at most {} exits; their time is not known", count(exits))
        }
        Gain::NoExits => "no exits".to_owned(),
        Gain::Unknown => "not known".to_owned(),
    }
}

impl Explained<'_> {
    /// For a terminal of this width.
    pub fn text(&self, color: bool, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
        let paint = Paint { color };
        let say = |out: &mut dyn Write, style: Style, first: &str, text: &str| -> io::Result<()> {
            let indent = " ".repeat(first.chars().count());
            let lines = wrap(text, width, first, &indent);
            lines.iter().try_for_each(|line| paint.line(out, style, line))
        };
        let mut title =
            format!("vmtax {}: {}", printable(self.tool_version), printable(self.run.source));
        if let Some(base) = self.base {
            title += &format!(" against {}", printable(base.source));
        }
        say(out, Style::Heading, "", &title)?;
        if let Some(which) = self.run.emulated() {
            let text = format!(
                "Recorded under {}: counts are exact, times are none of hardware.",
                printable(which)
            );
            say(out, Style::Warning, "  ", &text)?;
        }
        say(
            out,
            Style::Heading,
            "",
            &format!("{}.", sentence(&printable(&self.explanation.conclusion))),
        )?;
        for (number, step) in (1..).zip(&self.explanation.steps) {
            paint.line(out, Style::Plain, "")?;
            let style = if step.answer == Answer::Unknown { Style::Faint } else { Style::Heading };
            say(
                out,
                style,
                &format!("{number}. "),
                &format!("{} {}", step.question, step.answer.name()),
            )?;
            say(out, Style::Plain, "   ", &format!("{}.", printable(&step.says)))?;
            for line in &step.evidence {
                say(out, Style::Plain, "   - ", &printable(line))?;
            }
            if let Some(next) = step.next {
                say(out, Style::Faint, "   next: ", next)?;
            }
        }
        paint.line(out, Style::Plain, "")?;
        if self.explanation.findings.is_empty() {
            say(
                out,
                Style::Heading,
                "",
                "Nothing in these exits gives away a setting that costs.",
            )?;
        } else {
            say(out, Style::Heading, "", "What to change, most to gain first")?;
        }
        for (number, finding) in (1..).zip(&self.explanation.findings) {
            let first = format!("{number}. ");
            let indent = " ".repeat(first.len());
            say(
                out,
                Style::Plain,
                &first,
                &format!("{}: {}.", finding.certainty.name(), printable(&finding.means)),
            )?;
            say(out, Style::Plain, &format!("{indent}- "), &printable(&finding.evidence))?;
            say(
                out,
                Style::Plain,
                &format!("{indent}gain: "),
                &printable(&expected(&finding.gain)),
            )?;
            say(out, Style::Plain, &format!("{indent}do: "), finding.remedy)?;
        }
        let mut page = Page { paint, width, out };
        page.losses("losses", &losses::all(self.run.ledger))?;
        if let Some(base) = self.base {
            page.losses("losses of what it is held against", &losses::all(base.ledger))?;
        }
        paint.line(out, Style::Plain, "")?;
        say(out, Style::Faint, "", "`vmtax doctor` reads the settings themselves.")
    }

    /// For programs: the shape [`SCHEMA`].
    pub fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let steps = self.explanation.steps.iter().map(|step| Step {
            step: step.id,
            question: step.question,
            answer: step.answer.name(),
            says: &step.says,
            evidence: &step.evidence,
            next: step.next,
        });
        let object = Object {
            schema: SCHEMA,
            source: self.run.source,
            base: self.base.map(|base| base.source),
            emulated: self.run.emulated(),
            conclusion: &self.explanation.conclusion,
            steps: steps.collect(),
            findings: self.explanation.findings.iter().map(shaped).collect(),
            losses: crate::json::losses(self.run.ledger),
            base_losses: self.base.map(|base| crate::json::losses(base.ledger)),
        };
        crate::json::write(&object, out)
    }
}

#[derive(Serialize)]
struct Object<'a> {
    schema: &'static str,
    source: &'a str,
    base: Option<&'a str>,
    emulated: Option<&'a str>,
    /// What the answers come to.
    conclusion: &'a str,
    steps: Vec<Step<'a>>,
    findings: Vec<Shaped<'a>>,
    losses: Losses<'a>,
    /// `None` without a base.
    base_losses: Option<Losses<'a>>,
}

#[derive(Serialize)]
struct Step<'a> {
    step: &'static str,
    question: &'static str,
    answer: &'static str,
    says: &'a str,
    evidence: &'a [String],
    next: Option<&'static str>,
}

#[derive(Serialize)]
struct Shaped<'a> {
    sign: &'static str,
    certainty: &'static str,
    means: &'a str,
    evidence: &'a str,
    /// Exits that would go, at most.
    exits: Option<u64>,
    /// Share of the time that vCPUs were not halted, at most.
    gain_share: Option<f64>,
    /// Part of the loss that came back where the change was tried.
    recovered: Option<f64>,
    remedy: &'static str,
}

fn shaped(finding: &Finding) -> Shaped<'_> {
    let exits = match finding.gain {
        Expected::Exits(Gain::AtMost { count, .. } | Gain::Counts { count }) => Some(count),
        _ => None,
    };
    let gain_share = match &finding.gain {
        Expected::Exits(gain) => gain.share(),
        _ => None,
    };
    let recovered = match &finding.gain {
        Expected::Tried(tried) => Some(tried.share),
        _ => None,
    };
    Shaped {
        sign: finding.id,
        certainty: finding.certainty.name(),
        means: &finding.means,
        evidence: &finding.evidence,
        exits,
        gain_share,
        recovered,
        remedy: finding.remedy,
    }
}
