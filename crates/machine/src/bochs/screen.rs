//! A virtual screen: Bochs saves its state only when a button in its window is clicked.
//!
//! The X server does not listen on a network and requires a random cookie. It gets SIGTERM when this process dies, and then removes
//! its lock file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::mailbox::{memory, with_content};
use crate::process::{ChildProcess, HandedDescriptors};
use crate::{Tool, ToolLimits};

/// The X server.
pub(crate) const SERVER: &str = "Xvfb";
/// The program that clicks and types.
pub(crate) const HAND: &str = "xdotool";

/// Limits of that program.
const LIMITS: ToolLimits = ToolLimits { time: Duration::from_secs(60), output: 1 << 20 };
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(2);

/// A screen. Dropping it ends its server.
#[derive(Debug)]
pub(crate) struct BochsScreen {
    server: ChildProcess,
    display: String,
    cookie: File,
}

impl BochsScreen {
    pub(crate) fn start() -> io::Result<BochsScreen> {
        let mut secret = [0; 16];
        getrandom(&mut secret, GetRandomFlags::empty())?;
        let cookie = with_content("vmtax-xauthority", &authority(&secret))?;
        let (number, words) = (memory("vmtax-display")?, memory("vmtax-xvfb")?);
        let mut handed = HandedDescriptors::default();
        let mut command = Command::new(SERVER);
        command
            .args(["-auth", &handed.give_path(cookie.try_clone()?)])
            .args(["-displayfd", &handed.give(number.try_clone()?).to_string()])
            .args(["-screen", "0", "1024x768x24", "-nolisten", "tcp", "-noreset"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(words);
        let mut server = ChildProcess::spawn_with(command, handed, Signal::TERM)?;
        let deadline = Instant::now() + START;
        // The server writes its number and a newline once it is ready.
        let display = loop {
            let text = read(&number)?;
            if let Some(number) = text.strip_suffix('\n') {
                break format!(":{}", number.trim());
            }
            if server.ended()?.is_some() || Instant::now() > deadline {
                return Err(io::Error::other("the X server Xvfb did not start"));
            }
            thread::sleep(Duration::from_millis(2));
        };
        Ok(BochsScreen { server, display, cookie })
    }

    /// Lets a program draw on this screen.
    pub(crate) fn show(
        &self,
        command: &mut Command,
        handed: &mut HandedDescriptors,
    ) -> io::Result<()> {
        command.env("DISPLAY", &self.display);
        command.env("XAUTHORITY", handed.give_path(self.cookie.try_clone()?));
        Ok(())
    }

    /// Runs `xdotool`; what it prints, or why it failed.
    pub(crate) fn act(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(HAND);
        let mut handed = HandedDescriptors::default();
        self.show(&mut command, &mut handed).map_err(|e| e.to_string())?;
        command.args(arguments);
        let finished = Tool::new(command, LIMITS).handing(handed).run();
        let finished = finished.map_err(|e| format!("{HAND} {e}"))?;
        match finished.status.success() {
            true => Ok(String::from_utf8_lossy(&finished.stdout).into_owned()),
            false => Err(finished.reason()),
        }
    }

    /// A window whose title has these words.
    pub(crate) fn window(&self, title: &str) -> Option<String> {
        // It fails when there is none.
        let found = self.act(&["search", "--name", title]).ok()?;
        found.lines().next().map(str::to_owned)
    }

    /// Whether there is such a window.
    pub(crate) fn has_window(&self, title: &str) -> bool {
        self.window(title).is_some()
    }
}

impl Drop for BochsScreen {
    fn drop(&mut self) {
        self.server.end_gently(Instant::now() + END);
    }
}

fn read(file: &File) -> io::Result<String> {
    let mut bytes = [0; 16];
    let n = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..n]).into_owned())
}

/// An Xauthority file with one cookie, for every host and display.
fn authority(secret: &[u8; 16]) -> Vec<u8> {
    const ANY_FAMILY: u16 = 0xffff;
    let mut file = ANY_FAMILY.to_be_bytes().to_vec();
    for field in [b"".as_slice(), b"", b"MIT-MAGIC-COOKIE-1", secret] {
        file.extend((field.len() as u16).to_be_bytes());
        file.extend(field);
    }
    file
}

/// The folder's path for another process: through /proc of this process, so that it is short and has plain characters.
pub(crate) fn path_of(folder: &File) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/{}/fd/{}", std::process::id(), folder.as_raw_fd())
}
