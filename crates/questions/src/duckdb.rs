//! The tables of words and `exits_named` as SQL that DuckDB runs.

use std::fmt::Write as _;

use crate::EXITS_NAMED;
use crate::words::{WordsColumn, WordsTable, tables};

/// The tables of words, and a macro `exits_named(files)` over Parquet files of exits.
pub fn sql() -> String {
    let mut sql = String::new();
    for WordsTable { name, columns } in tables() {
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let columns: Vec<Vec<String>> =
            columns.iter().map(|(_, column)| literals(column)).collect();
        let rows = columns.first().map_or(0, Vec::len);
        let row = |row: usize| {
            let cells: Vec<&str> =
                columns.iter().filter_map(|cells| cells.get(row)).map(String::as_str).collect();
            format!("({})", cells.join(", "))
        };
        let rows: Vec<String> = (0..rows).map(row).collect();
        // Writing to a text cannot fail.
        let _ = write!(
            sql,
            "CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM (VALUES\n{}\n) AS t({});\n",
            rows.join(",\n"),
            names.join(", ")
        );
    }
    let view = EXITS_NAMED.replace("FROM exits e", "FROM read_parquet(files) e");
    sql + &format!("CREATE OR REPLACE TEMP MACRO exits_named(files) AS TABLE\n{view};\n")
}

/// Values as SQL writes them.
fn literals(column: &WordsColumn) -> Vec<String> {
    match column {
        WordsColumn::Text(texts) => {
            let literal = |text: &String| format!("'{}'", text.replace('\'', "''"));
            texts.iter().map(|text| text.as_ref().map_or("NULL".to_owned(), literal)).collect()
        }
        WordsColumn::Number32(numbers) => numbers.iter().map(u32::to_string).collect(),
        WordsColumn::Number64(numbers) => numbers.iter().map(u64::to_string).collect(),
        WordsColumn::Flag(flags) => flags.iter().map(bool::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_macro_reads_files_in_place_of_the_table() {
        let sql = sql();
        assert!(sql.contains("\nFROM read_parquet(files) e\n") && !sql.contains("FROM exits"));
        assert!(sql.contains("\n('vmx', 10, 'CPUID', 'cpuid', "));
        assert!(sql.ends_with(";\n"));
    }

    #[test]
    fn texts_are_quoted() {
        let texts = WordsColumn::Text(vec![Some("guest's".to_owned()), None]);
        assert_eq!(literals(&texts), ["'guest''s'", "NULL"]);
    }
}
