//! The run folder as its users see it: what is written reads again, and what went wrong is said.

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
