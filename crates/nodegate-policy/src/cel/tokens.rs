//! The tokens of an expression, for its conversion.

/// A token and the byte it starts at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'s> {
    pub(super) at: usize,
    pub(super) text: &'s str,
}

impl<'s> Token<'s> {
    /// The tokens of an expression.
    pub(super) fn all(expression: &'s nodegate_cel::Expression) -> Vec<Self> {
        expression.tokens().into_iter().map(|(at, text)| Self { at, text }).collect()
    }

    /// The name or keyword; not a number, a string or a name in backquotes.
    pub(super) fn name(self) -> Option<&'s str> {
        let plain = self.text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        (plain && !self.text.starts_with(|c: char| c.is_ascii_digit())).then_some(self.text)
    }
}
