//! NodeFeatureRules of Node Feature Discovery.

use nodegate_policy::api::case::Case;
use nodegate_policy::simulate::{node_of, scene, simulate};
use nodegate_policy::translate::{Program, Translation};
use nodegate_policy::{Exemptions, Note};
use serde_json::json;

use super::{assert_left_out, assert_rules, assert_sound, given, of_text, rules_of, set_of, yaml};

pub(super) const LABEL: &str = "labels: {vendor.io/new: \"true\"}";
const MAJOR: &str = "matchFeatures: [{feature: kernel.version, matchExpressions: {major: {op: In, value: [\"6\"]}}}]";
/// Labels of a node on which nfd-worker runs.
const WORKER: &str = "feature.node.kubernetes.io/kernel-version.full";

fn object(name: &str, rules: &[&[&str]]) -> String {
    let mut text = format!(
        "---\napiVersion: nfd.k8s-sigs.io/v1alpha1\nkind: NodeFeatureRule\nmetadata: {{name: {name}}}\nspec:\n  rules:\n"
    );
    for (number, parts) in rules.iter().enumerate() {
        text.push_str(&format!("    - name: \"rule {}\"\n", number + 1));
        parts.iter().flat_map(|part| part.lines()).for_each(|line| text.push_str(&format!("      {line}\n")));
    }
    text
}

pub(super) fn of(rules: &[&[&str]]) -> Translation {
    of_text(Program::Nfd, &object("o", rules))
}

/// Conditions on elements of a feature.
fn features(feature: &str, expressions: &str) -> String {
    format!("matchFeatures: [{{feature: {feature}, matchExpressions: {{{expressions}}}}}]")
}

#[test]
fn what_is_exact_is_translated() {
    let kernel =
        features("kernel.version", "major: {op: GtLt, value: [\"4\", \"7\"]}, full: {op: NotIn, value: [6.1.0]}");
    let any = "matchFeatures: [{feature: system.osrelease, matchExpressions: {ID: {op: In, value: [ubuntu, debian]}}}]\n\
               matchAny:\n\
               - matchFeatures: [{feature: system.osrelease, matchExpressions: {VERSION_ID.major: {op: Exists}}}, \
               {feature: system.name, matchExpressions: {nodename: {op: In, value: [a-1, b.c]}}}]\n\
               - matchFeatures: [{feature: kernel.version, matchExpressions: {minor: {op: Gt, value: [\"3\"]}}}]";
    let translation = of(&[
        &[
            "labels: {mine: \"\", vendor.io/a: b, profile.node.kubernetes.io/p: q, sub.feature.node.kubernetes.io/x: y}",
            &kernel,
        ],
        &["annotations: {note: \"@as it is\", vendor.io/b: \"1\"}", any],
        &["labels: {every: node}"],
    ]);
    assert_eq!(translation.left_out, []);
    let expected = r#"
- name: o-rule-1
  match:
    selector:
      matchExpressions:
        - {key: feature.node.kubernetes.io/kernel-version.full, operator: Exists}
        - {key: feature.node.kubernetes.io/kernel-version.full, operator: NotIn, values: ["6.1.0"]}
    expression: >-
      'feature.node.kubernetes.io/kernel-version.major' in node.metadata.labels
      && node.metadata.labels['feature.node.kubernetes.io/kernel-version.major'].matches('^[0-9]+$')
      && int(node.metadata.labels['feature.node.kubernetes.io/kernel-version.major']) > 4
      && int(node.metadata.labels['feature.node.kubernetes.io/kernel-version.major']) < 7
  labels:
    feature.node.kubernetes.io/mine: ""
    profile.node.kubernetes.io/p: q
    sub.feature.node.kubernetes.io/x: "y"
    vendor.io/a: b
- name: o-rule-2
  match:
    selector:
      matchExpressions:
        - {key: feature.node.kubernetes.io/kernel-version.full, operator: Exists}
        - {key: feature.node.kubernetes.io/system-os_release.ID, operator: In, values: [ubuntu, debian]}
    anyOf:
      - names: [a-1, b.c]
        selector: {matchExpressions: [{key: feature.node.kubernetes.io/system-os_release.VERSION_ID.major, operator: Exists}]}
      - expression: >-
          'feature.node.kubernetes.io/kernel-version.minor' in node.metadata.labels
          && node.metadata.labels['feature.node.kubernetes.io/kernel-version.minor'].matches('^[0-9]+$')
          && int(node.metadata.labels['feature.node.kubernetes.io/kernel-version.minor']) > 3
  annotations: {feature.node.kubernetes.io/note: "@as it is", vendor.io/b: "1"}
- {name: o-rule-3, labels: {feature.node.kubernetes.io/every: node}}
"#;
    assert_rules(&translation, expected);
    assert!(assert_sound(&translation) >= 12);
    // Lists without an item are no conditions either.
    for none in ["matchFeatures: []", "matchAny: []"] {
        assert_rules(&of(&[&[LABEL, none]]), "- {name: o-rule-1, labels: {vendor.io/new: \"true\"}}");
    }
}

