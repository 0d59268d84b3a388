//! Objects that compile together.

use std::collections::BTreeMap;

use nodegate_policy::api::policy::EntryMode;
use nodegate_policy::{PolicyDocument, PolicyError, PolicySet, baseline};

/// One generation of an object.
pub(super) type Candidate<'a> = (i64, &'a PolicyDocument);
/// Identifies a generation of an object.
pub(super) type Chosen<'a> = BTreeMap<&'a str, Candidate<'a>>;

/// Objects that compile together with the files.
pub(super) struct Combination<'a> {
    files: &'a [PolicyDocument],
    stands_in: Option<EntryMode>,
    pub(super) set: PolicySet,
    pub(super) chosen: Chosen<'a>,
}

impl<'a> Combination<'a> {
    /// The files alone, not compiled yet.
    pub(super) fn new(files: &'a [PolicyDocument], stands_in: Option<EntryMode>) -> Self {
        Self { files, stands_in, set: PolicySet::default(), chosen: Chosen::new() }
    }

    fn compile(&self, chosen: &Chosen<'_>) -> Result<PolicySet, Vec<PolicyError>> {
        let stand_in = self.stands_in.filter(|_| chosen.is_empty()).map(baseline);
        let objects = chosen.values().map(|(_, document)| (*document).clone());
        PolicySet::compile(&self.files.iter().cloned().chain(stand_in).chain(objects).collect::<Vec<_>>())
    }

    /// Replaces the selection by these, if they compile together.
    pub(super) fn take_all(&mut self, chosen: Chosen<'a>) -> bool {
        let compiled = self.compile(&chosen).map(|set| (self.set, self.chosen) = (set, chosen));
        compiled.is_ok()
    }

    /// Adds one object, or replaces a generation, if the result compiles.
    pub(super) fn take(&mut self, name: &'a str, candidate: Candidate<'a>) -> Result<(), Vec<PolicyError>> {
        let mut chosen = self.chosen.clone();
        chosen.insert(name, candidate);
        self.set = self.compile(&chosen)?;
        self.chosen = chosen;
        Ok(())
    }
}
