//! Reverts one change of a node, and reports the outcome.

use anyhow::{Context as _, bail};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::client::Body;
use kube::core::Request;
use serde_json::{Value as Json, json};

use crate::cli::shared::cluster::connect::ClusterTarget;
use crate::cli::{Findings, shared::cluster::effective_policies, shared::output};
use nodegate_base::kube_error::in_words;
use nodegate_policy::api::state::{Change, How};
use nodegate_policy::simulate::{Scene, simulate};
use nodegate_policy::{Exemptions, RuleId};
use nodegate_stores::files::Sources;

/// Number of attempts if the node changes concurrently.
const TRIES: usize = 5;

/// A rule that sets a key, and the value that it sets.
struct AssigningRule {
    rule: RuleId,
    value: String,
}

/// The outcome of a revert.
struct Outcome {
    /// The current value of the key.
    stored: Option<String>,
    /// The rule of the NodePolicy objects that sets the key to another value than the wanted one.
    assigning_rule: Option<AssigningRule>,
    /// The warnings about the key in nodegate's answer to the write.
    messages: Vec<String>,
}

/// Sets the key of `change` to its previous value, and reports whether that lasts.
///
/// # Errors
/// Returns an error if the node cannot be written.
pub(in crate::cli) async fn revert(
    client: &Client,
    place: &ClusterTarget,
    node: &str,
    change: &Change,
) -> anyhow::Result<Findings> {
    anyhow::ensure!(
        !change.key.is_empty() && !matches!(change.how(), How::Rejected | How::Adopted),
        "change {} of node {node} is not the change of a key, so it cannot be reverted",
        change.id
    );
    let (stored, warnings) = write(client, node, change).await?;
    let messages =
        warnings.into_iter().filter(|warning| warning.starts_with("nodegate: ") && warning.contains(&change.key));
    let outcome = Outcome {
        stored: value(&stored, change),
        assigning_rule: assigning_rule(client, place, &stored, change).await?,
        messages: messages.collect(),
    };
    let (text, findings) = describe(node, change, &outcome);
    output::print(&text)?;
    Ok(findings)
}

/// The message for the user, and whether the revert succeeded and lasts.
fn describe(node: &str, change: &Change, outcome: &Outcome) -> (String, Findings) {
    let Change { field, key, old, .. } = change;
    let show = |value: &Option<String>| value.as_ref().map_or("absent".to_owned(), |value| format!("{value:?}"));
    let (wanted, stored) = (show(old), show(&outcome.stored));
    let came_about = outcome.stored == *old;
    let remedy = |assigning_rule: &AssigningRule| {
        format!(
            "rule {} sets it to {:?}; change that rule first (kubectl edit nodepolicy {})",
            assigning_rule.rule, assigning_rule.value, assigning_rule.rule.policy
        )
    };
    match (&outcome.assigning_rule, outcome.messages.as_slice()) {
        (None, _) if came_about => (format!("{field} {key} of node {node} is {wanted} again\n"), Findings::None),
        (Some(assigning_rule), _) if came_about => (
            format!(
                "{field} {key} of node {node} is {wanted} now, but nodegate will change it: {}\n",
                remedy(assigning_rule)
            ),
            Findings::Some,
        ),
        (Some(assigning_rule), _) => (
            format!("{field} {key} of node {node} is still {stored}, not {wanted}: {}\n", remedy(assigning_rule)),
            Findings::Some,
        ),
        (None, []) => (
            format!(
                "{field} {key} of node {node} is {stored}, not {wanted}: another admission webhook or policy changed the write\n"
            ),
            Findings::Some,
        ),
        (None, messages) => (
            format!(
                "{field} {key} of node {node} is still {stored}, not {wanted}: {}; change that policy first\n",
                messages.join("; ")
            ),
            Findings::Some,
        ),
    }
}

/// Writes to the version of the node that was read. Returns the stored node, and the warnings of the API server.
async fn write(client: &Client, node: &str, change: &Change) -> anyhow::Result<(Json, Vec<String>)> {
    for _ in 0..TRIES {
        let there: Json = client
            .request(Request::new(NODES).get(node, &Default::default())?)
            .await
            .with_context(|| format!("node {node}"))?;
        let patch = Patch::Merge(patch(&there, change)?);
        let parameters = PatchParams { field_manager: Some("nodegate-history".to_owned()), ..PatchParams::default() };
        let request = Request::new(NODES).patch(node, &parameters, &patch)?;
        let response = client.send(request.map(Body::from)).await.with_context(|| format!("node {node}"))?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.with_context(|| format!("node {node}"))?.to_bytes();
        if head.status.is_success() {
            let texts = head.headers.get_all("warning").iter().filter_map(|text| text.to_str().ok());
            return Ok((serde_json::from_slice(&body)?, texts.map(warning).collect()));
        }
        if head.status.as_u16() != 409 {
            let status: Json = serde_json::from_slice(&body).unwrap_or_default();
            bail!("could not change node {node}: {}", status["message"].as_str().unwrap_or(head.status.as_str()));
        }
    }
    bail!("could not change node {node}: it kept changing concurrently; try again")
}

/// The path of nodes in the API.
const NODES: &str = "/api/v1/nodes";

/// Extracts the text of a `Warning` header: `299 - "text"`.
fn warning(header: &str) -> String {
    let quoted = header.splitn(3, ' ').nth(2).unwrap_or(header);
    quoted.trim_matches('"').replace("\\\"", "\"").replace("\\\\", "\\")
}