#[test]
fn the_case_of_a_feature_does_not_matter() {
    let [one, other] = ["Kernel.Version", "kernel.version"]
        .map(|feature| of(&[&[LABEL, &features(feature, "major: {op: Gt, value: [\"5\"]}")]]));
    assert_eq!((one.left_out.len(), yaml(&one)), (0, yaml(&other)));
    assert_left_out(&of(&[&[LABEL, &features("PCI.Device", "vendor: {op: Exists}")]]), "`deviceLabelFields`", "PCI");
    assert_left_out(&of(&[&[LABEL, &features("kernel.version", "Major: {op: Exists}")]]), "(Major)", "an element");
}

#[test]
fn numbers_are_compared_as_nfd_does_and_only_where_its_worker_runs() {
    let translation = of(&[&[LABEL, &features("kernel.version", "major: {op: GtLt, value: [\"4\", \"7\"]}")]]);
    assert_sound(&translation);
    let major = "feature.node.kubernetes.io/kernel-version.major";
    let (new, nothing) = (json!({"labels": {"vendor.io/new": "true"}}), json!({"patch": false}));
    for (labels, expect) in [
        (json!({WORKER: "x", major: "5"}), &new),
        (json!({WORKER: "x", major: "6"}), &new),
        (json!({WORKER: "x", major: "4"}), &nothing),
        (json!({WORKER: "x", major: "7"}), &nothing),
        (json!({WORKER: "x", major: "10"}), &nothing),
        (json!({WORKER: "x", major: ""}), &nothing),
        (json!({WORKER: "x"}), &nothing),
        (json!({major: "5"}), &nothing),
    ] {
        let node = json!({"name": "n", "labels": labels, "nodeInfo": {"kernelVersion": "5.15.0"}});
        let differences = given(&translation, &node, expect);
        assert!(differences.is_empty(), "{labels}: {differences:?}");
    }
}

#[test]
fn a_comparison_with_what_is_no_number_is_false_and_not_unknown() {
    let translation = of(&[&[LABEL, &features("kernel.version", "revision: {op: Gt, value: [\"4\"]}")]]);
    let set = set_of(rules_of(&translation));
    for revision in [json!({}), json!({"feature.node.kubernetes.io/kernel-version.revision": ""})] {
        let mut labels = revision.clone();
        labels[WORKER] = json!("6.1-rc3");
        let case = json!({"name": "x", "node": {"name": "n", "labels": labels}, "as": "admin", "expect": {}});
        let case: Case = serde_json::from_value(case).unwrap();
        let scene = scene(&set, &case, node_of(&case).unwrap().unwrap()).unwrap();
        let notes = simulate(&set, &scene, &Exemptions::default()).unwrap().decision.notes;
        assert!(!notes.iter().any(|note| matches!(note, Note::Unknown { .. })), "{revision}: {notes:?}");
    }
}

#[test]
fn a_number_that_fits_is_found_if_there_is_one() {
    let minor = |expressions: &[&str]| {
        let term = |one: &&str| format!("{{feature: kernel.version, matchExpressions: {{minor: {one}}}}}");
        let terms = expressions.iter().map(term).collect::<Vec<_>>().join(", ");
        of(&[&[LABEL, &format!("matchFeatures: [{terms}]")]])
    };
    let (above, below) = ("{op: Gt, value: [\"3\"]}", "{op: Lt, value: [\"3\"]}");
    let between = "{op: GtLt, value: [\"3\", \"6\"]}";
    for fits in [
        &[above, "{op: NotIn, value: [\"4\"]}"][..],
        &[above, "{op: NotIn, value: [\"6\", \"4\", \"5\"]}"],
        &[below, "{op: NotIn, value: [\"2\", \"1\"]}"],
        &[between, "{op: NotIn, value: [\"4\"]}"],
        &["{op: Gt, value: [\"-5\"]}"],
    ] {
        assert_eq!(minor(fits).left_out, [], "{fits:?}");
    }
    for fits_not in [
        &[between, "{op: NotIn, value: [\"4\", \"5\"]}"][..],
        &[below, "{op: NotIn, value: [\"0\", \"1\", \"2\"]}"],
        &["{op: Lt, value: [\"0\"]}"],
    ] {
        assert_left_out(&minor(fits_not), "found no node that fits", &format!("{fits_not:?}"));
    }
}

