//! Mistakes and refusals: each is one sentence and the exit code that docs/commands.md gives.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use crate::captures::unpack;
use crate::check::{Program, check, complaints, stdout, vmtax};

/// A folder with a small recording, `good`, and a run made of it, `run`.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(unpack("amd-cpuid", "zstd.perf.data.zst"), folder.path().join("good")).unwrap();
    stdout(folder.path(), "import good -o run");
    folder
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).unwrap();
}

#[test]
fn a_wrong_flag_is_a_usage_error() {
    let folder = folder();
    let help = "; --help lists what there is";
    let cases = [
        (
            "reprot good",
            "unrecognized subcommand 'reprot'; some similar subcommands exist: 'export', 'report'*",
        ),
        ("report", "the following required arguments were not provided: <RUN|FILE>*"),
        ("import good", "the following required arguments were not provided: --output <RUN>*"),
        ("import -o new", "the following required arguments were not provided: <FILE>...*"),
        ("report good --formt json", "unexpected argument '--formt' found; *: '--format'*"),
        ("report good --nonsense", "unexpected argument '--nonsense' found*"),
        ("report good --by colour", "invalid value 'colour' for '--by <LIST>' [*reason*vcpu]*"),
        ("report good --by reason,colour", "invalid value 'colour' for '--by <LIST>'*"),
        ("report good --event msrs", "invalid value 'msrs' for '--event <LIST>' [*msr*nested*]*"),
        ("report good --format yaml", "invalid value 'yaml' for '--format <FORMAT>' [*json*]*"),
        ("report good --vcpu two", "invalid value 'two' for '--vcpu <ID>': use a number*"),
        ("report good --vcpu -1", "*'-1'*"),
        (
            "report good --interval 5",
            "invalid value '5' for '--interval <TIME>': use a time above zero with its unit*",
        ),
        ("report good --interval 0ms", "invalid value '0ms' for '--interval <TIME>': use a*"),
        ("report good --interval 1.5x", "invalid value '1.5x' for '--interval <TIME>': use a*"),
        ("report good --interval ms", "invalid value 'ms' for '--interval <TIME>': use a*"),
        ("report good --interval 99999999999s", "invalid value '99999999999s' for*: use a*"),
        (
            "report good --isa arm",
            "invalid value 'arm' for '--isa <intel|amd|arm64>': use intel (VMX), amd (SVM) or arm64*",
        ),
        ("import good -o new --label x", "invalid value 'x' for '--label <KEY=VALUE>': use*"),
        ("import good -o new --label =x", "invalid value '=x' for '--label <KEY=VALUE>': use*"),
        ("completions tcsh", "invalid value 'tcsh' for '<SHELL>' [*bash*zsh]*"),
        ("man", "the following required arguments were not provided: <DIR>*"),
    ];
    for (words, sentence) in cases {
        check(&Program::new(), folder.path(), &[(words, 2, &format!("{sentence}{help}"))]);
    }
    let empty = Program::new().command(folder.path(), "report").arg("").output().unwrap();
    let wrong = complaints(&empty, 2, "a value is required for '<RUN|FILE>...'*");
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn flags_that_contradict_each_other_are_usage_errors() {
    let folder = folder();
    fs::write(folder.path().join("line"), "qemu-system-x86_64 -enable-kvm -m 1G\n").unwrap();
    check(
        &Program::new(),
        folder.path(),
        &[
            (
                "report good --event msr --by reason",
                2,
                "--by reason: none of the selected tables has this column; add one of --event vmexit,cause",
            ),
            (
                "report good --event nested --by detail",
                2,
                "--by detail: none of the selected tables has this column; add one of --event vmexit,msr,*",
            ),
            ("report good -o good", 2, "good: is the input; name another file for the report"),
            ("doctor line -o line", 2, "line: is the input; name another file for the report"),
            ("explain line --isa svm", 2, "--isa: line is a configuration, which is checked alone"),
            (
                "import run -o new",
                2,
                "run: is a run without single events, so it cannot be recounted; give the recordings to import",
            ),
            ("record --raw --sample 0", 2, "*0 is not in 1..*"),
            ("record --sample 3", 2, "*--raw*"),
            ("record --slower-than 1ms", 2, "*--raw*"),
            ("record --raw --slower-than soon", 2, "*soon*"),
            (
                "report run --interval 10ms",
                2,
                "--interval: run is a run, counted when it was imported; give the flag to `vmtax import`",
            ),
            ("report run --isa svm", 2, "--isa: run is a run*"),
            ("report run --emulated Bochs", 2, "--emulated: run is a run*"),
            (
                "report - --vm vmm",
                2,
                "--vm: standard input can be read only once; give the VM's id",
            ),
            (
                "diff - -",
                2,
                "-: standard input can be read only once; name a file for the other input",
            ),
            ("explain - --against -", 2, "-: standard input can be read only once; *"),
            ("import - good - -o new", 2, "-: standard input can be read only once; *"),
        ],
    );
}

#[test]
fn no_words_at_all_print_the_help() {
    let folder = tempfile::tempdir().unwrap();
    let output = vmtax(folder.path(), "");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("Usage: vmtax <COMMAND>"));
    for words in ["--help", "--version", "help", "help report"] {
        assert!(!stdout(folder.path(), words).is_empty(), "{words}");
    }
}

