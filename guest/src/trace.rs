//! KVM's tracepoints in the kernel's own ring buffer, started and stopped around one batch.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use vmtax_guest::layout::{COUNT, SETTLE, TRACE};

use crate::channel::Attachment;
use crate::{Result, ports, system};

const ROOT: &str = "/sys/kernel/tracing";
/// Systems whose tracepoints are recorded, and single ones.
const EVENTS: [&str; 2] = ["kvm", "sched/sched_switch"];

/// KVM's page faults say here at which level they map. Recorded for operations about memory alone: it takes room and time.
const LEVELS: &str = "kvmmmu/kvm_mmu_spte_requested";

/// The tracepoint of exits.
const EXITS: &str = "events/kvm/kvm_exit";

/// The system of the probes that an order brings.
const PROBES: &str = "vmtax";

/// Starts and stops recording.
pub(crate) enum Tracer {
    /// In this kernel.
    Here(fs::File),
    /// In the kernel of the VMM outside.
    Outside,
    /// Nothing is recorded.
    Off,
}

/// Where the tracepoints are.
pub(crate) fn mount() -> Result<()> {
    system::mount("tracefs", ROOT)
}

fn set(file: &str, value: &str) -> Result<()> {
    fs::write(format!("{ROOT}/{file}"), value)
        .map_err(|e| format!("{ROOT}/{file}: writing {value:?}: {e}"))
}

/// Makes the buffer: before the machine's state is saved, for it takes long.
pub(crate) fn prepare(buffer_kib: u32) -> Result<()> {
    set("tracing_on", "0")?;
    set("trace_clock", "x86-tsc")?;
    // What is recorded first stays: a full buffer shows as lost events at the end.
    set("options/overwrite", "0")?;
    set("buffer_size_kb", &buffer_kib.to_string())
}

/// Makes these probes known to the kernel; those that it refused, with its answer.
pub(crate) fn define(probes: &[String]) -> Vec<String> {
    probes.iter().filter_map(|probe| add(probe).err()).collect()
}

/// Adds a probe to those that are there.
fn add(probe: &str) -> Result<()> {
    let path = format!("{ROOT}/kprobe_events");
    let written = fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(probe.as_bytes()));
    written.map_err(|e| format!("{path}: writing {probe:?}: {e}"))
}

impl Tracer {
    /// Switches the tracepoints on, and the probes if there are any; [`Tracer::record`] then starts and stops.
    pub(crate) fn arm(has_probes: bool, with_levels: bool) -> Result<Tracer> {
        for event in EVENTS {
            set(&format!("events/{event}/enable"), "1")?;
        }
        if with_levels {
            set(&format!("events/{LEVELS}/enable"), "1")?;
        }
        if has_probes {
            set(&format!("events/{PROBES}/enable"), "1")?;
        }
        let switch = fs::OpenOptions::new()
            .write(true)
            .open(format!("{ROOT}/tracing_on"))
            .map_err(|e| format!("{ROOT}/tracing_on: {e}"))?;
        Ok(Tracer::Here(switch))
    }

    /// Switches the tracepoints off again: KVM's path is as short as before.
    pub(crate) fn disarm(self) -> Result<()> {
        self.record(false);
        EVENTS.iter().try_for_each(|event| set(&format!("events/{event}/enable"), "0"))
    }

    /// Waits for so much time without clock ticks, in this kernel and in the one outside.
    pub(crate) fn settle(&self, need: Duration) {
        // First for the kernel outside, so that it knows its ticks: to find one anew takes as long as ours are apart.
        let outside = || {
            if let Tracer::Outside = self {
                ports::out32(SETTLE, u32::try_from(need.as_nanos()).unwrap_or(u32::MAX));
            }
        };
        outside();
        system::away_from_tick(need);
        outside();
    }

    /// Has the VMM outside start or stop counting page faults.
    pub(crate) fn count(&self, on: bool) {
        if let Tracer::Outside = self {
            ports::out8(COUNT, u8::from(on));
        }
    }

