use vmtax_vpmu::GeneralProtection;

/// Why figures could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A virtual PMU could not be made.
    #[error(transparent)]
    Pmu(#[from] vmtax_vpmu::Error),
    /// A program could not be single-stepped.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[error(transparent)]
    Step(#[from] vmtax_vpmu::host::step::StepError),
    /// The guest's access faulted.
    #[error("an access of the guest faulted")]
    Fault(#[from] GeneralProtection),
    /// The recording of this crate is damaged.
    #[error("the recording of emulated hosts that vmtax contains is damaged")]
    Recording(#[from] serde_json::Error),
}
