//! Evidence for the pools of a node: what the API server authenticated about the kubelet that created it.
//!
//! Only the review of the CREATE says it. The webhook leaves it in an annotation, because it has no side effects. A kubelet that
//! joins while no webhook is there can leave such an annotation itself, so the guard, which the API server evaluates, admits
//! only what is true of the requester (`native/guard/evidence.rs`). No kubelet may change it later.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::pools::MachineKind;
use crate::api::state::{Adopted, Asserted, AuthenticatedAs, SavedOfPool, SavedState};
use crate::facts::NodeFacts;
use crate::facts::proof::bootstrap::{self, Bootstrapper, CREDENTIAL_ID};
use crate::facts::proof::extra::LINES_MAX;
use crate::facts::proof::machines::{LabelOfMachine, MachinesOfNode};
use crate::facts::requester::{KUBELET_USER, Requester};

/// The annotation with the evidence.
pub const AUTHENTICATED_AS: &str = "nodegate.dev/authenticated-as";

/// The groups of every kubelet. They are left out, because they prove nothing.
pub const GROUPS_OF_EVERY_KUBELET: [&str; 2] = ["system:nodes", "system:authenticated"];
/// Maximum length of the evidence, in bytes: all annotations of a node share 256 KiB.
pub(crate) const EVIDENCE_MAX: usize = 8192;

/// The beginnings of lines. The guard has the same.
pub(crate) const USER: &str = "user=";
pub(crate) const GROUP: &str = "group=";
pub(crate) const EXTRA: &str = "extra.";
pub(crate) const NO_EXTRA: &str = "no-extra.";
/// The line that the guard adds where the kubelet has sent the annotation itself.
pub(crate) const REPLACED: &str = "replaced";

/// What the API server authenticated about the kubelet that created a node, as lines of text:
///
/// ```text
/// user=system:node:gpu-1
/// group=pool:gpu
/// extra.canonicalArn=arn:aws:iam::111122223333:role/gpu
/// no-extra.sessionName
/// ```
///
/// All groups are there but those of every kubelet, and those extra keys that policies ask for.
///
/// To it belongs who asked for the kubelet's certificate, and the provisioners' objects that stand for the machine, which are known
/// from elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence<'a> {
    /// Empty if nothing is known of the kubelet.
    text: Cow<'a, str>,
    bootstrapper: Option<Arc<Bootstrapper>>,
    machines: MachinesOfNode,
    /// What is asserted about the node that its kubelet is not proven to be.
    asserted: Asserted,
    /// What an administrator vouches for.
    adopted: Option<Adopted>,
}

