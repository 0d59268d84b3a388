//! The terminal: the whole screen, keys and signals.

use std::io;

use anyhow::Context as _;
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt as _;
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::cli::shared::output;

/// The whole screen. When it is dropped, or the program panics, the terminal is as it was before.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    _restored: Restored,
}

/// Restores the terminal when it is dropped.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // After a panic it is restored already, and once more would put the cursor on the message. If the terminal is gone,
        // there is nothing to restore.
        if crossterm::terminal::is_raw_mode_enabled().unwrap_or(true) {
            let _ = ratatui::try_restore();
        }
        output::release_notes();
    }
}

impl Screen {
    /// Takes the whole screen. Notes wait until it is given back.
    ///
    /// # Errors
    /// Returns an error if the terminal cannot be written, or has no such mode.
    pub(super) fn enter() -> anyhow::Result<Self> {
        output::hold_notes();
        let restored = Restored;
        let terminal = ratatui::try_init().context("could not take the whole screen of the terminal")?;
        Ok(Self { terminal, _restored: restored })
    }

    /// Draws the screen. Only what differs is written.
    ///
    /// # Errors
    /// Returns an error if the terminal cannot be written.
    pub(super) fn draw(&mut self, paint: impl FnOnce(&mut Buffer)) -> anyhow::Result<()> {
        let drawn = self.terminal.draw(|frame| paint(frame.buffer_mut()));
        drawn.map(drop).context("could not write to the terminal")
    }
}

/// Keys, and changes of the screen's size, as they come.
pub(super) fn keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, keys) = mpsc::channel(16);
    tokio::task::spawn_local(async move {
        let mut events = EventStream::new();
        while let Some(event) = events.next().await {
            if sender.send(event).await.is_err() {
                break;
            }
        }
    });
    keys
}

/// Signals that end the view.
pub(super) struct Signals([Signal; 4]);

impl Signals {
    /// Takes the signals from now on.
    ///
    /// # Errors
    /// Returns an error if that is not possible.
    pub(super) fn new() -> anyhow::Result<Self> {
        let taken = |kind| signal(kind).context("could not handle signals");
        let kinds = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()];
        let [terminate, hangup, interrupt, quit] = kinds.map(taken);
        Ok(Self([terminate?, hangup?, interrupt?, quit?]))
    }

    /// Waits for one of them.
    pub(super) async fn ended(&mut self) {
        let [terminate, hangup, interrupt, quit] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
        }
    }
}
