//! Invalid and misbehaving monitors: every save ends with a sentence, in little memory, and at once on a signal.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::clients::{self, freeze};
use super::soak::{BackendKind, Composition, DimmPlace, SoakVm};
use super::{ended, name, signal, start};

const GREETING: &[u8] = b"{\"QMP\": {\"version\": {}, \"capabilities\": []}}\n";

/// How soon a signal is obeyed. A second is meant; more is left to a busy machine, and all deadlines are longer.
const SOON: Duration = Duration::from_secs(10);
/// Tries of each case: one during which the computer stood still for seconds says nothing.
const TRIES: usize = 10;
/// What is said where the monitor did not come to its first line in time.
const LATE: &str = "sent no greeting within";

/// A socket at which `serve` serves one client. It tells when the client is where the test wants it.
fn server(
    folder: &Path,
    serve: impl FnOnce(UnixStream, Sender<()>) + Send + 'static,
) -> (PathBuf, Receiver<()>) {
    let socket = folder.join("qmp");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let (here, there) = channel();
    std::thread::spawn(move || serve(listener.accept().unwrap().0, here));
    (socket, there)
}

/// Answers commands by `answer`, in whose lines ID is the command's number. At nothing it says that it has come so far, and
/// is silent.
fn answering(
    mut stream: UnixStream,
    here: &Sender<()>,
    mut answer: impl FnMut(&str) -> Option<String>,
) {
    stream.write_all(GREETING).unwrap();
    let reader = BufReader::new(stream.try_clone().unwrap());
    for line in reader.lines() {
        let Ok(line) = line else { return };
        let command: Value = serde_json::from_str(&line).unwrap();
        match answer(command["execute"].as_str().unwrap()) {
            Some(text) => {
                let text = text.replace("ID", &command["id"].to_string());
                if stream.write_all(text.as_bytes()).is_err() {
                    return;
                }
            }
            None => drop(here.send(())),
        }
    }
}

fn flood(mut stream: UnixStream, here: &Sender<()>, text: &str) {
    stream.write_all(GREETING).unwrap();
    stream.write_all(b"{\"return\": {}, \"id\": 1}\n").unwrap();
    let block = text.repeat(1000);
    let mut sent = 0;
    while stream.write_all(block.as_bytes()).is_ok() {
        sent += block.len();
        if sent > 4 << 20 {
            // The receiver is gone when the test has seen enough.
            let _ = here.send(());
        }
    }
}

