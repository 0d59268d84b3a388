//! What stands in for the pods of an installed chart: nothing here starts containers.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::control_plane::ControlPlane;
use crate::eventually::eventually_blocking;
use crate::keeping::until_led;
use crate::nodegate::{Nodegate, Setup};

/// Flags of the chart that a pod on this machine gets from the test instead.
const OWN: [&str; 5] = ["--listen", "--probe-listen", "--namespace", "--resync-interval-seconds", "--drain-delay"];

/// A release of the chart that a tutorial installs. Nothing of it stays for the next test, even if this one fails.
pub(crate) struct Release<'a> {
    plane: &'a ControlPlane,
    namespace: &'static str,
}

impl<'a> Release<'a> {
    pub(crate) fn in_namespace(plane: &'a ControlPlane, namespace: &'static str) -> Self {
        Self { plane, namespace }
    }

    pub(crate) fn object(&self, kind: &str, name: &str) -> Value {
        let namespace = ["-n", self.namespace];
        let text = self.plane.kubectl(&[&["get", kind, name, "-o", "json"], &namespace as &[&str]].concat(), None);
        serde_json::from_str(&text.unwrap()).unwrap()
    }

    /// Starts one of its pods with the rights of its account, and lets the API server call it. Returns once it leads.
    pub(crate) async fn pod(&self) -> Pod<'a> {
        self.pod_of(None).await
    }

    /// The same with the program of another version.
    pub(crate) async fn pod_of(&self, program: Option<&str>) -> Pod<'a> {
        let root = tempfile::tempdir().unwrap();
        let deployment = self.object("deployment", "nodegate");
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        for mount in list(&container["volumeMounts"]) {
            let volume = list(&pod["volumes"]).iter().find(|volume| volume["name"] == mount["name"]).unwrap();
            let files = &volume["configMap"];
            let data = self.object("configmap", files["name"].as_str().unwrap())["data"].clone();
            let at = root.path().join(mount["mountPath"].as_str().unwrap().trim_start_matches('/'));
            for (key, text) in data.as_object().unwrap() {
                let item = list(&files["items"]).iter().find(|item| item["key"] == *key);
                let file = at.join(item.map_or(key.as_str(), |item| item["path"].as_str().unwrap()));
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text.as_str().unwrap()).unwrap();
            }
        }
        let arguments: Vec<String> =
            list(&container["args"])[1..].iter().filter_map(|text| here(text.as_str().unwrap(), root.path())).collect();
        let environment = list(&container["env"]).iter().filter_map(|variable| {
            let (name, value) = (variable["name"].as_str()?, variable["value"].as_str()?);
            Some((name, value))
        });
        let setup = Setup {
            serve: &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
            environment: &environment.collect::<Vec<_>>(),
            namespace: Some(self.namespace),
            own_rights: true,
            own_certificates: true,
            program,
            ..Setup::default()
        };
        let nodegate = Nodegate::start_unregistered(self.plane, &setup);
        self.call(nodegate.ports().0);
        until_led(&nodegate).await;
        nodegate.wait_until_called();
        Pod { nodegate, _root: root }
    }

    /// Leads the API server's calls to a port of this machine instead of to the Service.
    fn call(&self, port: u16) {
        self.lead(|client| {
            let service = client.remove("service").unwrap();
            let path = service["path"].as_str().unwrap();
            client.insert("url".to_owned(), json!(format!("https://127.0.0.1:{port}{path}")));
        });
    }

    /// Leads the API server's calls to the Service again, so that Helm finds what it has installed.
    pub(crate) fn call_the_service(&self) {
        self.lead(|client| {
            let url = client.remove("url").unwrap();
            let path = url.as_str().unwrap().rsplit_once('/').unwrap().1.to_owned();
            let service =
                json!({"name": "nodegate", "namespace": self.namespace, "port": 443, "path": format!("/{path}")});
            client.insert("service".to_owned(), service);
        });
    }

    fn lead(&self, to: impl Fn(&mut serde_json::Map<String, Value>)) {
        for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
            eventually_blocking(&format!("{kind} is replaced"), || {
                let mut configuration = self.object(kind, "nodegate");
                for entry in configuration["webhooks"].as_array_mut().unwrap() {
                    to(entry["clientConfig"].as_object_mut().unwrap());
                }
                // The leader may write it at the same time.
                self.plane.kubectl(&["replace", "-f", "-"], Some(&configuration.to_string()))
            });
        }
    }
}

/// A pod of a release; gone when this is dropped.
pub(crate) struct Pod<'a> {
    pub(crate) nodegate: Nodegate<'a>,
    _root: TempDir,
}

/// A container's argument for a process on this machine, if it gets it from the chart.
fn here(argument: &str, root: &Path) -> Option<String> {
    let (flag, value) = argument.split_once('=').unwrap_or((argument, ""));
    if OWN.contains(&flag) {
        return None;
    }
    Some(if value.starts_with('/') { format!("{flag}={}{value}", root.display()) } else { argument.to_owned() })
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
