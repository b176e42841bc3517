//! The screen: who and when, where the time went, what is missing, the place, rows, figures, keys.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;
use vmtax_events::TimeRow;

use super::column;
use super::figure;
use super::keys::HELP;
use super::model::{PageOver, ScreenModel, ScreenRow, ShownScreen, VmState};
use super::rows::View;
use super::space::{figures_in, rows_in};
use crate::names::printable;
use crate::numbers::{self, count, counted, duration, percent, significant};
use crate::text::layout::wrap;

/// In less nothing is aligned any more.
const LEAST: (u16, u16) = (80, 24);
/// Cells of the tax meter.
const METER: usize = 24;

/// Paints the model. Without colours, words and bold or reversed text replace them.
pub fn draw(model: &ScreenModel, area: Rect, buffer: &mut Buffer, has_colors: bool) {
    let mut pen = Pen { area, buffer, has_colors };
    if area.width < LEAST.0 || area.height < LEAST.1 {
        return too_small(&mut pen);
    }
    let shown = model.shown();
    head(&mut pen, model, &shown);
    match model.page_over {
        Some(PageOver::Help) => help(&mut pen),
        Some(PageOver::Losses) => all_losses(&mut pen, model),
        None => {
            rows(&mut pen, model, &shown);
            figures(&mut pen, model, &shown);
        }
    }
    keys(&mut pen, model);
}

struct Pen<'a> {
    area: Rect,
    buffer: &'a mut Buffer,
    has_colors: bool,
}

const PLAIN: Style = Style::new();
const BOLD: Style = PLAIN.add_modifier(Modifier::BOLD);
const REVERSED: Style = PLAIN.add_modifier(Modifier::REVERSED);
const DIM: Style = PLAIN.add_modifier(Modifier::DIM);

impl Pen<'_> {
    /// Text from a cell on, cut with a mark where the screen or `width` ends. Where it ended.
    fn text(&mut self, (x, y): (u16, u16), text: &str, width: u16, style: Style) -> u16 {
        let (x, y) = (self.area.x + x, self.area.y + y);
        if y >= self.area.bottom() {
            return x;
        }
        let width = width.min(self.area.right().saturating_sub(x));
        let end = self.buffer.set_stringn(x, y, text, usize::from(width), style).0;
        if Span::raw(text).width() > usize::from(width) && width > 0 {
            // A wide character may have had no room: what is left of its place is blank.
            self.buffer.set_string(x + width - 1, y, "…", style);
        }
        end - self.area.x
    }

    fn line(&mut self, y: u16, text: &str, style: Style) -> u16 {
        self.text((1, y), text, self.area.width.saturating_sub(2), style)
    }

    /// Text that ends one cell before the right border, and at least two after what is there.
    fn right(&mut self, y: u16, after: u16, text: &str, style: Style) {
        let width = Span::raw(text).width() as u16;
        let x = (self.area.width.saturating_sub(width + 1)).max(after + 2);
        self.text((x, y), text, self.area.width.saturating_sub(x + 1), style);
    }

    fn fill(&mut self, y: u16, style: Style) {
        let row = Rect { y: self.area.y + y, height: 1, ..self.area };
        self.buffer.set_style(row.intersection(self.area), style);
    }

    /// What is not as it should be.
    fn warning(&self) -> Style {
        if self.has_colors { BOLD.fg(Color::Red) } else { BOLD }
    }
}

fn too_small(pen: &mut Pen<'_>) {
    let Rect { width, height, .. } = pen.area;
    for (y, line) in (0..).zip([
        format!("This terminal is {width}x{height};"),
        format!("vmtax top needs {}x{}.", LEAST.0, LEAST.1),
        "Enlarge it, or press q.".to_owned(),
    ]) {
        pen.text((0, y), &line, width, PLAIN);
    }
}

fn head(pen: &mut Pen<'_>, model: &ScreenModel, shown: &ShownScreen) {
    let recording = &model.facts.recording;
    let mut who = vec!["vmtax top".to_owned()];
    // That before what may be cut.
    who.extend(recording.emulated.as_deref().map(|by| format!("emulated: {}", printable(by))));
    let said = [&recording.hostname, &recording.kernel];
    who.extend(said.into_iter().filter(|text| !text.is_empty()).map(|text| printable(text)));
    let when = model.when();
    // The end of the line is for the time, whatever the host is called.
    let room = pen.area.width.saturating_sub(Span::raw(when.as_str()).width() as u16 + 4);
    let end = pen.text((1, 0), &who.join("  "), room, BOLD);
    pen.right(0, end, &when, BOLD);

    let whole = &shown.whole;
    let tax = ScreenModel::whole_tax(whole);
    let filled = (tax.unwrap_or(0.0).clamp(0.0, 1.0) * METER as f64).round() as usize;
    let meter = format!("{}{}", "|".repeat(filled), " ".repeat(METER - filled));
    let tax = tax.map_or("unknown".to_owned(), percent);
    let end = pen.line(1, &format!("tax [{meter}] {tax}"), BOLD);
    let exits = match shown.measure.length_ns {
        Some(ns) => {
            let rate = whole.tally.count as f64 * 1e9 / ns.max(1) as f64;
            format!("{} exits/s", column::rate(rate))
        }
        None => counted(whole.tally.count, "exit"),
    };
    let mut said = vec![exits];
    let within = &model.place().within;
    said.extend(within.vm.is_none().then(|| counted(shown.vms as u64, "VM")));
    said.extend(within.vcpu.is_none().then(|| counted(whole.vcpus as u64, "vCPU")));
    pen.right(1, end, &said.join("   "), PLAIN);
    pen.line(2, &split(&whole.time, &shown.measure), PLAIN);
    losses(pen, model);
    place(pen, model);
}

