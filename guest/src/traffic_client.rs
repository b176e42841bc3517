//! Both ends of traffic with a VM: connections, messages, and the client, which sends to the server ([`crate::server`]).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use vmtax_guest::functions::LoadedAddresses;
use vmtax_guest::order::{decode, encode};
use vmtax_guest::traffic::{PORT, PeerCommand, Reply, SeenVm, Traffic, TrafficKind};

use crate::{Result, system};

/// KiB of a stream that are written at once.
pub(crate) const CHUNK_KIB: u32 = 16;

/// Serves one connection after the other until the machine ends; an error ends a connection.
pub(crate) fn serve(mut one: impl FnMut(TcpStream) -> std::io::Result<()>) -> Result<()> {
    let failed = |e: std::io::Error| format!("port {PORT}: {e}");
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).map_err(failed)?;
    loop {
        let (stream, _) = listener.accept().map_err(failed)?;
        if let Err(e) = stream.set_nodelay(true).and_then(|()| one(stream)) {
            system::say(&format!("vmtax-guest: a connection ended: {e}"));
        }
    }
}

/// The facts that the server sends first: a length, and the encoded list.
pub(crate) fn facts(stream: &mut TcpStream) -> std::io::Result<Vec<(String, String)>> {
    Ok(decode(&message(stream)?).unwrap_or_default())
}

/// What the server's kernel has loaded.
pub(crate) fn loaded(stream: &mut TcpStream) -> Result<LoadedAddresses> {
    say(stream, &encode(&(TrafficKind::Loaded, 0_u32))).map_err(broken)?;
    decode(&message(stream).map_err(broken)?)
        .ok_or_else(|| "the VM does not say what it has loaded".to_owned())
}

/// Most bytes of a message.
const MESSAGE_MOST: usize = 1 << 20;

/// Bytes after their length.
pub(crate) fn message(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut bytes = vec![0; (u32::from_le_bytes(length) as usize).min(MESSAGE_MOST)];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The inverse, in one write.
pub(crate) fn say(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let length = (bytes.len() as u32).to_le_bytes();
    stream.write_all(&[&length, bytes].concat())
}

pub(crate) fn send(stream: &mut TcpStream, traffic: Traffic, count: u32) -> std::io::Result<()> {
    say(stream, &encode(&(traffic.kind, count)))?;
    let mut chunk = vec![7; CHUNK_KIB as usize * 1024];
    match traffic.kind {
        TrafficKind::Request { bytes, pause_us } => {
            let pause = Duration::from_micros(u64::from(pause_us));
            let buffer = chunk.get_mut(..bytes as usize).unwrap_or_default();
            for _ in 0..count {
                stream.write_all(buffer)?;
                stream.read_exact(buffer)?;
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
            }
            return Ok(());
        }
        TrafficKind::Receive => pieces(count, |bytes| stream.write_all(&chunk[..bytes]))?,
        TrafficKind::Send => return pieces(count, |bytes| stream.read_exact(&mut chunk[..bytes])),
        // The VM is only told to begin.
        _ => {}
    }
    stream.read_exact(&mut [0])
}

/// So many KiB in pieces of at most a chunk.
pub(crate) fn pieces(
    mut kib: u32,
    mut one: impl FnMut(usize) -> std::io::Result<()>,
) -> std::io::Result<()> {
    while kib > 0 {
        let now = kib.min(CHUNK_KIB);
        one(now as usize * 1024)?;
        kib -= now;
    }
    Ok(())
}

/// Has a VM carry out a command.
pub(crate) fn ask(stream: &mut TcpStream, command: &PeerCommand) -> Result<Vec<SeenVm>> {
    say(stream, &encode(command)).map_err(broken)?;
    let answer = message(stream).map_err(broken)?;
    let reply: Reply = decode(&answer).ok_or("the VM's reply cannot be read")?;
    if reply.problem.is_empty() { Ok(reply.vms) } else { Err(reply.problem) }
}

/// The sentence of a connection that failed.
pub(crate) fn broken(error: std::io::Error) -> String {
    format!("the connection to the VM: {error}")
}
