//! The virtual PMU's policies compared.
//!
//! Guests run on the PMU in virtual time ([`vmtax_vpmu::host::virtual_time`]), the same ones under each policy. What comes
//! of it is beside what was published ([`tables`], [`precision`]), or for itself ([`compare`], [`contention`]); [`gates`]
//! says whether it is as exact as it has to be. [`steady`] needs the kernel's software events and takes real time.
//!
//! Nothing is printed here. What a guest of a real KVM does is measured by `vmtax-lab`.

pub mod compare;
pub mod contention;
pub mod gates;
mod guest;
pub mod perf;
pub mod precision;
pub mod published;
pub mod script;
pub mod steady;
pub mod tables;
