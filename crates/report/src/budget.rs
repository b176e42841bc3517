//! How a lab run keeps its budget, described once: a section of every report, JUnit XML, and GitHub's annotations.

use std::collections::BTreeMap;
use std::io::{self, Write};

use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};

use crate::names::printable;
use crate::numbers::{counted, instructions};
use crate::table::{Cell, Column, PEOPLE, Table};

/// A lab run beside its budget.
#[derive(Clone, Debug, Default)]
pub struct KeptBudget {
    /// The file of the budget, as the user named it.
    pub file: String,
    /// Every operation of the budget: its name and level.
    pub operations: Vec<(String, String)>,
    /// What is not the budget's. Violations first.
    pub numbers: Vec<Number>,
    /// What else decides how to read them.
    pub notes: Vec<String>,
}

/// A number that is not the budget's.
#[derive(Clone, Debug)]
pub struct Number {
    /// The operation and its level, `L1` or `L2`.
    pub operation: (String, String),
    /// `path`, an exit's name, or what is missing.
    pub what: String,
    /// The word behind the numbers; empty where something must be as it is.
    pub unit: &'static str,
    pub budget: f64,
    pub now: f64,
    /// Whether it violates the budget. If not, it is better than the budget.
    pub violates: bool,
    /// By which functions a path differs, where both have call trees.
    pub functions: Option<String>,
}

impl KeptBudget {
    pub fn violations(&self) -> impl Iterator<Item = &Number> {
        self.numbers.iter().filter(|one| one.violates)
    }

    /// `kvm.toml: 2 budget violations`
    pub fn title(&self) -> String {
        let file = printable(&self.file);
        match (self.violations().count() as u64, self.numbers.len()) {
            (0, 0) => format!("{file}: the budget is kept"),
            (0, _) => format!("{file}: better than the budget; write it anew with --bless"),
            (violations, _) => format!("{file}: {}", counted(violations, "budget violation")),
        }
    }

    /// A line for each number, for a terminal.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.notes.iter().map(|note| printable(note)).collect();
        for one in &self.numbers {
            let better = self.violations().next().is_some() && !one.violates;
            lines.push(format!("{}{}", if better { "better: " } else { "" }, one.line()));
            lines.extend(one.functions.iter().map(|said| format!("  {}", printable(said))));
        }
        lines
    }
}

impl Number {
    fn title(&self) -> String {
        printable(&format!("{} {}", self.operation.0, self.operation.1))
    }

    /// The part by which it differs, where the budget's is more than nothing.
    fn part(&self) -> Option<f64> {
        let counts = !self.unit.is_empty() && self.budget > 0.0;
        counts.then(|| (self.now - self.budget) / self.budget)
    }

    /// `path: 2,769 -> 3,100 instructions (+331, +12.0 %)`
    fn said(&self) -> String {
        let (now, budget) = (instructions(self.now), instructions(self.budget));
        let what = printable(&self.what);
        if self.unit.is_empty() {
            return format!("{what}: {budget} -> {now}");
        }
        let more = self.now - self.budget;
        let sign = if more < 0.0 { '-' } else { '+' };
        let part = self.part().map(|part| format!(", {sign}{:.1} %", 100.0 * part.abs()));
        let (by, part) = (instructions(more.abs()), part.unwrap_or_default());
        format!("{what}: {budget} -> {now} {} ({sign}{by}{part})", self.unit)
    }

    fn line(&self) -> String {
        format!("{}: {}", self.title(), self.said())
    }
}

/// A row for each number that is not the budget's.
pub(crate) fn table(kept: &KeptBudget) -> Table {
    let named = kept.numbers.iter().any(|one| one.functions.is_some());
    Table::of(&kept.numbers)
        .column(Column::words("operation", "operation"), |one| Cell::Name(one.operation.0.clone()))
        .column(Column::words("level", "level"), |one| Cell::Name(one.operation.1.clone()))
        .column(Column::words("what", "what"), |one| Cell::Name(one.what.clone()))
        .column(Column::number("budget", "budget"), |one| Cell::Instructions(one.budget))
        .column(Column::number("now", "now"), |one| Cell::Instructions(one.now))
        .column(Column::number("difference", "difference"), |one| {
            Cell::of((!one.unit.is_empty()).then_some(one.now - one.budget), Cell::Delta)
        })
        .column(Column::number("", "%").only(PEOPLE), |one| Cell::of(one.part(), Cell::Percent))
        .column(Column::data("part"), |one| Cell::of(one.part(), Cell::Number))
        .column(Column::words("unit", "unit"), |one| Cell::Word(one.unit))
        .column(Column::words("verdict", "verdict"), |one| {
            Cell::Word(if one.violates { "violation" } else { "better" })
        })
        .column(Column::list("functions", "functions").shown_if(named), |one| {
            let words = one.functions.iter().flat_map(|said| said.split(' ').map(str::to_owned));
            Cell::Words(words.collect())
        })
        .table()
}

