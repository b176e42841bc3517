//! The terminal in raw mode with the alternate screen; its state is restored on every exit.

use std::io::{self, Stdout, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::{cursor, execute, terminal};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGCONT, SIGTSTP, SIGWINCH};
use vmtax_cli::exit::{Code, CodedError};
use vmtax_cli::signals::{Signals, bytes_of, drain};
use vmtax_report::tui::{self, Key, ScreenModel};

/// Whether the terminal is in raw mode.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Events other than keys.
pub(super) enum TerminalEvent {
    Nothing,
    /// A request to end, or the terminal was closed.
    End,
    /// A request to stop, as by Ctrl-Z.
    Stop,
}

/// The screen.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    has_colors: bool,
    /// A byte when the size of the terminal changed, or the program continues after a stop.
    changed: UnixStream,
    /// A byte for every SIGTSTP.
    stopped: UnixStream,
}

impl Screen {
    pub(super) fn open(has_colors: bool) -> anyhow::Result<Screen> {
        let (changed, stopped) = (bytes_of(&[SIGWINCH, SIGCONT])?, bytes_of(&[SIGTSTP])?);
        // Restore the terminal before the panic message is printed.
        let say = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            say(panic);
        }));
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()));
        let terminal = terminal.and_then(|terminal| take().map(|()| terminal));
        let terminal = terminal.map_err(|e| {
            give_back();
            terminal_fault(&e)
        })?;
        Ok(Screen { terminal, has_colors, changed, stopped })
    }

    pub(super) fn paint(&mut self, model: &mut ScreenModel) -> anyhow::Result<()> {
        let has_colors = self.has_colors;
        let painted = self.terminal.draw(|frame| {
            let area = frame.area();
            model.resize(area.width, area.height);
            tui::draw(model, area, frame.buffer_mut(), has_colors);
        });
        painted.map(drop).map_err(|e| terminal_fault(&e))
    }

    /// Waits for a key, a signal or the time.
    pub(super) fn wait(&mut self, stop: &Signals, until: Instant) -> anyhow::Result<TerminalEvent> {
        let input = io::stdin();
        let mut watched = [
            PollFd::new(&input, PollFlags::IN),
            PollFd::new(&self.changed, PollFlags::IN),
            PollFd::new(&self.stopped, PollFlags::IN),
        ];
        if stop.wait_beside(&mut watched, until)? {
            return Ok(TerminalEvent::End);
        }
        let [input, changed, stopped] = watched.map(|one| one.revents());
        if input.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(TerminalEvent::End);
        }
        if !changed.is_empty() {
            drain(&self.changed);
            self.go_on()?;
        }
        if !stopped.is_empty() {
            drain(&self.stopped);
            return Ok(TerminalEvent::Stop);
        }
        Ok(TerminalEvent::Nothing)
    }

    /// The next key that has a meaning, if one was pressed.
    pub(super) fn key(&mut self) -> anyhow::Result<Option<Key>> {
        let failed = |e: io::Error| terminal_fault(&e);
        while event::poll(Duration::ZERO).map_err(failed)? {
            if let Event::Key(key) = event::read().map_err(failed)?
                && key.kind != KeyEventKind::Release
                && let Some(key) = meaning(key)
            {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Restores the terminal and stops the process, as Ctrl-Z does by default; then continues.
    pub(super) fn stop(&mut self) -> anyhow::Result<()> {
        give_back();
        kill_process(getpid(), Signal::STOP)?;
        self.go_on()
    }

    /// Clears the terminal, whose content is unknown. Not by `clear`, which asks the terminal where its cursor is and fails when the answer is late.
    pub(super) fn clear(&mut self) -> anyhow::Result<()> {
        let size = self.terminal.size();
        let cleared = size.and_then(|size| self.terminal.resize(size.into()));
        cleared.map_err(|e| terminal_fault(&e))
    }

    /// Sets the terminal up again after a stop, when other programs used it.
    fn go_on(&mut self) -> anyhow::Result<()> {
        // The saved state is only valid while raw mode is on.
        let _ = terminal::disable_raw_mode();
        take().map_err(|e| terminal_fault(&e))?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take() -> io::Result<()> {
    IS_TAKEN.store(true, Ordering::SeqCst);
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)
}

/// Restores the terminal once: a second time would move the cursor over later output.
fn give_back() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        // Errors cannot be reported; the terminal may be closed.
        let _ = execute!(io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
        let _ = io::stdout().flush();
    }
}

fn meaning(key: KeyEvent) -> Option<Key> {
    Some(match key.code {
        KeyCode::Char(c) if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Ctrl(c),
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::F(number) => Key::F(number),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        _ => return None,
    })
}

/// An error of the terminal.
fn terminal_fault(error: &io::Error) -> anyhow::Error {
    CodedError::new(Code::Output, format!("the terminal cannot be used: {error}"))
        .answered(error)
        .into()
}
