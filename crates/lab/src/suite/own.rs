//! Operations of the user's own, from a file.
//!
//! ```toml
//! [[operation]]
//! name = "rdmsr-tsc-adjust"
//! setup = "mov ecx, 0x3b"          # once, before the first batch
//! code = "rdmsr"                   # the operation: GNU assembler, Intel syntax
//! exits = { amd = "msr", intel = "MSR_READ" }
//!
//! [[operation]]
//! name = "rdpru"
//! host = "amd"
//! levels = [1]
//! bytes = "0f 01 fd"               # machine code in place of `code`; `setup-bytes` in place of `setup`
//! ```
//! The code may use every register but r12 to r15 and must be independent of its address. The loop around it changes rax and rdx.

use std::path::Path;
use std::process::{Command, Stdio};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use object::{Object, ObjectSection};
use serde::Deserialize;
use vmtax_durable::read_small_text;
use vmtax_events::{Isa, svm, vmx};

use super::definition::{Definition, ExpectedExits, GuestCode, OwnMachineCode, line, nothing};
use super::{EMPTY, SUITES, Suite};
use crate::Error;
use crate::budget::toml_problem;

/// Limits of a file: bytes of it, its operations, bytes of the code of one, letters of a name, and operations in a batch.
const MOST_TEXT: u64 = 1 << 20;
const MOST: usize = 64;
const MOST_CODE: usize = 4096;
const LONGEST_NAME: usize = 40;
const MOST_COUNT: u32 = 1000;
/// Operations in a batch where the file does not say.
const COUNT: u32 = 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnFile {
    #[serde(default)]
    operation: Vec<WrittenOperation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenOperation {
    name: String,
    #[serde(default)]
    summary: String,
    host: Option<String>,
    levels: Option<Vec<u8>>,
    count: Option<u32>,
    code: Option<String>,
    bytes: Option<String>,
    setup: Option<String>,
    setup_bytes: Option<String>,
    #[serde(default)]
    exits: OwnExits,
}

/// The reason of the exit that each operation must take.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnExits {
    amd: Option<String>,
    intel: Option<String>,
}

/// Reads a file as a suite, which is kept until the process ends, as those of the table are.
///
/// # Errors
/// When the file cannot be read, or has something that cannot run: the sentence names the operation.
pub fn read(path: &Path) -> Result<&'static Suite, Error> {
    let problem = |problem: String| Error::Operation { path: path.to_owned(), problem };
    let text = read_small_text(path, MOST_TEXT).map_err(Error::io(path, "read the operations"))?;
    let definitions = definitions(&text).map_err(problem)?;
    Ok(Box::leak(Box::new(Suite {
        name: "own",
        summary: "operations of the user's file",
        operations: Vec::leak(definitions),
        nests: true,
    })))
}

fn definitions(text: &str) -> Result<Vec<Definition>, String> {
    let file: OwnFile = toml::from_str(text).map_err(|error| toml_problem(text, &error))?;
    if file.operation.is_empty() || file.operation.len() > MOST {
        return Err(format!("has {} operations; from 1 to {MOST} can run", file.operation.len()));
    }
    let mut found: Vec<Definition> = Vec::new();
    for written in file.operation {
        let name = written.name.clone();
        let known = SUITES.iter().flat_map(|suite| suite.operations).chain([&EMPTY]).chain(&found);
        if known.into_iter().any(|one| one.name == name) {
            return Err(format!("operation {name:?}: there is one of this name already"));
        }
        found.push(
            written.definition().map_err(|problem| format!("operation {name:?}: {problem}"))?,
        );
    }
    Ok(found)
}

