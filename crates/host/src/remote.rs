//! The settings of a guest, read through ssh.
//!
//! One connection, one fixed command: a loop over the fixed list of files that prints each as a line
//! `PATH VERDICT HEX`. Nothing that a user or a guest wrote becomes part of a command. The answer is a
//! guest's, so it is checked: only paths of the list are taken, and only up to a limit.

use std::time::Duration;

use vmtax_events::setting::files::{FILES, fits};
use vmtax_events::setting::{Known, Settings, Unknown};
use vmtax_machine::ssh::{self, SshAddress, SshError};
use vmtax_machine::{Stop, ToolLimits};

use crate::root::TEXT;

/// The whole answer. A guest starts three programs for each file, four files for each CPU.
const LIMITS: ToolLimits = ToolLimits { time: Duration::from_secs(180), output: 64 << 20 };

/// Why a guest could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command did not run there.
    #[error(transparent)]
    Ssh(#[from] SshError),
    /// The answer holds no setting.
    #[error("the guest's shell gave no answer")]
    Empty,
}

/// Reads a guest. Asks for no password: keys must be in place.
pub fn settings(address: &SshAddress) -> Result<Settings, Error> {
    let answer = ssh::run(address, &script(), &[], LIMITS, &Stop::default())?;
    let settings = parse(&answer);
    if settings.iter().next().is_none() {
        return Err(Error::Empty);
    }
    Ok(settings)
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
        // A shell leaves a pattern without a match unchanged.
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
    if bytes.len() as u64 > TEXT {
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
    use std::process::Command;

    use vmtax_events::setting::files;

    use super::*;

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
