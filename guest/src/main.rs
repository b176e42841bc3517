//! `vmtax-guest`: the first process of an emulated host and of the Linux guest in it.
//!
//! It mounts, loads modules, waits for an order ([`vmtax_guest::mailbox`], or a port when it runs as L1), runs it with a
//! small VMM on `/dev/kvm`, sends the report, prints a verdict on the console and powers off.
//!
//! On the kernel command line, for Linux to ignore:
//!
//! | word | meaning |
//! |---|---|
//! | `vmtax.role=host` or `guest` | orders come through the mailbox, or through the port of a VMM like this |
//! | `vmtax.role=agent` | no KVM: a VM of a benchmark, whose jobs come through the mailbox |
//! | `vmtax.role=process` | a Linux guest that runs a program whose accesses are recorded: orders come through the port |
//! | `vmtax.role=relay` | boot `/l1/vmlinux` (an agent or another relay) and forward jobs to it |
//! | `vmtax.role=network` | an emulated host that starts QEMU |
//! | `vmtax.role=server` | a VM of that QEMU: no orders, it serves traffic |
//! | `vmtax.role=driver` | a VM of that QEMU that its host commands: a peer, or an L1 with VMs of its own |
//! | `vmtax.address=IPV4` | the address of such a VM |
//! | `vmtax.port` | an agent or a relay: its jobs come through the port |
//! | `vmtax.mailbox=virtio` | the mailbox is on a virtio disk and not at IDE's ports: for guests whose programs cannot do port I/O |
//! | `vmtax.private` | an agent: KVM cannot access its memory, so the port is accessed through registers |
//! | `vmtax.memory=MIB` | a relay: memory of its guest |
//! | `vmtax.backing=thp`, `guest-memfd` or `private` | a relay: what its guest's memory is |
//! | `vmtax.pmu=amd` or `intel`, `-legacy` | a relay: its guest has a virtual PMU |
//! | `vmtax.settled` | load each module when the one before has freed what it needed for its start |
//! | `vmtax.online` | start the processors that `maxcpus=1` left off |
//! | `vmtax.later=US` | wait before anything starts, without sleeping |
//! | `vmtax.nested` | boot `/l1/vmlinux` with `/l1/initramfs` before reporting ready |
//! | `vmtax.buffer=KIB` | size of the trace buffer |
//! | `kvm*.NAME=VALUE` | parameters of the module, as modprobe would give them |
//!
//! As a program among others it is the agent of benchmarks: `vmtax-guest job PARENT` reads one job from its standard input, `vmtax-guest operations` an
//! order whose payloads it runs on the computer's own `/dev/kvm`, and
//! `vmtax-guest builtin NAME SECONDS` is a workload; `vmtax-guest serve ADDRESS PORT` and `vmtax-guest client NAME ADDRESS PORT SECONDS SIZE` are
//! the two ends of one.
//!
//! Left out on purpose: a shell, and other programs (vmtax copies those that a job needs).
#![expect(
    unsafe_code,
    reason = "this program is the machine's lowest layer: system calls, ports, guest memory"
)]
#![expect(clippy::print_stdout, reason = "standard output is the console, until it is closed")]

mod agent;
mod ata;
mod builtin;
mod channel;
mod computing;
mod counters;
mod devices;
mod disk;
mod driver;
mod execute;
mod hpet;
mod init;
mod kallsyms;
mod l1;
mod latency;
mod life;
mod marks;
mod network;
mod observer;
mod options;
mod ports;
mod pressure;
mod process;
mod relay;
mod serve;
mod server;
mod site;
mod system;
mod tap;
mod trace;
mod traffic_client;
mod traffic_host;
mod vmm;

/// An error is a sentence, printed in the verdict.
pub(crate) type Result<T> = std::result::Result<T, String>;

fn main() {
    if std::process::id() != 1 {
        std::process::exit(agent::program());
    }
    let verdict = match init::start().and_then(|start| match start {
        init::InitRole::Host(start) => serve::run(start),
        init::InitRole::Agent(channel) => agent::serve(&channel),
        init::InitRole::Process(channel) => process::serve(&channel),
        init::InitRole::Relay(relay) => relay.run(),
        init::InitRole::Network { channel, buffer_kib } => {
            traffic_host::serve(&channel, buffer_kib)
        }
        init::InitRole::Server(address) => server::serve(address),
        init::InitRole::Driver(address) => driver::serve(address),
    }) {
        Ok(()) => "done".to_owned(),
        Err(problem) => format!("failed: {problem}"),
    };
    system::say(&format!("vmtax-guest: {verdict}"));
    system::power_off();
}
