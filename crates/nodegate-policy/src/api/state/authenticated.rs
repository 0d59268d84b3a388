//! What the API server authenticated about a kubelet, as lines of text. Every replica keeps that of each node, so it takes little memory.

use serde::{Deserialize, Serialize};

/// Lines of evidence about a kubelet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct AuthenticatedAs(Kept);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kept {
    /// With a character for what a line begins with: its number in [`BEGINNINGS`].
    Shortened(Box<str>),
    /// A text that has such characters itself.
    AsItIs(Box<str>),
}

/// What lines begin with. They are only a matter of memory: one that is added here shortens lines, in no version the record.
const BEGINNINGS: [&str; 5] = [
    "user=system:node:",
    "group=",
    "extra.authentication.kubernetes.io/credential-id=X509SHA256=",
    "extra.",
    "no-extra.",
];

fn sign(at: usize) -> char {
    char::from(u8::try_from(at).unwrap_or_default() + 1)
}

impl AuthenticatedAs {
    /// The lines.
    pub fn text(&self) -> String {
        let shortened = match &self.0 {
            Kept::Shortened(text) => text,
            Kept::AsItIs(text) => return text.to_string(),
        };
        let mut text = String::with_capacity(2 * shortened.len());
        for one in shortened.chars() {
            match BEGINNINGS.iter().enumerate().find(|(at, _)| one == sign(*at)) {
                Some((_, beginning)) => text.push_str(beginning),
                None => text.push(one),
            }
        }
        text
    }
}

impl From<&str> for AuthenticatedAs {
    fn from(text: &str) -> Self {
        if text.chars().any(|one| (0..BEGINNINGS.len()).any(|at| one == sign(at))) {
            return Self(Kept::AsItIs(text.into()));
        }
        let shortened = |line: &str| {
            let mut all = BEGINNINGS.iter().enumerate();
            let found = all.find_map(|(at, beginning)| Some((at, line.strip_prefix(beginning)?)));
            found.map_or_else(|| line.to_owned(), |(at, rest)| format!("{}{rest}", sign(at)))
        };
        Self(Kept::Shortened(text.split('\n').map(shortened).collect::<Vec<_>>().join("\n").into()))
    }
}

impl From<String> for AuthenticatedAs {
    fn from(text: String) -> Self {
        Self::from(&*text)
    }
}

impl From<AuthenticatedAs> for String {
    fn from(lines: AuthenticatedAs) -> Self {
        lines.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_those_that_were_read() {
        for text in [
            "",
            "\n",
            "extra.sessionname=i-0abc\ngroup=pool:gpu\nno-extra.arn\nuser=system:node:ip-10-0-1-119",
            "extra.authentication.kubernetes.io/credential-id=X509SHA256=00ff\nuser=system:node:n\n",
            "user=system:node:\nuser=other\r\nä=group=",
            "group=\u{1}\nuser=system:node:n",
            "\u{3}",
        ] {
            assert_eq!(AuthenticatedAs::from(text).text(), text);
        }
        let usual = AuthenticatedAs::from("no-extra.sessionname\nuser=system:node:n");
        assert!(matches!(&usual.0, Kept::Shortened(text) if text.len() == "_sessionname\n_n".len()), "{usual:?}");
    }
}