/// Where the time of all vCPUs went.
fn split(time: &TimeRow, measure: &column::RowMeasure) -> String {
    let parts = TimeRow::whole_parts();
    let known = parts.filter_map(|part| Some((part, part.told(time, &measure.coverage)?)));
    // Time is unknown where events are missing; elsewhere there is nothing to say of it.
    let known = known.filter(|(part, ns)| part.name != "unknown" || *ns > 0);
    let known = known.map(|(part, ns)| (part.name.trim_start_matches("exit-"), ns));
    let words = known.map(|(name, ns)| match numbers::share(ns, time.wall_ns) {
        Some(share) => format!("{name} {}", percent(share)),
        None => format!("{name} -"),
    });
    words.collect::<Vec<_>>().join("   ")
}

fn losses(pen: &mut Pen<'_>, model: &ScreenModel) {
    let all = model.facts.losses.as_slice();
    match all {
        [] => {
            pen.line(3, "No known losses.", DIM);
        }
        [first, ..] => {
            let more = match all.len() {
                1 if Span::raw(first).width() + 2 <= usize::from(pen.area.width) => String::new(),
                1 => "l: full text".to_owned(),
                n => format!("l: all {n}"),
            };
            let room = pen.area.width.saturating_sub(more.len() as u16 + 4);
            let style = if model.facts.is_lossy { pen.warning() } else { DIM };
            let end = pen.text((1, 3), first, room, style);
            pen.right(3, end, &more, style);
        }
    }
}

/// All that is missing, as far as it has room.
fn all_losses(pen: &mut Pen<'_>, model: &ScreenModel) {
    pen.fill(5, REVERSED);
    pen.line(5, "Losses: any key returns", REVERSED);
    let width = usize::from(pen.area.width - 2);
    let lines = model.facts.losses.iter().flat_map(|sentence| wrap(sentence, Some(width), "", ""));
    for (y, line) in (6..pen.area.height - 1).zip(lines) {
        pen.line(y, &line, PLAIN);
    }
}

fn place(pen: &mut Pen<'_>, model: &ScreenModel) {
    let place = model.place();
    let mut x = 0;
    for view in View::ALL {
        let is_open = place.within.views().contains(&view);
        let style = match view == place.view {
            true => REVERSED,
            false if is_open => PLAIN,
            false => DIM,
        };
        x = pen.text((x, 4), &format!(" {} ", view.name()), pen.area.width, style);
    }
    let mut path = model.path();
    if !place.filter.is_empty() {
        path.push_str(&format!("   only \"{}\"", printable(&place.filter)));
    }
    pen.right(4, x, &path, PLAIN);
}

fn rows(pen: &mut Pen<'_>, model: &ScreenModel, shown: &ShownScreen) {
    let place = model.place();
    let (columns, left_out) = column::fitting(&shown.columns, pen.area.width);
    pen.fill(5, REVERSED);
    let mut x = 0;
    for column in columns {
        let is_sorted = column.key == place.sort;
        let mark = match (is_sorted, place.is_descending) {
            (true, true) => "▼",
            (true, false) => "▲",
            _ => " ",
        };
        let style = if is_sorted { REVERSED.patch(BOLD) } else { REVERSED };
        let heading = format!("{:>width$}{mark}", column.title, width = column.screen.width);
        x = cell(pen, (x, 5), &heading, style);
    }
    if !left_out.is_empty() {
        let names: Vec<&str> = left_out.iter().map(|column| column.title.as_ref()).collect();
        let width = pen.area.width;
        let y = pen.area.height - figures_in(pen.area.height) - 2;
        pen.line(y, &format!("not shown in {width} columns: {}", names.join(", ")), DIM);
    }
    let page = rows_in(pen.area.height);
    let first = (shown.index + 1).saturating_sub(page.max(1));
    if shown.rows.is_empty() {
        pen.line(7, &nothing(model), PLAIN);
    }
    for (y, (index, row)) in (6..).zip(shown.rows.iter().enumerate().skip(first).take(page)) {
        let style = match row.state {
            _ if index == shown.index => REVERSED,
            VmState::Runs => PLAIN,
            VmState::Idle | VmState::Gone => DIM,
        };
        pen.fill(y, style);
        line(pen, y, row, (model, shown), style);
    }
}

