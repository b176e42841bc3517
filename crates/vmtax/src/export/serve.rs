//! One page over HTTP, for those who ask for it again and again.
//!
//! One thread waits for all of them, so there is nothing to lock and nobody waits for another. Whatever a client does or
//! leaves undone, so many connections are open at most, each for so long and with so much said.
//!
//! Left out on purpose: connections that are kept, compression, encryption, passwords. Who needs them puts a proxy before it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::host::Hosts;
use crate::record::Stop;

/// One more, and the oldest is closed: who asks as one should is done long before.
const MOST_CONNECTIONS: usize = 64;
/// Longer requests are refused.
const MOST_ASKED: usize = 8 << 10;
/// From a connection's begin to its end.
const LONGEST: Duration = Duration::from_secs(10);
/// So many are let in before those that are there have their turn.
const AT_A_TIME: usize = 16;

/// Serves one page.
pub(super) struct Server {
    listener: TcpListener,
    /// The oldest first.
    connections: VecDeque<Connection>,
    page: Rc<[u8]>,
    hosts: Hosts,
}

impl Server {
    pub(super) fn new(address: SocketAddr, hosts: Hosts) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Server { listener, connections: VecDeque::new(), page: Rc::from([]), hosts })
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// From now on this is the page. Who is being answered gets the one before.
    pub(super) fn set_page(&mut self, page: Vec<u8>) {
        self.page = page.into();
    }

    /// Answers until then. Whether somebody wants an end.
    pub(super) fn serve(&mut self, stop: &Stop, until: Instant) -> io::Result<bool> {
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
            let somebody_comes = ready.next().unwrap_or_default();
            let content = Content { page: &self.page, hosts: &self.hosts };
            self.connections
                .retain_mut(|one| !ready.next().unwrap_or_default() || one.go_on(content));
            if somebody_comes {
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
                    // One that cannot be waited for is not served.
                    if stream.set_nonblocking(true).is_ok() {
                        self.connections.push_back(Connection::new(stream));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_of_client(&error) => {}
                // There is no room for one more, unless another goes.
                Err(error) => return self.connections.pop_front().map(drop).ok_or(error),
            }
        }
        Ok(())
    }
}

/// Went away before it was let in.
fn is_of_client(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}

/// What is served, and under which names.
#[derive(Clone, Copy)]
struct Content<'a> {
    page: &'a Rc<[u8]>,
    hosts: &'a Hosts,
}

/// Somebody who asks.
struct Connection {
    stream: TcpStream,
    began: Instant,
    state: State,
}

enum State {
    /// What was asked so far.
    Asking(Vec<u8>),
    /// The answer, and how much of it is out.
    Answering(Answer, usize),
    /// All is said. What still comes in is thrown away: to close before it is read would cut the answer off.
    Leaving,
}

impl Connection {
    fn new(stream: TcpStream) -> Connection {
        Connection { stream, began: Instant::now(), state: State::Asking(Vec::new()) }
    }

    fn watched(&self) -> PollFd<'_> {
        let flags = match self.state {
            State::Answering(..) => PollFlags::OUT,
            State::Asking(_) | State::Leaving => PollFlags::IN,
        };
        PollFd::new(&self.stream, flags)
    }

    /// Does what can be done without waiting. Whether the connection goes on.
    fn go_on(&mut self, content: Content<'_>) -> bool {
        match self.step(content) {
            Ok(goes_on) => goes_on,
            Err(error) => {
                matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
            }
        }
    }

    fn step(&mut self, content: Content<'_>) -> io::Result<bool> {
        if let State::Asking(asked) = &mut self.state {
            let mut bytes = [0; MOST_ASKED];
            let got = self.stream.read(&mut bytes[asked.len()..])?;
            asked.extend_from_slice(&bytes[asked.len()..][..got]);
            let local = self.stream.local_addr().ok().map(|local| local.ip());
            match Answer::to(asked, content, local) {
                Some(answer) => self.state = State::Answering(answer, 0),
                None => return Ok(got > 0),
            }
        }
        if let State::Answering(answer, done) = &mut self.state {
            while let rest @ [_, ..] = answer.after(*done) {
                match self.stream.write(rest)? {
                    0 => return Ok(false),
                    written => *done += written,
                }
            }
            self.stream.shutdown(Shutdown::Write)?;
            self.state = State::Leaving;
        }
        Ok(self.stream.read(&mut [0; 4096])? > 0)
    }
}

struct Answer {
    head: Vec<u8>,
    body: Rc<[u8]>,
}

impl Answer {
    /// The answer to what was asked, once all of it is there.
    fn to(asked: &[u8], content: Content<'_>, local: Option<IpAddr>) -> Option<Answer> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(asked) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) if asked.len() < MOST_ASKED => return None,
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Some(Answer::short(
                    "431 Request Header Fields Too Large",
                    "that is too long",
                ));
            }
            Err(_) => return Some(Answer::short("400 Bad Request", "that is not HTTP")),
        }
        if let Some(refusal) = Answer::refusal(&request, content.hosts, local) {
            return Some(refusal);
        }
        let page = content.page;
        let method = request.method.unwrap_or_default();
        let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
        let mut answer = match (method, path) {
            ("GET" | "HEAD", "/metrics") => {
                Answer { head: head("200 OK", METRICS, page.len()), body: Rc::clone(page) }
            }
            ("GET" | "HEAD", _) => {
                Answer::short("404 Not Found", "there is /metrics here, and nothing else")
            }
            _ => Answer::short("405 Method Not Allowed", "metrics can be read, and nothing else"),
        };
        if method == "HEAD" {
            answer.body = Rc::from([]);
        }
        Some(answer)
    }

    /// The answer to a request that does not name this server.
    fn refusal(
        request: &httparse::Request<'_, '_>,
        hosts: &Hosts,
        local: Option<IpAddr>,
    ) -> Option<Answer> {
        let is_host = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("host");
        let headers: Vec<_> = request.headers.iter().filter(is_host).collect();
        match headers.as_slice() {
            // A browser never sends that, so no web page is behind it.
            [] if request.version == Some(0) => None,
            [host] => {
                let host = std::str::from_utf8(host.value).unwrap_or_default().trim();
                let refused = "this server has another name; --allow-host adds names";
                (!hosts.allow(host, local))
                    .then(|| Answer::short("421 Misdirected Request", refused))
            }
            _ => Some(Answer::short("400 Bad Request", "a request has one Host header")),
        }
    }

    fn short(status: &str, text: &str) -> Answer {
        let body: Rc<[u8]> = format!("{text}\n").into_bytes().into();
        Answer { head: head(status, "text/plain; charset=utf-8", body.len()), body }
    }

    /// What is left of it to say, or the first part of that.
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