#[test]
fn a_filter_that_matches_nothing_is_a_data_error() {
    let folder = folder();
    let cases = ["good", "run"].map(|input| {
        [
            (format!("report {input} --vm qemu"), "--vm qemu: no such VM; known VMs: 101 (vmm)"),
            (format!("report {input} --vm 7"), "--vm 7: no such VM; known VMs: 101 (vmm)"),
            (
                format!("report {input} --vcpu 9"),
                "--vcpu 9: no exits of this vCPU; `--by vm,vcpu` lists the vCPUs",
            ),
        ]
    });
    for (words, sentence) in cases.iter().flatten() {
        check(&Program::new(), folder.path(), &[(words.as_str(), 4, sentence)]);
    }
    check(
        &Program::new(),
        folder.path(),
        &[(
            "report run --format perfetto",
            4,
            "run: has no single events; create the run with `vmtax import --raw` or `vmtax record --raw`",
        )],
    );
}

#[test]
fn an_input_that_cannot_be_opened_is_an_input_error() {
    let folder = folder();
    fs::create_dir(folder.path().join("plain")).unwrap();
    symlink("nowhere", folder.path().join("dangling")).unwrap();
    for (input, sentence) in [
        (
            "missing",
            "missing: cannot be read: No such file or directory (os error 2); check its name",
        ),
        (
            "dangling",
            "dangling: cannot be read: No such file or directory (os error 2); check its name",
        ),
        ("good/missing", "good/missing: cannot be read: Not a directory*"),
        (
            "plain",
            "plain: is a folder and not a run (it has no run.json); name a recording, or a run that `vmtax \
             import` made",
        ),
        (
            "run/exits",
            "run/exits: is a folder and not a run (it has no run.json); name a recording*",
        ),
    ] {
        let report = format!("report {input}");
        let import = format!("import {input} -o new");
        // The first input is good: nothing is made before the second was looked at.
        let second = format!("import good {input} -o new");
        let cases = [&report, &import, &second].map(|words| (words.as_str(), 3, sentence));
        check(&Program::new(), folder.path(), &cases);
    }
}

