//! `nodegate demo`: what a new user sees first.

use std::process::Command;

fn demo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_nodegate")).arg("demo").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The text with `TIME` in place of durations, and without spaces at ends of lines.
fn without_times(text: &str) -> String {
    let words = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        for at in 1..words.len() {
            if words[at] == "ms." && words[at - 1].parse::<f64>().is_ok() {
                words[at - 1] = "TIME";
            }
        }
        words.join(" ").trim_end().to_owned()
    };
    text.lines().map(words).collect::<Vec<_>>().join("\n")
}

const BRIEF: &str = " WHAT HAPPENS                        WHAT NODEGATE DOES
 yeezyai joins                       8 labels, such as hardware.tier=dual-gpu
                                     defers node-role.kubernetes.io/gpu-worker
 master-0 joins                      taint llm-d-lab=control-plane:NoSchedule
 gpu-worker-0 becomes a worker       adds llm-d-lab-deployer=true in the same write
 pgbee is deleted and joins again    restores team.owner=platform
 admin sets node.kubernetes.io/kind  denies it
 thinkpad01 claims to be dual-gpu    keeps hardware.tier=standard
 again, after it has joined          keeps hardware.tier=standard
 again, through nodes/status         denies it

13 nodes joined over HTTPS, half of them within TIME ms.
`nodegate demo --all` shows each of them, and every message.";

#[test]
fn it_shows_a_line_for_each_thing_that_nodegate_does() {
    let shown = without_times(&demo(&[]));
    assert_eq!(shown, BRIEF, "{shown}");
}

#[test]
fn with_all_it_shows_each_node_and_every_message() {
    let shown = demo(&["--all"]);
    for part in [
        "Fleet fako: every kubelet registers its node",
        "Fleet llm-d-lab: every kubelet registers its node",
        "hardware.tier=dual-gpu",
        "llm-d-lab=control-plane:NoSchedule",
        "llm-d-lab-deployer=true",
        "team.owner=platform",
        "it is reserved by policy preset:baseline",
        "admitted, corrected: hardware.tier=standard",
        "may not be changed by a kubelet",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}
