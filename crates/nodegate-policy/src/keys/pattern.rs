//! Sets of keys and of names: exact ones in a hash set, globs in one automaton.

use foldhash::HashSet;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::api::names::{LabelKey, check_label_key, is_dns_subdomain};
use crate::api::problem::Problem;
use crate::keys::compile_budget::CompileBudget;

/// The characters that make a text a glob.
const GLOB_CHARACTERS: [char; 4] = ['*', '?', '[', '{'];
/// Maximum length of a glob; names have at most 253 characters.
const GLOB_MAX: usize = 512;
/// What a compiled glob takes, in bytes, besides its characters. Measured with sets of 100,000 short and 8,000 long globs.
const GLOB_BYTES: usize = 2048;
/// What each character of a glob takes when it is compiled, in bytes.
const GLOB_CHARACTER_BYTES: usize = 384;

/// Whether a text has glob characters.
pub(crate) fn is_glob(text: &str) -> bool {
    text.contains(GLOB_CHARACTERS)
}

/// Compiles a glob. `*` also matches `/` and `:`, as in `system:*`.
///
/// # Errors
/// Returns a sentence that says what is wrong with the glob, or that it exceeds the budget.
pub(crate) fn glob(text: &str, budget: &CompileBudget) -> Result<globset::Glob, Problem> {
    if text.len() > GLOB_MAX {
        return Err(format!("the glob has {} characters, but the limit is {GLOB_MAX}", text.len()).into());
    }
    budget.take(GLOB_BYTES + GLOB_CHARACTER_BYTES * text.len())?;
    GlobBuilder::new(text).literal_separator(false).backslash_escape(true).build().map_err(|error| {
        Problem::new(format!("{text:?} is not a glob: {}", error.kind()), "write *, ?, [a-z] or {a,b}")
    })
}

/// A set of texts, exact or as globs.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextSet {
    exact: HashSet<Box<str>>,
    globs: GlobSet,
    written: Vec<Box<str>>,
}

impl TextSet {
    /// Compiles all `texts`. Calls `fault` with the index and a message for each invalid glob, and for the one that exceeds
    /// the budget.
    pub(crate) fn compile<'a>(
        texts: impl IntoIterator<Item = &'a str>,
        budget: &CompileBudget,
        mut fault: impl FnMut(usize, Problem),
    ) -> Self {
        let mut set = Self::default();
        let mut globs = GlobSetBuilder::new();
        for (index, text) in texts.into_iter().enumerate() {
            if budget.is_exceeded() {
                return Self::default();
            }
            set.written.push(text.into());
            if !is_glob(text) {
                set.exact.insert(text.into());
                continue;
            }
            match glob(text, budget) {
                Ok(compiled) => {
                    globs.add(compiled);
                }
                Err(message) => fault(index, message),
            }
        }
        match globs.build() {
            Ok(globs) => set.globs = globs,
            Err(error) => fault(0, format!("the globs are too large in total: {error}").into()),
        }
        set
    }

    /// Whether `text` is in the set.
    pub(crate) fn contains(&self, text: &str) -> bool {
        self.exact.contains(text) || (!self.globs.is_empty() && self.globs.is_match(text))
    }

    /// The texts as written.
    pub(crate) fn written(&self) -> impl Iterator<Item = &str> {
        self.written.iter().map(|text| &**text)
    }
}

/// The prefix of names that Kubernetes assigns: `system:masters`, `system:serviceaccount:…`.
pub(crate) const SYSTEM_NAMES: &str = "system:";

/// Names of users or groups, exact or as globs. A glob matches names that begin with `system:`, such as those of service
/// accounts and their groups, only if the glob itself begins with `system:`.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    all: TextSet,
    /// The names and globs that can match a name that begins with `system:`.
    system: TextSet,
}

impl Identities {
    /// Compiles all `texts`. Calls `fault` with the index and a message for each invalid glob.
    pub(crate) fn compile<'a>(
        texts: impl IntoIterator<Item = &'a str>,
        budget: &CompileBudget,
        fault: impl FnMut(usize, Problem),
    ) -> Self {
        let texts: Vec<&str> = texts.into_iter().collect();
        let system = texts.iter().copied().filter(|text| !is_glob(text) || text.starts_with(SYSTEM_NAMES));
        let system: Vec<&str> = system.collect();
        // Each error is reported for all names: `system` has only some of them.
        let all = TextSet::compile(texts, budget, fault);
        Self { system: TextSet::compile(system, budget, |_, _| {}), all }
    }

    /// Compiles all `texts`.
    ///
    /// # Errors
    /// Returns a message for the first invalid glob.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, Problem> {
        let mut faults = Vec::new();
        let set = Self::compile(texts, &CompileBudget::default(), |_, message| faults.push(message));
        faults.into_iter().next().map_or(Ok(set), Err)
    }

    /// Whether `name` is among them.
    pub fn contains(&self, name: &str) -> bool {
        if name.starts_with(SYSTEM_NAMES) { self.system.contains(name) } else { self.all.contains(name) }
    }

    /// The names as written.
    pub fn written(&self) -> impl Iterator<Item = &str> {
        self.all.written()
    }
}

