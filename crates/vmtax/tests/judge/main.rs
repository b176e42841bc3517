//! The labelled corpus: `captures/cases/NAME.toml`, or `NAME/truth.toml` beside recordings, each case explained by the program and compared
//! with its truth. `./x bench judge` prints the score.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod generate;
mod kinds;

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;
use serde_json::Value;

/// What must be concluded of a case.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Truth {
    /// `generated`, `constructed`, `published` or `recorded`.
    origin: String,
    /// Who says that it is so: a thread, a line of a kernel's or VMM's source, a lab run that shows it, the construction of an input with
    /// exact times. A case without it is no part of the score: it guards what was said before.
    source: Option<String>,
    /// The command that is scored.
    #[serde(default)]
    program: JudgedProgram,
    /// Words of the command after `explain`, `doctor` or `diff`; `input` and `base` are the case's files.
    command: String,
    /// Verdicts of `explain` that are right, and `refused`.
    #[serde(default)]
    verdict: Vec<String>,
    /// `CHECK VERDICT`, as `vmtax doctor` must judge.
    #[serde(default)]
    checks: Vec<String>,
    /// What must not be said.
    #[serde(default)]
    unsaid: Vec<String>,
    /// Findings that there must be.
    #[serde(default)]
    findings: Vec<String>,
    /// Findings that would be false.
    #[serde(default)]
    not: Vec<String>,
    /// What must be said in the evidence or the verdict.
    #[serde(default)]
    says: Vec<String>,
    /// Remedies one of which must be there.
    #[serde(default)]
    remedies: Vec<String>,
    /// Further remedies that are not false.
    #[serde(default)]
    allowed: Vec<String>,
    /// Inputs that are short texts, by name.
    #[serde(default)]
    text: BTreeMap<String, String>,
    /// Recordings that are made up, by name.
    #[serde(default)]
    made: BTreeMap<String, generate::MadeSpec>,
    /// Files of a host or guest, by the name of their folder.
    #[serde(default)]
    tree: BTreeMap<String, FileTree>,
}

/// A verdict is one sentence of at most so many words.
const MOST_WORDS: usize = 25;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum JudgedProgram {
    #[default]
    Explain,
    Doctor,
    Diff,
}

/// Files below a folder, for `vmtax doctor`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTree {
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// Targets of links by path.
    #[serde(default)]
    links: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Score {
    Right,
    Unremedied,
    Silent,
    Wrong,
    FalseRemedy,
}

/// A case: the folder of its inputs, if it has recordings.
struct JudgedCase {
    name: String,
    inputs: Option<PathBuf>,
    truth: Truth,
}

impl JudgedCase {
    /// `None` if this is no case, or not a chosen one.
    fn open(path: &Path) -> Option<JudgedCase> {
        let inputs = path.is_dir().then(|| path.to_owned());
        let truth = inputs.as_ref().map_or(path.to_owned(), |folder| folder.join("truth.toml"));
        let name = path.file_stem()?.to_str()?.to_owned();
        if truth.extension()? != "toml" || chosen().is_some_and(|part| !name.contains(&part)) {
            return None;
        }
        let text = fs::read_to_string(&truth).ok()?;
        let truth: Truth = toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let origins = ["generated", "constructed", "published", "recorded"];
        assert!(origins.contains(&truth.origin.as_str()), "{name}");
        Some(JudgedCase { name, inputs, truth })
    }

    /// Puts the inputs into a folder: texts are written, and those that are made up are made.
    fn lay_out(&self, folder: &Path, variation: u64) {
        for entry in self.inputs.iter().flat_map(|inputs| fs::read_dir(inputs).unwrap()) {
            let path = entry.unwrap().path();
            copy(&path, &folder.join(path.file_name().unwrap()));
        }
        for (name, text) in &self.truth.text {
            fs::write(folder.join(name), text).unwrap();
        }
        for (name, spec) in &self.truth.made {
            let text = generate::perf_script(spec, spec.seed.wrapping_add(variation * 7919));
            fs::write(folder.join(name), text).unwrap();
        }
        for (name, tree) in &self.truth.tree {
            plant(tree, &folder.join(name));
        }
    }

    /// Its only input is made from a description.
    fn is_made(&self) -> bool {
        self.truth.made.contains_key("input")
    }
}

fn cases() -> Vec<JudgedCase> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/cases");
    let entries = fs::read_dir(folder).unwrap();
    let mut cases: Vec<JudgedCase> =
        entries.filter_map(|entry| JudgedCase::open(&entry.unwrap().path())).collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

/// `VMTAX_CASES`: part of the names of the cases to score; their output is shown too.
fn chosen() -> Option<String> {
    std::env::var("VMTAX_CASES").ok().filter(|part| !part.is_empty())
}

