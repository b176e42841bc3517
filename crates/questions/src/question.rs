//! Predefined questions: SQL with a header that has title, description and parameters.
//!
//! ```sql
//! -- title: Exits of each class of hosts by cause
//! -- unit: exits, milliseconds
//! -- about: More, for the documents.
//! -- param class text = cpu_model: class of hosts
//! SELECT ...
//! ```
//!
//! A parameter is a value, bound to `$class` in the plan: it is never part of the text that is parsed.

use std::fmt::Write as _;

/// The questions, as they are in `questions/`.
const FILES: [(&str, &str); 6] = [
    ("top-causes", include_str!("../questions/top-causes.sql")),
    ("tax-rose", include_str!("../questions/tax-rose.sql")),
    ("kernels", include_str!("../questions/kernels.sql")),
    ("small-pages", include_str!("../questions/small-pages.sql")),
    ("nested", include_str!("../questions/nested.sql")),
    ("worst-vcpus", include_str!("../questions/worst-vcpus.sql")),
];

/// A predefined question.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetQuestion {
    /// Its name on the command line.
    pub name: String,
    /// Its title, one line.
    pub title: String,
    /// Units of its columns.
    pub unit: String,
    /// Description: how it is computed, and its limits.
    pub about: String,
    pub parameters: Vec<Parameter>,
    pub sql: String,
}

/// A parameter of a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub name: String,
    /// Kind of its values.
    pub kind: ParameterKind,
    /// Its default value, as text.
    pub default: String,
    pub about: String,
}

/// Kind of a parameter's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    Text,
    /// A whole number from 0.
    Count,
    Number,
    /// A day, `2026-01-31`.
    Date,
}

/// A value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    Text(String),
    Count(i64),
    Number(f64),
}

impl ParameterKind {
    const ALL: [(ParameterKind, &'static str, &'static str); 4] = [
        (ParameterKind::Text, "text", "a text"),
        (ParameterKind::Count, "count", "a whole number from 0"),
        (ParameterKind::Number, "number", "a number"),
        (ParameterKind::Date, "date", "a day such as 2026-01-31"),
    ];

    /// Its word in a header.
    pub fn word(self) -> &'static str {
        ParameterKind::ALL[self as usize].1
    }

    /// A value of this kind.
    ///
    /// # Errors
    /// The expected form.
    pub fn value(self, text: &str) -> Result<ParameterValue, String> {
        let wrong = || format!("{text:?} is not {}", ParameterKind::ALL[self as usize].2);
        match self {
            ParameterKind::Text => Ok(ParameterValue::Text(text.to_owned())),
            ParameterKind::Count => text
                .parse::<i64>()
                .ok()
                .filter(|&n| n >= 0)
                .map(ParameterValue::Count)
                .ok_or_else(wrong),
            ParameterKind::Number => text
                .parse::<f64>()
                .ok()
                .filter(|n| n.is_finite())
                .map(ParameterValue::Number)
                .ok_or_else(wrong),
            ParameterKind::Date => match vmtax_fleet_flags::is_date(text) {
                true => Ok(ParameterValue::Text(text.to_owned())),
                false => Err(wrong()),
            },
        }
    }
}

/// Every question.
///
/// # Errors
/// When a head is wrong; a test reads them all.
pub fn all() -> Result<Vec<FleetQuestion>, String> {
    FILES
        .iter()
        .map(|(name, text)| parse(name, text).map_err(|e| format!("question {name}: {e}")))
        .collect()
}

/// All of them as `vmtax query --list` shows them.
///
/// # Errors
/// As of [`all`].
pub fn list() -> Result<String, String> {
    let entries: Vec<String> = all()?.iter().map(FleetQuestion::described).collect();
    Ok(entries.join("\n"))
}

/// The question of this name.
///
/// # Errors
/// When there is none; the error lists the questions.
pub fn named(name: &str) -> Result<FleetQuestion, String> {
    let all = all()?;
    let names: Vec<String> = all.iter().map(|q| q.name.clone()).collect();
    all.into_iter()
        .find(|q| q.name == name)
        .ok_or_else(|| format!("there is no question {name:?}; there are {}", names.join(", ")))
}

impl FleetQuestion {
    /// Its title, what it computes, and its parameters.
    fn described(&self) -> String {
        let FleetQuestion { name, title, unit, about, parameters, .. } = self;
        let mut text = format!("{name}: {title}\n  units: {unit}\n  {about}\n");
        for Parameter { name, kind, default, about } in parameters {
            let default = if default.is_empty() { "nothing" } else { default };
            let kind = kind.word();
            // Writing to a text cannot fail.
            let _ = writeln!(text, "  --param {name}=... {about} ({kind}; default: {default})");
        }
        text
    }

