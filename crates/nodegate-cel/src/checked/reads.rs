//! What an expression reads of its variables, found without evaluating it.
//!
//! Whoever decides whether an expression may be trusted, or when it must be evaluated again, relies on
//! this. It errs on the side of reading more.

use crate::checked::schema::Variable;
use crate::checked::tree::{Call, LoopKind, Tree};
use crate::syntax::{Constant, Operator};
use crate::values::paths::Paths;

/// One thing that an expression reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Of which variable.
    pub variable: &'static str,
    /// The keys that lead to it; empty: the variable itself.
    pub keys: Vec<String>,
    /// Only whether it is there is asked, and that it is there can only make the answer more true.
    pub only_helps: bool,
    /// What it holds is read, and not only whether it is there.
    pub whole: bool,
}

impl Read {
    /// The same as paths of the variable's document.
    #[must_use]
    pub fn paths(&self) -> Paths {
        let keys: Vec<&str> = self.keys.iter().map(String::as_str).collect();
        if self.whole { Paths::Whole } else { Paths::default() }.under(&keys)
    }
}

/// What an expression reads; `condition` if its answer is true or false.
pub(crate) fn of(tree: &Tree, condition: bool) -> Vec<Read> {
    let mut reader = Reader::default();
    reader.part(tree, condition);
    reader.reads
}

#[derive(Default)]
struct Reader {
    reads: Vec<Read>,
}

impl Reader {
    /// Collects what a part reads. `rising`: if this part becomes true, the answer does not become
    /// less true.
    fn part(&mut self, tree: &Tree, rising: bool) {
        if let Some((variable, keys)) = tree.path() {
            return self.path(variable, &keys, false, true);
        }
        match tree {
            Tree::Constant(_) | Tree::Variable(_) | Tree::Local(_) => {}
            Tree::Member { of, key, .. } => {
                // A computed key may name any member.
                self.part(of, false);
                self.part(key, false);
            }
            Tree::Has { of, field } => self.presence(of, field, rising),
            Tree::Binary { operator: Operator::In, left, right } => match &**left {
                Tree::Constant(Constant::Text(key)) => self.presence(right, key, rising),
                _ => self.parts([&**left, &**right]),
            },
            Tree::Binary { operator: Operator::Equal | Operator::NotEqual, left, right } => match (&**left, &**right) {
                (of, Tree::Constant(Constant::Null)) | (Tree::Constant(Constant::Null), of) => self.nullness(of),
                (left, right) => self.parts([left, right]),
            },
            Tree::Binary { left, right, .. } => self.parts([&**left, &**right]),
            Tree::Not(of) | Tree::Negate(of) => self.part(of, false),
            Tree::AllOf(terms) | Tree::AnyOf(terms) => terms.iter().for_each(|term| self.part(term, rising)),
            Tree::Choose { test, then, otherwise } => {
                self.part(test, false);
                self.part(then, rising);
                self.part(otherwise, rising);
            }
            Tree::List(items) => self.parts(items.iter().map(|item| &item.value)),
            Tree::Map(entries) => self.parts(entries.iter().flat_map(|entry| [&entry.key, &entry.value])),
            Tree::Call(call) => self.call(call),
            Tree::OrElse { of, otherwise, .. } => self.parts([&**of, &**otherwise]),
            Tree::Loop(repeated) => {
                self.part(&repeated.range, false);
                self.parts(&repeated.filter);
                // True for more items makes these, and no others, more true.
                let rises = matches!(repeated.kind, LoopKind::All | LoopKind::Exists);
                self.part(&repeated.body, rising && rises);
            }
        }
    }

    fn parts<'n>(&mut self, trees: impl IntoIterator<Item = &'n Tree>) {
        trees.into_iter().for_each(|tree| self.part(tree, false));
    }

    fn call(&mut self, call: &Call) {
        self.parts(&call.arguments);
    }

    /// A comparison of `of` with null.
    fn nullness(&mut self, of: &Tree) {
        match of.path() {
            Some((variable, keys)) => self.path(variable, &keys, false, false),
            None => self.part(of, false),
        }
    }

    /// A test whether `of` has `key`.
    fn presence(&mut self, of: &Tree, key: &str, rising: bool) {
        match of.path() {
            Some((variable, mut keys)) => {
                keys.push(key);
                // Otherwise the answer is always the same.
                if !variable.always_has(&keys) {
                    self.path(variable, &keys, rising, false);
                }
            }
            None => self.part(of, false),
        }
    }

    /// What lies behind `keys` of a variable. `only_helps`: only its presence is asked for, in a place where that can only
    /// help. `whole`: what it holds is read.
    fn path(&mut self, variable: &'static Variable, keys: &[&str], only_helps: bool, whole: bool) {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        self.reads.push(Read { variable: variable.name, keys, only_helps, whole });
    }
}
