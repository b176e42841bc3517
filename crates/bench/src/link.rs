//! Client and server on different systems: one in the VM under test, the other on the host, in a second VM or behind ssh, joined by the VM's
//! virtio network card.
//!
//! | netdev | the other end | what carries the packets | needs |
//! |---|---|---|---|
//! | `user` | host | QEMU's user-mode network; ports of 127.0.0.1 are forwarded to the VM | nothing |
//! | `user` | remote | the same; a client reaches ports of this computer's address, a server is reached at its own address | ssh |
//! | `socket` | peer | a pair of sockets between two QEMU processes | nothing |
//! | `tap` | host, peer | a tap in a network namespace of the run; with a peer two taps and a bridge | root |
//!
//! No network has a name outside of the run, so nothing is left of one when vmtax is killed ([`vmtax_machine::network`]).

use std::net::Ipv4Addr;

use serde::Deserialize;
use vmtax_guest::job::{CardAddress, Job, PORT};
use vmtax_machine::network::{Namespace, cable, free_port};
use vmtax_machine::{Error, QemuDescriptor};

/// Port of a server in a VM.
const VM_PORT: u16 = 7000;
/// Address of the VM in QEMU's user-mode network, and of the host there.
const USER: Subnet = Subnet { vm: Ipv4Addr::new(10, 0, 2, 15), other: Ipv4Addr::new(10, 0, 2, 2) };
/// Addresses in networks of our own.
const OWN: Subnet = Subnet { vm: Ipv4Addr::new(10, 71, 0, 2), other: Ipv4Addr::new(10, 71, 0, 1) };
/// Bits of these networks.
const PREFIX: u8 = 24;
/// Queues of a tap with several.
pub(crate) const QUEUES: u32 = 2;

struct Subnet {
    vm: Ipv4Addr,
    other: Ipv4Addr,
}

/// Where a client or server runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// In the VM under test.
    #[default]
    #[serde(rename = "self")]
    Here,
    Host,
    /// In a second, plain VM.
    Peer,
    /// On a system behind ssh.
    Remote,
}

/// What carries a VM's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Netdev {
    /// QEMU's user-mode network.
    User,
    /// A pair of sockets between two VMs.
    Socket,
    /// A tap in a network namespace.
    Tap,
}

impl Netdev {
    /// Its word in a matrix.
    pub fn name(self) -> &'static str {
        match self {
            Netdev::User => "user",
            Netdev::Socket => "socket",
            Netdev::Tap => "tap",
        }
    }
}

/// A connection between the VM under test and another system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Where the other end is: the host, a peer or a remote system.
    pub other: Side,
    /// Whether the server is there; else the client is.
    pub server_there: bool,
    /// What carries the packets.
    pub netdev: Netdev,
}

impl Link {
    /// The connection of a workload; `None` if client and server are in one system. The error is a sentence.
    pub fn new(client: Side, server: Side, netdev: Option<Netdev>) -> Result<Option<Link>, String> {
        let (other, server_there) = match (client, server) {
            (Side::Here, Side::Here) => return Ok(None),
            (other, Side::Here) => (other, false),
            (Side::Here, other) => (other, true),
            _ => return Err(
                "client and server are both outside of the VM; put one of them in it (\"self\")"
                    .to_owned(),
            ),
        };
        let usual = if other == Side::Peer { Netdev::Socket } else { Netdev::User };
        let netdev = netdev.unwrap_or(usual);
        match (other, netdev) {
            (Side::Peer, Netdev::User) => Err("a user-mode network does not reach a peer; use network = \"socket\" or \"tap\" in [vm]".to_owned()),
            (Side::Host, Netdev::Socket) => Err("a socket network does not reach the host; use network = \"user\" or \"tap\" in [vm]".to_owned()),
            (Side::Remote, Netdev::Socket | Netdev::Tap) => Err("a remote system reaches the VM over a user-mode network; use network = \"user\" in [vm]".to_owned()),
            _ => Ok(Some(Link { other, server_there, netdev })),
        }
    }

    /// The path of a request, from client to server: `host > user > vm`.
    pub fn path(self) -> String {
        let other = match self.other {
            Side::Peer => "peer",
            Side::Remote => "remote",
            Side::Host | Side::Here => "host",
        };
        let (client, server) = if self.server_there { ("vm", other) } else { (other, "vm") };
        format!("{client} > {} > {server}", self.netdev.name())
    }

    /// The path as a file name.
    pub fn file_name(self) -> String {
        self.path().replace(" > ", "-")
    }
}

/// The network of a VM that is about to boot.
#[derive(Debug)]
pub(crate) struct Network {
    /// QEMU's network of the VM under test, and of its peer.
    pub(crate) ends: [NetdevEnd; 2],
    /// Where programs of the host's end run, if not in the host's own network.
    pub(crate) namespace: Option<Namespace>,
    pub(crate) route: Route,
}

