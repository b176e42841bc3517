//! The tables of a fleet for DataFusion.
//!
//! Filters on a run's attributes are evaluated with `run.json`, before other files are opened. The rest is read by DataFusion's Parquet
//! source, with the attributes as partition columns. So DataFusion can serialize the plan, and Ballista schedulers and executors without
//! vmtax can execute it.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, AsArray, BooleanArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use datafusion::arrow::compute::{and_kleene, cast};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::config::TableParquetOptions;
use datafusion::common::stats::Precision;
use datafusion::common::{
    DFSchema, DataFusionError, Result, ScalarValue, Statistics, project_schema,
};
use datafusion::datasource::TableType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::union::UnionExec;
use vmtax_store::{Segment, StoredTable};

use crate::fleet::{Fleet, Selection, Wants};
use crate::folder::Folder;
use crate::run::{FleetRun, RunAttributes};
use crate::schema::{self, TextType};
use crate::stores::ObjectStoreSource;
use crate::types::TypesAgree;

/// Kind of the table's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// A row of the runs' files.
    Rows(StoredTable),
    Runs,
    /// A VM of a run.
    Vms,
}

/// A table over a fleet.
#[derive(Debug)]
pub struct FleetTable {
    fleet: Arc<Fleet>,
    kind: RowKind,
    texts: TextType,
    schema: SchemaRef,
}

impl FleetTable {
    pub fn new(fleet: Arc<Fleet>, kind: RowKind, texts: TextType) -> FleetTable {
        let schema = match kind {
            RowKind::Rows(table) => {
                let of_run = schema::attributes(texts);
                Arc::clone(TableSchema::new(schema::columns(table, texts), of_run).table_schema())
            }
            RowKind::Runs => schema::runs(texts),
            RowKind::Vms => schema::vms(texts),
        };
        FleetTable { fleet, kind, texts, schema }
    }

    fn rows(
        &self,
        state: &dyn Session,
        table: StoredTable,
        selection: &Selection,
        projection: Option<&Vec<usize>>,
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let columns = schema::columns(table, self.texts);
        let of_run = schema::attributes(self.texts);
        let scan = Scan { state, projection, limit };
        let mut parts = Vec::new();
        // In a day's files the attributes are columns like the others.
        let all: Vec<_> = columns.fields().iter().cloned().chain(of_run.clone()).collect();
        let single = TableSchema::new(Arc::clone(&columns), of_run);
        let whole = TableSchema::from_file_schema(Arc::new(Schema::new(all)));
        // A scan reads from one place: this machine, or one store.
        for place in places(selection) {
            let url = place.map_or_else(ObjectStoreUrl::local_filesystem, |s| s.url().clone());
            let runs = selection.runs.iter().filter(|run| run.folder.store() == place);
            let files = runs.flat_map(|run| {
                let values = self.values(&run.attributes);
                run.manifest.segments_of(table).map(move |segment| {
                    let file = file(&run.folder, segment)?;
                    Ok((segment, file.with_partition_values(values.clone())))
                })
            });
            parts.extend(scan.of(&url, single.clone(), files)?);
            let days = selection.days.iter().filter(|(day, _)| day.folder.store() == place);
            let files = days.flat_map(|(day, _)| {
                day.segments_of(table).map(|segment| Ok((segment, file(&day.folder, segment)?)))
            });
            parts.extend(scan.of(&url, whole.clone(), files)?);
        }
        match parts.len() {
            0 => Ok(Arc::new(EmptyExec::new(project_schema(&self.schema, projection)?))),
            1 => Ok(parts.remove(0)),
            _ => UnionExec::try_new(parts),
        }
    }

    /// The attributes of a run in the order of [`schema::ATTRIBUTES`].
    fn values(&self, attributes: &RunAttributes) -> Vec<ScalarValue> {
        let text = |text: &str| {
            let said = (!text.is_empty()).then(|| text.to_owned());
            match self.texts {
                TextType::Views => ScalarValue::Utf8View(said),
                TextType::Plain => ScalarValue::Utf8(said),
            }
        };
        let mut values: Vec<ScalarValue> = attributes.texts().map(text).into();
        values.push(ScalarValue::Boolean(Some(attributes.emulated)));
        values
    }

    fn memory(
        &self,
        columns: Vec<ArrayRef>,
        projection: Option<&Vec<usize>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // Texts were collected plainly.
        let columns = columns.iter().zip(self.schema.fields()).map(|(c, f)| cast(c, f.data_type()));
        let batch =
            RecordBatch::try_new(Arc::clone(&self.schema), columns.collect::<Result<_, _>>()?)?;
        Ok(MemorySourceConfig::try_new_exec(
            &[vec![batch]],
            Arc::clone(&self.schema),
            projection.cloned(),
        )?)
    }
}

