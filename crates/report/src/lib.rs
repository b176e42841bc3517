//! Ledger -> something a person or a program reads. One renderer per file or folder.
//!
//! Left out on purpose: analysis. A renderer formats what [`Document`] holds; numbers that are not in
//! it are computed in `vmtax-analyse`.

pub mod bench;
pub mod budget;
pub mod calls;
pub mod csv;
mod diff;
pub mod doctor;
mod document;
mod exits;
pub mod explain;
pub mod headline;
pub mod host_pages;
pub mod html;
pub mod json;
mod keys;
pub mod kvm;
pub mod losses;
mod mapping;
pub mod names;
mod nested;
pub mod numbers;
pub mod openmetrics;
pub mod operations;
pub mod pages;
mod paging;
pub mod perfetto;
pub mod rows;
pub mod selftest;
pub mod series;
pub mod several;
pub mod starts;
pub mod table;
pub mod tables;
pub mod text;
mod time;
mod traffic;
mod transfers;
pub mod tui;

pub use document::{Compares, Comparison, Document, Renderer, RunSubject};
