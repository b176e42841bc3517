//! A host of x86 whose guest has the agent, or is another relay.

use vmtax_guest::order::PmuOrder;

use super::backing::HostBacking;
use super::linux::Linux;
use crate::channel::Channel;
use crate::{Result, relay, trace};

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
        relay::forward(channel, &guest, |last| channel.hear(last))
    }

    fn prepare(&self) -> Result<Linux> {
        if let Channel::Mailbox(_) = self.channel {
            trace::prepare(self.buffer_kib)?;
        }
        Linux::boot((self.memory_mib, self.backing), self.cpus, self.pmu)
    }
}
