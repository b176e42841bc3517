//! Ways through the rows, the tree and the time.

use super::{FrameSource, SPEEDS, ScreenModel, ShownScreen, TimeShown, TreePlace};
use crate::tui::column;
use crate::tui::rows::View;

impl ScreenModel {
    pub(in crate::tui) fn choose(&mut self, by: isize) {
        let ShownScreen { rows, index, .. } = self.shown();
        let last = rows.len().saturating_sub(1);
        let index = index.saturating_add_signed(by).min(last);
        let chosen = rows.get(index).map(|row| row.key.clone());
        let place = self.place_mut();
        (place.chosen, place.index) = (chosen, index);
    }

    pub(in crate::tui) fn enter(&mut self) {
        // Where it was chosen without a key it is now.
        self.choose(0);
        let place = self.place();
        let Some(row) = place.chosen.clone().filter(|_| place.view != View::Exits) else { return };
        let within = place.within.row(&row);
        let next = within.views().into_iter().find(|view| *view > place.view);
        self.places.push(TreePlace::new(within, next.unwrap_or(View::Exits)));
    }

    /// Out of the row; at the top out of the filter.
    pub(in crate::tui) fn leave(&mut self) {
        if !self.place().filter.is_empty() {
            self.filter_by(String::new());
        } else if self.places.len() > 1 {
            self.places.pop();
        }
    }

    pub(in crate::tui) fn next_view(&mut self, by: isize) {
        let views = self.place().within.views();
        let now = views.iter().position(|view| *view == self.place().view).unwrap_or(0);
        let next = (now as isize + by).rem_euclid(views.len().max(1) as isize) as usize;
        self.look(views[next]);
    }

    pub(in crate::tui) fn view(&mut self, number: usize) {
        if let Some(view) = View::ALL.get(number)
            && self.place().within.views().contains(view)
        {
            self.look(*view);
        }
    }

    fn look(&mut self, view: View) {
        let within = self.place().within;
        *self.place_mut() = TreePlace::new(within, view);
    }

    pub(in crate::tui) fn filter_by(&mut self, text: String) {
        let place = self.place_mut();
        place.filter = text;
        (place.chosen, place.index) = (None, 0);
    }

    pub(in crate::tui) fn sort_by(&mut self, by: isize) {
        // Not by what a wider terminal would show.
        let columns = self.shown().columns;
        let (columns, _) = column::fitting(&columns, self.width);
        let place = self.place_mut();
        let now = columns.iter().position(|column| column.key == place.sort).unwrap_or(0);
        let next = (now as isize + by).rem_euclid(columns.len() as isize) as usize;
        place.sort = columns[next].key;
        place.is_descending = !matches!(place.sort, column::ID | column::NAME);
    }

    pub(in crate::tui) fn reverse(&mut self) {
        let place = self.place_mut();
        place.is_descending = !place.is_descending;
    }

    pub(in crate::tui) fn pause(&mut self) {
        match (self.source, self.at) {
            (FrameSource::Live(_), TimeShown::Newest) => {
                self.at = self.frames.last().map_or(TimeShown::Newest, TimeShown::Start);
            }
            (FrameSource::Live(_), _) => self.at = TimeShown::Newest,
            (FrameSource::Replay, at) => {
                self.is_playing = !self.is_playing && self.frames.len() > 1;
                let is_at_end = at == self.frames.last().map_or(TimeShown::All, TimeShown::Start);
                if self.is_playing && (at == TimeShown::All || is_at_end) {
                    self.at = self.frames.first().map_or(TimeShown::All, TimeShown::Start);
                }
            }
        }
    }

    pub(in crate::tui) fn toggle_all(&mut self) {
        self.is_playing = false;
        self.at = match (self.at, self.source) {
            (TimeShown::All, FrameSource::Live(_)) => TimeShown::Newest,
            (TimeShown::All, FrameSource::Replay) => {
                self.frames.first().map_or(TimeShown::All, TimeShown::Start)
            }
            _ => TimeShown::All,
        };
    }

    pub(in crate::tui) fn step_back(&mut self) {
        self.is_playing = false;
        let end = self.frames.last();
        let to = match self.at {
            TimeShown::Start(start) => self.frames.previous(start).or(Some(start)),
            TimeShown::Newest => end.and_then(|end| self.frames.previous(end)).or(end),
            TimeShown::All => end,
        };
        self.at = to.map_or(self.at, TimeShown::Start);
    }

    pub(in crate::tui) fn step_on(&mut self) {
        self.is_playing = false;
        let next = match self.at {
            TimeShown::Start(start) => self.frames.after(start),
            TimeShown::All => self.frames.first(),
            TimeShown::Newest => None,
        };
        self.at = match (next, self.at) {
            (Some(next), _) => TimeShown::Start(next),
            (None, TimeShown::Start(_)) if self.is_live() => TimeShown::Newest,
            (None, at) => at,
        };
    }

    pub(in crate::tui) fn faster(&mut self) {
        self.speed = (self.speed + 1).min(SPEEDS.len() - 1);
    }

    pub(in crate::tui) fn slower(&mut self) {
        self.speed = self.speed.saturating_sub(1);
    }
}
