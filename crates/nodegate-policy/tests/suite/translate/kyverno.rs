//! Kyverno's rules for Nodes.

use nodegate_policy::translate::{Program, Translation};
use serde_json::json;

use super::{assert_left_out, assert_rules, assert_sound, given, of_text, yaml};

pub(super) const NODE: &str = "match: {any: [{resources: {kinds: [Node], names: [\"gpu-*\"]}}]}";
pub(super) const LABEL: &str = "mutate: {patchStrategicMerge: {metadata: {labels: {tier: gpu}}}}";

/// A policy with rules of these parts.
fn policy(name: &str, rules: &[&[&str]]) -> String {
    let mut text =
        format!("---\napiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {{name: {name}}}\nspec:\n  rules:\n");
    for (number, parts) in rules.iter().enumerate() {
        text.push_str(&format!("    - name: r{}\n", number + 1));
        parts.iter().flat_map(|part| part.lines()).for_each(|line| text.push_str(&format!("      {line}\n")));
    }
    text
}

pub(super) fn of(rules: &[&[&str]]) -> Translation {
    of_text(Program::Kyverno, &policy("p", rules))
}

/// Matches nodes with what `resources` has besides `kinds`.
pub(super) fn resources(text: &str) -> String {
    format!("match: {{any: [{{resources: {{kinds: [Node], {text}}}}}]}}")
}

pub(super) fn merge(text: &str) -> String {
    format!("mutate: {{patchStrategicMerge: {text}}}")
}

pub(super) fn json_patch(text: &str) -> String {
    format!("mutate:\n  patchesJson6902: |-\n    {text}")
}

#[test]
fn what_is_exact_is_translated() {
    let selector = resources(
        "selector: {matchLabels: {pool: a}, matchExpressions: [{key: zone, operator: NotIn, values: [z1, z2]}, \
         {key: team, operator: Exists}, {key: old, operator: DoesNotExist}, {key: arch, operator: In, values: [x, y]}]}",
    );
    let any = "match: {any: [{resources: {kinds: [Node], name: a-1}}, {resources: {kinds: [v1/Node], selector: {matchLabels: {q: w}}}}]}";
    let anchored = merge("{metadata: {labels: {+(owner): nobody}, annotations: {+(x.io/a): \"1\"}}}");
    let taints =
        merge("{spec: {taints: [{key: dedicated, value: gpu, effect: NoSchedule}, {key: k, effect: NoExecute}]}}");
    let patch = json_patch(
        "- {op: add, path: /metadata/labels/x.io~1b, value: \"2\"}\n    - {op: add, path: /metadata/annotations/c, value: d}",
    );
    let translation = of(&[
        &["match: {resources: {kinds: [Node], names: [gpu-?.example, big]}}", LABEL],
        &[&selector, &anchored],
        &[
            "match: {all: [{resources: {kinds: [Node], operations: [UPDATE, CREATE]}}]}",
            &patch,
            "skipBackgroundRequests: true",
        ],
        &[any, &taints],
    ]);
    assert_eq!(translation.left_out, []);
    let expected = r#"
- {name: p-r1, match: {names: [gpu-?.example, big]}, labels: {tier: gpu}}
- name: p-r2
  match:
    selector:
      matchLabels: {pool: a}
      matchExpressions:
        - {key: zone, operator: NotIn, values: [z1, z2]}
        - {key: team, operator: Exists}
        - {key: old, operator: DoesNotExist}
        - {key: arch, operator: In, values: [x, "y"]}
  labels: {owner: nobody}
  annotations: {x.io/a: "1"}
  mode: default
- {name: p-r3, labels: {x.io/b: "2"}, annotations: {c: d}}
- name: p-r4
  match: {anyOf: [{names: [a-1]}, {selector: {matchLabels: {q: w}}}]}
  taints: [{key: dedicated, value: gpu, effect: NoSchedule}, {key: k, effect: NoExecute}]
"#;
    assert_rules(&translation, expected);
    assert!(assert_sound(&translation) >= 12);
    let places: Vec<(usize, &str, u32)> =
        translation.translated.iter().map(|one| (one.place.number, one.place.rule.as_str(), one.place.line)).collect();
    assert_eq!(places, [(1, "r1", 7), (2, "r2", 10), (3, "r3", 13), (4, "r4", 20)]);
}

