//! The Helm chart, rendered by the real `helm`, which `just tools helm` builds. Without it these tests say so and pass;
//! in CI they fail.

mod api_server;
mod arming;
mod definitions;
mod deploy;
mod gitops;
mod hooks;
mod krew;
mod lifecycle;
mod metadata;
mod monitoring;
mod placement;
mod pod;
mod refusals;
mod rights;
mod snapshots;
mod uninstall;
mod upgrade;
mod values;

use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

pub(crate) use self::values::value_sets;
use crate::control_plane::{ControlPlane, run};
use crate::required::{Run, required};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/nodegate");
const RELEASE: &str = "nodegate";
const NAMESPACE: &str = "nodegate";
const ACCOUNT: &str = "nodegate/nodegate";

/// `helm`, if there is one.
fn helm() -> Option<&'static Path> {
    static HELM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = HELM.get_or_init(|| {
        let built =
            run(Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/build")).arg("--print-dir"), None);
        let directories = env::var_os("NODEGATE_TOOLS")
            .map(PathBuf::from)
            .into_iter()
            .chain(built.ok().map(|line| PathBuf::from(line.trim())))
            .chain(env::var_os("PATH").iter().flat_map(env::split_paths).collect::<Vec<_>>());
        directories.map(|directory| directory.join("helm")).find(|helm| helm.is_file())
    });
    required(found.as_deref(), Run::Gate, "there is no helm; build it: just tools helm")
}

fn run_helm(helm: &Path, arguments: &[&str], values: &Value) -> Result<String, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), values.to_string()).unwrap();
    run(Command::new(helm).args(arguments).arg("--values").arg(file.path()), None)
}

/// The chart's manifests for these values, as `kubectl apply -f -` takes them; nothing when there is no `helm`. They are rendered
/// once in a run of the tests.
pub(crate) fn manifests(values: &Value) -> Option<String> {
    static RENDERED: LazyLock<Mutex<HashMap<String, Arc<OnceLock<String>>>>> = LazyLock::new(Mutex::default);
    let helm = helm()?;
    let rendered = RENDERED.lock().unwrap().entry(values.to_string()).or_default().clone();
    let render = || {
        let rendered = run_helm(helm, &["template", RELEASE, CHART, "--namespace", NAMESPACE], values);
        rendered.unwrap_or_else(|error| panic!("{values}: {error}"))
    };
    Some(rendered.get_or_init(render).clone())
}

/// The objects of one rendering, without hooks.
struct Objects(Vec<Value>);

fn is_hook(object: &Value) -> bool {
    object["metadata"]["annotations"]["helm.sh/hook"].is_string()
}

impl Objects {
    fn render(values: &Value) -> Option<Self> {
        Some(Self::of(&manifests(values)?))
    }

    /// As Argo CD and Flux render them, who tell helm the version of their cluster.
    fn render_for(plane: &ControlPlane, values: &Value) -> Option<Self> {
        let version = plane.version();
        let of_its = ["--kube-version", version["gitVersion"].as_str().unwrap()];
        let arguments = [&["template", RELEASE, CHART, "--namespace", NAMESPACE], &of_its[..]].concat();
        Some(Self::of(&run_helm(helm()?, &arguments, values).unwrap()))
    }

    fn of(manifests: &str) -> Self {
        let objects = serde_saphyr::from_multiple::<Value>(manifests).unwrap();
        Self(objects.into_iter().filter(|object| !object.is_null() && !is_hook(object)).collect())
    }

    fn kind(&self, kind: &str) -> Vec<&Value> {
        self.0.iter().filter(|object| object["kind"] == kind).collect()
    }

    fn only(&self, kind: &str) -> &Value {
        let found = self.kind(kind);
        assert_eq!(found.len(), 1, "{kind}: {found:?}");
        found[0]
    }

    fn named(&self, kind: &str, name: &Value) -> Option<&Value> {
        self.kind(kind).into_iter().find(|object| object["metadata"]["name"] == *name)
    }

    fn pod(&self) -> &Value {
        &self.only("Deployment")["spec"]["template"]
    }

    fn container(&self) -> &Value {
        &self.pod()["spec"]["containers"][0]
    }

