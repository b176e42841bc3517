//! The settings of a guest, read through ssh.
//!
//! One connection, one fixed command: a loop over the fixed list of files that prints each as a line
//! `PATH VERDICT HEX`. Nothing that a user or a guest wrote becomes part of a command. The answer is a
//! guest's, so it is checked: only paths of the list are taken, and only up to a limit.

use std::io::{self, Read};
use std::process::{Command, Stdio};

use vmtax_events::setting::files::{FILES, fits};
use vmtax_events::setting::{Known, Settings, Unknown};

/// The whole answer.
const ANSWER: u64 = 64 << 20;

/// Why a guest could not be read.
#[derive(Debug)]
pub enum Error {
    /// The name is none that ssh takes for one.
    Target,
    /// ssh could not be started.
    Start(io::Error),
    /// ssh failed; the last line that it said. Hostile text.
    Failed(String),
    /// The answer is longer than any such answer is.
    TooLong,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Target => {
                f.write_str("use ssh:USER@HOST, of letters, digits and @ . : _ - % [ ]")
            }
            Error::Start(error) => write!(f, "ssh cannot be started: {}", error.kind()),
            Error::Failed(said) => write!(f, "ssh failed: {said}"),
            Error::TooLong => f.write_str("the guest's answer does not end"),
        }
    }
}

impl std::error::Error for Error {}

/// `USER@HOST`, or a name in ssh's configuration.
pub fn is_target(target: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@.:_-%[]".contains(c);
    !target.is_empty() && !target.starts_with('-') && target.chars().all(plain)
}

/// Reads a guest. Asks for no password: keys must be in place.
pub fn settings(target: &str) -> Result<Settings, Error> {
    if !is_target(target) {
        return Err(Error::Target);
    }
    let mut child = Command::new("ssh")
        .args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"])
        .args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "--"])
        .args([target, &script()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::Start)?;
    let said = child.stderr.take().map(|said| std::thread::spawn(move || last_line(said)));
    let mut answer = Vec::new();
    let mut read = Ok(0);
    if let Some(out) = child.stdout.take() {
        read = out.take(ANSWER + 1).read_to_end(&mut answer);
    }
    if answer.len() as u64 > ANSWER {
        // It is ours, and would go on for ever.
        let _ = child.kill();
        let _ = child.wait();
        return Err(Error::TooLong);
    }
    let status = child.wait().map_err(Error::Start)?;
    let said = said.and_then(|thread| thread.join().ok()).unwrap_or_default();
    if !status.success() || read.is_err() {
        let said = if said.is_empty() { status.to_string() } else { said };
        return Err(Error::Failed(said));
    }
    let settings = parse(&answer);
    if settings.iter().next().is_none() {
        return Err(Error::Failed("the guest's shell gave no answer".to_owned()));
    }
    Ok(settings)
}

