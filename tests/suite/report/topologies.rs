//! The guide about topologies, as it is written.

use std::process::Command;

use serde_json::{Value, json};

use crate::shared::guides::block;
use crate::shared::output::assert_conforms;

#[test]
fn a_report_says_which_nodes_are_in_the_wrong_place() {
    let directory = tempfile::tempdir().unwrap();
    let places = [
        ("gpu-1", Some("b1"), Some("r1")),
        ("gpu-2", Some("b1"), Some("r3")),
        ("gpu-3", Some("b1"), Some("r2")),
        ("gpu-4", Some("b2"), Some("r2")),
        ("gpu-5", Some("b2"), None),
        ("cpu-1", None, None),
    ];
    let nodes = places.map(|(name, block, rack)| {
        let labels = [("kubernetes.io/hostname", Some(name)), ("fabric.example.com/block", block)];
        let labels = labels.into_iter().chain([("fabric.example.com/rack", rack)]);
        let labels: serde_json::Map<String, Value> =
            labels.filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))).collect();
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    });
    let nodes = json!({"apiVersion": "v1", "kind": "List", "items": nodes});
    std::fs::write(directory.path().join("nodes.json"), nodes.to_string()).unwrap();
    std::fs::write(directory.path().join("policy.yaml"), block("topology", "topologies:")).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        command.args(["report", "nodes.json", "--policy", "policy.yaml"]).args(arguments);
        let output = command.current_dir(directory.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (text, shown) = (run(&[]), block("topology", "Wrong places in a topology:"));
    assert!(text.contains(&shown), "the guide shows\n{shown}\nbut the report is\n{text}");
    let report: Value = serde_json::from_str(&run(&["-o", "json"])).unwrap();
    assert_conforms("report", &report);
    let split = json!([{"value": "r2", "within": {"b1": ["gpu-3"], "b2": ["gpu-4"]}}]);
    let levels = &report["topologies"][0]["levels"];
    assert_eq!(levels[1], json!({"key": "fabric.example.com/rack", "values": 3, "lacking": ["gpu-5"], "split": split}));
    let page = run(&["--html", "-"]);
    assert!(page.contains("<strong>2</strong>wrong places in a topology"), "{page}");
}
