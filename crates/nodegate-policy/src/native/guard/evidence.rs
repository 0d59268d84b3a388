//! The part of the guard that checks evidence for pools. The API server admits a kubelet's CREATE with evidence only if every
//! line is true of the requester, and if none of the requester's groups is missing.
//!
//! nodegate's webhook writes nothing else, so this denies only a kubelet that forges it while no webhook is there.

use serde_json::{Value as Json, json};

use crate::facts::evidence::{
    AUTHENTICATED_AS, EVIDENCE_MAX, EXTRA, GROUP, GROUPS_OF_EVERY_KUBELET, LINES_MAX, NO_EXTRA, USER,
};
use crate::native::objects::match_condition;
use crate::native::terms::formula::{list, quote};
use crate::native::terms::request::KUBELET;

/// The spec of the validating policy, which has no parameters.
pub(super) fn spec(match_constraints: &Json) -> Json {
    let text = format!("object.metadata.?annotations[?{}].orValue(\"\")", quote(AUTHENTICATED_AS));
    let variable = |name: &str, expression: String| json!({"name": name, "expression": expression});
    let validation = |expression: String, message: &str| {
        json!({
            "expression": expression,
            "message": format!("nodegate: {message}; only nodegate may set annotation {AUTHENTICATED_AS}"),
            "reason": "Forbidden",
        })
    };
    json!({
        "matchConstraints": match_constraints,
        "matchConditions": [
            match_condition("by-a-kubelet", KUBELET),
            match_condition("has-evidence", format!("has(object.metadata.annotations) && {} in object.metadata.annotations", quote(AUTHENTICATED_AS))),
        ],
        "variables": [
            variable("text", text),
            // Nothing below is evaluated for a text that is longer than nodegate writes.
            variable("lines", format!("variables.text.size() <= {EVIDENCE_MAX} ? variables.text.split(\"\\n\") : []")),
            variable("user", format!("[{} + request.userInfo.username]", quote(USER))),
            variable("groups", format!("request.userInfo.?groups.orValue([]).filter(g, !(g in {})).map(g, {} + g)", list(GROUPS_OF_EVERY_KUBELET), quote(GROUP))),
            variable("keys", "request.userInfo.?extra.orValue({})".to_owned()),
            // The lines of each key.
            variable("extra", format!("variables.keys.map(k, variables.keys[k].map(v, {} + k + \"=\" + v))", quote(EXTRA))),
        ],
        "validations": [
            validation(
                format!("variables.lines.size() > 0 && variables.lines.size() <= {LINES_MAX}"),
                "what it says about the kubelet's credential is empty or too long",
            ),
            validation(
                format!(
                    "variables.lines.size() > {LINES_MAX} || variables.lines.all(l, l in variables.user || l in variables.groups || variables.extra.exists(e, l in e) || (l.startsWith({none}) && !(l.substring({length}) in variables.keys)))",
                    none = quote(NO_EXTRA),
                    length = NO_EXTRA.len(),
                ),
                "the annotation says what is not true of the kubelet's credential",
            ),
            // Of the extra information it has those keys that policies ask for, each as a whole.
            validation(
                format!(
                    "variables.lines.size() > {LINES_MAX} || ((variables.user + variables.groups).all(s, s in variables.lines) && variables.extra.all(e, e.all(s, s in variables.lines) || !e.exists(s, s in variables.lines)))"
                ),
                "the annotation leaves out what is true of the kubelet's credential",
            ),
        ],
    })
}