/// The last line of what ssh says: the reason. All of it is read, so that ssh does not wait.
fn last_line(mut said: impl Read) -> String {
    let mut tail = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(got @ 1..) = said.read(&mut buffer) {
        tail.extend_from_slice(&buffer[..got]);
        let over = tail.len().saturating_sub(4096);
        tail.drain(..over);
    }
    let text = String::from_utf8_lossy(&tail);
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

/// What runs in the guest, in any POSIX shell. It reads, and changes nothing.
fn script() -> String {
    let patterns: Vec<String> = FILES.iter().map(|path| path.replace('#', "[0-9]*")).collect();
    format!(
        "for f in {}; do \
           if [ ! -e \"$f\" ]; then \
             d=${{f%/*}}; while [ -n \"$d\" ] && [ ! -e \"$d\" ]; do d=${{d%/*}}; done; \
             if [ -x \"$d\" ]; then v=missing; else v=denied; fi; \
             echo \"$f $v\"; continue; \
           fi; \
           if [ ! -f \"$f\" ]; then echo \"$f other\"; continue; fi; \
           if [ ! -r \"$f\" ]; then echo \"$f denied\"; continue; fi; \
           printf '%s text ' \"$f\"; head -c 4194305 \"$f\" 2>/dev/null | od -An -v -tx1 | tr -d ' \\n'; echo; \
         done",
        patterns.join(" ")
    )
}

/// The settings in an answer. What is not asked for is left out, and what is missing in it was not read.
pub fn parse(answer: &[u8]) -> Settings {
    let mut settings = Settings::default();
    for line in answer.split(|&b| b == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let mut words = line.trim_end().splitn(3, ' ');
        let (Some(path), Some(verdict)) = (words.next(), words.next()) else { continue };
        // A shell gives a pattern that fits nothing as it stands.
        let path = path.replace("[0-9]*", "#");
        let Some(pattern) = FILES.iter().find(|p| **p == path || fits(p, &path)) else { continue };
        let value = match verdict {
            "text" => text(words.next().unwrap_or_default()),
            "denied" => Err(Unknown::Denied),
            "other" => Err(Unknown::NotAFile),
            "missing" => Err(Unknown::Missing),
            _ => continue,
        };
        // A name that only looks like one of the pattern's has no such file below it.
        if value == Err(Unknown::Missing) && *pattern != path {
            continue;
        }
        settings.insert(path, value);
    }
    // Of a pattern whose names had no such file.
    for pattern in FILES.iter().filter(|pattern| pattern.contains(['#', '*'])) {
        let none = settings.matching(pattern).iter().all(|f| f.value == Err(Unknown::NotRead));
        if none && settings.iter().next().is_some() {
            settings.insert(*pattern, Err(Unknown::Missing));
        }
    }
    settings.settle();
    settings
}

fn text(hex: &str) -> Known<String> {
    let digit = |b: &u8| char::from(*b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let pairs = hex.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    });
    let bytes: Option<Vec<u8>> = pairs.collect();
    let bytes = bytes.ok_or(Unknown::NotText)?;
    if bytes.len() as u64 > crate::TEXT {
        return Err(Unknown::TooLong);
    }
    // An empty answer is what reading gives that fails.
    if bytes.is_empty() {
        return Err(Unknown::Failed("it could not be read".to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| Unknown::NotText)
}

#[cfg(test)]
mod tests {
    use vmtax_events::setting::files;

    use super::*;

    #[test]
    fn targets_cannot_be_flags_or_commands() {
        for good in ["root@10.0.0.1", "vm", "user@[fe80::1%eth0]", "a-b.c_d"] {
            assert!(is_target(good), "{good}");
        }
        for bad in ["", "-oProxyCommand=x", "a b", "a;b", "$(x)", "a\nb", "`x`", "a'b"] {
            assert!(!is_target(bad), "{bad:?}");
        }
    }

    #[test]
    fn answers_are_read_line_by_line() {
        let answer = b"/proc/cmdline text 69646c653d706f6c6c0a\n\
            /proc/sys/kernel/nmi_watchdog denied\n\
            /sys/kernel/mm/ksm/run missing\n\
            /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor missing\n\
            /sys/devices/system/cpu/cpu0/cpuidle/state1/name text 433100\n\
            /etc/shadow text 6f\n\
            /proc/../etc/shadow text 6f\n\
            /proc/cpuinfo text 6\n\
            /sys/kernel/mm/ksm/pages_sharing text\n\
            /proc/sys/kernel/osrelease what\n\
            \xff\n";
        let settings = parse(answer);
        for (path, expected) in [
            (files::CMDLINE, Ok("idle=poll")),
            (files::NMI_WATCHDOG, Err(Unknown::Denied)),
            (files::KSM_RUN, Err(Unknown::Missing)),
            (files::GOVERNOR, Err(Unknown::Missing)),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/name", Ok("C1\0")),
            (files::CPUINFO, Err(Unknown::NotText)),
            (files::KSM_SHARING, Err(Unknown::Failed("it could not be read".to_owned()))),
            (files::RELEASE, Err(Unknown::NotRead)),
            (files::VULNERABILITIES, Err(Unknown::Missing)),
            ("/etc/shadow", Err(Unknown::NotRead)),
        ] {
            assert_eq!(settings.text(path), expected, "{path}");
        }
        assert_eq!(parse(b""), Settings::default());
    }

    /// The command works in a real shell on this machine, and gives what reading the files gives.
    #[test]
    fn the_command_gives_what_reading_the_files_gives() {
        let output = Command::new("sh").args(["-c", &script()]).output().unwrap();
        assert!(output.status.success());
        let (remote, local) = (parse(&output.stdout), crate::settings("/".as_ref()).unwrap());
        for path in [files::CMDLINE, files::RELEASE, files::CLOCKSOURCE, files::THP] {
            assert!(local.text(path).is_ok(), "{path}");
            assert_eq!(remote.text(path), local.text(path), "{path}");
        }
        let both = |pattern| {
            let names = |s: &Settings| -> Vec<String> {
                s.matching(pattern).into_iter().map(|fact| fact.path).collect()
            };
            (names(&remote), names(&local))
        };
        let (remote, local) = both(files::VULNERABILITIES);
        assert_eq!(remote, local);
    }
}
