//! `governance.expressions`: CEL over a write, evaluated for the node after the write, before it, and with the requester's
//! own changes only.

use crate::cel::{Expression, ObjectNames};
use crate::native::terms::formula::Formula;
use crate::set::governance::ExpressionConstraint;

const NOW: ObjectNames<'static> = ObjectNames {
    object: "object",
    labels: "variables.labels",
    annotations: "variables.annotations",
    taints: "variables.taints",
};
const BEFORE: ObjectNames<'static> = ObjectNames {
    object: "oldObject",
    labels: "variables.oldLabels",
    annotations: "variables.oldAnnotations",
    taints: "variables.oldTaints",
};
const ASKED: ObjectNames<'static> = ObjectNames {
    object: "variables.around",
    labels: "variables.askedLabels",
    annotations: "variables.askedAnnotations",
    taints: "variables.askedTaints",
};

/// The variables with the node and the requester's own changes only: other keys have their old values.
pub(in crate::native) fn variables() -> Vec<(&'static str, String)> {
    let map = |title: &str, now: &str| {
        let (changed, before) = (format!("variables.changed{title}"), format!("variables.old{title}"));
        format!(
            "({now}.filter(k, k in {changed}) + {before}.filter(k, !(k in {changed}))).transformMapEntry(i, k, {{k: k in {changed} ? {now}[k] : {before}[k]}})"
        )
    };
    let id = r#"(t.key + ":" + t.effect) in variables.changedTaintValues"#;
    let taints = format!("variables.taints.filter(t, {id}) + variables.oldTaints.filter(t, !({id}))");
    vec![
        // A kubelet must always be able to report its node's status.
        ("around", "variables.kubelet ? oldObject : object".to_owned()),
        ("askedLabels", map("Labels", "variables.labels")),
        ("askedAnnotations", map("Annotations", "variables.annotations")),
        ("askedTaints", taints),
    ]
}

/// Why it is not exported.
pub(in crate::native) fn why_not(demanded: &ExpressionConstraint) -> Option<&'static str> {
    if calls_unknown(demanded) {
        return Some("it calls a function that Kubernetes does not have");
    }
    passes(demanded).is_none().then_some(
        "it reads object, oldObject or request as a whole or by a computed field, and these differ in the API server",
    )
}

fn calls_unknown(demanded: &ExpressionConstraint) -> bool {
    let message = demanded.message_expression.as_deref();
    message.into_iter().chain([&*demanded.expression]).any(|expression| expression.unknown_to_kubernetes().is_some())
}

/// The condition for passing, or `None` if the API server's CEL cannot express it.
pub(in crate::native) fn passes(demanded: &ExpressionConstraint) -> Option<Formula> {
    if calls_unknown(demanded) {
        return None;
    }
    let expression = &demanded.expression;
    let on = |names: &ObjectNames<'_>| expression.in_native_write(names).map(Formula::When);
    let before = if expression.reads().old_object {
        Formula::Never
    } else {
        Formula::all([Formula::When("(oldObject != null)".to_owned()), on(&BEFORE)?.not()])
    };
    if let Some(message) = &demanded.message_expression {
        message.in_native_write(&NOW)?;
    }
    Some(Formula::any([on(&NOW)?, before, on(&ASKED)?]))
}

/// CEL for the message, and the message to use if that fails.
pub(in crate::native) fn describe(demanded: &ExpressionConstraint) -> (String, String) {
    let plain = demanded.message.as_deref().map(str::to_owned);
    let plain = plain.unwrap_or_else(|| format!("failed expression: {}", demanded.expression.source()));
    // The API server refuses messages with several lines.
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let message = demanded.message_expression.as_deref().and_then(|message: &Expression| message.in_native_write(&NOW));
    (message.unwrap_or_else(|| crate::native::terms::formula::quote(&plain)), plain)
}
