//! The run folder as its users see it: written data can be read again, and errors are reported.

#[cfg(test)]
mod beside;
#[cfg(test)]
mod corrupt;
#[cfg(test)]
mod disk_full;
#[cfg(test)]
mod foreign_values;
#[cfg(test)]
mod kill;
#[cfg(test)]
mod lock;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod round_trip;
#[cfg(test)]
mod samples;
