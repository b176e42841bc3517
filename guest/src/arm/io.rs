//! Disk and network of a Linux guest: what a program of the guest does with them, and the server on its host.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use vmtax_guest::layout;
use vmtax_guest::order::{LINUX, Operation};

use super::ports;
use super::vmm::ArmPlan;
use crate::life::machine::ticks;
use crate::system::Interface;
use crate::{Result, protected};

/// A device of the guest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceKind {
    pub(crate) is_card: bool,
    /// Its buffers are copied through memory of the guest that its host can access.
    pub(crate) bounced: bool,
}

impl DeviceKind {
    pub(crate) const ALL: [DeviceKind; 4] = [
        DeviceKind { is_card: false, bounced: false },
        DeviceKind { is_card: false, bounced: true },
        DeviceKind { is_card: true, bounced: false },
        DeviceKind { is_card: true, bounced: true },
    ];

    /// Its place among all.
    pub(crate) fn number(self) -> u8 {
        2 * u8::from(self.is_card) + u8::from(self.bounced)
    }

    /// The disk's serial number.
    pub(crate) fn name(self) -> &'static str {
        if self.bounced { "vmtax-bounced" } else { "vmtax-direct" }
    }

    pub(crate) fn tap(self) -> &'static str {
        if self.bounced { "tap1" } else { "tap0" }
    }

    fn network(self) -> u8 {
        u8::from(self.bounced)
    }

    pub(crate) fn host_address(self) -> [u8; 4] {
        [10, 1, self.network(), 1]
    }

    fn guest_address(self) -> [u8; 4] {
        [10, 1, self.network(), 2]
    }

    /// A card's, locally administered.
    pub(crate) fn hardware_address(self) -> [u8; 6] {
        [0x02, 0, 0, 0, 0, self.network()]
    }
}

/// What is done with a device.
#[derive(Clone, Copy)]
enum DeviceUse {
    /// So many bytes, past the page cache.
    Read(usize),
    Write(usize),
    /// So many bytes over TCP to a server on the host, and so many back.
    Exchange(usize, usize),
}

/// What an operation does, by its name.
fn named(name: &str) -> Option<(DeviceUse, DeviceKind)> {
    let name = name.strip_prefix(LINUX)?;
    let (what, bounced) = match name.strip_suffix("-bounced") {
        Some(what) => (what, true),
        None => (name, false),
    };
    let what = match what {
        "read-4k" => DeviceUse::Read(4 << 10),
        "read-64k" => DeviceUse::Read(64 << 10),
        "write-4k" => DeviceUse::Write(4 << 10),
        "request" => DeviceUse::Exchange(REQUEST, REQUEST),
        "send-64k" => DeviceUse::Exchange(SENT, ACKNOWLEDGED),
        _ => return None,
    };
    let is_card = matches!(what, DeviceUse::Exchange(..));
    Some((what, DeviceKind { is_card, bounced }))
}

/// Where a disk has 64 KiB that no operation uses.
const LAST: u64 = (8 << 20) - (64 << 10);
const REQUEST: usize = 64;
const SENT: usize = 64 << 10;
const ACKNOWLEDGED: usize = 1;
/// Ports of the servers of requests, and of what is sent.
const SERVERS: [(u16, usize, usize); 2] = [(7000, REQUEST, REQUEST), (7001, SENT, ACKNOWLEDGED)];

/// Starts the servers on the host.
pub(crate) fn serve() -> Result<()> {
    for (port, taken, given) in SERVERS {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            .map_err(|e| format!("the server of port {port}: {e}"))?;
        let body = move || {
            for stream in listener.incoming().flatten() {
                // It ends when its client does.
                std::thread::spawn(move || answer(stream, taken, given));
            }
        };
        std::thread::Builder::new().spawn(body).map_err(|e| format!("thread: {e}"))?;
    }
    Ok(())
}