    /// Its parameters with the values given, the others with their defaults.
    ///
    /// # Errors
    /// When a value is invalid, or a name unknown.
    pub fn values(
        &self,
        given: &[(String, String)],
    ) -> Result<Vec<(String, ParameterValue)>, String> {
        if let Some((name, _)) =
            given.iter().find(|(name, _)| !self.parameters.iter().any(|p| p.name == *name))
        {
            let names: Vec<&str> = self.parameters.iter().map(|p| p.name.as_str()).collect();
            return Err(format!(
                "question {} has no parameter {name:?}; it has {}",
                self.name,
                names.join(", ")
            ));
        }
        let value = |parameter: &Parameter| {
            let last = given.iter().rev().find(|(name, _)| *name == parameter.name);
            let text = last.map_or(&parameter.default, |(_, value)| value);
            let value = parameter
                .kind
                .value(text)
                .map_err(|e| format!("--param {}: {e}", parameter.name))?;
            Ok((parameter.name.clone(), value))
        };
        self.parameters.iter().map(value).collect()
    }
}

/// Reads a question.
///
/// # Errors
/// The problem, with the line.
pub fn parse(name: &str, text: &str) -> Result<FleetQuestion, String> {
    let mut question = FleetQuestion {
        name: name.to_owned(),
        title: String::new(),
        unit: String::new(),
        about: String::new(),
        parameters: Vec::new(),
        sql: String::new(),
    };
    let mut lines = text.lines().enumerate().peekable();
    while let Some((at, line)) = lines.next_if(|(_, line)| line.starts_with("--")) {
        let line = line.trim_start_matches('-').trim();
        let wrong = |why: &str| format!("line {}: {why}", at + 1);
        let (key, rest) = line.split_once(' ').ok_or_else(|| wrong("is no KEY: TEXT"))?;
        match key {
            "title:" => question.title = rest.to_owned(),
            "unit:" => question.unit = rest.to_owned(),
            "about:" => {
                question.about = [question.about.as_str(), rest].join(" ").trim().to_owned()
            }
            "param" => question.parameters.push(parameter(rest).map_err(|e| wrong(&e))?),
            _ => return Err(wrong("is not title:, unit:, about: or param")),
        }
    }
    question.sql = lines.map(|(_, line)| line).collect::<Vec<_>>().join("\n");
    match [&question.title, &question.unit, &question.sql]
        .iter()
        .all(|part| !part.trim().is_empty())
    {
        true => Ok(question),
        false => Err("lacks its title, its unit or its SQL".to_owned()),
    }
}

/// `NAME KIND = DEFAULT: ABOUT`.
fn parameter(text: &str) -> Result<Parameter, String> {
    let shape = || "is no `param NAME KIND = DEFAULT: ABOUT`".to_owned();
    let (head, rest) = text.split_once(" = ").ok_or_else(shape)?;
    let (name, kind) = head.trim().split_once(' ').ok_or_else(shape)?;
    let (default, about) = rest.split_once(": ").ok_or_else(shape)?;
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase()) {
        return Err(format!("{name:?} is no name of small letters"));
    }
    let kind = ParameterKind::ALL
        .into_iter()
        .find(|(_, word, _)| *word == kind)
        .ok_or_else(|| format!("{kind:?} is no kind"))?
        .0;
    kind.value(default.trim())?;
    Ok(Parameter {
        name: name.to_owned(),
        kind,
        default: default.trim().to_owned(),
        about: about.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_has_its_head() {
        let all = all().unwrap();
        assert_eq!(all.len(), FILES.len());
        for question in all {
            assert!(!question.about.is_empty(), "{}", question.name);
            for parameter in &question.parameters {
                assert!(
                    question.sql.contains(&format!("${}", parameter.name)),
                    "{}",
                    parameter.name
                );
            }
        }
    }

    #[test]
    fn invalid_headers_name_their_place() {
        for (text, why) in [
            ("-- title: t\n-- unit: u\n", "lacks"),
            ("-- title: t\nSELECT 1", "lacks"),
            ("-- what: t\nSELECT 1", "line 1: is not title:"),
            ("-- title: t\n-- unit: u\n-- param x\nSELECT 1", "line 3: is no `param"),
            ("-- title: t\n-- param X text = a: b\nSELECT 1", "line 2: \"X\" is no name"),
            ("-- param x word = a: b\nSELECT 1", "line 1: \"word\" is no kind"),
            ("-- param x count = -1: b\nSELECT 1", "line 1: \"-1\" is not a whole number"),
            ("--\nSELECT 1", "line 1: is no KEY"),
        ] {
            let said = parse("q", text).unwrap_err();
            assert!(said.contains(why), "{text:?}: {said}");
        }
    }

    #[test]
    fn values_are_of_their_kind() {
        let text = "-- title: t\n-- unit: u\n-- param since date = 2026-01-31: a\n-- param limit count = 5: b\nSELECT $since, $limit";
        let question = parse("q", text).unwrap();
        let set = |name: &str, value: &str| question.values(&[(name.to_owned(), value.to_owned())]);
        assert_eq!(set("limit", "7").unwrap()[1].1, ParameterValue::Count(7));
        for (name, value) in [
            ("limit", "x"),
            ("limit", "-1"),
            ("since", "yesterday"),
            ("since", "2026-13-01"),
            ("no", "1"),
        ] {
            assert!(set(name, value).is_err(), "{name} {value}");
        }
    }
}
