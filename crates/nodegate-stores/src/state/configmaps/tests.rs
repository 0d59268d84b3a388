use serde_json::json;

use super::*;

fn maps_by(identity: Identity) -> ConfigMaps {
    let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| async {
        Err::<axum::http::Response<kube::client::Body>, _>(std::io::Error::other("not asked"))
    });
    ConfigMaps::new(Client::new(service, "default"), "nodegate", Arc::new(SavedStates::new(identity)))
}

fn maps() -> ConfigMaps {
    maps_by(Identity::Name)
}

fn record(name: &str, version: u64, node: &str, value: &str) -> ConfigMap {
    let document = serde_json::json!({"nodeName": node, "labels": {"persist.demo/a": value}}).to_string();
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": name, "resourceVersion": version.to_string()}, "data": {STATE_KEY: document},
    }))
    .unwrap()
}

/// The record of a machine with an ID, in a ConfigMap that was created in this second.
fn record_with_id(name: &str, second: u32, value: &str) -> ConfigMap {
    let mut config_map = record(name, 1, "n1", value);
    let text = config_map.data.as_mut().unwrap().get_mut(STATE_KEY).unwrap();
    *text = text.replacen('{', r#"{"identity":"systemUUID=C","#, 1);
    let created = serde_json::json!(format!("2026-01-01T00:00:{second:02}Z"));
    config_map.metadata.creation_timestamp = serde_json::from_value(created).unwrap();
    config_map
}

fn value(maps: &ConfigMaps) -> Option<String> {
    let state = maps.states.get(Machine { name: "n1", provider_id: None, system_uuid: Some("C") })?;
    state.labels.get("persist.demo/a").map(str::to_owned)
}

#[tokio::test]
async fn a_listing_replaces_what_was_known_and_an_answer_is_never_older_than_memory() {
    let maps = maps();
    let take = |version, read, to: &str| maps.take_up(&record("node-labels-n1", version, "n1", to), read, &mut |_| {});
    take(900, Read::Watched, "of the future");
    take(100, Read::Watched, "late event");
    assert_eq!(value(&maps).as_deref(), Some("of the future"));
    // etcd was restored from a backup: the same object has an older version.
    maps.index.lock().begin_listing();
    take(100, Read::Listed, "restored");
    assert_eq!(value(&maps).as_deref(), Some("restored"));
    // What was written while the listing was under way is newer than the listing.
    take(120, Read::Answered { known: Some(100) }, "written");
    take(110, Read::Listed, "listed before");
    assert_eq!(value(&maps).as_deref(), Some("written"));

    take(900, Read::Watched, "of another future");
    take(130, Read::Answered { known: Some(900) }, "answered");
    assert_eq!(value(&maps).as_deref(), Some("answered"), "memory was ahead of the API server");
    take(140, Read::Watched, "event");
    take(135, Read::Answered { known: Some(130) }, "slow answer");
    assert_eq!(value(&maps).as_deref(), Some("event"), "an event came between the request and its answer");
}

#[tokio::test]
async fn a_copy_under_another_name_is_reported_and_its_deletion_forgets_nothing() {
    let maps = maps();
    let mut problems = Vec::new();
    for name in ["node-labels-a-copy", "node-labels-n1", "node-labels-n2"] {
        let value = if name == "node-labels-n1" { "own" } else { "copied" };
        maps.take_up(&record(name, 1, "n1", value), Read::Watched, &mut |problem| problems.push(problem));
    }
    assert_eq!(value(&maps).as_deref(), Some("own"));
    let copied: Vec<&str> = problems.iter().map(|problem| problem.config_map.as_str()).collect();
    assert_eq!(copied, ["node-labels-a-copy", "node-labels-n2"]);
    assert!(problems[0].why.to_string().contains("the record of node n1 is ConfigMap node-labels-n1"), "{problems:?}");
    maps.forget("node-labels-a-copy");
    maps.forget("node-labels-n2");
    assert_eq!(value(&maps).as_deref(), Some("own"));
    // One whose name has a hash could be a record.
    let hashed = "node-labels-n1-0123456789abcdef";
    maps.take_up(&record(hashed, 1, "n1", "copied"), Read::Watched, &mut |problem| problems.push(problem));
    maps.forget(hashed);
    assert_eq!((value(&maps).as_deref(), problems.len()), (Some("own"), 3));
    assert_eq!(problems[2], UnusedDocument::copy_of("node-labels-n1".to_owned(), hashed.to_owned(), "n1"));
    maps.forget("node-labels-n1");
    assert_eq!(value(&maps), None);
    // It is the only one, and stays the record.
    maps.take_up(&record(hashed, 1, "n1", "copied"), Read::Watched, &mut |problem| problems.push(problem));
    assert_eq!((value(&maps).as_deref(), problems.len()), (Some("copied"), 3));
    maps.take_up(&record("node-labels-n1", 2, "n1", "own"), Read::Watched, &mut |problem| problems.push(problem));
    assert_eq!((value(&maps).as_deref(), problems.len()), (Some("copied"), 4));
    assert_eq!(problems[3], UnusedDocument::copy_of(hashed.to_owned(), "node-labels-n1".to_owned(), "n1"));
}

#[tokio::test]
async fn of_records_of_one_machine_the_older_one_is_in_force_and_a_copy_takes_its_place_when_it_is_deleted() {
    let (original, copy) = (record_with_id("node-labels-n1", 1, "own"), record_with_id("node-labels-a", 2, "copied"));
    let told = UnusedDocument::copy_of("node-labels-n1".to_owned(), "node-labels-a".to_owned(), "n1");
    for order in [[&original, &copy], [&copy, &original]] {
        let (maps, mut problems) = (maps_by(Identity::SystemUuid), Vec::new());
        // The first listing breaks off, and begins anew.
        for _ in 0..2 {
            maps.index.lock().begin_listing();
            problems.clear();
            for config_map in order {
                maps.take_up(config_map, Read::Listed, &mut |problem| problems.push(problem));
            }
            assert_eq!(value(&maps).as_deref(), Some("own"), "{problems:?}");
            assert_eq!(problems, std::slice::from_ref(&told));
        }
        maps.index.lock().end_listing();
        maps.forget("node-labels-a");
        assert_eq!(value(&maps).as_deref(), Some("own"), "the copy is deleted");
        maps.take_up(&copy, Read::Watched, &mut |problem| problems.push(problem));
        assert_eq!((value(&maps).as_deref(), problems.last()), (Some("own"), Some(&told)), "the copy is made again");
        maps.forget("node-labels-n1");
        assert_eq!(value(&maps).as_deref(), Some("copied"), "the original is deleted");
        let place = maps.place("systemUUID=C").unwrap();
        assert_eq!((place.config_map.as_str(), place.data_key.as_str()), ("node-labels-a", STATE_KEY));
        maps.forget("node-labels-a");
        assert_eq!((value(&maps), maps.place("systemUUID=C")), (None, None));
    }
}

#[tokio::test]
async fn a_record_stays_where_it_is_while_its_config_map_has_it() {
    let maps = maps_by(Identity::SystemUuid);
    let mut problems = Vec::new();
    let mut take = |config_map: &ConfigMap, read| {
        maps.take_up(config_map, read, &mut |problem| problems.push(problem.config_map));
    };
    take(&record_with_id("node-labels-n1", 2, "own"), Read::Watched);
    // Somebody writes the document into an older ConfigMap.
    let older = record_with_id("node-labels-a", 1, "copied");
    take(&older, Read::Watched);
    assert_eq!(value(&maps).as_deref(), Some("own"));
    maps.index.lock().end_listing();
    maps.index.lock().begin_listing();
    take(&older, Read::Listed);
    take(&record_with_id("node-labels-n1", 2, "own"), Read::Listed);
    assert_eq!(value(&maps).as_deref(), Some("own"), "also when everything is listed again");
    // The ConfigMap has another machine's record now.
    let mut another = record("node-labels-n1", 7, "n1", "another");
    another.metadata.creation_timestamp = older.metadata.creation_timestamp.clone();
    take(&another, Read::Watched);
    assert_eq!(maps.place("systemUUID=C").unwrap().config_map, "node-labels-a");
    assert_eq!(problems, ["node-labels-a", "node-labels-a"]);
}

#[test]
fn what_is_not_used_is_told_with_its_config_map_and_what_to_do() {
    let (reason, note) = UnusedDocument::copy("node-labels-n1-old".to_owned(), "n1").event();
    assert_eq!(reason, "CopiedState");
    let expected = "ConfigMap node-labels-n1-old: it is a copy, because the record of node n1 is ConfigMap node-labels-n1; delete the copy";
    assert_eq!(note, expected);
    let why = Unused::Unreadable("EOF".to_owned());
    let problem = UnusedDocument { config_map: "node-labels-n1".to_owned(), node: "n1".to_owned(), why };
    let (reason, note) = problem.event();
    assert_eq!(reason, "UnreadableState");
    assert!(note.starts_with("ConfigMap node-labels-n1: it is unreadable: EOF; "), "{note}");
}

#[test]
fn the_last_writer_of_an_unreadable_document_is_named() {
    let mut config_map = record("node-labels-n1", 1, "n1", "");
    config_map.data.as_mut().unwrap().insert(STATE_KEY.to_owned(), "{".to_owned());
    let entry = |manager: &str, second: u32, key: &str| {
        json!({"manager": manager, "operation": "Update", "time": format!("2026-01-01T00:00:{second:02}Z"),
               "fieldsV1": {"f:data": {format!("f:{key}"): {}}}})
    };
    let entries =
        json!([entry("kubectl-edit", 2, STATE_KEY), entry("nodegate", 1, STATE_KEY), entry("later", 3, "other")]);
    config_map.metadata.managed_fields = serde_json::from_value(entries).unwrap();
    let (_, problems) = super::documents(&config_map, "n1");
    let why = problems[0].why.to_string();
    assert!(why.ends_with("; its last writer is kubectl-edit"), "{why}");
}

#[test]
fn the_record_of_a_machine_with_an_id_alone_stays_when_its_node_has_another_name() {
    let mut config_map = record("node-labels-old", 1, "new", "kept");
    let (documents, problems) = super::documents(&config_map, "old");
    assert!(documents.is_empty() && problems.len() == 1, "a record that is found by the name of its node is a copy");
    let text = config_map.data.as_mut().unwrap().get_mut(STATE_KEY).unwrap();
    *text = text.replacen('{', r#"{"identity":"systemUUID=C","#, 1);
    let (documents, problems) = super::documents(&config_map, "old");
    assert!(documents.len() == 1 && problems.is_empty(), "{problems:?}");
}

#[test]
fn documents_of_the_label_operator_are_readable() {
    let text = r#"{"nodeName": "kind-worker", "labels": {"persist.demo/type": "expensive"}, "capturedAt": "2026-01-14T17:00:00Z"}"#;
    let state = parse(text).unwrap();
    assert_eq!((state.node_name.as_str(), state.labels.get("persist.demo/type")), ("kind-worker", Some("expensive")));
    assert!(parse("{").is_err() && parse(r#"{"nodeName": ""}"#).is_err());
}
