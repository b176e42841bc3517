//! An independent terminal: tmux.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A screen is waited for so long: machines are slow and busy.
const PATIENCE: Duration = Duration::from_secs(600);

/// One terminal with a program in it.
pub(crate) struct Terminal {
    folder: tempfile::TempDir,
}

impl Terminal {
    /// A shell's command line in a terminal of this size.
    pub(crate) fn start((width, height): (u16, u16), line: &str, folder: &Path) -> Terminal {
        let terminal = Terminal { folder: tempfile::tempdir().unwrap() };
        let (width, height) = (width.to_string(), height.to_string());
        let arguments = [
            "new-session",
            "-d",
            "-x",
            &width,
            "-y",
            &height,
            "-c",
            folder.to_str().unwrap(),
            line,
        ];
        let started = terminal.command(&arguments);
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        terminal
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn command(&self, arguments: &[&str]) -> Output {
        let mut tmux = Command::new("tmux");
        tmux.arg("-u").arg("-S").arg(self.socket()).args(["-f", "/dev/null"]).args(arguments);
        tmux.env_remove("TMUX").env("LC_ALL", "C.UTF-8").env("SHELL", "/bin/sh");
        tmux.stdin(Stdio::null()).output().unwrap()
    }

    /// Presses keys, by tmux's names.
    pub(crate) fn press(&self, keys: &str) {
        let keys: Vec<&str> = keys.split(' ').collect();
        assert!(self.command(&[&["send-keys"], &keys[..]].concat()).status.success());
    }

    pub(crate) fn resize(&self, width: u16, height: u16) {
        let (width, height) = (width.to_string(), height.to_string());
        assert!(self.command(&["resize-window", "-x", &width, "-y", &height]).status.success());
    }

    /// What tmux says of a format, such as `#{cursor_flag}`.
    pub(crate) fn ask(&self, format: &str) -> String {
        let answer = self.command(&["display-message", "-p", format]);
        String::from_utf8(answer.stdout).unwrap().trim().to_owned()
    }

    /// Waits until tmux, which may not yet have read what a program wrote, says this of a format.
    pub(crate) fn says(&self, format: &str, expected: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.ask(format) != expected {
            if Instant::now() > deadline {
                assert_eq!(self.ask(format), expected, "{format}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// All lines without the blanks at their ends.
    pub(crate) fn screen(&self) -> String {
        let screen = String::from_utf8(self.command(&["capture-pane", "-p"]).stdout).unwrap();
        let lines: Vec<&str> = screen.lines().map(str::trim_end).collect();
        lines.join("\n").trim_end().to_owned()
    }

    /// Waits until the screen is so.
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return screen;
            }
            assert!(Instant::now() < deadline, "{what} does not come:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the screen contains this.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        self.wait(text, |screen| screen.contains(text))
    }

    /// Waits for exactly this screen; a failure shows the difference.
    pub(crate) fn expect(&self, expected: &str) {
        let expected = expected.trim_end();
        let deadline = Instant::now() + PATIENCE;
        while self.screen() != expected {
            if Instant::now() > deadline {
                assert_eq!(self.screen(), expected);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It ends what runs in it.
        self.command(&["kill-server"]);
    }
}

/// What bytes for a terminal of 80x24 leave on it.
pub(crate) fn lines(bytes: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bytes"), bytes).unwrap();
    // The terminal answers where its cursor is once it has read all that came before.
    let line = "stty raw -echo; cat bytes; printf '\\033[6n'; head -c 1 >/dev/null; echo >done; sleep 1000";
    let terminal = Terminal::start((80, 24), line, folder.path());
    let deadline = Instant::now() + PATIENCE;
    while !folder.path().join("done").exists() {
        assert!(Instant::now() < deadline, "the terminal takes no bytes");
        std::thread::sleep(Duration::from_millis(50));
    }
    terminal.screen().lines().map(str::to_owned).collect()
}