/// QEMU's side of an end: `-netdev` without its identifier, and descriptors of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetdevEnd {
    pub(crate) netdev: String,
    pub(crate) descriptors: Vec<QemuDescriptor>,
    /// Whether it is that of a peer, whose card must not have QEMU's usual hardware address, which the VM under test has.
    pub(crate) is_peer: bool,
    pub(crate) address: Option<CardAddress>,
}

/// How a client reaches the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    bind: Ipv4Addr,
    bind_port: u16,
    reach: Ipv4Addr,
    reach_port: u16,
}

impl Route {
    /// The port on which the server listens.
    pub(crate) fn port(self) -> u16 {
        self.bind_port
    }

    /// A job's halves: that of the server's system and that of the client's.
    pub(crate) fn halves(self, job: &Job) -> (Job, Job) {
        let fill = |word: &String, port: u16| {
            word.replace(BIND, &self.bind.to_string())
                .replace(SERVER, &self.reach.to_string())
                .replace(PORT, &port.to_string())
        };
        let all = |words: &[String], port| words.iter().map(|word| fill(word, port)).collect();
        let server = Job {
            files: job
                .files
                .iter()
                .map(|(n, text)| (n.clone(), fill(text, self.bind_port)))
                .collect(),
            server: all(&job.server, self.bind_port),
            limit_ms: job.limit_ms,
            port: Some(self.bind_port),
            ..Job::default()
        };
        let client = Job {
            warmups: job.warmups.iter().map(|words| all(words, self.reach_port)).collect(),
            client: all(&job.client, self.reach_port),
            limit_ms: job.limit_ms,
            record: job.record,
            counters: job.counters,
            ..Job::default()
        };
        (server, client)
    }
}

/// In a word of a command or in a file: the address on which the server listens.
pub(crate) const BIND: &str = "{bind}";
/// In a word of a command: the address under which clients reach the server.
pub(crate) const SERVER: &str = "{server}";

/// A job whose client and server are in one system, with the addresses filled in.
pub(crate) fn in_one_system(job: &Job) -> Job {
    let loopback = Ipv4Addr::LOCALHOST.to_string();
    let fill = |word: &String| word.replace(BIND, &loopback).replace(SERVER, &loopback);
    let all = |words: &[String]| words.iter().map(fill).collect();
    Job {
        files: job.files.iter().map(|(name, text)| (name.clone(), fill(text))).collect(),
        server: all(&job.server),
        warmups: job.warmups.iter().map(|words| all(words)).collect(),
        client: all(&job.client),
        ..job.clone()
    }
}

/// Where this computer and a remote system reach each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutsideLink {
    /// The address of this computer to which ports of a VM are forwarded.
    pub(crate) here: Ipv4Addr,
    /// The address of the remote system on which its server listens.
    pub(crate) there: Ipv4Addr,
    /// A free port of the remote system, if a server runs there.
    pub(crate) port: Option<u16>,
}

/// QEMU's network of a VM without a link: it reaches nobody.
pub(crate) const ALONE: &str = "user,restrict=on";

impl Network {
    /// Makes what a link needs.
    pub(crate) fn new(link: Link, queues: u32, outside: OutsideLink) -> Result<Network, Error> {
        let own =
            |address: Ipv4Addr| Some(CardAddress { address: address.octets(), prefix: PREFIX });
        let route = |subnet: &Subnet| {
            let server = if link.server_there { subnet.other } else { subnet.vm };
            Route { bind: server, bind_port: VM_PORT, reach: server, reach_port: VM_PORT }
        };
        match link.netdev {
            Netdev::User => {
                let port = match outside.port {
                    Some(port) => port,
                    None => free_port()?,
                };
                let (netdev, route) = if link.server_there && link.other == Side::Remote {
                    // The loopback interface of this computer, to which a tunnel may lead, is at the gateway's address.
                    let reach =
                        if outside.there.is_loopback() { USER.other } else { outside.there };
                    let route =
                        Route { bind: outside.there, bind_port: port, reach, reach_port: port };
                    ("user".to_owned(), route)
                } else if link.server_there {
                    // The host's loopback interface is at the gateway's address.
                    let route = Route {
                        bind: Ipv4Addr::LOCALHOST,
                        bind_port: port,
                        reach: USER.other,
                        reach_port: port,
                    };
                    ("user".to_owned(), route)
                } else {
                    let to = format!("{}-{}:{VM_PORT}", port, USER.vm);
                    let local = match link.other {
                        Side::Remote => outside.here,
                        _ => Ipv4Addr::LOCALHOST,
                    };
                    let forward =
                        ["tcp", "udp"].map(|kind| format!(",hostfwd={kind}:{local}:{to}")).concat();
                    let route = Route {
                        bind: Ipv4Addr::UNSPECIFIED,
                        bind_port: VM_PORT,
                        reach: local,
                        reach_port: port,
                    };
                    // Not restricted: QEMU then drops a VM's answers to datagrams, too.
                    (format!("user{forward}"), route)
                };
                let vm = NetdevEnd { netdev, address: own(USER.vm), ..NetdevEnd::default() };
                Ok(Network { ends: [vm, NetdevEnd::default()], namespace: None, route })
            }
            Netdev::Socket => {
                let [one, other] = cable()?;
                let end = |descriptor, address, is_peer| NetdevEnd {
                    netdev: "socket,fd={fd0}".to_owned(),
                    descriptors: vec![descriptor],
                    is_peer,
                    address: own(address),
                };
                let ends = [end(one, OWN.vm, false), end(other, OWN.other, true)];
                Ok(Network { ends, namespace: None, route: route(&OWN) })
            }
            Netdev::Tap => {
                let namespace = Namespace::new()?;
                let end = |descriptors: Vec<QemuDescriptor>, address, is_peer| NetdevEnd {
                    netdev: tap_words(descriptors.len()),
                    descriptors,
                    is_peer,
                    address: own(address),
                };
                let vm = end(namespace.tap("vm", queues)?, OWN.vm, false);
                let peer = if link.other == Side::Peer {
                    let peer = end(namespace.tap("peer", 1)?, OWN.other, true);
                    namespace.bridge("bridge", &["vm", "peer"])?;
                    peer
                } else {
                    namespace.address("vm", OWN.other, PREFIX)?;
                    NetdevEnd::default()
                };
                Ok(Network { ends: [vm, peer], namespace: Some(namespace), route: route(&OWN) })
            }
        }
    }

