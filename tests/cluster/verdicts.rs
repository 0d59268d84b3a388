//! Every kind of rule in every mode, for additions, changes and removals, by different people, through `nodes` and
//! `nodes/status`, in every way that the API server takes a write.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::control_plane::exclusive;
use super::nodegate::{Nodegate, Setup};
use super::requester::{Requester, Way, taints};

const MODES: [&str; 3] = ["enforce", "warn", "audit"];
const NODE: &str = "verdict-1";

/// A write that violates one rule: kind, operation, labels before, change.
type Violating = (&'static str, &'static str, Value, Value);

/// `MODE` stands for the mode.
fn writes() -> Vec<Violating> {
    vec![
        ("reserved", "add", json!({}), json!({"reserved-MODE.example/key": "x"})),
        ("reserved", "change", json!({"reserved-MODE.example/key": "x"}), json!({"reserved-MODE.example/key": "y"})),
        ("reserved", "remove", json!({"reserved-MODE.example/key": "x"}), json!({"reserved-MODE.example/key": null})),
        ("required", "remove", json!({"required-MODE": "x"}), json!({"required-MODE": null})),
        ("allowed", "add", json!({}), json!({"allowed-MODE": "bad"})),
        ("allowed", "change", json!({"allowed-MODE": "good"}), json!({"allowed-MODE": "bad"})),
        ("immutable", "change", json!({"immutable-MODE": "x"}), json!({"immutable-MODE": "y"})),
        ("immutable", "remove", json!({"immutable-MODE": "x"}), json!({"immutable-MODE": null})),
        ("dependency", "add", json!({}), json!({"dependency-MODE": "on"})),
        ("dependency", "change", json!({"dependency-MODE": "off"}), json!({"dependency-MODE": "on"})),
        ("dependency", "remove", json!({"dependency-MODE": "on", "needed-MODE": "x"}), json!({"needed-MODE": null})),
        ("naming", "add", json!({}), json!({"naming-MODE.example/Bad_Key": "x"})),
        ("naming", "change", json!({"naming-MODE.example/key": "x"}), json!({"naming-MODE.example/key": "Bad"})),
        ("expression", "add", json!({}), json!({"left-MODE": "x"})),
        ("expression", "change", json!({"left-MODE": "x", "right-MODE": "x"}), json!({"left-MODE": "y"})),
        ("expression", "remove", json!({"left-MODE": "x", "right-MODE": "x"}), json!({"left-MODE": null})),
    ]
}

fn in_mode(labels: &Value, mode: &str) -> BTreeMap<String, Option<String>> {
    let text = labels.to_string().replace("MODE", mode);
    serde_json::from_str(&text).unwrap()
}

/// How often a rule was violated, by what came of it.
fn violations(nodegate: &Nodegate<'_>) -> BTreeMap<(String, String), u64> {
    let part = |line: &str, name: &str| line.split(&format!("{name}=\"")).nth(1)?.split('"').next().map(str::to_owned);
    let metrics = nodegate.probe("/metrics").unwrap();
    let lines = metrics.lines().filter(|line| line.starts_with("nodegate_violations_total{"));
    lines
        .map(|line| {
            let count = line.rsplit(' ').next().unwrap().parse().unwrap();
            ((part(line, "rule").unwrap(), part(line, "mode").unwrap()), count)
        })
        .collect()
}

