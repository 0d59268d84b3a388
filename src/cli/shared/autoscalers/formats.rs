//! Templates in the words of autoscalers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json, json};

use super::TemplateFormat;
use super::declared::{Declared, Taints};
use super::document::{PoolTemplate, Templates, with_effect};
use super::provisioners::{CAPI_LABELS, CAPI_TAINTS, annotated_labels};
use crate::cli::shared::output::{self, Format};
use nodegate_policy::explain::FieldName;
use nodegate_policy::templates::TemplateKey;

/// How tags of a provider say labels and taints (`kubernetes/autoscaler`, `cluster-autoscaler/cloudprovider`).
pub(in crate::cli) struct Tags {
    /// What has tags.
    pub(in crate::cli) kind: &'static str,
    /// What prints them.
    pub(in crate::cli) command: &'static str,
    label: &'static str,
    taint: &'static str,
    /// Whether a key is written with `_` for `/`, and with `~2` for `_`.
    has_no_slashes: bool,
    /// The largest number of characters of a tag's name and of its value.
    limits: (usize, usize),
}

/// Of AWS (`aws/auto_scaling_groups`). Limits: Amazon EC2 Auto Scaling, "Tag naming and usage restrictions".
pub(in crate::cli) const ASG: Tags = Tags {
    kind: "Auto Scaling group",
    command: "aws autoscaling describe-auto-scaling-groups",
    label: "k8s.io/cluster-autoscaler/node-template/label/",
    taint: "k8s.io/cluster-autoscaler/node-template/taint/",
    has_no_slashes: false,
    limits: (128, 256),
};

/// Of Azure (`azure/azure_template.go`). Limits: Azure Resource Manager, "Use tags to organize your Azure resources".
pub(in crate::cli) const VMSS: Tags = Tags {
    kind: "scale set",
    command: "az vmss list",
    label: "k8s.io_cluster-autoscaler_node-template_label_",
    taint: "k8s.io_cluster-autoscaler_node-template_taint_",
    has_no_slashes: true,
    limits: (512, 256),
};

impl Tags {
    /// The tag that says a label or taint.
    fn tag(&self, key: &TemplateKey) -> (String, String) {
        let name = match self.has_no_slashes {
            true => key.key.replace('_', "~2").replace('/', "_"),
            false => key.key.clone(),
        };
        match &key.effect {
            None => (format!("{}{name}", self.label), key.value.clone()),
            Some(effect) => (format!("{}{name}", self.taint), format!("{}:{effect}", key.value)),
        }
    }

    /// The key of the label that a tag says.
    pub(in crate::cli) fn label(&self, tag: &str) -> Option<String> {
        tag.strip_prefix(self.label).map(|key| self.key(key))
    }

    /// The key of the taint that a tag says.
    pub(in crate::cli) fn taint(&self, tag: &str) -> Option<String> {
        tag.strip_prefix(self.taint).map(|key| self.key(key))
    }

    fn key(&self, name: &str) -> String {
        if self.has_no_slashes { name.replace('_', "/").replace("~2", "_") } else { name.to_owned() }
    }

    /// Why no tag can say it.
    fn refused(&self, pool: &PoolTemplate, key: &TemplateKey) -> Option<String> {
        if let Some(first) = pool.taints().find(|taint| key.effect.is_some() && taint.key == key.key)
            && first != key
        {
            let effect = first.effect.as_deref().unwrap_or_default();
            return Some(format!("one tag says one taint of a key, and here it says {}:{effect}", key.key));
        }
        let (name, value) = self.tag(key);
        let (of_name, of_value) = self.limits;
        if name.chars().count() > of_name {
            return Some(format!("the name of its tag would have more than {of_name} characters"));
        }
        (value.chars().count() > of_value).then(|| format!("its tag would have more than {of_value} characters"))
    }
}

/// Why the words of an autoscaler cannot say a label or taint of a pool.
pub(in crate::cli) fn refused(format: TemplateFormat, pool: &PoolTemplate, key: &TemplateKey) -> Option<String> {
    match format {
        TemplateFormat::AsgTags => ASG.refused(pool, key),
        TemplateFormat::VmssTags => VMSS.refused(pool, key),
        // The rules of the definition (`pkg/apis/crds/karpenter.sh_nodepools.yaml`).
        TemplateFormat::NodepoolPatch if key.field == FieldName::Label => {
            let domain = key.key.split_once('/').map_or("", |(domain, _)| domain);
            let is_own = domain.ends_with("karpenter.sh") && key.key != "karpenter.sh/capacity-type";
            is_own.then(|| "NodePools refuse this label".to_owned())
        }
        TemplateFormat::NodepoolPatch | TemplateFormat::CapiAnnotations | TemplateFormat::Flags => None,
    }
}

