//! Keys of labels, annotations and taints that programs set: one table, each key with its program, its kind, and where that was
//! looked up. `persist`, `init`, `cleanup`, the lints and the guard use it.

mod autoscalers;
mod clouds;
mod discovery;
mod installers;
mod kubernetes;
mod lifecycle;
mod storage;

use std::fmt;
use std::sync::LazyLock;

use foldhash::HashMap;

use crate::keys::Field;
use crate::keys::restriction::{is_own, is_reconciled_by_kubelet};

/// What a key is, which decides what nodegate does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program sets it for a moment and removes it again: while a node starts, drains, restarts or is about to go.
    Transient,
    /// It describes the machine, its image or its place, or says where it came from. Another machine of the name has another.
    Machine,
    /// A program sets it on the nodes that it installs or manages. A machine that takes the place of another has the same.
    Installed,
    /// People set it, although programs set other keys of its namespace.
    People,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transient => "transient",
            Self::Machine => "per machine",
            Self::Installed => "installed",
            Self::People => "people's",
        })
    }
}

/// Keys of one kind that one program sets.
#[derive(Debug)]
pub struct Program {
    /// Its name, as in "`name` sets it".
    pub name: &'static str,
    /// The kind of the keys.
    pub kind: Kind,
    /// The repository and file, or the document, that says so.
    pub source: &'static str,
    /// Labels: `key`, `key=value`, `domain/*`, and `*` in a domain.
    labels: &'static [&'static str],
    annotations: &'static [&'static str],
    taints: &'static [&'static str],
}

impl Program {
    /// What it does with its keys, as a reason.
    pub(crate) fn reason(&self) -> String {
        let when = match self.kind {
            Kind::Transient => " for a moment",
            Kind::Machine => " for each machine",
            Kind::Installed | Kind::People => "",
        };
        format!("{} sets it{when}", self.name)
    }

    /// Whether its keys are never saved and never restored.
    pub(crate) fn is_never_persisted(&self) -> bool {
        match self.kind {
            Kind::Transient | Kind::Machine => true,
            Kind::Installed | Kind::People => false,
        }
    }

    fn patterns(&self) -> impl Iterator<Item = (Field, &'static str)> {
        let of = |field, patterns: &'static [&'static str]| patterns.iter().map(move |pattern| (field, *pattern));
        of(Field::Label, self.labels)
            .chain(of(Field::Annotation, self.annotations))
            .chain(of(Field::Taint, self.taints))
    }
}

/// Keys of programs that neither people nor nodegate set, a group for each program, kind and source.
const PROGRAMS: [&[Program]; 7] = [
    kubernetes::PROGRAMS,
    lifecycle::PROGRAMS,
    autoscalers::PROGRAMS,
    storage::PROGRAMS,
    clouds::PROGRAMS,
    installers::PROGRAMS,
    discovery::PROGRAMS,
];

fn programs() -> impl Iterator<Item = &'static Program> {
    PROGRAMS.into_iter().flatten()
}

/// All rows, for the documentation: the field, the key or pattern, and the program.
pub fn table() -> impl Iterator<Item = (Field, &'static str, &'static Program)> {
    programs().flat_map(|program| program.patterns().map(move |(field, pattern)| (field, pattern, program)))
}

/// A program, and the value with which it sets a key, if that matters.
type Setting = (Option<&'static str>, &'static Program);

/// The rows, by what a key of them is found with.
#[derive(Default)]
struct Index {
    /// Whole keys, with a value or for every one.
    keys: HashMap<(Field, &'static str), Vec<Setting>>,
    domains: HashMap<(Field, &'static str), &'static Program>,
    /// Patterns for domains.
    globs: Vec<(Field, &'static str, &'static Program)>,
}

static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let mut index = Index::default();
    for (field, pattern, program) in table() {
        match pattern.strip_suffix("/*") {
            Some(domain) if domain.contains('*') => index.globs.push((field, domain, program)),
            Some(domain) => drop(index.domains.insert((field, domain), program)),
            None => {
                let (key, value) = pattern.split_once('=').map_or((pattern, None), |(key, value)| (key, Some(value)));
                index.keys.entry((field, key)).or_default().push((value, program));
            }
        }
    }
    index
});

