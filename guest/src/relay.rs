//! A host that forwards jobs to an agent: its guest is the agent's VM, or another relay.
//!
//! ```text
//!   vmtax ──mailbox──> relay (L0) ──port──> agent (L1)
//!   vmtax ──mailbox──> relay (L0) ──port──> relay (L1) ──port──> agent (L2)
//! ```
//! The outermost relay records KVM's tracepoints if a job requests it, between two marks of the agent; or it has a recorder in the emulator record all that
//! the machine executes between them.
//!
//! Left out on purpose: the meaning of the jobs, and the guest, which differs between architectures.

use std::time::Duration;

use vmtax_guest::functions::HostKernels;
use vmtax_guest::job::{JobAnswer, JobRequest};
use vmtax_guest::order::{FollowingFile, KvmCounters, PmuCounting, decode, encode};

use crate::channel::{Attachment, Channel};
use crate::marks::WorkloadMarks;
use crate::trace::{self, Tracer};
use crate::{Result, kallsyms, ports};

/// Emulated time for an answer in addition to the job's own limit.
const GRACE: Duration = Duration::from_secs(60);

/// A guest with an agent or a relay.
pub(crate) trait JobGuest {
    /// Hands a request on, and its answer back.
    fn ask(&self, request: &[u8], tracer: Tracer, limit: Duration) -> Result<(Vec<u8>, Tracer)>;

    /// What its virtual PMU did for the last request; none without one.
    fn counting(&self) -> Option<PmuCounting> {
        None
    }

    /// KVM's page faults during the last request, if the guest had them counted and KVM counts them.
    fn mapped(&self) -> Option<KvmCounters> {
        None
    }
}

/// Forwards jobs until the machine ends. `hear` waits for one with a number above that of the last.
pub(crate) fn forward(
    channel: &Channel,
    guest: &impl JobGuest,
    hear: impl Fn(u32) -> Result<(u32, Vec<u8>)>,
) -> Result<()> {
    let mut last = 0;
    loop {
        let (number, request) = hear(last)?;
        last = number;
        let handed = hand_on(channel, guest, &request);
        let (answer, files) = handed.inspect_err(|problem| channel.fail(number, problem))?;
        channel
            .say(number, &answer, &files)
            .inspect_err(|problem| channel.fail(number, problem))?;
    }
}

fn hand_on(
    channel: &Channel,
    guest: &impl JobGuest,
    request: &[u8],
) -> Result<(Vec<u8>, Vec<Attachment>)> {
    let (records, limit) = match decode(request).ok_or("the request cannot be read")? {
        JobRequest::Do(job) => ((job.record, job.profile), Duration::from_millis(job.limit_ms)),
        JobRequest::Serve(job) => ((false, false), Duration::from_millis(job.limit_ms)),
        JobRequest::Kernels => {
            let (answer, _) = guest.ask(request, Tracer::Off, GRACE)?;
            return Ok((encode(&kernels(channel, &answer)?), Vec::new()));
        }
        JobRequest::Facts | JobRequest::Network(_) | JobRequest::End => {
            ((false, false), Duration::ZERO)
        }
    };
    let tracer = match (records, channel) {
        ((false, false), _) => Tracer::Off,
        (_, Channel::Port(_)) => Tracer::Outside,
        ((_, true), Channel::Mailbox(_)) => Tracer::Emulator(WorkloadMarks::new()?),
        ((true, false), Channel::Mailbox(_)) => {
            trace::clear()?;
            Tracer::arm(false, false)?
        }
    };
    let recorded_here = matches!(tracer, Tracer::Here(_));
    let (answer, tracer) = guest.ask(request, tracer, limit + GRACE)?;
    let (counting, mapped) = (guest.counting(), guest.mapped());
    let mut profiled = None;
    if let Tracer::Emulator(marks) = &tracer {
        ports::unrecorded();
        profiled = marks.cycles();
    }
    if !recorded_here && counting.is_none() && mapped.is_none() && profiled.is_none() {
        return Ok((answer, Vec::new()));
    }
    let files = match recorded_here {
        true => {
            tracer.disarm()?;
            trace::collect()?
        }
        false => Vec::new(),
    };
    let mut outcome = match decode(&answer) {
        Some(JobAnswer::Done(outcome)) => outcome,
        // Facts are requested without a recording.
        Some(JobAnswer::Facts(_)) if !recorded_here => return Ok((answer, files)),
        _ => return Err("the answer cannot be read".to_owned()),
    };
    outcome.profiled = profiled;
    outcome.pmu = counting.map(Box::new);
    // The VM below has counted, if its agent is not in the guest here.
    outcome.mapped = mapped.or(outcome.mapped);
    let named = files
        .iter()
        .map(|file| FollowingFile { name: file.name.clone(), length: file.bytes.len() as u32 });
    outcome.files = named.collect();
    Ok((encode(&JobAnswer::Done(outcome)), files))
}

/// Adds this kernel to what its guest says of the kernels there.
fn kernels(channel: &Channel, answer: &[u8]) -> Result<JobAnswer> {
    let inside = match decode(answer) {
        Some(JobAnswer::Kernels(inside)) => inside,
        Some(JobAnswer::Done(outcome)) => return Ok(JobAnswer::Done(outcome)),
        Some(JobAnswer::Facts(_)) | None => return Err("the answer cannot be read".to_owned()),
    };
    let (guest, inner) = (Some(inside.host), inside.guest);
    Ok(JobAnswer::Kernels(match channel {
        Channel::Mailbox(_) => HostKernels {
            functions: kallsyms::functions()?,
            host: kallsyms::loaded(),
            guest,
            inner,
        },
        Channel::Port(_) => HostKernels {
            host: kallsyms::loaded_functions()?,
            guest,
            inner,
            ..HostKernels::default()
        },
    }))
}
