//! The virtual PMU's policies compared.
//!
//! Guests run on the PMU in virtual time ([`vmtax_vpmu::host::virtual_time`]), the same guests under each policy. The figures
//! stand beside published ones ([`precision`]) or alone ([`compare`], [`contention`]); [`gates`] checks their
//! precision. [`steady`] needs the kernel's software events and takes real time. [`emulated`] makes tables of a guest of a
//! real KVM, which `vmtax-lab` measures, [`in_kernel`] of KVM's own PMU on arm64. [`mod@bench`] has all of it as text and JSON.
//!
//! Nothing is printed or booted here.

pub mod bench;
pub mod compare;
pub mod computed;
pub mod contention;
pub mod emulated;
mod error;
pub mod gates;
mod guest;
pub mod in_kernel;
pub mod perf;
pub mod precision;
pub mod published;
mod rows;
pub mod script;
pub mod steady;

pub use error::Error;
