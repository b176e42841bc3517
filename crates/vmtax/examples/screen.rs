//! Draws a screen of `vmtax top --replay` as SVG: the cells that the terminal would show. `./x pictures` runs it.
//!
//! Usage: screen RUN|FILE [COLUMNS] [LINES] [KEY]... > screen.svg
//!
//! A key is a character, or `Right`, `Left`, `Up`, `Down`, `Enter`, `Escape`, `Tab` or `End`. Each interval is 100 ms.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context as _, anyhow};
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};
use vmtax_report::tui::{FrameSource, HostFacts, Key, ScreenModel, draw};
use vmtax_runs::ReadOptions;
use vmtax_runs::frames::{self, Replay};

/// Size of a cell of the 14 px font, px.
const CELL: (f64, f64) = (8.4, 17.0);
/// Space around the screen, px.
const MARGIN: f64 = 12.0;
/// Foreground, background, and dimmed foreground.
const COLORS: [&str; 3] = ["#d6d8dc", "#16181d", "#8a8f99"];
const RED: &str = "#ff7b72";

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let path = words.next().context("usage: screen RUN|FILE [COLUMNS] [LINES] [KEY]...")?;
    let mut size = |default: u16| words.next().map_or(Ok(default), |word| word.parse());
    let (width, height) = (size(100)?, size(24)?);
    let Replay { frames, recording, losses, complete } =
        frames::of_path(Path::new(&path), &ReadOptions::default())?;
    let facts = HostFacts::new(recording, &losses, complete);
    let mut model = ScreenModel::new(FrameSource::Replay, facts, frames);
    model.resize(width, height);
    for word in words {
        model.key(key_named(&word).ok_or_else(|| anyhow!("{word}: no such key"))?);
    }
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(&model, area, &mut buffer, true);
    Ok(io::stdout().write_all(svg(&buffer).as_bytes())?)
}

fn key_named(word: &str) -> Option<Key> {
    let mut characters = word.chars();
    Some(match (characters.next()?, characters.next()) {
        (character, None) => Key::Char(character),
        _ => match word {
            "Right" => Key::Right,
            "Left" => Key::Left,
            "Up" => Key::Up,
            "Down" => Key::Down,
            "Enter" => Key::Enter,
            "Escape" => Key::Escape,
            "Tab" => Key::Tab,
            "End" => Key::End,
            _ => return None,
        },
    })
}

/// Foreground, background, and whether the text is bold.
fn look(cell: &Cell) -> (&'static str, &'static str, bool) {
    let [plain, background, dim] = COLORS;
    let foreground = match cell.fg {
        Color::Red => RED,
        _ if cell.modifier.contains(Modifier::DIM) => dim,
        _ => plain,
    };
    let is_bold = cell.modifier.contains(Modifier::BOLD);
    match cell.modifier.contains(Modifier::REVERSED) {
        true => (background, foreground, is_bold),
        false => (foreground, background, is_bold),
    }
}

fn svg(buffer: &Buffer) -> String {
    let Rect { width, height, .. } = buffer.area;
    let size = |cells: u16, cell: f64| f64::from(cells) * cell + 2.0 * MARGIN;
    let (w, h) = (size(width, CELL.0), size(height, CELL.1));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\" xml:space=\"preserve\">\n\
         <title>vmtax top</title>\n<rect width=\"{w:.0}\" height=\"{h:.0}\" rx=\"8\" fill=\"{}\"/>\n",
        COLORS[1]
    );
    for (y, row) in buffer.content().chunks(usize::from(width).max(1)).enumerate() {
        let mut x = 0;
        for run in row.chunk_by(|a, b| look(a) == look(b)) {
            let text: String = run.iter().map(Cell::symbol).collect();
            draw_run(&mut svg, (x, y), &text, (run.len(), look(&run[0])));
            x += run.len();
        }
    }
    svg + "</svg>\n"
}

/// Cells of one look. The text is stretched to its cells, because the viewer's font may be wider or narrower.
fn draw_run(
    svg: &mut String,
    (x, y): (usize, usize),
    text: &str,
    (cells, (foreground, background, is_bold)): (usize, (&str, &str, bool)),
) {
    let left = MARGIN + x as f64 * CELL.0;
    let top = MARGIN + y as f64 * CELL.1;
    let width = cells as f64 * CELL.0;
    if background != COLORS[1] {
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{}\" fill=\"{background}\"/>",
            CELL.1
        );
    }
    if text.trim().is_empty() {
        return;
    }
    let base = top + CELL.1 * 0.76;
    let weight = if is_bold { " font-weight=\"bold\"" } else { "" };
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace(' ', "\u{a0}");
    let _ = writeln!(
        svg,
        "<text x=\"{left:.1}\" y=\"{base:.1}\" textLength=\"{width:.1}\" lengthAdjust=\"spacingAndGlyphs\" \
         fill=\"{foreground}\"{weight}>{text}</text>"
    );
}
