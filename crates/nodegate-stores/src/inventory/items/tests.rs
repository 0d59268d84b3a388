use serde_json::{Value, json};

use super::*;
use nodegate_policy::{PolicyDocument, PolicySet};

fn inventory(url: &str, answer: &Value) -> Arc<Inventory> {
    let spec = json!({"inventory": [{"name": "cmdb", "url": url, "allow": ["rack"], "answer": answer}]});
    let set = PolicySet::compile(&[PolicyDocument::of_object("fleet", &spec).unwrap()]).unwrap();
    set.inventories().next().unwrap().clone()
}

fn items(answer: &Value) -> Items {
    let inventory = inventory("https://cmdb.example/nodes", answer);
    Items::of_all(&inventory, inventory.form.as_ref().unwrap())
}

/// What an answer of one page says: the rack of each node, or why it is not known.
fn racks(answer: &Value, body: &str) -> Result<Vec<String>, Fault> {
    let mut items = items(answer);
    items.add_page(body.as_bytes())?;
    let said = items.finish()?.0.into_iter().map(|(node, item)| match item {
        Ok(item) => format!("{node}={}", item.labels.get("rack").map_or("-", String::as_str)),
        Err(why) => format!("{node}: {why}"),
    });
    Ok(said.collect())
}

#[test]
fn items_are_a_list_the_values_of_an_object_or_lines() {
    let by_name = json!({"node": "item.name", "labels": {"rack": "item.?rack"}});
    let below = json!({"items": "/data/0/a~1b", "node": "item.name", "labels": {"rack": "item.?rack"}});
    let by_key = json!({"items": "/hosts", "node": "key", "labels": {"rack": "item.?rack"}});
    let lines = json!({"format": "csv", "node": "item.name", "labels": {"rack": "item.rack"}});
    for (answer, body, expected) in [
        (
            &by_name,
            "\u{feff} [{\"name\": \"a\", \"rack\": 1}, {\"name\": \"b\"}, {\"name\": null}] ",
            &["a=1", "b=-"][..],
        ),
        (&by_name, "[]", &[]),
        (&by_name, r#"{"name": "a", "rack": "7"}"#, &["a=7"]),
        (&by_name, r#"[{"name": "a", "rack": 1}, {"name": "a", "rack": 2}]"#, &["a: several items are about it"]),
        (&by_name, r#"[{"name": "a", "rack": 1}, {}]"#, &["a=1"]),
        (&below, r#"{"data": [{"a/b": [{"name": "a", "rack": "7"}]}, {}]}"#, &["a=7"]),
        (&by_key, r#"{"hosts": {"a": {"rack": "7"}, "b": {}}, "x": 1}"#, &["a=7", "b=-"]),
        (&lines, "name,rack\r\n# moved\r\na, 7 \r\n\"b\",\r\n,9\r\n", &["a=7", "b=-"]),
    ] {
        assert_eq!(racks(answer, body).unwrap(), expected, "{body}");
    }
}

#[test]
fn answers_of_another_form_are_refused_and_not_repeated() {
    let by_name = json!({"items": "/list", "node": "item.name", "labels": {"rack": "item.rack"}, "next": "/next"});
    let lines = json!({"format": "csv", "node": "item.name", "labels": {"rack": "item.rack"}});
    for (answer, body, expected) in [
        (&by_name, "", "it is empty"),
        (&by_name, "secret", "it is neither a JSON object nor a list"),
        (&by_name, r#"{"list": ["secret""#, "it is not JSON, from line 1"),
        (&by_name, r#"{"list": "secret"}"#, "its items are neither a list nor an object"),
        (&by_name, r#"{"secret": []}"#, "it has nothing at /list"),
        (
            &by_name,
            r#"{"list": [], "next": {"secret": 1}}"#,
            "what is at the pointer of the next page is neither text nor null",
        ),
        (&by_name, r#"{"list": [{"rack": "secret"}]}"#, "of item 1, node is unknown: "),
        (&lines, "name,rack\nsecret\n", "it is not a table of comma-separated values"),
        (&lines, "\u{feff}", "it is empty"),
    ] {
        let why = racks(answer, body).unwrap_err();
        assert!(why.starts_with(expected) && !why.contains("secret"), "{body}: {why}");
    }
    assert!(items(&by_name).add_page(b"\xff").unwrap_err().contains("UTF-8"));
    let many = format!("[{}{{\"name\": \"a\", \"rack\": 1}}]", "1,".repeat(NODES_MAX));
    let by_name = json!({"node": "item.name", "labels": {"rack": "item.rack"}});
    assert!(racks(&by_name, &many).unwrap_err().contains("more than 100000 nodes"));
}

#[test]
fn what_is_kept_of_all_pages_is_bounded() {
    let by_name = json!({"node": "item.name", "labelMap": "item.labels"});
    let mut items = Items { given_max: 2_000, ..items(&by_name) };
    let page = |from: usize, key: &str| {
        let item = |at| json!({"name": format!("n{at}"), "labels": {key: "x".repeat(100)}});
        json!((from..from + 20).map(item).collect::<Vec<_>>()).to_string()
    };
    assert_eq!(items.add_page(page(0, "other").as_bytes()), Ok(None), "the inventory may not give it");
    assert!(items.given < 100, "{}", items.given);
    let why = items.add_page(page(20, "rack").as_bytes()).unwrap_err();
    assert!(why.starts_with("its labels take more than"), "{why}");
    let wide = format!("name{}\n", ",x".repeat(COLUMNS_MAX));
    let lines = json!({"format": "csv", "node": "item.name", "labels": {"rack": "item.rack"}});
    assert!(racks(&lines, &wide).unwrap_err().contains("more than 1024 columns"));
}

#[test]
fn an_answer_about_one_node_has_its_item_or_none() {
    let named = json!({"items": "/list", "node": "item.name", "labels": {"rack": "item.rack"}});
    let nameless = json!({"labels": {"rack": "item.rack"}});
    let rack = |answer: &Value, body: &str| {
        let inventory = inventory("https://cmdb.example/nodes?name={node}", answer);
        let form = inventory.form.as_ref().unwrap();
        let item = Items::of_node(&inventory, form, &"n1".into(), body.as_bytes());
        item.map(|item| item.map(|item| item.labels["rack"].clone()))
    };
    let item = r#"{"list": [{"name": "n10", "rack": "1"}, {"name": "n1", "rack": "2"}]}"#;
    assert_eq!(rack(&named, item), Ok(Some("2".to_owned())));
    assert_eq!(rack(&named, r#"{"list": []}"#), Ok(None), "it does not know the node");
    assert!(rack(&named, r#"{"list": [{"rack": "1"}]}"#).unwrap_err().contains("node is unknown"));
    assert_eq!(rack(&nameless, r#"{"rack": "2"}"#), Ok(Some("2".to_owned())));
    assert_eq!(rack(&nameless, r#"[{"rack": "2"}]"#), Ok(Some("2".to_owned())));
    assert_eq!(rack(&nameless, "[]"), Ok(None));
    assert!(rack(&nameless, r#"[{"rack": "2"}, {"rack": "2"}]"#).unwrap_err().contains("answer.node"));
}
