//! A host that forwards jobs to an agent: its guest is the agent's VM, or another relay.
//!
//! ```text
//!   vmtax ──mailbox──> relay (L0) ──port──> agent (L1)
//!   vmtax ──mailbox──> relay (L0) ──port──> relay (L1) ──port──> agent (L2)
//! ```
//! The outermost relay records KVM's tracepoints if a job requests it, between two marks of the agent.
//!
//! Left out on purpose: the meaning of the jobs.

use std::time::Duration;

use vmtax_guest::job::{JobAnswer, JobRequest};
use vmtax_guest::order::{FollowingFile, PmuOrder, decode, encode};

use crate::Result;
use crate::channel::{Attachment, Channel};
use crate::trace::{self, Tracer};
use crate::vmm::backing::HostBacking;
use crate::vmm::linux::Linux;

/// Emulated time for an answer in addition to the job's own limit.
const GRACE: Duration = Duration::from_secs(60);

/// Configuration of a relay.
pub(crate) struct Relay {
    /// The channel of jobs.
    pub(crate) channel: Channel,
    /// KiB of trace buffer.
    pub(crate) buffer_kib: u32,
    /// Memory of the guest, MiB.
    pub(crate) memory_mib: usize,
    pub(crate) backing: HostBacking,
    pub(crate) cpus: u32,
    pub(crate) pmu: Option<PmuOrder>,
}

impl Relay {
    /// Boots the guest and forwards jobs until the machine ends.
    pub(crate) fn run(&self) -> Result<()> {
        let channel = &self.channel;
        if let Some(sentence) =
            self.backing.missing().inspect_err(|problem| channel.fail(0, problem))?
        {
            channel.lack(&sentence);
            return Err(sentence);
        }
        let guest = self.prepare().inspect_err(|problem| channel.fail(0, problem))?;
        let mut last = 0;
        loop {
            let (number, request) = channel.hear(last)?;
            last = number;
            let handed = self.hand_on(&guest, &request);
            let (answer, files) = handed.inspect_err(|problem| channel.fail(number, problem))?;
            channel
                .say(number, &answer, &files)
                .inspect_err(|problem| channel.fail(number, problem))?;
        }
    }

    fn prepare(&self) -> Result<Linux> {
        if let Channel::Mailbox(_) = self.channel {
            trace::prepare(self.buffer_kib)?;
        }
        Linux::boot((self.memory_mib, self.backing), self.cpus, self.pmu)
    }

    fn hand_on(&self, guest: &Linux, request: &[u8]) -> Result<(Vec<u8>, Vec<Attachment>)> {
        let (record, limit) = match decode(request).ok_or("the request cannot be read")? {
            JobRequest::Facts => (false, Duration::ZERO),
            JobRequest::Do(job) => (job.record, Duration::from_millis(job.limit_ms)),
            JobRequest::Serve(job) => (false, Duration::from_millis(job.limit_ms)),
            JobRequest::Network(_) | JobRequest::End => (false, Duration::ZERO),
        };
        let tracer = match (record, &self.channel) {
            (false, _) => Tracer::Off,
            (true, Channel::Port(_)) => Tracer::Outside,
            (true, Channel::Mailbox(_)) => {
                trace::clear()?;
                Tracer::arm(false, false)?
            }
        };
        let recorded_here = matches!(tracer, Tracer::Here(_));
        let (answer, tracer) = guest.ask(request, tracer, limit + GRACE)?;
        let (counting, mapped) = (guest.counting(), guest.mapped());
        if !recorded_here && counting.is_none() && mapped.is_none() {
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
        outcome.pmu = counting.map(Box::new);
        // The VM below has counted, if its agent is not in the guest here.
        outcome.mapped = mapped.or(outcome.mapped);
        let named = files
            .iter()
            .map(|file| FollowingFile { name: file.name.clone(), length: file.bytes.len() as u32 });
        outcome.files = named.collect();
        Ok((encode(&JobAnswer::Done(outcome)), files))
    }
}
