//! The policies of the guide about inventories that know nothing of nodegate, with what these answer: recorded from NetBox, sabakan,
//! topograph and Ansible, and of MAAS in the form that it documents.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::cmdb::{Cmdb, Fault};
use super::inventory::{patch, patch_for, until};
use super::serve::Serve;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The policies of the guide by the name of their inventory.
fn policies(cmdb: &Cmdb) -> BTreeMap<String, String> {
    let guide = fs::read_to_string(Path::new(ROOT).join("docs/guides/inventory-sources.md")).unwrap();
    let blocks = guide.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let named = |text: &str| {
        let policy: Value = serde_saphyr::from_str(text).unwrap();
        policy["spec"]["inventory"][0]["name"].as_str().unwrap().to_owned()
    };
    blocks.map(|text| (named(text), here(text, cmdb))).collect()
}

/// The same text with the address of this server.
fn here(text: &str, cmdb: &Cmdb) -> String {
    let hosts =
        ["https://netbox.internal", "https://maas.internal", "http://sabakan.internal:10080", "https://files.internal"];
    hosts.iter().fold(text.to_owned(), |text, host| text.replace(host, &format!("https://127.0.0.1:{}", cmdb.port)))
}

fn recorded(name: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join("tests/data/inventories").join(name)).unwrap()
}

/// The labels that a patch adds.
fn added(patch: &str) -> BTreeMap<String, String> {
    let operations: Vec<Value> = if patch.is_empty() { Vec::new() } else { serde_json::from_str(patch).unwrap() };
    let mut labels = BTreeMap::new();
    for operation in operations {
        let path = operation["path"].as_str().unwrap();
        match (path.strip_prefix("/metadata/labels"), &operation["value"]) {
            (Some(""), Value::Object(all)) => {
                labels.extend(all.iter().map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())));
            }
            (Some(key), Value::String(value)) => {
                labels.insert(key[1..].replace("~1", "/"), value.clone());
            }
            _ => {}
        }
    }
    labels
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn policies_of_the_guide_read_labels_out_of_what_each_program_answers() {
    let cmdb = Cmdb::start();
    let netbox = "/api/dcim/devices/?role=gpu-node&status=active&limit=1000&exclude=config_context";
    let second_page = "/api/dcim/devices/?exclude=config_context&limit=2&offset=2&role=gpu-node&status=active";
    for (path, file) in [
        (netbox, "netbox-1.json"),
        (second_page, "netbox-2.json"),
        ("/MAAS/api/2.0/machines/", "maas.json"),
        ("/api/v1/machines?role=cs", "sabakan.json"),
        ("/ansible.json", "ansible.json"),
        ("/machines.csv", "table.csv"),
    ] {
        cmdb.answer(path, Some(&here(&recorded(file), &cmdb)));
    }
    // topograph leaves empty labels out.
    let (recorded_labels, next) = (
        r#","labels":{"topology.kubernetes.io/region":"eu-central-1","topology.kubernetes.io/zone":"eu-central-1a"}"#,
        r#"},{"id":"i-0fabric3""#,
    );
    let topograph = recorded("topograph.json");
    assert!(topograph.contains(&format!("{recorded_labels}{next}")));
    cmdb.answer("/topology.json", Some(&topograph.replace(&format!("{recorded_labels}{next}"), next)));
    cmdb.authorize("Token netbox-token");
    cmdb.authorize("oauth_consumer_key=\"C1\", oauth_token=\"T2\", oauth_signature=\"%26S3\"");
    let arguments = ["--policy", "DIR/policies", "--inventory-credentials", "DIR/credentials"];
    let serve = Serve::start(&arguments, &[("NO_PROXY", "*")], |directory| {
        fs::create_dir(directory.join("policies")).unwrap();
        for (name, text) in policies(&cmdb) {
            fs::write(directory.join("policies").join(format!("{name}.yaml")), text).unwrap();
            cmdb.credentials(&directory.join("credentials"), &name);
        }
        for (name, file, content) in
            [("netbox", "authorization", "Token netbox-token"), ("maas", "maas-api-key", "C1:T2:S3")]
        {
            let own = directory.join("credentials").join(name);
            fs::remove_file(own.join("token")).unwrap();
            fs::write(own.join(file), content).unwrap();
        }
    });
    for (node, domain, expected) in [
        (
            "gpu-01.dc1.example.com",
            "place.example.com/",
            &[("nvlink-domain", "nvl-1"), ("rack", "Rack-A1"), ("site", "ams-1"), ("unit", "12")][..],
        ),
        (
            "gpu-02.dc1.example.com",
            "place.example.com/",
            &[("nvlink-domain", "nvl-1"), ("rack", "Rack-A1"), ("site", "ams-1"), ("unit", "14")],
        ),
        ("gpu-03.dc1.example.com", "place.example.com/", &[("site", "ams-1")]),
        ("metal-1", "place.example.com/", &[("hall", "hall-2"), ("pool", "training"), ("rack", "rack-b7")]),
        ("metal-2", "place.example.com/", &[("hall", "hall-2"), ("pool", "training")]),
        ("ansible-1", "place.example.com/", &[("rack", "9"), ("row", "c")]),
        ("box-1", "place.example.com/", &[("rack", "R1"), ("unit", "12")]),
        ("box-2", "place.example.com/", &[("rack", "R1")]),
        (
            "10.69.2.68",
            "",
            &[
                ("datacenter", "tokyo1"),
                ("place.example.com/index", "4"),
                ("place.example.com/rack", "3"),
                ("product", "R630"),
            ],
        ),
    ] {
        let expected: BTreeMap<String, String> =
            expected.iter().map(|(key, value)| (format!("{domain}{key}"), (*value).to_owned())).collect();
        until(node, &serve, || added(&patch(&serve, node)) == expected);
    }
    // By the instance as which the kubelet was authenticated, and not by what it says of itself.
    let instance = |id: &str| {
        let user = json!({"username": "system:node:ip-10-0-0-7", "groups": ["system:nodes", "system:authenticated"],
            "extra": {"sessionName": [id]}});
        added(&patch_for(&serve, "ip-10-0-0-7", &user))
    };
    let of_first = labels(&[
        ("accelerator.topograph.run/domain", "nvl-1"),
        ("fabric.topograph.run/tier-0", "leaf-a"),
        ("fabric.topograph.run/tier-1", "spine-a"),
        ("fabric.topograph.run/tier-2", "core"),
    ]);
    until("the first instance", &serve, || instance("i-0fabric1") == of_first);
    assert_eq!(instance("i-0fabric2"), labels(&[("fabric.topograph.run/tier-0", "leaf-b")]));
    // It has no leaf.
    let of_third = [
        ("accelerator.topograph.run/domain", "nvl-1"),
        ("fabric.topograph.run/tier-0", "spine-a"),
        ("fabric.topograph.run/tier-1", "core"),
    ];
    assert_eq!(instance("i-0fabric3"), labels(&of_third));
    assert_eq!(instance("i-0fabric4"), labels(&[]));
}