/// Makes the files of a tree.
fn plant(tree: &FileTree, root: &Path) {
    let place = |path: &str| {
        let place = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        place
    };
    for (path, text) in &tree.files {
        fs::write(place(path), text).unwrap();
    }
    for (path, target) in &tree.links {
        symlink(target, place(path)).unwrap();
    }
}

/// A file, or a run with all that is in it.
fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        fs::copy(from, to).unwrap();
        return;
    }
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        copy(&path, &to.join(path.file_name().unwrap()));
    }
}

fn execute(folder: &Path, words: &str) -> Result<String, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_vmtax"))
        .args(words.split_whitespace())
        .current_dir(folder)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn run(folder: &Path, words: &str) -> Result<Value, String> {
    let text = execute(folder, words)?;
    Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
}

fn words<'v>(value: &'v Value, name: &str) -> Vec<&'v str> {
    value.as_array().into_iter().flatten().filter_map(|one| one[name].as_str()).collect()
}

/// An input that has no answer is refused with a sentence that says what it is.
fn refused(truth: &Truth, refusal: String) -> (Score, String) {
    let right = truth.verdict.iter().any(|verdict| verdict == "refused");
    let said = truth.says.iter().all(|said| refusal.contains(said.as_str()));
    (if right && said { Score::Right } else { Score::Silent }, refusal)
}

/// What `doctor` and `diff` say: each check's verdict, and sentences.
fn said(truth: &Truth, folder: &Path, last: &str) -> (Score, String) {
    let program = if truth.program == JudgedProgram::Doctor { "doctor" } else { "diff" };
    let text = match execute(folder, &format!("{program} {last}")) {
        Ok(text) => text,
        Err(refusal) => return refused(truth, refusal),
    };
    let report = run(folder, &format!("{program} {last} --format json")).unwrap();
    // The text's lines are wrapped.
    let words: Vec<&str> = text.split_whitespace().collect();
    let all = format!("{} {report}", words.join(" "));
    if let Some(what) = truth.unsaid.iter().find(|what| all.contains(what.as_str())) {
        return (Score::FalseRemedy, format!("says {what}: {text}"));
    }
    let findings = report["findings"].as_array().cloned().unwrap_or_default();
    for check in &truth.checks {
        let (id, expected) = check.split_once(' ').unwrap();
        let found = findings.iter().find(|finding| finding["check"] == id);
        let verdict = found.and_then(|finding| finding["verdict"].as_str()).unwrap_or("unknown");
        if verdict != expected {
            let score = if verdict == "unknown" { Score::Silent } else { Score::Wrong };
            return (score, format!("{id}: {verdict}"));
        }
    }
    match truth.says.iter().find(|what| !all.contains(what.as_str())) {
        Some(what) => (Score::Silent, format!("lacks {what}: {text}")),
        None => (Score::Right, String::new()),
    }
}