#[test]
fn rules_without_an_exact_form_are_left_out() {
    for (labels, conditions, reason) in [
        ("labels: {vendor.io/a: \"@cpu.model.family\"}", MAJOR, "that of a feature"),
        ("labels: {example.kubernetes.io/a: b}", MAJOR, "`-extra-label-ns`"),
        ("labels: {kubernetes.io/a: b}", MAJOR, "`-extra-label-ns`"),
        ("labels: {xfeature.node.kubernetes.io/a: b}", MAJOR, "`-extra-label-ns`"),
        ("annotations: {profile.node.kubernetes.io/a: b}", MAJOR, "`-extra-label-ns`"),
        ("labels: {a: b, feature.node.kubernetes.io/a: c}", MAJOR, "with and without prefix"),
        ("labels: {a: 1}", MAJOR, "is not a text"),
        ("labels: [a]\nannotations: {b: c}", MAJOR, "`labels` is not a mapping"),
        ("labels: {a: \"b c\"}", MAJOR, "nodegate refuses the rule"),
        ("labels: {}", MAJOR, "sets no fixed label"),
        ("labels: {a: b}\ntaints: [{key: c, effect: NoSchedule}]", MAJOR, "`-enable-taints`"),
        ("labels: {a: b}\nlabelsTemplate: \"x={{ .y }}\"", MAJOR, "`labelsTemplate` of the rule"),
        ("labels: {a: b}\nvars: {c: d}", MAJOR, "`vars` of the rule"),
        ("labels: {a: b}\nvarsTemplate: x", MAJOR, "`varsTemplate` of the rule"),
        ("labels: {a: b}\nextendedResources: {c: \"1\"}", MAJOR, "`extendedResources` of the rule"),
        (LABEL, "matchFeatures: {feature: kernel.version}", "`matchFeatures` is not a list"),
        (LABEL, "matchAny: [{}]", "no condition"),
        (LABEL, "matchAny: [{matchFeatures: []}]", "no condition"),
        (
            LABEL,
            "matchAny: [{matchFeatures: [{feature: kernel.version, matchExpressions: {minor: {op: Lt, value: [\"3\"]}}}]}, {matchFeatures: [{feature: system.osrelease, matchExpressions: {ID: {op: Exists}}}]}]",
            "write it last",
        ),
        (LABEL, "matchFeatures: [{feature: kernel.version}]", "no condition on elements"),
        (LABEL, "matchFeatures: [{feature: kernel.version, matchExpressions: {}}]", "no condition on elements"),
        (LABEL, "matchFeatures: [{feature: kernel.version, matchName: {op: In, value: [a]}}]", "`matchName`"),
    ] {
        assert_left_out(&of(&[&[labels, conditions]]), reason, &format!("{labels} {conditions}"));
    }
    let long = format!("annotations: {{a: \"{}\"}}", "x".repeat(1025));
    assert_left_out(&of(&[&[&long, MAJOR]]), "1024 bytes", "a long annotation");
    for (feature, expression, reason) in [
        ("kernel.version", "major: {op: In, value: []}", "the rule never applies"),
        ("kernel.version", "major: {op: In}", "the rule never applies"),
        ("kernel.version", "major: {op: In, value: [6]}", "not a list of texts"),
        ("kernel.version", "major: {op: GtLt, value: [\"5\", \"6\"]}", "found no node that fits"),
        ("kernel.version", "major: {op: GtLt, value: [\"7\", \"5\"]}", "found no node that fits"),
        ("kernel.version", "major: {op: Gt, value: [\"5\", \"6\"]}", "the operator `Gt`"),
        ("kernel.version", "full: {op: Gt, value: [\"5\"]}", "the operator `Gt`"),
        ("kernel.version", "major: {op: InRegexp, value: [\"^6\"]}", "the operator `InRegexp`"),
        ("kernel.version", "major: {op: DoesNotExist}", "the operator `DoesNotExist`"),
        ("kernel.version", "major: {op: IsTrue}", "the operator `IsTrue`"),
        ("kernel.version", "major: {value: [\"6\"]}", "the operator ``"),
        ("kernel.version", "major: {op: Exists, type: version}", "`type` of an expression"),
        ("kernel.version", "other: {op: Exists}", "kernel.version (other)"),
        ("kernel.loadedmodule", "x: {op: Exists}", "by hand: match the label that your NFD publishes"),
        ("system.osrelease", "VARIANT_ID: {op: In, value: [a]}", "system.osrelease (VARIANT_ID)"),
        ("system.name", "nodename: {op: In, value: [\"gpu-*\"]}", "`nodename`"),
        ("system.name", "nodename: {op: InRegexp, value: [a]}", "`nodename`"),
        ("system.name", "nodename: {op: NotIn, value: [a]}", "`nodename`"),
        ("pci.device", "vendor: {op: In, value: [10de]}", "`deviceLabelFields`"),
        ("usb.device", "vendor: {op: In, value: [10de]}", "`deviceLabelFields`"),
        ("cpu.cpuid", "AVX: {op: Exists}", "`attributeBlacklist`"),
        ("memory.numa", "is_numa: {op: IsTrue}", "memory.numa (is_numa)"),
        ("rule.matched", "a: {op: Exists}", "have to stay as well"),
    ] {
        assert_left_out(&of(&[&[LABEL, &features(feature, expression)]]), reason, expression);
    }
}

