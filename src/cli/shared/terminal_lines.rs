//! Lines of text for a terminal: escaped, and with colors where the terminal shows them.

use anstyle::{AnsiColor, Style};

use nodegate_base::text::on_a_line;

/// Lines in which only this module's colors are escape sequences.
pub(crate) struct Lines {
    text: String,
    colors: bool,
}

impl Lines {
    /// No lines. `colors`: whether later ones have colors.
    pub(crate) fn new(colors: bool) -> Self {
        Self { text: String::new(), colors }
    }

    /// Adds a line. Newlines in it are escaped, so that it cannot look like another line.
    pub(crate) fn add(&mut self, indent: &str, line: &str) {
        self.text.push_str(&format!("{indent}{}\n", on_a_line(line)));
    }

    /// Adds a line of which the first part has a color. The color is never the only carrier of a meaning.
    pub(crate) fn add_colored(&mut self, indent: &str, color: AnsiColor, first: &str, rest: &str) {
        let style = if self.colors { Style::new().fg_color(Some(color.into())) } else { Style::new() };
        let (first, rest) = (on_a_line(first), on_a_line(rest));
        self.text.push_str(&format!("{indent}{style}{first}{style:#}{rest}\n"));
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_colors_are_escape_sequences() {
        for (colors, expected) in
            [(false, "  + a\\u001b[2J\\u000a b\n"), (true, "  \u{1b}[32m+ a\\u001b[2J\\u000a\u{1b}[0m b\n")]
        {
            let mut lines = Lines::new(colors);
            lines.add_colored("  ", AnsiColor::Green, "+ a\u{1b}[2J\n", " b");
            assert_eq!(lines.as_str(), expected);
            lines.add("", "c\u{1b}[2J\nd");
            assert!(lines.as_str().ends_with("c\\u001b[2J\\u000ad\n"));
        }
    }
}
