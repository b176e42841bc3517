//! `vmtax lab list`.

use vmtax_cli::output;
use vmtax_events::Isa;
use vmtax_lab::suite::SUITES;

pub(crate) fn run() -> anyhow::Result<()> {
    output::write(None, |out| {
        for suite in &SUITES {
            writeln!(out, "{}: {}", suite.name, suite.summary)?;
            for one in suite.operations {
                let only = match (one.is_for(Isa::Svm, 1), one.is_for(Isa::Vmx, 1)) {
                    (true, false) => " (AMD)",
                    (false, true) => " (Intel)",
                    _ => "",
                };
                writeln!(out, "  {:26} {}{only}", one.name, one.summary)?;
            }
        }
        Ok(())
    })
}
