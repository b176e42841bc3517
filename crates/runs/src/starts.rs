//! How long VMs took to start, by a recording that has the kernel's tracepoints of system calls.

use vmtax_analyse::starts::Requests;
use vmtax_cli::exit::{Code, fail};
use vmtax_events::{Event, RowSink};
use vmtax_report::starts::Recorded;

use crate::input::Input;
use crate::record::{distinct, lost_calls};
use crate::{ReadOptions, convert};

/// What is to be recorded.
const RECORD: &str =
    "perf record -a -e syscalls:sys_enter_ioctl -e syscalls:sys_exit_ioctl -e sched:sched_switch";
const SAME: &str = "slots that are deleted, and ioeventfds and irqfds that are deassigned, are counted with those that are made";
const UNKNOWN: &str =
    "sched_switch was not recorded, so times off the CPU are not known: they are left out";

/// The VMs that were created while the input was recorded.
///
/// # Errors
/// When it cannot be read, or has no requests.
pub fn of_input(input: Input, reading: &ReadOptions) -> anyhow::Result<Recorded> {
    let (name, converted) = match input {
        Input::Recording(recording) => {
            (recording.name.clone(), convert::run(recording, reading, ToRequests::default())?)
        }
        Input::Run(run) => {
            let name = run.folder().display().to_string();
            (name, convert::of_events(&run, reading, ToRequests::default())?)
        }
    };
    let ((vms, dropped, of_others), (begun, returned)) = converted.rows.0.finish();
    let missing = match (begun, returned) {
        (0, _) => Some("has no requests of KVM"),
        (_, 0) => Some("has requests of KVM and none of their returns"),
        _ => None,
    };
    if let Some(missing) = missing {
        let name = vmtax_events::printable(&name);
        return fail(Code::Data, format!("{name}: {missing}; record them: {RECORD}"));
    }
    let mut losses = lost_calls([(dropped, "further VMs are not shown"), (of_others, OTHERS)]);
    let open = begun - returned;
    losses.extend(lost_calls([(open, "calls did not return while it was recorded, or were lost")]));
    losses.push(SAME.to_owned());
    let has_off_cpu = converted.facts.coverage.sched;
    if !has_off_cpu {
        losses.push(UNKNOWN.to_owned());
    }
    let name_of = |vm: &vmtax_analyse::starts::StartedVm| match vm.thread.as_str() {
        "" => format!("process {}", vm.pid),
        name => name.to_owned(),
    };
    let (from, to) = converted.span.unwrap_or_default();
    Ok(Recorded {
        names: distinct(vms.iter().map(name_of).collect()),
        cgroups: vec![String::new(); vms.len()],
        vms,
        ns: to.saturating_sub(from),
        kernel: converted.facts.kernel.clone(),
        emulated: converted.facts.emulated.clone(),
        has_off_cpu,
        losses,
    })
}

/// Of the live recorder too.
pub(crate) const OTHERS: &str = "calls of VMs that were there before are not shown";

#[derive(Debug, Default)]
struct ToRequests(Requests);

impl RowSink for ToRequests {
    fn events(&mut self, events: &[Event]) {
        events.iter().for_each(|event| self.0.event(event));
    }

    fn thread_name(&mut self, tid: u32, name: &str) {
        self.0.name(tid, name);
    }
}