#[test]
fn names_match_the_same_nodes_as_in_kyverno() {
    let with = |pattern: &str| of(&[&[&resources(&format!("names: [\"{pattern}\"]")), LABEL]]);
    for (pattern, fits, others) in [
        ("gpu-?", &["gpu-1", "gpu-a"][..], &["gpu-", "gpu-12", "xgpu-1"][..]),
        ("gpu-*", &["gpu-1", "gpu-1.a.b"], &["gpu", "a-gpu-1"]),
        ("a.b", &["a.b"], &["axb", "a.b.c"]),
        ("*.b*c", &["x.bc", "x.b1.c"], &["b.c", "xbc", "x.bcd"]),
    ] {
        let translation = with(pattern);
        assert_sound(&translation);
        for (names, expect) in [(fits, json!({"labels": {"tier": "gpu"}})), (others, json!({"patch": false}))] {
            for name in names.iter().filter(|name| !name.ends_with('-')) {
                let differences = given(&translation, &json!({"name": name}), &expect);
                assert!(differences.is_empty(), "{pattern} {name}: {differences:?}");
            }
        }
    }
    assert_rules(&with("*"), "- {name: p-r1, labels: {tier: gpu}}");
    for pattern in ["gpu-[12]", "{a,b}", "!a", "GPU", "", "a b"] {
        assert_left_out(&with(pattern), "not names of nodes", pattern);
    }
}

#[test]
fn what_selects_nodes_in_another_way_is_left_out() {
    for (part, reason) in [
        (resources("name: a, names: [b]"), "`name` and `names` both"),
        (resources("names: []"), "`names` of `resources` is not a list of texts"),
        (resources("names: [1]"), "`names` of `resources` is not a list of texts"),
        (resources("annotations: {a: b}"), "`annotations` of `resources`"),
        (resources("namespaces: [a]"), "`namespaces` of `resources`"),
        (resources("namespaceSelector: {matchLabels: {a: b}}"), "`namespaceSelector` of `resources`"),
        (resources("operations: [CREATE]"), "existing nodes"),
        (resources("operations: [UPDATE]"), "existing nodes"),
        (resources("selector: {matchLabels: {a: \"b*\"}}"), "wildcards in a selector"),
        (resources("selector: {matchLabels: {\"a?\": b}}"), "wildcards in a selector"),
        (resources("selector: {matchLabels: {a: 1}}"), "is not a text"),
        (resources("selector: {matchLabels: {a: null}}"), "is not a text"),
        (resources("selector: {matchLabels: [a]}"), "`matchLabels` is not a mapping"),
        (resources("selector: {matchExpressions: {key: a}}"), "`matchExpressions` is not a list"),
        (resources("selector: {matchExpressions: [{key: a, operator: In, values: []}]}"), "the rule never applies"),
        (resources("selector: {matchExpressions: [{key: a, operator: NotIn}]}"), "the rule never applies"),
        (
            resources("selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}"),
            "the rule never applies",
        ),
        (
            resources("selector: {matchExpressions: [{key: a, operator: Gt, values: [\"1\"]}]}"),
            "the rule never applies",
        ),
        (resources("selector: {matchExpressions: [{operator: Exists}]}"), "nodegate refuses the rule"),
        (
            resources("selector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: DoesNotExist}]}"),
            "found no node that fits",
        ),
        ("match: {any: [{resources: {kinds: [Node, Pod]}}]}".to_owned(), "also about Pod"),
        ("match: {any: [{resources: {kinds: [\"*\"]}}]}".to_owned(), "also about *"),
        ("match: {any: [{resources: {kinds: [Node/status]}}]}".to_owned(), "also about Node/status"),
        ("match: {any: [{resources: {kinds: [Node]}}, {resources: {kinds: [Pod]}}]}".to_owned(), "also about Pod"),
        ("match: {any: [{resources: {kinds: [Node]}, subjects: [{kind: User, name: a}]}]}".to_owned(), "`subjects`"),
        ("match: {resources: {kinds: [Node]}, clusterRoles: [a]}".to_owned(), "`clusterRoles`"),
        (
            "match: {all: [{resources: {kinds: [Node]}}, {resources: {kinds: [Node], name: a}}]}".to_owned(),
            "several items",
        ),
        (
            "match: {any: [{resources: {kinds: [Node]}}], all: [{resources: {kinds: [Node]}}]}".to_owned(),
            "exactly one of",
        ),
        ("match: {any: [{resources: {kinds: [Node], name: a}}, {}]}".to_owned(), "has no `resources`"),
        (format!("{NODE}\nexclude: {{any: [{{resources: {{names: [a]}}}}]}}"), "`exclude` of the rule"),
        (format!("{NODE}\npreconditions: {{any: []}}"), "`preconditions` of the rule"),
        (
            format!("{NODE}\npreconditions: {{all: [{{key: a, operator: Equals, value: a}}]}}"),
            "`preconditions` of the rule",
        ),
        (format!("{NODE}\ncelPreconditions: [{{name: a, expression: \"true\"}}]"), "`celPreconditions` of the rule"),
        (format!("{NODE}\ncontext: [{{name: a, variable: {{value: b}}}}]"), "`context` of the rule"),
    ] {
        assert_left_out(&of(&[&[&part, LABEL]]), reason, &part);
    }
}

