//! Templates in the words of autoscalers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json, json};

use super::TemplateFormat;
use super::declared::{Declared, Taints};
use super::document::{PoolTemplate, Templates, with_effect};
use super::provisioners::{CAPI_LABELS, CAPI_TAINTS, annotated_labels};
use super::tags::{ASG, Tags, VMSS};
use crate::cli::shared::output::{self, Format};
use nodegate_policy::explain::FieldName;
use nodegate_policy::templates::TemplateKey;

/// Why no tag can say a label or taint of a pool.
fn no_tag(words: &Tags, pool: &PoolTemplate, key: &TemplateKey) -> Option<String> {
    if let Some(first) = pool.taints().find(|taint| key.effect.is_some() && taint.key == key.key)
        && first != key
    {
        let effect = first.effect.as_deref().unwrap_or_default();
        return Some(format!("one tag says one taint of a key, and here it says {}:{effect}", key.key));
    }
    words.too_long(key)
}

/// Why the words of an autoscaler cannot say a label or taint of a pool.
pub(in crate::cli) fn refused(format: TemplateFormat, pool: &PoolTemplate, key: &TemplateKey) -> Option<String> {
    match format {
        TemplateFormat::AsgTags => no_tag(&ASG, pool, key),
        TemplateFormat::VmssTags => no_tag(&VMSS, pool, key),
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
    pool.same.iter().filter(|key| no_tag(words, pool, key).is_none()).map(|key| words.tag(key)).collect()
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
