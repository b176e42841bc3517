//! A profiling guest's steady state under alternating policies, on software events of this machine's kernel.
//!
//! Software events need no PMU. Times are this machine's, and are compared within a run only.

use vmtax_vpmu::event::select;
use vmtax_vpmu::host::EventHost;
use vmtax_vpmu::{GeneralProtection, Pmu};

/// A round of a profiling guest's steady state, on any host: a sample from general counter 0, then a switch to a thread without counters
/// and back. `event` is the event select, `value` the counter's new value.
pub fn round<H: EventHost>(
    pmu: &mut Pmu<H>,
    event: u64,
    value: u64,
) -> Result<(), GeneralProtection> {
    let on = pmu.model().counter_bits();
    // The sample.
    pmu.write(0x38f, 0)?;
    let status = pmu.read(0x38e)?;
    pmu.write(0x390, status)?;
    pmu.read(0xc1)?;
    pmu.write(0x4c1, value)?;
    pmu.write(0x38f, on)?;
    // Out.
    pmu.write(0x38f, 0)?;
    pmu.write(0x186, event & !select::ENABLE)?;
    pmu.write(0x38f, on)?;
    // In.
    pmu.write(0x38f, 0)?;
    pmu.write(0x4c1, value)?;
    pmu.write(0x186, event | select::ENABLE)?;
    pmu.write(0x38f, on)
}

#[cfg(target_os = "linux")]
pub use measured::{Steady, SteadyError, measure};

#[cfg(target_os = "linux")]
mod measured {
    use std::time::{Duration, Instant};

    use vmtax_analyse::samples::median;
    use vmtax_vpmu::host::perf_event::{EventOptions, EventSource, PerfEventHost, Software};
    use vmtax_vpmu::{Error, GeneralProtection, Intel, Pmu, PmuEvent, PmuModel, Policy, Trouble};

    /// Figures of many rounds, under legacy and under reuse.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Steady {
        pub rounds: u64,
        pub creates: [u64; 2],
        /// Time of a round: the median of the turns.
        pub time: [Duration; 2],
    }

    /// Why the measurement failed.
    #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
    pub enum SteadyError {
        /// The virtual PMU could not be created.
        #[error(transparent)]
        Pmu(#[from] Error),
        /// The kernel refused an operation.
        #[error(transparent)]
        Trouble(Trouble),
        /// The guest's access faulted.
        #[error("an access of the guest faulted")]
        Fault(#[from] GeneralProtection),
    }

    /// Cycles in both modes with an interrupt: what the kernel's event counts.
    const EVENT: u64 = 0x53_003c;
    /// Rounds of a turn.
    const ROUNDS: u64 = 50;

    /// Measures this number of turns of each policy, with one of the kernel's software events.
    pub fn measure(software: Software, turns: u64) -> Result<Steady, SteadyError> {
        let intel = Intel { fixed: 0, unavailable: !1, ..Intel::default() };
        let pmu = |policy| {
            let host = PerfEventHost::this_thread(EventOptions::default())
                .with_source(PmuEvent::Cycles, EventSource::Software(software));
            Pmu::new(PmuModel::Intel(intel.clone()), host, policy)
        };
        let mut pmus = [pmu(Policy::Legacy)?, pmu(Policy::Reuse)?];
        let mut times = [const { Vec::new() }; 2];
        let mut creates = [0; 2];
        for turn in 0..=turns {
            for (i, pmu) in pmus.iter_mut().enumerate() {
                let (begin, before) = (Instant::now(), pmu.activity().creates);
                for _ in 0..ROUNDS {
                    super::round(pmu, EVENT, 0)?;
                }
                if let Some(notice) = pmu.notices().first() {
                    return Err(SteadyError::Trouble(notice.trouble));
                }
                // The first turn is not the steady state yet.
                if turn > 0 {
                    times[i].push(begin.elapsed().as_secs_f64() / ROUNDS as f64);
                    creates[i] += pmu.activity().creates - before;
                }
            }
        }
        let time =
            times.map(|times: Vec<f64>| Duration::from_secs_f64(median(&times).unwrap_or(0.0)));
        Ok(Steady { rounds: turns * ROUNDS, creates, time })
    }
}
