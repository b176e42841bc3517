//! Rows of any columns as a page: one table to sort and filter.

use maud::{Markup, html};

use super::page::{Frame, Section, framed};
use super::{MAX_ROWS, figures};
use crate::numbers;
use crate::rows::Rows;

/// The whole page.
pub(super) fn page(shown: &Rows) -> Markup {
    let body = html! { h2 #rows-title { "Rows" } (table(shown)) };
    let sections = [Section { id: "rows".to_owned(), label: "Rows".to_owned(), body }];
    let frame = Frame {
        title: format!("vmtax query – {}", figures::text(&shown.title)),
        tool_version: &shown.tool_version,
        header: html! {
            header.top {
                div.title { h1 { span.brand { "vmtax" } " query" } }
                dl.facts {
                    div { dt { "Question" } dd { (figures::text(&shown.title)) } }
                    div { dt { "Runs" } dd { (figures::text(&shown.source)) } }
                }
            }
        },
        notice: None,
        footer: html! {
            footer { p { "Made by vmtax " (figures::text(&shown.tool_version)) ". For a program: " code { "--format json" } ", " code { "csv" } " or " code { "parquet" } "." } }
        },
    };
    framed(&frame, &sections)
}

fn table(shown: &Rows) -> Markup {
    let rows = &shown.rows[..shown.rows.len().min(MAX_ROWS)];
    let more = shown.more + (shown.rows.len() - rows.len()) as u64;
    let whole: Vec<bool> =
        (0..shown.columns.len()).map(|i| rows.iter().all(|row| is_whole(&row[i]))).collect();
    html! {
        @for note in &shown.notes { p.note { (figures::text(note)) } }
        @if more > 0 {
            p.note.cut {
                "The first " (numbers::count(rows.len() as u64)) " rows are here, and " (numbers::count(more))
                " more are not. All of them: " code { "--format csv" } "."
            }
        }
        div.above {
            div.tools {
                label for="rows-filter" { "Filter" }
                input.filter id="rows-filter" type="search" autocomplete="off" spellcheck="false"
                    placeholder="Filter rows..." aria-controls="rows-rows";
                output for="rows-filter" aria-live="polite" {
                    (numbers::counted(rows.len() as u64, "row"))
                }
            }
        }
        div.scroll.capped tabindex="0" role="region" aria-label="Table: rows" {
            table data-sortable data-filterable {
                thead {
                    tr {
                        @for (column, &whole) in shown.columns.iter().zip(&whole) {
                            th.n[column.number] scope="col" data-sort=(if whole { "number" } else { "text" }) {
                                (figures::text(&column.name))
                            }
                        }
                    }
                }
                tbody id="rows-rows" {
                    @for row in rows {
                        tr {
                            @for ((column, &whole), cell) in shown.columns.iter().zip(&whole).zip(row) {
                                td.n[column.number] data-v=[cell.as_deref().filter(|_| whole)] {
                                    (cell.as_deref().map_or("–".to_owned(), figures::text))
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The page's script sorts whole numbers exactly; what has a sign or a fraction sorts as text.
fn is_whole(cell: &Option<String>) -> bool {
    cell.as_deref().is_none_or(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
}
