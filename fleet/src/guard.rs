//! Restricts SQL to reading the tables of the fleet.
//!
//! One statement is allowed: SELECT (or WITH, VALUES), EXPLAIN of one, SHOW or DESCRIBE. It is checked twice: as text and as a plan. The
//! session has only the fleet's tables, and no function that opens a file.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::ast::Statement as Sql;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

/// Most bytes of a SQL text.
const MAX_BYTES: usize = 1 << 20;

/// Most SELECTs of a text. Planning a UNION takes more than linear time, so they are counted before.
const MAX_SELECTS: usize = 500;

fn selects(sql: &str) -> usize {
    let is_select =
        |token: &&Token| matches!(token, Token::Word(word) if word.keyword == Keyword::SELECT);
    // The parser reports invalid tokens and their place.
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize().unwrap_or_default();
    tokens.iter().filter(is_select).count()
}

/// The one statement of a text.
///
/// # Errors
/// When it is not allowed, or cannot be parsed.
pub fn statement(sql: &str) -> Result<Statement> {
    let refused = |why: String| Err(DataFusionError::Plan(why));
    if sql.len() > MAX_BYTES {
        return refused(format!("the SQL is longer than {MAX_BYTES} bytes"));
    }
    let selects = selects(sql);
    if selects > MAX_SELECTS {
        return refused(format!(
            "it has {selects} SELECTs, and at most {MAX_SELECTS} can be planned; ask it in parts"
        ));
    }
    let mut statements = DFParser::parse_sql(sql)?;
    if statements.len() > 1 {
        return refused(format!("one statement at a time, and this is {}", statements.len()));
    }
    let Some(statement) = statements.pop_front() else {
        return refused("there is no statement in it".to_owned());
    };
    match forbidden(&statement) {
        Some(verb) => {
            refused(format!("{verb} is not allowed: a query only reads the runs that it is given"))
        }
        None => Ok(statement),
    }
}

/// The first operation of a statement that is not reading.
fn forbidden(statement: &Statement) -> Option<String> {
    match statement {
        Statement::Explain(explain) => forbidden(&explain.statement),
        Statement::CopyTo(_) => Some("COPY".to_owned()),
        Statement::CreateExternalTable(_) => Some("CREATE EXTERNAL TABLE".to_owned()),
        Statement::Reset(_) => Some("RESET".to_owned()),
        Statement::Statement(sql) => match sql.as_ref() {
            Sql::Query(_)
            | Sql::ExplainTable { .. }
            | Sql::ShowTables { .. }
            | Sql::ShowColumns { .. }
            | Sql::ShowFunctions { .. }
            | Sql::ShowVariable { .. } => None,
            other => Some(verb(&other.to_string())),
        },
    }
}

/// The words in capitals that a statement begins with.
fn verb(statement: &str) -> String {
    let words = statement.split_whitespace().take(3);
    let verb: Vec<&str> = words.take_while(|w| w.bytes().all(|b| b.is_ascii_uppercase())).collect();
    if verb.is_empty() { "this".to_owned() } else { verb.join(" ") }
}

/// Checks that all of a plan only reads, and that it is not too large to be optimized, which takes more than linear time.
///
/// # Errors
/// A sentence.
pub fn plan(plan: &LogicalPlan) -> Result<()> {
    SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false)
        .verify_plan(plan)?;
    let size = PlanSize::of(plan)?;
    for (what, found, most) in [
        ("joins", size.joins, MAX_JOINS),
        ("steps", size.steps, MAX_STEPS),
        ("operators and functions", size.operators, MAX_OPERATORS),
    ] {
        if found > most {
            return Err(DataFusionError::Plan(format!(
                "it has {found} {what}, and at most {most} can be planned; ask it in parts"
            )));
        }
    }
    Ok(())
}

const MAX_JOINS: usize = 100;
const MAX_STEPS: usize = 2_000;
const MAX_OPERATORS: usize = 2_000;

/// Size of a plan. Values and columns do not count: lists of them are long and flat.
#[derive(Debug, Default)]
struct PlanSize {
    joins: usize,
    steps: usize,
    operators: usize,
}

impl PlanSize {
    fn of(plan: &LogicalPlan) -> Result<PlanSize> {
        let mut size = PlanSize::default();
        plan.apply_with_subqueries(|step| {
            size.steps += 1;
            size.joins += usize::from(matches!(step, LogicalPlan::Join(_)));
            step.apply_expressions(|whole| {
                whole.apply(|part| {
                    let is_leaf = matches!(part, Expr::Literal(..) | Expr::Column(_));
                    size.operators += usize::from(!is_leaf);
                    Ok(TreeNodeRecursion::Continue)
                })
            })
        })?;
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_is_allowed() {
        for sql in [
            "SELECT 1",
            "select count(*) from exits;",
            "WITH a AS (SELECT 1) SELECT * FROM a",
            "EXPLAIN SELECT 1",
            "EXPLAIN ANALYZE SELECT 1",
            "SHOW TABLES",
            "DESCRIBE exits",
            "VALUES (1), (2)",
        ] {
            assert!(statement(sql).is_ok(), "{sql}: {:?}", statement(sql));
        }
    }

    #[test]
    fn nothing_else_is() {
        for (sql, verb) in [
            ("INSERT INTO exits VALUES (1)", "INSERT INTO"),
            ("UPDATE exits SET count = 0", "UPDATE"),
            ("DELETE FROM exits", "DELETE FROM"),
            ("TRUNCATE TABLE exits", "TRUNCATE TABLE"),
            ("DROP TABLE exits", "DROP TABLE"),
            ("CREATE TABLE t AS SELECT 1", "CREATE TABLE"),
            ("CREATE VIEW v AS SELECT 1", "CREATE VIEW"),
            (
                "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'",
                "CREATE EXTERNAL TABLE",
            ),
            ("COPY exits TO '/tmp/x.parquet'", "COPY"),
            ("COPY (SELECT 1) TO '/tmp/x.csv'", "COPY"),
            ("EXPLAIN COPY exits TO '/tmp/x.parquet'", "COPY"),
            ("EXPLAIN ANALYZE INSERT INTO exits VALUES (1)", "INSERT INTO"),
            ("SET datafusion.execution.batch_size = 1", "SET"),
            ("RESET datafusion.execution.batch_size", "RESET"),
            ("PREPARE p AS SELECT 1", "PREPARE"),
            ("BEGIN", "BEGIN"),
        ] {
            let said = statement(sql).map(|_| ()).unwrap_err().to_string();
            assert!(
                said.contains(&format!("{verb} ")) && said.contains("not allowed"),
                "{sql}: {said}"
            );
        }
        assert!(statement("SELECT 1; SELECT 2").is_err());
        assert!(statement("").is_err() && statement("-- nothing").is_err());
        assert!(statement(&format!("SELECT {}1", "-".repeat(MAX_BYTES))).is_err());
    }
}
