//! How sure a conclusion is.

vmtax_events::words! {
    /// How sure a finding is.
    pub enum Certainty {
        /// The recording can mean nothing else.
        Certain = "certain",
        /// It would be a surprise if not.
        Likely = "likely",
        /// One explanation of several.
        Possible = "possible",
    }
}
