use serde_json::{Value, json};

use super::*;
use crate::cli::shared::node_files;
use nodegate_policy::MachinesOfNode;
use nodegate_policy::api::state::{BootstrapDocument, ProvisionedDocument};
use nodegate_policy::simulate::Scene;

use super::seen::User;

const INSTANCE: &str = "i-0abc1234def567890";
const NAME: &str = "ip-10-0-1-119.eu-central-1.compute.internal";
const FINGERPRINT: &str = "ab12cd34ab12cd34ab12cd34ab12cd34ab12cd34ab12cd34ab12cd34ab12cd34";
const KEY: &str = "-----BEGIN PRIVATE KEY-----MIGHAgEAMBMGByqGSM49AgEG-----END PRIVATE KEY-----";
const JWT: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJub2RlIn0.c2lnbmF0dXJl";
/// What must not be in a recording, each as a part of something that is in the cluster.
const PRIVATE: &[&str] = &[
    "0abc1234def567890",
    "10-0-1-119",
    "10.0.1.119",
    "203.0.113.77",
    "fd12:3456",
    "111122223333",
    "ASIAQWERTZUIOPASDFGH",
    "AROAQWERTZ",
    "payments",
    "acme",
    "Jane",
    "jane.doe",
    "ab12cd34",
    "MIGHAgEA",
    "eyJhbGci",
    "c2lnbmF0dXJl",
    "4f3c2b1a",
    "tok3n1",
    "rack-b17",
    "registry",
    "secret",
    "7ab1e5",
    "10.244",
];

/// A machine on EKS with Karpenter, with everything that a recording should not have.
fn seen() -> Seen {
    let node = json!({
        "metadata": {
            "name": NAME, "uid": "4f3c2b1a-0000-4000-8000-000000000000", "resourceVersion": "7",
            "labels": {"kubernetes.io/hostname": NAME, "eks.amazonaws.com/nodegroup": "payments-gpu", "acme.example/cost-centre": "payments",
                "topology.kubernetes.io/zone": "eu-central-1a", "kubernetes.io/arch": "amd64", "place": "rack-b17"},
            "annotations": {"acme.example/owner": "jane.doe@acme.example", "csi.volume.kubernetes.io/nodeid": INSTANCE,
                "cluster.x-k8s.io/machine": "payments-gpu-7ab1e5", "kubeadm.alpha.kubernetes.io/token": JWT},
            "managedFields": [{"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": "2026-11-27T10:00:00Z", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/arch": {}, "f:acme.example/cost-centre": {}}},
                    "f:status": {"f:images": {"k:{\"secret\":1}": {}}}}}]
        },
        "spec": {"providerID": format!("aws:///eu-central-1a/{INSTANCE}"), "podCIDR": "10.244.7.0/24",
            "taints": [{"key": "acme.example/team", "value": "payments", "effect": "NoSchedule"}]},
        "status": {"capacity": {"cpu": "8", "memory": "32386096Ki", "nvidia.com/gpu": "1", "odd": "secret"},
            "addresses": [{"type": "InternalIP", "address": "10.0.1.119"}, {"type": "ExternalIP", "address": "203.0.113.77"},
                {"type": "InternalIP", "address": "fd12:3456::7"}, {"type": "Hostname", "address": NAME}],
            "images": [{"names": ["registry.acme.example/payments:1"]}],
            "nodeInfo": {"architecture": "amd64", "operatingSystem": "linux", "osImage": "Bottlerocket OS 1.20.0 (aws-k8s-1.30)",
                "kubeletVersion": "v1.36.3-eks-7ab1e5", "containerRuntimeVersion": "containerd://1.7.1", "machineID": "4f3c2b1a", "bootID": "4f3c2b1a",
                "systemUUID": "4f3c2b1a", "kernelVersion": "6.1.102-acme", "kubeProxyVersion": ""}}
    });
    let extra = json!({
        "accessKeyId": ["ASIAQWERTZUIOPASDFGH"], "arn": [format!("arn:aws:sts::111122223333:assumed-role/payments-gpu/{INSTANCE}")],
        "canonicalArn": ["arn:aws:iam::111122223333:role/payments-gpu"], "principalId": ["AROAQWERTZ"], "sessionName": [INSTANCE],
        "authentication.kubernetes.io/credential-id": [format!("X509SHA256={FINGERPRINT}")], "assertion": [JWT], "key": [KEY],
        "email": ["Jane.Doe@acme.example"], "long": ["secret ".repeat(50)]
    });
    Seen {
        node: serde_json::from_value(node).unwrap(),
        user: User {
            name: format!("system:node:{NAME}"),
            groups: ["system:bootstrappers", "system:nodes", "system:authenticated", "acme:payments"]
                .map(str::to_owned)
                .to_vec(),
            extra: serde_json::from_value(extra).unwrap(),
        },
        by: String::new(),
        bootstrapped_by: Some(
            BootstrapDocument {
                user: "system:bootstrap:tok3n1".into(),
                groups: ["system:bootstrappers:pool-payments".into()].into(),
                certificates: vec![FINGERPRINT.to_owned()],
            }
            .into(),
        ),
        provisioned_by: vec![
            ProvisionedDocument {
                group: "karpenter.sh".into(),
                kind: "NodeClaim".into(),
                name: "payments-7ab1e5".into(),
                uid: "4f3c2b1a".into(),
                provider_id: format!("aws:///eu-central-1a/{INSTANCE}"),
                by_instance: true,
                labels: [("karpenter.sh/nodepool", "payments-gpu")].into_iter().collect(),
            }
            .into(),
        ],
    }
}

