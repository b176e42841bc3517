//! A VM whose client or server is on another system: both ends started, and a job carried out between them.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vmtax_guest::job::{Job, JobAnswer, JobOutcome, JobRequest};
use vmtax_machine::Stop;
use vmtax_machine::network::{Namespace, is_served};

use crate::Error;
use crate::category::MatrixCategory;
use crate::category::SystemFacts;
use crate::error::{at, strange};
use crate::link::{Link, Network, Route, Side};
use crate::place::{There, ThisComputer};
use crate::vm::{BenchVm, MatrixVms};

/// Time between two looks for the server's port.
const LOOK: Duration = Duration::from_millis(5);
/// Times that a remote system is asked, for two seconds each, whether a server has ended there.
const ASKED: u32 = 15;
const AGENT: &str = "the agent";

/// Both ends of a link.
#[derive(Debug)]
pub(crate) struct Linked {
    vm: BenchVm,
    other: OtherEnd,
    link: Link,
    route: Route,
    stop: Stop,
}

#[derive(Debug)]
enum OtherEnd {
    Host { agent: Box<ThisComputer>, namespace: Option<Namespace> },
    Peer(Box<BenchVm>),
    Remote(Box<There>),
}

impl Linked {
    /// Makes the network, and boots the VM and its peer at the same time.
    pub(crate) fn start(
        vms: &MatrixVms,
        category: &MatrixCategory,
        link: Link,
    ) -> Result<Linked, Error> {
        let mut outside = vms.target().outside();
        let remote = match (link.other, &vms.target().remote) {
            (Side::Remote, Some(address)) => {
                let there = There::new("remote", address, vms.program(), vms.stop())?;
                if link.server_there {
                    outside.port = Some(there.free_port()?);
                }
                Some(there)
            }
            _ => None,
        };
        let Network { ends, namespace, route } = Network::new(link, category.queues(), outside)?;
        let mut vm = vms.boot(category, &ends[0], vms.console().to_owned())?;
        let other = if link.other == Side::Peer {
            let console = vms.console().with_file_name("console-peer.txt");
            let mut peer = vms.boot(&MatrixCategory::plain(), &ends[1], console)?;
            peer.ready(&ends[1])?;
            OtherEnd::Peer(Box::new(peer))
        } else if let Some(there) = remote {
            OtherEnd::Remote(Box::new(there))
        } else {
            let agent = ThisComputer::new(vms.program(), vms.stop())?.within(namespace.clone());
            OtherEnd::Host { agent: Box::new(agent), namespace }
        };
        vm.ready(&ends[0])?;
        Ok(Linked { vm, other, link, route, stop: vms.stop().clone() })
    }

    /// Facts of the VM under test.
    pub(crate) fn facts(&mut self) -> Result<SystemFacts, Error> {
        self.vm.ask(&JobRequest::Facts)?.facts().ok_or_else(|| strange(AGENT))
    }

    /// The process that runs the VM under test.
    pub(crate) fn process(&self) -> u32 {
        self.vm.process()
    }

    /// Runs a job: its server on one side, its client on the other.
    pub(crate) fn execute(&mut self, job: &Job) -> Result<JobOutcome, Error> {
        let (server, client) = self.route.halves(job);
        if !job.server_anew || client.warmups.is_empty() {
            return self.once(&server, &client);
        }
        // The server refuses a second client, so each has a server of its own.
        for warmup in &client.warmups {
            let warmup = Job {
                warmups: Vec::new(),
                client: warmup.clone(),
                counters: false,
                ..client.clone()
            };
            let outcome = self.once(&server, &warmup)?;
            if !outcome.problem.is_empty() {
                let problem = format!("the warming up failed: {}", outcome.problem);
                return Ok(JobOutcome { problem, ..outcome });
            }
        }
        self.once(&server, &Job { warmups: Vec::new(), ..client })
    }

    fn once(&mut self, server: &Job, client: &Job) -> Result<JobOutcome, Error> {
        let request = JobRequest::Do(client.clone());
        let Linked { vm, other, link, route, stop } = self;
        match (other, link.server_there) {
            (OtherEnd::Host { agent, .. }, false) => {
                serving(vm, (server, false), || agent.ask(&request))
            }
            (OtherEnd::Peer(peer), false) => serving(vm, (server, false), || peer.ask(&request)),
            (OtherEnd::Remote(there), false) => {
                serving(vm, (server, false), || there.ask(&request))
            }
            (OtherEnd::Peer(peer), true) => serving(peer, (server, true), || vm.ask(&request)),
            (OtherEnd::Host { agent, namespace }, true) => {
                let at = EndAgent::Here(agent, namespace.as_ref());
                OutsideServer { at, port: route.port(), stop }.serving(server, || vm.ask(&request))
            }
            (OtherEnd::Remote(there), true) => {
                let at = EndAgent::There(there);
                OutsideServer { at, port: route.port(), stop }.serving(server, || vm.ask(&request))
            }
        }
    }
}

