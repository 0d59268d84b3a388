//! Keeps the policies in force as native admission policies in the cluster. Only the leader does this.
//!
//! This is opt-in, because it requires permission to write admission policies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, select_all};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::cluster::registration::{ErrorBackoff, POLL, SPACING, in_time, is_gone, message, next_trigger};
use nodegate_base::object_watch::watch_objects;
use nodegate_base::text;
use nodegate_policy::FIELD_MANAGER;
use nodegate_policy::PolicySet;
use nodegate_policy::api::policy::{NativeRule, NativeStatus, NodePolicy};
use nodegate_policy::native::{LeftOut, Native, NativeOptions, export};

/// Labels the objects that this module manages; its value is the namespace of the nodegate that manages them.
pub const KEPT_BY: &str = "nodegate.dev/kept-by";
/// The label that `nodegate export` sets: an object with this label and one of nodegate's names is taken over.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "nodegate");
const GROUP: &str = "admissionregistration.k8s.io";
/// Bindings are deleted before policies: a binding without its policy makes every write fail.
pub(crate) const KINDS: [(&str, &str); 4] = [
    ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings"),
    ("MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
    ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
];
/// Maximum number of rules in the status of one policy.
const RULES_MAX: usize = 200;
/// Maximum length of a reason, in characters.
const REASON_MAX: usize = 300;

/// How native policies are managed.
#[derive(Clone, Debug)]
pub struct NativeConfig {
    /// The export options, besides the policies.
    pub options: NativeOptions,
    /// The namespace of the nodegate that manages them.
    pub keeper: String,
}

/// Keeps the native policies equal to the output of `nodegate export admission-policies` for the policies in force,
/// and reports in the status of every `NodePolicy` which of its rules are enforced natively. Only the leader runs
/// this; it runs until dropped.
///
/// `changes` changes with every new set of policies in force, and `policies` is the set in force at that time.
///
/// # Guarantees
/// Writes only what differs. Objects of these kinds without nodegate's label are neither changed nor deleted.
pub async fn keep_native(
    client: Client,
    config: NativeConfig,
    policies: Arc<ArcSwap<PolicySet>>,
    mut changes: watch::Receiver<u64>,
) {
    let keeper = Keeper { client, config };
    let mut errors = ErrorBackoff::new("native policies are not up to date");
    let mut triggers = None;
    loop {
        changes.mark_unchanged();
        let set = policies.load_full();
        let pause = match in_time(keeper.look(&set)).await {
            Ok(kinds) => {
                triggers.get_or_insert_with(|| keeper.triggers(&kinds));
                errors.succeeded(POLL)
            }
            Err(error) => errors.failed(&error),
        };
        sleep(SPACING).await;
        let trigger = async {
            match &mut triggers {
                Some(triggers) => next_trigger(triggers).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = trigger => {}
            () = sleep(pause) => {}
        }
    }
}

/// A kind of object that the API server supports.
type Kind = (&'static str, Api<DynamicObject>);

struct Keeper {
    client: Client,
    config: NativeConfig,
}

impl Keeper {
    /// Writes and deletes objects as needed, and reports the result.
    async fn look(&self, set: &PolicySet) -> Result<Vec<Kind>, String> {
        let mut native = export(set, &self.config.options);
        for object in &mut native.objects {
            object["metadata"]["labels"][KEPT_BY] = json!(self.config.keeper);
        }
        let kinds = self.kinds().await?;
        let mut faults = Vec::new();
        for (kind, api) in kinds.iter().rev() {
            for object in native.objects.iter().filter(|object| object["kind"] == *kind) {
                if let Err(error) = self.write(api, object).await {
                    faults.push(format!("{kind} {}: {error}", object["metadata"]["name"].as_str().unwrap_or_default()));
                }
            }
        }
        for (kind, api) in &kinds {
            if let Err(error) = self.prune(kind, api, &native.objects).await {
                faults.push(format!("{kind}: {error}"));
            }
        }
        for (kind, _) in KINDS.iter().filter(|(kind, _)| !kinds.iter().any(|(there, _)| there == kind)) {
            if native.objects.iter().any(|object| object["kind"] == *kind) && !kind.ends_with("Binding") {
                faults.push(format!("this API server does not support {kind} ({GROUP}/v1)"));
            }
        }
        let written = self.write_statuses(set, &native, &faults).await;
        if !faults.is_empty() {
            return Err(faults.join("; "));
        }
        written.map(|()| kinds)
    }

    /// The kinds that this API server supports.
    async fn kinds(&self) -> Result<Vec<Kind>, String> {
        let version = format!("{GROUP}/v1");
        let served = self.client.list_api_group_resources(&version).await.map_err(|error| message(&error))?;
        let has = |plural: &str| served.resources.iter().any(|resource| resource.name == plural);
        let kinds = KINDS.iter().filter(|(_, plural)| has(plural)).map(|(kind, plural)| {
            let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1", kind), plural);
            (*kind, Api::all_with(self.client.clone(), &resource))
        });
        Ok(kinds.collect())
    }

    fn selector(&self) -> String {
        format!("{KEPT_BY}={}", self.config.keeper)
    }

    /// Signals that others changed one of the objects. Errors here are harmless, because the poll finds every change
    /// as well.
    fn triggers(&self, kinds: &[Kind]) -> BoxStream<'static, ()> {
        let config = watcher::Config::default().labels(&self.selector());
        let triggers = kinds.iter().map(|(_, api)| {
            let events = watch_objects(api.clone(), config.clone());
            events
                .filter_map(|event| {
                    std::future::ready(
                        matches!(event, Ok(Event::Apply(_) | Event::Delete(_) | Event::InitDone)).then_some(()),
                    )
                })
                .boxed()
        });
        select_all(triggers).boxed()
    }

    /// Writes one object if it differs.
    async fn write(&self, api: &Api<DynamicObject>, object: &Json) -> Result<(), String> {
        let fault = |error: kube::Error| message(&error);
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if let Some(there) = api.get_opt(name).await.map_err(fault)? {
            let label = |key: &str| there.labels().get(key).map(String::as_str);
            let ours = label(KEPT_BY) == Some(&self.config.keeper);
            let by_hand = label(KEPT_BY).is_none() && label(MANAGED_BY.0) == Some(MANAGED_BY.1);
            if !ours && !by_hand {
                return Err(
                    "an object with this name exists and is not managed by nodegate; delete or rename it".to_owned()
                );
            }
            if ours && is_same(&there, object) {
                return Ok(());
            }
        }
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let mut applied = api.patch(name, &parameters, &Patch::Apply(object)).await.map_err(fault)?;
        if !is_same(&applied, object) {
            // Others added a field. An apply reverts only the fields that nodegate set.
            applied.data["spec"] = object["spec"].clone();
            let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
            api.replace(name, &parameters, &applied).await.map_err(fault)?;
        }
        tracing::info!(kind = object["kind"].as_str(), name, "native policy written");
        Ok(())
    }

    /// Deletes managed objects that are no longer wanted.
    async fn prune(&self, kind: &str, api: &Api<DynamicObject>, wanted: &[Json]) -> Result<(), String> {
        let wanted: BTreeSet<&str> = wanted
            .iter()
            .filter(|object| object["kind"] == kind)
            .filter_map(|object| object["metadata"]["name"].as_str())
            .collect();
        let listed =
            api.list(&ListParams::default().labels(&self.selector())).await.map_err(|error| message(&error))?;
        for there in listed.items.into_iter().filter(|there| !wanted.contains(there.name_any().as_str())) {
            let preconditions = Preconditions { uid: there.uid(), ..Preconditions::default() };
            let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            match api.delete(&there.name_any(), &parameters).await {
                Ok(_) => tracing::info!(kind, name = there.name_any(), "native policy deleted"),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(message(&error)),
            }
        }
        Ok(())
    }

    /// Reports in the status of every policy which of its rules are enforced natively.
    async fn write_statuses(&self, set: &PolicySet, native: &Native, faults: &[String]) -> Result<(), String> {
        let api: Api<NodePolicy> = Api::all(self.client.clone());
        for (policy, status) in statuses(set, native, faults) {
            let there = match api.get_opt(&policy).await {
                Ok(Some(there)) => there,
                // The policy comes from a file or is a preset.
                Ok(None) => continue,
                Err(error) => return Err(message(&error)),
            };
            if there.status.unwrap_or_default().native.as_ref() == Some(&status) {
                continue;
            }
            let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
            let patch = Patch::Merge(json!({"status": {"native": status}}));
            if let Err(error) = api.patch_status(&policy, &parameters, &patch).await
                && !is_gone(&error)
            {
                return Err(format!("the status of NodePolicy {policy}: {}", message(&error)));
            }
        }
        Ok(())
    }
}

/// Whether an object has the wanted labels and spec, apart from the API server's defaults.
fn is_same(there: &DynamicObject, wanted: &Json) -> bool {
    let labels = wanted["metadata"]["labels"].as_object();
    let labelled = labels
        .into_iter()
        .flatten()
        .all(|(key, value)| there.labels().get(key).is_some_and(|label| Some(label.as_str()) == value.as_str()));
    labelled && is_same_spec(&there.data["spec"], &wanted["spec"])
}

/// Fields that the API server adds, with their default values.
fn is_default(key: &str, value: &Json) -> bool {
    match key {
        "matchPolicy" => value == "Equivalent",
        "namespaceSelector" | "objectSelector" => *value == json!({}),
        "scope" => value == "*",
        _ => false,
    }
}

fn is_same_spec(there: &Json, wanted: &Json) -> bool {
    match (there, wanted) {
        (Json::Object(there), Json::Object(wanted)) => {
            let kept = |(key, value): (&String, &Json)| match wanted.get(key) {
                Some(wanted) => is_same_spec(value, wanted),
                None => is_default(key, value),
            };
            there.iter().all(kept) && wanted.keys().all(|key| there.contains_key(key))
        }
        (Json::Array(there), Json::Array(wanted)) => {
            there.len() == wanted.len() && there.iter().zip(wanted).all(|(there, wanted)| is_same_spec(there, wanted))
        }
        _ => there == wanted,
    }
}

/// What is enforced natively, by policy.
fn statuses(set: &PolicySet, native: &Native, faults: &[String]) -> BTreeMap<String, NativeStatus> {
    let mut rules: BTreeMap<String, Vec<NativeRule>> = BTreeMap::new();
    let of = |policy: &str, rule: String, mut reason: Option<String>| {
        reason.iter_mut().for_each(|reason| text::cut_to_characters(reason, REASON_MAX));
        (policy.to_owned(), NativeRule { rule, holds: reason.is_none(), reason })
    };
    let fault = (!faults.is_empty()).then(|| format!("could not write all objects: {}", faults.join("; ")));
    let left_out =
        native.left_out.iter().map(|LeftOut { policy, what, reason }| of(policy, what.clone(), Some(reason.clone())));
    let held = native.held.iter().map(|id| of(&id.policy, id.rule.to_string(), fault.clone()));
    for (policy, rule) in left_out.chain(held) {
        rules.entry(policy).or_default().push(rule);
    }
    let mut status = |policy: &str| {
        let mut rules = rules.remove(policy).unwrap_or_default();
        // Rules that are not enforced come first, because the list is limited.
        rules.sort_by(|a, b| (a.holds, &a.rule).cmp(&(b.holds, &b.rule)));
        let holding = rules.iter().filter(|rule| rule.holds).count();
        let not_holding = rules.len() - holding;
        rules.truncate(RULES_MAX);
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        NativeStatus { holding: count(holding), not_holding: count(not_holding), rules }
    };
    set.policies().map(|policy| (policy.to_owned(), status(policy))).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nodegate_policy::{Origin, PolicyDocument};

    #[test]
    fn only_defaults_of_the_api_server_are_not_a_difference() {
        let wanted =
            json!({"matchConstraints": {"resourceRules": [{"resources": ["nodes"]}]}, "failurePolicy": "Ignore"});
        let mut there = wanted.clone();
        there["matchConstraints"]["matchPolicy"] = json!("Equivalent");
        there["matchConstraints"]["objectSelector"] = json!({});
        assert!(is_same_spec(&there, &wanted));
        for (path, value) in [
            ("/matchConstraints/matchPolicy", json!("Exact")),
            ("/matchConstraints/objectSelector", json!({"matchLabels": {"a": "b"}})),
            ("/matchConstraints/resourceRules", json!([])),
            ("/failurePolicy", json!("Fail")),
        ] {
            let mut other = there.clone();
            *other.pointer_mut(path).unwrap() = value;
            assert!(!is_same_spec(&other, &wanted), "{path}");
        }
        there["matchConditions"] = json!([{"name": "never", "expression": "false"}]);
        assert!(!is_same_spec(&there, &wanted), "an added field");
    }

    #[test]
    fn the_status_reports_for_every_rule_whether_it_is_enforced_natively_and_why_not() {
        let spec = json!({
            "rules": [
                {"name": "by-name", "match": {"names": ["a"]}, "labels": {"x": "y"}},
                {"name": "computed", "labelExpressions": {"z": "node.metadata.name"}},
            ],
            "protect": {"keys": ["x"]},
        });
        let document = PolicyDocument::new("p", Origin::Object, serde_json::from_value(spec).unwrap());
        let set = PolicySet::compile(&[document]).unwrap();
        let native = export(&set, &NativeOptions { name: "nodegate".to_owned(), ..NativeOptions::default() });
        let status = statuses(&set, &native, &[]).remove("p").unwrap();
        assert_eq!((status.holding, status.not_holding), (2, 1), "{status:#?}");
        assert!(status.rules[0].rule.contains("computed") && status.rules[0].reason.is_some(), "{status:#?}");
        let status = statuses(&set, &native, &["refused".to_owned()]).remove("p").unwrap();
        assert_eq!(status.holding, 0, "no rule counts as enforced if an object could not be written");
    }
}
