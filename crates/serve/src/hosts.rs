//! Which `Host` headers are answered: a web page whose name resolves to this computer (DNS rebinding) must not read what is served.

use std::net::IpAddr;

/// The names and addresses under which this server answers, besides loopback and the address that a client connected to.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// With these further names.
    pub fn new(names: &[String]) -> Hosts {
        Hosts(names.to_vec())
    }

    /// Whether a header names this server. `local` is the address that the client connected to.
    pub fn allow(&self, header: &str, local: Option<IpAddr>) -> bool {
        let name = without_port(header);
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        if let Ok(address) = literal.unwrap_or(name).parse::<IpAddr>() {
            let address = address.to_canonical();
            if address.is_loopback() || local.map(|local| local.to_canonical()) == Some(address) {
                return true;
            }
        }
        self.0.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    }
}

/// `name:port`, `[::1]:port`, or either without a port.
fn without_port(header: &str) -> &str {
    match header.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() => name,
        _ => header,
    }
}

/// A value of `--allow-host`: a name or an address, without a port.
///
/// # Errors
/// What to write instead.
pub fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    let is_name = !text.is_empty() && text.len() <= 255 && text.chars().all(plain);
    let has_port = !text.ends_with(']') && without_port(text) != text;
    if is_name && !has_port {
        Ok(text.strip_suffix('.').unwrap_or(text).to_owned())
    } else {
        Err("use a name or an address without a port, such as metrics.example.org".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_held_against_names_and_addresses() {
        let hosts = Hosts::new(&["Metrics.example.org".to_owned(), "192.0.2.9".to_owned()]);
        let local = "10.0.0.7".parse().ok();
        for allowed in [
            "localhost",
            "LOCALHOST:9435",
            "localhost.",
            "127.0.0.1",
            "127.9.9.9:80",
            "[::1]",
            "[::1]:9435",
            "10.0.0.7:9435",
            "[::ffff:10.0.0.7]:9435",
            "metrics.example.org",
            "metrics.example.org.:80",
            "192.0.2.9:1",
        ] {
            assert!(hosts.allow(allowed, local), "{allowed}");
        }
        for refused in [
            "",
            ":80",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example:9435",
            "10.0.0.8",
            "[::2]",
            "0.0.0.0",
            "localhost:9435:9435",
            "user@localhost",
            "example.org",
            "metrics.example.org, evil.example",
        ] {
            assert!(!hosts.allow(refused, local), "{refused}");
        }
    }

    #[test]
    fn names_have_no_port() {
        for good in ["web1", "metrics.example.org", "metrics.example.org.", "192.0.2.9", "[::2]"] {
            assert!(name(good).is_ok(), "{good}");
        }
        for bad in ["", "web1:9435", "http://web1", "a b", "[::2]:80", "*"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
