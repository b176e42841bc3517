//! One run after another, for months: rotation, retention, and a full disk.
//!
//! ```text
//! recorder 1: counts ───────────────┐ stops, is read       the next recorder is loaded before the first one stops, so that
//! recorder 2:          is loaded    └──> counts ───────    exits between two runs are missing for some milliseconds
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use vmtax_cli::exit::{CodedError, say};
use vmtax_cli::signals::Signals;
use vmtax_live::ExitRecorder;
use vmtax_store::{Claim, RunWriter};

use super::session::{RecordSession, SessionEnd, options};
use super::tree::{Retention, RunTree, disk_bytes};
use super::{ROOT, RecordPlan, is_full, open, processes};
use crate::write_fault;

/// How long to wait for room on a full disk before the next attempt.
const RETRY: Duration = Duration::from_secs(10);

/// Records runs into `plan.output`, a tree, until a signal asks for the end or the plan's duration is over.
///
/// # Errors
/// Why nothing can be recorded or written, as one sentence. A full disk is no error: it is waited for.
pub fn serve(plan: &RecordPlan, retention: Retention) -> anyhow::Result<()> {
    let stop = Signals::new()?;
    let processes = processes(&plan.which)?;
    let load = || open(Path::new(ROOT), processes.clone(), plan.limits.clone());
    // Before anything is written: a host that cannot be recorded says so at once.
    let mut loaded = Some(load()?);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut tree = RunTree::open(&plan.output, &host, retention)?;
    let end = plan.duration.and_then(|duration| Instant::now().checked_add(duration));
    let (mut is_waiting, mut is_asked) = (false, false);
    loop {
        let recorder = (loaded.take(), &load as LoadRecorder<'_>);
        match one_run(plan, &mut tree, recorder, (&stop, end, &mut is_asked)) {
            Ok(Some(next)) => {
                loaded = Some(next);
                is_waiting = false;
            }
            Ok(None) => return Ok(()),
            Err(error) if is_full_disk(&error) && !is_asked => {
                if !is_waiting {
                    let seconds = RETRY.as_secs();
                    say(&format!(
                        "{error}; recording continues when there is room, tried every {seconds} s"
                    ));
                    is_waiting = true;
                }
                let next = Instant::now() + RETRY;
                if stop.wait(end.map_or(next, |end| end.min(next)))?
                    || end.is_some_and(|end| Instant::now() >= end)
                {
                    return Ok(());
                }
                // The run that was interrupted is closed as soon as there is room for its manifest.
                if let Err(error) = tree.close_all()
                    && !is_full_disk(&error)
                {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes a recorder that does not count yet.
type LoadRecorder<'a> = &'a dyn Fn() -> anyhow::Result<ExitRecorder>;

/// Records one run, and returns the recorder of the next one, which counts already; `None` at the end. `is_asked` is set when the end was asked for,
/// also if the run cannot be closed then.
fn one_run(
    plan: &RecordPlan,
    tree: &mut RunTree,
    (loaded, load): (Option<ExitRecorder>, LoadRecorder<'_>),
    (stop, end, is_asked): (&Signals, Option<Instant>, &mut bool),
) -> anyhow::Result<Option<ExitRecorder>> {
    tree.make_room(0)?;
    let folder = tree.next_run()?;
    let claim = Claim::new(&folder).map_err(write_fault)?;
    let writer = RunWriter::begin(claim, &options(plan)).map_err(write_fault)?;
    let recorder = loaded.map_or_else(load, Ok)?;
    let mut session = RecordSession::new(plan, recorder, writer);
    session.recorder.start();
    session.describe();
    let began = Instant::now();
    let ended = session.run((stop, end), None, &mut |writer| {
        // A run without exits goes on: there is nothing to close.
        if writer.manifest().segments.is_empty() {
            return Ok(false);
        }
        let bytes = disk_bytes(&folder);
        tree.make_room(bytes)?;
        Ok(tree.is_full_run(began.elapsed(), bytes)?)
    })?;
    *is_asked = ended == SessionEnd::Asked;
    let mut next = match ended {
        SessionEnd::Rotation => Some(load()?),
        SessionEnd::Asked => None,
    };
    session.finish(|| {
        if let Some(next) = &mut next {
            next.start();
        }
    })?;
    tree.closed(folder);
    Ok(next)
}

fn is_full_disk(error: &anyhow::Error) -> bool {
    error.downcast_ref::<CodedError>().and_then(CodedError::answer).is_some_and(is_full)
}
