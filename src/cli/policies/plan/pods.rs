//! Reads the pods and DaemonSets that planned changes may affect, from a cluster or from files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::DaemonSet as DaemonSetObject;
use k8s_openapi::api::core::v1::Pod as PodObject;
use kube::{Client, Resource as _};
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::cli::shared::cluster::objects;
use crate::cli::shared::node_files::{self, Object, Wanted};
use crate::cli::shared::output;
use crate::scheduling::{DaemonSet, Impact, Pod, Transition};
use nodegate_controller::NodesError;

/// What pods and DaemonSets say.
pub(super) struct Workloads {
    /// What the change of nodes does to them.
    pub(super) impact: Impact,
    /// By how many pods each label is selected.
    pub(super) selected: BTreeMap<String, usize>,
    pub(super) daemon_sets: Vec<DaemonSet>,
}

impl Workloads {
    /// Those of a fleet that changes so.
    pub(super) fn new(transitions: Vec<Transition>) -> Self {
        Self { impact: Impact::new(transitions), selected: BTreeMap::new(), daemon_sets: Vec::new() }
    }

    fn add_daemon_set(&mut self, set: DaemonSet) {
        self.impact.add_daemon_set(&set);
        self.daemon_sets.push(set);
    }

    fn add_pod(&mut self, pod: &Pod) {
        pod.selected_labels().into_iter().for_each(|key| *self.selected.entry(key).or_default() += 1);
        self.impact.add_pod(pod);
    }

    /// Adds the DaemonSets and pods of the cluster, unless nothing depends on them. Returns why the effect on pods is unknown, if it is.
    /// `skip`: they may not be read; `others_ask`: something else than that effect depends on them.
    pub(super) async fn look_at_cluster(&mut self, client: &Client, skip: bool, others_ask: bool) -> Option<String> {
        let changes = !self.impact.is_none();
        match (changes, skip) {
            (false, true) => None,
            (false, false) if !others_ask => None,
            (true, true) => Some("--no-pods is set".to_owned()),
            (_, false) => {
                let why = self.add_of_cluster(client).await.err()?;
                if !changes {
                    output::note(&format!("note: what pods select is not known: {why}"));
                }
                changes.then_some(why)
            }
        }
    }

    /// Adds the DaemonSets and pods of the cluster.
    ///
    /// # Errors
    /// Returns a sentence if they cannot be listed.
    async fn add_of_cluster(&mut self, client: &Client) -> Result<(), String> {
        let sets =
            objects::each(client, &DaemonSetObject::url_path(&(), None), "", |set| self.add_daemon_set(set)).await;
        sets.map_err(|error| format!("could not list DaemonSets: {error}"))?;
        let pods = each_of_cluster(client, |pod| self.add_pod(&pod)).await;
        pods.map_err(|error| {
            self.selected.clear();
            format!("could not list pods: {error}")
        })
    }

    /// Adds the DaemonSets and pods of files, as `kubectl get daemonsets,pods --all-namespaces -o json` prints them.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or contains neither.
    pub(super) fn add_of_files(&mut self, paths: &[PathBuf]) -> anyhow::Result<()> {
        let (sets, pods) = of_files(paths)?;
        sets.into_iter().for_each(|set| self.add_daemon_set(set));
        pods.iter().for_each(|pod| self.add_pod(pod));
        Ok(())
    }
}

/// Reads every pod of the cluster.
///
/// # Errors
/// Returns an error if the API server refuses or cannot be reached.
pub(in crate::cli) async fn each_of_cluster(client: &Client, take: impl FnMut(Pod)) -> Result<(), NodesError> {
    objects::each(client, &PodObject::url_path(&(), None), "", take).await
}

/// Reads every pod of files.
///
/// # Errors
/// Returns an error if a file cannot be read or contains neither pods nor DaemonSets.
pub(in crate::cli) fn each_of_files(paths: &[PathBuf], take: impl FnMut(&Pod)) -> anyhow::Result<()> {
    of_files(paths)?.1.iter().for_each(take);
    Ok(())
}

const PODS: Wanted = Wanted { kinds: &["Pod", "DaemonSet"], expected: "Pods, DaemonSets or Lists of them" };

fn of_files(paths: &[PathBuf]) -> anyhow::Result<(Vec<DaemonSet>, Vec<Pod>)> {
    let (mut sets, mut pods) = (Vec::new(), Vec::new());
    for path in paths {
        let (file, objects) = node_files::objects(path, PODS)?;
        for Object { kind, json } in objects {
            match kind {
                "DaemonSet" => sets.push(read(&file, json)?),
                _ => pods.push(read(&file, json)?),
            }
        }
    }
    Ok((sets, pods))
}

fn read<T: DeserializeOwned>(file: &str, document: Json) -> anyhow::Result<T> {
    let name = document["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    serde_json::from_value(document).with_context(|| format!("{file}: could not read {name:?}"))
}