impl WrittenOperation {
    fn definition(self) -> Result<Definition, String> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > LONGEST_NAME || !self.name.chars().all(plain) {
            return Err(format!(
                "a name has 1 to {LONGEST_NAME} lower-case letters, digits and dashes"
            ));
        }
        let count = self.count.unwrap_or(COUNT);
        if !(1..=MOST_COUNT).contains(&count) {
            return Err(format!("count must be from 1 to {MOST_COUNT}"));
        }
        let levels = self.levels.unwrap_or_else(|| vec![1, 2]);
        if levels.is_empty() || levels.iter().any(|level| !(1..=2).contains(level)) {
            return Err("levels are 1 and 2".to_owned());
        }
        let isa = match self.host.as_deref() {
            None => None,
            Some("amd") => Some(Isa::Svm),
            Some("intel") => Some(Isa::Vmx),
            Some(other) => return Err(format!("host {other:?} is neither \"amd\" nor \"intel\"")),
        };
        let body = machine_code(("code", self.code), ("bytes", self.bytes))?;
        let setup = machine_code(("setup", self.setup), ("setup-bytes", self.setup_bytes))?;
        let body = body.filter(|body| !body.is_empty()).ok_or("has neither code nor bytes")?;
        let kind = kind(&self.exits)?;
        let own = OwnMachineCode {
            setup: setup.unwrap_or_default(),
            around: around(&body),
            body,
            levels,
            words: Vec::new(),
        };
        Ok(Definition {
            name: String::leak(self.name),
            summary: String::leak(self.summary),
            count,
            kind,
            code: GuestCode { own: Some(Box::leak(Box::new(own))), isa, ..line(nothing) },
        })
    }
}

fn kind(exits: &OwnExits) -> Result<ExpectedExits, String> {
    let reason = |given: &Option<String>, name: fn(u32) -> Option<&'static str>, host: &str| {
        let Some(given) = given else { return Ok(("", 0)) };
        let known = (0..=0x500).find_map(|code| name(code).filter(|name| name == given));
        known.map(|known| (known, 1)).ok_or_else(|| {
            format!("{given:?} is no exit reason of {host}; `vmtax report` prints those of a run")
        })
    };
    let (svm, vmx) =
        (reason(&exits.amd, svm::name, "amd")?, reason(&exits.intel, vmx::name, "intel")?);
    Ok(if svm.1 + vmx.1 == 0 { ExpectedExits::Measured } else { ExpectedExits::Each { svm, vmx } })
}

/// Code from either of two keys.
fn machine_code(
    (text_key, text): (&str, Option<String>),
    (bytes_key, bytes): (&str, Option<String>),
) -> Result<Option<Vec<u8>>, String> {
    let code = match (text, bytes) {
        (Some(_), Some(_)) => return Err(format!("has both {text_key} and {bytes_key}")),
        (None, None) => return Ok(None),
        (Some(text), None) => assembled(&text)
            .map_err(|problem| format!("{text_key}: {problem}; {bytes_key} takes machine code"))?,
        (None, Some(bytes)) => hexadecimal(&bytes)
            .ok_or_else(|| format!("{bytes_key}: are two hexadecimal digits each: \"0f a2\""))?,
    };
    if code.len() > MOST_CODE {
        return Err(format!("{text_key}: has {} bytes, at most {MOST_CODE} can run", code.len()));
    }
    Ok(Some(code))
}

fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace() && *c != ',').collect();
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        pair.chars().all(|c| c.is_ascii_hexdigit()).then(|| u8::from_str_radix(pair, 16).ok())?
    };
    pairs.map(byte).collect()
}

/// Assembles with GNU as.
fn assembled(text: &str) -> Result<Vec<u8>, String> {
    // A directive could read files of this computer into the guest.
    if let Some(directive) =
        text.split(['\n', ';']).map(str::trim).find(|line| line.starts_with('.'))
    {
        let word = directive.split_whitespace().next().unwrap_or(directive);
        if [".incbin", ".include"].contains(&word) {
            return Err(format!("{word} is not allowed"));
        }
    }
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let object = folder.path().join("code.o");
    let source = folder.path().join("code.s");
    std::fs::write(&source, format!(".intel_syntax noprefix\n.code64\n.text\n{text}\n"))
        .map_err(|e| e.to_string())?;
    let mut command = Command::new("as");
    command.args(["--64", "-o"]).arg(&object).arg(&source).env("LC_ALL", "C").stdin(Stdio::null());
    let done = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            "GNU as is not installed (apt-get install binutils)".to_owned()
        }
        _ => format!("as cannot be started: {error}"),
    })?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let line = said
            .lines()
            .find_map(|line| line.split_once("Error: ").map(|(_, rest)| rest.to_owned()));
        return Err(format!(
            "does not assemble: {}",
            vmtax_events::printable(&line.unwrap_or(said)).trim()
        ));
    }
    let bytes = std::fs::read(&object).map_err(|e| e.to_string())?;
    let file = object::File::parse(bytes.as_slice()).map_err(|e| e.to_string())?;
    let section = file.section_by_name(".text").ok_or("has no code")?;
    if section.relocations().next().is_some() {
        return Err("refers to something outside of itself".to_owned());
    }
    Ok(section.data().map_err(|e| e.to_string())?.to_vec())
}

