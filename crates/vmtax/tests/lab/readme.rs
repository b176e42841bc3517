//! The README: its commands run as written, in order, and print what it shows.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run;
use crate::terminal::Terminal;

/// A block of commands, and the output that the README shows below it.
struct CommandBlock {
    commands: String,
    output: String,
}

pub(crate) fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn blocks(readme: &str) -> Vec<CommandBlock> {
    let mut blocks: Vec<CommandBlock> = Vec::new();
    // Every second part is inside a fence; its first line is the language.
    for fenced in readme.split("```").skip(1).step_by(2) {
        let (language, text) = fenced.split_once('\n').unwrap();
        match (language, blocks.last_mut()) {
            ("sh", _) => {
                blocks.push(CommandBlock { commands: text.to_owned(), output: String::new() });
            }
            ("", Some(block)) => block.output = text.to_owned(),
            _ => panic!("a block of {language:?}"),
        }
    }
    blocks
}

/// Words with every number replaced: paths differ slightly between boots.
fn without_numbers(text: &str) -> String {
    let plain = text.replace(['<', ',', '(', ')'], "");
    let words = plain.split_whitespace().map(|word| match word.parse::<f64>() {
        Ok(_) => "N",
        Err(_) => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// What a block's commands print, in a folder that remains between blocks.
pub(crate) fn printed(commands: &str, folder: &Path) -> String {
    let path = std::env::var("PATH").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_vmtax")).parent().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &format!("exec 2>&1\n{commands}")]).current_dir(folder);
    shell.env("PATH", format!("{}:{path}", program.display()));
    shell.env("XDG_CACHE_HOME", run::cache());
    let output = shell.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{commands}\n{text}");
    text
}

/// `vmtax top` needs a terminal; the other commands of its block do not. A comment may end the line.
fn top_opens_and_quits(line: &str, folder: &Path) {
    let program = env!("CARGO_BIN_EXE_vmtax");
    let line = line.replacen("vmtax", program, 1);
    let terminal =
        Terminal::start((100, 30), &format!("{line}\necho ended $?; sleep 1000"), folder);
    terminal.wait_for("Quit");
    terminal.press("q");
    terminal.wait_for("ended 0");
}

/// A folder in which paths of the repository's recordings lead to them.
fn beside_captures() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let captures = fs::canonicalize(repository().join("captures")).unwrap();
    std::os::unix::fs::symlink(captures, folder.path().join("captures")).unwrap();
    folder
}

#[test]
fn the_readme_shows_what_its_commands_print() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 120, "the README has {} lines", readme.lines().count());
    let folder = beside_captures();
    let blocks = blocks(&readme);
    let (install, others) = blocks.split_first().unwrap();
    assert!(install.commands.contains("cargo install --locked --path crates/vmtax"));
    assert!(others.len() >= 5, "{}", others.len());
    for block in others {
        let (top, rest): (Vec<&str>, Vec<&str>) =
            block.commands.lines().partition(|line| line.starts_with("vmtax top "));
        top.iter().for_each(|line| top_opens_and_quits(line, folder.path()));
        let text = printed(&rest.join("\n"), folder.path());
        let is_of_the_lab = block.commands.contains("lab");
        match is_of_the_lab {
            true => assert_eq!(without_numbers(&text), without_numbers(&block.output)),
            false => assert_eq!(text, block.output, "{}", block.commands),
        }
    }
}

/// docs/index.md begins with what a user asks, and what is answered.
#[test]
fn the_first_page_shows_what_its_commands_print() {
    let page = fs::read_to_string(repository().join("docs/index.md")).unwrap();
    let folder = beside_captures();
    let blocks = blocks(&page);
    assert!(blocks.len() >= 3);
    for block in blocks {
        assert_eq!(printed(&block.commands, folder.path()), block.output, "{}", block.commands);
    }
}

/// It names the oldest Rust that Cargo.toml allows.
#[test]
fn the_readme_names_the_oldest_rust() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let named = format!("Rust {} or newer", env!("CARGO_PKG_RUST_VERSION"));
    assert!(readme.contains(&named), "the README does not say {named:?}");
}

/// The documents of a folder.
fn documents(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

/// The links of a document, without those in its code.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let ends = prose.flat_map(|part| part.split("](").skip(1));
    ends.filter_map(|rest| rest.split(')').next())
        .filter(|link| !link.contains("://") && !link.contains(char::is_whitespace))
        .collect()
}

/// The places that links to a document can name, as GitHub and mdBook derive them from its headings.
fn places(text: &str) -> HashSet<String> {
    let prose = text.split("```").step_by(2);
    let headings = prose.flat_map(|part| part.lines().filter(|line| line.starts_with('#')));
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    headings
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .map(|line| line.chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

/// Links of the README and of the documents to files of the repository, and to headings in them.
#[test]
fn links_of_the_documents_lead_somewhere() {
    let mut sources = documents("docs");
    sources.extend(documents("docs/measured"));
    let names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];
    sources.extend(names.map(|name| repository().join(name)));
    let captures = fs::read_dir(repository().join("captures")).unwrap();
    let readmes = captures.map(|entry| entry.unwrap().path().join("README.md"));
    sources.extend(readmes.filter(|path| path.exists()));
    let mut checked = 0;
    for document in sources {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text) {
            checked += 1;
            let (target, place) = link.split_once('#').unwrap_or((link, ""));
            let path = match target {
                "" => document.clone(),
                target => document.parent().unwrap().join(target),
            };
            assert!(path.exists(), "{}: {link}", document.display());
            if !place.is_empty() && path.extension().is_some_and(|end| end == "md") {
                let there = places(&fs::read_to_string(&path).unwrap());
                assert!(there.contains(place), "{}: {link}: no such heading", document.display());
            }
        }
    }
    assert!(checked > 150, "{checked}");
}

/// The book of the documents has each of them once.
#[test]
fn each_document_is_a_page_of_the_book() {
    let summary = fs::read_to_string(repository().join("docs/SUMMARY.md")).unwrap();
    let mut pages = links(&summary);
    pages.sort_unstable();
    let below = repository().join("docs");
    let paths = documents("docs").into_iter().chain(documents("docs/measured"));
    let mut names: Vec<String> = paths
        .map(|path| path.strip_prefix(&below).unwrap().to_str().unwrap().to_owned())
        .filter(|name| name != "SUMMARY.md")
        .collect();
    names.push("../crates/store/FORMAT.md".to_owned());
    names.sort_unstable();
    assert_eq!(pages, names);
}

/// docs/commands.md has a row for each command that has a man page.
#[test]
fn the_list_of_commands_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_vmtax")).arg("man").arg(folder.path()).status();
    assert!(made.unwrap().success());
    let list = fs::read_to_string(repository().join("docs/commands.md")).unwrap();
    let rows = list.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<String> = rows.map(str::to_owned).collect();
    let manuals = fs::read_dir(folder.path()).unwrap();
    let names: BTreeSet<String> = manuals
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| name.trim_end_matches(".1").to_owned())
        .collect();
    // A command with subcommands has its own page, and no row.
    let groups = names
        .iter()
        .filter(|name| names.iter().any(|other| other.starts_with(&format!("{name}-"))));
    let groups: BTreeSet<&String> = groups.collect();
    let leaves = names.iter().filter(|name| !groups.contains(name));
    let expected: BTreeSet<String> = leaves.map(|name| command_of(name)).collect();
    assert_eq!(listed, expected);
}

/// The command of a man page: only `bisect-step` has a hyphen of its own.
fn command_of(manual: &str) -> String {
    manual.replace('-', " ").replace("bisect step", "bisect-step")
}