#[tokio::test]
async fn every_kind_of_rule_in_every_mode_applies_to_every_kind_of_write() {
    let cluster = exclusive();
    let policies: &[&str] = &["tests/cluster/verdicts.yaml"];
    let nodegate = Nodegate::start(cluster.plane, &Setup { policies, ..Setup::default() });
    let admin = Requester::admin(cluster.plane).await;
    let rescuer = Requester::user(cluster.plane, "rescuer", &["system:masters", "nodegate:break-glass"]).await;
    let people = [
        ("kubelet", Requester::kubelet(cluster.plane, NODE).await),
        ("user", Requester::user(cluster.plane, "alice", &["system:masters"]).await),
        ("account", Requester::user(cluster.plane, "system:serviceaccount:team:ci", &["system:masters"]).await),
    ];
    admin.delete(NODE).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    people[0].1.create(&node).await.unwrap();
    let mut tried = 0;
    for (kind, operation, before, change) in writes() {
        for mode in MODES {
            let (before, change) = (in_mode(&before, mode), in_mode(&change, mode));
            for (way, status) in Way::ALL.into_iter().flat_map(|way| [(way, false), (way, true)]) {
                // By turns: all of them come to every kind and mode.
                let (who, requester) = &people[(tried + tried / 30) % people.len()];
                let none = before.keys().chain(change.keys()).map(|key| (key.clone(), None)).collect();
                rescuer.set_labels(NODE, Way::Merge, false, &none).await.expect("broken glass clears everything");
                // A field manager of nodes and one of nodes/status are two.
                rescuer.set_labels(NODE, Way::Apply, status, &before).await.expect("broken glass sets everything");
                let counted = violations(&nodegate);
                let mut after = before.clone();
                after.extend(change.clone());
                let outcome = requester.set_labels(NODE, way, status, &after).await;
                let what = format!("{kind} {operation} {mode} by {who}, {way:?}, status: {status}");
                let rule = format!("{kind}-{mode}");
                let more = violations(&nodegate).get(&(rule.clone(), mode.to_owned())).copied().unwrap_or_default()
                    - counted.get(&(rule.clone(), mode.to_owned())).copied().unwrap_or_default();
                // More than once where the API server was behind and asked again.
                assert!(more >= 1, "{what}: {outcome:?}");
                match (mode, outcome) {
                    ("enforce", Err(refusal)) => {
                        assert!(refusal.code == 403 && refusal.message.contains(&rule), "{what}: {refusal:?}");
                    }
                    ("enforce", Ok(_)) => panic!("{what} was let through"),
                    (_, outcome) => {
                        let stored = outcome.unwrap_or_else(|refusal| panic!("{what} was refused: {refusal:?}"));
                        for (key, value) in &change {
                            assert_eq!(stored["metadata"]["labels"][key].as_str(), value.as_deref(), "{what}");
                        }
                    }
                }
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 16 * 3 * 10);
    // A node that is made by somebody other than its kubelet is judged whole.
    admin.delete(NODE).await;
    let refusal = admin.create(&node).await.unwrap_err();
    assert!(refusal.code == 403 && refusal.message.contains("required-enforce"), "{refusal:?}");
}

#[tokio::test]
async fn kubectl_shows_warnings_and_all_violations_at_once() {
    let cluster = exclusive();
    let policies: &[&str] = &["tests/cluster/verdicts.yaml"];
    let _nodegate = Nodegate::start(cluster.plane, &Setup { policies, ..Setup::default() });
    let admin = Requester::admin(cluster.plane).await;
    admin.delete(NODE).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    Requester::kubelet(cluster.plane, NODE).await.create(&node).await.unwrap();
    let label = |labels: &[&str]| {
        let arguments: Vec<&str> =
            ["label", "node", NODE, "--overwrite"].into_iter().chain(labels.iter().copied()).collect();
        cluster.plane.kubectl_with_stderr(&arguments)
    };
    let (allowed, told) = label(&["allowed-warn=bad", "allowed-audit=bad"]);
    assert!(
        allowed && told.contains("Warning: nodegate: verdicts/allowed-warn: label \"allowed-warn\" may not be \"bad\""),
        "{told}"
    );
    assert!(!told.contains("allowed-audit"), "audit is not told to people: {told}");
    let (allowed, told) = label(&["allowed-enforce=bad", "reserved-enforce.example/a=b", "left-enforce=x"]);
    assert!(!allowed, "{told}");
    for part in [
        "3 violations: (1) label \"reserved-enforce.example/a\"",
        "(2) label \"allowed-enforce\"",
        "(3) failed expression:",
    ] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    assert_eq!(told.matches("break-glass group nodegate:break-glass").count(), 1, "the way out is told once: {told}");
    assert!(taints(&admin.get(NODE).await).iter().all(|taint| taint.contains("not-ready")));
    admin.delete(NODE).await;
}
