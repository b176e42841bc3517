//! The commands that manage a fleet: compact, and those of a cluster.

use vmtax_fleet::compact::{self, CompactFailure, Compacted};

use crate::exit::{Code, CodedError, say, say_more};
use crate::output::{OutputPlace, cannot_write};
use vmtax_fleet_flags::CompactArgs;

pub(crate) fn compact(args: &CompactArgs) -> anyhow::Result<()> {
    let options = compact::CompactOptions {
        date: args.date.clone(),
        remove: args.remove,
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let done = compact::compact(&args.tree, &options).map_err(|failure| match failure {
        CompactFailure::Input(why) => CodedError::new(Code::Input, why),
        CompactFailure::Data(why) => CodedError::new(Code::Data, why),
        CompactFailure::Output(path, source) => cannot_write(&path.display().to_string(), &source),
    })?;
    let Compacted { days, runs, files, removed, skipped } = done;
    if !skipped.is_empty() {
        say(&format!("{} runs or folders were left out and stay as they are:", skipped.len()));
        skipped.iter().for_each(|s| say_more(&format!("{}: {}", s.path, s.why)));
    }
    OutputPlace::open(None)?.write(|out| {
        let (before, after) = files;
        match days.len() {
            0 => writeln!(out, "There was no day to compact; {removed} runs removed.")?,
            _ => writeln!(
                out,
                "{}: {runs} runs, {before} files are {after} now; {removed} runs removed.",
                days.join(", ")
            )?,
        }
        Ok(())
    })
}

#[cfg(feature = "cluster")]
pub(crate) use cluster::{check, executor, scheduler};

#[cfg(feature = "cluster")]
mod cluster {
    use std::sync::Arc;

    use futures::TryStreamExt;
    use vmtax_fleet::cluster::{self, ExecutorOptions};
    use vmtax_fleet::engine::{QueryEngine, QueryLimits};
    use vmtax_fleet::schema::TextType;

    use crate::exit::{Code, CodedError, fail, say};
    use crate::output::OutputPlace;
    use crate::query::{find, first_line};
    use vmtax_fleet_flags::{CheckArgs, ExecutorArgs, SchedulerArgs};

    /// Opens every file on an executor and compares its number of rows with `run.json`.
    const EVERY_FILE: &str = "SELECT c.run, c.rows, r.exit_rows
FROM (SELECT run, count(interval_start_ns) AS rows FROM exits GROUP BY run) c
JOIN runs r ON r.run = c.run WHERE c.rows <> r.exit_rows";

    pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<()> {
        let address =
            cluster::address(&args.cluster).map_err(|why| CodedError::new(Code::Usage, why))?;
        let fleet = Arc::new(find(&args.paths, false)?);
        crate::runtime()?.block_on(async {
            let unreachable = |why: String| CodedError::new(Code::Input, format!("the scheduler at {address}: {why}"));
            let (scheduler, executors) = cluster::ask(&address).await.map_err(unreachable)?;
            if scheduler.version != cluster::VERSION {
                return fail(Code::Data, format!(
                    "the scheduler at {address} is Ballista {}, and this program speaks {}; run one of that version",
                    scheduler.version, cluster::VERSION
                ));
            }
            if executors.is_empty() {
                return fail(Code::Data, format!("the scheduler at {address} has no executors; start some"));
            }
            let limits = QueryLimits { memory: 1 << 30, threads: executors.len() * 4 };
            let own = crate::scratch("vmtax-check")?;
            let (spill, config) = (own.path(), cluster::config());
            let engine = QueryEngine::new(Arc::clone(&fleet), limits, spill, config, TextType::Plain)?;
            let hidden = |e: datafusion::common::DataFusionError| CodedError::new(
                Code::Data,
                format!("the executors cannot read the files: {}; they have to lie at the same paths there", first_line(&e)),
            );
            let plan = engine.plan(EVERY_FILE, Vec::new()).await?;
            let plan = engine.physical(&engine.optimize(&plan)?).await?;
            let stream = cluster::stream(&address, &engine, plan).await.map_err(hidden)?;
            let wrong: usize = stream.try_collect::<Vec<_>>().await.map_err(hidden)?.iter().map(|b| b.num_rows()).sum();
            if wrong > 0 {
                return fail(Code::Data, format!("the executors read other rows of {wrong} runs than are here; they have to see these files, not others"));
            }
            let skipped = fleet.skipped().len();
            if skipped > 0 {
                say(&format!("{skipped} runs or folders were left out; vmtax query names them"));
            }
            OutputPlace::open(None)?.write(|out| {
                writeln!(out, "Ballista {} at {address}, executors:", scheduler.version)?;
                for executor in &executors {
                    writeln!(out, "  {}:{}", vmtax_events::printable(&executor.host), executor.port)?;
                }
                Ok(writeln!(out, "They see the exits of {} runs.", fleet.wanted())?)
            })
        })
    }

    pub(crate) fn scheduler(args: &SchedulerArgs) -> anyhow::Result<()> {
        say(&format!("scheduler of Ballista {} at {}", cluster::VERSION, args.listen));
        crate::runtime()?.block_on(cluster::scheduler(args.listen, args.timeout)).map_err(|why| {
            CodedError::new(Code::Output, format!("{}: cannot listen: {why}", args.listen)).into()
        })
    }

    pub(crate) fn executor(args: &ExecutorArgs) -> anyhow::Result<()> {
        let parts = args
            .scheduler
            .rsplit_once(':')
            .and_then(|(h, p)| Some((h.to_owned(), p.parse().ok()?)));
        let Some(scheduler) = parts else {
            return fail(Code::Usage, format!("--scheduler {}: use HOST:PORT", args.scheduler));
        };
        // Held until the end: data passed between tasks is removed with it.
        let own = crate::scratch("vmtax-executor")?;
        let work = args.work.clone().unwrap_or_else(|| own.path().to_owned());
        std::fs::create_dir_all(&work)
            .map_err(|e| crate::output::cannot_write(&work.display().to_string(), &e))?;
        let options = ExecutorOptions {
            scheduler,
            listen: args.listen,
            control_port: args.control_port,
            external_host: args
                .external_host
                .clone()
                .unwrap_or_else(|| args.listen.ip().to_string()),
            tasks: args.tasks,
            memory: args.memory as u64,
            work,
        };
        say(&format!("executor of Ballista {} at {}", cluster::VERSION, args.listen));
        crate::runtime()?.block_on(cluster::executor(options)).map_err(|why| {
            CodedError::new(Code::Input, format!("the executor ended: {why}")).into()
        })
    }
}