/// The templates of all pools in the words of an autoscaler, as YAML or JSON. What they cannot say is told on standard error.
///
/// # Errors
/// Returns an error if groups of several clusters have the name of a pool.
pub(in crate::cli) fn text(
    format: TemplateFormat,
    templates: &Templates,
    declared: &[Declared],
    as_: Format,
) -> anyhow::Result<String> {
    if format == TemplateFormat::Flags {
        return flags(templates, as_);
    }
    for (pool, key) in templates.pools.iter().flat_map(|pool| pool.same.iter().map(move |key| (pool, key))) {
        if let Some(why) = refused(format, pool, key) {
            let name = with_effect(&key.key, key.effect.as_deref());
            output::note(&format!("note: pool {}: {} {name} is left out: {why}", pool.pool, key.field.as_str()));
        }
    }
    if format == TemplateFormat::NodepoolPatch
        && let Some(unknown) = templates.pools.iter().find(|pool| !declared.iter().any(|one| pool.id.is(one)))
    {
        output::note(&format!(
            "note: NodePool {} is not known, so what is printed has none of its own taints; --groups FILE reads NodePools",
            unknown.id.name
        ));
    }
    let of_pool = |pool: &PoolTemplate| {
        let declared = pool.id.among(declared)?.into_iter().next();
        anyhow::Ok(match format {
            TemplateFormat::AsgTags => json!(tags(&ASG, pool)),
            TemplateFormat::VmssTags => json!(tags(&VMSS, pool)),
            TemplateFormat::CapiAnnotations => json!(annotations(pool, declared)),
            TemplateFormat::NodepoolPatch | TemplateFormat::Flags => node_pool(pool, declared),
        })
    };
    let structured = if as_ == Format::Table { Format::Yaml } else { as_ };
    if format != TemplateFormat::NodepoolPatch {
        let all = templates.pools.iter().map(|pool| Ok((&*pool.pool, of_pool(pool)?)));
        let all: BTreeMap<&str, Json> = all.collect::<anyhow::Result<_>>()?;
        return output::structured(structured, &all);
    }
    let objects: Vec<Json> = templates.pools.iter().map(of_pool).collect::<anyhow::Result<_>>()?;
    if structured == Format::Json {
        return output::structured(Format::Json, &json!({"apiVersion": "v1", "kind": "List", "items": objects}));
    }
    let documents: Vec<String> =
        objects.iter().map(|object| output::structured(Format::Yaml, object)).collect::<anyhow::Result<_>>()?;
    Ok(documents.join("---\n"))
}

fn tags(words: &Tags, pool: &PoolTemplate) -> BTreeMap<String, String> {
    pool.same.iter().filter(|key| words.refused(pool, key).is_none()).map(|key| words.tag(key)).collect()
}

/// The annotations of a MachineDeployment (`cloudprovider/clusterapi/README.md`), with what they say already.
fn annotations(pool: &PoolTemplate, declared: Option<&Declared>) -> BTreeMap<&'static str, String> {
    let mut labels = declared.map(|declared| annotated_labels(&declared.object)).unwrap_or_default();
    labels.extend(pool.labels().map(|key| (key.key.clone(), key.value.clone())));
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let taint = |((key, effect), value): (&(String, String), &String)| {
        let value = if value.is_empty() { String::new() } else { format!("={value}") };
        format!("{key}{value}:{effect}")
    };
    let taints: Vec<String> = all_taints(pool, declared).iter().map(taint).collect();
    let all = [(CAPI_LABELS, labels), (CAPI_TAINTS, taints)];
    all.into_iter().filter(|(_, said)| !said.is_empty()).map(|(key, said)| (key, said.join(","))).collect()
}

/// The taints that an autoscaler is told, with those of nodegate.
fn all_taints(pool: &PoolTemplate, declared: Option<&Declared>) -> Taints {
    let mut taints = declared.map(|declared| declared.taints.clone()).unwrap_or_default();
    taints.extend(
        pool.taints().map(|key| ((key.key.clone(), key.effect.clone().unwrap_or_default()), key.value.clone())),
    );
    taints
}

/// A NodePool with these labels and taints: the one that is known, as its authors would write it, or only these.
fn node_pool(pool: &PoolTemplate, declared: Option<&Declared>) -> Json {
    let mut object = declared.map(|declared| as_written(&declared.object)).unwrap_or_default();
    object["apiVersion"] = json!("karpenter.sh/v1");
    object["kind"] = json!("NodePool");
    object["metadata"]["name"] = json!(pool.id.name);
    let template = &mut object["spec"]["template"];
    for key in pool.labels().filter(|key| refused(TemplateFormat::NodepoolPatch, pool, key).is_none()) {
        template["metadata"]["labels"][&key.key] = json!(key.value);
    }
    let taint = |((key, effect), value): (&(String, String), &String)| match value.as_str() {
        "" => json!({"key": key, "effect": effect}),
        value => json!({"key": key, "value": value, "effect": effect}),
    };
    let taints: Vec<Json> = all_taints(pool, declared).iter().map(taint).collect();
    if !taints.is_empty() {
        template["spec"]["taints"] = json!(taints);
    }
    object
}

/// An object without what the API server and controllers write into it.
fn as_written(object: &Json) -> Json {
    let metadata = &object["metadata"];
    let annotations = metadata["annotations"].as_object().cloned().unwrap_or_default();
    let is_written = |key: &str| !key.starts_with("karpenter.sh/") && !key.starts_with("kubectl.kubernetes.io/");
    let annotations: Map<String, Json> = annotations.into_iter().filter(|(key, _)| is_written(key)).collect();
    let mut written = json!({"metadata": {}, "spec": object["spec"]});
    if !annotations.is_empty() {
        written["metadata"]["annotations"] = Json::Object(annotations);
    }
    if metadata["labels"].is_object() {
        written["metadata"]["labels"] = metadata["labels"].clone();
    }
    written
}

/// Flags with which Cluster Autoscaler takes pools for similar although their nodes differ in these labels.
fn flags(templates: &Templates, as_: Format) -> anyhow::Result<String> {
    let labels = templates.pools.iter().flat_map(|pool| &pool.varying).filter(|key| key.field == FieldName::Label);
    let keys: BTreeSet<&str> = labels.map(|key| &*key.key).collect();
    let flags: Vec<String> = keys.into_iter().map(|key| format!("--balancing-ignore-label={key}")).collect();
    match as_ {
        Format::Table if flags.is_empty() => Ok(String::new()),
        Format::Table => Ok(format!("{}\n", flags.join("\n"))),
        format => output::structured(format, &flags),
    }
}