    /// The webhook entries of one kind of configuration.
    fn webhooks(&self, kind: &str) -> &Vec<Value> {
        self.only(kind)["webhooks"].as_array().unwrap()
    }

    /// Writes the pod's volumes below `root`, as far as the chart itself has what is in them.
    fn mount(&self, root: &Path) {
        for mount in items(&self.container()["volumeMounts"]) {
            let volumes = items(&self.pod()["spec"]["volumes"]);
            let volume =
                volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("a volume for each mount");
            let (source, files) = if volume["secret"].is_object() {
                (&volume["secret"], self.named("Secret", &volume["secret"]["secretName"]))
            } else {
                (&volume["configMap"], self.named("ConfigMap", &volume["configMap"]["name"]))
            };
            let Some(files) = files else { continue };
            for (key, value) in files["data"].as_object().unwrap() {
                let mut path = key.as_str();
                if let Some(items) = source["items"].as_array() {
                    let Some(item) = items.iter().find(|item| item["key"] == *key) else { continue };
                    path = item["path"].as_str().unwrap();
                }
                let path = root.join(mount["mountPath"].as_str().unwrap().trim_start_matches('/')).join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                let text = value.as_str().unwrap();
                let decoded =
                    if volume["secret"].is_object() { BASE64.decode(text).unwrap() } else { text.as_bytes().to_vec() };
                fs::write(path, decoded).unwrap();
            }
        }
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// Whether a label selector's `matchLabels` (or a Service's selector) selects these labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    let selector = selector.as_object().unwrap();
    !selector.is_empty() && selector.iter().all(|(key, value)| labels[key] == *value)
}

/// The binary, with nothing of the environment that configures it.
fn nodegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodegate"));
    let ours =
        |name: &str| name.starts_with("NODEGATE_") || ["PERSIST_LABEL_PREFIX", "LOG_LEVEL", "RUST_LOG"].contains(&name);
    command.env_clear().envs(env::vars().filter(|(name, _)| !ours(name)));
    command
}