/// The review and the case of a node.
fn recorded(seen: &Seen) -> (Value, Value) {
    let mut pseudonyms = Pseudonyms::default();
    let review = Review::of(seen, &mut pseudonyms);
    let case = case(&presets().unwrap(), seen, &review, &mut pseudonyms).unwrap();
    (serde_json::to_value(&review).unwrap(), serde_json::to_value(Test::of(vec![case])).unwrap())
}

#[test]
fn nothing_private_is_in_a_recording() {
    let (review, test) = recorded(&seen());
    let all = format!("{review:#}{test:#}").to_lowercase();
    let found: Vec<_> = PRIVATE.iter().filter(|private| all.contains(&private.to_lowercase())).collect();
    assert!(found.is_empty(), "{found:?} in {all}");
    let is_there = |private: &&&str| {
        let seen = seen();
        let everything = format!("{}{:?}", serde_json::to_string(&seen.node).unwrap(), seen);
        !everything.contains(**private)
    };
    assert_eq!(PRIVATE.iter().find(is_there), None, "what is looked for is in the cluster");
}

#[test]
fn what_presets_need_is_there_and_what_is_equal_stays_equal() {
    let (review, test) = recorded(&seen());
    let (user, object) = (&review["request"]["userInfo"], &review["request"]["object"]);
    let extra = &user["extra"];
    let instance = extra["sessionName"][0].as_str().unwrap();
    assert!(instance.len() == INSTANCE.len() && instance.starts_with("i-0"), "{instance}");
    assert_eq!(object["spec"]["providerID"], format!("aws:///eu-central-1a/{instance}"));
    assert!(extra["arn"][0].as_str().unwrap().ends_with(&format!("-gpu/{instance}")), "{extra}");
    let name = object["metadata"]["name"].as_str().unwrap();
    assert_eq!(user["username"], format!("system:node:{name}"));
    let address = object["status"]["addresses"][0]["address"].as_str().unwrap();
    assert_eq!(name, format!("ip-{}.eu-central-1.compute.internal", address.replace('.', "-")));
    let labels = &object["metadata"]["labels"];
    assert_eq!(
        (&labels["kubernetes.io/arch"], &labels["topology.kubernetes.io/zone"]),
        (&json!("amd64"), &json!("eu-central-1a"))
    );
    let claims = &object["metadata"]["managedFields"][0];
    assert_eq!(claims["fieldsV1"]["f:metadata"]["f:labels"]["f:kubernetes.io/arch"], json!({}));
    assert_eq!((&claims["manager"], &claims["fieldsV1"]["f:status"]), (&json!("kubelet"), &Value::Null));
    assert_eq!(object["status"]["capacity"]["memory"], "32386096Ki");
    assert_eq!(object["metadata"]["annotations"].as_object().unwrap().len(), 1);

    let case = &test["cases"][0];
    let pool = case["provisionedBy"]["labels"]["karpenter.sh/nodepool"].as_str().unwrap();
    assert_eq!(labels["eks.amazonaws.com/nodegroup"], pool);
    assert_eq!(extra["canonicalArn"][0], format!("arn:aws:iam::000000000001:role/{pool}"));
    assert_eq!(case["expect"]["labels"], json!({POOL: pool, PROOF: "requester"}));
    assert_eq!(case["extra"], *extra);
}

#[test]
fn each_kind_of_text_keeps_its_shape() {
    let mut pseudonyms = Pseudonyms::default();
    for (text, expected) in [
        ("aks-gpuh100-12345678-vmss00000a", "aks-aaaaaab-00000001-vmss00000a"),
        ("gpuh100", "aaaaaab"),
        ("GPUH100", "AAAAAAB"),
        ("gke-prod-l4-7f3e9a10-x1yz", "gke-aaab-ab-00000002-aaac"),
        (
            "azure:///subscriptions/7f3e9a10-1234-4321-8abc-0123456789ab/resourceGroups/MC_prod",
            "azure:///subscriptions/00000002-0001-0002-0003-000000000001/resourceGroups/MC_aaab",
        ),
        ("system:bootstrappers:kubeadm:default-node-token", "system:bootstrappers:kubeadm:default-node-token"),
        ("v1.36.3", "v1.36.3"),
        ("10.1.2.3:6443", "198.18.0.1:0004"),
        ("x-10-1-2-3-4", "x-198-18-0-1-4"),
        ("süd", "aab"),
        ("", ""),
    ] {
        let redacted = pseudonyms.text(text);
        assert_eq!(redacted.to_string(), expected, "{text}");
        assert_eq!(pseudonyms.text(&redacted.to_string()), redacted, "{text}: what is redacted stays");
    }
    let address = pseudonyms.text("2600:1F14::7").to_string();
    assert!(address.starts_with("2001:db8::") && pseudonyms.text("2600:1f14::7").to_string() == address, "{address}");
    assert_eq!(pseudonyms.text("a\nb\u{1b}[1m\u{202e}").to_string(), "a-b-[1m-");
    assert_eq!(pseudonyms.text(&"x".repeat(257)).to_string(), "left-out");
}