/// The program that sets this key, as far as the key, and the value if it is known, tell. A whole key decides before its domain,
/// and a domain before a pattern.
pub fn of(field: Field, key: &str, value: Option<&str>) -> Option<&'static Program> {
    let domain = || key.split_once('/').map_or("", |(domain, _)| domain);
    let keys = INDEX.keys.get(&(field, key)).into_iter().flatten();
    let whole = keys.filter(|(of, _)| of.is_none() || *of == value).max_by_key(|(of, _)| of.is_some());
    whole
        .map(|(_, program)| *program)
        .or_else(|| INDEX.domains.get(&(field, domain())).copied())
        .or_else(|| {
            let matches = |(of, glob, _): &&(Field, &str, _)| *of == field && glob_matches(glob, domain());
            INDEX.globs.iter().find(matches).map(|(_, _, program)| *program)
        })
        .filter(|program| program.kind != Kind::People)
}

/// The program that sets this key, so that a rule had better not. Kubelets' own zone, region and instance type are not among these:
/// where no cloud controller sets them, a rule may.
pub(crate) fn of_no_rule(field: Field, key: &str, value: Option<&str>) -> Option<&'static Program> {
    of(field, key, value).filter(|_| field != Field::Label || !is_reconciled_by_kubelet(key))
}

/// The program whose keys these are as a whole: for `domain/*`, one that sets all keys of the domain.
pub(crate) fn of_pattern(field: Field, written: &str) -> Option<&'static Program> {
    match written.strip_suffix("/*") {
        // No row names this key, so only a row for the domain decides.
        Some(domain) => of(field, &format!("{domain}/q7-x"), None),
        None => of(field, written, None),
    }
}

/// The program because of which all keys of a pattern, `key` or `domain/*`, are never saved and never restored.
pub(crate) fn never_persisted_pattern(field: Field, written: &str) -> Option<&'static Program> {
    of_pattern(field, written).filter(|program| program.is_never_persisted())
}

/// Whether a domain is one of those that a pattern with `*` for anything stands for.
fn glob_matches(glob: &str, domain: &str) -> bool {
    match glob.split_once('*') {
        None => glob == domain,
        Some((before, after)) => domain.strip_prefix(before).is_some_and(|rest| {
            (1..=rest.len()).any(|at| rest.is_char_boundary(at) && glob_matches(after, &rest[at..]))
        }),
    }
}

/// Why a label or taint is never saved and never restored, whatever policies say.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Never {
    /// It is reserved for nodegate.
    Own,
    /// It belongs to a program for a moment, or to the machine.
    Program(&'static Program),
}

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("it is reserved for nodegate"),
            Self::Program(program) => f.write_str(&program.reason()),
        }
    }
}

/// Why this key, with this value if it is known, is never saved and never restored; `None` if it may be.
pub(crate) fn never_persisted(field: Field, key: &str, value: Option<&str>) -> Option<Never> {
    if is_own(key) {
        return Some(Never::Own);
    }
    of(field, key, value).filter(|program| program.is_never_persisted()).map(Never::Program)
}

/// The labels of the table for every value: whole keys, and `domain/*`.
pub(crate) fn labels_in_literal_domains() -> impl Iterator<Item = &'static str> {
    let labels = table().filter(|(field, ..)| *field == Field::Label).map(|(_, pattern, _)| pattern);
    labels.filter(|pattern| {
        !pattern.contains('=') && !pattern.strip_suffix("/*").is_some_and(|domain| domain.contains('*'))
    })
}

/// Patterns for domains whose labels are never saved.
pub(crate) fn never_persisted_domains() -> impl Iterator<Item = &'static str> {
    let globs = INDEX.globs.iter().filter(|(field, _, program)| *field == Field::Label && program.is_never_persisted());
    globs.map(|(_, domain, _)| *domain)
}

#[cfg(test)]
mod tests;