#[test]
fn helm_lint_accepts_all_values() {
    let Some(helm) = helm() else { return };
    for (name, values) in value_sets() {
        run_helm(helm, &["lint", "--strict", CHART], &values).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn webhooks_are_those_that_render_prints() {
    for (name, flags) in [
        ("policies", vec![]),
        (
            "fail",
            vec![
                "--failure-policy=Fail",
                "--break-glass-group=it's \"quoted\" <&>",
                "--break-glass-group=nodegate:*",
                "--break-glass-group=system:team:*",
                "--break-glass-group=night-shift",
            ],
        ),
    ] {
        let Some(objects) = Objects::render(&value_sets()[name]) else { return };
        let directory = tempfile::tempdir().unwrap();
        objects.mount(directory.path());
        let ca = directory.path().join("ca.crt");
        let bundle = &objects.webhooks("MutatingWebhookConfiguration")[0]["clientConfig"]["caBundle"];
        // Where nodegate keeps its certificate itself, it writes the bundle.
        if let Some(bundle) = bundle.as_str() {
            fs::write(&ca, BASE64.decode(bundle).unwrap()).unwrap();
        }

        let mut render = nodegate();
        render.args(["render", "webhooks", "--service", ACCOUNT, "--service-account", ACCOUNT]).args(flags);
        render.arg("--policy").arg(directory.path().join("etc/nodegate/policies"));
        if ca.exists() {
            render.arg("--ca-file").arg(&ca);
        }
        let rendered = serde_saphyr::from_multiple::<Value>(&run(&mut render, None).unwrap()).unwrap();
        for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
            let expected = rendered.iter().find(|object| object["kind"] == kind).unwrap();
            assert_eq!(json!(arming::become_of(objects.only(kind))), expected["webhooks"], "{name}");
        }
    }
}

/// A policy, or its binding, without what only Helm adds.
fn without_labels(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"].as_object_mut().unwrap().remove("labels");
    object
}

fn is_admission_policy(object: &Value) -> bool {
    object["kind"].as_str().is_some_and(|kind| kind.contains("AdmissionPolicy"))
}

#[test]
fn the_guard_and_the_fence_are_those_that_render_prints() {
    let Some(helm) = helm() else { return };
    for (version, mutating) in [("v1.36.3", "v1"), ("v1.33.1", "none")] {
        let arguments = ["template", RELEASE, CHART, "--namespace", NAMESPACE, "--kube-version", version];
        let text = run_helm(helm, &arguments, &json!({})).unwrap();
        let objects = serde_saphyr::from_multiple::<Value>(&text).unwrap();
        let mut shipped: Vec<Value> =
            objects.iter().filter(|object| is_admission_policy(object)).map(without_labels).collect();
        let arguments = ["render", "guard", "--mutating", mutating, "--service-account", ACCOUNT];
        let text = run(nodegate().args(arguments), None).unwrap();
        let mut rendered = serde_saphyr::from_multiple::<Value>(&text).unwrap();
        for list in [&mut shipped, &mut rendered] {
            list.sort_by_key(|object| (object["kind"].to_string(), object["metadata"]["name"].to_string()));
        }
        assert_eq!(shipped.len(), if mutating == "v1" { 18 } else { 12 }, "{version}");
        assert_eq!(shipped, rendered, "{version}");
    }
}

#[test]
fn references_between_objects_resolve() {
    for (name, values) in value_sets() {
        let Some(objects) = Objects::render(&values) else { return };
        let deployment = objects.only("Deployment");
        let labels = &objects.pod()["metadata"]["labels"];
        let service = objects.only("Service");
        assert!(selects(&deployment["spec"]["selector"]["matchLabels"], labels), "{name}");
        assert!(selects(&objects.only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels), "{name}");
        assert!(selects(&service["spec"]["selector"], labels), "{name}");

        let container = objects.container();
        let port = |name: &Value| items(&container["ports"]).iter().find(|port| port["name"] == *name);
        assert!(port(&service["spec"]["ports"][0]["targetPort"]).is_some(), "{name}");
        for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
            let get = &container[probe]["httpGet"];
            assert_eq!(get["path"], path, "{name}");
            assert!(port(&get["port"]).is_some(), "{name}: {probe}");
        }
        let arguments = container["args"].as_array().unwrap();
        for (flag, name) in [("--listen=", "https"), ("--probe-listen=", "probes")] {
            let address = arguments.iter().find_map(|argument| argument.as_str()?.strip_prefix(flag)).unwrap();
            let port = port(&json!(name)).unwrap()["containerPort"].to_string();
            assert_eq!(address.rsplit(':').next(), Some(port.as_str()), "{flag}");
        }
        let account = &objects.pod()["spec"]["serviceAccountName"];
        assert!(objects.named("ServiceAccount", account).is_some(), "{name}");

        let ours = |kind: &str, field: &str, key: &str| {
            for volume in items(&objects.pod()["spec"]["volumes"]).iter().filter(|volume| volume[field].is_object()) {
                let source = &volume[field];
                if ["mine", "states"].iter().any(|own| source[key] == *own) {
                    continue;
                }
                let made = objects.named("Certificate", &json!("nodegate")).map(|made| &made["spec"]["secretName"]);
                if made == Some(&source[key]) {
                    continue;
                }
                let object =
                    objects.named(kind, &source[key]).unwrap_or_else(|| panic!("{name}: {kind} {}", source[key]));
                assert!(
                    items(&source["items"])
                        .iter()
                        .all(|item| object["data"][item["key"].as_str().unwrap()].is_string())
                );
            }
        };
        ours("Secret", "secret", "secretName");
        ours("ConfigMap", "configMap", "name");

        for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
            let entries = objects.kind(kind).into_iter().flat_map(|configuration| items(&configuration["webhooks"]));
            for entry in entries {
                let called = &entry["clientConfig"]["service"];
                assert_eq!(called["name"], service["metadata"]["name"], "{name}");
                assert_eq!(called["namespace"], service["metadata"]["namespace"], "{name}");
                assert_eq!(called["port"], service["spec"]["ports"][0]["port"], "{name}");
            }
        }
    }
}