#[test]
fn an_answer_that_changed_its_form_takes_no_label_away() {
    let cmdb = Cmdb::start();
    let policy = format!(
        "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: fleet}}\nspec:\n  inventory:\n    - name: cmdb\n      \
         url: https://127.0.0.1:{}/list\n      refresh: 1s\n      allow: [rack, unit]\n      answer:\n        items: /results\n        \
         next: /next\n        node: item.name\n        labels: {{rack: item.rack, unit: item.unit}}\n",
        cmdb.port
    );
    cmdb.answer("/list", Some(r#"{"results": [{"name": "n1", "rack": "7", "unit": 3}], "next": "list?page=2"}"#));
    cmdb.answer("/list?page=2", Some(r#"{"results": [{"name": "n2", "rack": "8", "unit": 4}], "next": null}"#));
    let arguments = ["--policy", "DIR/policy.yaml", "--inventory-credentials", "DIR/credentials"];
    let serve = Serve::start(&arguments, &[("NO_PROXY", "*")], |directory| {
        fs::write(directory.join("policy.yaml"), &policy).unwrap();
        cmdb.credentials(&directory.join("credentials"), "cmdb");
    });
    let has =
        |node: &str, rack: &str, unit: &str| added(&patch(&serve, node)) == labels(&[("rack", rack), ("unit", unit)]);
    until("both pages", &serve, || has("n1", "7", "3") && has("n2", "8", "4"));
    let is_failing = |yes: bool| {
        let line = format!("nodegate_inventory_failing{{policy=\"fleet\",inventory=\"cmdb\"}} {}", u8::from(yes));
        serve.get("/metrics").contains(&line)
    };
    let page = |of_n1: &str| format!(r#"{{"results": [{of_n1}], "next": "list?page=2"}}"#);
    for (body, why) in [
        (r#"{"data": []}"#.to_owned(), "it has nothing at /results"),
        (r#"{"results": "none"}"#.to_owned(), "its items are neither a list nor an object"),
        (
            r#"{"results": [], "next": "https://elsewhere.example/list"}"#.to_owned(),
            "its next page is at another scheme, host or port",
        ),
        (r#"{"results": [], "next": "list"}"#.to_owned(), "its pages do not end"),
        (r#"{"results": [], "next": "list?page=3"}"#.to_owned(), "it answered 404"),
        ("<html>".to_owned(), "it is neither a JSON object nor a list"),
        (r#"{"results": [}"#.to_owned(), "it is not JSON, from line 1 column 14 on"),
    ] {
        cmdb.answer("/list", Some(&body));
        until(why, &serve, || is_failing(true) && serve.log().contains(why));
        assert!(has("n1", "7", "3") && has("n2", "8", "4"), "{body}");
        cmdb.answer("/list", Some(&page(r#"{"name": "n1", "rack": "7", "unit": 3}"#)));
        until("it answers", &serve, || is_failing(false));
    }
    // A field of one item; two items about one node; no name.
    cmdb.answer("/list", Some(&page(r#"{"name": "n1", "rack": "9"}"#)));
    until("the other rack", &serve, || has("n1", "9", "3"));
    assert!(serve.log().contains("a label of an inventory is not used"), "{}", serve.log());
    cmdb.answer(
        "/list",
        Some(&page(r#"{"name": "n2", "rack": "1", "unit": 1}, {"name": "n1", "rack": "5", "unit": 5}, {"rack": "6"}"#)),
    );
    until("the other node", &serve, || has("n1", "5", "5"));
    assert!(has("n2", "8", "4"), "two items are about it");
    until("it is said", &serve, || {
        let log = serve.log();
        log.contains("a part of an inventory's answer is not used") && log.contains("of item 3, node is unknown")
    });
    // A node without an earlier answer has none while a label is unknown: it would count as absent.
    let half = r#"{"name": "n3", "rack": "2"}, {"name": "n1", "rack": "4", "unit": 4}"#;
    cmdb.answer("/list", Some(&page(half)));
    until("the next answer", &serve, || has("n1", "4", "4"));
    assert_eq!(patch(&serve, "n3"), "");
    cmdb.answer("/list", Some(&page(r#"{"name": "n1", "rack": "5", "unit": 5}"#)));
    until("another answer", &serve, || has("n1", "5", "5"));
    cmdb.fail(Fault::Body(r#"{"results": [{"rack": "6"}]}"#));
    until("no item names a node", &serve, || serve.log().contains("of item 1, node is unknown"));
    assert!(has("n1", "5", "5"));
    // An answer about nobody changes nothing either.
    cmdb.fail(Fault::None);
    cmdb.answer("/list", Some(r#"{"results": [], "next": null}"#));
    until("it is about no node", &serve, || serve.log().contains("an inventory's answer is about no node"));
    assert!(has("n1", "5", "5"));
    // An answer to an older question says nothing about a label that only the present policy asks for.
    cmdb.answer("/list", Some(r#"{"results": [{"name": "n1", "rack": "9", "unit": 9}]}"#));
    until("the last answer to the old question", &serve, || has("n1", "9", "9"));
    let asks_more = policy.replace("[rack, unit]", "[rack, unit, hall]").replace("{rack:", "{hall: item.hall, rack:");
    fs::write(serve.path("policy.yaml"), asks_more).unwrap();
    until("hall is unknown", &serve, || is_failing(true) && serve.log().contains("label hall is unknown"));
    assert!(has("n1", "9", "9"));
    cmdb.answer("/list", Some(r#"{"results": [{"name": "n1", "rack": "11", "unit": 11, "hall": null}]}"#));
    until("hall is absent", &serve, || has("n1", "11", "11"));
}
