//! Whether the API server calls nodegate for writes that change only annotations.
//!
//! Other components change annotations of nodes all the time, so a webhook configuration leaves these writes out unless it
//! was rendered for policies that govern annotations. nodegate's account may not change that by itself, so it says what
//! is not judged.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::admissionregistration::v1::{RuleWithOperations, ValidatingWebhook};
use kube::{Api, Client};
use tokio::sync::watch;

use crate::cluster::registration::follow_object;
use nodegate_policy::PolicySet;
use nodegate_policy::cel::{Budget, Excerpt, Expression, RequestVariables, Scope, Variables, Yields};

/// What to do about writes that are left out.
pub(crate) const REMEDY: &str =
    "set webhooks.governAnnotations=true in the chart, or render the webhook configurations with --govern-annotations";

/// Sends `left_out` whether the validating webhook configuration leaves out writes that change only annotations, and logs
/// the entries of `policies` that are not asked because of that. Runs until dropped.
///
/// A configuration that does not exist leaves nothing out: it is not nodegate's, or nothing is judged at all.
pub async fn follow_annotation_calls(
    client: Client,
    configuration: &str,
    left_out: &watch::Sender<bool>,
    policies: &ArcSwap<PolicySet>,
    mut generation: watch::Receiver<u64>,
) {
    let seen = |found: Option<ValidatingWebhookConfiguration>| {
        let entries = found.and_then(|found| found.webhooks).unwrap_or_default();
        let now = leaves_out(&entries);
        left_out.send_if_modified(|before| std::mem::replace(before, now) != now);
    };
    let telling = async {
        let (mut changes, mut told) = (left_out.subscribe(), BTreeSet::new());
        loop {
            let omits = *changes.borrow_and_update();
            generation.mark_unchanged();
            told = tell(configuration, told, omits, &policies.load());
            let changed = tokio::select! {
                changed = changes.changed() => changed,
                changed = generation.changed() => changed,
            };
            if changed.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::join!(follow_object(Api::all(client), configuration, seen), telling);
}

/// Logs the entries that are not asked, if they are not those that were `told`.
fn tell(configuration: &str, told: BTreeSet<String>, left_out: bool, policies: &Arc<PolicySet>) -> BTreeSet<String> {
    let entries = policies.entries_on_annotations().into_iter().filter(|_| left_out);
    let entries: BTreeSet<String> = entries.map(ToString::to_string).collect();
    if entries == told {
        return told;
    }
    let named = entries.iter().map(String::as_str).collect::<Vec<_>>().join(",");
    if entries.is_empty() {
        tracing::info!(configuration, "resolved: every write that policies govern is judged");
    } else {
        tracing::warn!(
            configuration,
            entries = named,
            "writes that change only annotations are not judged, because the webhook configuration leaves them out; {REMEDY}"
        );
    }
    entries
}

/// Whether there are entries for nodes, and none of them is called for a write that changes only annotations.
fn leaves_out(entries: &[ValidatingWebhook]) -> bool {
    let is_of_nodes = |rule: &RuleWithOperations| {
        rule.resources.iter().flatten().any(|resource| matches!(resource.as_str(), "nodes" | "*" | "*/*"))
    };
    let mut of_nodes = entries.iter().filter(|entry| entry.rules.iter().flatten().any(is_of_nodes)).peekable();
    of_nodes.peek().is_some() && !of_nodes.any(is_called)
}

/// Whether no match condition excludes a write that changes an annotation. One that cannot be evaluated excludes nothing.
fn is_called(entry: &ValidatingWebhook) -> bool {
    entry.match_conditions.iter().flatten().all(|condition| holds(&condition.expression) != Some(false))
}

/// The value of a match condition for a write that changes only an annotation; `None` if it is unknown.
fn holds(condition: &str) -> Option<bool> {
    const OLD: &str = r#"{"metadata": {"name": "a", "annotations": {"example.com/a": "old"}}, "spec": {}}"#;
    const NEW: &str = r#"{"metadata": {"name": "a", "annotations": {"example.com/a": "new"}}, "spec": {}}"#;
    let (expression, budget) = (Expression::compile(condition, Scope::Write, Yields::Bool).ok()?, Budget::default());
    let read = |text, paths| Excerpt::read(text, paths, &budget).map(|excerpt| excerpt.completed());
    let new = read(NEW, &expression.paths().object).ok()?;
    let old = read(OLD, &expression.paths().old_object).ok()?;
    let request =
        RequestVariables { operation: "UPDATE", name: "a", username: "somebody", ..RequestVariables::default() };
    expression.evaluate_bool(&Variables::write(&new, Some(&old), Some(&request.value()))).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The validating configuration that `deploy/` has, with this match condition in place of its first one.
    fn rendered(condition: Option<&str>) -> Vec<ValidatingWebhook> {
        let text = include_str!("../../../../deploy/kubernetes/nodegate.yaml");
        let document = text.split("\n---\n").find(|part| part.contains("\nkind: ValidatingWebhookConfiguration\n"));
        let found: ValidatingWebhookConfiguration = serde_saphyr::from_str(document.unwrap()).unwrap();
        let mut entries = found.webhooks.unwrap();
        if let Some(condition) = condition {
            let conditions = entries[0].match_conditions.as_mut().unwrap();
            conditions[0].expression = condition.to_owned();
        }
        entries
    }

    #[test]
    fn the_default_registration_leaves_out_what_changes_only_annotations() {
        assert!(leaves_out(&rendered(None)));
    }

    #[test]
    fn a_registration_that_asks_for_annotations_leaves_nothing_out_however_it_is_written() {
        for condition in [
            "object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({})",
            "request.operation == 'UPDATE'",
            "object != oldObject",
            "authorizer.group('').resource('nodes').check('get').allowed()",
        ] {
            assert!(!leaves_out(&rendered(Some(condition))), "{condition}");
        }
        let mut unconditional = rendered(None);
        unconditional[0].match_conditions = None;
        assert!(!leaves_out(&unconditional) && !leaves_out(&[]));
    }
}