#[test]
fn an_input_of_the_wrong_kind_is_a_data_error() {
    let folder = folder();
    let known = "*not a recording that vmtax knows: ";
    let help = "; `vmtax report --help` says what can be read";
    let random: Vec<u8> =
        (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let kinds: [(&str, &[u8], &str); 13] = [
        ("empty", b"", "it is empty"),
        ("elf", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0", "it is an ELF program"),
        (
            "png",
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
            "it begins with the bytes 89 50 4e 47 0d 0a 1a 0a",
        ),
        ("gz", b"\x1f\x8b\x08\0\0\0\0\0", "it is gzip-compressed: unpack it first*"),
        ("xz", b"\xfd7zXZ\0\0\x04", "it is xz-compressed: unpack it first*"),
        ("random", &random, "it begins with the bytes 00 9e 3c da*"),
        ("zero", &[0; 4096], "it begins with the bytes 00 00*"),
        ("text", b"hello \x1b[31mworld\n", "it is text that begins with \"hello world\" (*)"),
        ("html", b"<!DOCTYPE html>\n", "it is text that begins with \"<!DOCTYPE html>\" (*)"),
        // A post's text around the fences is left out.
        (
            "post",
            b"# Slow VM\n```\n---\nload average: 3\n```\n",
            "it is text that begins with \"load average: 3\" (*)",
        ),
        ("comment", b"\n#\n# my notes\n1\n", "it is text that begins with \"# my notes\" (*)"),
        ("rule", b"-----\n", "it is text without words (*)"),
        ("start", b"PERFILE", "it is text that begins with \"PERFILE\" (*)"),
    ];
    for (name, bytes, sentence) in kinds {
        write(folder.path(), name, bytes);
        wrong_kind(folder.path(), name, &format!("{name}: {}{sentence}{help}", &known[1..]));
    }
    let parquet = "run/exits/000001.parquet";
    wrong_kind(
        folder.path(),
        parquet,
        &format!("{parquet}{known}it is a single Parquet file: give the run folder that holds it*"),
    );
    wrong_kind(folder.path(), "run/run.json", &format!("run/run.json{known}it is text*"));
    wrong_kind(folder.path(), "/dev/null", &format!("/dev/null{known}it is empty{help}"));
    wrong_kind(folder.path(), "-", &format!("standard input{known}it is empty{help}"));
}

/// For every command that reads, also in a folder that was there already.
fn wrong_kind(folder: &Path, input: &str, sentence: &str) {
    fs::create_dir_all(folder.join("vacant")).unwrap();
    let commands = [
        format!("report {input}"),
        format!("report {input} --format perfetto"),
        format!("report {input} -o report.html --format html"),
        format!("import {input} -o new"),
        format!("import {input} -o vacant"),
        format!("import good {input} -o new"),
    ];
    for words in &commands {
        check(&Program::new(), folder, &[(words.as_str(), 4, sentence)]);
    }
}

#[test]
fn damaged_and_newer_runs_are_data_errors() {
    let folder = folder();
    let manifest = fs::read_to_string(folder.path().join("run/run.json")).unwrap();
    for (text, sentence) in [
        (String::new(), "run/run.json: *"),
        (manifest[..manifest.len() / 2].to_owned(), "run/run.json: *"),
        ("[]".to_owned(), "run/run.json: *"),
        (
            manifest.replace("\"format_version\": 1", "\"format_version\": 2"),
            "run/run.json: format version 2 is newer than 1*",
        ),
    ] {
        fs::write(folder.path().join("run/run.json"), text).unwrap();
        check(&Program::new(), folder.path(), &[("report run", 4, sentence)]);
    }
}

#[test]
fn an_output_that_cannot_be_written_is_an_output_error() {
    let folder = folder();
    write(folder.path(), "file", b"mine");
    fs::create_dir_all(folder.path().join("full/of")).unwrap();
    let mut cases = Vec::new();
    for format in ["text", "json", "csv", "html", "perfetto"] {
        for (output, sentence) in [
            ("no/such/file", "no/such/file: there is no folder no/such; make it first"),
            ("file/x", "file/x: there is no folder file; make it first"),
            ("full", "full: is a folder; name a file in it"),
            (
                "/dev/full",
                "/dev/full: cannot be written: No space left on device (os error 28); free some space, or write to another file*",
            ),
        ] {
            cases.push((format!("report good --format {format} -o {output}"), sentence));
        }
    }
    for (output, sentence) in [
        (
            "no/such",
            "no/such: cannot create the folder: No such file*; create the folder above it first",
        ),
        ("file", "file: is a file; choose another folder for the run, or remove this one first"),
        ("full", "full: *; choose another folder for the run, or remove this one first"),
        (
            "run",
            "run: already holds a run; choose another folder for the run, or remove this one first",
        ),
        ("file/x", "file/x: *"),
    ] {
        cases.push((format!("import good -o {output}"), sentence));
    }
    cases.push(("man file".to_owned(), "file: *"));
    for (words, sentence) in &cases {
        check(&Program::new(), folder.path(), &[(words.as_str(), 5, sentence)]);
    }
}

#[test]
fn missing_permission_is_reported() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let program = Program::unprivileged(folder.path());
    fs::copy(at("good"), at("secret")).unwrap();
    fs::create_dir(at("closed")).unwrap();
    fs::create_dir(at("locked")).unwrap();
    for (name, mode) in
        [("", 0o755), ("good", 0o644), ("secret", 0), ("closed", 0o555), ("locked", 0)]
    {
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(at("run"), fs::Permissions::from_mode(0o000)).unwrap();
    let unreadable = "cannot be read: Permission denied (os error 13); run vmtax as its owner, or let the owner change its mode";
    let unwritable = "cannot be written: Permission denied (os error 13); choose another place, or run vmtax as its owner";
    check(
        &program,
        folder.path(),
        &[
            ("report secret", 3, &format!("secret: {unreadable}")),
            ("import secret -o new", 3, &format!("secret: {unreadable}")),
            ("report locked/file", 3, &format!("locked/file: {unreadable}")),
            // A private run: the message must not call it a folder without a run.
            ("report run", 3, &format!("run/run.json: {unreadable}")),
            ("report good -o closed/report", 5, &format!("closed/report: {unwritable}")),
            ("report good --format perfetto -o closed/x", 5, &format!("closed/x: {unwritable}")),
            (
                "import good -o closed/new",
                5,
                "closed/new: cannot create the folder: Permission denied*; choose another place, or run vmtax as its owner",
            ),
            ("man closed/man", 5, &format!("closed/man: {unwritable}")),
        ],
    );
    fs::set_permissions(at("locked"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(at("run"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_full_standard_output_is_an_output_error() {
    let folder = folder();
    let commands = ["text", "json", "csv", "html", "perfetto"]
        .map(|format| format!("report good --format {format}"));
    for words in commands.iter().map(String::as_str).chain(["completions bash"]) {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = Program::new().command(folder.path(), words);
        let child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let wrong = complaints(
            &child.wait_with_output().unwrap(),
            5,
            "standard output: cannot be written: No space left on device (os error 28); free some space, or write to another file system",
        );
        assert!(wrong.is_empty(), "{words}: {wrong:?}");
    }
}

#[test]
fn a_closed_pipe_ends_the_output_without_error() {
    let folder = folder();
    let large = unpack("amd-nested", "all.perf.data.zst");
    let commands = ["text", "json", "csv", "html", "perfetto"].map(|format| {
        format!("report {} --format {format} --by reason,detail,vcpu,outcome", large.display())
    });
    for words in commands.iter().map(String::as_str).chain(["completions zsh"]) {
        let mut command = Program::new().command(folder.path(), words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words}");
        assert_eq!(output.status.code(), Some(0), "{words}");
    }
}

#[test]
fn devices_and_links_are_written_through() {
    let folder = folder();
    symlink("target", folder.path().join("link")).unwrap();
    write(folder.path(), "target", b"old");
    stdout(folder.path(), "report good -o link --format csv");
    assert!(folder.path().join("link").symlink_metadata().unwrap().is_symlink());
    let written = fs::read(folder.path().join("target")).unwrap();
    assert_eq!(written, stdout(folder.path(), "report good --format csv"));
    // A character device stays one.
    stdout(folder.path(), "report good -o /dev/null");
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    let through = stdout(folder.path(), "report good -o /dev/stdout --format csv");
    assert_eq!(through, written);
}
