//! `vmtax top`: a screen of VMs, their vCPUs, causes and exits, over a recording or a running kernel.
//!
//! ```text
//!   rows ──> Frames ──> Model ──Shown──> draw ──> cells of a terminal
//!                         ▲
//!                        Key
//! ```
//! [`ScreenModel`] is what is looked at and how: a pure state that keys and new frames change. [`draw()`] paints it. Left out on
//! purpose: the terminal, the clock, and where frames come from.

mod column;
mod draw;
mod figure;
mod keys;
mod model;
mod rows;
mod space;

pub use draw::draw;
pub use keys::{Key, Wish};
pub use model::{FrameSource, HostFacts, ScreenModel};
