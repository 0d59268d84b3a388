//! `nodegate history` on saved state in files.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::shared::output::assert_conforms;

/// Two nodes with a history. The first entries are as an older version wrote them.
fn history(directory: &Path, arguments: &[&str]) -> Output {
    let recent = |minutes: i64| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let time = i64::try_from(now).unwrap() - 60 * minutes;
        jiff::Timestamp::from_second(time).unwrap().to_string()
    };
    let of_one = json!([
        {"id": 3, "time": "2026-01-01T00:00:00.5Z", "how": "update", "by": "kubectl-label", "field": "label", "key": "team", "new": "ml"},
        {"id": 4, "time": "2026-01-02T00:00:00Z", "how": "status", "by": "kubelet", "field": "taint", "key": "dedicated:NoSchedule", "old": "gpu"},
        {"id": 5, "time": recent(20).replace('Z', ".9Z"), "how": "deleted", "field": "node", "key": ""},
        {"id": 6, "time": recent(20), "how": "returned", "field": "node", "key": ""},
        {"id": 7, "time": recent(20), "how": "restored", "field": "label", "key": "team", "new": "ml"},
    ]);
    let of_other = json!([
        {"id": 1, "time": recent(30), "how": "user", "by": "alice", "byRequester": true, "field": "label", "key": "tier", "old": "a", "new": "b"},
    ]);
    let state = directory.join("state");
    std::fs::create_dir(&state).unwrap();
    for (node, history) in [("n1", of_one), ("n2", of_other)] {
        std::fs::write(state.join(format!("{node}.json")), json!({"nodeName": node, "history": history}).to_string())
            .unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.args(["history", "--state-dir", "state"]).args(arguments).current_dir(directory).output().unwrap()
}

/// Standard output of a command that succeeds.
fn shown(arguments: &[&str]) -> String {
    let output = history(tempfile::tempdir().unwrap().path(), arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_changes_of_a_node_are_shown_with_who_made_them() {
    let text = shown(&["n1"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], " ID  TIME                  BY               HOW       FIELD  KEY                   CHANGE");
    assert_eq!(
        lines[1],
        " 3   2026-01-01T00:00:00Z  (kubectl-label)  user      label  team                  - → \"ml\""
    );
    assert_eq!(
        lines[2],
        " 4   2026-01-02T00:00:00Z  (kubelet)        kubelet   taint  dedicated:NoSchedule  \"gpu\" → -"
    );
    assert!(lines[3].contains("  -                deleted   node   -                     -"), "{text}");
    assert!(text.ends_with("\nNames in parentheses are field managers, which clients choose themselves.\n"), "{text}");
}

#[test]
fn rejected_claims_about_the_node_say_what_was_claimed() {
    let directory = tempfile::tempdir().unwrap();
    let row = |id: u64, key: &str, rule: &str| json!({"id": id, "time": "2026-01-01T00:00:00Z", "how": "rejected", "field": "node", "key": key, "rule": rule});
    let rows = [row(1, "metadata.ownerReferences", "nodegate/owners"), row(2, "17 more keys", "nodegate/unnamed")];
    std::fs::write(directory.path().join("n1.json"), json!({"nodeName": "n1", "history": rows}).to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    let output = command.args(["history", "n1", "--state-dir"]).arg(directory.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for (how, key) in
        [("rejected (nodegate/owners)", "metadata.ownerReferences"), ("rejected (nodegate/unnamed)", "17 more keys")]
    {
        let is_told = |line: &str| line.contains(how) && line.contains(key) && line.contains("claimed by the kubelet");
        assert!(text.lines().any(is_told), "{text}");
    }
}

#[test]
fn the_changes_of_all_nodes_are_shown_in_the_order_of_time() {
    let ids = |arguments: &[&str]| {
        let entries: Value = serde_json::from_str(&shown(&[arguments, &["-o", "json"]].concat())).unwrap();
        assert_conforms("history", &entries);
        let entries = entries.as_array().unwrap().iter();
        entries.map(|entry| format!("{} {}", entry["node"].as_str().unwrap(), entry["id"])).collect::<Vec<_>>()
    };
    assert_eq!(ids(&["--all"]), ["n1 3", "n1 4", "n2 1", "n1 5", "n1 6", "n1 7"]);
    assert_eq!(ids(&["--all", "--since", "1h"]), ["n2 1", "n1 5", "n1 6", "n1 7"]);
    // A deletion and a return within a second stay in this order.
    assert_eq!(ids(&["--all", "--since", "25m"]), ["n1 5", "n1 6", "n1 7"]);
    assert_eq!(ids(&["n1", "--since", "2h"]), ["n1 5", "n1 6", "n1 7"]);
    let table = shown(&["--all", "--since", "1h"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with(" ID  TIME                  NODE  BY     HOW"), "{table}");
    assert!(lines[1].contains("  n2    alice  user      label  tier  \"a\" → \"b\""), "{table}");
    assert_eq!(shown(&["n2", "--since", "10m"]), "no changes are recorded in the last 10m\n");
}

#[test]
fn every_value_is_in_a_field_of_its_own() {
    let entries: Value = serde_json::from_str(&shown(&["n1", "-o", "json"])).unwrap();
    let taint = json!({"time": "2026-01-02T00:00:00Z", "node": "n1", "op": "remove", "field": "taint", "key": "dedicated",
        "effect": "NoSchedule", "was": "gpu", "by": "kubelet", "byKind": "fieldManager", "how": "kubelet", "id": 4});
    assert_eq!(entries[1], taint);
    assert_eq!((&entries[2]["how"], entries[2].get("key")), (&json!("deleted"), None));
    let entries: Value = serde_json::from_str(&shown(&["n2", "-o", "json"])).unwrap();
    assert_eq!((&entries[0]["by"], &entries[0]["byKind"]), (&json!("alice"), &json!("requester")));
}

#[test]
fn wrong_input_is_an_error_that_says_what_is_wrong() {
    for (arguments, expected) in [
        (&[] as &[&str], "required"),
        (&["n3"], "no saved state for node n3 in --state-dir state"),
        (&["n1", "--all"], "cannot be used with"),
        (&["n1", "--since", "soon"], "\"soon\" is not a period; write a number with a unit, such as 30m, 12h or 7d"),
        (&["n1", "--since", "1 month"], "is not a period"),
        (&["n1", "--revert", "3"], "cannot be used with"),
    ] {
        let output = history(tempfile::tempdir().unwrap().path(), arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected) && output.stdout.is_empty(), "{arguments:?}: {said}");
    }
}
