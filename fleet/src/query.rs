//! `vmtax-fleet query`: SQL or a question, the runs, rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use vmtax_fleet::engine::{QueryEngine, QueryLimits};
use vmtax_fleet::fleet::{Fleet, NoFleet};
use vmtax_fleet::run::Skipped;
use vmtax_fleet::schema::TextType;
use vmtax_fleet::stores::{StoreRefusal, refusal};
use vmtax_fleet::unread::Unread;
use vmtax_questions::question::{self, ParameterValue};

use crate::exit::{Code, CodedError, fail, say, say_more};
use crate::output::{self, Out, OutputPlace};
use crate::planning::PlanningLimit;
use crate::show::{Caption, Sheet};
use vmtax_fleet_flags::{LimitArgs, QueryArgs, RowFormat};

/// Skipped runs listed by name; the others are counted.
const NAMED: usize = 20;

struct Asked {
    sql: String,
    parameters: Vec<(String, ScalarValue)>,
    paths: Vec<PathBuf>,
    caption: Caption,
}

/// Runs the query, with this spill folder.
pub(crate) fn run(args: &QueryArgs, spill: &Path) -> anyhow::Result<()> {
    let asked = asked(args)?;
    let output = args.output.as_deref();
    let place = match args.format {
        RowFormat::Parquet => OutputPlace::open_binary(output, "--format parquet")?,
        _ => OutputPlace::open(output)?,
    };
    let fleet = Arc::new(find(&asked.paths, args.verify)?);
    crate::runtime()?.block_on(async {
        let answered = answer(args, &asked, &fleet, (spill, place)).await;
        let skipped = tell_skipped(&fleet);
        answered?;
        if skipped > 0 && args.strict {
            return fail(Code::Data, "runs were left out, and --strict does not allow that");
        }
        if skipped > 0 && fleet.wanted() == 0 {
            return fail(Code::Data, "no run is left that can be asked");
        }
        Ok(())
    })
}

/// The runs below the paths.
pub(crate) fn find(paths: &[PathBuf], verified: bool) -> anyhow::Result<Fleet> {
    let fleet = if verified { Fleet::find_verified(paths) } else { Fleet::find(paths) };
    let fleet = fleet.map_err(|e| match e {
        NoFleet::Input(why) => CodedError::new(Code::Input, why),
        NoFleet::Data(why) => CodedError::new(Code::Data, why),
    })?;
    if fleet.is_empty() && fleet.skipped().is_empty() {
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let hint = "a run is a folder with a run.json; vmtax record and vmtax import make one";
        return fail(Code::Data, format!("{}: there is no run in it; {hint}", names.join(", ")));
    }
    Ok(fleet)
}

fn asked(args: &QueryArgs) -> anyhow::Result<Asked> {
    let words = &args.words;
    let (question, paths) = match &args.question {
        Some(name) => {
            let named = question::named(name)
                .map_err(|why| CodedError::new(Code::Usage, format!("{why}; --list says more")))?;
            (Some(named), &words[..])
        }
        None if words.is_empty() => {
            return fail(
                Code::Usage,
                "there is nothing to ask; give SQL, or a question with --question",
            );
        }
        None => (None, &words[1..]),
    };
    if paths.is_empty() {
        return fail(
            Code::Usage,
            "there are no runs to ask; name runs or trees of runs after the SQL",
        );
    }
    let source = paths.join(" ");
    let paths = paths.iter().map(PathBuf::from).collect();
    Ok(match question {
        Some(question) => {
            let parameters = question
                .values(&args.parameters)
                .map_err(|why| CodedError::new(Code::Usage, why))?
                .into_iter()
                .map(|(name, value)| (name, scalar(value)))
                .collect();
            let notes = vec![format!("{}. Units: {}.", question.title, question.unit)];
            let caption = Caption { title: question.title, source, notes };
            Asked { sql: question.sql, parameters, paths, caption }
        }
        None => {
            let parameters = args
                .parameters
                .iter()
                .map(|(name, value)| (name.clone(), ScalarValue::from(value.as_str())));
            let caption = Caption { title: words[0].clone(), source, notes: Vec::new() };
            Asked { sql: words[0].clone(), parameters: parameters.collect(), paths, caption }
        }
    })
}

fn scalar(value: ParameterValue) -> ScalarValue {
    match value {
        ParameterValue::Text(text) => ScalarValue::from(text.as_str()),
        ParameterValue::Count(count) => ScalarValue::from(count),
        ParameterValue::Number(number) => ScalarValue::from(number),
    }
}

