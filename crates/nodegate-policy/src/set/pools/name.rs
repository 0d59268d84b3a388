//! Names of pools that are a part of what proves them: `system:bootstrappers:pool-{pool}`.

use crate::api::names::POOL_NAME_MAX;
use crate::api::pools::POOL_PLACEHOLDER;
use crate::api::problem::Problem;

/// A text with the name of a pool at a certain place, so that a text has at most one: before and after it, `?` stands for any one
/// character and every other one for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolNameIn {
    before: Box<[Letter]>,
    after: Box<[Letter]>,
}

/// What may be at a place; `None` for any character.
type Letter = Option<char>;

impl PoolNameIn {
    /// Whether a text says where the name of a pool is.
    pub(crate) fn is_in(text: &str) -> bool {
        text.contains(POOL_PLACEHOLDER)
    }

    /// # Errors
    /// Returns a sentence that says why the text has not the name of a pool at one certain place.
    pub(crate) fn parse(text: &str) -> Result<Self, Problem> {
        let Some((before, after)) = text.split_once(POOL_PLACEHOLDER) else {
            return Err(Problem::new(
                format!("{text:?} does not say where the name of the pool is"),
                format!("write {POOL_PLACEHOLDER} in its place"),
            ));
        };
        if after.contains(POOL_PLACEHOLDER) {
            return Err(Problem::new(format!("{text:?} has {POOL_PLACEHOLDER} twice"), "write it once"));
        }
        let letters = |part: &str| -> Box<[Letter]> { part.chars().map(|c| (c != '?').then_some(c)).collect() };
        if let Some(other) =
            text.replace(POOL_PLACEHOLDER, "").chars().find(|c| matches!(c, '*' | '[' | ']' | '{' | '}' | '\\'))
        {
            return Err(Problem::new(
                format!("{text:?} has {other:?}, so the name of the pool could begin at several places"),
                "write ? for each character that differs",
            ));
        }
        Ok(Self { before: letters(before), after: letters(after) })
    }

    /// The name of the pool in a text, if it has one.
    pub(crate) fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        let fits = |letter: &Letter, c: char| letter.is_none_or(|wanted| wanted == c);
        let (mut rest, mut letters) = (text.chars(), self.before.iter());
        if !letters.all(|letter| rest.next().is_some_and(|c| fits(letter, c))) {
            return None;
        }
        let mut letters = self.after.iter().rev();
        if !letters.all(|letter| rest.next_back().is_some_and(|c| fits(letter, c))) {
            return None;
        }
        Some(rest.as_str()).filter(|name| is_pool_name(name))
    }
}

/// Whether a text can be the name of a pool, and so the value of a label.
pub(crate) fn is_pool_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && text.len() <= POOL_NAME_MAX && text.chars().all(is_plain)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_what_is_at_its_place() {
        for (pattern, text, name) in [
            ("system:bootstrappers:pool-{pool}", "system:bootstrappers:pool-gpu-h100", Some("gpu-h100")),
            ("system:bootstrappers:pool-{pool}", "system:bootstrappers:pool-", None),
            ("system:bootstrappers:{pool}", "system:bootstrappers:kubeadm:default-node-token", None),
            ("aks-{pool}-????????-vmss??????", "aks-gpu-12345678-vmss00000a", Some("gpu")),
            ("aks-{pool}-????????-vmss??????", "aks-gpu-1234567-vmss00000a", None),
            ("aks-{pool}-????????-vmss??????", "aks-12345678-vmss00000a", None),
            ("arn:aws:iam::????????????:role/{pool}", "arn:aws:iam::111122223333:role/nodes-gpu", Some("nodes-gpu")),
            ("arn:aws:iam::????????????:role/{pool}", "arn:aws:iam::111122223333:role/a/b", None),
            ("{pool}", "any", Some("any")),
            ("{pool}", "", None),
            ("a{pool}a", "a", None),
            ("a{pool}a", "aa", None),
            ("é?{pool}", "éüx", Some("x")),
            ("{pool}", "ü", None),
        ] {
            assert_eq!(PoolNameIn::parse(pattern).unwrap().find(text), name, "{pattern} {text}");
        }
        assert_eq!(PoolNameIn::parse("{pool}").unwrap().find(&"x".repeat(64)), None);
    }

    #[test]
    fn a_text_without_one_certain_place_is_refused() {
        for (pattern, message) in [
            ("pool-*", "does not say where the name of the pool is"),
            ("{pool}-{pool}", "twice"),
            ("*-{pool}", "could begin at several places"),
            ("{a,b}-{pool}", "could begin at several places"),
        ] {
            let error = PoolNameIn::parse(pattern).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
