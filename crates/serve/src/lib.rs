//! A page of metrics over HTTP, within limits.
//!
//! One thread polls all connections, so nothing is locked and no client blocks another. Misbehaving clients are bounded: the number
//! of connections, the length of a request, and the life of a connection are limited.
//!
//! Left out on purpose: keep-alive, compression, encryption, passwords. A reverse proxy adds them.

mod hosts;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use vmtax_cli::signals::Signals;

pub use hosts::{Hosts, name};

/// With one more, the oldest connection is closed.
const MOST_CONNECTIONS: usize = 64;
/// Longer requests are refused.
const MOST_ASKED: usize = 8 << 10;
/// Most time of a connection.
const LONGEST: Duration = Duration::from_secs(10);
/// Connections accepted at a time, before the open ones get their turn.
const AT_A_TIME: usize = 16;

pub struct PageServer {
    listener: TcpListener,
    /// The oldest first.
    connections: VecDeque<Connection>,
    page: Rc<[u8]>,
    hosts: Hosts,
}

impl PageServer {
    /// Listens on an address.
    pub fn new(address: SocketAddr, hosts: Hosts) -> io::Result<PageServer> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(PageServer { listener, connections: VecDeque::new(), page: Rc::from([]), hosts })
    }

    /// The address that it listens on.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// From now on this is the page. Responses that have begun finish with the previous one.
    pub fn set_page(&mut self, page: Vec<u8>) {
        self.page = page.into();
    }

    /// Serves until this time. Returns whether a signal asked to stop.
    pub fn serve(&mut self, stop: &Signals, until: Instant) -> io::Result<bool> {
        loop {
            let now = Instant::now();
            self.connections.retain(|connection| now < connection.began + LONGEST);
            if now >= until {
                return Ok(false);
            }
            let oldest = self.connections.front().map_or(until, |first| first.began + LONGEST);
            let mut watched = vec![PollFd::new(&self.listener, PollFlags::IN)];
            watched.extend(self.connections.iter().map(Connection::watched));
            let is_over = stop.wait_beside(&mut watched, until.min(oldest))?;
            let ready: Vec<bool> = watched.iter().map(|one| !one.revents().is_empty()).collect();
            drop(watched);
            if is_over {
                return Ok(true);
            }
            let mut ready = ready.into_iter();
            let has_new = ready.next().unwrap_or_default();
            let content = ServedContent { page: &self.page, hosts: &self.hosts };
            self.connections
                .retain_mut(|one| !ready.next().unwrap_or_default() || one.go_on(content));
            if has_new {
                self.let_in()?;
            }
        }
    }

    fn let_in(&mut self) -> io::Result<()> {
        for _ in 0..AT_A_TIME {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if self.connections.len() >= MOST_CONNECTIONS {
                        self.connections.pop_front();
                    }
                    // A connection that cannot be polled is not served.
                    if stream.set_nonblocking(true).is_ok() {
                        self.connections.push_back(Connection::new(stream));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_of_client(&error) => {}
                // No file descriptor is left, unless an open connection is closed.
                Err(error) => return self.connections.pop_front().map(drop).ok_or(error),
            }
        }
        Ok(())
    }
}

/// The client left before it was accepted.
fn is_of_client(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}

/// The page, and the host names under which it is served.
#[derive(Clone, Copy)]
struct ServedContent<'a> {
    page: &'a Rc<[u8]>,
    hosts: &'a Hosts,
}

struct Connection {
    stream: TcpStream,
    began: Instant,
    state: ServerState,
}

enum ServerState {
    /// The request so far.
    Asking(Vec<u8>),
    /// The response, and how much of it is sent.
    Answering(HttpAnswer, usize),
    /// The response is sent. Further input is discarded: closing before it is read would cut the response off.
    Leaving,
}

impl Connection {
    fn new(stream: TcpStream) -> Connection {
        Connection { stream, began: Instant::now(), state: ServerState::Asking(Vec::new()) }
    }

