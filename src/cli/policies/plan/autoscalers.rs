//! What autoscalers are not told of the labels and taints that planned policies give, as far as NodePools and MachineDeployments
//! of the cluster say it.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;

use crate::cli::shared::autoscalers::check;
use crate::cli::shared::autoscalers::declared::{Declared, Provisioner};
use crate::cli::shared::autoscalers::document::{Difference, Wrong};
use crate::cli::shared::autoscalers::groups::Groups;
use crate::cli::shared::cluster::known_node::KnownNode;
use crate::cli::shared::cluster::serve_flags::ServedArgs;
use crate::cli::shared::output;
use nodegate_base::text::{counted, or_quotes};
use nodegate_policy::{PolicySet, PoolMemory};

/// The pools of a cluster that autoscalers decide about.
pub(super) struct Pools<'a> {
    groups: Groups<'a>,
    declared: Vec<Declared>,
}

impl<'a> Pools<'a> {
    /// The pools that NodePools and MachineDeployments declare; `None` if there are none, or if they cannot be listed.
    pub(super) async fn of_cluster(client: &Client, set: &'a PolicySet, served: &ServedArgs) -> Option<Self> {
        let mut declared = Vec::new();
        for provisioner in Provisioner::ALL {
            match provisioner.list(client).await {
                Ok(found) => declared.extend(found),
                Err(error) => output::note(&format!("note: what autoscalers are told is not known: {error:#}")),
            }
        }
        let groups = Groups::new(set, None, None, served.pending.taints());
        (!declared.is_empty()).then_some(Self { groups, declared })
    }

    /// Adds a node of the cluster.
    pub(super) fn add(&mut self, node: &KnownNode) -> anyhow::Result<()> {
        self.groups.add(node)
    }

    /// What autoscalers are not told: of labels that pods select, and of taints. `selected`: by how many pods each label is.
    pub(super) fn finish(
        self,
        remembered: Arc<PoolMemory>,
        selected: &BTreeMap<String, usize>,
    ) -> anyhow::Result<Vec<Difference>> {
        let Self { mut groups, mut declared } = self;
        groups.remembered = remembered;
        declared.retain(|one| groups.is_of_this_fleet(one));
        for pool in &declared {
            groups.add_empty(pool)?;
        }
        let is_selected = |key: &str| selected.contains_key(key);
        let found = check::differences(&groups.finish(), &declared, None, is_selected)?.differences;
        let is_wrong = |found: &Difference| found.because == Wrong::Varies && found.told.is_some();
        let with_pods = found.into_iter().map(|found| match found.effect {
            Some(_) => found,
            None => Difference { pods: selected.get(&found.key).copied(), ..found },
        });
        Ok(with_pods.filter(|found| found.effect.is_some() || found.pods.is_some() || is_wrong(found)).collect())
    }
}

/// A difference as a warning.
pub(super) fn in_words(found: &Difference) -> String {
    let Difference { told_by, because, key, effect, values, told, rule, .. } = found;
    let named = |value: Option<&str>| {
        let value = value.filter(|value| effect.is_none() || !value.is_empty());
        let equals = value.map(|value| format!("={}", or_quotes(value))).unwrap_or_default();
        match effect {
            Some(effect) => format!("taint {key}{equals}:{effect}"),
            None => format!("label {key}{equals}"),
        }
    };
    let (what, told) = (named(values.first().map(String::as_str)), named(told.as_deref()));
    let by = rule.as_ref().map(|rule| format!(" (rule {rule})")).unwrap_or_default();
    let pods =
        found.pods.map(|pods| format!(", which {}", counted(pods, "pod selects", "pods select"))).unwrap_or_default();
    let follows = match (because, effect.is_some()) {
        (Wrong::StartupTaint, _) => "the autoscaler waits for it to go",
        (Wrong::Missing | Wrong::Value, true) => "it starts nodes for pods that do not tolerate the taint",
        (Wrong::Varies | Wrong::Unassigned, true) => "it starts no node for pods that do not tolerate the taint",
        (Wrong::Missing | Wrong::Value, false) => "it starts no node for them from zero",
        (Wrong::Varies | Wrong::Unassigned, false) => "it starts nodes that may not fit them",
    };
    match because {
        Wrong::Missing => format!("{told_by} does not say {what}{by}{pods}: {follows}"),
        Wrong::Value => format!("{told_by} says {told}, but nodes get {what}{by}{pods}: {follows}"),
        Wrong::StartupTaint => format!("{told_by} says that {what}{by} goes away, but it stays: {follows}"),
        Wrong::Varies => {
            let values: Vec<_> = values.iter().map(|value| or_quotes(value)).collect();
            let what = named(None);
            format!("{what}{by} is not the same on all nodes of {told_by} ({}){pods}: {follows}", values.join(", "))
        }
        Wrong::Unassigned => format!("{told_by} says {told}{pods}, but no rule gives it: {follows}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodegate_policy::explain::FieldName;

    #[test]
    fn a_warning_says_what_follows() {
        let label = |because, values: &[&str], told: Option<&str>, rule: Option<&str>| Difference {
            pool: "gpu".to_owned(),
            told_by: "NodePool gpu".to_owned(),
            because,
            field: FieldName::Label,
            key: "rack".to_owned(),
            effect: None,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
            told: told.map(str::to_owned),
            rule: rule.map(str::to_owned),
            pods: Some(2),
        };
        let taint = |because, told| {
            let (effect, pods) = (Some("NoSchedule".to_owned()), None);
            Difference { field: FieldName::Taint, effect, pods, ..label(because, &[""], told, Some("p/r")) }
        };
        let rule = Some("p/r");
        for (found, expected) in [
            (
                label(Wrong::Missing, &["7"], None, rule),
                "NodePool gpu does not say label rack=7 (rule p/r), which 2 pods select: it starts no node for them from zero",
            ),
            (
                label(Wrong::Value, &["7"], Some("8"), rule),
                "NodePool gpu says label rack=8, but nodes get label rack=7 (rule p/r), which 2 pods select: it starts no node for them from zero",
            ),
            (
                label(Wrong::Varies, &["7", "8"], None, rule),
                "label rack (rule p/r) is not the same on all nodes of NodePool gpu (7, 8), which 2 pods select: it starts nodes that may not fit them",
            ),
            (
                label(Wrong::Unassigned, &[], Some("7"), None),
                "NodePool gpu says label rack=7, which 2 pods select, but no rule gives it: it starts nodes that may not fit them",
            ),
            (
                taint(Wrong::Missing, None),
                "NodePool gpu does not say taint rack:NoSchedule (rule p/r): it starts nodes for pods that do not tolerate the taint",
            ),
            (
                taint(Wrong::StartupTaint, None),
                "NodePool gpu says that taint rack:NoSchedule (rule p/r) goes away, but it stays: the autoscaler waits for it to go",
            ),
        ] {
            assert_eq!(in_words(&found), expected);
        }
    }
}