/// Runs a client while a VM serves.
fn serving(
    vm: &mut BenchVm,
    (server, client_is_measured): (&Job, bool),
    client: impl FnOnce() -> Result<JobAnswer, Error>,
) -> Result<JobOutcome, Error> {
    if server.server.is_empty() {
        return outcome(client()?);
    }
    let started = outcome(vm.ask(&JobRequest::Serve(server.clone()))?)?;
    if !started.problem.is_empty() {
        return Ok(started);
    }
    let done = client();
    let served = outcome(vm.ask(&JobRequest::End)?)?;
    let mut done = outcome(done?)?;
    done.server = served.server;
    if !client_is_measured {
        // Of the VM under test, while it served.
        done.busy = served.busy;
    }
    if done.problem.is_empty() {
        done.problem = served.problem;
    }
    Ok(done)
}

/// The agent of an end outside of VMs: this computer's, in a namespace of the run if it has one, or a remote system's.
#[derive(Clone, Copy)]
enum EndAgent<'a> {
    Here(&'a ThisComputer, Option<&'a Namespace>),
    There(&'a There),
}

impl EndAgent<'_> {
    fn ask_until(self, request: &JobRequest, over: &Stop) -> Result<JobAnswer, Error> {
        match self {
            EndAgent::Here(agent, _) => agent.ask_until(request, over),
            EndAgent::There(there) => there.ask_until(request, over),
        }
    }

    fn is_served(self, port: u16) -> Result<bool, Error> {
        match self {
            EndAgent::Here(_, namespace) => Ok(is_served(namespace, port)?),
            EndAgent::There(there) => there.listens(port, true),
        }
    }

    /// After a server was ended. One of this computer has ended when its agent has; a busy other system takes longer.
    fn until_free(self, port: u16) -> Result<(), Error> {
        let EndAgent::There(there) = self else { return Ok(()) };
        for _ in 0..ASKED {
            if there.listens(port, false)? {
                return Ok(());
            }
        }
        Err(at("remote", format!("the server on port {port} does not end there")))
    }
}

/// An end outside of VMs as the server.
struct OutsideServer<'a> {
    at: EndAgent<'a>,
    port: u16,
    stop: &'a Stop,
}

impl OutsideServer<'_> {
    /// Runs a client while that end serves. The server is a job of its own, which ends when it is stopped.
    fn serving(
        &self,
        server: &Job,
        client: impl FnOnce() -> Result<JobAnswer, Error>,
    ) -> Result<JobOutcome, Error> {
        if server.server.is_empty() {
            return outcome(client()?);
        }
        let job = Job { server: Vec::new(), client: server.server.clone(), ..server.clone() };
        let (over, request) = (Stop::default(), JobRequest::Do(job));
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| self.at.ask_until(&request, &over));
            let until = Instant::now() + Duration::from_millis(server.limit_ms);
            loop {
                match self.at.is_served(self.port) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => {
                        request_stop(&over);
                        return Err(error);
                    }
                }
                if serving.is_finished() || self.stop.is_requested() || Instant::now() > until {
                    request_stop(&over);
                    let ended = serving.join().map_err(|_| strange(AGENT))?;
                    return Ok(refused(ended.and_then(outcome)));
                }
                std::thread::sleep(LOOK);
            }
            let done = client();
            let early = serving.is_finished();
            request_stop(&over);
            let ended = serving.join().map_err(|_| strange(AGENT))?;
            let mut done = outcome(done?)?;
            if early && done.problem.is_empty() {
                done.problem = refused(ended.and_then(outcome)).problem;
            }
            self.at.until_free(self.port)?;
            Ok(done)
        })
    }
}

fn request_stop(stop: &Stop) {
    stop.flag().store(true, Ordering::Relaxed);
}

/// The outcome of a cell whose server ended by itself.
fn refused(ended: Result<JobOutcome, Error>) -> JobOutcome {
    let (problem, said) = match ended {
        Ok(outcome) => (outcome.problem, [outcome.stdout, outcome.stderr].concat()),
        Err(error) => (error.to_string(), Vec::new()),
    };
    let problem = format!("the server ended before it served: {problem}");
    JobOutcome { problem, server: said, ..JobOutcome::default() }
}

fn outcome(answer: JobAnswer) -> Result<JobOutcome, Error> {
    answer.outcome().ok_or_else(|| strange(AGENT))
}
