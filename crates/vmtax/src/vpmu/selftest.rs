//! `vmtax vpmu selftest`: the gates of precision.

use vmtax_cli::exit::{Code, CodedError};
use vmtax_vpmu_bench::gates;

use super::args::SelftestArgs;

pub(super) fn run(args: &SelftestArgs) -> anyhow::Result<()> {
    let gates = gates::run()?;
    args.to.write(&gates::tables(&gates))?;
    match gates::broken(&gates) {
        broken if broken.is_empty() => Ok(()),
        broken => {
            let message = format!("{} of {} gates do not hold", broken.len(), gates.len());
            Err(CodedError::new(Code::Breach, message).detailed(broken).into())
        }
    }
}
