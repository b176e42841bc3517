//! Networks of machines: a network namespace with taps and a bridge, and sockets between two machines. None of it has a name outside:
//! a namespace ends with the last process and descriptor that belong to it, and with it its interfaces. So nothing is left of them
//! when vmtax is killed, because the kernel then kills its machines and programs.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::{Error, QemuDescriptor};

const LOOPBACK: &str = "lo";
/// Where taps are made.
const TUN: &str = "/dev/net/tun";
/// Make a bridge; add a port to one (linux/sockios.h).
const SIOCBRADDBR: libc::Ioctl = 0x89a0;
const SIOCBRADDIF: libc::Ioctl = 0x89a2;

/// The two ends of a cable between two machines, for `-netdev socket,fd=`.
///
/// # Errors
/// The system has no descriptors left.
pub fn cable() -> Result<[QemuDescriptor; 2], Error> {
    let (one, other) = UnixStream::pair().map_err(failed("a pair of sockets"))?;
    Ok([one, other].map(|end| OwnedFd::from(end).into()))
}

/// A port of the loopback interface that is free for TCP and UDP.
pub fn free_port() -> Result<u16, Error> {
    let find = || {
        for _ in 0..100 {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            if UdpSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_ok() {
                return Ok(port);
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    };
    find().map_err(failed("a free port of the loopback interface"))
}

/// Whether a program listens on this TCP port, by a table of the kernel as `/proc/net/tcp`.
///
/// A line is `0: 0100007F:1F90 00000000:0000 0A ...`: number, address and port of both ends, state (TCP_LISTEN is 10).
fn listens(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().take(4).collect();
        let [_, local, _, "0A"] = words[..] else { return false };
        local.rsplit_once(':').is_some_and(|(_, at)| u16::from_str_radix(at, 16) == Ok(port))
    })
}

/// Whether a program listens on this TCP port of the namespace, or of that of this process.
pub fn is_served(namespace: Option<&Namespace>, port: u16) -> Result<bool, Error> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/tcp");
    let table = match namespace {
        Some(namespace) => namespace.within("the list of ports", read)?,
        None => read().map_err(failed("the list of ports"))?,
    };
    Ok(listens(&table, port))
}

/// A network namespace of this process. It needs root.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<File>);

impl Namespace {
    /// Makes one, with its loopback interface.
    pub fn new() -> Result<Namespace, Error> {
        let make = || {
            unshare()?;
            NamespaceInterface::new(LOOPBACK)?.up()?;
            File::open("/proc/thread-self/ns/net")
        };
        let file = in_thread(make).map_err(|e| {
            let root = match e.kind() {
                io::ErrorKind::PermissionDenied => "; run as root, or use network = \"user\"",
                _ => "",
            };
            Error::Network { step: "a network namespace", problem: format!("{e}{root}") }
        })?;
        Ok(Namespace(Arc::new(file)))
    }

    /// Makes a tap for a machine, switched on: a descriptor for each of its queues.
    ///
    /// # Errors
    /// The system does not permit it, or has no taps.
    pub fn tap(&self, name: &str, queues: u32) -> Result<Vec<QemuDescriptor>, Error> {
        self.within("a tap", || {
            let taps =
                (0..queues).map(|_| tap(name, queues > 1)).collect::<io::Result<Vec<_>>>()?;
            NamespaceInterface::new(name)?.up()?;
            Ok(taps.into_iter().map(QemuDescriptor::from).collect())
        })
    }

    /// Joins interfaces by a bridge.
    ///
    /// # Errors
    /// The kernel has no bridges.
    pub fn bridge(&self, name: &str, ports: &[&str]) -> Result<(), Error> {
        self.within("a bridge (module bridge)", || {
            let bridge = NamespaceInterface::new(name)?;
            bridge.become_bridge()?;
            ports.iter().try_for_each(|port| bridge.add_port(port))?;
            bridge.up()
        })
    }

    /// Gives an interface an address in a network of this many bits.
    pub fn address(&self, name: &str, address: Ipv4Addr, prefix: u8) -> Result<(), Error> {
        self.within("an address", || NamespaceInterface::new(name)?.address(address, prefix))
    }

    /// Names of its interfaces.
    pub fn interfaces(&self) -> Result<Vec<String>, Error> {
        let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
        let text = self.within("the list of interfaces", read)?;
        let names = text.lines().filter_map(|line| line.split_once(':'));
        Ok(names.map(|(name, _)| name.trim().to_owned()).collect())
    }

    /// Lets a program start in it.
    #[expect(unsafe_code, reason = "the namespace is entered between fork and exec")]
    pub fn enter(&self, command: &mut Command) {
        let file = Arc::clone(&self.0);
        let enter = move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(())
        };
        // SAFETY: the closure makes a system call alone.
        unsafe { command.pre_exec(enter) };
    }

    /// Does something in it, on a thread of its own.
    fn within<T: Send>(
        &self,
        step: &'static str,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, Error> {
        let work = || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        };
        in_thread(work).map_err(failed(step))
    }
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> Error {
    move |e| Error::Network { step, problem: e.to_string() }
}

fn in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().map_err(|_| io::Error::other("a thread failed"))?
    })
}

