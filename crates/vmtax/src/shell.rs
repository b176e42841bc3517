//! Completions and man pages, made from the flags.

use std::fs;

use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::output;

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "vmtax", &mut script);
    output::write(None, |out| Ok(out.write_all(&script)?))
}

pub(crate) fn man(args: &ManArgs) -> anyhow::Result<()> {
    let written = fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.dir));
    written.map_err(|e| output::cannot_write(&args.dir.display().to_string(), &e).into())
}