#[test]
fn many_short_words_have_pseudonyms_of_their_own() {
    let mut pseudonyms = Pseudonyms::default();
    let letters = "bcdefghijklmnopqrstuvwxyz";
    let words: Vec<String> =
        letters.chars().flat_map(|one| letters.chars().map(move |other| format!("{one}{other}9"))).collect();
    let redacted: std::collections::BTreeSet<Redacted> = words.iter().map(|word| pseudonyms.text(word)).collect();
    assert_eq!(redacted.len(), words.len());
    let addresses: std::collections::BTreeSet<Redacted> =
        (0..1000_u32).map(|n| pseudonyms.text(&format!("10.7.{}.{}", n / 250, n % 250))).collect();
    assert_eq!(addresses.len(), 1000);
}

/// What a policy with pools by requester decides of a kubelet's CREATE.
fn decided(node: Value, username: &str, groups: Vec<String>, extra: String) -> (Vec<String>, Vec<String>, bool) {
    let policy = json!({
        "pools": [{"name": "gpu", "requester": {"groups": ["pool:gpu"], "extra": {"canonicalArn": ["arn:aws:iam::????????????:role/*-gpu"]}}}],
        "rules": [{"name": "gpu", "match": {"pools": ["gpu"]}, "labels": {"accelerator": "true", "node-role.kubernetes.io/gpu": ""}, "taints": [{"key": "gpu", "effect": "NoSchedule"}]}]
    });
    let set = compile_inline(&policy).unwrap();
    let scene = Scene {
        old: None,
        username: username.to_owned(),
        groups,
        extra: Some(extra),
        machines: MachinesOfNode::default(),
        ..Scene::unchanged(&node)
    };
    let simulated = simulate(&set, &scene, &Exemptions::default()).unwrap();
    let labels = |change: Option<&nodegate_policy::NodeChange>| {
        change.iter().flat_map(|change| change.labels().keys().cloned()).collect()
    };
    let tainted = simulated.decision.change.as_ref().is_some_and(|change| !change.taints().is_empty());
    (labels(simulated.decision.change.as_ref()), labels(simulated.decision.deferred.as_ref()), tainted)
}

#[test]
fn a_recorded_review_that_is_replayed_is_decided_as_the_original() {
    let directory = tempfile::tempdir().unwrap();
    for (group, is_gpu) in [("pool:gpu", true), ("pool:cpu", false)] {
        let mut seen = seen();
        seen.user.groups.push(group.to_owned());
        let original = serde_json::to_value(&seen.node).unwrap();
        let extra = serde_json::to_string(&seen.user.extra).unwrap();
        let before = decided(original, &seen.user.name, seen.user.groups.clone(), extra);

        let review = Review::of(&seen, &mut Pseudonyms::default());
        let written = file(directory.path(), &review.file().to_string(), Format::Json, &review).unwrap();
        whole_file::place_all(directory.path(), std::slice::from_ref(&written), true).unwrap();
        let found = node_files::read(&[written.0]).unwrap().pop().unwrap();
        let request = found.review.unwrap();
        let after = decided(found.node, &request.username, request.groups, request.extra.unwrap());
        assert_eq!(before, after);
        let role = (after.1 == ["node-role.kubernetes.io/gpu"], after.0.contains(&"accelerator".to_owned()));
        assert_eq!((role, after.2), ((is_gpu, is_gpu), is_gpu), "{after:?}");
    }
}

#[test]
fn a_directory_with_files_and_a_file_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    check_empty(at).unwrap();
    check_empty(&at.join("new/below")).unwrap();
    whole_file::place_all(at, &[(at.join(TEST), "x".to_owned())], false).unwrap();
    let said = |path: &Path| format!("{:#}", check_empty(path).unwrap_err());
    assert!(said(at).contains("the directory is not empty"), "{}", said(at));
    assert!(said(&at.join(TEST)).contains("--record"), "{}", said(&at.join(TEST)));
    let again =
        whole_file::place_all(at, &[(at.join("other"), "y".to_owned()), (at.join(TEST), "y".to_owned())], false);
    assert!(format!("{:#}", again.unwrap_err()).contains(TEST));
    assert_eq!(std::fs::read_to_string(at.join(TEST)).unwrap(), "x");
}