#[test]
fn what_a_policy_says_of_all_its_rules_counts() {
    let rule: &[&str] = &[NODE, LABEL];
    let text = policy("p", &[rule]);
    for (part, reason) in [
        ("applyRules: One", "`applyRules: One`"),
        ("admission: false", "change no node"),
        (
            "webhookConfiguration: {matchConditions: [{name: a, expression: \"false\"}]}",
            "`webhookConfiguration` of `spec`",
        ),
        ("unknown: 1", "`unknown` of `spec`"),
    ] {
        let text = text.replace("spec:\n", &format!("spec:\n  {part}\n"));
        assert_left_out(&of_text(Program::Kyverno, &text), reason, part);
    }
    let fine = text.replace("spec:\n", "spec:\n  applyRules: All\n  admission: true\n  background: false\n");
    assert_eq!(of_text(Program::Kyverno, &fine).left_out, []);
    let namespaced = text.replace("ClusterPolicy", "Policy");
    assert_left_out(&of_text(Program::Kyverno, &namespaced), "applies it to no Node", "Policy");
    // It changes no node, so it affects no other rule.
    let both = of_text(Program::Kyverno, &format!("{namespaced}{text}"));
    assert_eq!((both.translated.len(), both.left_out.len()), (1, 1));
    let cel = |resource: &str| {
        format!(
            "---\napiVersion: policies.kyverno.io/v1\nkind: MutatingPolicy\nmetadata: {{name: m}}\nspec: {{matchConstraints: {{resourceRules: [{{resources: [{resource}]}}]}}}}\n"
        )
    };
    assert_left_out(
        &of_text(Program::Kyverno, &format!("{text}{}", cel("nodes"))),
        "export admission-policies",
        "nodes",
    );
    assert_left_out(&of_text(Program::Kyverno, &format!("{text}{}", cel("nodes"))), "MutatingPolicy m", "nodes");
    assert_eq!(of_text(Program::Kyverno, &format!("{text}{}", cel("pods"))).left_out, []);
}

