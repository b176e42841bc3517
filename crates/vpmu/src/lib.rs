//! A virtual PMU for VMMs: a guest's performance counters, counted by few host events.
//!
//! A [`Pmu`] answers a vCPU's accesses to the MSRs of a [`PmuModel`] (Intel architectural PerfMon 1 to 5, AMD K7 and
//! PerfMonV2), uses a [`EventHost`] to count, and reports due interrupts. Three [`Policy`]s decide how the host's counters are used; the
//! guest cannot distinguish them. Two of them work in a VMM; the third, mediated, is a model of KVM's mediated PMU (Linux 7.0).
//!
//! **Guests of KVM must not use RDPMC.** KVM never forwards that instruction to a VMM: it faults (#GP), or reads zero on AMD hosts
//! before Linux 6.9. Linux's perf uses it, so a Linux guest needs a small module that makes it read by RDMSR instead ([`GUEST_MODULE`]). [`kvm::filter`] fails until the VMM says that its guests read by RDMSR.
//!
//! Left out: PEBS, last branch records, events of the uncore, and the APIC. The VMM
//! intercepts a guest's MSR accesses and injects interrupts; the feature `kvm` has a module for VMMs that use KVM, and
//! `examples/vmm.rs` is such a VMM.
//!
//! ```
//! use vmtax_vpmu::host::virtual_time::{EventCosts, GuestWork, VirtualHost};
//! use vmtax_vpmu::{Intel, Pmu, PmuEvent, PmuModel, Policy};
//!
//! let host = VirtualHost::new(EventCosts::default());
//! let mut pmu = Pmu::new(PmuModel::Intel(Intel::default()), host, Policy::Reuse)?;
//! // The guest counts instructions in user mode by general counter 0.
//! pmu.write(0x186, 0x41_00c0)?;
//! pmu.host_mut().run(&GuestWork::user(1, &[(PmuEvent::Instructions, 3)]), 1000);
//! assert_eq!(pmu.read(0xc1), Ok(3000));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
pub mod event;
pub mod host;
#[cfg(all(feature = "kvm", target_os = "linux", target_arch = "x86_64"))]
pub mod kvm;
pub mod mediated;
mod model;
mod msr;
mod pmu;
mod policy;
mod state;

pub use error::{Error, GeneralProtection, Notice, Trouble};
pub use event::{Counter, PmuEvent, Programme};
pub use host::EventHost;
pub use model::{Amd, INTEL_GENERAL, Intel, Leaf, PmuModel};
pub use pmu::{Pmu, Privilege};
pub use policy::{Activity, Policy};
pub use state::PmuState;

/// The module that has a Linux guest's perf read counters by RDMSR, as files to build in the guest: their names and
/// their content. See [`kvm`] for why.
pub const GUEST_MODULE: [(&str, &str); 2] = [
    ("vmtax_rdpmc.c", include_str!("../guest-module/vmtax_rdpmc.c")),
    ("Kbuild", include_str!("../guest-module/Kbuild")),
];
