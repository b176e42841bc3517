//! A real Chromium without a window, driven over the DevTools protocol.
//!
//! The protocol runs over a pair of pipes (`--remote-debugging-pipe`: the browser reads file
//! descriptor 3 and writes 4, messages end in NUL), so no port is opened and nothing else on the
//! machine can talk to it. Every wait has a limit, and only the browser started here is ended.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long one answer may take; the machine may be busy with other tests.
const LIMIT: Duration = Duration::from_secs(600);

/// A running Chromium with one tab.
pub(crate) struct Browser {
    child: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    next_id: u64,
    /// Events of the tab, in order, that were not awaited.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts it with an empty profile and opens a blank tab.
    pub(crate) fn start() -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            // The pipes of standard input and output become descriptors 3 and 4.
            .args(["-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null", "sh"])
            .arg(program())
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ])
            .args(["--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = child.stdin.take().unwrap();
        let answers = child.stdout.take().unwrap();
        let (sender, messages) = channel();
        // Reading blocks; a thread of its own lets waits have limits. It ends with the browser.
        std::thread::spawn(move || {
            let mut answers = BufReader::new(answers);
            let mut message = Vec::new();
            while answers.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                message.pop();
                let value = serde_json::from_slice(&message).unwrap_or(Value::Null);
                if sender.send(value).is_err() {
                    break;
                }
                message.clear();
            }
        });
        let mut browser = Browser {
            child,
            requests,
            messages,
            session: None,
            next_id: 0,
            events: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method of the protocol and gives its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        let mut request = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&request).unwrap();
        bytes.push(0);
        self.requests
            .write_all(&bytes)
            .unwrap_or_else(|e| panic!("{method}: Chromium is gone: {e}"));
        let answer = self.receive(method, |message| message["id"] == json!(id));
        if let Some(error) = answer.get("error") {
            panic!("{method}: {error}");
        }
        answer["result"].clone()
    }

    /// Waits for a message; events that come before it are kept.
    fn receive(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(message) if wanted(&message) => return message,
                Ok(message) if message.get("method").is_some() => self.events.push(message),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("{what}: no answer within {LIMIT:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("{what}: Chromium ended"),
            }
        }
    }

    /// Opens a file and waits until it is loaded.
    pub(crate) fn open(&mut self, file: &Path) {
        self.events.clear();
        let url = format!("file://{}", file.display());
        let answer = self.call("Page.navigate", json!({"url": url}));
        assert!(answer.get("errorText").is_none(), "{url}: {answer}");
        let loaded = |event: &Value| event["method"] == json!("Page.loadEventFired");
        if !self.events.iter().any(loaded) {
            self.receive("loading", loaded);
        }
    }

    /// The value of a JavaScript expression.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// What the browser complained about since the page was opened, and what it fetched other than the page itself.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        // A turn of the event loop lets what is under way arrive.
        self.eval("new Promise(done => setTimeout(done, 100))");
        let complaint = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled" => {
                    Some(params.to_string())
                }
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str().unwrap_or_default();
                    let page = url.starts_with("file://") && params["type"] == json!("Document");
                    // What is in the page itself: its empty icon, a chart that is saved.
                    (!page && !url.starts_with("data:")).then(|| format!("request: {url}"))
                }
                _ => None,
            }
        };
        self.events.iter().filter_map(complaint).collect()
    }

    /// Sheets of paper that the page takes.
    pub(crate) fn sheets(&mut self) -> u64 {
        let printed = self.call("Page.printToPDF", json!({"preferCSSPageSize": true}));
        let pdf = printed["data"].as_str().unwrap();
        let count = self.eval(&format!("atob('{pdf}').match(/\\/Type *\\/Page\\b/g).length"));
        count.as_u64().unwrap()
    }

    /// A real click at the centre of the element, scrolled into view.
    pub(crate) fn click(&mut self, selector: &str) {
        let place = self.eval(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{block: 'center', inline: 'center'}});
               const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let params = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", params);
        }
    }

    /// A real key stroke, where the focus is.
    pub(crate) fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Tab" => (9, ""),
            "Escape" => (27, ""),
            "ArrowRight" => (39, ""),
            " " => (32, " "),
            "/" => (191, "/"),
            _ => panic!("a key that this test does not know: {key}"),
        };
        let mut down = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if !text.is_empty() {
            down["text"] = json!(text);
        }
        self.call("Input.dispatchKeyEvent", down);
        self.call(
            "Input.dispatchKeyEvent",
            json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code}),
        );
    }

    /// Text as if typed, where the focus is.
    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Sets the size of the window, CSS pixels.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let params =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", params);
    }

    /// Emulates a medium (`print`, or nothing) and a colour scheme.
    pub(crate) fn emulate(&mut self, medium: &str, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"media": medium, "features": features}));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Asked nicely first, so that its own children end with it.
        self.session = None;
        let _ = self.requests.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where Chromium is. A machine without it cannot run this test, and must not seem to have passed it.
fn program() -> &'static str {
    ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
        })
        .expect("Chromium is not installed: `./x test` installs it (Debian package `chromium`)")
}
