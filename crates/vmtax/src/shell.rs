//! Completion scripts, man pages and the version, generated from the flags.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::builder::PossibleValuesParser;
use clap::{Args, Command, ValueHint};
use vmtax_cli::output;
use vmtax_durable::{FileAccess, write};
use vmtax_lab::suite::SUITES;

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax completions bash > /etc/bash_completion.d/vmtax")]
pub(crate) struct CompletionsArgs {
    /// Shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// Write the man pages into a folder.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Folder to write to; it is created if needed.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

/// The command with the flags of `vmtax-fleet`, which its own `query` and `fleet` only pass on.
fn whole(mut command: Command) -> Command {
    for whole in vmtax_fleet_flags::as_subcommands() {
        let name = whole.get_name().to_owned();
        command = command.mut_subcommand(name, |_| whole);
    }
    command
}

/// The command with the names that `vmtax lab` has for suites and operations: shells complete them.
fn with_names(command: Command) -> Command {
    let suites = || SUITES.iter().map(|suite| suite.name);
    let operations = || SUITES.iter().flat_map(|suite| suite.operations).map(|one| one.name);
    let named = |one: Command| {
        one.mut_args(|arg| match arg.get_id().as_str() {
            "suite" => arg.value_parser(PossibleValuesParser::new(suites())),
            "operation" => arg.value_parser(PossibleValuesParser::new(operations())),
            _ => arg,
        })
    };
    command.mut_subcommand("lab", |lab| lab.mut_subcommands(named))
}

pub(crate) fn completions(args: &CompletionsArgs, command: Command) -> anyhow::Result<()> {
    let mut command = with_names(whole(command));
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "vmtax", &mut script);
    output::write(None, |out| Ok(out.write_all(&script)?))
}

pub(crate) fn version(command: &Command) -> anyhow::Result<()> {
    output::write(None, |out| Ok(out.write_all(command.render_version().as_bytes())?))
}

pub(crate) fn man(args: &ManArgs, command: Command) -> anyhow::Result<()> {
    let cannot_write = |path: &Path, e: &io::Error| {
        let name = path.display().to_string();
        anyhow::Error::from(output::cannot_write(&name, e))
    };
    fs::create_dir_all(&args.dir).map_err(|e| cannot_write(&args.dir, &e))?;
    let mut vmtax = whole(command).disable_help_subcommand(true);
    vmtax.build();
    for (name, page) in pages(&vmtax)? {
        let path = args.dir.join(name);
        write(&path, FileAccess::Umask, &page).map_err(|e| cannot_write(&path, &e))?;
    }
    Ok(())
}

/// File names and contents of the man pages of a command and its subcommands.
fn pages(command: &Command) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages.extend(self::pages(below)?);
    }
    let man = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    pages.push((man.get_filename(), page));
    Ok(pages)
}