/// A cell and the gap after it. Where the next begins.
fn cell(pen: &mut Pen<'_>, (x, y): (u16, u16), text: &str, style: Style) -> u16 {
    pen.text((x, y), text, pen.area.width, style)
}

fn line(
    pen: &mut Pen<'_>,
    y: u16,
    row: &ScreenRow,
    (model, shown): (&ScreenModel, &ShownScreen),
    style: Style,
) {
    let mut x = 0;
    for (column, value) in shown.columns.iter().zip(&row.cells) {
        if pen.area.width < column.screen.from {
            continue;
        }
        let mut text = value.text();
        if column.key == column::NAME && row.state == VmState::Gone {
            text.insert_str(0, if model.is_live() { "ended " } else { "gone " });
        }
        x = match column.screen.width {
            0 => cell(pen, (x, y), &text, style),
            width => cell(pen, (x, y), &format!("{text:>width$} "), style),
        };
    }
}

/// Why there is no row.
fn nothing(model: &ScreenModel) -> String {
    let place = model.place();
    match (place.filter.as_str(), place.view) {
        ("", View::Vms) if model.is_live() && !model.is_paused() => {
            "No VM runs; waiting.".to_owned()
        }
        ("", View::Vms) => "Nothing was recorded.".to_owned(),
        ("", _) => "Nothing happened here in this interval.".to_owned(),
        (filter, _) => {
            format!("No row matches \"{}\"; Esc clears the filter.", printable(filter))
        }
    }
}

/// Who had the processors.
fn takers(takers: &[(String, f64)]) -> Option<String> {
    let named: Vec<String> =
        takers.iter().take(3).map(|(name, share)| format!("{name} {}", percent(*share))).collect();
    (!named.is_empty()).then(|| format!("preempted by {}", named.join(", ")))
}

fn figures(pen: &mut Pen<'_>, model: &ScreenModel, shown: &ShownScreen) {
    let Rect { x, y, width, height } = pen.area;
    let (top, lines) = (height - 1 - figures_in(height), figures_in(height));
    let Some(row) = shown.rows.get(shown.index) else { return };
    let left = (width * 3 / 5).max(width.saturating_sub(70));
    let tally = &row.sums.tally;
    let mean = vmtax_analyse::statistics::mean_ns(tally);
    let title = match mean {
        Some(mean) => {
            let what = if tally.timed == 1 { "exit" } else { "exits" };
            let longest = duration(tally.max_ns as f64);
            format!("{} {what}: mean {}, longest {longest}", count(tally.timed), duration(mean))
        }
        None => "no exit is timed".to_owned(),
    };
    pen.text((1, top), &title, left - 3, BOLD);
    let named = takers(&shown.takers);
    let taken = u16::from(named.is_some());
    if let Some(named) = named {
        pen.text((1, top + 1), &named, left - 3, PLAIN);
    }
    let below =
        Rect { x: x + 1, y: y + top + 1 + taken, width: left - 3, height: lines - 1 - taken };
    figure::histogram(tally, below, pen.buffer);
    if !model.frames.is_timed() || shown.history.is_empty() {
        return;
    }
    let highest = shown.history.iter().copied().fold(0.0, f64::max);
    let title = format!("exits/s, at most {}", significant(highest));
    pen.text((left, top), &title, width - left - 1, BOLD);
    let below = Rect { x: x + left, y: y + top + 1, width: width - left - 1, height: lines - 2 };
    figure::history(&shown.history, below, pen.buffer);
    let intervals = shown.history.len().min(usize::from(below.width)) as u64;
    let label = format!("the last {}", counted(intervals, "interval"));
    pen.text((left, top + lines - 1), &label, width - left - 1, PLAIN);
}

fn help(pen: &mut Pen<'_>) {
    pen.fill(5, REVERSED);
    pen.line(5, "Help: any key returns", REVERSED);
    for (y, (keys, what)) in (6..).zip(HELP) {
        pen.text((1, y), keys, 28, BOLD);
        pen.text((30, y), what, pen.area.width.saturating_sub(31), PLAIN);
    }
}

fn keys(pen: &mut Pen<'_>, model: &ScreenModel) {
    let y = pen.area.height - 1;
    if let Some(text) = &model.prompt {
        let end = pen.line(y, &format!("filter: {}_", printable(text)), BOLD);
        pen.right(y, end, "Enter: apply   Esc: cancel", PLAIN);
        return;
    }
    let pause = if model.is_live() { "Pause" } else { "Play" };
    let mut x = 0;
    for (key, what) in [
        ("h", "Help"),
        ("/", "Filter"),
        ("s", "Sort"),
        ("r", "Reverse"),
        ("Tab", "View"),
        ("Enter", "In"),
        ("Esc", "Out"),
        ("Space", pause),
        ("a", "All"),
        ("q", "Quit"),
    ] {
        x = pen.text((x, y), key, pen.area.width, BOLD);
        x = pen.text((x, y), &format!("{what} "), pen.area.width, REVERSED);
    }
}