impl<'a> Evidence<'a> {
    fn new(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// What is known of the requester of a review, with these keys of its extra information. `None` if it does not fit, or if a
    /// part of it has a line break.
    pub(crate) fn of(requester: &Requester<'_>, keys: &[Box<str>]) -> Option<Evidence<'static>> {
        let mut lines = vec![format!("{USER}{}", &*requester.username)];
        let groups = requester.groups.iter().filter(|group| !GROUPS_OF_EVERY_KUBELET.contains(&&***group));
        lines.extend(groups.map(|group| format!("{GROUP}{}", &**group)));
        let extra = requester.extra.of_keys(keys)?;
        for key in keys {
            let values = extra.iter().find(|(found, _)| **found == **key).map(|(_, values)| values.as_slice());
            match values.unwrap_or_default() {
                [] => lines.push(format!("{NO_EXTRA}{key}")),
                values => lines.extend(values.iter().map(|value| format!("{EXTRA}{key}={}", &**value))),
            }
        }
        lines.sort_unstable();
        lines.dedup();
        let broken = lines.iter().any(|line| line.contains(char::is_control));
        let text = lines.join("\n");
        (!broken && lines.len() <= LINES_MAX && text.len() <= EVIDENCE_MAX).then(|| Evidence::new(text))
    }

    /// The evidence in a text about the node with this name. `None` if it is about another user, or longer than nodegate writes.
    pub(crate) fn read(text: &'a str, node: &str) -> Option<Self> {
        let is_short = text.len() <= EVIDENCE_MAX && text.lines().count() <= LINES_MAX;
        let evidence = Self::new(text);
        let mut users = evidence.after(USER);
        let is_about_node = users.next() == Some(&*format!("{KUBELET_USER}{node}")) && users.next().is_none();
        drop(users);
        (is_short && is_about_node).then_some(evidence)
    }

    /// The evidence about a stored node: what its record has, else, if `guarded`, what was left on it when it was created.
    /// `guarded`: the guard was in force then, so that the API server checked it.
    pub fn of_stored(node: &NodeFacts<'_>, saved: &SavedState, guarded: bool) -> Option<Evidence<'static>> {
        let is_of_node = saved.is_of_object(node.uid.as_deref());
        let recorded = saved.authenticated_as.as_ref().filter(|_| is_of_node).map(AuthenticatedAs::text);
        let machines = if is_of_node { MachinesOfNode::recorded(saved) } else { MachinesOfNode::default() };
        let text = match recorded.filter(|text| Evidence::read(text, &node.name).is_some()) {
            Some(recorded) => recorded,
            None => {
                let left = node.annotation(AUTHENTICATED_AS).filter(|_| guarded);
                let left = left.and_then(|text| Evidence::read(text, &node.name));
                let lines: BTreeSet<&str> =
                    left.iter().flat_map(|left| left.text.lines()).filter(|line| *line != REPLACED).collect();
                lines.into_iter().collect::<Vec<_>>().join("\n")
            }
        };
        let asserted = saved.asserted.as_deref().filter(|known| is_of_node && known.node_uid == saved.node_uid);
        let asserted = asserted.map(|known| Asserted { node_uid: None, ..known.clone() }).unwrap_or_default();
        let adopted = saved.adopted().filter(|_| is_of_node).cloned();
        let evidence = Evidence { machines, asserted, adopted, ..Evidence::new(text) };
        let evidence = evidence.bootstrapped(|certificate| Bootstrapper::recorded(saved, certificate));
        (!evidence.is_empty()).then_some(evidence)
    }

    /// The evidence that the record of a node has of the one that something was saved of: about its kubelet, the objects that stood for
    /// its machine, and what an administrator vouched for.
    pub(crate) fn of_saved(saved: &SavedState, of: &'a SavedOfPool) -> Option<Self> {
        let text = of.authenticated_as.as_deref();
        let known = text.and_then(|text| Evidence::read(text, &saved.node_name)).unwrap_or_default();
        let machines = MachinesOfNode { found: of.provisioned_by.to_vec(), ..MachinesOfNode::default() };
        let evidence = Self { machines, adopted: of.adopted.clone(), ..known };
        let evidence = evidence.bootstrapped(|one| Bootstrapper::recorded(saved, one));
        (!evidence.is_empty()).then_some(evidence)
    }

    /// With the provisioners' objects that were found, or with those that are known already where nothing is known now.
    #[must_use]
    pub(crate) fn with_machines(mut self, found: MachinesOfNode) -> Self {
        self.machines = found.or_recorded(self.machines);
        self
    }

    /// With what is asserted about the node that its kubelet is not proven to be, instead of what was known of that.
    #[must_use]
    pub(crate) fn with_asserted(self, asserted: Asserted) -> Self {
        Self { asserted, ..self }
    }

    /// Whether it has nothing to say.
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.machines.says_nothing() && self.asserted.is_empty() && self.adopted.is_none()
    }

    /// The IDs of the kubelet's instance under these keys of its extra information; `None` if there are none as far as it is known, but
    /// it is not known what the kubelet has under one of them.
    pub(crate) fn instances(&self, keys: &[Box<str>]) -> Option<Vec<&str>> {
        let values: Vec<Option<Vec<&str>>> = keys.iter().map(|key| self.extra(key)).collect();
        let is_known = values.iter().all(Option::is_some);
        let instances: Vec<&str> = values.into_iter().flatten().flatten().collect();
        (is_known || !instances.is_empty()).then_some(instances)
    }

    /// What is asserted about the node that its kubelet is not proven to be.
    pub(crate) fn asserted(&self) -> &Asserted {
        &self.asserted
    }

    /// What an administrator vouches for.
    pub(crate) fn adopted(&self) -> Option<&Adopted> {
        self.adopted.as_ref()
    }

    /// The provisioners' objects that stand for the node's machine.
    pub fn machines(&self) -> &MachinesOfNode {
        &self.machines
    }

    /// Whether it is certain that no NodeClaim of the node's machine has this label.
    pub fn refutes_label_of_node_claim(&self, key: &str, value: &str) -> bool {
        match self.machines.label(MachineKind::NodeClaim, key, |_| true) {
            LabelOfMachine::Value(known) => known != value,
            LabelOfMachine::None => true,
            LabelOfMachine::Unknown => false,
        }
    }

    /// Waits no longer for what may become known of a node that joins.
    #[must_use]
    pub fn settled(mut self) -> Self {
        self.machines.settle();
        self
    }

    /// Whether the annotation of a node says that its kubelet has sent one, which the guard has replaced.
    pub(crate) fn is_replacement(node: &NodeFacts<'_>) -> bool {
        node.annotation(AUTHENTICATED_AS).is_some_and(|text| text.lines().any(|line| line == REPLACED))
    }

    /// Whether a text is what nodegate, or the guard, would write about a requester: of some extra keys, each as a whole.
    pub(crate) fn is_true(text: &str, requester: &Requester<'_>) -> bool {
        let text = Evidence::new(text);
        let named = text.after(EXTRA).map(|line| line.split_once('=').map_or(line, |(key, _)| key));
        let keys: BTreeSet<Box<str>> = named.chain(text.after(NO_EXTRA)).map(Into::into).collect();
        let keys: Vec<Box<str>> = keys.into_iter().take(LINES_MAX).collect();
        Evidence::of(requester, &keys).is_some_and(|evidence| evidence.has_lines_of(&text.text))
    }

    /// Whether it has the same lines as a text, in whatever order.
    pub(crate) fn has_lines_of(&self, text: &str) -> bool {
        let lines = |text| str::lines(text).collect::<BTreeSet<&str>>();
        lines(&self.text) == lines(text)
    }

    /// The groups of the kubelet.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &str> {
        self.after(GROUP)
    }

    /// The values of a key of its extra information. `None` if nobody asked for the key when the node was created.
    pub(crate) fn extra(&self, key: &str) -> Option<Vec<&str>> {
        if self.after(NO_EXTRA).any(|line| line == key) {
            return Some(Vec::new());
        }
        let values = self.after(EXTRA).filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let values: Vec<&str> = values.collect();
        (!values.is_empty()).then_some(values)
    }

    /// What it says about the credential: `groups`, and `extra.KEY` for each key that the kubelet has.
    pub(crate) fn by_name(&self) -> BTreeMap<String, Vec<String>> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for group in self.groups() {
            found.entry("groups".to_owned()).or_default().push(group.to_owned());
        }
        for (key, value) in self.after(EXTRA).filter_map(|line| line.split_once('=')) {
            found.entry(format!("{EXTRA}{key}")).or_default().push(value.to_owned());
        }
        found
    }