#[test]
fn rules_that_depend_on_each_other_stay_together() {
    let name = |name: &str| features("system.name", &format!("nodename: {{op: In, value: [{name}]}}"));
    let reads = |key: &str| features("rule.matched", &format!("{key}: {{op: Exists}}"));
    let (a, b) = (name("a"), name("b"));
    let (bare, full) = (reads("new"), reads("feature.node.kubernetes.io/new"));
    let other_case = bare.replace("rule.matched", "Rule.Matched");
    let by_name = "matchFeatures: [{feature: rule.matched, matchName: {op: In, value: [x]}}]";
    for (one, two, translated, reason) in [
        (["labels: {new: \"1\"}", &*a], ["labels: {new: \"2\"}", &*b], 2, ""),
        (["labels: {new: \"1\"}", &a], ["labels: {feature.node.kubernetes.io/new: \"2\"}", MAJOR], 0, "as well"),
        (["labels: {new: \"1\"}", &a], ["labels: {new: \"@x.y\"}", &b], 0, "as well"),
        (["labels: {new: \"1\"}", &a], ["labels: {other: \"1\"}", &bare], 0, "which this rule sets"),
        (
            ["labels: {feature.node.kubernetes.io/new: \"1\"}", &a],
            ["labels: {other: \"1\"}", &bare],
            0,
            "which this rule sets",
        ),
        (["labels: {new: \"1\"}", &a], ["labels: {other: \"1\"}", &full], 0, "which this rule sets"),
        (["labels: {new: \"1\"}", &a], ["labels: {other: \"1\"}", &other_case], 0, "which this rule sets"),
        (["labels: {new: \"1\"}", &a], ["labels: {other: \"1\"}", by_name], 0, "may set or read the same keys"),
        (["labels: {new: \"1\"}", &a], ["labelsTemplate: \"x=y\"", &b], 0, "may set or read the same keys"),
        (["labels: {new: \"1\"}", &a], ["labels: {kernel-version.full: x}", &b], 0, "which this rule reads"),
        (
            ["labels: {new: \"1\"}", &a],
            ["labels: {other: \"1\"}\ntaints: [{key: new, effect: NoSchedule}]", &b],
            1,
            "`-enable-taints`",
        ),
    ] {
        let translation = of(&[&one, &two]);
        let reasons: Vec<&str> =
            translation.left_out.iter().flat_map(|one| &one.reasons).map(|one| one.text.as_str()).collect();
        assert_eq!(translation.translated.len(), translated, "{one:?} {two:?}: {reasons:#?}");
        assert!(reason.is_empty() || reasons.iter().any(|text| text.contains(reason)), "{one:?} {two:?}: {reasons:#?}");
        if translated > 0 {
            assert_sound(&translation);
        }
    }
}