/// Runs the query; repeats it without damaged runs if a damaged file is found before the first row is written.
async fn answer(
    args: &QueryArgs,
    asked: &Asked,
    fleet: &Arc<Fleet>,
    (spill, place): (&Path, OutputPlace),
) -> anyhow::Result<()> {
    let engine = engine(args, fleet, spill)?;
    if args.verify {
        // Planning selects the runs.
        let plan = plan(asked, &engine).await?;
        engine.physical(&plan).await.map_err(|e| of_query(&engine, e))?;
        fleet.leave_out_damaged();
    }
    let mut rows = match begin(args, asked, &engine).await {
        Err(error) if !refused(&error) && fleet.leave_out_damaged() > 0 => {
            begin(args, asked, &engine).await
        }
        begun => begun,
    }?;
    let width = place.is_terminal().then(output::width).flatten();
    let (sender, mut receiver) = tokio::sync::mpsc::channel(2);
    let schema = rows.stream.schema();
    let caption = asked.caption.clone();
    let format = args.format;
    let writer = tokio::task::spawn_blocking(move || {
        place.write(|out: Out<'_>| {
            let mut sheet = Sheet::new(format, &schema, caption, width, out)?;
            while let Some(batch) = receiver.blocking_recv() {
                // An error of the query: no output that looks complete may appear.
                sheet.batch(&batch?).map_err(of_rows)?;
            }
            sheet.finish().map_err(of_rows)
        })
    });
    let mut next = rows.first.take();
    while let Some(batch) = next {
        let batch = batch.map_err(|e| of_query(&engine, e));
        let failed = batch.is_err();
        if sender.send(batch).await.is_err() || failed {
            break;
        }
        next = rows.stream.next().await;
    }
    drop(sender);
    writer.await?
}

/// A stream that has begun.
struct Begun {
    first: Option<datafusion::common::Result<datafusion::arrow::array::RecordBatch>>,
    stream: SendableRecordBatchStream,
}

/// The optimized plan. It reads no file, so it has a timeout.
async fn plan(asked: &Asked, engine: &QueryEngine) -> anyhow::Result<LogicalPlan> {
    let _limit = PlanningLimit::start();
    let plan = engine.plan(&asked.sql, asked.parameters.clone()).await.map_err(of_sql)?;
    engine.optimize(&plan).map_err(|e| of_query(engine, e))
}

/// Plans, and waits for the first rows, when most errors have occurred.
async fn begin(args: &QueryArgs, asked: &Asked, engine: &QueryEngine) -> anyhow::Result<Begun> {
    let plan = plan(asked, engine).await?;
    let physical = engine.physical(&plan).await.map_err(|e| of_query(engine, e))?;
    let mut stream = stream(args, engine, physical).await?;
    let first = stream.next().await.transpose().map_err(|e| of_query(engine, e))?;
    Ok(Begun { first: first.map(Ok), stream })
}

#[cfg(feature = "cluster")]
async fn stream(
    args: &QueryArgs,
    engine: &QueryEngine,
    plan: Arc<dyn datafusion::physical_plan::ExecutionPlan>,
) -> anyhow::Result<SendableRecordBatchStream> {
    use vmtax_fleet::cluster;
    let Some(url) = &args.cluster else {
        return engine.stream(plan).map_err(|e| of_query(engine, e));
    };
    let address = cluster::address(url).map_err(|why| CodedError::new(Code::Usage, why))?;
    engine.check_types().map_err(|why| CodedError::new(Code::Data, why))?;
    cluster::stream(&address, engine, plan).await.map_err(|e| of_cluster(&address, &e))
}

#[cfg(not(feature = "cluster"))]
async fn stream(
    _: &QueryArgs,
    engine: &QueryEngine,
    plan: Arc<dyn datafusion::physical_plan::ExecutionPlan>,
) -> anyhow::Result<SendableRecordBatchStream> {
    engine.stream(plan).map_err(|e| of_query(engine, e))
}

fn engine(args: &QueryArgs, fleet: &Arc<Fleet>, spill: &Path) -> anyhow::Result<QueryEngine> {
    let limits = limits(&args.limits);
    #[cfg(feature = "cluster")]
    if args.cluster.is_some() {
        let config = vmtax_fleet::cluster::config();
        return QueryEngine::new(Arc::clone(fleet), limits, spill, config, TextType::Plain)
            .map_err(of_start);
    }
    QueryEngine::new(Arc::clone(fleet), limits, spill, SessionConfig::new(), TextType::Views)
        .map_err(of_start)
}

