//! How sure a conclusion is.

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// The recording can mean nothing else.
    Certain,
    /// It would be a surprise if not.
    Likely,
    /// One explanation of several.
    Possible,
}

impl Certainty {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Certainty::Certain => "certain",
            Certainty::Likely => "likely",
            Certainty::Possible => "possible",
        }
    }
}
