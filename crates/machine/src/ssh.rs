//! Commands on another system, through ssh.
//!
//! The other system is not trusted: what it prints is limited and never becomes part of a command, and a
//! connection that is dead or silent ends at a deadline. ssh never prompts for a password; keys must be installed.

use std::fmt;
use std::process::Command;
use std::str::FromStr;

use crate::{Stop, Tool, ToolError, ToolLimits};

/// Most characters of an address.
const LONGEST_ADDRESS: usize = 256;
/// The exit status of ssh itself; all others are the command's.
const SSH_FAILED: i32 = 255;

/// Options of every connection. A connection attempt takes 10 s at most, and a peer that is silent for
/// 15 s is dead. The other system gets no way back to this one's keys, display or ports.
const OPTIONS: [&str; 17] = [
    "-T",
    "-a",
    "-x",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
    "-o",
    "ClearAllForwardings=yes",
    "-o",
    "RemoteCommand=none",
    "-o",
    "PermitLocalCommand=no",
];

/// `USER@HOST`, or a name in ssh's configuration. Neither ssh nor a shell takes it for anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshAddress(String);

impl FromStr for SshAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<SshAddress, AddressError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "@.:_-%[]".contains(c);
        let (user, host) = text.rsplit_once('@').unwrap_or(("user", text));
        // A user or host that begins with a dash could become an option of ssh or of a proxy command.
        let is_name = |name: &str| !name.is_empty() && !name.starts_with('-');
        let fits = text.len() <= LONGEST_ADDRESS && text.chars().all(plain);
        if fits && is_name(user) && is_name(host) {
            Ok(SshAddress(text.to_owned()))
        } else {
            Err(AddressError)
        }
    }
}

impl fmt::Display for SshAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is not an address.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("an address is USER@HOST or HOST, of letters, digits and @ . : _ - % [ ]")]
pub struct AddressError;

/// Why a command gave no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SshError {
    /// ssh could not be run or was ended at a limit.
    #[error("ssh {0}")]
    Tool(#[from] ToolError),
    /// ssh has no connection.
    #[error("ssh failed: {0}")]
    Failed(String),
    /// The command ended with another status than 0.
    #[error("the command failed there: {0}")]
    Command(String),
}

/// Runs a command of the other system's shell with this input. Returns its standard output if it succeeds.
///
/// `script` must not contain output of the other system.
pub fn run(
    address: &SshAddress,
    script: &str,
    input: &[u8],
    limits: ToolLimits,
    stop: &Stop,
) -> Result<Vec<u8>, SshError> {
    let mut command = Command::new("ssh");
    command.args(OPTIONS).args(["--", &address.0, script]);
    let finished = Tool::new(command, limits).input(input).until(stop).run()?;
    match finished.status.code() {
        Some(0) => Ok(finished.stdout),
        Some(SSH_FAILED) => Err(SshError::Failed(finished.reason())),
        _ => Err(SshError::Command(finished.reason())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_cannot_be_options_or_commands() {
        for good in ["root@10.0.0.1", "vm", "user@[fe80::1%eth0]", "a-b.c_d", "me@corp@vm"] {
            assert!(good.parse::<SshAddress>().is_ok(), "{good}");
        }
        let long = "a".repeat(LONGEST_ADDRESS + 1);
        for bad in [
            "",
            "-oProxyCommand=x",
            "root@-oProxyCommand",
            "root@",
            "@vm",
            "a b",
            "a;b",
            "$(x)",
            "a\nb",
            "`x`",
            "a'b",
            "a/b",
            &long,
        ] {
            assert!(bad.parse::<SshAddress>().is_err(), "{bad:?}");
        }
    }
}
