//! Policy engines that run outside of a cluster and get their policies from its API server: Gatekeeper and Kyverno.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use super::control_plane::{ControlPlane, free_port};
use super::peer::{Gives, Peer, built};

/// The API server must serve new definitions within this time.
const SERVED: Duration = Duration::from_secs(60);

/// A policy engine.
struct Engine {
    /// Its program in `benches/peers`.
    program: &'static str,
    /// Its namespace, its policies and what else it needs to start, as YAML.
    objects: fn(&Path) -> String,
    /// What its leader would write into the status of these objects.
    status: Option<&'static str>,
    /// What the port goes to, after `--`.
    port: &'static str,
    arguments: fn(&Path) -> Vec<String>,
    environment: &'static [(&'static str, &'static str)],
    /// Key, name and path of each way to do the work.
    ways: &'static [(&'static str, &'static str, &'static str)],
}

const ENGINES: [Engine; 2] = [
    Engine {
        program: "gatekeeper",
        objects: |_| include_str!("../peers/gatekeeper/policy.yaml").to_owned(),
        status: None,
        port: "port",
        arguments: |certs| {
            vec![
                "--operation=mutation-webhook".to_owned(),
                "--debug-use-fake-pod".to_owned(),
                "--disable-cert-rotation".to_owned(),
                format!("--cert-dir={}", certs.display()),
                "--host=127.0.0.1".to_owned(),
                "--health-addr=0".to_owned(),
                format!("--prometheus-port={}", free_port()),
            ]
        },
        environment: &[],
        ways: &[("gatekeeper", "Gatekeeper, 5 mutators", "/v1/mutate")],
    },
    Engine {
        program: "kyverno",
        objects: kyverno_objects,
        status: Some(include_str!("../peers/kyverno/status.yaml")),
        port: "webhookServerPort",
        // As its chart has them, but without reports.
        arguments: |_| {
            vec![
                "--webhookServerHost=127.0.0.1".to_owned(),
                "--serverIP=127.0.0.1".to_owned(),
                "--caSecretName=kyverno-ca".to_owned(),
                "--tlsSecretName=kyverno-tls".to_owned(),
                "--disableCertManagerController=true".to_owned(),
                "--admissionReports=false".to_owned(),
                "--enableReporting=".to_owned(),
                "--omitEvents=PolicyApplied,PolicySkipped".to_owned(),
                "--generateValidatingAdmissionPolicy=true".to_owned(),
                "--controllerRuntimeMetricsAddress=0".to_owned(),
                "--metricsHost=127.0.0.1".to_owned(),
                format!("--metricsPort={}", free_port()),
                "--v=2".to_owned(),
            ]
        },
        environment: &[
            ("INIT_CONFIG", "kyverno"),
            ("METRICS_CONFIG", "kyverno-metrics"),
            ("KYVERNO_NAMESPACE", "kyverno"),
            ("KYVERNO_POD_NAME", "kyverno"),
            ("KYVERNO_SERVICEACCOUNT_NAME", "kyverno-admission-controller"),
            ("KYVERNO_DEPLOYMENT", "kyverno-admission-controller"),
        ],
        ways: &[
            ("kyverno-mutating-policy", "Kyverno, MutatingPolicy", "/mpol/bench"),
            ("kyverno-cluster-policy", "Kyverno, ClusterPolicy of 5 rules", "/mutate"),
        ],
    },
];

/// The engines that were built, installed in the control plane, and a line about each of the others.
pub(crate) fn engines(certs: &Path, plane: Option<&ControlPlane>) -> (Vec<Peer>, Vec<String>) {
    let (mut peers, mut absent) = (Vec::new(), Vec::new());
    for engine in ENGINES {
        match (built(engine.program), plane) {
            (Ok(program), Some(plane)) => {
                engine.install(plane, &program, certs);
                peers.extend(engine.ways.iter().map(|way| engine.peer(way, plane, &program, certs)));
            }
            (Ok(_), None) => absent.push(format!("{} is left out, because it needs a control plane", engine.program)),
            (Err(line), _) => absent.push(line),
        }
    }
    (peers, absent)
}

impl Engine {
    fn install(&self, plane: &ControlPlane, program: &Path, certs: &Path) {
        let definitions = program.with_extension("yaml");
        let definitions = definitions.to_str().expect("a path in UTF-8");
        plane.kubectl(&["apply", "--server-side", "-f", definitions], None).expect("definitions");
        let (objects, deadline) = ((self.objects)(certs), Instant::now() + SERVED);
        while let Err(error) = plane.kubectl(&["apply", "-f", "-"], Some(&objects)) {
            assert!(Instant::now() < deadline, "{}: {error}", self.program);
            std::thread::sleep(Duration::from_millis(500));
        }
        if self.status.is_some() {
            let apply = ["apply", "--server-side", "--subresource=status", "-f", "-"];
            plane.kubectl(&apply, self.status).expect("a status");
        }
    }

    fn peer(
        &self,
        &(key, name, path): &(&'static str, &'static str, &'static str),
        plane: &ControlPlane,
        program: &Path,
        certs: &Path,
    ) -> Peer {
        let (program, certs): (PathBuf, PathBuf) = (program.to_owned(), certs.to_owned());
        let kubeconfig = plane.kubeconfig_file("engines", None);
        let (port, arguments, environment) = (self.port, self.arguments, self.environment);
        let command = move |address: &str| {
            let (_, number) = address.rsplit_once(':').expect("HOST:PORT");
            let mut command = Command::new(&program);
            command.arg(format!("--{port}={number}")).arg(format!("--kubeconfig={}", kubeconfig.display()));
            command.args(arguments(&certs)).envs(environment.iter().copied());
            command
        };
        Peer { key, name, path, gives: Gives::Everything, command: Box::new(command) }
    }
}

fn kyverno_objects(certs: &Path) -> String {
    let encoded = |file: &str| BASE64_STANDARD.encode(std::fs::read(certs.join(file)).expect("a certificate"));
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "kyverno-tls", "namespace": "kyverno"},
        "data": {"tls.crt": encoded("tls.crt"), "tls.key": encoded("tls.key")},
    });
    format!("{}---\n{secret}\n", include_str!("../peers/kyverno/policy.yaml"))
}
