//! `vmtax top`: exits of the running kernel or of a run, live in the terminal.

mod terminal;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};
use vmtax_analyse::{Frames, KeepFrames};
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::output;
use vmtax_cli::signals::Signals;
use vmtax_report::tui::{FrameSource, HostFacts, ScreenModel, Wish};
use vmtax_runs::frames::{self, Replay};
use vmtax_runs::record::CountsWatch;

use crate::flags::{ReadingArgs, WhichArgs};
use terminal::{Screen, TerminalEvent};

/// Show VMs live in the terminal: tax, exits and time split, by VM, vCPU, cause and exit; or replay a recording.
///
/// Exits are counted by eBPF, as by `vmtax record` (requirements and overhead: docs/record.md). Keys are those of htop; h
/// lists them. Columns: docs/top.md.
#[derive(Debug, Args)]
#[command(mut_arg("interval", |interval| interval.help(INTERVAL)))]
#[command(after_help = "Examples:
  vmtax top
  vmtax top --vm web1 --interval 500ms
  vmtax top --replay run                 a recorded run: Left and Right select the interval
  vmtax top --replay perf.data")]
pub(crate) struct TopArgs {
    #[command(flatten)]
    which: WhichArgs,

    /// Replay this run or recording.
    #[arg(long, value_name = "RUN|FILE", value_hint = ValueHint::AnyPath, conflicts_with_all = ["pid", "vm", "all"])]
    replay: Option<PathBuf>,

    #[command(flatten)]
    reading: ReadingArgs,
}

const INTERVAL: &str =
    "Length of an interval: 100ms, 1s, ... [default: 1s; with --replay of a recording 100ms]";

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    match &args.replay {
        Some(path) => replayed(path, &args.reading),
        None => {
            args.reading.check_live()?;
            live(args)
        }
    }
}

fn replayed(path: &Path, reading: &ReadingArgs) -> anyhow::Result<()> {
    check_terminal()?;
    let Replay { frames, recording, losses, complete } = frames::of_path(path, &reading.reading())?;
    let facts = HostFacts::new(recording, &losses, complete);
    let mut model = ScreenModel::new(FrameSource::Replay, facts, frames);
    let stop = Signals::new()?;
    let mut screen = Screen::open(output::has_colors())?;
    let mut next: Option<Instant> = None;
    loop {
        screen.paint(&mut model)?;
        let now = Instant::now();
        // A key does not postpone a due tick.
        next = model.tick_after().map(|after| next.unwrap_or(now + after).min(now + after));
        let until = next.unwrap_or(now + Duration::from_secs(3600));
        if is_over(&mut screen, &mut model, &stop, until)? {
            return Ok(());
        }
        if next.is_some_and(|next| Instant::now() >= next) {
            model.tick();
            next = None;
        }
    }
}

fn live(args: &TopArgs) -> anyhow::Result<()> {
    check_terminal()?;
    let mut watch = CountsWatch::new(&args.which.which())?;
    let every = args.reading.interval.unwrap_or(Duration::from_secs(1));
    let frames = Frames::new(KeepFrames::Newest, 1);
    let mut model = ScreenModel::new(FrameSource::Live(every), known(&watch), frames);
    let stop = Signals::new()?;
    let mut screen = Screen::open(output::has_colors())?;
    let mut next = Instant::now() + every;
    loop {
        screen.paint(&mut model)?;
        if is_over(&mut screen, &mut model, &stop, next)? {
            return Ok(());
        }
        let now = Instant::now();
        if now >= next {
            let frame = watch.step()?;
            model.push(frame, known(&watch), &watch.ended());
            // Missed intervals are skipped.
            next = (next + every).max(now);
        }
    }
}

/// Waits for a key, a signal or the time. Returns whether to quit.
fn is_over(
    screen: &mut Screen,
    model: &mut ScreenModel,
    stop: &Signals,
    until: Instant,
) -> anyhow::Result<bool> {
    match screen.wait(stop, until)? {
        TerminalEvent::End => return Ok(true),
        TerminalEvent::Stop => screen.stop()?,
        TerminalEvent::Nothing => {}
    }
    while let Some(key) = screen.key()? {
        match model.key(key) {
            Wish::GoOn => {}
            Wish::Quit => return Ok(true),
            Wish::Stop => screen.stop()?,
            Wish::Redraw => screen.clear()?,
        }
    }
    Ok(false)
}

fn known(watch: &CountsWatch) -> HostFacts {
    HostFacts::new(watch.facts().clone(), &watch.losses(), true)
}

fn check_terminal() -> anyhow::Result<()> {
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        return Ok(());
    }
    fail(
        Code::Usage,
        "top needs a terminal for input and output; `vmtax report` writes into pipes and files",
    )
}
