//! Keys, as in htop.

use super::model::{PageOver, ScreenModel};

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Ctrl(char),
    F(u8),
    Up,
    Down,
    /// Back in time.
    Left,
    /// On in time.
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    /// Out of it; in a text the last character.
    Backspace,
    Tab,
    BackTab,
}

/// What a key asks of the program around the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing but to paint it again.
    GoOn,
    Quit,
    /// To be stopped, as a shell's Ctrl-Z does.
    Stop,
    /// To paint all of it anew.
    Redraw,
}

/// What the help says.
pub(super) const HELP: [(&str, &str); 17] = [
    ("Up Down PgUp PgDn Home End", "choose a row"),
    ("Enter", "open the row: its vCPUs, causes, exits"),
    ("Esc Backspace", "back out"),
    ("Tab Shift-Tab 1 2 3 4", "show VMs, vCPUs, causes, exits"),
    ("s S F6 < >", "sort by the next, the previous column"),
    ("r I", "reverse the order"),
    ("/ F4", "only rows with this text in name or id"),
    ("Space p", "pause, continue; play a recording"),
    ("Left Right", "previous, next interval"),
    ("+ -", "play faster, slower"),
    ("a", "totals since the start"),
    ("l", "all losses"),
    ("h ? F1", "this help"),
    ("q F10 Ctrl-C", "end"),
    ("TAX%", "time in exits, of the known time not halted"),
    ("KERN% USER% HALT% PREE%", "in the kernel, in the VMM, halted, preempted"),
    ("P99", "99th percentile (upper bound)"),
];

impl ScreenModel {
    /// Does what a key says.
    pub fn key(&mut self, key: Key) -> Wish {
        match key {
            Key::Ctrl('c') => return Wish::Quit,
            Key::Ctrl('z') => return Wish::Stop,
            Key::Ctrl('l') => return Wish::Redraw,
            _ => {}
        }
        if self.prompt.is_some() {
            self.type_filter(key);
            return Wish::GoOn;
        }
        if self.page_over.take().is_some() {
            // Any key leads back, and the one that ends ends.
            return if matches!(key, Key::Char('q') | Key::F(10)) {
                Wish::Quit
            } else {
                Wish::GoOn
            };
        }
        match key {
            Key::Char('q') | Key::F(10) => return Wish::Quit,
            Key::Char('h' | '?') | Key::F(1) => self.page_over = Some(PageOver::Help),
            Key::Char('l') => self.page_over = Some(PageOver::Losses),
            Key::Char('/' | '\\') | Key::F(3 | 4) => {
                self.prompt = Some(self.place().filter.clone());
            }
            Key::Char('s' | '>') | Key::F(6) => self.sort_by(1),
            Key::Char('S' | '<') => self.sort_by(-1),
            Key::Char('r' | 'I') => self.reverse(),
            Key::Char(' ' | 'p') => self.pause(),
            Key::Char('a') => self.toggle_all(),
            Key::Char('+' | '=') => self.faster(),
            Key::Char('-') => self.slower(),
            Key::Char(digit @ '1'..='4') => self.view(digit as usize - '1' as usize),
            other => self.travel(other),
        }
        Wish::GoOn
    }

    /// Keys that move.
    fn travel(&mut self, key: Key) {
        let page = self.page.max(1) as isize;
        match key {
            Key::Up | Key::Char('k') => self.choose(-1),
            Key::Down | Key::Char('j') => self.choose(1),
            Key::PageUp => self.choose(-page),
            Key::PageDown => self.choose(page),
            Key::Home => self.choose(isize::MIN),
            Key::End => self.choose(isize::MAX),
            Key::Left => self.step_back(),
            Key::Right => self.step_on(),
            Key::Enter => self.enter(),
            Key::Escape | Key::Backspace => self.leave(),
            Key::Tab => self.next_view(1),
            Key::BackTab => self.next_view(-1),
            _ => {}
        }
    }

    fn type_filter(&mut self, key: Key) {
        let Some(text) = &mut self.prompt else { return };
        match key {
            Key::Char(c) if text.len() < 64 => text.push(c),
            Key::Backspace => {
                text.pop();
            }
            Key::Ctrl('u') => text.clear(),
            Key::Enter => self.prompt = None,
            Key::Escape => {
                self.prompt = None;
                self.filter_by(String::new());
                return;
            }
            _ => return,
        }
        if let Some(text) = self.prompt.clone() {
            self.filter_by(text);
        }
    }
}