fn answer(mut stream: TcpStream, taken: usize, given: usize) -> std::io::Result<()> {
    let mut bytes = vec![0; taken.max(given)];
    stream.set_nodelay(true)?;
    loop {
        stream.read_exact(&mut bytes[..taken])?;
        stream.write_all(&bytes[..given])?;
    }
}

/// Why the guest's kernel has not what a device needs, if it lacks it.
fn lacking(kind: DeviceKind, is_protected: bool) -> Result<Option<&'static str>> {
    if is_protected && !kind.bounced {
        return Ok(Some(
            "a protected VM has no device without a bounce buffer: its host cannot access its memory",
        ));
    }
    if !kind.bounced {
        return Ok(None);
    }
    let [pool, shares] = kernel_has()?;
    if !pool {
        return Ok(Some(
            "the guest's kernel has no bounce buffer of a device's own (CONFIG_DMA_RESTRICTED_POOL); crates/lab/guest-kernel.sh makes one that has, for --guest-kernel",
        ));
    }
    if is_protected && !shares {
        return Ok(Some(
            "the guest's kernel does not share memory with the host of a protected VM (CONFIG_ARM_PKVM_GUEST); crates/lab/guest-kernel.sh makes one that does, for --guest-kernel",
        ));
    }
    Ok(None)
}

/// Whether the kernel has bounce buffers of a device's own, and shares memory with the host of a protected VM: by its functions.
fn kernel_has() -> Result<[bool; 2]> {
    static HAS: OnceLock<[bool; 2]> = OnceLock::new();
    if let Some(has) = HAS.get() {
        return Ok(*has);
    }
    let path = "/proc/kallsyms";
    let names = fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let has = ["rmem_swiotlb_device_init", "pkvm_init_hyp_services"]
        .map(|name| names.lines().any(|line| line.split_whitespace().nth(2) == Some(name)));
    Ok(*HAS.get_or_init(|| has))
}

/// Whether drivers of devices may be loaded: in a protected guest only by a kernel that shares what they use.
pub(crate) fn may_probe(words: &[&str]) -> Result<bool> {
    let is_protected = words.contains(&protected::WORD);
    let bounced = DeviceKind { is_card: false, bounced: true };
    Ok(!is_protected || lacking(bounced, is_protected)?.is_none())
}

/// What an operation runs on.
enum OpenDevice {
    Disk(File),
    Card(TcpStream),
}

/// Memory that a device can read and write directly.
#[repr(align(4096))]
struct AlignedBlocks([u8; 64 << 10]);

/// What came of an operation: the cycles of each batch, or why its guest cannot do it.
pub(crate) type Done = std::result::Result<Vec<u64>, &'static str>;

/// Runs all batches of an operation.
pub(crate) fn execute(operation: &Operation, rounds: u32, plan: &ArmPlan<'_>) -> Result<Done> {
    let (what, kind) = named(&operation.name)
        .ok_or_else(|| format!("there is no operation of a device {:?}", operation.name))?;
    if let Some(lacking) = lacking(kind, operation.protected)? {
        return Ok(Err(lacking));
    }
    let mut device = open(what, kind)?;
    let mut memory = Box::new(AlignedBlocks([0; 64 << 10]));
    let mut batch_of =
        || (0..rounds).try_for_each(|round| once(what, (&mut device, &mut memory), round));
    // The first one finds nothing in place.
    batch_of().map_err(failed)?;
    let mut cycles = Vec::new();
    for batch in 0..plan.batches {
        let is_traced = plan.traced == Some(batch);
        if is_traced {
            plan.tracer.record(true);
        }
        ports::out32(layout::begin(operation.number), batch);
        let start = ticks();
        let done = batch_of();
        cycles.push(ticks() - start);
        ports::out32(layout::end(operation.number), batch);
        if is_traced {
            plan.tracer.record(false);
        }
        done.map_err(failed)?;
    }
    Ok(Ok(cycles))
}