    fn watched(&self) -> PollFd<'_> {
        let flags = match self.state {
            ServerState::Answering(..) => PollFlags::OUT,
            ServerState::Asking(_) | ServerState::Leaving => PollFlags::IN,
        };
        PollFd::new(&self.stream, flags)
    }

    /// Makes progress without blocking. Whether the connection stays open.
    fn go_on(&mut self, content: ServedContent<'_>) -> bool {
        match self.step(content) {
            Ok(goes_on) => goes_on,
            Err(error) => {
                matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
            }
        }
    }

    fn step(&mut self, content: ServedContent<'_>) -> io::Result<bool> {
        if let ServerState::Asking(asked) = &mut self.state {
            let mut bytes = [0; MOST_ASKED];
            let got = self.stream.read(&mut bytes[asked.len()..])?;
            asked.extend_from_slice(&bytes[asked.len()..][..got]);
            let local = self.stream.local_addr().ok().map(|local| local.ip());
            match HttpAnswer::to(asked, content, local) {
                Some(answer) => self.state = ServerState::Answering(answer, 0),
                None => return Ok(got > 0),
            }
        }
        if let ServerState::Answering(answer, done) = &mut self.state {
            while let rest @ [_, ..] = answer.after(*done) {
                match self.stream.write(rest)? {
                    0 => return Ok(false),
                    written => *done += written,
                }
            }
            self.stream.shutdown(Shutdown::Write)?;
            self.state = ServerState::Leaving;
        }
        Ok(self.stream.read(&mut [0; 4096])? > 0)
    }
}

struct HttpAnswer {
    head: Vec<u8>,
    body: Rc<[u8]>,
}

impl HttpAnswer {
    /// The response, once the request is complete.
    fn to(asked: &[u8], content: ServedContent<'_>, local: Option<IpAddr>) -> Option<HttpAnswer> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(asked) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) if asked.len() < MOST_ASKED => return None,
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Some(HttpAnswer::short(
                    "431 Request Header Fields Too Large",
                    "that is too long",
                ));
            }
            Err(_) => return Some(HttpAnswer::short("400 Bad Request", "that is not HTTP")),
        }
        if let Some(refusal) = HttpAnswer::refusal(&request, content.hosts, local) {
            return Some(refusal);
        }
        let page = content.page;
        let method = request.method.unwrap_or_default();
        let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
        let mut answer = match (method, path) {
            ("GET" | "HEAD", "/metrics") => {
                HttpAnswer { head: head("200 OK", METRICS, page.len()), body: Rc::clone(page) }
            }
            ("GET" | "HEAD", _) => HttpAnswer::short("404 Not Found", "only /metrics exists"),
            _ => HttpAnswer::short("405 Method Not Allowed", "only GET and HEAD are allowed"),
        };
        if method == "HEAD" {
            answer.body = Rc::from([]);
        }
        Some(answer)
    }

    /// The response to a request whose Host header does not name this server.
    fn refusal(
        request: &httparse::Request<'_, '_>,
        hosts: &Hosts,
        local: Option<IpAddr>,
    ) -> Option<HttpAnswer> {
        let is_host = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("host");
        let headers: Vec<_> = request.headers.iter().filter(is_host).collect();
        match headers.as_slice() {
            // A browser always sends a Host header, so no web page is behind it.
            [] if request.version == Some(0) => None,
            [host] => {
                let host = std::str::from_utf8(host.value).unwrap_or_default().trim();
                let refused = "this server has another name; --allow-host adds names";
                (!hosts.allow(host, local))
                    .then(|| HttpAnswer::short("421 Misdirected Request", refused))
            }
            _ => Some(HttpAnswer::short("400 Bad Request", "a request has one Host header")),
        }
    }

    fn short(status: &str, text: &str) -> HttpAnswer {
        let body: Rc<[u8]> = format!("{text}\n").into_bytes().into();
        HttpAnswer { head: head(status, "text/plain; charset=utf-8", body.len()), body }
    }

    /// The rest to send, or the first part of it.
    fn after(&self, done: usize) -> &[u8] {
        let head = self.head.get(done..).unwrap_or_default();
        if head.is_empty() { &self.body[done - self.head.len()..] } else { head }
    }
}

const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn head(status: &str, kind: &str, length: usize) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nAllow: GET, HEAD\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}