    /// The rest of the lines that begin so.
    fn after(&self, beginning: &'static str) -> impl Iterator<Item = &str> {
        self.text.lines().filter_map(move |line| line.strip_prefix(beginning))
    }

    /// What is known of the kubelet, as it is written into the annotation and into the record; `None` if nothing is.
    pub fn authenticated_as(&self) -> Option<&str> {
        Some(&*self.text).filter(|text| !text.is_empty())
    }

    /// The fingerprint of the client certificate that the kubelet presented; `None` if it was authenticated otherwise, or if nobody
    /// asked for it when the node was created.
    pub fn certificate(&self) -> Option<&str> {
        let line = self.after(EXTRA).find_map(|line| line.strip_prefix(CREDENTIAL_ID)?.strip_prefix('='));
        line.and_then(bootstrap::certificate_of)
    }

    /// With who asked for that certificate, as `find` knows, unless that is known already.
    #[must_use]
    pub fn bootstrapped(self, find: impl FnOnce(&str) -> Option<Arc<Bootstrapper>>) -> Self {
        let known = self.bootstrapper.clone();
        let bootstrapper = known.or_else(|| self.certificate().and_then(find));
        Self { bootstrapper, ..self }
    }

    /// Who asked for the kubelet's first certificate, if that is known.
    pub fn bootstrapper(&self) -> Option<&Arc<Bootstrapper>> {
        self.bootstrapper.as_ref()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::facts::json::borrow::Text;
    use crate::facts::proof::extra::Extra;

    fn kubelet<'a>(groups: &[&'a str], extra: &'a str) -> Requester<'a> {
        Requester {
            username: Text("system:node:gpu-1".into()),
            groups: groups.iter().map(|group| Text((*group).into())).collect(),
            uid: None,
            extra: Extra::new(Some(extra)),
        }
    }