/// A set of label (or taint) keys: exact keys, `prefix/*`, and `*` for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySet {
    exact: HashSet<Box<str>>,
    prefixes: HashSet<Box<str>>,
    all: bool,
    written: Vec<Box<str>>,
}

impl KeySet {
    /// Compiles all `keys`. Calls `fault` with the index and a message for each invalid one.
    pub(crate) fn compile<'a>(keys: impl IntoIterator<Item = &'a str>, mut fault: impl FnMut(usize, Problem)) -> Self {
        let mut set = Self::default();
        for (index, key) in keys.into_iter().enumerate() {
            if let Err(message) = set.add(key) {
                fault(index, message);
            }
        }
        set
    }

    fn add(&mut self, key: &str) -> Result<(), Problem> {
        if key == "*" {
            self.all = true;
        } else if let Some(prefix) = key.strip_suffix("/*") {
            if !is_dns_subdomain(prefix) {
                return Err(Problem::new(
                    format!("{key:?} does not begin with a DNS prefix"),
                    "write a prefix such as example.com/*",
                ));
            }
            self.prefixes.insert(prefix.into());
        } else if is_glob(key) {
            return Err(Problem::new(
                format!("{key:?} has a '*' in the wrong place"),
                "write an exact key or a whole prefix such as example.com/*",
            ));
        } else {
            check_label_key(key).map_err(|error| error.to_string())?;
            self.exact.insert(key.into());
        }
        self.written.push(key.into());
        Ok(())
    }

    /// Adds every key of `other`.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.exact.extend(other.exact.iter().cloned());
        self.prefixes.extend(other.prefixes.iter().cloned());
        self.written.extend(other.written.iter().cloned());
        self.all |= other.all;
    }

    /// Adds one key.
    pub(crate) fn insert(&mut self, key: &LabelKey) {
        self.exact.insert(key.as_str().into());
        self.written.push(key.as_str().into());
    }

    /// Whether `key` is in the set.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.all || self.names(key)
    }

    /// Whether `key` is in the set by its own name or its prefix, and not only by `*`.
    pub(crate) fn names(&self, key: &str) -> bool {
        self.exact.contains(key)
            || (!self.prefixes.is_empty()
                && key.split_once('/').is_some_and(|(prefix, _)| self.prefixes.contains(prefix)))
    }

    /// Whether `*` was given.
    pub(crate) fn is_all(&self) -> bool {
        self.all
    }

    /// The keys as written.
    pub(crate) fn written(&self) -> impl Iterator<Item = &str> {
        self.written.iter().map(|key| &**key)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn key_sets_take_keys_and_whole_prefixes_only() {
        let mut faults = Vec::new();
        let set =
            KeySet::compile(["hardware.tier", "nvidia.com/*", "gpu-*", "*/a", "a b"], |index, _| faults.push(index));
        assert_eq!(faults, [2, 3, 4]);
        assert!(set.contains("nvidia.com/gpu") && set.contains("hardware.tier"));
        assert!(!set.contains("nvidia.com") && !set.contains("x.nvidia.com/gpu"));
    }

    #[test]
    fn a_glob_is_about_names_that_people_give_unless_it_says_otherwise() {
        let set = Identities::parse(["*-admin", "system:node:*", "system:kube-scheduler", "*"]).unwrap();
        for name in ["x-admin", "alice", "system:node:n1", "system:kube-scheduler", "notsystem:x"] {
            assert!(set.contains(name), "{name}");
        }
        for name in ["system:serviceaccount:team-a:x-admin", "system:masters", "system:", "system:kube-scheduler-admin"]
        {
            assert!(!set.contains(name), "{name}");
        }
        assert!(Identities::parse(["["]).is_err());
    }

    #[test]
    fn text_sets_take_globs() {
        let set = TextSet::compile(["yeezyai", "gpu-*", "kube-system:*"], &CompileBudget::default(), |_, message| {
            panic!("{message}")
        });
        assert!(set.contains("yeezyai") && set.contains("gpu-7") && set.contains("kube-system:node-controller"));
        assert!(!set.contains("xgpu-7") && !set.contains("yeezyai2"));
        let mut faults = Vec::new();
        TextSet::compile(["[", "{a"], &CompileBudget::default(), |index, message| faults.push((index, message)));
        assert_eq!(faults.len(), 2);
    }
}
