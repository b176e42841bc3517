//! VMs of QEMU on this host, an emulated one or L1 in it, and the client of their traffic.
//!
//! Left out on purpose: the meaning of QEMU's arguments, which vmtax chooses, and recording ([`crate::traffic_host`]).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command as Program, Stdio};
use std::time::{Duration, Instant};

use vmtax_guest::functions::LoadedAddresses;
use vmtax_guest::traffic::{
    Client, DISK, HostThread, PORT, PeerCommand, Role, SeenVm, Site, SiteAddress, TAP, TAPS,
    Traffic,
};

use crate::pressure::Under;
use crate::traffic_client::{ask, broken};
use crate::{Result, pressure, system, tap, traffic_client};

/// Console of QEMU and of its VM.
const CONSOLE: &str = "/tmp/qemu.txt";
const PEER_CONSOLE: &str = "/tmp/peer.txt";
/// Most bytes of it that are sent.
const CONSOLE_MOST: usize = 4 << 10;
/// The bridge of a VM and its peer.
const BRIDGE: &str = "br0";
/// Timeout of one attempt to connect.
const ATTEMPT: Duration = Duration::from_millis(500);
/// Time between attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// QEMU, which ends with this value.
struct SiteQemu(Child);

impl Drop for SiteQemu {
    fn drop(&mut self) {
        system::kill_group(self.0.id());
        let _ = self.0.wait();
    }
}

impl SiteQemu {
    fn start(words: &[String], console: &str) -> Result<SiteQemu> {
        let (program, rest) = words.split_first().ok_or("a cell without a VMM was ordered")?;
        let out = File::create(console).map_err(|e| format!("{console}: {e}"))?;
        let errors = out.try_clone().map_err(|e| format!("{console}: {e}"))?;
        let mut command = Program::new(program);
        command.args(rest).env_clear().env("LC_ALL", "C").current_dir("/tmp");
        command.stdin(Stdio::null()).stdout(out).stderr(errors);
        system::bind_to_parent(&mut command);
        command.spawn().map(SiteQemu).map_err(|e| format!("{program} does not start: {e}"))
    }

    /// Fails if it has ended.
    fn check(&mut self) -> Result<()> {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("QEMU ended ({status})")),
            Err(e) => Err(format!("waiting for QEMU: {e}")),
        }
    }

    /// Waits until its VM, which has this address, accepts a connection.
    fn connect(&mut self, address: [u8; 4], limit: Duration) -> Result<TcpStream> {
        connect(address, limit, || self.check())
    }

    /// Its threads, and those that the kernel has for it.
    fn threads(&self, of_peer: bool) -> Vec<HostThread> {
        let pid = self.0.id();
        let worker = format!("vhost-{pid}");
        let mut threads = Vec::new();
        for folder in [format!("/proc/{pid}/task"), "/proc".to_owned()] {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let tid = entry.file_name().to_str().and_then(|name| name.parse().ok());
                let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                let role = match name.trim() {
                    name if name == worker => Role::Vhost,
                    // QEMU names them so with debug-threads=on.
                    name if name.starts_with("CPU ") => Role::Vcpu,
                    name if name.starts_with("IO ") => Role::Io,
                    _ if tid == Some(pid) => Role::Vmm,
                    _ => continue,
                };
                threads.extend(tid.map(|tid| HostThread { tid, role, of_peer }));
            }
        }
        threads.sort_unstable_by_key(|thread| thread.tid);
        threads.dedup();
        threads
    }
}

/// Waits until the VM at this address accepts a connection, or until `check` fails.
pub(crate) fn connect(
    address: [u8; 4],
    limit: Duration,
    mut check: impl FnMut() -> Result<()>,
) -> Result<TcpStream> {
    let (to, deadline) = (SocketAddr::from((address, PORT)), Instant::now() + limit);
    let stream = loop {
        check()?;
        match TcpStream::connect_timeout(&to, ATTEMPT) {
            Ok(stream) => break stream,
            Err(e) if Instant::now() > deadline => {
                return Err(format!("the VM does not answer within the limit: {e}"));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    };
    let ready = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(limit)))
        .and_then(|()| stream.set_write_timeout(Some(limit)));
    ready.map_err(broken)?;
    Ok(stream)
}

enum TrafficSender {
    /// This program, over its connection to the server.
    Here(TcpStream),
    /// The VM that is commanded through this connection.
    There(TcpStream),
}

pub(crate) struct RunningVms {
    vm: SiteQemu,
    peer: Option<SiteQemu>,
    sender: TrafficSender,
    /// The VM, and if that is an L1, the VM in it.
    pub(crate) seen: Vec<SeenVm>,
    swaps: bool,
    in_xen: bool,
    _under: Under,
    _settings: SiteSettings,
}

/// Settings of the host that a site changed; their former values come back with the end of this value.
struct SiteSettings(Vec<(String, String)>);

impl SiteSettings {
    fn change(wanted: &[(String, String)]) -> Result<SiteSettings> {
        let mut former = SiteSettings(Vec::new());
        for (path, content) in wanted {
            let before = fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
            // A choice among words: `always [madvise] never`.
            let chosen = before.split(['[', ']']).nth(1).unwrap_or(before.trim());
            former.0.push((path.clone(), chosen.to_owned()));
            fs::write(path, content).map_err(|e| format!("{path}: writing {content:?}: {e}"))?;
        }
        Ok(former)
    }
}

impl Drop for SiteSettings {
    fn drop(&mut self) {
        for (path, content) in self.0.iter().rev() {
            // If this fails, the next site writes its own.
            let _ = fs::write(path, content);
        }
    }
}

