//! `vmtax vpmu module`: writes the source of the guest's module.

use vmtax_cli::exit::{Code, fail};
use vmtax_vpmu::GUEST_MODULE;

use super::args::ModuleArgs;

pub(super) fn run(args: &ModuleArgs) -> anyhow::Result<()> {
    let write = || {
        std::fs::create_dir_all(&args.folder)?;
        GUEST_MODULE
            .iter()
            .try_for_each(|(name, text)| std::fs::write(args.folder.join(name), text))
    };
    match write() {
        Ok(()) => Ok(()),
        Err(error) => {
            fail(Code::Output, format!("{}: cannot write there: {error}", args.folder.display()))
        }
    }
}
