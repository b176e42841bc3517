//! The protocol between vmtax and the program inside an emulated host.
//!
//! The program is `vmtax-guest`: the first process of the emulated host (L0) and, when it nests, of the
//! Linux guest (L1) in it. Orders reach it and results leave it through the *mailbox*: a raw disk
//! on the secondary IDE channel that both sides read and write. Every kernel, emulator and saved state has one, and it needs no driver. Between L0 and L1 the same bytes travel through a port. In the VMs of
//! benchmarks it is the agent that runs [`job`]s.
//!
//! Left out: how the machine is started (`vmtax-machine`) and what is measured (`vmtax-lab`, `vmtax-bench`).

pub mod functions;
pub mod job;
pub mod layout;
pub mod mailbox;
pub mod order;
pub mod traffic;