    #[test]
    fn evidence_has_the_groups_and_the_extra_values_that_are_asked_for() {
        let extra = r#"{"canonicalArn": ["arn:aws:iam::1:role/gpu"], "accessKeyId": ["AKIA"], "twice": ["b", "a"]}"#;
        let requester = kubelet(&["system:nodes", "pool:gpu", "system:authenticated"], extra);
        let asked = ["canonicalArn", "sessionName", "twice"].map(Into::into);
        let evidence = Evidence::of(&requester, &asked).unwrap();
        let expected = "extra.canonicalArn=arn:aws:iam::1:role/gpu\nextra.twice=a\nextra.twice=b\ngroup=pool:gpu\nno-extra.sessionName\nuser=system:node:gpu-1";
        assert_eq!(evidence.text, expected, "the access key is left out");
        let read = Evidence::read(expected, "gpu-1").unwrap();
        assert_eq!(read.groups().collect::<Vec<_>>(), ["pool:gpu"]);
        assert_eq!(read.extra("canonicalArn").unwrap(), ["arn:aws:iam::1:role/gpu"]);
        assert_eq!(read.extra("sessionName").unwrap(), Vec::<&str>::new(), "the kubelet has none");
        assert_eq!(read.extra("accessKeyId"), None, "nobody asked");
        assert_eq!(read.extra("twic"), None);
    }

    #[test]
    fn what_the_guard_writes_is_true_in_any_order_and_forged_or_replaced_lines_are_not() {
        let requester = kubelet(&["pool:gpu", "team"], r#"{"arn": ["b", "a"], "other": ["x"]}"#);
        let guards = "extra.arn=b\nextra.arn=a\ngroup=team\ngroup=pool:gpu\nno-extra.role\nuser=system:node:gpu-1";
        let evidence = Evidence::of(&requester, &["arn", "role"].map(Into::into)).unwrap();
        assert!(evidence.has_lines_of(guards) && Evidence::is_true(guards, &requester));
        let without_keys = "group=team\ngroup=pool:gpu\nuser=system:node:gpu-1";
        assert!(Evidence::is_true(without_keys, &requester) && !evidence.has_lines_of(without_keys));
        for (from, to) in
            [("extra.arn=a\n", ""), ("group=team", "group=admin"), ("role", "other"), ("gpu-1", "gpu-1\nreplaced")]
        {
            assert!(!Evidence::is_true(&guards.replace(from, to), &requester), "{from:?} is {to:?}");
        }
    }

    #[test]
    fn evidence_about_another_user_or_about_two_is_none() {
        for text in
            ["", "group=a", "user=system:node:gpu-2", "user=system:node:gpu-1\nuser=system:node:gpu-2", "user=gpu-1"]
        {
            assert_eq!(Evidence::read(text, "gpu-1"), None, "{text:?}");
        }
        assert!(Evidence::read("user=system:node:gpu-1", "gpu-1").is_some());
    }

    #[test]
    fn what_does_not_fit_and_what_could_be_read_as_another_line_gives_no_evidence() {
        assert_eq!(Evidence::of(&kubelet(&["a\ngroup=pool:gpu"], "{}"), &[]), None);
        let many: Vec<String> = (0..LINES_MAX).map(|at| format!("g{at}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(Evidence::of(&kubelet(&many, "{}"), &[]), None);
        assert!(Evidence::of(&kubelet(&many[1..], "{}"), &[]).is_some());
        let long = "x".repeat(EVIDENCE_MAX);
        assert_eq!(Evidence::of(&kubelet(&[&long], "{}"), &[]), None);
        for extra in ["[]", r#"{"a": "b"}"#, r#"{"a": [1]}"#] {
            assert_eq!(Evidence::of(&kubelet(&[], extra), &["a".into()]), None, "{extra}");
        }
        assert!(
            Evidence::of(&kubelet(&[], r#"{"b": 1}"#), &["a".into()]).is_some(),
            "what nobody asks for is not read"
        );
    }
}
