//! The first process of a VM that its host commands: a peer, which is the client of another VM, or an L1, which starts VMs of its own and is
//! their client.

use std::net::TcpStream;
use std::time::Duration;

use vmtax_guest::job::CardAddress;
use vmtax_guest::order::{decode, encode};
use vmtax_guest::traffic::{PeerCommand, Reply, SeenVm, Traffic};

use crate::site::{RunningVms, connect, console};
use crate::traffic_client::{broken, facts, loaded, message, say, send};
use crate::{Result, agent, kallsyms, network, traffic_client};

/// What this VM sends traffic to.
enum TrafficTarget {
    Server(TcpStream),
    Inside(Box<RunningVms>),
}

/// Carries out the commands of one connection after the other until the machine ends.
pub(crate) fn serve(own: CardAddress) -> Result<()> {
    network::configure(own)?;
    traffic_client::serve(|mut stream| {
        let mut target = None;
        while let Some(command) = message(&mut stream).ok().and_then(|bytes| decode(&bytes)) {
            let (vms, problem) = match carry_out(&command, &mut target) {
                Ok(vms) => (vms, String::new()),
                Err(problem) => (Vec::new(), problem),
            };
            say(&mut stream, &encode(&Reply { problem, vms }))?;
        }
        Ok(())
    })
}

fn carry_out(command: &PeerCommand, target: &mut Option<TrafficTarget>) -> Result<Vec<SeenVm>> {
    match command {
        PeerCommand::Connect(address, limit_ms) => {
            let limit = Duration::from_millis(*limit_ms);
            let mut stream = connect(*address, limit, || Ok(()))?;
            let facts = facts(&mut stream).map_err(broken)?;
            *target = Some(TrafficTarget::Server(stream));
            Ok(vec![SeenVm { facts, ..SeenVm::default() }])
        }
        PeerCommand::Start(site) => {
            let vms = RunningVms::start(site, &mut || ()).map_err(inside)?;
            let own = SeenVm { facts: agent::facts(), ..SeenVm::default() };
            let seen = std::iter::once(own).chain(vms.seen.iter().cloned()).collect();
            *target = Some(TrafficTarget::Inside(Box::new(vms)));
            Ok(seen)
        }
        PeerCommand::Send(traffic, count) => {
            let target = target.as_mut().ok_or("this VM has no server to send to")?;
            target.send(*traffic, *count).map(|()| Vec::new())
        }
        PeerCommand::Loaded => {
            let inside = match target {
                None => Vec::new(),
                Some(TrafficTarget::Server(stream)) => vec![loaded(stream)?],
                Some(TrafficTarget::Inside(vms)) => vms.loaded()?.into_iter().flatten().collect(),
            };
            let own = kallsyms::loaded_functions()?;
            let all = std::iter::once(own).chain(inside);
            Ok(all.map(|loaded| SeenVm { loaded, ..SeenVm::default() }).collect())
        }
    }
}

impl TrafficTarget {
    fn send(&mut self, traffic: Traffic, count: u32) -> Result<()> {
        match self {
            TrafficTarget::Server(stream) => send(stream, traffic, count).map_err(broken),
            TrafficTarget::Inside(vms) => {
                vms.send(traffic, count).and_then(|()| vms.check()).map_err(inside)
            }
        }
    }
}

/// A problem of L1's VM, with the last line of that VM's console.
fn inside(problem: String) -> String {
    match console().lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => format!("in L1: {problem}; the console of its VM ends: {line}"),
        None => format!("in L1: {problem}"),
    }
}
