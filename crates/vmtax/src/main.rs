//! The `vmtax` command: flags, dispatch, exit codes. The only crate that sees all others.

mod bench;
mod cli;
mod diff;
mod doctor;
mod explain;
mod export;
mod flags;
mod fleet;
mod import;
mod lab;
mod mem;
mod record;
mod report;
mod selftest;
mod shell;
mod top;
mod vpmu;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use vmtax_cli::exit;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    let result = match cli.command {
        Command::Report(args) => report::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Lab(args) => lab::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Mem(args) => mem::run(&args),
        Command::Vpmu(args) => vpmu::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Query(args) => return fleet::query(&args),
        Command::Fleet(args) => return fleet::fleet(&args),
        Command::Completions(args) => shell::completions(&args, Cli::command()),
        Command::Man(args) => shell::man(&args, Cli::command()),
        Command::Version => shell::version(&Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
