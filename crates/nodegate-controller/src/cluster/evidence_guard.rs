//! The policy of the guard that admits only true evidence for pools: whether it is in force, and since when.
//!
//! Without it, a kubelet that joins while no webhook answers can say of its credential what it likes. So the evidence on a node
//! counts only if the node is younger than this policy.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::Value as Json;

use crate::cluster::registration::{follow_object, message};
use nodegate_base::telemetry::brief;
use nodegate_policy::native::evidence_policy;

/// How long an API server may take until it evaluates a policy that was created. A node of that time was perhaps not checked.
const EVALUATED_AFTER: Duration = Duration::from_secs(2);

/// When an object was created, if it says what nodegate would write.
#[derive(Clone, Copy, Debug, Default)]
struct Both {
    policy: Option<Timestamp>,
    binding: Option<Timestamp>,
}

impl Both {
    /// From when on nodes were checked.
    fn since(self) -> Option<Timestamp> {
        let (policy, binding) = self.policy.zip(self.binding)?;
        policy.max(binding).checked_add(EVALUATED_AFTER).ok()
    }
}

/// Since when the policy has been in force; `None` if it is not, or if it could not be read.
pub(crate) async fn in_force_since(client: &Client, configuration: &str) -> Option<Timestamp> {
    let [policy, binding] = evidence_policy(configuration);
    let name = name_of(&policy);
    let read = async {
        let read = Api::<ValidatingAdmissionPolicy>::all(client.clone()).get_opt(&name).await?;
        let bound = Api::<ValidatingAdmissionPolicyBinding>::all(client.clone()).get_opt(&name).await?;
        Ok::<_, kube::Error>(Both { policy: created(read, &policy), binding: created(bound, &binding) })
    };
    match read.await {
        Ok(both) => both.since(),
        Err(error) => {
            let error = brief(message(&error));
            tracing::warn!(error, name, "could not read the ValidatingAdmissionPolicy that guards evidence for pools");
            None
        }
    }
}

/// Sends `seen` since when the policy has been in force, at once and after each change. Runs until dropped.
pub(crate) async fn follow(client: &Client, configuration: &str, seen: impl FnMut(Option<Timestamp>)) {
    let [policy, binding] = evidence_policy(configuration);
    let name = name_of(&policy);
    // Until both are read, nothing is sent: what was read before stays.
    let known = Mutex::new((Both::default(), [false; 2], seen));
    let note = |place: usize, at: Option<Timestamp>| {
        let (both, read, seen) = &mut *known.lock();
        read[place] = true;
        *(if place == 0 { &mut both.policy } else { &mut both.binding }) = at;
        if *read == [true; 2] {
            seen(both.since());
        }
    };
    let policies = follow_object(Api::<ValidatingAdmissionPolicy>::all(client.clone()), &name, |found| {
        note(0, created(found, &policy));
    });
    let bindings = follow_object(Api::<ValidatingAdmissionPolicyBinding>::all(client.clone()), &name, |found| {
        note(1, created(found, &binding));
    });
    tokio::join!(policies, bindings);
}

fn name_of(object: &Json) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// When an object was created, if its spec is `wanted`'s.
fn created<K>(found: Option<K>, wanted: &Json) -> Option<Timestamp>
where
    K: kube::Resource + serde::Serialize,
{
    let found = found?;
    let created = found.meta().creation_timestamp.as_ref().map(|time| time.0);
    let stored = serde_json::to_value(&found).ok()?;
    if says(&stored["spec"], &wanted["spec"]) {
        return created;
    }
    let name = name_of(&stored);
    tracing::warn!(name, kind = %wanted["kind"], "this part of the guard is not the one of this version, so evidence for pools is not used; apply the output of `nodegate render guard`, or upgrade the chart");
    None
}

/// Whether an object has all that is wanted, and besides that only what the API server adds, which is empty.
fn says(stored: &Json, wanted: &Json) -> bool {
    match (stored, wanted) {
        (Json::Object(stored), Json::Object(wanted)) => {
            let is_there = |(key, wanted): (&String, &Json)| stored.get(key).is_some_and(|value| says(value, wanted));
            let is_empty = |value: &Json| match value {
                Json::Null => true,
                Json::Object(fields) => fields.is_empty(),
                Json::Array(items) => items.is_empty(),
                Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
            };
            wanted.iter().all(is_there) && stored.iter().all(|(key, value)| wanted.contains_key(key) || is_empty(value))
        }
        (Json::Array(stored), Json::Array(wanted)) => {
            stored.len() == wanted.len() && stored.iter().zip(wanted).all(|(value, wanted)| says(value, wanted))
        }
        _ => stored == wanted,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The policy as an API server stores it.
    fn stored() -> (ValidatingAdmissionPolicy, Json) {
        let [policy, _] = evidence_policy("nodegate");
        let mut stored = policy.clone();
        stored["metadata"]["creationTimestamp"] = json!("2026-11-27T10:00:00Z");
        stored["spec"]["matchConstraints"]["namespaceSelector"] = json!({});
        stored["spec"]["matchConstraints"]["objectSelector"] = json!({});
        (serde_json::from_value(stored).unwrap(), policy)
    }

    #[test]
    fn the_policy_counts_as_the_api_server_stores_it() {
        let (policy, wanted) = stored();
        assert_eq!(created(Some(policy), &wanted), Some("2026-11-27T10:00:00Z".parse().unwrap()));
        assert_eq!(created(None::<ValidatingAdmissionPolicy>, &wanted), None);
    }

    #[test]
    fn a_policy_that_admits_more_does_not_count() {
        let weaken: [fn(&mut ValidatingAdmissionPolicy); 4] = [
            |policy| policy.spec.as_mut().unwrap().failure_policy = Some("Ignore".to_owned()),
            |policy| drop(policy.spec.as_mut().unwrap().validations.as_mut().unwrap().pop()),
            |policy| {
                policy.spec.as_mut().unwrap().match_conditions.as_mut().unwrap()[0].expression = "false".to_owned();
            },
            |policy| {
                let constraints = policy.spec.as_mut().unwrap().match_constraints.as_mut().unwrap();
                constraints.exclude_resource_rules = constraints.resource_rules.clone();
            },
        ];
        for weaken in weaken {
            let (mut policy, wanted) = stored();
            weaken(&mut policy);
            assert_eq!(created(Some(policy), &wanted), None);
        }
    }

    #[test]
    fn both_the_policy_and_its_binding_must_be_there() {
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let both = Both { policy: at("2026-11-27T10:00:00Z"), binding: at("2026-11-27T10:00:05Z") };
        assert_eq!(both.since(), at("2026-11-27T10:00:07Z"));
        assert_eq!(Both { policy: None, ..both }.since(), None);
        assert_eq!(Both { binding: None, ..both }.since(), None);
    }
}