/// JUnit XML: each operation of the budget is a test, which fails by its violations.
pub fn junit(kept: &KeptBudget, run: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut of: BTreeMap<&(String, String), Vec<&Number>> =
        kept.operations.iter().map(|operation| (operation, Vec::new())).collect();
    for one in kept.violations() {
        of.entry(&one.operation).or_default().push(one);
    }
    let failures = of.values().filter(|numbers| !numbers.is_empty()).count();
    let (tests, failures) = (of.len().to_string(), failures.to_string());
    let counts = [("tests", tests.as_str()), ("failures", failures.as_str())];
    let (suite, class) = (printable(&kept.file), printable(run));
    let mut xml = Writer::new_with_indent(&mut *out, b' ', 1);
    xml.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    xml.create_element("testsuites").with_attributes(counts).write_inner_content(|xml| {
        let suite = xml.create_element("testsuite").with_attribute(("name", suite.as_str()));
        suite.with_attributes(counts).write_inner_content(|xml| {
            of.iter().try_for_each(|(operation, numbers)| case(xml, operation, &class, numbers))
        })?;
        Ok(())
    })?;
    writeln!(out)
}

fn case<W: Write>(
    xml: &mut Writer<W>,
    (name, level): &(String, String),
    class: &str,
    numbers: &[&Number],
) -> io::Result<()> {
    let name = printable(&format!("{name} {level}"));
    let attributes = [("name", name.as_str()), ("classname", class)];
    let test = xml.create_element("testcase").with_attributes(attributes);
    if numbers.is_empty() {
        test.write_empty()?;
        return Ok(());
    }
    let lines = numbers.iter().flat_map(|one| {
        std::iter::once(one.said()).chain(one.functions.iter().map(|said| printable(said)))
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    test.write_inner_content(|xml| {
        let failure = xml.create_element("failure");
        let message = numbers[0].said();
        failure
            .with_attribute(("message", message.as_str()))
            .write_text_content(BytesText::new(&text))?;
        Ok(())
    })?;
    Ok(())
}

/// Workflow commands of GitHub Actions: an annotation for each violation.
pub fn annotations(kept: &KeptBudget) -> Vec<String> {
    let data = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
    let file = property(&kept.file);
    let said = |one: &Number| {
        let functions = one.functions.iter().map(|said| printable(said));
        let text = std::iter::once(one.said()).chain(functions).collect::<Vec<_>>().join("\n");
        format!("::error file={file},title={}::{}", property(&one.title()), data(&text))
    };
    kept.violations().map(said).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> KeptBudget {
        let number = |operation: &str, what: &str, unit, budget, now, violates| Number {
            operation: (operation.to_owned(), "L1".to_owned()),
            what: what.to_owned(),
            unit,
            budget,
            now,
            violates,
            functions: None,
        };
        let mut slower = number("cpuid", "path", "instructions", 2769.0, 3100.0, true);
        slower.functions = Some("kvm_emulate_cpuid +331".to_owned());
        let operations =
            ["cpuid", "hypercall", "<&\">"].map(|name| (name.to_owned(), "L1".to_owned()));
        KeptBudget {
            file: "ci/kvm,1.toml".to_owned(),
            operations: operations.to_vec(),
            numbers: vec![
                slower,
                number("cpuid", "L1 cpuid", "exits", 1.0, 2.0, true),
                number("hypercall", "path", "instructions", 900.0, 800.0, false),
            ],
            notes: Vec::new(),
        }
    }

    #[test]
    fn lines_have_both_numbers_and_the_difference() {
        assert_eq!(kept().title(), "ci/kvm,1.toml: 2 budget violations");
        assert_eq!(
            kept().lines(),
            [
                "cpuid L1: path: 2,769 -> 3,100 instructions (+331, +12.0 %)",
                "  kvm_emulate_cpuid +331",
                "cpuid L1: L1 cpuid: 1 -> 2 exits (+1, +100.0 %)",
                "better: hypercall L1: path: 900 -> 800 instructions (-100, -11.1 %)",
            ]
        );
    }

    #[test]
    fn junit_has_a_test_for_each_operation() {
        let mut xml = Vec::new();
        junit(&kept(), "amd 6.12", &mut xml).unwrap();
        assert_eq!(
            String::from_utf8(xml).unwrap(),
            r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="3" failures="1">
 <testsuite name="ci/kvm,1.toml" tests="3" failures="1">
  <testcase name="&lt;&amp;&quot;&gt; L1" classname="amd 6.12"/>
  <testcase name="cpuid L1" classname="amd 6.12">
   <failure message="path: 2,769 -&gt; 3,100 instructions (+331, +12.0 %)">path: 2,769 -&gt; 3,100 instructions (+331, +12.0 %)
kvm_emulate_cpuid +331
L1 cpuid: 1 -&gt; 2 exits (+1, +100.0 %)</failure>
  </testcase>
  <testcase name="hypercall L1" classname="amd 6.12"/>
 </testsuite>
</testsuites>
"#
        );
    }

    #[test]
    fn annotations_are_escaped_as_github_asks() {
        assert_eq!(
            annotations(&kept()),
            [
                "::error file=ci/kvm%2C1.toml,title=cpuid L1::path: 2,769 -> 3,100 instructions (+331, +12.0 %25)%0Akvm_emulate_cpuid +331",
                "::error file=ci/kvm%2C1.toml,title=cpuid L1::L1 cpuid: 1 -> 2 exits (+1, +100.0 %25)",
            ]
        );
    }
}
