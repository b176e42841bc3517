//! The first process of a VM that its host commands: a peer, which is the client of another VM, or an L1, which starts VMs of its own and is
//! their client.

use std::net::TcpStream;
use std::time::Duration;

use vmtax_guest::job::Address;
use vmtax_guest::order::{decode, encode};
use vmtax_guest::traffic::{Command, Reply, Seen, Traffic};

use crate::site::{Vms, connect, console};
use crate::traffic_client::{broken, facts, message, say, send};
use crate::{Result, agent, network, traffic_client};

/// What this VM sends traffic to.
enum Target {
    Server(TcpStream),
    Inside(Box<Vms>),
}

/// Carries out the commands of one connection after the other until the machine ends.
pub(crate) fn serve(own: Address) -> Result<()> {
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

fn carry_out(command: &Command, target: &mut Option<Target>) -> Result<Vec<Seen>> {
    match command {
        Command::Connect(address, limit_ms) => {
            let limit = Duration::from_millis(*limit_ms);
            let mut stream = connect(*address, limit, || Ok(()))?;
            let facts = facts(&mut stream).map_err(broken)?;
            *target = Some(Target::Server(stream));
            Ok(vec![Seen { facts, threads: Vec::new() }])
        }
        Command::Start(site) => {
            let vms = Vms::start(site).map_err(inside)?;
            let own = Seen { facts: agent::facts(), threads: Vec::new() };
            let seen = std::iter::once(own).chain(vms.seen.iter().cloned()).collect();
            *target = Some(Target::Inside(Box::new(vms)));
            Ok(seen)
        }
        Command::Send(traffic, count) => {
            let target = target.as_mut().ok_or("this VM has no server to send to")?;
            target.send(*traffic, *count).map(|()| Vec::new())
        }
    }
}

impl Target {
    fn send(&mut self, traffic: Traffic, count: u32) -> Result<()> {
        match self {
            Target::Server(stream) => send(stream, traffic, count).map_err(broken),
            Target::Inside(vms) => {
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
