//! Network workloads whose two ends may be on different systems: a server, and clients that measure latency or throughput.
//!
//! A client connects by TCP and sends a line that says what it wants:
//!
//! ```text
//! echo SIZE      the server returns each message of SIZE bytes
//! sink           the server reads to the end, and answers with the number of bytes and the time in ns
//! udp            the server answers with a number N. Datagrams that begin with N are echoed if their next byte is 1, else counted.
//!                When the client ends its half of the connection, the server answers as for sink, and with the number of datagrams
//! ```
//!
//! Throughput is therefore measured at the receiver. A client prints what a built-in workload prints ([`crate::builtin`]), and its
//! own lines.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use vmtax_guest::job::CardAddress;

use crate::builtin::seconds_of;
use crate::latency::Latencies;
use crate::{Result, system};

/// Largest message by TCP.
const SIZE_MOST: usize = 1 << 20;
/// Largest datagram on IPv4.
const DATAGRAM_MOST: usize = 65_507;
/// Bytes of a datagram's head: the number of its client, what to do with it, and its sequence number.
const HEAD: usize = 17;
const ECHO: u8 = 1;
const COUNT: u8 = 0;
/// Wait for the answer to a datagram. Then it counts as lost.
const LOST: Duration = Duration::from_millis(500);
/// Wait for a connection. A network card may need a moment.
const CONNECT: Duration = Duration::from_secs(20);
/// Timeout of a read or write of a connection.
const SILENCE: Duration = Duration::from_secs(20);
/// Time for the last datagrams to arrive.
const SETTLE: Duration = Duration::from_millis(200);
/// Wait for the network card's driver.
const CARD: Duration = Duration::from_secs(20);

