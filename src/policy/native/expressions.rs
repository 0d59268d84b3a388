//! `governance.expressions`: CEL over a write, asked about the node after it, before it, and as the requester alone would
//! have made it.

use super::formula::Formula;
use crate::policy::cel::{Expression, ObjectNames};
use crate::policy::governance::Demanded;

const NOW: ObjectNames<'static> =
    ObjectNames { object: "object", labels: "variables.labels", annotations: None, taints: "variables.taints" };
const BEFORE: ObjectNames<'static> = ObjectNames {
    object: "oldObject",
    labels: "variables.oldLabels",
    annotations: None,
    taints: "variables.oldTaints",
};
const ASKED: ObjectNames<'static> = ObjectNames {
    object: "variables.around",
    labels: "variables.askedLabels",
    annotations: Some("variables.askedAnnotations"),
    taints: "variables.askedTaints",
};

/// The node as the requester alone would have made it, as variables: what does not count as changed is as it was.
pub(super) fn asked() -> Vec<(&'static str, String)> {
    let map = |title: &str, now: &str| {
        let (changed, before) = (format!("variables.changed{title}"), format!("variables.old{title}"));
        format!(
            "({now}.filter(k, k in {changed}) + {before}.filter(k, !(k in {changed}))).transformMapEntry(i, k, {{k: k in {changed} ? {now}[k] : {before}[k]}})"
        )
    };
    let id = r#"(t.key + ":" + t.effect) in variables.changedTaintValues"#;
    let taints = format!("variables.taints.filter(t, {id}) + variables.oldTaints.filter(t, !({id}))");
    vec![
        // A kubelet must be able to tell how its node is.
        ("around", "variables.kubelet ? oldObject : object".to_owned()),
        ("askedLabels", map("Labels", "variables.labels")),
        ("askedAnnotations", map("Annotations", "variables.annotations")),
        ("askedTaints", taints),
    ]
}

/// When a write passes, or `None` where that cannot be said in the API server's CEL.
pub(super) fn passes(demanded: &Demanded) -> Option<Formula> {
    let expression = &demanded.expression;
    let on = |names: &ObjectNames<'_>| expression.over_write(names).map(Formula::When);
    let before = if expression.reads().old_object {
        Formula::Never
    } else {
        Formula::all([Formula::When("(oldObject != null)".to_owned()), on(&BEFORE)?.not()])
    };
    if let Some(message) = &demanded.message_expression {
        message.over_write(&NOW)?;
    }
    Some(Formula::any([on(&NOW)?, before, on(&ASKED)?]))
}

/// CEL for what is wrong, and what is said where that fails.
pub(super) fn told(demanded: &Demanded) -> (String, String) {
    let plain = demanded.message.as_deref().map(str::to_owned);
    let plain = plain.unwrap_or_else(|| format!("this must hold: {}", demanded.expression.source()));
    // The API server takes no message of several lines.
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let message = demanded.message_expression.as_deref().and_then(|message: &Expression| message.over_write(&NOW));
    (message.unwrap_or_else(|| super::formula::quote(&plain)), plain)
}