/// Instructions that only prepare: all but one of a body without jumps. Of a body with jumps, or with instructions that are not known here, all is the
/// operation.
fn around(body: &[u8]) -> u64 {
    let mut instructions = 0;
    for instruction in Decoder::new(64, body, DecoderOptions::NONE) {
        let calls = matches!(instruction.mnemonic(), Mnemonic::Vmcall | Mnemonic::Vmmcall);
        if instruction.is_invalid() || (instruction.flow_control() != FlowControl::Next && !calls) {
            return 0;
        }
        instructions += 1;
    }
    u64::saturating_sub(instructions, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostKind;

    fn problem(text: &str) -> String {
        definitions(text).expect_err(text)
    }

    #[test]
    fn an_operation_of_bytes() {
        let text = "[[operation]]\nname = \"own-cpuid\"\nbytes = \"31 c0, 0F a2\"\nsetup-bytes = \"90\"\nhost = \"amd\"\nlevels = [1]\ncount = 7\nexits = { amd = \"cpuid\" }\n";
        let found = definitions(text).expect("an operation");
        let [one] = found.as_slice() else { panic!("one") };
        assert_eq!((one.name, one.count_at(1)), ("own-cpuid", 7));
        assert!(
            one.is_for(HostKind::Amd, 1)
                && !one.is_for(HostKind::Amd, 2)
                && !one.is_for(HostKind::Intel, 1)
        );
        assert_eq!(
            one.least_exits(Isa::Svm, 1, false).map(|least| (least.exits, least.reason)),
            Some((7, Some("cpuid")))
        );
        let ordered = one.order(Isa::Svm, 0, (1, false), 5).expect("assembles");
        assert_eq!(ordered.around, 1);
        assert!(ordered.operation.code.windows(4).any(|part| part == [0x31, 0xc0, 0x0f, 0xa2]));
    }

    #[test]
    fn assembly_text() {
        if Command::new("as").arg("--version").output().is_err() {
            return;
        }
        let code = assembled("mov ecx, 3\n1: dec ecx\njnz 1b\ncpuid").expect("assembles");
        assert_eq!(around(&code), 0);
        assert_eq!(assembled("cpuid").expect("assembles"), [0x0f, 0xa2]);
        assert!(
            assembled("bogus eax")
                .expect_err("no instruction")
                .contains("does not assemble: no such instruction"),
            "{:?}",
            assembled("bogus eax")
        );
        assert!(assembled("call elsewhere").expect_err("a symbol").contains("outside of itself"));
        assert!(
            assembled("nop\n .incbin \"/etc/passwd\"")
                .expect_err("a file")
                .contains(".incbin is not allowed")
        );
    }

    #[test]
    fn invalid_operations_are_named() {
        let one = |rest: &str| format!("[[operation]]\nname = \"x\"\n{rest}");
        for (text, expected) in [
            (String::new(), "has 0 operations"),
            (one(""), "has neither code nor bytes"),
            (one("bytes = \"\""), "has neither code nor bytes"),
            (one("bytes = \"0f a\""), "two hexadecimal digits"),
            (one("bytes = \"90\"\ncode = \"nop\""), "has both code and bytes"),
            (one("bytes = \"90\"\ncount = 0"), "count must be"),
            (one("bytes = \"90\"\nlevels = [3]"), "levels are 1 and 2"),
            (one("bytes = \"90\"\nhost = \"arm\""), "neither \"amd\" nor \"intel\""),
            (one("bytes = \"90\"\nexits = { amd = \"CPUID\" }"), "is no exit reason of amd"),
            (one("bytes = \"90\"\nwaits = true"), "unknown field"),
            (
                "[[operation]]\nname = \"cpuid\"\nbytes = \"90\"".to_owned(),
                "one of this name already",
            ),
            ("[[operation]]\nname = \"A b\"\nbytes = \"90\"".to_owned(), "lower-case letters"),
            (one(&format!("bytes = \"{}\"", "90".repeat(5000))), "at most 4096"),
        ] {
            let found = problem(&text);
            assert!(found.contains(expected), "{expected}: {found}");
            assert_eq!(found.lines().count(), 1, "{found}");
        }
    }
}