/// Gives the first network card an address and switches it on.
pub(crate) fn configure(address: CardAddress) -> Result<()> {
    let until = Instant::now() + CARD;
    let name = loop {
        let folder = std::fs::read_dir("/sys/class/net").map_err(|e| format!("network: {e}"))?;
        let names = folder.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        if let Some(name) = names.filter(|name| name != "lo").min() {
            break name;
        }
        if Instant::now() > until {
            return Err("there is no network card".to_owned());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let interface = system::Interface::new(&name)?;
    interface.address(address.address, address.prefix)?;
    interface.up()
}

/// Datagrams of one client.
#[derive(Default)]
struct CountedDatagrams {
    bytes: u64,
    datagrams: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

/// The datagrams of the present client, by its number.
struct Datagrams {
    client: AtomicU64,
    counted: Mutex<CountedDatagrams>,
}

/// Serves until it is ended.
pub(crate) fn serve(address: &str, port: &str) -> Result<()> {
    let port: u16 = port.parse().map_err(|_| format!("serve: {port:?} is no port"))?;
    let failed = |e: std::io::Error| format!("serve {address}:{port}: {e}");
    let udp = UdpSocket::bind((address, port)).map_err(failed)?;
    let datagrams = Datagrams { client: AtomicU64::new(0), counted: Mutex::default() };
    // Last, because who waits for the server looks for the TCP port.
    let listener = TcpListener::bind((address, port)).map_err(failed)?;
    std::thread::scope(|scope| {
        scope.spawn(|| datagrams.receive(&udp));
        for stream in listener.incoming() {
            let stream = stream.map_err(failed)?;
            // An error of a client's connection is reported by the client.
            let _ = answer(stream, &datagrams);
        }
        Ok(())
    })
}

fn answer(mut stream: TcpStream, datagrams: &Datagrams) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(128 << 10, stream.try_clone()?);
    let mut line = String::new();
    reader.by_ref().take(80).read_line(&mut line)?;
    match *line.split_whitespace().collect::<Vec<_>>() {
        ["echo", size] => {
            let size: usize = size.parse().unwrap_or(1);
            let mut message = vec![0; size.clamp(1, SIZE_MOST)];
            while reader.read_exact(&mut message).is_ok() {
                stream.write_all(&message)?;
            }
            Ok(())
        }
        ["sink"] => {
            let (mut bytes, mut first, mut buffer) = (0, None, vec![0; 256 << 10]);
            loop {
                let read = reader.read(&mut buffer)?;
                let first = *first.get_or_insert_with(Instant::now);
                if read == 0 {
                    return writeln!(stream, "{bytes} {} 0", first.elapsed().as_nanos());
                }
                bytes += read;
            }
        }
        ["udp"] => datagrams.control(&mut stream, &mut reader),
        _ => Ok(()),
    }
}

impl Datagrams {
    fn control(&self, stream: &mut TcpStream, reader: &mut impl Read) -> std::io::Result<()> {
        let number = self.client.fetch_add(1, Ordering::AcqRel) + 1;
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = CountedDatagrams::default();
        writeln!(stream, "{number}")?;
        reader.read_to_end(&mut Vec::new())?;
        std::thread::sleep(SETTLE);
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let time = match (counted.first, counted.last) {
            (Some(first), Some(last)) => last.duration_since(first),
            _ => Duration::ZERO,
        };
        writeln!(stream, "{} {} {}", counted.bytes, time.as_nanos(), counted.datagrams)
    }

    fn receive(&self, udp: &UdpSocket) {
        let mut buffer = vec![0; DATAGRAM_MOST];
        loop {
            let Ok((length, from)) = udp.recv_from(&mut buffer) else { continue };
            let Some((number, kind)) = head(&buffer[..length]) else { continue };
            if number != self.client.load(Ordering::Acquire) {
                continue;
            }
            if kind == ECHO {
                // A datagram that cannot be sent is lost, which the client counts.
                let _ = udp.send_to(&buffer[..length], from);
                continue;
            }
            let now = Instant::now();
            let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
            // The first begins the time, so that its bytes were before it.
            if counted.first.is_some() {
                counted.bytes += length as u64;
            }
            counted.first.get_or_insert(now);
            counted.last = Some(now);
            counted.datagrams += 1;
        }
    }
}

/// Number of the client, and what to do.
fn head(datagram: &[u8]) -> Option<(u64, u8)> {
    let (number, rest) = datagram.split_first_chunk::<8>()?;
    (datagram.len() >= HEAD).then(|| (u64::from_le_bytes(*number), rest[0]))
}

/// Runs a client and prints its result.
pub(crate) fn client(
    name: &str,
    (address, port): (&str, &str),
    seconds: &str,
    size: &str,
) -> Result<()> {
    let time = seconds_of(name, seconds)?;
    let port: u16 = port.parse().map_err(|_| format!("{name}: {port:?} is no port"))?;
    let most = if name.starts_with("udp") { DATAGRAM_MOST } else { SIZE_MOST };
    let size = size.parse().ok().filter(|size| (1..=most).contains(size));
    let size = size.ok_or_else(|| format!("{name}: size: give 1 to {most} bytes"))?;
    let to = TrafficServer { address, port };
    let failed = |e: std::io::Error| format!("{name} with {address}:{port}: {e}");
    match name {
        "tcp-latency" => tcp_latency(&to, time, size).map_err(failed),
        "tcp-stream" => tcp_stream(&to, time, size).map_err(failed),
        "udp-latency" => udp_latency(&to, time, size.max(HEAD)).map_err(failed),
        "udp-stream" => udp_stream(&to, time, size.max(HEAD)).map_err(failed),
        _ => Err(format!("there is no network workload {name:?}")),
    }
}

struct TrafficServer<'a> {
    address: &'a str,
    port: u16,
}

impl TrafficServer<'_> {
    /// Connects and says what is wanted. The network of a VM that has just booted may need a moment.
    fn connect(&self, wanted: &str) -> std::io::Result<TcpStream> {
        let until = Instant::now() + CONNECT;
        let mut stream = loop {
            match TcpStream::connect((self.address, self.port)) {
                Ok(stream) => break stream,
                Err(e) if Instant::now() > until => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        writeln!(stream, "{wanted}")?;
        Ok(stream)
    }
}

fn tcp_latency(to: &TrafficServer<'_>, time: Duration, size: usize) -> std::io::Result<()> {
    let mut stream = to.connect(&format!("echo {size}"))?;
    let mut message = vec![7; size];
    let mut latencies = Latencies::default();
    let started = Instant::now();
    let mut before = started;
    while before.duration_since(started) < time {
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        let after = Instant::now();
        latencies.add(after.duration_since(before));
        before = after;
    }
    print_latencies("tcp-latency", &latencies, before.duration_since(started));
    Ok(())
}

fn print_latencies(name: &str, latencies: &Latencies, time: Duration) {
    println!("vmtax-builtin {name}");
    println!("ns_per_operation {}", time.as_nanos() as f64 / latencies.count().max(1) as f64);
    println!("operations {}", latencies.count());
    latencies.print();
}

fn tcp_stream(to: &TrafficServer<'_>, time: Duration, size: usize) -> std::io::Result<()> {
    let mut stream = to.connect("sink")?;
    let message = vec![7; size];
    let (started, mut sent) = (Instant::now(), 0u64);
    while started.elapsed() < time {
        stream.write_all(&message)?;
        sent += 1;
    }
    stream.shutdown(Shutdown::Write)?;
    let [bytes, ns, _] = numbers(&mut stream)?;
    print_stream("tcp-stream", [bytes, ns, sent]);
    Ok(())
}

/// Bytes, time in ns, messages.
fn print_stream(name: &str, [bytes, ns, messages]: [u64; 3]) {
    println!("vmtax-builtin {name}");
    println!("ns_per_operation {}", ns as f64 / messages.max(1) as f64);
    println!("operations {messages}");
    println!("bits_per_second {}", bytes as f64 * 8e9 / ns.max(1) as f64);
}

/// The numbers with which the server answers.
fn numbers<const N: usize>(stream: &mut TcpStream) -> std::io::Result<[u64; N]> {
    let mut text = String::new();
    BufReader::new(stream).take(200).read_line(&mut text)?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().map_err(|_| std::io::Error::other("the server's answer cannot be read"))
}

/// A connected socket, the control connection, and the head of datagrams.
fn datagrams(
    to: &TrafficServer<'_>,
    kind: u8,
    size: usize,
) -> std::io::Result<(UdpSocket, TcpStream, Vec<u8>)> {
    let mut control = to.connect("udp")?;
    let [number] = numbers(&mut control)?;
    let udp = UdpSocket::bind("0.0.0.0:0")?;
    udp.connect((to.address, to.port))?;
    let mut message = vec![7; size];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message[8] = kind;
    Ok((udp, control, message))
}

fn udp_latency(to: &TrafficServer<'_>, time: Duration, size: usize) -> std::io::Result<()> {
    let (udp, _control, mut message) = datagrams(to, ECHO, size)?;
    udp.set_read_timeout(Some(LOST))?;
    let mut answer = vec![0; DATAGRAM_MOST];
    let (mut latencies, mut lost, mut sequence) = (Latencies::default(), 0u64, 0u64);
    let (started, mut measured) = (Instant::now(), Duration::ZERO);
    while started.elapsed() < time {
        sequence += 1;
        message[9..HEAD].copy_from_slice(&sequence.to_le_bytes());
        let before = Instant::now();
        udp.send(&message)?;
        loop {
            match udp.recv(&mut answer) {
                // A late answer to an earlier one, which counts as lost.
                Ok(length) if answer.get(9..HEAD.min(length)) != message.get(9..HEAD) => {}
                Ok(_) => {
                    let latency = before.elapsed();
                    latencies.add(latency);
                    measured += latency;
                    break;
                }
                Err(e) if is_timeout(&e) => {
                    lost += 1;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
    }
    if latencies.count() == 0 {
        return Err(std::io::Error::other("no datagram came back"));
    }
    print_latencies("udp-latency", &latencies, measured);
    println!("lost {lost}");
    Ok(())
}

fn is_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

fn udp_stream(to: &TrafficServer<'_>, time: Duration, size: usize) -> std::io::Result<()> {
    let (udp, mut control, message) = datagrams(to, COUNT, size)?;
    let (started, mut sent) = (Instant::now(), 0u64);
    while started.elapsed() < time {
        match udp.send(&message) {
            Ok(_) => sent += 1,
            // A full queue of the card.
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(e) => return Err(e),
        }
    }
    control.shutdown(Shutdown::Write)?;
    let [bytes, ns, received] = numbers(&mut control)?;
    if received < 2 {
        let problem = format!("{received} of {sent} datagrams arrived");
        return Err(std::io::Error::other(problem));
    }
    print_stream("udp-stream", [bytes, ns, received]);
    println!("lost {}", sent.saturating_sub(received));
    println!("sent {sent}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_answers_every_client() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = port.to_string();
        std::thread::spawn(move || serve("127.0.0.1", &text));
        let port = port.to_string();
        for name in ["tcp-latency", "udp-latency", "tcp-stream", "udp-stream", "tcp-latency"] {
            let done = client(name, ("127.0.0.1", &port), "0.02", "64");
            assert_eq!(done, Ok(()), "{name}");
        }
        let to = ("127.0.0.1", port.as_str());
        assert!(client("tcp-stream", to, "0.02", "0").unwrap_err().contains("give 1 to 1048576"));
        assert!(client("udp-stream", to, "0.02", "65508").unwrap_err().contains("give 1 to 65507"));
        assert!(client("sctp", to, "0.02", "1").unwrap_err().contains("no network workload"));
    }

    #[test]
    fn cut_datagrams_are_no_client_s() {
        assert_eq!(head(&[1; HEAD - 1]), None);
        assert_eq!(head(&[]), None);
        let mut datagram = [0; HEAD];
        datagram[0] = 5;
        datagram[8] = ECHO;
        assert_eq!(head(&datagram), Some((5, ECHO)));
    }
}