#[expect(unsafe_code, reason = "rustix marks every unshare as unsafe")]
fn unshare() -> io::Result<()> {
    // SAFETY: the network namespace of this thread alone changes; descriptors and memory stay shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)? };
    Ok(())
}

/// A queue of a tap, which is made if it is its first.
fn tap(name: &str, multi: bool) -> io::Result<OwnedFd> {
    let file = File::options().read(true).write(true).open(TUN)?;
    let mut request = request(name);
    let multi = if multi { libc::IFF_MULTI_QUEUE } else { 0 };
    // Packets without a head of their own, but with virtio's, so that checksums and segmentation can be left to the other end.
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | multi;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    order(&file, libc::TUNSETIFF, &mut request)?;
    Ok(file.into())
}

/// An interface of this thread's namespace.
struct NamespaceInterface {
    name: String,
    socket: UdpSocket,
}

impl NamespaceInterface {
    fn new(name: &str) -> io::Result<NamespaceInterface> {
        // Any socket will do: interfaces are those of its namespace. It is not bound, so it needs no loopback.
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::DGRAM,
            None,
        )?;
        Ok(NamespaceInterface { name: name.to_owned(), socket: socket.into() })
    }

    fn up(&self) -> io::Result<()> {
        let mut request = request(&self.name);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        order(&self.socket, libc::SIOCSIFFLAGS, &mut request)
    }

    #[expect(unsafe_code, reason = "addresses in interface requests are unions")]
    fn address(&self, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
        for (which, value) in
            [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, Ipv4Addr::from(mask))]
        {
            let mut request = request(&self.name);
            // SAFETY: an address of zeroes is valid.
            let mut to: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            to.sin_family = libc::AF_INET as libc::sa_family_t;
            to.sin_addr.s_addr = u32::from_ne_bytes(value.octets());
            // SAFETY: both are 16 bytes of plain memory, and the kernel reads the second by its family.
            request.ifr_ifru.ifru_addr =
                unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(to) };
            order(&self.socket, which, &mut request)?;
        }
        Ok(())
    }

    #[expect(unsafe_code, reason = "a bridge is made by ioctl")]
    fn become_bridge(&self) -> io::Result<()> {
        let name = request(&self.name).ifr_name;
        // SAFETY: the order reads a name that ends with a zero.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCBRADDBR, name.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[expect(unsafe_code, reason = "interface requests are unions")]
    fn add_port(&self, port: &str) -> io::Result<()> {
        let mut of_port = request(port);
        order(&self.socket, libc::SIOCGIFINDEX, &mut of_port)?;
        let mut request = request(&self.name);
        // SAFETY: the kernel has just written this member.
        request.ifr_ifru.ifru_ifindex = unsafe { of_port.ifr_ifru.ifru_ifindex };
        order(&self.socket, SIOCBRADDIF, &mut request)
    }
}

#[expect(unsafe_code, reason = "libc has no other way to make a request")]
fn request(name: &str) -> libc::ifreq {
    // SAFETY: an interface request of zeroes is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let places = request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1);
    places.zip(name.bytes()).for_each(|(to, from)| *to = libc::c_char::from_ne_bytes([from]));
    request
}

#[expect(unsafe_code, reason = "interfaces are set by ioctl")]
fn order(to: &impl AsRawFd, order: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: these orders read and write a request.
    match unsafe { libc::ioctl(to.as_raw_fd(), order, std::ptr::from_mut(request)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listening_port_is_served() {
        let table = "  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 0\n   \
                     1: 0100007F:1F91 0100007F:C350 01 0\n   2: cut";
        assert!(listens(table, 8080));
        assert!(!listens(table, 8081) && !listens("", 8080));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_served(None, port).unwrap());
    }

    /// A namespace of ours has its interfaces, this process's namespace does not see them, and a program in it does.
    #[test]
    fn a_namespace_has_taps_that_nobody_else_sees() {
        let namespace = match Namespace::new() {
            Ok(namespace) => namespace,
            Err(problem) => {
                assert!(problem.to_string().contains("run as root"), "{problem}");
                return;
            }
        };
        let address = Ipv4Addr::new(10, 71, 0, 1);
        let taps = namespace.tap("vmtax-t0", 2).unwrap();
        assert_eq!(taps.len(), 2);
        namespace.tap("vmtax-t1", 1).unwrap();
        namespace.address("vmtax-t0", address, 24).unwrap();
        // Its descriptor is gone, so is the tap; unless a child that another test starts has it for another moment.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(300);
        while namespace.interfaces().unwrap().contains(&"vmtax-t1".to_owned()) {
            assert!(std::time::Instant::now() < end, "the tap stays");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(namespace.interfaces().unwrap().contains(&"vmtax-t0".to_owned()));
        assert!(!std::path::Path::new("/sys/class/net/vmtax-t0").exists());
        let mut command = Command::new("cat");
        command.args(["/proc/self/net/fib_trie"]);
        namespace.enter(&mut command);
        let said = command.output().unwrap();
        assert!(String::from_utf8_lossy(&said.stdout).contains("10.71.0.1"), "{said:?}");
        match namespace.bridge("vmtax-b0", &["vmtax-t0"]) {
            Ok(()) => assert!(namespace.interfaces().unwrap().contains(&"vmtax-b0".to_owned())),
            Err(problem) => assert!(problem.to_string().contains("module bridge"), "{problem}"),
        }
    }
}