fn patch(there: &Json, change: &Change) -> anyhow::Result<Json> {
    let version = &there["metadata"]["resourceVersion"];
    Ok(match change.field.as_str() {
        "label" => json!({"metadata": {"resourceVersion": version, "labels": {&change.key: &change.old}}}),
        "annotation" => json!({"metadata": {"resourceVersion": version, "annotations": {&change.key: &change.old}}}),
        "taint" => {
            let taints = with_taint(&there["spec"]["taints"], change)?;
            json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}})
        }
        other => bail!("cannot revert a change of a {other}"),
    })
}

fn key_and_effect(change: &Change) -> anyhow::Result<(&str, &str)> {
    change.key.rsplit_once(':').context("the recorded change of the taint has no effect")
}

/// The node's taints, with the taint of `change` as it was before.
fn with_taint(taints: &Json, change: &Change) -> anyhow::Result<Vec<Json>> {
    let (key, effect) = key_and_effect(change)?;
    let mut taints = taints.as_array().cloned().unwrap_or_default();
    taints.retain(|taint| taint["key"] != key || taint["effect"] != effect);
    if let Some(value) = &change.old {
        taints.push(json!({"key": key, "value": value, "effect": effect}));
    }
    Ok(taints)
}

/// The value of the key of `change` on a node.
fn value(node: &Json, change: &Change) -> Option<String> {
    if change.field == "taint" {
        let (key, effect) = key_and_effect(change).ok()?;
        let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let taint = taints.find(|taint| taint["key"] == key && taint["effect"] == effect)?;
        return Some(taint["value"].as_str().unwrap_or_default().to_owned());
    }
    Some(node["metadata"][format!("{}s", change.field)][&change.key].as_str()?.to_owned())
}

/// The rule of the NodePolicy objects that sets the key of `change` to another value than its previous one.
async fn assigning_rule(
    client: &Client,
    place: &ClusterTarget,
    node: &Json,
    change: &Change,
) -> anyhow::Result<Option<AssigningRule>> {
    let files = Sources::default().load_documents().map_err(|errors| output::load_errors(&errors))?;
    let set = match effective_policies::combined(client, Some(&place.namespace), &files).await {
        Ok(combined) => combined.set,
        Err(error) => {
            output::note(&format!(
                "note: could not read the NodePolicy objects, so rules that set this key are unknown: {}",
                in_words(&error)
            ));
            return Ok(None);
        }
    };
    let scene = Scene::unchanged(node);
    let decision = simulate(&set, &scene, &Exemptions::default())?.decision;
    let desired = match change.field.as_str() {
        "label" => decision.labels.get(&change.key),
        "annotation" => decision.annotations.get(&change.key),
        _ => decision.taints.iter().find(|(id, _)| id.to_string() == change.key).map(|(_, desired)| desired),
    };
    let other = desired.filter(|desired| change.old.as_ref() != Some(&desired.value));
    Ok(other.map(|desired| AssigningRule { rule: desired.by.clone(), value: desired.value.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(stored: Option<&str>, assigning_rule: Option<&str>, messages: &[&str]) -> (String, bool) {
        let change = Change {
            field: "label".to_owned(),
            key: "tier".to_owned(),
            old: Some("tin".to_owned()),
            ..Change::default()
        };
        let rule = || RuleId { policy: "fleet".into(), rule: "tiers".into() };
        let outcome = Outcome {
            stored: stored.map(str::to_owned),
            assigning_rule: assigning_rule.map(|value| AssigningRule { rule: rule(), value: value.to_owned() }),
            messages: messages.iter().map(|text| (*text).to_owned()).collect(),
        };
        let (text, findings) = describe("n1", &change, &outcome);
        (text, matches!(findings, Findings::Some))
    }

    #[test]
    fn the_outcome_of_a_revert_is_reported_with_the_reason_and_the_remedy() {
        let cases = [
            (described(Some("tin"), None, &[]), "label tier of node n1 is \"tin\" again\n", false),
            (
                described(Some("gold"), Some("gold"), &[]),
                "label tier of node n1 is still \"gold\", not \"tin\": rule fleet/tiers sets it to \"gold\"; change that rule first (kubectl edit nodepolicy fleet)\n",
                true,
            ),
            (
                described(Some("tin"), Some("gold"), &[]),
                "label tier of node n1 is \"tin\" now, but nodegate will change it: rule fleet/tiers sets it to \"gold\"; change that rule first (kubectl edit nodepolicy fleet)\n",
                true,
            ),
            (
                described(Some("gold"), None, &["nodegate: label tier is kept at \"gold\" by rule files/tiers"]),
                "label tier of node n1 is still \"gold\", not \"tin\": nodegate: label tier is kept at \"gold\" by rule files/tiers; change that policy first\n",
                true,
            ),
            (
                described(None, None, &[]),
                "label tier of node n1 is absent, not \"tin\": another admission webhook or policy changed the write\n",
                true,
            ),
        ];
        for ((text, finding), expected, is_finding) in cases {
            assert_eq!((text.as_str(), finding), (expected, is_finding));
        }
    }

    #[test]
    fn a_warning_header_is_read_as_kubectl_reads_it() {
        assert_eq!(warning(r#"299 - "label a is kept at \"b\" by rule p/r""#), r#"label a is kept at "b" by rule p/r"#);
    }
}