pub(crate) fn limits(args: &LimitArgs) -> QueryLimits {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    QueryLimits { memory: args.memory, threads: args.threads.map_or(all, usize::from) }
}

fn of_start(error: DataFusionError) -> anyhow::Error {
    anyhow::anyhow!("a query cannot be started: {}; is there room in TMPDIR?", first_line(&error))
}

/// An error of planning: the SQL is wrong.
fn of_sql(error: DataFusionError) -> anyhow::Error {
    CodedError::new(Code::Usage, format!("the SQL cannot be asked: {}", first_line(&error))).into()
}

/// An error of execution: invalid data, or a limit exceeded.
fn of_query(engine: &QueryEngine, error: DataFusionError) -> anyhow::Error {
    if let Some(why) = engine.fleet().lost() {
        return CodedError::new(Code::Input, format!("the query failed: {why}")).into();
    }
    if let Some(refusal) = refusal(&error) {
        return of_store(refusal).into();
    }
    if let Some(why) = engine.wrong_type(&error) {
        return CodedError::new(Code::Data, why).into();
    }
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => CodedError::new(
            Code::Unexpected,
            format!("the query needs more memory than it may take: {}; give it more with --memory, or ask for less", first_line(&error)),
        )
        .into(),
        _ => CodedError::new(Code::Data, format!("the query failed: {}", first_line(&error))).into(),
    }
}

/// A row that cannot be written: no space, or a value that cannot be formatted, such as a date out of range.
fn of_rows(error: anyhow::Error) -> anyhow::Error {
    if error.is::<CodedError>() || error.is::<std::io::Error>() {
        return error;
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    CodedError::new(Code::Data, format!("the query failed: a value cannot be written: {line}"))
        .into()
}

/// A failed read of a store. If the store does not respond, repeating would take as long.
fn of_store(refusal: &StoreRefusal) -> CodedError {
    let code = if matches!(refusal.why, Unread::Lost(_)) { Code::Input } else { Code::Data };
    CodedError::new(code, format!("the query failed: {refusal}"))
}

#[cfg(feature = "cluster")]
pub(crate) fn of_cluster(address: &str, error: &DataFusionError) -> anyhow::Error {
    CodedError::new(
        Code::Input,
        format!(
            "the scheduler at {address} does not take the query: {}; vmtax fleet check says more",
            first_line(error)
        ),
    )
    .into()
}

/// Repeating the query would fail in the same way.
fn refused(error: &anyhow::Error) -> bool {
    error.downcast_ref::<CodedError>().is_none_or(|fault| fault.code() != Code::Data)
}

/// Prefixes of DataFusion's messages.
const KINDS: &[&str] = &[
    "Error during planning: ",
    "Execution error: ",
    "Schema error: ",
    "Arrow error: ",
    "External error: ",
    "Parquet error: ",
    "Parser error: ",
    "Invalid or Unsupported Configuration: ",
];

/// The relevant line of DataFusion's message: the first, or the one after the last `caused by`.
pub(crate) fn first_line(error: &DataFusionError) -> String {
    if let DataFusionError::SQL(error, _) = error.find_root() {
        let text = error.to_string();
        return text.strip_prefix("sql parser error: ").unwrap_or(&text).to_owned();
    }
    let text = error.strip_backtrace();
    let text = text.rsplit_once("\ncaused by\n").map_or(text.as_str(), |(_, cause)| cause);
    let mut line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    while let Some(rest) = KINDS.iter().find_map(|kind| line.strip_prefix(kind)) {
        line = rest;
    }
    if line.is_empty() { "it does not say why".to_owned() } else { line.to_owned() }
}

/// Reports the skipped runs, and returns their number.
fn tell_skipped(fleet: &Fleet) -> usize {
    let skipped = fleet.skipped();
    if skipped.is_empty() {
        return 0;
    }
    let runs = if skipped.len() == 1 { "run or folder was" } else { "runs or folders were" };
    say(&format!(
        "{} {runs} left out; the rows are those of the {} others that were asked:",
        skipped.len(),
        fleet.wanted()
    ));
    for Skipped { path, why } in skipped.iter().take(NAMED) {
        say_more(&format!("{path}: {why}"));
    }
    if skipped.len() > NAMED {
        say_more(&format!("and {} more", skipped.len() - NAMED));
    }
    skipped.len()
}
