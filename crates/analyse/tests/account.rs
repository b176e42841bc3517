//! The accounting, against expected rows, against a reference model, and what is built on its rows.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod account {
    pub(crate) mod caps;
    pub(crate) mod conversions;
    pub(crate) mod ledger;
    pub(crate) mod losses;
    pub(crate) mod model;
    pub(crate) mod nested;
    pub(crate) mod operations;
    pub(crate) mod pairing;
    pub(crate) mod random;
    pub(crate) mod script;
    pub(crate) mod time;
}
