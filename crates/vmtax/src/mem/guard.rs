//! `vmtax mem guard-pause`: the process that resumes a VM if `vmtax mem save` is killed.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use vmtax_checkpoint::vm_fault;
use vmtax_cli::exit::{Code, fail, say};
use vmtax_machine::vm::{Guarded, STOPPED, guard};

use super::flags::GuardArgs;

/// This program as the guard of a pause of the VM with this monitor.
pub(super) fn command(socket: &Path) -> Command {
    // A link that the kernel follows also after an update has replaced the file.
    let mut command = Command::new("/proc/self/exe");
    command.args(["mem", "guard-pause"]).arg(socket);
    command
}

pub(super) fn run(args: &GuardArgs) -> anyhow::Result<()> {
    let (orders, monitor) = (io::stdin(), io::stdout());
    if rustix::net::sockopt::socket_type(monitor.as_fd()).is_err() {
        return fail(Code::Usage, "mem guard-pause: is started by `vmtax mem save`");
    }
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let (orders, monitor) = (own(orders.as_fd())?, own(monitor.as_fd())?);
    guard(orders, monitor, &args.monitor, &mut |what| {
        say(&match what {
            Guarded::Continued => format!(
                "{}: the save was stopped for {STOPPED:?} while the VM stood still; continued, so that the VM goes on",
                args.monitor
            ),
            Guarded::Resumed => {
                format!("{}: the save ended while the VM stood still; the VM goes on", args.monitor)
            }
        });
    })
    .map_err(vm_fault)
}