#[test]
fn a_rule_that_an_exception_names_is_left_out() {
    let text = policy("p", &[&[NODE, LABEL]]);
    let with = |text: &str, exceptions: &str| {
        let exception = format!(
            "---\napiVersion: kyverno.io/v2\nkind: PolicyException\nmetadata: {{name: e}}\nspec: {{exceptions: {exceptions}}}\n"
        );
        of_text(Program::Kyverno, &format!("{text}{exception}"))
    };
    let assert = |translation: &Translation, is_about: bool, of: &str| match is_about {
        true => assert_left_out(translation, "a PolicyException", of),
        false => assert_eq!(translation.left_out, [], "{of}"),
    };
    for (exceptions, is_about) in [
        ("[{policyName: p, ruleNames: [r1]}]", true),
        ("[{policyName: p, ruleNames: [\"r*\"]}]", true),
        ("[{policyName: p}]", true),
        ("[]", true),
        ("[{policyName: p, ruleNames: [r2]}, {policyName: q, ruleNames: [r1]}]", false),
    ] {
        assert(&with(&text, exceptions), is_about, exceptions);
    }
    // Only `*` and `?` are special in Kyverno.
    for (name, pattern, is_about) in [
        ("label [gpu]", "label [gpu]", true),
        ("label [gpu]", "label [*", true),
        ("label g", "label [gpu]", false),
        ("label {a,b}", "label {a,b}", true),
        ("label a", "label {a,b}", false),
        ("a\\b", "a\\b", true),
        ("a\\b", "a\\?", true),
        ("a.b", "a.b", true),
        ("axb", "a.b", false),
        ("a é", "a ?", true),
        ("a é", "a ??", false),
        ("a", "a?", false),
        ("xa", "a*", false),
    ] {
        let [name, pattern] = [name, pattern].map(|text| json!(text).to_string());
        let text = text.replace("name: r1", &format!("name: {name}"));
        let exceptions = format!("[{{policyName: p, ruleNames: [{pattern}]}}]");
        assert(&with(&text, &exceptions), is_about, &format!("{name} {pattern}"));
    }
}

