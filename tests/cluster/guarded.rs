//! A native policy that fails closed refuses a kubelet's change of a guarded key. It sees the write with nodegate's patch.

use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::node;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, label};
use crate::eventually::{eventually, holds};

const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: guarded}
spec:
  protect: {keys: ["tier.example.com/*"]}
  persist: {labels: ["persist.example.com/*"]}
  rules:
    - name: by-name
      match: {names: ["guarded-*"]}
      labels: {tier.example.com/class: gold, persist.example.com/kind: new, free.example.com/kind: new}
"#;

/// What refuses the changes, whoever's they are in truth.
struct NativeGuard<'a>(&'a ControlPlane);

impl<'a> NativeGuard<'a> {
    const NAME: &'static str = "guarded-test";

    async fn install(plane: &'a ControlPlane, kubelet: &Requester, node: &str) -> Self {
        let entries = |of: &str, field: &str| format!("{of}.metadata.?{field}.orValue({{}})");
        let unchanged = |field: &str, guarded: &str| {
            let (now, before) = (entries("object", field), entries("oldObject", field));
            format!(
                "{now}.all(k, !({guarded}) || (k in {before} && {before}[k] == {now}[k])) && {before}.all(k, !({guarded}) || k in {now})"
            )
        };
        let keys = r#"k.startsWith("tier.example.com/") || k.startsWith("persist.example.com/") || k.startsWith("nodegate.dev/")"#;
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": Self::NAME},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes", "nodes/status"]}]},
                "matchConditions": [{"name": "kubelet", "expression": r#""system:nodes" in request.userInfo.?groups.orValue([])"#}],
                "validations": [
                    {"expression": unchanged("labels", keys), "message": "a guarded label"},
                    {"expression": unchanged("annotations", r#"k.startsWith("nodegate.dev/")"#), "message": "a guarded annotation"},
                ],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": Self::NAME},
            "spec": {"policyName": Self::NAME, "validationActions": ["Deny"]},
        });
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]});
        plane.kubectl(&["apply", "-f", "-"], Some(&objects.to_string())).unwrap();
        // Removed whatever happens next: it would refuse writes of other tests.
        let guard = Self(plane);
        let mut count = 0;
        eventually("the native policy acts", async || {
            // It may begin to act between the two writes. The value that stays then is not written again: that would change nothing.
            count += 1;
            let written = kubelet.label(node, "persist.example.com/probe", json!(format!("x{count}"))).await;
            let _ = kubelet.label(node, "persist.example.com/probe", Value::Null).await;
            holds(written.is_err(), || format!("{written:?}"))
        })
        .await;
        guard
    }
}

impl Drop for NativeGuard<'_> {
    fn drop(&mut self) {
        let kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy";
        let _ = self.0.kubectl(&["delete", kinds, Self::NAME, "--ignore-not-found"], None);
    }
}

#[tokio::test]
async fn no_write_of_a_kubelet_is_refused_for_keys_of_nodegate_which_the_controller_sets_later() {
    const NODE: &str = "guarded-1";
    let cluster = exclusive();
    let (admin, kubelet) = (Requester::admin(cluster.plane).await, Requester::kubelet(cluster.plane, NODE).await);
    let keys = |node: &Value| {
        let of = |key: &str| label(node, key).map(str::to_owned);
        (of("tier.example.com/class"), of("persist.example.com/kind"))
    };
    let some = |text: &str| Some(text.to_owned());
    admin.delete(NODE).await;
    let before =
        json!({"tier.example.com/class": "silver", "persist.example.com/old": "x", "free.example.com/kind": "old"});
    admin.create(&node(NODE, before)).await.unwrap();
    let _guard = NativeGuard::install(cluster.plane, &kubelet, NODE).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, POLICY).unwrap();
    let policies = [file.to_str().unwrap()];

    // By the policies as they are now everything has a new value, and no controller has given it yet.
    let webhook = Setup { policies: &policies, serve: &["--stamp-changes"], ..Setup::default() };
    let nodegate = Nodegate::start(cluster.plane, &webhook);
    let written = kubelet.label(NODE, "heartbeat.example.com/beat", json!("1")).await.unwrap();
    assert_eq!(keys(&written), (some("silver"), None));
    assert_eq!(label(&written, "free.example.com/kind"), Some("new"), "the webhook was asked");
    let annotated = kubelet.merge(NODE, json!({"metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}}})).await;
    assert_eq!(keys(&annotated.unwrap()), (some("silver"), None));
    let put = kubelet.get(NODE).await;
    assert_eq!(keys(&kubelet.replace(&put).await.unwrap()), (some("silver"), None));

    // What the kubelet does to such keys is undone, in either direction, and nobody refuses the rest of its write.
    for (key, value) in [
        ("tier.example.com/class", json!("gold")),
        ("tier.example.com/class", json!("forged")),
        ("tier.example.com/class", Value::Null),
        ("tier.example.com/new", json!("forged")),
        ("persist.example.com/kind", json!("new")),
        ("persist.example.com/planted", json!("forged")),
        ("persist.example.com/old", json!("y")),
        ("persist.example.com/old", Value::Null),
        ("nodegate.dev/owned", json!("all")),
    ] {
        let patch = json!({"metadata": {"labels": {key: value, "heartbeat.example.com/beat": "2"}}});
        let written = kubelet.merge(NODE, patch.clone()).await.unwrap_or_else(|refusal| panic!("{patch}: {refusal:?}"));
        assert_eq!(keys(&written), (some("silver"), None), "{patch}");
        assert_eq!(label(&written, "persist.example.com/old"), Some("x"), "{patch}");
        assert_eq!(label(&written, "heartbeat.example.com/beat"), Some("2"), "{patch}");
        assert_eq!(label(&written, "persist.example.com/planted").or(label(&written, "nodegate.dev/owned")), None);
        let refused = kubelet.merge_status(NODE, patch.clone()).await.map(|_| ()).unwrap_err();
        // By nodegate or by the native policy, whichever is asked first.
        assert!([403, 422].contains(&refused.code), "{patch}: {refused:?}");
    }
    drop(nodegate);

    let controller = Setup { policies: &policies, cluster: true, unregistered: true, ..Setup::default() };
    let _controller = Nodegate::start(cluster.plane, &controller);
    admin.eventually(NODE, "given by the controller", |node| keys(node) == (some("gold"), some("new"))).await;
    admin.delete(NODE).await;
}
