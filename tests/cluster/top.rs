//! `nodegate top` in a terminal of its own, at a real API server.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, tcgetattr};
use rustix::io::{FdFlags, fcntl_setfd};
use serde_json::{Value, json};

use super::commands::run;
use super::control_plane::{ControlPlane, exclusive};
use super::keeping::{config_maps, is_pending, leading, node, setup, until_led, until_published};
use super::nodegate::Setup;
use super::requester::{Requester, label};
use crate::eventually::{eventually, eventually_blocking, holds};

/// Rows and columns: a line has room for all that a node gets in its CREATE.
const SIZE: [u16; 2] = [24, 100];

/// The program in a terminal of its own.
struct Top {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
    /// The program's side of the terminal.
    terminal: OwnedFd,
}

impl Top {
    fn start(kubeconfig: &Path, namespace: &str) -> Self {
        let size = Winsize { ws_row: SIZE[0], ws_col: SIZE[1], ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).unwrap();
        // If the program held the terminal open itself, it would live on where this process is ended.
        for end in [&pair.master, &pair.slave] {
            fcntl_setfd(end, FdFlags::CLOEXEC).unwrap();
        }
        let side = || pair.slave.try_clone().unwrap();
        // Without a session of its own, it would use the terminal of whoever runs the tests.
        let child = Command::new("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_nodegate"), "top", "--namespace", namespace, "--kubeconfig"])
            .arg(kubeconfig)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .unwrap();
        let [rows, columns] = SIZE.map(|length| NonZero::new(length).unwrap());
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let keyboard = File::from(pair.master);
        let (mut output, drawn) = (keyboard.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                drawn.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self { child, keyboard, screen, terminal: pair.slave }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until a line of the screen has each of these words.
    async fn shows(&self, words: &[&str]) {
        eventually(&format!("a line with {words:?}"), async || {
            let text = self.text();
            holds(text.lines().any(|line| words.iter().all(|word| line.contains(word))), || text.clone())
        })
        .await;
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Whether the terminal takes lines and echoes them, as it does for a shell, and shows what it showed before.
    fn is_restored(&self) -> Result<(), String> {
        let flags = tcgetattr(&self.terminal).unwrap().local_flags;
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        let is_cooked = flags.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG);
        holds(is_cooked && !screen.alternate_screen() && !screen.hide_cursor(), || {
            format!("{flags:?}, {}, {}", screen.alternate_screen(), screen.hide_cursor())
        })
    }

    /// Waits for the end of the program.
    fn ended(&mut self) -> ExitStatus {
        eventually_blocking("it ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn joins_corrections_and_rejected_claims_are_shown_as_they_happen() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let nodegate = leading(plane, &setup()).await;
    let mut top = Top::start(&plane.kubeconfig_file("top", None), &nodegate.namespace);
    top.shows(&["leader "]).await;
    top.shows(&["policies in force:", "keeping"]).await;
    assert!(top.is_restored().is_err(), "it has the whole screen");

    let kubelet = Requester::kubelet(plane, "kept-top").await;
    kubelet.create(&node("kept-top", json!({"hardware.tier": "forged"}))).await.unwrap();
    admin.eventually("kept-top", "not pending", |node| !is_pending(node)).await;
    top.shows(&["nodes ", " 0 waiting"]).await;
    top.shows(&["kept-top", "joined"]).await;
    top.shows(&["kept-top", "complete", "s after it joined"]).await;
    top.shows(&["kept-top", "rejected", "kubelet claimed hardware.tier=\"forged\""]).await;
    top.shows(&["kept-top", "admitted", "hardware.tier=standard", "fleet=kept:NoSchedule"]).await;
    top.shows(&["kept-top", "set", "node-role.kubernetes.io/worker"]).await;
    // It reaches the node behind the webhook's back.
    let forged = json!({"metadata": {"labels": {"hardware.tier": "evil"}}});
    admin.merge_status("kept-top", forged).await.unwrap();
    top.shows(&["kept-top", "corrected", "hardware.tier \"evil\" → \"standard\""]).await;
    top.shows(&["DRIFT from the policies: 0"]).await;

    top.press("/no-such-node\r");
    top.shows(&["filter: no-such-node", "q quit"]).await;
    assert!(!top.text().contains("kept-top"), "{}", top.text());
    top.press("/");
    top.press(&"\u{7f}".repeat(20));
    top.press("\r");
    top.shows(&["kept-top", "joined"]).await;
    admin.delete("kept-top").await;
    top.shows(&["kept-top", "deleted"]).await;
    top.press("q");
    assert_eq!(top.ended().code(), Some(0));
    eventually_blocking("the terminal is restored", || top.is_restored());
}

#[tokio::test]
async fn nodes_that_drift_are_those_of_report_and_one_at_a_gate_is_told_why_it_waits() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let policies = &["tests/cluster/keeping.yaml", "tests/cluster/top.yaml"];
    let mut nodegate = leading(plane, &Setup { policies, ..setup() }).await;
    until_published(&config_maps(plane, &nodegate.namespace).await).await;
    let names = ["kept-drift", "kept-fine", "kept-wait-1"];
    for name in names {
        Requester::kubelet(plane, name).await.create(&node(name, json!({}))).await.unwrap();
        admin.eventually(name, "given all", |node| label(node, "node-role.kubernetes.io/worker").is_some()).await;
    }
    for name in &names[..2] {
        admin.eventually(name, "not pending", |node| !is_pending(node)).await;
    }
    // From now on, nobody repairs anything.
    nodegate.terminate();
    let forged = json!({"metadata": {"labels": {"hardware.tier": "forged"}}});
    for name in ["kept-drift", "kept-wait-1"] {
        admin.merge_status(name, forged.clone()).await.unwrap();
    }
    let report = run(plane, None, &["report", "--namespace", &nodegate.namespace, "-o", "json"]).with(0);
    let report: Value = serde_json::from_str(&report).unwrap();
    let drifting: Vec<&Value> = report["drift"].as_array().unwrap().iter().map(|drift| &drift["node"]).collect();
    assert_eq!(drifting, ["kept-drift", "kept-wait-1"], "{report:#}");

    let top = Top::start(&plane.kubeconfig_file("top", None), &nodegate.namespace);
    top.shows(&["nodes 3: ", "1 waiting", "2 drifting"]).await;
    top.shows(&["DRIFT from the policies: 2"]).await;
    for name in ["kept-drift", "kept-wait-1"] {
        top.shows(&[name, "~ label hardware.tier=standard, was forged (rule keeping/role)"]).await;
    }
    top.shows(&["kept-wait-1", "waits for labels: fabric.example.com/rack at racks/gate:rack"]).await;
    // It released the Lease.
    top.shows(&["no leader: nobody holds the Lease"]).await;
}

#[tokio::test]
async fn signals_and_control_c_end_it_and_restore_the_terminal() {
    let cluster = exclusive();
    let plane = cluster.plane;
    for signal in ["-TERM", "-HUP", "-INT"] {
        let mut top = Top::start(&plane.kubeconfig_file("top", None), "default");
        top.shows(&["q quit"]).await;
        top.signal(signal);
        assert_eq!(top.ended().code(), Some(0), "{signal}");
        eventually_blocking("the terminal is restored", || top.is_restored());
    }
    let mut top = Top::start(&plane.kubeconfig_file("top", None), "default");
    top.shows(&["no leader"]).await;
    top.press("\u{3}");
    assert_eq!(top.ended().code(), Some(0), "Ctrl-C");
    eventually_blocking("the terminal is restored", || top.is_restored());
    // An error before the view takes the screen is an error as of any command.
    let mut top = Top::start(Path::new("/absent"), "default");
    assert_eq!(top.ended().code(), Some(2));
    top.shows(&["error: --kubeconfig /absent: No such file or directory"]).await;
    assert_eq!(top.is_restored(), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_is_away_is_told_and_the_view_goes_on_by_itself() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let top = Top::start(&plane.kubeconfig_file("top", None), "default");
    top.shows(&["nodes 0: 0 ready"]).await;
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| plane.restart_api_server(Duration::from_secs(8)));
            eventually_blocking("it is told", || holds(top.text().contains("cannot read nodes"), || top.text()));
        });
    });
    admin.create(&node("top-after", json!({}))).await.unwrap();
    top.shows(&["top-after", "joined", "waits for nothing"]).await;
    eventually("the failure is forgotten", async || holds(!top.text().contains("cannot read nodes"), || top.text()))
        .await;
    admin.delete("top-after").await;
}

