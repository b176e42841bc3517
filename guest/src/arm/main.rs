//! `vmtax-guest-arm`: as `vmtax-guest`, for emulated hosts of arm64.
//!
//! It is smaller: it carries out operations, as the host or as the program of L1, and jobs of benchmarks, as the agent in a VM of the host that hands
//! them on. Its words on the kernel's command line are a subset of that program's, and it has that program's modules for jobs, the mailbox,
//! modules and options of the kernel, and tracing.
#![expect(
    unsafe_code,
    reason = "this program is the machine's lowest layer: system calls, guest memory"
)]
#![allow(dead_code, reason = "modules are shared with vmtax-guest, which uses all of them")]

#[path = "../agent.rs"]
mod agent;
mod ata;
mod awake;
mod boot;
#[path = "../builtin.rs"]
mod builtin;
#[path = "../channel.rs"]
mod channel;
mod counters;
mod device_tree;
#[path = "../disk.rs"]
mod disk;
#[path = "../execute.rs"]
mod execute;
mod io;
#[path = "../kallsyms.rs"]
mod kallsyms;
#[path = "../l1.rs"]
mod l1;
#[path = "../latency.rs"]
mod latency;
#[path = "../life.rs"]
mod life;
mod linux;
#[path = "../marks.rs"]
mod marks;
#[path = "../network.rs"]
mod network;
#[path = "../observer.rs"]
mod observer;
#[path = "../options.rs"]
mod options;
mod perf;
mod ports;
mod protected;
#[path = "../relay.rs"]
mod relay;
mod serve;
#[path = "../system.rs"]
mod system;
#[path = "../tap.rs"]
mod tap;
#[path = "../trace.rs"]
mod trace;
mod virtio;
mod vmm;
mod workload;

/// An error is a sentence, printed in the verdict.
pub(crate) type Result<T> = std::result::Result<T, String>;

fn main() {
    if std::process::id() != 1 {
        std::process::exit(agent::program());
    }
    let verdict = match serve::run() {
        Ok(()) => "done".to_owned(),
        Err(problem) => format!("failed: {problem}"),
    };
    system::say(&format!("vmtax-guest: {verdict}"));
    system::power_off();
}
