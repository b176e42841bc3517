//! The agent of benchmarks runs jobs: in a VM as its first process, elsewhere as a program.

use std::path::Path;
use std::time::{Duration, Instant};

use vmtax_guest::functions::HostKernels;
use vmtax_guest::job::{JobAnswer, JobOutcome, JobRequest};
use vmtax_guest::order::{decode, encode};

use crate::channel::Channel;
use crate::execute::Served;
use crate::trace::Tracer;
use crate::{Result, builtin, execute, kallsyms, network, serve, system};

/// Facts, each with its file.
const FILES: [(&str, &str); 9] = [
    ("kernel", "/proc/sys/kernel/osrelease"),
    ("command line", "/proc/cmdline"),
    ("clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("huge pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("idle driver", "/sys/devices/system/cpu/cpuidle/current_driver"),
    ("idle governor", "/sys/devices/system/cpu/cpuidle/current_governor"),
    ("hypervisor", "/sys/hypervisor/type"),
    ("bounce buffer slots", "/sys/kernel/debug/swiotlb/io_tlb_nslabs"),
    ("bounce buffer used at most", "/sys/kernel/debug/swiotlb/io_tlb_used_hiwater"),
];

/// In a VM: runs jobs until the machine ends.
pub(crate) fn serve(channel: &Channel) -> Result<()> {
    // A failure shows later, as a missing feature.
    let _ = system::mount("debugfs", "/sys/kernel/debug");
    let _ = system::mount("tmpfs", "/dev/shm");
    system::loopback_up()?;
    // The VMM behind the port records this VM's exits.
    let tracer = match channel {
        Channel::Port(_) => Tracer::Outside,
        Channel::Mailbox(_) => Tracer::Off,
    };
    let mut agent = Agent { tracer, served: None };
    let mut last = 0;
    loop {
        let (number, bytes) = channel.hear(last)?;
        last = number;
        let request = decode(&bytes).ok_or("the request cannot be read")?;
        channel.say(number, &encode(&agent.carry_out(request)), &[])?;
    }
}

/// What an agent keeps between requests.
struct Agent {
    tracer: Tracer,
    served: Option<Served>,
}

impl Agent {
    fn carry_out(&mut self, request: JobRequest) -> JobAnswer {
        let done = |result: Result<()>| {
            let problem = result.err().unwrap_or_default();
            JobAnswer::Done(JobOutcome { problem, ..JobOutcome::default() })
        };
        match request {
            JobRequest::Facts => JobAnswer::Facts(facts()),
            JobRequest::Kernels => match kallsyms::loaded_functions() {
                Ok(host) => JobAnswer::Kernels(HostKernels { host, ..HostKernels::default() }),
                Err(problem) => done(Err(problem)),
            },
            JobRequest::Do(job) => JobAnswer::Done(execute::run(&job, &self.tracer)),
            JobRequest::Network(address) => done(network::configure(address)),
            JobRequest::Serve(job) => {
                // A request that was not answered may have left one.
                self.served.take().map(Served::end);
                done(Served::start(&job).map(|served| self.served = Some(served)))
            }
            JobRequest::End => match self.served.take() {
                Some(served) => JobAnswer::Done(served.end()),
                None => done(Err("no server runs".to_owned())),
            },
        }
    }
}

/// As a program: `job PARENT`, `operations`, `builtin NAME SECONDS`, or a server or client of [`network`]. Returns the exit code.
pub(crate) fn program() -> i32 {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["job", parent] => from_input(parent),
        ["operations"] => system::end_with_parent(|| {}).and_then(|()| serve::from_input()),
        ["builtin", name, seconds] => builtin::run(name, seconds),
        ["serve", address, port] => network::serve(address, port),
        ["client", name, address, port, seconds, size] => {
            network::client(name, (address, port), seconds, size)
        }
        _ => Err("vmtax-guest is started by vmtax: as the first process of a VM, or with a job"
            .to_owned()),
    };
    match done {
        Ok(()) => 0,
        Err(problem) => {
            system::complain(&format!("vmtax-guest: {problem}"));
            2
        }
    }
}

/// A job from standard input. `parent` is the process that sent it, or 0 if that is on another computer.
fn from_input(parent: &str) -> Result<()> {
    // If the parent is killed, nothing of the job may be left.
    system::end_with_parent(execute::clean_up)?;
    if parent != "0" && parent != std::os::unix::process::parent_id().to_string() {
        return Err("the process that sent the job has ended".to_owned());
    }
    let request = system::from_input()?;
    system::to_output(&Agent { tracer: Tracer::Off, served: None }.carry_out(request))
}

/// The clock source of a kernel that still calibrates the TSC: it is `tsc` a second later (Linux arch/x86/kernel/tsc.c).
const EARLY: &str = "tsc-early";
/// How long to wait for that.
const CALIBRATION: Duration = Duration::from_secs(10);

/// The clock source stays what it is from here on.
fn wait_for_clocksource() {
    let end = Instant::now() + CALIBRATION;
    let is_early = || {
        let file = FILES.iter().find(|(name, _)| *name == "clocksource").map(|(_, file)| file);
        let text = file.and_then(|file| std::fs::read_to_string(file).ok());
        text.is_some_and(|text| text.trim() == EARLY)
    };
    while is_early() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The facts of this system: name and value.
pub(crate) fn facts() -> Vec<(String, String)> {
    wait_for_clocksource();
    let mut facts = Vec::new();
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    for (name, file) in FILES {
        if let Ok(text) = std::fs::read_to_string(file) {
            add(name, text.trim().to_owned());
        }
    }
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // arm64 calls them features.
    let flags = ["flags", "Features"].iter().find_map(|name| system::cpuinfo_field(&info, name));
    add("processor", serve::processor());
    add("processor flags", flags.unwrap_or_default().to_owned());
    add(
        "processors",
        info.lines().filter(|line| line.starts_with("processor")).count().to_string(),
    );
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    add(
        "memory",
        memory.lines().next().unwrap_or_default().replace("MemTotal:", "").trim().to_owned(),
    );
    add("devices", devices().join(" "));
    facts
}

/// Vendor and device of each PCI device, in order.
fn devices() -> Vec<String> {
    let Ok(folder) = std::fs::read_dir("/sys/bus/pci/devices") else { return Vec::new() };
    let word = |path: &Path, file: &str| {
        let text = std::fs::read_to_string(path.join(file)).unwrap_or_default();
        text.trim().trim_start_matches("0x").to_owned()
    };
    let mut devices: Vec<String> = folder
        .flatten()
        .map(|entry| {
            let (path, name) = (entry.path(), entry.file_name());
            let (vendor, device) = (word(&path, "vendor"), word(&path, "device"));
            format!("{}={vendor}:{device}", name.to_string_lossy())
        })
        .collect();
    devices.sort();
    devices
}
