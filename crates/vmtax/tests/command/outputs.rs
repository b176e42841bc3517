//! Where a report goes: never over what it is made from, readable by whom the umask says, and nothing half-written beside it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use crate::captures::unpack;
use crate::check::{Program, check, complaints, stdout};

/// A recording, a run of it, and other names for both.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::copy(unpack("amd-nested", "perf-script.txt"), path("good")).unwrap();
    stdout(folder.path(), "import good -o run");
    symlink("good", path("symbolic")).unwrap();
    fs::hard_link(path("good"), path("hard")).unwrap();
    symlink("run", path("link")).unwrap();
    symlink("run/run.json", path("manifest")).unwrap();
    fs::create_dir(path("sub")).unwrap();
    folder
}

#[test]
fn no_report_takes_the_place_of_its_input() {
    let folder = folder();
    let other = "; name another file for the report";
    let input = format!("good: is the input{other}");
    let mut cases = Vec::new();
    for output in ["good", "./good", "sub/../good", "symbolic", "hard"] {
        for words in ["report good -o", "diff run good -o", "explain run --against good -o"] {
            cases.push((format!("{words} {output}"), input.as_str()));
        }
        cases.push((format!("report good --format perfetto -o {output}"), input.as_str()));
    }
    for output in ["run/run.json", "link/run.json", "manifest", "run/exits/000001.parquet"] {
        for words in ["report run -o", "report good -o", "explain run -o", "diff run good -o"] {
            cases.push((
                format!("{words} {output}"),
                "*: is part of the run */run; name another file",
            ));
        }
    }
    let cases: Vec<_> = cases.iter().map(|(words, said)| (words.as_str(), 2, *said)).collect();
    check(&Program::new(), folder.path(), &cases);
    // The input as standard input.
    let before = fs::read(folder.path().join("good")).unwrap();
    let mut command = Program::new().command(folder.path(), "report - -o hard");
    command.stdin(fs::File::open(folder.path().join("good")).unwrap());
    let wrong = complaints(&command.output().unwrap(), 2, &format!("-: is the input{other}"));
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(fs::read(folder.path().join("good")).unwrap() == before);
    // A report in a run is none of it, and can be made anew.
    for _ in 0..2 {
        stdout(folder.path(), "report run --format html -o run/report.html");
    }
    stdout(folder.path(), "report run");
}

#[test]
fn a_report_obeys_the_umask_and_a_run_is_private() {
    for umask in ["022", "027", "077"] {
        let folder = folder();
        let shell = |script: &str| {
            let status = Command::new("sh")
                .args(["-c", &format!("umask {umask}; {script}"), env!("CARGO_BIN_EXE_vmtax")])
                .current_dir(folder.path())
                .stdin(Stdio::null())
                .status();
            assert!(status.unwrap().success(), "{script}");
        };
        let mode = |name: &str| {
            fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777
        };
        for format in ["text", "csv", "html", "json", "prometheus"] {
            shell(&format!("\"$0\" report good --format {format} > by_shell.{format}"));
            shell(&format!("\"$0\" report good --format {format} -o by_vmtax.{format}"));
            let [ours, theirs] = ["by_vmtax", "by_shell"].map(|name| format!("{name}.{format}"));
            assert_eq!(mode(&ours), mode(&theirs), "umask {umask}, {format}");
            let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
            assert!(read(&ours) == read(&theirs), "{format}");
        }
        // A file that is replaced keeps its mode, as with `>`; through a link it is the file that is replaced.
        let old = folder.path().join("old");
        fs::write(&old, "").unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("old", folder.path().join("to_old")).unwrap();
        shell("\"$0\" report good -o to_old");
        assert_eq!((mode("old"), mode("run"), mode("run/run.json")), (0o640, 0o700, 0o600));
        assert!(folder.path().join("to_old").is_symlink());
        assert!(fs::metadata(old).unwrap().len() > 0);
    }
}

/// As root a rename over /dev/null would succeed; a pipe replaces it here.
#[test]
fn non_files_are_not_replaced() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(folder.path().join("image"), vec![1; 8192]).unwrap();
    stdout(folder.path(), "mem save --image image -o image.ckpt");
    let sentence =
        "pipe: cannot be written: it is a device, a pipe or a socket, which a file cannot replace";
    let cases = ["mem save --image image -o pipe", "mem restore image.ckpt --image pipe"];
    check(&Program::new(), folder.path(), &cases.map(|words| (words, 5, sentence)));
    stdout(folder.path(), "report good -o /dev/null");
}
