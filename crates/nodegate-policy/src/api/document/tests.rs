use super::*;

/// The documents of a file, and its errors as they are printed.
fn parsed(text: &str) -> (Vec<PolicyDocument>, Vec<String>) {
    let mut errors = Vec::new();
    let documents = PolicyDocument::parse_all(&Origin::File("p.yaml".to_owned()), text, &mut errors);
    (documents, errors.iter().map(ToString::to_string).collect())
}

#[test]
fn an_error_in_a_file_names_the_file_and_the_position() {
    let head = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: a}\n";
    let (_, errors) = parsed(&format!("{head}spec:\n  rulez: []\n"));
    assert_eq!(errors, ["p.yaml:5:3: spec.rulez: unknown field \"rulez\"; did you mean \"rules\"?"]);
    let (documents, errors) = parsed("a: [\n");
    assert!(documents.is_empty() && errors[0].starts_with("p.yaml:"), "{errors:?}");
    let (documents, _) = parsed(&format!("{head}spec:\n  rules: [{{name: r}}]\n"));
    let errors = crate::PolicySet::compile(&documents).unwrap_err();
    assert!(errors[0].to_string().starts_with("p.yaml:5:18: rule \"r\" (spec.rules[0]): "), "{errors:?}");
}

#[test]
fn an_object_of_another_kind_is_named_with_what_to_give_instead() {
    let (documents, errors) = parsed("apiVersion: v1\nkind: Node\nmetadata: {name: n}\n");
    assert!(documents.is_empty());
    assert_eq!(
        errors,
        [
            "p.yaml:2:7: kind: this is a Node, not a NodePolicy; give a file with NodePolicies; `nodegate plan --policy POLICY FILE` reads nodes"
        ]
    );
    let (_, errors) = parsed("apiVersion: v1\nkind: Pod\nmetadata: {name: n}\n");
    assert_eq!(errors, ["p.yaml:2:7: kind: this is a Pod, not a NodePolicy; give files with NodePolicies"]);
    // A kind of another group of the same name, and a version of this one, are judged as what they claim to be.
    for of_its_own in ["apiVersion: example.com/v1\nkind: NodePolicy\n", "apiVersion: nodegate.dev/v9\nkind: Other\n"] {
        let (_, errors) = parsed(of_its_own);
        assert!(!errors.is_empty() && errors.iter().all(|error| !error.contains("not a NodePolicy")), "{errors:?}");
    }
}

#[test]
fn an_error_after_the_tree_was_given_up_has_the_same_position_and_entry() {
    let text = "kind: List\nitems:\n  - {apiVersion: nodegate.dev/v1alpha1, kind: NodePolicy, metadata: {name: a}, spec: {}}\n  \
                - apiVersion: nodegate.dev/v1alpha1\n    kind: NodePolicy\n    metadata: {name: b}\n    spec:\n      rules:\n        \
                - name: r\n          labels: {a: b}\n          taints: [\"t:NoSchedule\"]\n";
    let (mut documents, errors) = parsed(text);
    assert!(errors.is_empty(), "{errors:?}");
    let kept = documents.pop().unwrap();
    let settled = kept.clone().settled();
    let rule = FieldPath::root().key("spec").key("rules").index(0);
    for path in [rule.clone(), rule.key("labels").key("a"), rule.key("taints").index(0).key("effect")] {
        let error = settled.fault(&path, "wrong");
        assert_eq!(error, kept.fault(&path, "wrong"));
        assert_eq!(settled.place_inside(&path, "b", 0..1), kept.place_inside(&path, "b", 0..1));
        assert_eq!(error.entry.as_deref(), Some("rule \"r\""));
        assert!(error.place.is_some_and(|place| (9..=11).contains(&place.line)), "{error}");
    }
}

#[test]
fn every_policy_of_a_list_is_a_document() {
    let item = |name: &str| {
        format!(
            "{{apiVersion: nodegate.dev/v1alpha1, kind: NodePolicy, metadata: {{name: {name}}}, spec: {{}}, status: {{}}}}"
        )
    };
    let (documents, errors) = parsed(&format!("{{apiVersion: v1, kind: List, items: [{}, {}]}}", item("a"), item("b")));
    assert_eq!(documents.iter().map(|document| document.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(errors.is_empty(), "{errors:?}");
    let (documents, errors) = parsed("{apiVersion: v1, kind: List, items: []}\n---\n{kind: List}\n");
    assert!(documents.is_empty() && errors.is_empty(), "{errors:?}");
}
