//! The text of an expression as tokens.
//!
//! Follows the lexical part of the CEL language definition (`doc/langdef.md` of google/cel-spec,
//! section "Syntax") with the escaped identifiers that Kubernetes allows.

use crate::fault::Mistake;
use crate::syntax::literal;

/// A token, the byte it starts at, and the byte behind it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) at: usize,
    pub(crate) end: usize,
    pub(crate) kind: TokenKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenKind {
    /// A name or keyword.
    Name(String),
    /// A name in backquotes, which may only follow a dot.
    Escaped(String),
    /// The magnitude of a number; a sign is an operator before it.
    Int(u64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// An operator or bracket.
    Symbol(&'static str),
    End,
}

/// Longer ones first.
const SYMBOLS: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*",
    "/", "%", "=",
];

/// The tokens of `source`, closed by [`TokenKind::End`].
pub(crate) fn tokens(source: &str) -> Result<Vec<Token>, Mistake> {
    let mut lexer = Lexer { source, at: 0 };
    let mut tokens = Vec::new();
    loop {
        let token = lexer.next()?;
        let end = token.kind == TokenKind::End;
        tokens.push(token);
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        self.source.get(self.at..).unwrap_or_default()
    }

    /// The text from here on for which `wanted` holds; moves behind it.
    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'s str {
        let rest = self.rest();
        let taken = rest.split_once(|c| !wanted(c)).map_or(rest, |(taken, _)| taken);
        self.at += taken.len();
        taken
    }

    fn skip_blanks(&mut self) {
        loop {
            self.take_while(|c| matches!(c, ' ' | '\t' | '\r' | '\n' | '\x0c'));
            if !self.rest().starts_with("//") {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn next(&mut self) -> Result<Token, Mistake> {
        self.skip_blanks();
        let at = self.at;
        let rest = self.rest();
        let mut chars = rest.chars();
        let (first, second) = (chars.next(), chars.next());
        let kind = match first {
            None => TokenKind::End,
            Some(c) if c.is_ascii_digit() => self.number()?,
            Some('.') if second.is_some_and(|c| c.is_ascii_digit()) => self.number()?,
            Some('`') => self.escaped()?,
            Some(c) if c.is_ascii_alphabetic() || c == '_' || c == '"' || c == '\'' => self.text_or_name()?,
            Some(c) => match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
                Some(&"=") => return Err(Mistake::new(at, "a single `=` is not an operator").remedy("write `==`")),
                Some(symbol) => {
                    self.at += symbol.len();
                    TokenKind::Symbol(symbol)
                }
                None => return Err(stray(at, c)),
            },
        };
        Ok(Token { at, end: self.at, kind })
    }

    fn text_or_name(&mut self) -> Result<TokenKind, Mistake> {
        match literal::quoted(self.rest()).map_err(|problem| problem.moved(self.at))? {
            Some((literal, length)) => {
                self.at += length;
                Ok(match literal {
                    literal::Quoted::Text(text) => TokenKind::Text(text),
                    literal::Quoted::Bytes(bytes) => TokenKind::Bytes(bytes),
                })
            }
            None => {
                let name = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
                Ok(TokenKind::Name(name.to_owned()))
            }
        }
    }

    fn escaped(&mut self) -> Result<TokenKind, Mistake> {
        let at = self.at;
        self.at += 1;
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || "_.-/ ".contains(c));
        if name.is_empty() || !self.rest().starts_with('`') {
            let message =
                "a name in backquotes may hold letters, digits, `_`, `.`, `-`, `/` and blanks, and must be closed";
            return Err(Mistake::new(at, message));
        }
        self.at += 1;
        Ok(TokenKind::Escaped(name.to_owned()))
    }

    /// A number; what follows it directly must not be part of a name.
    fn number(&mut self) -> Result<TokenKind, Mistake> {
        let at = self.at;
        let too_large = || Mistake::new(at, "this number is too large");
        if self.rest().starts_with("0x") {
            self.at += 2;
            let digits = self.take_while(|c| c.is_ascii_hexdigit());
            let value = u64::from_str_radix(digits, 16).map_err(|_| too_large())?;
            return self.integer(value);
        }
        let whole = self.take_while(|c| c.is_ascii_digit());
        let mut double = false;
        let after_dot = self.rest().strip_prefix('.').and_then(|rest| rest.chars().next());
        if after_dot.is_some_and(|c| c.is_ascii_digit()) {
            double = true;
            self.at += 1;
            self.take_while(|c| c.is_ascii_digit());
        }
        double |= self.exponent();
        if double {
            let text = self.source.get(at..self.at).unwrap_or_default();
            let value: f64 = text.parse().map_err(|_| Mistake::new(at, "this is not a number"))?;
            self.refuse_suffix()?;
            return if value.is_finite() { Ok(TokenKind::Double(value)) } else { Err(too_large()) };
        }
        let value = whole.parse().map_err(|_| too_large())?;
        self.integer(value)
    }

    fn integer(&mut self, value: u64) -> Result<TokenKind, Mistake> {
        let unsigned = self.rest().starts_with(['u', 'U']);
        self.at += usize::from(unsigned);
        self.refuse_suffix()?;
        Ok(if unsigned { TokenKind::Uint(value) } else { TokenKind::Int(value) })
    }

    /// Moves behind an exponent, if there is one.
    fn exponent(&mut self) -> bool {
        let rest = self.rest();
        let Some(behind) = rest.strip_prefix(['e', 'E']) else { return false };
        let digits = behind.strip_prefix(['+', '-']).unwrap_or(behind);
        if !digits.starts_with(|c: char| c.is_ascii_digit()) {
            return false;
        }
        self.at += rest.len() - digits.len();
        self.take_while(|c| c.is_ascii_digit());
        true
    }

    fn refuse_suffix(&self) -> Result<(), Mistake> {
        match self.rest().chars().next() {
            Some(c) if c.is_ascii_alphanumeric() || c == '_' => {
                Err(Mistake::new(self.at, format!("`{c}` directly after a number")).remedy("put text in quotes"))
            }
            _ => Ok(()),
        }
    }
}

fn stray(at: usize, c: char) -> Mistake {
    match c {
        '&' | '|' => Mistake::new(at, format!("a single `{c}` is not an operator")).remedy(format!("write `{c}{c}`")),
        '“' | '”' | '‘' | '’' => {
            Mistake::new(at, "typographic quotes are not supported").remedy("write \" or '")
        }
        _ => Mistake::new(at, format!("unexpected character {c:?}")).remedy("write text in quotes"),
    }
}

/// The byte behind the token that begins at `at`; that of one character if no token begins there.
pub(crate) fn end_of_token(source: &str, at: usize) -> usize {
    let rest = source.get(at..).unwrap_or_default();
    let tokens = tokens(source).unwrap_or_default();
    let token = tokens.iter().find(|token| token.at == at && token.end > at).map(|token| token.end);
    token.unwrap_or_else(|| at + rest.chars().next().map_or(0, char::len_utf8))
}