/// Explains a case, and what is to be said of that.
#[expect(clippy::print_stdout, reason = "what is said of chosen cases is read by a person")]
fn judge(case: &JudgedCase, variation: u64) -> (Score, String) {
    let (folder, truth) = (tempfile::tempdir().unwrap(), &case.truth);
    case.lay_out(folder.path(), variation);
    let mut steps: Vec<&str> = truth.command.split(';').map(str::trim).collect();
    let last = steps.pop().unwrap();
    let done = steps.into_iter().try_for_each(|step| run(folder.path(), step).map(|_| ()));
    if truth.program != JudgedProgram::Explain {
        return done
            .map_or_else(|refusal| refused(truth, refusal), |()| said(truth, folder.path(), last));
    }
    let report =
        match done.and_then(|()| run(folder.path(), &format!("explain {last} --format json"))) {
            Ok(report) => report,
            Err(refusal) => return refused(truth, refusal),
        };
    if chosen().is_some() {
        println!("---- {}", case.name);
        println!("{}", execute(folder.path(), &format!("explain {last}")).unwrap_or_default());
    }
    // A configuration is checked as doctor checks it.
    let is_checked = report["schema"].as_str().is_some_and(|schema| schema.contains("doctor"));
    let verdict = match is_checked {
        true => "configuration",
        false => report["verdict"]["id"].as_str().unwrap_or_default(),
    };
    let says = report["verdict"]["says"].as_str().unwrap_or_default();
    let is_word = |word: &&str| word.chars().any(char::is_alphanumeric);
    if says.split_whitespace().filter(is_word).count() > MOST_WORDS {
        return (Score::Wrong, format!("a verdict of more than {MOST_WORDS} words: {says}"));
    }
    let costly: Vec<Value> = report["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|finding| !is_checked || finding["verdict"] == "costs you")
        .cloned()
        .collect();
    let found: Vec<&str> =
        costly.iter().filter_map(|one| one["id"].as_str().or(one["check"].as_str())).collect();
    let fixed = costly.iter().filter(|one| !one["fix"].is_null());
    let fixes = fixed.filter_map(|one| one["check"].as_str());
    let remedies: Vec<&str> =
        costly.iter().flat_map(|finding| words(&finding["remedies"], "id")).chain(fixes).collect();
    let seen = format!("{verdict} {found:?} {remedies:?}");
    let allowed =
        |id: &&&str| truth.remedies.iter().chain(&truth.allowed).any(|known| known == **id);
    if let Some(id) = remedies.iter().find(|id| !allowed(id)) {
        return (Score::FalseRemedy, format!("{id}: {seen}"));
    }
    if let Some(id) = found.iter().find(|id| truth.not.iter().any(|not| not == **id)) {
        return (Score::Wrong, format!("{id}: {seen}"));
    }
    if !truth.verdict.iter().any(|right| right == verdict) {
        let says_nothing = verdict == "undecided" || is_checked;
        return (if says_nothing { Score::Silent } else { Score::Wrong }, seen);
    }
    let text = report.to_string();
    if let Some(what) = truth.unsaid.iter().find(|what| text.contains(what.as_str())) {
        return (Score::Wrong, format!("says {what}: {seen}"));
    }
    let missing = truth.findings.iter().find(|id| !found.contains(&id.as_str()));
    let unsaid = truth.says.iter().find(|said| !text.contains(said.as_str()));
    if let Some(what) = missing.or(unsaid) {
        return (Score::Silent, format!("lacks {what}: {seen}"));
    }
    if !truth.remedies.is_empty()
        && !remedies.iter().any(|id| truth.remedies.iter().any(|r| r == id))
    {
        return (Score::Unremedied, seen);
    }
    (Score::Right, seen)
}

/// Cases by whether they have a source, and how they are judged.
#[derive(Default)]
struct ScoreTable {
    names: BTreeMap<(bool, Score), Vec<String>>,
}

impl ScoreTable {
    fn count(&self, score: Score) -> usize {
        [true, false]
            .iter()
            .filter_map(|scored| self.names.get(&(*scored, score)))
            .map(Vec::len)
            .sum()
    }

    fn all(&self) -> usize {
        self.names.values().map(Vec::len).sum()
    }

    /// None may be wrong or have a false remedy.
    fn check(&self) {
        assert_eq!((self.count(Score::Wrong), self.count(Score::FalseRemedy)), (0, 0));
        assert!(chosen().is_some() || self.all() >= 40, "{}", self.all());
    }
}

impl Display for ScoreTable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12} {:>10} {:>10}", "", "scored", "guards")?;
        let of = |scored, score| self.names.get(&(scored, score)).map_or(0, Vec::len);
        for score in
            [Score::Right, Score::Unremedied, Score::Silent, Score::Wrong, Score::FalseRemedy]
        {
            let [scored, guards] = [true, false].map(|scored| of(scored, score));
            writeln!(f, "{:<12} {scored:>10} {guards:>10}", format!("{score:?}"))?;
        }
        for ((_, score), names) in &self.names {
            for name in names.iter().filter(|_| *score != Score::Right) {
                writeln!(f, "{score:?}: {name}")?;
            }
        }
        Ok(())
    }
}

/// Judges the cases whose input is made from a description, with two seeds each, or all others.
fn judged(made: bool) -> ScoreTable {
    let all = cases();
    let mine: Vec<&JudgedCase> = all.iter().filter(|case| case.is_made() == made).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut table = ScoreTable::default();
        while let Some(case) = mine.get(next.fetch_add(1, Ordering::Relaxed)) {
            let worst = (0..if made { 2 } else { 1 })
                .map(|variation| judge(case, variation))
                .max_by_key(|(score, _)| *score)
                .unwrap();
            let key = (case.truth.source.is_some(), worst.0);
            table.names.entry(key).or_default().push(format!("{}: {}", case.name, worst.1));
        }
        table
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut table = ScoreTable::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            for (key, names) in worker.join().unwrap().names {
                table.names.entry(key).or_default().extend(names);
            }
        }
    });
    table.names.values_mut().for_each(|names| names.sort());
    table
}

/// At most one in six is silent: most of these are what people posted, words among them.
#[test]
fn reports_and_recordings_are_judged_rightly() {
    let table = judged(false);
    println!("{table}");
    table.check();
    let silent = table.count(Score::Silent);
    assert!(
        chosen().is_some() || silent * 6 <= table.all(),
        "{silent} of {} are silent",
        table.all()
    );
}

/// At most one in fifty is silent, whatever the seed.
#[test]
fn made_up_recordings_are_judged_rightly() {
    let table = judged(true);
    println!("{table}");
    table.check();
    let silent = table.count(Score::Silent);
    assert!(
        chosen().is_some() || silent * 50 <= table.all(),
        "{silent} of {} are silent",
        table.all()
    );
}
