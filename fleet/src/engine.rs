//! DataFusion with the tables of a fleet, and a memory limit.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, ParamValues, Result, ScalarValue};
use datafusion::datasource::{MemTable, ViewTable};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::metadata::ParquetMetaDataReader;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use vmtax_store::{Segment, StoredTable};

use crate::fleet::Fleet;
use crate::folder::Folder;
use crate::run::FleetRun;
use crate::schema::{self, TextType};
use crate::table::{FleetTable, RowKind};
use crate::types::{WrongType, disagreement};
use crate::{guard, vocabulary};

/// Limits of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryLimits {
    /// Bytes of operators before they spill to disk.
    pub memory: usize,
    /// Partitions of a query that run concurrently.
    pub threads: usize,
}

/// Memory consumers named in an error.
const NAMED: NonZeroUsize = NonZeroUsize::new(3).expect("3 is not 0");

/// A small file is read with one call; the end of a large one holds its metadata.
const METADATA_HINT: usize = 64 << 10;

pub struct QueryEngine {
    context: SessionContext,
    fleet: Arc<Fleet>,
}

impl QueryEngine {
    /// An engine for a fleet, which spills into the caller's folder; `base` has the settings of a cluster.
    pub fn new(
        fleet: Arc<Fleet>,
        limits: QueryLimits,
        spill: &Path,
        base: SessionConfig,
        texts: TextType,
    ) -> Result<QueryEngine> {
        let places: Vec<PathBuf> = vec![spill.to_owned()];
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(places));
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(TrackConsumersPool::new(
                FairSpillPool::new(limits.memory),
                NAMED,
            )))
            .with_disk_manager_builder(disk)
            .build_arc()?;
        for store in fleet.stores() {
            runtime.register_object_store(store.url().as_ref(), Arc::clone(store.client()));
        }
        let mut config = base.with_target_partitions(limits.threads).with_information_schema(true);
        // Whether a recursive CTE ends cannot be decided.
        config.options_mut().execution.enable_recursive_ctes = false;
        let parquet = &mut config.options_mut().execution.parquet;
        parquet.metadata_size_hint = Some(METADATA_HINT);
        parquet.enable_page_index = false;
        parquet.bloom_filter_on_read = false;
        let state = SessionStateBuilder::new()
            .with_default_features()
            .with_config(config)
            .with_runtime_env(runtime)
            .build();
        let context = SessionContext::new_with_state(state);
        for table in schema::TABLES {
            let provider = FleetTable::new(Arc::clone(&fleet), RowKind::Rows(table), texts);
            context.register_table(table.name(), Arc::new(provider))?;
        }
        for (name, kind) in [("runs", RowKind::Runs), ("vms", RowKind::Vms)] {
            let provider = FleetTable::new(Arc::clone(&fleet), kind, texts);
            context.register_table(name, Arc::new(provider))?;
        }
        for (name, batch) in vocabulary::tables(texts)? {
            let table = MemTable::try_new(batch.schema(), vec![vec![batch]])?;
            context.register_table(name, Arc::new(table))?;
        }
        Ok(QueryEngine { context, fleet })
    }

    /// Defines `exits_named`, once.
    async fn define_views(&self) -> Result<()> {
        if self.context.table_exist("exits_named")? {
            return Ok(());
        }
        let plan = self.context.state().create_logical_plan(vmtax_questions::EXITS_NAMED).await?;
        let view = ViewTable::new(plan, Some(vmtax_questions::EXITS_NAMED.to_owned()));
        self.context.register_table("exits_named", Arc::new(view))?;
        Ok(())
    }

    /// The plan of a query.
    ///
    /// # Errors
    /// When it is not SQL, does more than read, or names unknown tables or columns.
    pub async fn plan(
        &self,
        sql: &str,
        parameters: Vec<(String, ScalarValue)>,
    ) -> Result<LogicalPlan> {
        self.define_views().await?;
        let statement = guard::statement(sql)?;
        let plan = self.context.state().statement_to_plan(statement).await?;
        guard::plan(&plan)?;
        let names = plan.get_parameter_names()?;
        let given: Vec<_> = parameters
            .into_iter()
            .filter(|(name, _)| names.contains(&format!("${name}")))
            .collect();
        if let Some(missing) =
            names.iter().find(|n| !given.iter().any(|(g, _)| format!("${g}") == **n))
        {
            return Err(DataFusionError::Plan(format!(
                "{missing} has no value; give it with --param {}=VALUE",
                missing.trim_start_matches('$')
            )));
        }
        if given.is_empty() { Ok(plan) } else { plan.with_param_values(ParamValues::from(given)) }
    }

    /// The optimized plan. No file is read.
    pub fn optimize(&self, plan: &LogicalPlan) -> Result<LogicalPlan> {
        self.context.state().optimize(plan)
    }

    /// The physical plan. Runs and files are opened.
    pub async fn physical(&self, optimized: &LogicalPlan) -> Result<Arc<dyn ExecutionPlan>> {
        let state = self.context.state();
        state.query_planner().create_physical_plan(optimized, &state).await
    }

    /// Executes a plan in this process.
    pub fn stream(&self, plan: Arc<dyn ExecutionPlan>) -> Result<SendableRecordBatchStream> {
        execute_stream(plan, self.context.task_ctx())
    }

    /// All rows of a query, for small results and tests.
    pub async fn collect(
        &self,
        sql: &str,
        parameters: Vec<(String, ScalarValue)>,
    ) -> Result<Vec<RecordBatch>> {
        let plan = self.plan(sql, parameters).await?;
        let physical = self.physical(&self.optimize(&plan)?).await?;
        datafusion::physical_plan::collect(physical, self.context.task_ctx()).await
    }

    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// The file with a column of the wrong type, if that is the error.
    pub fn wrong_type(&self, error: &DataFusionError) -> Option<String> {
        let DataFusionError::External(cause) = error.find_root() else { return None };
        let wrong = cause.downcast_ref::<WrongType>()?;
        Some(self.check_types().err().unwrap_or_else(|| sentence("a file", wrong)))
    }

    /// Checks the column types of every selected file, which executors of a cluster do not.
    ///
    /// # Errors
    /// When a file has a column of another type.
    pub fn check_types(&self) -> Result<(), String> {
        let look = |(table, run, segment): &(StoredTable, Arc<FleetRun>, Segment)| {
            // Unreadable files give an error later.
            let found = file_schema(&run.folder, segment)?;
            let wrong = disagreement(&schema::columns(*table, TextType::Plain), &found)?;
            Some(sentence(&run.folder.join(&segment.path).to_string(), &wrong))
        };
        match self.fleet.at_once(&self.fleet.files(), &look).into_iter().flatten().next() {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }
}

/// The columns of a file, from its footer.
fn file_schema(folder: &Folder, segment: &Segment) -> Option<SchemaRef> {
    let mut reader = ParquetMetaDataReader::new();
    let mut wanted = METADATA_HINT as u64;
    loop {
        let start = segment.bytes.saturating_sub(wanted);
        let end = folder.read(&segment.path, start..segment.bytes).ok()?;
        match reader.try_parse_sized(&end, segment.bytes) {
            Ok(()) => break,
            Err(ParquetError::NeedMoreData(more)) if more as u64 > wanted && start > 0 => {
                wanted = more as u64;
            }
            Err(_) => return None,
        }
    }
    let metadata = Arc::new(reader.finish().ok()?);
    let arrow = ArrowReaderMetadata::try_new(metadata, ArrowReaderOptions::new()).ok()?;
    Some(Arc::clone(arrow.schema()))
}

fn sentence(place: &str, wrong: &WrongType) -> String {
    format!("{place}: {wrong}; another tool or version wrote it: leave its run out")
}