fn until_gone(mut stream: UnixStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

const OK: &str = "{\"return\": {}, \"id\": ID}\n";

type Serve = fn(UnixStream, Sender<()>);

#[test]
fn a_socket_without_qmp_is_named() {
    let cases: [(&str, Serve); 8] = [
        ("does not speak", |mut stream, _| {
            stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
            until_gone(stream);
        }),
        ("does not speak", |mut stream, _| {
            stream.write_all(b"{\"hello\": 1}\n").unwrap();
            until_gone(stream);
        }),
        // 22 GB it was that this took.
        ("longer than any answer", |stream, here| flood(stream, &here, "aaaaaaaaaa")),
        ("longer than any answer", |mut stream, here| {
            while stream.write_all(&[b'{'; 4096]).is_ok() {}
            drop(here);
        }),
        ("no JSON", |stream, here| answering(stream, &here, |_| Some("{\"return\": \n".into()))),
        ("was not asked", |stream, here| {
            answering(stream, &here, |_| Some("{\"return\": {}, \"id\": 4711}\n".into()));
        }),
        ("closed its monitor", |stream, _| drop(stream)),
        ("closed its monitor", |mut stream, _| {
            stream.write_all(GREETING).unwrap();
            stream.write_all(b"{\"return\": {}, \"id\"").unwrap();
        }),
    ];
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.ckpt");
    for (words, serve) in cases {
        let said = (0..TRIES).find_map(|_| {
            let (socket, _here) = server(dir.path(), serve);
            // Memory is bounded, so that a line that is kept ends the program.
            let script = "ulimit -v 1500000; exec \"$0\" mem save --qmp \"$1\" -o \"$2\"";
            let child = Command::new("sh")
                .args(["-c", script, env!("CARGO_BIN_EXE_vmtax"), name(&socket), name(&out)])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let (code, said) = ended(child);
            assert_eq!(code, 3, "{words}: {said}");
            assert_eq!(said.lines().count(), 1, "{words}: {said}");
            assert!(!out.exists());
            (!said.contains(LATE)).then_some(said)
        });
        let said = said.unwrap_or_else(|| panic!("{words}: {LATE}"));
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// A save from this monitor into `out.ckpt` gets SIGTERM, says `words` in one sentence, and writes nothing. It ends soon in one of the tries.
fn ends_soon(
    folder: &Path,
    serve: impl FnMut(UnixStream, Sender<()>) + Clone + Send + 'static,
    case: &str,
    words: &str,
) {
    let out = folder.join("out.ckpt");
    let mut times = (0..TRIES).map(|_| {
        let (socket, here) = server(folder, serve.clone());
        let child = start(&["save", "--qmp", name(&socket), "-o", name(&out)]);
        // An error if the save began so late that the monitor had given up.
        let _ = here.recv();
        let began = Instant::now();
        signal(&child, Signal::TERM);
        let (code, said) = ended(child);
        let time = began.elapsed();
        assert!(!out.exists());
        if code == 3 && said.contains(LATE) {
            return Duration::MAX;
        }
        assert_eq!(code, 1, "{case}{said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{case}{said}");
        time
    });
    assert!(times.any(|time| time < SOON), "{case}not soon");
}

#[test]
fn a_signal_is_obeyed_whatever_the_monitor_does() {
    let cases: [(&str, Serve); 7] = [
        ("no greeting", |stream, here| {
            here.send(()).unwrap();
            until_gone(stream);
        }),
        ("half a greeting", |mut stream, here| {
            stream.write_all(&GREETING[..20]).unwrap();
            here.send(()).unwrap();
            until_gone(stream);
        }),
        ("no answer", |stream, here| answering(stream, &here, |_| None)),
        ("half an answer", |mut stream, here| {
            stream.write_all(GREETING).unwrap();
            stream.write_all(b"{\"return\": {").unwrap();
            here.send(()).unwrap();
            until_gone(stream);
        }),
        ("endless events", |stream, here| flood(stream, &here, "{\"event\": \"RTC_CHANGE\"}\n")),
        ("a byte now and then", |mut stream, here| {
            stream.write_all(GREETING).unwrap();
            here.send(()).unwrap();
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }),
        ("answers of before", |stream, here| {
            answering(stream, &here, |command| match command {
                "qmp_capabilities" => Some(OK.into()),
                _ => None,
            });
        }),
    ];
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.ckpt");
    for (case, serve) in cases {
        ends_soon(dir.path(), serve, &format!("{case}: "), "interrupted");
    }
    // A restore has nothing to undo: the signal ends it.
    let image = dir.path().join("image");
    std::fs::write(&image, super::image(8, 1)).unwrap();
    super::ok(&["save", "--image", name(&image), "-o", name(&out)]);
    let mut times = (0..TRIES).map(|_| {
        let (socket, here) = server(dir.path(), |stream, here| answering(stream, &here, |_| None));
        let child = start(&["restore", name(&out), "--qmp", name(&socket)]);
        let _ = here.recv();
        let began = Instant::now();
        signal(&child, Signal::TERM);
        let end = child.wait_with_output().unwrap();
        let said = String::from_utf8(end.stderr).unwrap();
        if end.status.code() == Some(3) && said.contains(LATE) {
            return Duration::MAX;
        }
        assert_eq!((end.status.signal(), said.as_str()), (Some(15), ""));
        began.elapsed()
    });
    assert!(times.any(|time| time < SOON), "a restore does not end soon");
}

/// A QEMU that hangs after its VM was stopped: the message says that the VM may still be stopped.
#[test]
fn a_vm_that_may_be_left_stopped_is_named() {
    let composition = Composition::of(&[(BackendKind::Nameless, DimmPlace::Node)]);
    let mut tries = (0..clients::TRIES).map(|_| {
        let dir = tempfile::tempdir().unwrap();
        let mut vm = SoakVm::start(&composition, dir.path(), "vm", false);
        vm.fill(&composition);
        let out = dir.path().join("out.ckpt");
        vm.monitor.forget();
        let child = start(&["save", "--qmp", name(&vm.qmp), "-o", name(&out)]);
        vm.monitor.wait("STOP");
        // The save is held too, or it would be over.
        if !freeze(&child) || vm.monitor.has_seen("RESUME") {
            signal(&child, Signal::CONT);
            ended(child);
            return false;
        }
        signal(&vm.child, Signal::STOP);
        signal(&child, Signal::CONT);
        signal(&child, Signal::TERM);
        let began = Instant::now();
        let (code, said) = ended(child);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("the VM may still be stopped, give it `cont`"), "{said}");
        began.elapsed() < SOON
    });
    assert!(tries.any(|was_soon| was_soon), "not soon");
}
