//! Output formats of rows.
//!
//! CSV, JSON and Parquet are streamed, so a result may be larger than memory. Text and HTML keep the first rows and show the number of
//! omitted ones.

use std::io::{self, Write};

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Float64Type, SchemaRef};
use datafusion::arrow::json::writer::{JsonArray, WriterBuilder};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::{DataFusionError, Result};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;
use vmtax_fleet_flags::RowFormat;
use vmtax_report::numbers;
use vmtax_report::rows::{Heading, NotedRows};

use crate::output::Out;

/// Most rows of a text table.
const TEXT_ROWS: usize = 10_000;
/// Schema of the JSON.
const SCHEMA: &str = "vmtax-query-1";

/// The caption of a result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caption {
    /// The question or SQL.
    pub(crate) title: String,
    pub(crate) source: String,
    /// Notes above the table.
    pub(crate) notes: Vec<String>,
}

/// Writes batches in order.
pub(crate) enum Sheet<'a> {
    Kept { rows: NotedRows, format: RowFormat, width: Option<usize>, out: Out<'a> },
    Csv { rows: NotedRows, out: Out<'a> },
    Json { out: Out<'a>, writer: datafusion::arrow::json::Writer<Vec<u8>, JsonArray> },
    Parquet(Box<ArrowWriter<Out<'a>>>),
}

impl<'a> Sheet<'a> {
    /// Starts a sheet with the columns' names.
    pub(crate) fn new(
        format: RowFormat,
        schema: &SchemaRef,
        caption: Caption,
        width: Option<usize>,
        out: Out<'a>,
    ) -> anyhow::Result<Sheet<'a>> {
        let columns = schema.fields().iter();
        let columns =
            columns.map(|f| Heading { name: f.name().clone(), number: f.data_type().is_numeric() });
        let Caption { title, source, notes } = caption;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let rows = NotedRows {
            title,
            source,
            tool_version: version,
            notes,
            columns: columns.collect(),
            ..NotedRows::default()
        };
        Ok(match format {
            RowFormat::Text | RowFormat::Html => Sheet::Kept { rows, format, width, out },
            RowFormat::Csv => {
                rows.csv_head(&mut *out)?;
                Sheet::Csv { rows, out }
            }
            RowFormat::Json => {
                let columns: Vec<_> = schema.fields().iter().map(|field| {
                    serde_json::json!({"name": field.name(), "type": field.data_type().to_string()})
                }).collect();
                write!(
                    out,
                    "{{\"schema\":\"{SCHEMA}\",\"columns\":{},\"rows\":",
                    serde_json::to_string(&columns)?
                )?;
                let writer = WriterBuilder::new()
                    .with_explicit_nulls(true)
                    .build::<_, JsonArray>(Vec::new());
                Sheet::Json { out, writer }
            }
            RowFormat::Parquet => {
                let properties = WriterProperties::builder()
                    .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?));
                Sheet::Parquet(Box::new(ArrowWriter::try_new(
                    out,
                    schema.clone(),
                    Some(properties.build()),
                )?))
            }
        })
    }

    pub(crate) fn batch(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        match self {
            Sheet::Kept { rows, format, .. } => {
                let most = if *format == RowFormat::Text {
                    TEXT_ROWS
                } else {
                    vmtax_report::html::MAX_ROWS
                };
                let room = most.saturating_sub(rows.rows.len()).min(batch.num_rows());
                rows.rows.extend(cells(&batch.slice(0, room), true)?);
                rows.more += (batch.num_rows() - room) as u64;
            }
            Sheet::Csv { rows, out } => {
                rows.rows = cells(batch, false)?;
                rows.csv_rows(&mut **out)?;
            }
            Sheet::Json { out, writer } => {
                writer.write(batch)?;
                out.write_all(&std::mem::take(writer.get_mut()))?;
            }
            Sheet::Parquet(writer) => writer.write(batch).map_err(of_parquet)?,
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> anyhow::Result<()> {
        match self {
            Sheet::Kept { rows, format: RowFormat::Html, out, .. } => rows.html(&mut *out)?,
            Sheet::Kept { rows, width, out, .. } => rows.text(width, &mut *out)?,
            Sheet::Csv { .. } => {}
            Sheet::Json { out, mut writer } => {
                writer.finish()?;
                let end = writer.into_inner();
                // Also for an empty array.
                out.write_all(if end.is_empty() { b"[]" } else { &end })?;
                out.write_all(b"}\n")?;
            }
            Sheet::Parquet(writer) => {
                writer.close().map_err(of_parquet)?;
            }
        }
        Ok(())
    }
}

/// The system's error behind an error, for the exit code.
fn of_parquet(error: datafusion::parquet::errors::ParquetError) -> anyhow::Error {
    use datafusion::parquet::errors::ParquetError;
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => (*source).into(),
            Err(source) => anyhow::anyhow!("{source}"),
        },
        other => other.into(),
    }
}

/// The cells of a batch. Fractions are rounded.
fn cells(batch: &RecordBatch, rounded: bool) -> Result<Vec<Vec<Option<String>>>> {
    let options = FormatOptions::default();
    let mut rows = vec![Vec::with_capacity(batch.num_columns()); batch.num_rows()];
    for column in batch.columns() {
        let formatter = ArrayFormatter::try_new(column.as_ref(), &options)?;
        let floats = (rounded && *column.data_type() == DataType::Float64)
            .then(|| column.as_primitive::<Float64Type>());
        for (i, row) in rows.iter_mut().enumerate() {
            row.push(match floats {
                _ if column.is_null(i) => None,
                Some(floats) => Some(numbers::significant(floats.value(i))),
                None => Some(formatter.value(i).try_to_string().map_err(DataFusionError::from)?),
            });
        }
    }
    Ok(rows)
}
