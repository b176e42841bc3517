//! A virtual PMU for VMMs: the performance counters that a guest sees, counted by few host events.
//!
//! A [`Pmu`] answers a vCPU's accesses to the MSRs of a [`Model`] (Intel architectural PerfMon 1 to 5, AMD K7 and
//! PerfMonV2), has a [`Host`] count, and says when an interrupt is due. Two [`Policy`]s decide when the host's events
//! are created and closed, and count what they do; the guest cannot tell them apart.
//!
//! Left out: PEBS, last branch records, events of the uncore, and the APIC. Getting at a guest's MSRs and injecting
//! interrupts is the VMM's business; the feature `kvm` has a module for VMMs that use KVM.
//!
//! ```
//! use vmtax_vpmu::host::virtual_time::{Costs, VirtualHost, Work};
//! use vmtax_vpmu::{Event, Intel, Model, Pmu, Policy};
//!
//! let host = VirtualHost::new(Costs::default());
//! let mut pmu = Pmu::new(Model::Intel(Intel::default()), host, Policy::Reuse)?;
//! // The guest counts instructions in user mode by general counter 0.
//! pmu.write(0x186, 0x41_00c0)?;
//! pmu.host_mut().run(&Work::user(1, &[(Event::Instructions, 3)]), 1000);
//! assert_eq!(pmu.read(0xc1), Ok(3000));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bench;
mod error;
pub mod event;
pub mod host;
#[cfg(all(feature = "kvm", target_os = "linux", target_arch = "x86_64"))]
pub mod kvm;
mod model;
mod msr;
mod pmu;
mod policy;
pub mod selftest;
mod state;

pub use error::{Error, GeneralProtection, Notice, Trouble};
pub use event::{Counter, Event, Programme};
pub use host::Host;
pub use model::{Amd, INTEL_GENERAL, Intel, Leaf, Model};
pub use pmu::{Pmu, Privilege};
pub use policy::{Activity, Policy};
pub use state::State;
