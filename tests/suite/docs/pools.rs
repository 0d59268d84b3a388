//! What `explain` prints of a node, as the guide about pools shows it for each of its policies.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::ROOT;

/// The fingerprint of a certificate.
const CERTIFICATE: &str = "3fa9";

/// What the leader records of a kubelet: lines about what was authenticated, without that of its user.
fn authenticated(node: &str, line: &str) -> Value {
    json!({"authenticatedAs": format!("{line}\nuser=system:node:{node}")})
}

/// The record of a node whose machine a provisioner's object stands for.
fn provisioned(node: &str, instance: Option<&str>, object: Value) -> Value {
    let line = instance.map_or("no-extra.sessionName".to_owned(), |instance| format!("extra.sessionName={instance}"));
    let mut record = authenticated(node, &line);
    let mut object = object;
    object["group"] = json!("example.com");
    object["uid"] = json!("m");
    object["byInstance"] = json!(instance.is_some());
    record["provisionedFor"] = json!("u");
    record["provisionedBy"] = json!([object]);
    record
}

/// The record of a node whose kubelet asked for its certificate with a bootstrap token.
fn bootstrapped(node: &str, token: &str, groups: [&str; 2]) -> Value {
    let certificate = CERTIFICATE.repeat(16);
    let line = format!("extra.authentication.kubernetes.io/credential-id=X509SHA256={certificate}");
    let mut record = authenticated(node, &line);
    let user = format!("system:bootstrap:{token}");
    record["bootstrappedBy"] = json!([{"user": user, "groups": groups, "certificates": [certificate]}]);
    record
}

/// A node of the pool in the guide's example of a policy, and what is recorded of it.
fn node_of(policy: &str) -> (&'static str, Value) {
    let (ip, ec2, fleet) = ("ip-10-0-1-119", "ip-10-0-1-119.ec2.internal", "fleet-gpu-7f9c4-abcde");
    let gpu = "system:bootstrappers:pool-gpu-h100";
    match policy {
        "eks" => (ip, authenticated(ip, "extra.canonicalArn=arn:aws:iam::111122223333:role/nodes-gpu-l4")),
        "karpenter" => (
            ip,
            provisioned(
                ip,
                Some("i-0abc"),
                json!({"kind": "NodeClaim", "name": "gpu-l4-x7k2p", "providerID": "aws:///eu-central-1a/i-0abc",
                    "labels": {"karpenter.sh/nodepool": "gpu-l4"}}),
            ),
        ),
        "gke" => ("gke-prod-gpu-l4-239f5d02-gyn2", json!({})),
        "aks" => ("aks-gpuh100-12345678-vmss00000a", json!({})),
        "openshift" => (
            ec2,
            provisioned(
                ec2,
                None,
                json!({"kind": "Machine", "name": "openshift-machine-api/prod-gpu-eu-1a-7x2kq", "providerID": "aws:///eu-1a/i-0abc",
                    "labels": {"machine.openshift.io/cluster-api-machineset": "prod-gpu-eu-1a"}}),
            ),
        ),
        "cluster-api" => (
            fleet,
            provisioned(
                fleet,
                None,
                json!({"kind": "Machine", "name": "self/fleet-gpu-7f9c4-abcde", "providerID": "example:///1",
                    "labels": {"cluster.x-k8s.io/deployment-name": "fleet-gpu", "cluster.x-k8s.io/pool-name": ""}}),
            ),
        ),
        "kubeadm" => {
            let groups = ["system:bootstrappers:kubeadm:default-node-token", gpu];
            ("node-17", bootstrapped("node-17", "abcdef", groups))
        }
        "talos" => ("talos-1ab", bootstrapped("talos-1ab", "h100aa", ["system:bootstrappers:nodes", gpu])),
        "k3s" => ("gpu-7", json!({})),
        other => panic!("say here which node docs/guides/pools.md explains for the policy {other:?}"),
    }
}

/// The policies of the guide by their names, each with the text after it.
fn examples(guide: &str) -> BTreeMap<&str, (&str, &str)> {
    let named = guide.split("\n```yaml\n").skip(1).map(|rest| {
        let (policy, after) = rest.split_once("\n```\n").unwrap();
        let name = policy.split("metadata: {name: ").nth(1).and_then(|rest| rest.split('}').next()).unwrap();
        let text = after.trim_start().strip_prefix("```text\n").and_then(|rest| rest.split("\n```").next());
        (name, (policy, text.unwrap_or_else(|| panic!("what does explain print with the policy {name:?}?"))))
    });
    named.collect()
}

/// Whether a text is as `pattern` says, in which `…` stands for anything.
pub(super) fn is_like(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = if part.is_empty() { "" } else { after };
    }
    rest.is_empty()
}

/// The words of a text, which is wrapped for a terminal.
pub(super) fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn explain_prints_what_the_guide_about_pools_shows_for_each_policy() {
    let guide = fs::read_to_string(Path::new(ROOT).join("docs/guides/pools.md")).unwrap();
    let examples = examples(&guide);
    assert!(examples.len() >= 9, "{:?}", examples.keys());
    for (name, (policy, shown)) in examples {
        let folder = tempfile::tempdir().unwrap();
        let (node, mut record) = node_of(name);
        record["nodeName"] = json!(node);
        record["nodeUID"] = json!("u");
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "uid": "u"}});
        fs::create_dir(folder.path().join("state")).unwrap();
        fs::write(folder.path().join("policy.yaml"), policy).unwrap();
        fs::write(folder.path().join("nodes.json"), object.to_string()).unwrap();
        fs::write(folder.path().join(format!("state/{node}.json")), record.to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(["explain", node, "--nodes", "nodes.json", "--policy", "policy.yaml", "--state-dir", "state"]);
        let output = command.current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let printed = words(text.split("\nPools:\n").nth(1).unwrap_or_else(|| panic!("{name}: {text}")));
        assert!(is_like(&printed, &words(shown)), "{name}: explain prints\n{printed}\nand the guide shows\n{shown}");
    }
}

#[test]
fn what_is_shown_stands_for_no_other_text() {
    for (text, pattern) in [("gpu, proven by x", "gpu, proven by x"), ("a: 1; b: 2", "a: …; b: 2"), ("a: 1", "a: …")]
    {
        assert!(is_like(text, pattern), "{text:?} {pattern:?}");
    }
    for (text, pattern) in [("gpu, proven by x y", "gpu, proven by x"), ("a: 1; b: 2", "a: …; c: 2"), ("b: 1", "a: …")]
    {
        assert!(!is_like(text, pattern), "{text:?} {pattern:?}");
    }
}