    /// Starts or stops recording.
    pub(crate) fn record(&self, on: bool) {
        match self {
            Tracer::Here(switch) => {
                // Cannot fail once it is open; a recording without events would be noticed.
                let _ = (&*switch).write_all(if on { b"1" } else { b"0" });
            }
            Tracer::Outside => ports::out8(TRACE, u8::from(on)),
            Tracer::Off => {}
        }
    }
}

/// Has the kernel count exits by their reason, those too for which the buffer has no room. Needs CONFIG_HIST_TRIGGERS.
pub(crate) fn count_exits() -> Result<()> {
    set(&format!("{EXITS}/trigger"), "hist:keys=exit_reason")
}

/// The counts since then: reason and number.
pub(crate) fn counted_exits() -> Result<Vec<(u32, u64)>> {
    let path = format!("{EXITS}/hist");
    let text = String::from_utf8_lossy(&read(&path)?).into_owned();
    // `{ exit_reason:        114 } hitcount:       1000`
    let count = |line: &str| {
        let (reason, hits) = line.strip_prefix("{ exit_reason:")?.split_once("} hitcount:")?;
        Some((reason.trim().parse().ok()?, hits.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(count).collect())
}

/// Forgets what was recorded, and how much was lost.
pub(crate) fn clear() -> Result<()> {
    set("trace", "")
}

/// All that a `trace.dat` is made of, as the kernel gives it.
pub(crate) fn collect() -> Result<Vec<Attachment>> {
    let mut files = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| {
        files.push(Attachment { name: format!("trace/{name}"), bytes })
    };
    add("header_page", read("events/header_page")?);
    add("header_event", read("events/header_event")?);
    add("saved_cmdlines", read("saved_cmdlines")?);
    let mut formats = Vec::new();
    for system in ["kvm", "kvmmmu", "sched", PROBES] {
        let folder = match fs::read_dir(format!("{ROOT}/events/{system}")) {
            Err(_) if system == PROBES || system == "kvmmmu" => continue,
            folder => folder.map_err(|e| format!("{ROOT}/events/{system}: {e}"))?,
        };
        let mut names: Vec<String> = folder
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| match system {
                "sched" => name == "sched_switch",
                "kvmmmu" => LEVELS.ends_with(name.as_str()),
                _ => true,
            })
            .collect();
        names.sort();
        for name in names {
            if let Ok(text) = read(&format!("events/{system}/{name}/format")) {
                formats.push((system.to_owned(), String::from_utf8_lossy(&text).into_owned()));
            }
        }
    }
    add("formats", vmtax_guest::order::encode(&formats));
    let mut stats = Vec::new();
    for cpu in 0..system::processors() {
        add(&format!("cpu{cpu}"), pages(cpu)?);
        stats.extend(read(&format!("per_cpu/cpu{cpu}/stats"))?);
    }
    add("trace_clock", read("trace_clock")?);
    add("stats", stats);
    Ok(files)
}

/// A whole file of tracefs. Some of them give everything to the first read and nothing to a second one.
fn read(file: &str) -> Result<Vec<u8>> {
    let path = format!("{ROOT}/{file}");
    let problem = |e| format!("{path}: {e}");
    let mut file = fs::File::open(&path).map_err(problem)?;
    let mut buffer = vec![0; 64 << 10];
    let mut bytes = Vec::new();
    loop {
        match file.read(&mut buffer).map_err(problem)? {
            0 => return Ok(bytes),
            length => bytes.extend_from_slice(&buffer[..length]),
        }
    }
}

/// The raw pages of a CPU's buffer.
fn pages(cpu: usize) -> Result<Vec<u8>> {
    let path = format!("{ROOT}/per_cpu/cpu{cpu}/trace_pipe_raw");
    let mut file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&path)
        .map_err(|e| format!("{path}: {e}"))?;
    let mut bytes = Vec::new();
    let mut page = [0; 4096];
    loop {
        match file.read(&mut page) {
            Ok(0) => return Ok(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(bytes),
            Err(error) => return Err(format!("{path}: {error}")),
            Ok(length) => {
                page[length..].fill(0);
                bytes.extend_from_slice(&page);
            }
        }
    }
}
