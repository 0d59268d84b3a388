//! Text on the screen. Everything that is drawn is escaped here.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use nodegate_base::text::on_a_line;

/// How a text looks. The color is never the only carrier of a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    /// A heading.
    Bold,
    /// Something is as it should be.
    Good,
    /// Something changed, or needs a look.
    Notice,
    /// Something is wrong, or was denied.
    Bad,
}

/// The screen.
pub(super) struct Canvas<'b> {
    pub(super) buffer: &'b mut Buffer,
    pub(super) has_colors: bool,
}

impl Canvas<'_> {
    pub(super) fn width(&self) -> u16 {
        self.buffer.area.width
    }

    pub(super) fn height(&self) -> u16 {
        self.buffer.area.height
    }

    /// Writes a text into `width` columns, and returns the column after it. A longer text ends with `…`.
    pub(super) fn put(&mut self, (x, y): (u16, u16), width: u16, text: &str, tone: Tone) -> u16 {
        let width = width.min(self.width().saturating_sub(x));
        if y >= self.height() || width == 0 {
            return x;
        }
        let text = on_a_line(text);
        let style = self.style(tone);
        let is_cut = Span::raw(&*text).width() > usize::from(width);
        let room = if is_cut { width - 1 } else { width };
        let (end, _) = self.buffer.set_stringn(x, y, &*text, usize::from(room), style);
        if is_cut { self.buffer.set_stringn(end, y, "…", 1, style).0 } else { end }
    }

    /// Writes texts one after the other, and returns the column after them.
    pub(super) fn put_all<'t>(&mut self, (x, y): (u16, u16), parts: impl IntoIterator<Item = (Tone, &'t str)>) -> u16 {
        let width = self.width();
        parts.into_iter().fold(x, |x, (tone, text)| self.put((x, y), width.saturating_sub(x), text, tone))
    }

    /// Writes a text at the end of a line.
    pub(super) fn put_last(&mut self, y: u16, text: &str, tone: Tone) {
        let width = u16::try_from(Span::raw(text).width()).unwrap_or(u16::MAX);
        if width <= self.width() {
            self.put((self.width() - width, y), width, text, tone);
        }
    }

    fn style(&self, tone: Tone) -> Style {
        let colored = |color: Color| if self.has_colors { Style::new().fg(color) } else { Style::new() };
        match tone {
            Tone::Plain => Style::new(),
            Tone::Bold => Style::new().add_modifier(Modifier::BOLD),
            Tone::Good => colored(Color::Green),
            Tone::Notice => colored(Color::Yellow),
            Tone::Bad => colored(Color::Red),
        }
    }
}