#[test]
fn rules_that_depend_on_each_other_stay_together() {
    let label = |text: &str| merge(&format!("{{metadata: {{labels: {{{text}}}}}}}"));
    let (of_cpu, by_tier) = (resources("names: [\"cpu-*\"]"), resources("selector: {matchLabels: {tier: gpu}}"));
    let foreign = "match: {any: [{resources: {kinds: [Node], operations: [CREATE]}}]}";
    let variable = label("x: \"{{ request.object.metadata.name }}\"");
    let replace = json_patch("- {op: replace, path: /metadata/labels/tier, value: b}");
    let whole = json_patch("- {op: remove, path: /metadata/labels}");
    let (taint, more_taints) = (
        merge("{spec: {taints: [{key: a, effect: NoSchedule}]}}"),
        merge("{spec: {taints: [{key: b, effect: NoSchedule}]}}"),
    );
    let (other, cpu) = (label("other: a"), label("tier: cpu"));
    let [replaces, replaces_all, ends] = [
        "metadata: {labels: {$patch: replace, a: b}}",
        "metadata: {$patch: replace, labels: {a: b}}",
        "metadata: {annotations: {$patch: delete}}",
    ]
    .map(|part| merge(&format!("{{{part}}}")));
    let (by_end, by_other_end) = (resources("names: [\"*-gpu\", a]"), resources("names: [\"*-cpu\", \"b?\"]"));
    // Two rules, the number that is translated, and a reason for one of the others.
    for (one, two, translated, reason) in [
        ([NODE, LABEL], [&*of_cpu, &*cpu], 2, ""),
        ([NODE, LABEL], [NODE, LABEL], 2, ""),
        ([NODE, LABEL], [NODE, &cpu], 0, "sets the label tier as well"),
        (
            [NODE, LABEL],
            ["match: {any: [{resources: {kinds: [Node], names: [\"*-1\"]}}]}", &cpu],
            0,
            "sets the label tier as well",
        ),
        ([NODE, LABEL], [foreign, &cpu], 0, "sets the label tier as well"),
        ([NODE, LABEL], [foreign, LABEL], 0, "sets the label tier as well"),
        ([NODE, LABEL], [NODE, &replace], 0, "sets the label tier as well"),
        ([NODE, LABEL], [NODE, &whole], 0, "may set or read the same keys"),
        ([NODE, LABEL], [NODE, &variable], 0, "may set or read the same keys"),
        ([NODE, LABEL], [NODE, &replaces], 0, "may set or read the same keys"),
        ([NODE, LABEL], [NODE, &replaces_all], 0, "may set or read the same keys"),
        ([NODE, LABEL], [NODE, &ends], 0, "may set or read the same keys"),
        ([&by_end, LABEL], [&by_other_end, &cpu], 2, ""),
        ([&by_end, LABEL], [&resources("names: [\"?\"]"), &cpu], 0, "sets the label tier as well"),
        ([NODE, LABEL], [&by_tier, &other], 0, "which this rule sets"),
        ([&by_tier, &other], [NODE, LABEL], 0, "which this rule reads"),
        ([&by_tier, &cpu], [foreign, &other], 0, "of a key that it sets"),
        ([NODE, &taint], [NODE, &more_taints], 0, "Kyverno replaces all of a node"),
        ([NODE, &taint], [&of_cpu, &more_taints], 2, ""),
        ([NODE, &taint], [foreign, &other], 1, "existing nodes"),
    ] {
        let translation = of(&[&one, &two]);
        let reasons: Vec<&str> =
            translation.left_out.iter().flat_map(|one| &one.reasons).map(|one| one.text.as_str()).collect();
        assert_eq!(translation.translated.len(), translated, "{one:?} {two:?}: {reasons:#?}");
        assert!(reason.is_empty() || reasons.iter().any(|text| text.contains(reason)), "{one:?} {two:?}: {reasons:#?}");
        // Nothing shows that one of two equal rules is missing.
        if translated > 0 && one != two {
            assert_sound(&translation);
        }
    }
    // A rule stays because of one that stays because of another one.
    let chain = of(&[&[NODE, LABEL], &[&of_cpu, &cpu], &[&of_cpu, &label("tier: x")]]);
    assert_eq!((chain.translated.len(), chain.left_out.len()), (0, 3), "{:#?}", chain.left_out);
    // What is not about nodes, or changes nothing, does not count.
    let pods = "match: {any: [{resources: {kinds: [Pod, apps/*/Deployment]}}]}";
    let alone = of(&[
        &[NODE, LABEL],
        &[pods, &variable],
        &[NODE, "validate: {message: a, pattern: {metadata: {labels: {tier: \"?*\"}}}}"],
    ]);
    assert_eq!((alone.translated.len(), alone.left_out.len()), (1, 0));
}

#[test]
fn lists_documents_and_line_ends_of_windows_are_read() {
    let one = policy("p", &[&[NODE, LABEL]]);
    let two = policy("q", &[&[&resources("names: [x]"), &merge("{metadata: {labels: {a: b}}}")]]);
    let both = of_text(Program::Kyverno, &format!("{one}{two}"));
    let lines: Vec<(usize, u32)> = both.translated.iter().map(|one| (one.place.document, one.place.line)).collect();
    assert_eq!(lines, [(1, 7), (2, 16)]);
    let windows = of_text(Program::Kyverno, &format!("{one}{two}").replace('\n', "\r\n"));
    assert_eq!(windows, both);
    let listed: String = one.lines().skip(1).map(|line| format!("    {line}\n")).collect();
    let list = of_text(Program::Kyverno, &format!("apiVersion: v1\nkind: List\nitems:\n  - {}", listed.trim_start()));
    assert_eq!(yaml(&list), yaml(&of_text(Program::Kyverno, &one)));
    let objects = of_text(Program::Kyverno, &serde_json::to_string(&json!({"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicyList", "items": [
        {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": {"rules": [{"name": "r1",
            "match": {"any": [{"resources": {"kinds": ["Node"], "names": ["gpu-*"]}}]},
            "mutate": {"patchStrategicMerge": {"metadata": {"labels": {"tier": "gpu"}}}}}]}}]})).unwrap());
    assert_eq!(yaml(&objects), yaml(&list));
}