#[test]
fn nothing_is_permitted_to_pods_without_the_controller_and_none_may_do_more_than_serve() {
    for (name, values) in value_sets() {
        let Some(objects) = Objects::render(&values) else { return };
        let controller = values["controller"]["enabled"] != json!(false);
        for kind in ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"] {
            assert_eq!(!objects.kind(kind).is_empty(), controller, "{name}: {kind}");
        }
        let pod = &objects.pod()["spec"];
        assert_eq!(objects.only("ServiceAccount")["automountServiceAccountToken"], false, "{name}");
        assert_eq!(pod["automountServiceAccountToken"], controller, "{name}");
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        let container = &objects.container()["securityContext"];
        assert_eq!(container["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(container["readOnlyRootFilesystem"], true, "{name}");
        assert_eq!(container["capabilities"]["drop"], json!(["ALL"]), "{name}");
    }
}

#[test]
fn cert_manager_makes_the_secret_that_is_mounted_and_is_trusted_by_annotation() {
    let Some(objects) = Objects::render(&value_sets()["cert-manager"]) else { return };
    assert!(objects.kind("Secret").is_empty());
    let certificate = objects.named("Certificate", &json!("nodegate")).unwrap();
    assert_eq!(certificate["spec"]["secretName"], objects.pod()["spec"]["volumes"][0]["secret"]["secretName"]);
    assert_eq!(certificate["spec"]["dnsNames"][0], "nodegate.nodegate.svc");
    assert!(objects.named("Issuer", &certificate["spec"]["issuerRef"]["name"]).is_some());
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        let annotations = &objects.only(kind)["metadata"]["annotations"];
        assert_eq!(annotations["cert-manager.io/inject-ca-from"], "nodegate/nodegate");
    }
    let Some(objects) = Objects::render(&value_sets()["own issuer"]) else { return };
    assert!(objects.kind("Issuer").is_empty());
    assert_eq!(objects.only("Certificate")["spec"]["issuerRef"], json!({"kind": "ClusterIssuer", "name": "ca"}));
}

#[test]
fn the_network_policy_admits_whom_the_values_name_to_the_two_ports_of_the_pods() {
    let sets = value_sets();
    let policy = |name: &str| Some(Objects::render(&sets[name])?.only("NetworkPolicy")["spec"].clone());
    let (Some(default), Some(named), Some(without)) =
        (policy("defaults"), policy("network policy"), policy("network policy without pods"))
    else {
        return;
    };
    let https = json!([{"port": "https", "protocol": "TCP"}]);
    let probes = json!([{"port": "probes", "protocol": "TCP"}]);
    assert_eq!(default["ingress"], json!([{"ports": https}, {"ports": probes}]));
    assert_eq!(default["policyTypes"], json!(["Ingress"]), "what nodegate calls is not restricted");
    let test = json!({"podSelector": {"matchLabels": {"app.kubernetes.io/name": "nodegate-test", "app.kubernetes.io/instance": RELEASE}}});
    let blocks = json!([{"ipBlock": {"cidr": "192.0.2.10/32"}}, {"ipBlock": {"cidr": "2001:db8::/64"}}, test]);
    let monitoring = json!([{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]);
    assert_eq!(named["ingress"], json!([{"ports": https, "from": blocks}, {"ports": probes, "from": monitoring}]));
    let blocks = json!([{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.244.0.0/16"]}},
                        {"ipBlock": {"cidr": "::/0", "except": ["fd00::/48"]}}, test]);
    assert_eq!(without["ingress"], json!([{"ports": https, "from": blocks}, {"ports": probes}]));
    let Some(objects) = Objects::render(&sets["defaults"]) else { return };
    assert!(selects(&default["podSelector"]["matchLabels"], &objects.pod()["metadata"]["labels"]));
    let Some(host) = Objects::render(&sets["everything else"]) else { return };
    assert!(host.kind("NetworkPolicy").is_empty(), "on the host's network it would not apply");
}

#[test]
fn without_webhooks_no_configuration_is_rendered() {
    let Some(objects) = Objects::render(&value_sets()["no webhooks"]) else { return };
    assert!(objects.kind("MutatingWebhookConfiguration").is_empty());
    assert!(objects.kind("ValidatingWebhookConfiguration").is_empty());
    assert_eq!(objects.kind("Deployment").len(), 1);
}

#[test]
fn the_chart_has_the_version_of_the_crate() {
    let chart: Value =
        serde_saphyr::from_str(&fs::read_to_string(Path::new(CHART).join("Chart.yaml")).unwrap()).unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}