/// Gives a user the rights of the role `nodegate-reader` that matter here.
fn permit(plane: &ControlPlane, user: &str) {
    let role = |rules| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules});
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        role(json!([
            {"apiGroups": [""], "resources": ["nodes", "configmaps"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        ])),
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": user},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
         "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]}]});
    plane.kubectl(&["apply", "-f", "-"], Some(&objects.to_string())).unwrap();
}

#[tokio::test]
async fn who_may_only_list_sees_joins_later_and_is_told_what_is_missing() {
    let cluster = exclusive();
    let (plane, admin) = (cluster.plane, Requester::admin(cluster.plane).await);
    let nodegate = leading(plane, &setup()).await;
    until_led(&nodegate).await;
    permit(plane, "looker");
    let kubeconfig = plane.kubeconfig_file("top-looker", Some(("looker", &["system:authenticated"])));
    let top = Top::start(&kubeconfig, &nodegate.namespace);
    top.shows(&["no right to read events, the Lease"]).await;
    top.shows(&["no right to watch nodes, records"]).await;
    top.shows(&["leader: unknown"]).await;
    Requester::kubelet(plane, "kept-look").await.create(&node("kept-look", json!({}))).await.unwrap();
    top.shows(&["kept-look", "joined"]).await;
    top.shows(&["kept-look", "admitted", "hardware.tier=standard"]).await;
    admin.delete("kept-look").await;
    // Who may not even list nodes gets an error.
    let nobody = plane.kubeconfig_file("top-nobody", Some(("nobody", &["system:authenticated"])));
    let mut top = Top::start(&nobody, &nodegate.namespace);
    assert_eq!(top.ended().code(), Some(2));
    top.shows(&["error: could not list nodes"]).await;
}

#[test]
fn output_into_a_pipe_is_an_error_also_if_keys_come_from_a_terminal() {
    let pair = openpty(None, None).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    let output =
        command.args(["top", "--kubeconfig", "absent", "--namespace", "x"]).stdin(pair.slave).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{errors}");
    assert!(errors.contains("standard output is not one") && errors.contains("`nodegate report`"), "{errors}");
}
