//! The README: its commands run as written, in order, and print what it shows.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::run;
use crate::terminal::Terminal;

/// A block of commands, and the output that the README shows below it.
struct Block {
    commands: String,
    output: String,
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn blocks(readme: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    // Every second part is inside a fence; its first line is the language.
    for fenced in readme.split("```").skip(1).step_by(2) {
        let (language, text) = fenced.split_once('\n').unwrap();
        match (language, blocks.last_mut()) {
            ("sh", _) => {
                blocks.push(Block { commands: text.to_owned(), output: String::new() });
            }
            ("", Some(block)) => block.output = text.to_owned(),
            _ => panic!("a block of {language:?}"),
        }
    }
    blocks
}

/// Words with every number replaced: paths differ slightly between boots.
fn without_numbers(text: &str) -> String {
    let plain = text.replace(['<', ','], "");
    let words = plain.split_whitespace().map(|word| match word.parse::<f64>() {
        Ok(_) => "N",
        Err(_) => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// What a block's commands print, in a folder that remains between blocks.
fn printed(commands: &str, folder: &Path) -> String {
    let path = std::env::var("PATH").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_vmtax")).parent().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &format!("exec 2>&1\n{commands}")]).current_dir(folder);
    shell.env("PATH", format!("{}:{path}", program.display()));
    shell.env("XDG_CACHE_HOME", run::cache());
    let output = run::one_at_a_time(|| shell.output().unwrap());
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

#[test]
fn the_readme_shows_what_its_commands_print() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 120, "the README has {} lines", readme.lines().count());
    let folder = tempfile::tempdir().unwrap();
    let captures = fs::canonicalize(repository().join("captures")).unwrap();
    std::os::unix::fs::symlink(captures, folder.path().join("captures")).unwrap();
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

/// Links of the README and of the documents to files of the repository.
#[test]
fn links_of_the_documents_lead_somewhere() {
    let mut documents: Vec<_> = fs::read_dir(repository().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect();
    let names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];
    documents.extend(names.map(|name| repository().join(name)));
    let mut links = 0;
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        for part in text.split("](").skip(1) {
            let link = part.split(')').next().unwrap();
            let target = link.split('#').next().unwrap();
            if target.is_empty() || link.contains("://") || link.contains(char::is_whitespace) {
                continue;
            }
            links += 1;
            let path = document.parent().unwrap().join(target);
            assert!(path.exists(), "{}: {link}", document.display());
        }
    }
    assert!(links > 50, "{links}");
}
