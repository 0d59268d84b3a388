//! What `probe` found before the driver, compared with what GPU feature discovery reports after it.

use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{node, until_led};
use super::nodegate::{Nodegate, Setup};
use super::requester::Requester;

const DAEMON_SET: &str = "examples/probe/daemonset.yaml";

/// The labels that Node Feature Discovery makes of the feature file that `probe` writes on a machine with so many GPUs.
fn probed(gpus: usize) -> Value {
    let root = tempfile::tempdir().unwrap();
    for gpu in 0..gpus {
        let at = root.path().join(format!("bus/pci/devices/0000:{gpu:02x}:00.0"));
        std::fs::create_dir_all(&at).unwrap();
        for (file, text) in [("vendor", "0x10de\n"), ("device", "0x2330\n"), ("class", "0x030200\n")] {
            std::fs::write(at.join(file), text).unwrap();
        }
    }
    let file = root.path().join("nodegate");
    let ran = Command::new(env!("CARGO_BIN_EXE_nodegate"))
        .args(["probe", "--sysfs"])
        .arg(root.path())
        .arg("--feature-file")
        .arg(&file)
        .status();
    assert!(ran.unwrap().success());
    let features = std::fs::read_to_string(&file).unwrap();
    let label = |line: &str| line.split_once('=').map(|(key, value)| (key.to_owned(), json!(value)));
    features.lines().filter(|line| !line.starts_with('#')).filter_map(label).collect::<Map<_, _>>().into()
}

fn events(plane: &ControlPlane, name: &str) -> Vec<String> {
    let selector = format!("--field-selector=involvedObject.name={name},reason=HardwareDiffers");
    let text = plane.kubectl(&["get", "events", "-n", "default", &selector, "-o", "json"], None).unwrap();
    let events: Value = serde_json::from_str(&text).unwrap();
    let note = |event: &Value| event["message"].as_str().unwrap_or_default().to_owned();
    events["items"].as_array().unwrap().iter().map(note).collect()
}

/// How many nodes differ in the number of GPUs.
fn differing(nodegate: &Nodegate<'_>) -> Option<String> {
    let metrics = nodegate.probe("/metrics")?;
    let line = metrics.lines().find(|line| line.starts_with("nodegate_hardware_differs_nodes{fact=\"count\"}"))?;
    line.split(' ').nth(1).map(str::to_owned)
}

#[tokio::test]
async fn a_gpu_that_its_driver_does_not_see_is_told_by_an_event_and_a_metric() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let policies: &[&str] = &["tests/cluster/keeping.yaml"];
    let nodegate = Nodegate::start(plane, &Setup { policies, cluster: true, ..Setup::default() });
    until_led(&nodegate).await;
    let name = "hardware-1";
    admin.delete(name).await;
    admin.create(&node(name, json!({}))).await.unwrap();
    admin.merge(name, json!({"metadata": {"labels": probed(8)}})).await.unwrap();
    let reported = |count: &str| {
        let labels = json!({
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": count, "nvidia.com/gpu.memory": "81559",
        });
        json!({"metadata": {"labels": labels}})
    };
    admin.merge(name, reported("8")).await.unwrap();
    nodegate.eventually("the metric exists", || differing(&nodegate).as_deref() == Some("0")).await;
    assert_eq!(events(plane, name), Vec::<String>::new());

    admin.merge(name, reported("7")).await.unwrap();
    nodegate.eventually("the metric tells", || differing(&nodegate).as_deref() == Some("1")).await;
    nodegate.eventually("an event tells", || !events(plane, name).is_empty()).await;
    let note = "GPU count: probe found 8, GPU feature discovery reports 7; check the hardware, the driver and the age of the labels";
    assert_eq!(events(plane, name), [note]);

    admin.merge(name, reported("8")).await.unwrap();
    nodegate.eventually("the GPU is back", || differing(&nodegate).as_deref() == Some("0")).await;
    assert_eq!(events(plane, name).len(), 1);
    admin.delete(name).await;
}

#[tokio::test]
async fn the_api_server_takes_the_example_daemon_set_and_it_needs_no_privilege() {
    let cluster = exclusive();
    let plane = cluster.plane;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "node-feature-discovery"}});
    plane.kubectl(&["apply", "-f", "-"], Some(&namespace.to_string())).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(DAEMON_SET);
    let text = plane.kubectl(&["apply", "--dry-run=server", "-o", "json", "-f", file.to_str().unwrap()], None).unwrap();
    let taken: Value = serde_json::from_str(&text).unwrap();
    let pod = &taken["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let context = &container["securityContext"];
    assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
    assert!(context["privileged"].is_null() && context["allowPrivilegeEscalation"] == false);
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert!(pod["hostNetwork"].is_null() && pod["hostPID"].is_null());
    let writable = |mount: &&Value| mount["readOnly"] != true;
    let mounts: Vec<_> = container["volumeMounts"].as_array().unwrap().iter().filter(writable).collect();
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    let arguments: Vec<&str> = container["args"].as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect();
    let help = Command::new(env!("CARGO_BIN_EXE_nodegate")).args(["probe", "--help"]).output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for flag in arguments.iter().filter_map(|argument| argument.split_once('=')) {
        assert!(help.contains(flag.0), "{}", flag.0);
    }
}
