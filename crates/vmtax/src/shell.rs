//! Completions and man pages, made from the flags.

use std::fs;
use std::io::Write;

use anyhow::Context;
use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{Code, Fault};
use crate::output;

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "vmtax", &mut script);
    let mut out = output::standard();
    out.write_all(&script)?;
    Ok(out.flush()?)
}

pub(crate) fn man(args: &ManArgs) -> anyhow::Result<()> {
    let failed =
        || Fault::new(Code::Output, format!("{}: cannot write man pages", args.dir.display()));
    fs::create_dir_all(&args.dir).with_context(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).with_context(failed)?;
    Ok(())
}
