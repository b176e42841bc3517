//! VM categories x workloads x repeats: what a matrix asks for, how each cell is run, and what its output says.

pub mod adapter;