impl RunningVms {
    /// Starts them, and waits until the client has its connection to the server. `begin` is called just before the VM under test starts: where that is a guest's
    /// guest, L1 runs by then.
    pub(crate) fn start(site: &Site, begin: &mut dyn FnMut()) -> Result<RunningVms> {
        network(site)?;
        let settings = SiteSettings::change(&site.settings)?;
        // Anew for each VM: what the one before wrote is gone.
        let disk = File::create(DISK).and_then(|file| file.set_len(site.disk));
        disk.map_err(|e| format!("{DISK}: {e}"))?;
        let under = Under::begin(&site.pressure)?;
        let limit = Duration::from_millis(site.limit_ms);
        let address = SiteAddress::Vm.address(site.network);
        let is_inside = matches!(site.client, Client::Inside(_));
        if !is_inside {
            begin();
        }
        let mut vm = SiteQemu::start(&site.qemu, CONSOLE)?;
        pressure::limit(site.pressure.quota, vm.0.id())?;
        let mut peer = None;
        let (sender, mut seen) = match &site.client {
            Client::Host => {
                let mut stream = vm.connect(address, limit)?;
                let facts = traffic_client::facts(&mut stream).map_err(broken)?;
                (TrafficSender::Here(stream), vec![SeenVm { facts, ..SeenVm::default() }])
            }
            Client::Inside(inner) => {
                let mut stream = vm.connect(address, limit)?;
                begin();
                let seen = ask(&mut stream, &PeerCommand::Start(inner.clone()))?;
                (TrafficSender::There(stream), seen)
            }
            Client::Peer(words) => {
                let peer = peer.insert(SiteQemu::start(words, PEER_CONSOLE)?);
                let mut stream = peer.connect(SiteAddress::Peer.address(site.network), limit)?;
                let seen = ask(&mut stream, &PeerCommand::Connect(address, site.limit_ms))?;
                (TrafficSender::There(stream), seen)
            }
        };
        if let Some(outermost) = seen.first_mut() {
            outermost.threads = vm.threads(false);
            outermost.threads.extend(peer.iter().flat_map(|peer| peer.threads(true)));
        }
        pressure::pin(&site.pressure.pins, vm.0.id())?;
        let (swaps, in_xen) = (site.pressure.swaps, site.in_xen);
        Ok(RunningVms { vm, peer, sender, seen, swaps, in_xen, _under: under, _settings: settings })
    }

    /// What the host does between warm-up and recording.
    pub(crate) fn before_recording(&self) -> Result<()> {
        if self.swaps { pressure::swap_out(self.vm.0.id()) } else { Ok(()) }
    }

    /// So many operations.
    pub(crate) fn send(&mut self, traffic: Traffic, count: u32) -> Result<()> {
        match &mut self.sender {
            TrafficSender::Here(stream) => {
                traffic_client::send(stream, traffic, count).map_err(broken)
            }
            TrafficSender::There(stream) => {
                ask(stream, &PeerCommand::Send(traffic, count)).map(drop)
            }
        }
    }

    /// What the kernels of the VM and of that in it have loaded. Xen is no such kernel, and the VM that answers is in it. A VM and its peer are told apart by
    /// nothing in a record of what the machine executes, so they have to have loaded the same at the same addresses.
    pub(crate) fn loaded(&mut self) -> Result<[Option<LoadedAddresses>; 2]> {
        match &mut self.sender {
            TrafficSender::Here(stream) => {
                let loaded = Some(traffic_client::loaded(stream)?);
                Ok(if self.in_xen { [None, loaded] } else { [loaded, None] })
            }
            TrafficSender::There(stream) => {
                let vms = ask(stream, &PeerCommand::Loaded)?;
                let mut loaded = vms.into_iter().map(|vm| vm.loaded);
                let [first, second] = [loaded.next(), loaded.next()];
                if self.peer.is_none() {
                    return Ok([first, second]);
                }
                match (&first, &second) {
                    (Some(peer), Some(vm)) => same_places(peer, vm)?,
                    _ => return Err("the VM and its peer do not say what they have loaded".into()),
                }
                Ok([first, None])
            }
        }
    }

    /// Fails if a QEMU has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.vm.check()?;
        self.peer.as_mut().map_or(Ok(()), SiteQemu::check)
    }
}

/// Fails if the kernels of a VM and its peer have modules at other addresses.
fn same_places(peer: &LoadedAddresses, vm: &LoadedAddresses) -> Result<()> {
    if peer.notes != vm.notes {
        return Err("the VM and its peer have other kernels, so they have no call trees".into());
    }
    let [ours, theirs] = [vm, peer].map(|one| one.modules.iter().collect::<BTreeSet<_>>());
    match ours.symmetric_difference(&theirs).next() {
        None => Ok(()),
        Some((name, address)) => Err(format!(
            "the VM and its peer have no call trees in common: {name} is at {address:#x} in one of them alone"
        )),
    }
}

/// Makes the taps of the site, if they are not there from a VM before.
fn network(site: &Site) -> Result<()> {
    let own = match site.client {
        Client::Peer(_) if exists(BRIDGE) => return Ok(()),
        Client::Peer(_) => tap::bridge(BRIDGE, &TAPS)?,
        _ if exists(TAP) => return Ok(()),
        _ => tap::make(TAP)?,
    };
    own.address(SiteAddress::Host.address(site.network), 24)?;
    own.up()
}

fn exists(interface: &str) -> bool {
    Path::new("/sys/class/net").join(interface).exists()
}

/// The last of what QEMU and its VM printed.
pub(crate) fn console() -> String {
    let bytes = fs::read(CONSOLE).unwrap_or_default();
    let tail = bytes.get(bytes.len().saturating_sub(CONSOLE_MOST)..).unwrap_or_default();
    String::from_utf8_lossy(tail).into_owned()
}
