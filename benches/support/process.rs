//! The servers under measurement, as processes.

use std::net::TcpListener as StdListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A policy of `count` rules, of which five match a node `bench-…` in pool `gpu`: four labels and a taint.
pub(crate) fn policy_of(count: usize) -> String {
    let mut text =
        "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: bench}\nspec:\n  rules:\n".to_owned();
    for (name, condition, given) in [
        ("m0", "names: [bench-node]", "labels: {hardware.tier: gold}"),
        ("m1", "names: [\"bench-*\"]", "labels: {team: platform}"),
        ("m2", "selector: {matchLabels: {pool: gpu}}", "labels: {accelerator: nvidia-gpu}"),
        ("m3", "selector: {matchExpressions: [{key: pool, operator: Exists}]}", "labels: {pooled: \"true\"}"),
        ("m4", "names: [bench-node]", "taints: [{key: dedicated, value: gpu, effect: NoSchedule}]"),
    ] {
        text.push_str(&format!("    - name: {name}\n      match: {{{condition}}}\n      {given}\n"));
    }
    for at in 5..count {
        text.push_str(&format!(
            "    - {{name: r{at}, match: {{names: [\"rack-{at}-*\"]}}, labels: {{label-{at}: x}}}}\n"
        ));
    }
    text
}

/// An address that is free now.
pub(crate) fn free_address() -> String {
    let listener = StdListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

/// A process that ends with this value.
pub(crate) struct Server(pub(crate) Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The real server on `address`.
#[allow(dead_code, reason = "not every bench starts it so")]
pub(crate) fn nodegate(certs: &Path, policy: &Path, address: &str) -> Child {
    nodegate_command(certs, policy, address).stderr(Stdio::null()).spawn().expect("started")
}

/// The command that starts it.
pub(crate) fn nodegate_command(certs: &Path, policy: &Path, address: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    command.arg("serve").arg("--policy").arg(policy).arg("--cert-dir").arg(certs).arg("--listen").arg(address);
    command.arg("--probe-listen").arg("127.0.0.1:0").arg("--state-dir").arg(certs.join("none"));
    command.stdout(Stdio::null());
    command
}

/// Waits until something accepts on `address`.
pub(crate) fn wait_for(address: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::net::TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "{address} does not listen");
        std::thread::sleep(Duration::from_millis(1));
    }
}
