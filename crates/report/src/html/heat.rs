//! A heat map: rows of numbers, each coloured by its ratio to the first of its row.

use maud::{Markup, html};

use super::figures;

pub struct Heat {
    /// Its `id`, a plain word.
    pub id: String,
    /// Its heading. Hostile text.
    pub title: String,
    /// Headings of the columns. Hostile text.
    pub columns: Vec<String>,
    pub rows: Vec<HeatRow>,
}

pub struct HeatRow {
    pub name: String,
    /// A cell for each column.
    pub cells: Vec<HeatCell>,
}

pub struct HeatCell {
    /// Hostile text.
    pub text: String,
    /// Its number over the first of the row.
    pub ratio: Option<f64>,
    /// What changed from the column before. Hostile text.
    pub title: Option<String>,
    /// A file beside the page with the details.
    pub link: Option<String>,
}

/// Ratios from which on a colour is one step darker.
const STEPS: [f64; 4] = [1.01, 1.05, 1.15, 1.40];
const MORE: [&str; 5] = ["", "more1", "more2", "more3", "more4"];
const FEWER: [&str; 5] = ["", "fewer1", "fewer2", "fewer3", "fewer4"];

/// The class of a cell.
fn class(ratio: Option<f64>) -> &'static str {
    let Some(ratio) = ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0) else { return "" };
    let step = |ratio: f64| STEPS.iter().filter(|step| ratio >= **step).count();
    if ratio >= 1.0 { MORE[step(ratio)] } else { FEWER[step(1.0 / ratio)] }
}

pub(super) fn drawing(heat: &Heat) -> Markup {
    html! {
        h2 id={ (heat.id) "-title" } { (figures::text(&heat.title)) }
        p.note {
            "Instructions of one operation. Red: longer than in the first column, blue: shorter; the steps are 1, 5, 15 and 40 %. "
            "Bold: changed from the column before; a link leads to the functions. ±: half of the distance that the middle half of the batches is apart, where that is above half a percent."
        }
        div.scroll {
            table.heat {
                thead { tr {
                    th scope="col" { "operation" }
                    @for column in &heat.columns { th scope="col" { (figures::text(column)) } }
                } }
                tbody {
                    @for row in &heat.rows {
                        tr {
                            th scope="row" { (figures::text(&row.name)) }
                            @for cell in &row.cells { (drawn(cell)) }
                        }
                    }
                }
            }
        }
    }
}

fn drawn(cell: &HeatCell) -> Markup {
    let text = figures::text(&cell.text);
    let title = cell.title.as_deref().map(figures::text);
    let inside = html! {
        @match &cell.link {
            Some(link) => a href=(encoded(link)) { (text) },
            None => (text),
        }
    };
    html! {
        td class=(class(cell.ratio)) title=[title.as_ref()] {
            @if cell.title.is_some() { strong { (inside) } } @else { (inside) }
        }
    }
}

/// A file's name as a relative address.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode =
        |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    format!("./{}", name.bytes().map(encode).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_follow_the_ratio() {
        let classes = [
            Some(1.0),
            Some(1.009),
            Some(1.02),
            Some(0.94),
            Some(1.5),
            Some(0.5),
            None,
            Some(f64::NAN),
        ];
        let expected = ["", "", "more1", "fewer2", "more4", "fewer4", "", ""];
        assert_eq!(classes.map(class), expected);
    }

    #[test]
    fn names_are_escaped() {
        let cell = HeatCell {
            text: "<b>".to_owned(),
            ratio: None,
            title: Some("\"><i>".to_owned()),
            link: Some("step-6.1+deb/\"x.html".to_owned()),
        };
        let page = drawn(&cell).into_string();
        assert!(!page.contains("<b>") && !page.contains("<i>"), "{page}");
        assert!(page.contains("href=\"./step-6.1%2Bdeb%2F%22x.html\""), "{page}");
    }
}