#[async_trait::async_trait]
impl TableProvider for FleetTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        // Of a compacted day all rows have one date, and of the rest there may be any.
        let exact = |filter: &Expr| {
            let all_or_none = !self.fleet.has_days() || is_about(filter, &["date"]);
            matches!(self.kind, RowKind::Rows(_)) && of_runs(filter) && all_or_none
        };
        Ok(filters
            .iter()
            .map(|filter| match exact(filter) {
                true => TableProviderFilterPushDown::Exact,
                false => TableProviderFilterPushDown::Inexact,
            })
            .collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let wanted = Filters::new(state, filters, self.texts)?;
        let selection = self.fleet.select(&wanted).map_err(DataFusionError::Execution)?;
        match self.kind {
            RowKind::Rows(table) => {
                // A limit before a filter would lose rows.
                let limit = limit.filter(|_| filters.iter().all(of_runs) && !self.fleet.has_days());
                self.rows(state, table, &selection, projection, limit)
            }
            RowKind::Runs => self.memory(run_columns(&selection), projection),
            RowKind::Vms => self.memory(vm_columns(&selection), projection),
        }
    }
}

/// A filter that `run.json` can evaluate.
fn of_runs(filter: &Expr) -> bool {
    !filter.is_volatile()
        && !filter.column_refs().is_empty()
        && is_about(filter, &schema::ATTRIBUTES)
}

/// A filter on attributes only.
fn is_about(filter: &Expr, columns: &[&str]) -> bool {
    filter.column_refs().iter().all(|column| columns.contains(&column.name()))
}

/// The stores of a selection, each once. `None`: local.
fn places(selection: &Selection) -> Vec<Option<&Arc<ObjectStoreSource>>> {
    let runs = selection.runs.iter().map(|run| &run.folder);
    let mut places = Vec::new();
    for folder in runs.chain(selection.days.iter().map(|(day, _)| &day.folder)) {
        if !places.contains(&folder.store()) {
            places.push(folder.store());
        }
    }
    places
}

fn file(folder: &Folder, segment: &Segment) -> Result<PartitionedFile> {
    let mut file = PartitionedFile::new(String::new(), segment.bytes);
    file.object_meta.location = folder.join(&segment.path).key()?;
    Ok(file)
}

/// Projection, filters and limit of a scan.
struct Scan<'a> {
    state: &'a dyn Session,
    projection: Option<&'a Vec<usize>>,
    limit: Option<usize>,
}

impl Scan<'_> {
    /// A plan that reads the files; `None` when there are none.
    fn of<'s>(
        &self,
        url: &ObjectStoreUrl,
        schema: TableSchema,
        files: impl Iterator<Item = Result<(&'s Segment, PartitionedFile)>>,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let (mut rows, mut bytes, mut found) = (0u64, 0u64, Vec::new());
        for file in files {
            let (segment, file) = file?;
            rows = rows.saturating_add(segment.rows);
            bytes = bytes.saturating_add(segment.bytes);
            found.push(file);
        }
        if found.is_empty() {
            return Ok(None);
        }
        let count = |n: u64| Precision::Inexact(usize::try_from(n).unwrap_or(usize::MAX));
        let statistics = Statistics {
            num_rows: count(rows),
            total_byte_size: count(bytes),
            ..Statistics::new_unknown(schema.table_schema())
        };
        let options = self.state.config_options();
        let parquet =
            TableParquetOptions { global: options.execution.parquet.clone(), ..Default::default() };
        let mut source = ParquetSource::new(schema).with_table_parquet_options(parquet);
        if let Some(hint) = options.execution.parquet.metadata_size_hint {
            source = source.with_metadata_size_hint(hint);
        }
        let groups = FileGroup::new(found).split_files(options.execution.target_partitions);
        let config = FileScanConfigBuilder::new(url.clone(), Arc::new(source))
            .with_file_groups(groups)
            .with_statistics(statistics)
            .with_projection_indices(self.projection.cloned())?
            .with_limit(self.limit)
            .with_expr_adapter(Some(Arc::new(TypesAgree)))
            .build();
        Ok(Some(DataSourceExec::from_data_source(config)))
    }
}

/// The filters of a query that `run.json` can evaluate.
struct Filters {
    texts: TextType,
    /// Each with whether it only uses host and day.
    filters: Vec<(Arc<dyn PhysicalExpr>, bool)>,
    schema: SchemaRef,
}

