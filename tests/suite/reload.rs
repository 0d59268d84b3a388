//! Files that a running `nodegate serve` reads again when they change, and what it watches for that.

use std::fs;
use std::process::Command;

use super::authority::Authority;
use super::eventually::eventually_blocking;
use super::serve::{Serve, policy};

#[test]
fn policies_are_reloaded_when_a_file_changes_and_stay_when_it_becomes_invalid_or_is_deleted() {
    let serve = Serve::start(&["--policy", "DIR/policies"], &[], |directory| {
        fs::create_dir(directory.join("policies")).unwrap();
        fs::write(directory.join("policies/a.yaml"), policy("a", "one")).unwrap();
    });
    serve.metric("nodegate_rules 1").unwrap();
    fs::write(serve.path("policies/b.yaml"), policy("b", "two")).unwrap();
    eventually_blocking("the second file is in force", || serve.metric("nodegate_rules 2"));
    fs::write(serve.path("policies/b.yaml"), policy("b", "not a key")).unwrap();
    eventually_blocking("the broken file is counted", || {
        serve.metric(r#"nodegate_policy_reloads_total{result="failure"} 1"#)
    });
    serve.metric("nodegate_rules 2").expect("the last good set stays");
    let error = serve.lines().into_iter().find(|line| line["level"] == "ERROR").unwrap();
    let text = error["error"].as_str().unwrap();
    assert!(text.contains("b.yaml:7:") && text.contains("spec.rules[0].labels[\"not a key\"]"), "{text}");
    fs::remove_dir_all(serve.path("policies")).unwrap();
    eventually_blocking("the missing directory is counted", || {
        serve.metric(r#"nodegate_policy_reloads_total{result="failure"} 2"#)
    });
    serve.metric("nodegate_rules 2").expect("the last good set stays");
    fs::create_dir(serve.path("policies")).unwrap();
    fs::write(serve.path("policies/c.yaml"), policy("c", "three")).unwrap();
    eventually_blocking("the directory that came back is in force", || serve.metric("nodegate_rules 1"));
    assert!(serve.get("/readyz").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_persist_section_without_a_retention_is_told_when_it_is_loaded() {
    let persisting =
        |name: &str, retention: &str| format!("{}  persist: {{labels: [\"a/*\"]{retention}}}\n", policy(name, "one"));
    let serve = Serve::start(&["--policy", "DIR/policies"], &[], |directory| {
        fs::create_dir(directory.join("policies")).unwrap();
        fs::write(directory.join("policies/a.yaml"), persisting("a", ", retention: 24h")).unwrap();
    });
    let told = || {
        let lines = serve.lines().into_iter();
        let mut about = lines.filter(|line| line["message"].as_str().is_some_and(|text| text.contains("no retention")));
        let line = about.next_back()?;
        assert!(line["level"] == "INFO" && line["message"].as_str().unwrap().contains("90 days"), "{line}");
        Some(line["rules"].as_str().unwrap().to_owned())
    };
    assert_eq!(told(), None, "{}", serve.log());
    fs::write(serve.path("policies/b.yaml"), persisting("b", "")).unwrap();
    let rules = eventually_blocking("it is told", || told().ok_or_else(|| serve.log()));
    assert!(rules.starts_with("b/") && !rules.contains("a/"), "{rules}");
}

#[test]
fn a_directory_that_init_has_written_is_served_and_its_tests_are_not_read() {
    let serve = Serve::start(&["--policy", "DIR/policy"], &[], |directory| {
        let node = "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {team: ml}}}";
        fs::write(directory.join("nodes.yaml"), node).unwrap();
        let mut init = Command::new(env!("CARGO_BIN_EXE_nodegate"));
        let output = init.args(["init", "nodes.yaml"]).current_dir(directory).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    serve.metric("nodegate_policies 2").unwrap_or_else(|| panic!("fleet and baseline: {}", serve.get("/metrics")));
    let test = fs::read_to_string(serve.path("policy/test.yaml")).unwrap();
    // Each appears whole: half of a file that takes long to write is no error of these.
    for (file, text) in [("test", format!("{test}nonsense: {{}}\n")), ("more", policy("more", "more"))] {
        let new = serve.path(&format!("policy/{file}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, serve.path(&format!("policy/{file}.yaml"))).unwrap();
    }
    eventually_blocking("the new file is in force", || serve.metric("nodegate_policies 3"));
    assert!(serve.lines().iter().all(|line| line["level"] != "ERROR"), "{}", serve.log());
}

#[test]
fn the_replacement_of_a_config_maps_data_link_is_noticed() {
    let serve = Serve::start(&["--policy", "DIR/mount"], &[], |directory| {
        for (version, names) in [("..v1", &["a"] as &[&str]), ("..v2", &["a", "b"])] {
            fs::create_dir_all(directory.join("mount").join(version)).unwrap();
            for name in names {
                fs::write(directory.join("mount").join(version).join(format!("{name}.yaml")), policy(name, name))
                    .unwrap();
            }
        }
        std::os::unix::fs::symlink("..v1", directory.join("mount/..data")).unwrap();
        std::os::unix::fs::symlink("..data/a.yaml", directory.join("mount/a.yaml")).unwrap();
    });
    serve.metric("nodegate_rules 1").unwrap();
    std::os::unix::fs::symlink("..v2", serve.path("mount/..data_tmp")).unwrap();
    fs::rename(serve.path("mount/..data_tmp"), serve.path("mount/..data")).unwrap();
    std::os::unix::fs::symlink("..data/b.yaml", serve.path("mount/b.yaml")).unwrap();
    eventually_blocking("the swap is in force", || serve.metric("nodegate_rules 2"));
}

#[test]
fn flat_label_files_are_watched_under_their_old_flag_too() {
    let serve = Serve::start(&["-label-dir", "DIR/labels"], &[], |directory| {
        fs::create_dir_all(directory.join("labels/accelerators")).unwrap();
        fs::write(
            directory.join("labels/accelerators/edgetpu"),
            "kkohtaka.org/edgetpu\n\nbeta.devicetree.org/fsl-imx8mq-phanbell\n",
        )
        .unwrap();
    });
    serve.metric("nodegate_rules 1").unwrap();
    fs::create_dir(serve.path("labels/example.com")).unwrap();
    fs::write(serve.path("labels/example.com/fpga"), "vendor.example/fpga\n").unwrap();
    eventually_blocking("the new namespace is in force", || serve.metric("nodegate_rules 2"));
    fs::write(serve.path("labels/example.com/fpga"), "no good key\n").unwrap();
    eventually_blocking("the bad line is named", || serve.log().contains("labels/example.com/fpga:1:"));
    serve.metric("nodegate_rules 2").expect("the last good set stays");
}

#[test]
fn saved_state_is_read_when_it_appears_and_an_invalid_file_keeps_the_last_good_state() {
    let serve = Serve::start(&[], &[("PERSIST_LABEL_PREFIX", "persist.demo/")], |_| {});
    serve.metric("nodegate_rules 1").expect("the persist prefix is a rule");
    let told =
        serve.lines().into_iter().find(|line| line["level"] == "WARN").expect("nothing is saved, and that is said");
    assert!(told["message"].as_str().unwrap().contains("save nothing"), "{told}");
    fs::create_dir(serve.path("state")).unwrap();
    fs::write(
        serve.path("state/n1.json"),
        r#"{"nodeName": "n1", "labels": {"persist.demo/a": "b"}, "capturedAt": "2026-01-14T17:00:00Z"}"#,
    )
    .unwrap();
    eventually_blocking("the state is read", || serve.metric("nodegate_saved_states 1"));
    fs::write(serve.path("state/n1.json"), "{").unwrap();
    eventually_blocking("the bad file is counted", || {
        serve.metric(r#"nodegate_state_reloads_total{result="failure"} 1"#)
    });
    serve.metric("nodegate_saved_states 1").expect("the last good state stays");
}

/// How many directories the process has inotify watch.
fn watched_directories(process: u32) -> usize {
    let descriptions = fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap();
    // One that has been closed since is not there to be read.
    let read = descriptions.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok());
    read.map(|text| text.lines().filter(|line| line.starts_with("inotify ")).count()).sum()
}

#[test]
fn directories_beside_a_policy_file_are_not_watched() {
    let serve = Serve::start(&["--policy", "DIR/policy.yaml", "--client-ca-file", "DIR/ca.crt"], &[], |directory| {
        fs::write(directory.join("policy.yaml"), policy("a", "one")).unwrap();
        fs::write(directory.join("ca.crt"), Authority::new("callers").pem).unwrap();
        for number in 0..50 {
            fs::create_dir_all(directory.join(format!("others/{number}/deep"))).unwrap();
        }
        fs::create_dir(directory.join("state")).unwrap();
    });
    let watched = watched_directories(serve.process());
    assert!((1..=4).contains(&watched), "{watched} instead of the directory for either file, certs and state");
    fs::write(serve.path("policy.yaml"), policy("a", "not a key")).unwrap();
    eventually_blocking("the file is watched", || serve.metric(r#"nodegate_policy_reloads_total{result="failure"} 1"#));
}