fn failed(error: std::io::Error) -> String {
    format!("the device: {error}")
}

/// One operation.
fn once(
    what: DeviceUse,
    (device, memory): (&mut OpenDevice, &mut AlignedBlocks),
    round: u32,
) -> std::io::Result<()> {
    let place = |bytes: usize| u64::from(round % 64) * bytes as u64;
    match (what, device) {
        (DeviceUse::Read(bytes), OpenDevice::Disk(disk)) => {
            disk.read_exact_at(&mut memory.0[..bytes], place(bytes))
        }
        (DeviceUse::Write(bytes), OpenDevice::Disk(disk)) => {
            disk.write_all_at(&memory.0[..bytes], place(bytes))
        }
        (DeviceUse::Exchange(sent, got), OpenDevice::Card(stream)) => {
            let mark = round as u8;
            memory.0[0] = mark;
            stream.write_all(&memory.0[..sent])?;
            stream.read_exact(&mut memory.0[..got])?;
            // Its first byte comes back.
            if memory.0[0] == mark { Ok(()) } else { Err(std::io::Error::other("another answer")) }
        }
        _ => Ok(()),
    }
}

fn open(what: DeviceUse, kind: DeviceKind) -> Result<OpenDevice> {
    let DeviceUse::Exchange(sent, _) = what else {
        let path = format!("/dev/{}", found(|| disk(kind.name()))?);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
        let file = file.map_err(|e| format!("{path}: {e}"))?;
        keeps(&file).map_err(failed)?;
        return Ok(OpenDevice::Disk(file));
    };
    let card = Interface::new(&found(|| card(kind.hardware_address()))?)?;
    card.address(kind.guest_address(), 24)?;
    card.up()?;
    let port = SERVERS.iter().find(|(_, taken, _)| *taken == sent).map_or(0, |server| server.0);
    let address = (Ipv4Addr::from(kind.host_address()), port);
    let stream = TcpStream::connect(address).map_err(|e| format!("the server: {e}"))?;
    stream.set_nodelay(true).map_err(|e| format!("the server: {e}"))?;
    Ok(OpenDevice::Card(stream))
}

/// Fails if a disk does not give back what was written to it.
fn keeps(disk: &File) -> std::io::Result<()> {
    let mut written = Box::new(AlignedBlocks([0; 64 << 10]));
    written.0.iter_mut().zip((0u8..251).cycle()).for_each(|(to, from)| *to = from);
    let mut read = Box::new(AlignedBlocks([0; 64 << 10]));
    disk.write_all_at(&written.0, LAST)?;
    disk.read_exact_at(&mut read.0, LAST)?;
    if read.0 != written.0 {
        return Err(std::io::Error::other("the disk gives back other data than was written to it"));
    }
    Ok(())
}

/// How long the kernel may take to find a device.
const PROBE: Duration = Duration::from_secs(30);

/// The name of a device, when the kernel has found it.
fn found(look: impl Fn() -> Option<String>) -> Result<String> {
    let end = Instant::now() + PROBE;
    loop {
        if let Some(name) = look() {
            return Ok(name);
        }
        if Instant::now() >= end {
            return Err("the guest's kernel does not find its device".to_owned());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn disk(serial: &str) -> Option<String> {
    named_device("/sys/block", "serial", serial)
}

fn card(address: [u8; 6]) -> Option<String> {
    let text: Vec<String> = address.iter().map(|byte| format!("{byte:02x}")).collect();
    named_device("/sys/class/net", "address", &text.join(":"))
}

/// The device of a class with this value of an attribute.
fn named_device(class: &str, attribute: &str, value: &str) -> Option<String> {
    fs::read_dir(class).ok()?.flatten().find_map(|device| {
        let read = fs::read_to_string(device.path().join(attribute)).ok()?;
        (read.trim() == value).then(|| device.file_name().to_string_lossy().into_owned())
    })
}