impl Filters {
    fn new(state: &dyn Session, filters: &[Expr], texts: TextType) -> Result<Filters> {
        let schema = Arc::new(Schema::new(schema::attributes(texts)));
        let of_schema = DFSchema::try_from(Arc::clone(&schema))?;
        let filters = filters.iter().filter(|filter| of_runs(filter)).map(|filter| {
            let place = is_about(filter, &["host", "date"]);
            Ok((state.create_physical_expr(filter.clone(), &of_schema)?, place))
        });
        Ok(Filters { texts, filters: filters.collect::<Result<_>>()?, schema })
    }

    fn evaluate(&self, runs: &[&RunAttributes], place_only: bool) -> Result<Vec<bool>> {
        let columns = attribute_columns(runs.iter().copied());
        let columns = columns.iter().map(|c| match c.data_type() {
            datafusion::arrow::datatypes::DataType::Utf8 => cast(c, &self.texts.data_type()),
            _ => Ok(Arc::clone(c)),
        });
        let batch =
            RecordBatch::try_new(Arc::clone(&self.schema), columns.collect::<Result<_, _>>()?)?;
        let mut wanted = BooleanArray::from(vec![true; runs.len()]);
        for (filter, _) in self.filters.iter().filter(|(_, place)| *place || !place_only) {
            let answer = filter.evaluate(&batch)?.into_array(runs.len())?;
            wanted = and_kleene(&wanted, answer.as_boolean())?;
        }
        // Null counts as false.
        Ok(wanted.iter().map(|wanted| wanted == Some(true)).collect())
    }
}

impl Wants for Filters {
    fn wants(&self, runs: &[&RunAttributes], place_only: bool) -> Result<Vec<bool>, String> {
        self.evaluate(runs, place_only).map_err(|e| e.to_string())
    }
}

fn texts<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter(values.map(|text| (!text.is_empty()).then_some(text))))
}

/// [`schema::ATTRIBUTES`] as columns with plain texts.
fn attribute_columns<'a>(runs: impl Iterator<Item = &'a RunAttributes> + Clone) -> Vec<ArrayRef> {
    let mut columns: Vec<ArrayRef> =
        (0..6).map(|i| texts(runs.clone().map(move |run| run.texts()[i]))).collect();
    columns.push(Arc::new(BooleanArray::from_iter(runs.map(|run| Some(run.emulated)))));
    columns
}

/// The columns of [`schema::runs`].
fn run_columns(selection: &Selection) -> Vec<ArrayRef> {
    let runs: Vec<&FleetRun> = selection.all().map(Arc::as_ref).collect();
    let number = |of: &dyn Fn(&FleetRun) -> Option<u64>| -> ArrayRef {
        Arc::new(UInt64Array::from_iter(runs.iter().map(|run| of(run))))
    };
    let commands: Vec<String> = runs.iter().map(|run| run.manifest.command.join(" ")).collect();
    let accelerators: Vec<String> =
        runs.iter().map(|run| run.manifest.accelerator.to_string()).collect();
    let mut columns = attribute_columns(runs.iter().map(|run| &run.attributes));
    columns.extend([
        texts(accelerators.iter().map(String::as_str)),
        texts(runs.iter().map(|run| run.manifest.recording.arch.as_str())),
        Arc::new(UInt32Array::from_iter(
            runs.iter().map(|run| Some(run.manifest.recording.cpus).filter(|&cpus| cpus > 0)),
        )),
        texts(runs.iter().map(|run| run.manifest.created.as_str())),
        texts(commands.iter().map(String::as_str)),
        texts(runs.iter().map(|run| run.manifest.tool_version.as_str())),
        texts(runs.iter().map(|run| run.manifest.recording.tool.as_str())),
        number(&|run| Some(run.manifest.interval_ns)),
        number(&|run| run.manifest.span.map(|span| span.start_ns)),
        number(&|run| run.manifest.span.map(|span| span.end_ns)),
        number(&|run| Some(run.manifest.losses.recorder_lost)),
        number(&|run| Some(run.manifest.segments_of(StoredTable::Exits).map(|s| s.rows).sum())),
        number(&|run| Some(run.manifest.segments.iter().map(|s| s.bytes).sum())),
    ]);
    columns
}

/// The columns of [`schema::vms`].
fn vm_columns(selection: &Selection) -> Vec<ArrayRef> {
    let vms: Vec<_> = selection
        .all()
        .flat_map(|run| run.manifest.recording.vms.iter().map(|vm| (&run.attributes, vm)))
        .collect();
    let mut columns = attribute_columns(vms.iter().map(|(run, _)| *run));
    columns.extend([
        Arc::new(UInt32Array::from_iter_values(vms.iter().map(|(_, vm)| vm.id))) as ArrayRef,
        texts(vms.iter().map(|(_, vm)| vm.name.as_str())),
        Arc::new(BooleanArray::from_iter(vms.iter().map(|(_, vm)| Some(vm.inferred)))),
    ]);
    columns
}
