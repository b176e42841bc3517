//! A QMP server for tests, with scripted answers.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;

pub(crate) const GREETING: &str = "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, \"minor\": 2, \"major\": 7}}, \"capabilities\": []}}\n";

/// A socket in a folder of its own, which is removed with this.
pub(crate) struct Fake {
    _folder: tempfile::TempDir,
    pub(crate) socket: PathBuf,
}

impl Fake {
    /// Serves one connection by `serve`. It ends when the client is gone.
    pub(crate) fn new(serve: impl FnOnce(UnixStream) + Send + 'static) -> Fake {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp");
        let listener = UnixListener::bind(&socket).unwrap();
        thread::spawn(move || serve(listener.accept().unwrap().0));
        Fake { _folder: folder, socket }
    }

    /// A server that greets and then answers each command by what `answer` says of it: lines, in which ID stands for the
    /// command's number.
    pub(crate) fn answering(
        mut answer: impl FnMut(&str, &Value) -> String + Send + 'static,
    ) -> Fake {
        Fake::new(move |mut stream| {
            stream.write_all(GREETING.as_bytes()).unwrap();
            let reader = BufReader::new(stream.try_clone().unwrap());
            for line in reader.lines() {
                let Ok(line) = line else { return };
                let command: Value = serde_json::from_str(&line).unwrap();
                let name = command["execute"].as_str().unwrap();
                let text = match name {
                    "qmp_capabilities" => ok("{}"),
                    _ => answer(name, &command["arguments"]),
                };
                let text = text.replace("ID", &command["id"].to_string());
                if stream.write_all(text.as_bytes()).is_err() {
                    return;
                }
            }
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.socket
    }
}

pub(crate) fn ok(value: &str) -> String {
    format!("{{\"return\": {value}, \"id\": ID}}\n")
}

pub(crate) fn event(name: &str) -> String {
    format!("{{\"event\": \"{name}\", \"timestamp\": {{\"seconds\": 1, \"microseconds\": 2}}}}\n")
}