    /// What `--dry-run` shows of it.
    pub(crate) fn described(link: Link, queues: u32) -> String {
        match link.netdev {
            Netdev::User if link.server_there => "user".to_owned(),
            Netdev::User => {
                let local = if link.other == Side::Remote { "ADDRESS" } else { "127.0.0.1" };
                let to = format!("{local}:PORT-{}:{VM_PORT}", USER.vm);
                format!("user,hostfwd=tcp:{to},hostfwd=udp:{to}")
            }
            Netdev::Socket => "socket,fd=FD".to_owned(),
            Netdev::Tap => {
                let words = tap_words(queues as usize);
                (0..queues).fold(words, |words, n| words.replace(&format!("{{fd{n}}}"), "FD"))
            }
        }
    }
}

fn tap_words(queues: usize) -> String {
    let numbers: Vec<String> = (0..queues).map(|number| format!("{{fd{number}}}")).collect();
    let word = if queues > 1 { "fds" } else { "fd" };
    format!("tap,{word}={}", numbers.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_both_ends() {
        let path = |client, server, netdev| {
            Link::new(client, server, netdev).map(|link| link.map(Link::path))
        };
        let is = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(path(Side::Here, Side::Here, None), Ok(None));
        assert_eq!(path(Side::Host, Side::Here, None), is("host > user > vm"));
        assert_eq!(path(Side::Here, Side::Host, Some(Netdev::Tap)), is("vm > tap > host"));
        assert_eq!(path(Side::Peer, Side::Here, None), is("peer > socket > vm"));
        assert_eq!(path(Side::Remote, Side::Here, None), is("remote > user > vm"));
        assert_eq!(path(Side::Here, Side::Remote, None), is("vm > user > remote"));
        assert!(path(Side::Remote, Side::Remote, None).unwrap_err().contains("both outside"));
        assert!(
            path(Side::Remote, Side::Here, Some(Netdev::Tap)).unwrap_err().contains("\"user\"")
        );
        assert!(path(Side::Peer, Side::Host, None).unwrap_err().contains("both outside"));
        assert!(
            path(Side::Peer, Side::Here, Some(Netdev::User)).unwrap_err().contains("\"socket\"")
        );
        assert!(
            path(Side::Host, Side::Here, Some(Netdev::Socket)).unwrap_err().contains("\"user\"")
        );
    }

    #[test]
    fn each_half_has_its_own_port() {
        let route = Route {
            bind: Ipv4Addr::UNSPECIFIED,
            bind_port: 7000,
            reach: Ipv4Addr::LOCALHOST,
            reach_port: 40_000,
        };
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let job = Job {
            files: vec![("conf".to_owned(), "listen {bind}:{port}".to_owned())],
            server: words("s {bind} {port} {dir}"),
            warmups: vec![words("c {server} {port}")],
            client: words("c {server} {port}"),
            counters: true,
            ..Job::default()
        };
        let (server, client) = route.halves(&job);
        assert_eq!(server.files[0].1, "listen 0.0.0.0:7000");
        assert_eq!((server.server, server.port), (words("s 0.0.0.0 7000 {dir}"), Some(7000)));
        assert_eq!(client.client, words("c 127.0.0.1 40000"));
        assert_eq!(client.warmups, std::slice::from_ref(&client.client));
        assert!(client.server.is_empty() && client.counters && !server.counters);
        let alone = in_one_system(&job);
        assert_eq!(alone.server, words("s 127.0.0.1 {port} {dir}"));
    }
}
