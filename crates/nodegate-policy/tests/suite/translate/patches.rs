//! What Kyverno's patches set.

use super::kyverno::{NODE, json_patch, merge, of, resources};
use super::{assert_left_out, assert_sound};

#[test]
fn a_merge_that_does_not_only_set_fixed_values_is_left_out() {
    for (part, reason) in [
        (merge("{metadata: {labels: null}}"), "null removes"),
        (merge("{metadata: {labels: {a: null}}}"), "the patch removes a"),
        (merge("{metadata: {labels: {a: 1}}}"), "quote it"),
        (merge("{metadata: {labels: {a: b}}, spec: {taints: []}}"), "removes all taints"),
        (merge("{metadata: {labels: {a: b}, finalizers: [c]}}"), "`finalizers` in `metadata`"),
        (merge("{metadata: {labels: {a: b}}, spec: {unschedulable: true}}"), "`unschedulable` in `spec`"),
        (merge("{metadata: {labels: {a: b}}, $patch: replace}"), "`$patch` in the patch"),
        (merge("{metadata: {labels: {(a): b, c: d}}}"), "the anchor (a)"),
        (merge("{metadata: {+(labels): {c: d}}}"), "`+(labels)` in `metadata`"),
        (merge("{metadata: {labels: {+(a): b, c: d}}}"), "two rules"),
        (merge("{metadata: {labels: {+(a): b, a: d}}}"), "a is set twice"),
        (merge("{metadata: {labels: {+(a): b}}, spec: {taints: [{key: a, effect: NoSchedule}]}}"), "two rules"),
        (merge("{spec: {taints: [{(key): a, effect: NoSchedule}]}}"), "`(key)` in a taint"),
        (merge("{spec: {taints: [{key: a, effect: NoSchedule, timeAdded: x}]}}"), "`timeAdded` in a taint"),
        (
            merge("{spec: {taints: [{key: a, effect: NoSchedule}, {key: a, value: b, effect: NoSchedule}]}}"),
            "there twice",
        ),
        (merge("{spec: {taints: [{key: a, effect: Never}]}}"), "nodegate refuses the rule"),
        (
            merge("{spec: {taints: [{key: node.kubernetes.io/not-ready, effect: NoSchedule}]}}"),
            "nodegate refuses the rule",
        ),
        (merge("{metadata: {labels: {a: \"b c\"}}}"), "nodegate refuses the rule"),
        (merge("{metadata: {labels: {nodegate.dev/a: b}}}"), "nodegate refuses the rule"),
        (merge("{}"), "sets nothing"),
        (merge("{metadata: {labels: {a: \"{{ request.object.metadata.name }}\"}}}"), "variables"),
        (merge("{metadata: {labels: {a: \"$(./../b)\"}}}"), "variables"),
        ("mutate: {foreach: [{list: a, patchStrategicMerge: {}}]}".to_owned(), "`foreach` of `mutate`"),
        (
            format!("{}\n", merge("{metadata: {labels: {a: b}}}, targets: [{apiVersion: v1, kind: Node}]")),
            "`targets` of `mutate`",
        ),
    ] {
        assert_left_out(&of(&[&[NODE, &part]]), reason, &part);
    }
}

#[test]
fn a_json_patch_that_does_not_only_add_fixed_values_is_left_out() {
    for (part, reason) in [
        (json_patch("- {op: replace, path: /metadata/labels/a, value: b}"), "where the key is absent it fails"),
        (
            json_patch("- {op: add, path: /metadata/labels/a, value: b}\n    - {op: remove, path: /metadata/labels/a}"),
            "`remove` is not",
        ),
        (
            json_patch(
                "- {op: add, path: /metadata/labels/a, value: b}\n    - {op: add, path: /metadata/labels/a, value: c}",
            ),
            "set twice",
        ),
        (json_patch("- {op: add, path: /metadata/labels, value: {a: b}}"), "not that of one label"),
        (json_patch("- {op: add, path: /metadata/labels/a/b, value: c}"), "not that of one label"),
        (json_patch("- {op: add, path: /metadata/labels/a~2b, value: c}"), "not that of one label"),
        (json_patch("- {op: add, path: /metadata/labels/a, value: 1}"), "is not a text"),
        (json_patch("- {op: add, path: /spec/taints/-, value: {key: a, effect: NoSchedule}}"), "with the next write"),
        (json_patch("- {op: add, path: /spec/taints/0, value: {key: a, effect: NoSchedule}}"), "with the next write"),
        (json_patch("- {op: add, path: /metadata/labels/a, value: b, from: /c}"), "`from` in an operation"),
        (json_patch("[]"), "not a text with a list"),
        ("mutate: {patchesJson6902: [{op: add}]}".to_owned(), "not a text with a list"),
    ] {
        assert_left_out(&of(&[&[NODE, &part]]), reason, &part);
    }
}

#[test]
fn what_a_kubelet_can_choose_decides_no_restricted_label() {
    let (pool, role) = (
        resources("selector: {matchLabels: {pool: a}}"),
        merge("{metadata: {labels: {node-role.kubernetes.io/a: \"\"}}}"),
    );
    assert_left_out(&of(&[&[&pool, &role]]), "trustKubelet", &pool);
    assert_sound(&of(&[&[NODE, &role]]));
}
