//! One case of a `PolicyTest`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::node_document::read_node;
use super::short_form::{self, SimulationError, complete, taint, taint_text, taints};
use super::{Scene, Simulated, identity, node_name, simulate};
use crate::api::case::{
    BootstrapCase, Case, ChangeCase, Expectation, MachineCase, PolicyTest, SavedCase, TestFile, VerdictCase,
};
use crate::api::policy::EntryMode;
use crate::api::schema::ShapeFault;
use crate::api::source::{FieldPath, Tree};
use crate::api::state::{Adopted, Owned, ProvisionedDocument, SavedState, SavedTaint};
use crate::explain::{may_be_pool, pool_names};
use crate::facts::proof::bootstrap::{CREDENTIAL_ID, credential_id};
use crate::{
    Absence, Bootstrapper, Exemptions, InventoryAnswers, MachinesOfNode, NodeChange, NodeDevices, Origin,
    PendingTaints, PolicyDocument, PolicyError, PolicySet, PoolLabels, PoolMemory, Verdict,
};

/// The texts that a test file expects in errors, and that none of `errors` contains.
pub fn missing_errors<'t>(test: &'t PolicyTest, errors: &[String]) -> Vec<&'t str> {
    let missing = test.expect_errors.iter().filter(|text| !errors.iter().any(|error| error.contains(*text)));
    missing.map(String::as_str).collect()
}

/// Compiles the policies that a test file contains: a list of documents, or the `spec` of one.
///
/// # Errors
/// Every fault in them.
pub fn compile_inline(policy: &Json) -> Result<PolicySet, Vec<PolicyError>> {
    let documents = match policy {
        Json::Array(documents) => documents.clone(),
        spec => vec![
            json!({"apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": "test"}, "spec": spec}),
        ],
    };
    let mut errors = Vec::new();
    let parse = |document: &Json| PolicyDocument::parse_all(&Origin::Object, &document.to_string(), &mut errors);
    let documents: Vec<PolicyDocument> = documents.iter().flat_map(parse).collect();
    compile(&documents, errors)
}

/// Compiles the policies that a test file contains, so that each error has its place in the file. `None` if it only names
/// files.
pub fn compile_in_place(file: &TestFile) -> Option<Result<PolicySet, Vec<PolicyError>>> {
    let mut errors = Vec::new();
    let documents = file.inline_policies(&mut errors)?;
    Some(compile(&documents, errors))
}

/// Compiles documents that were parsed with `errors`.
fn compile(documents: &[PolicyDocument], mut errors: Vec<PolicyError>) -> Result<PolicySet, Vec<PolicyError>> {
    let compiled = PolicySet::compile(documents);
    errors.extend(compiled.as_ref().err().cloned().unwrap_or_default());
    PolicyError::sort(&mut errors);
    compiled.ok().filter(|_| errors.is_empty()).ok_or(errors)
}

/// Adds an error for each value of a node in a test file that the API server refuses.
pub fn faulty_nodes(file: &TestFile, errors: &mut Vec<PolicyError>) {
    for (path, node) in &file.nodes {
        // What else is wrong with a short form is an error of its case.
        let Ok(mut node) = complete(node.clone()) else { continue };
        let mut faults = Vec::new();
        read_node(&mut node, path, &mut faults);
        errors.extend(faults.into_iter().map(|fault| file.error(fault)));
    }
}

/// The node that a case writes in place, as a whole Node; `None` where the case names a file.
///
/// # Errors
/// Returns an error if the case has neither a node nor a file, or both, or its node cannot be read.
pub fn node_of(case: &Case) -> Result<Option<Json>, SimulationError> {
    match (&case.node, &case.node_file) {
        (Some(node), None) => {
            let (mut node, mut faults) = (complete(Tree::from(node.clone()))?, Vec::new());
            read_node(&mut node, &FieldPath::root(), &mut faults);
            match faults.first() {
                Some(ShapeFault { path, problem, .. }) => Err(SimulationError::new(format!("{path}: {problem}"))),
                None => Ok(Some(node.to_json())),
            }
        }
        (None, Some(_)) => Ok(None),
        _ => Err(SimulationError::new("expected exactly one of node and nodeFile")),
    }
}

/// Runs a case on `node`, and returns the differences from what it expects, a line each.
///
/// # Errors
/// Returns an error if a taint of the case cannot be parsed, or `node` is not a Node.
pub fn run_case(set: &PolicySet, case: &Case, node: Json) -> Result<Vec<String>, SimulationError> {
    let simulated = simulate(set, &scene(set, case, node)?, &Exemptions::default())?;
    Ok(differences(&case.expect, &simulated))
}

/// The write that a case makes on `node`.
///
/// # Errors
/// Returns an error if a taint of the case cannot be parsed, or if it names an inventory that the policies do not have.
pub fn scene(set: &PolicySet, case: &Case, node: Json) -> Result<Scene, SimulationError> {
    let requester = case.requester.as_deref().unwrap_or("kubelet");
    let (username, groups) = identity(requester, node_name(&node), &case.groups);
    let saved = case.saved.as_ref().map(|saved| saved_state(saved, node_name(&node))).transpose()?;
    let (node, old) = match &case.change {
        Some(change) => (changed(&node, change)?, Some(node)),
        None => (node, None),
    };
    let pools = pool_memory(set, &case.pools)?;
    let inventory = inventory_answers(set, &case.inventory)?;
    let pending_taints = case.controller.unwrap_or_default().then(PendingTaints::default);
    let status = case.status.unwrap_or_default();
    let mut extra = case.extra.clone();
    let asked = |BootstrapCase { user, groups }: &BootstrapCase| {
        Bootstrapper::new(user, groups.iter().map(String::as_str)).map(Arc::new)
    };
    let also_bootstrapped_by = case.also_bootstrapped_by.iter().filter_map(asked).collect();
    let bootstrapped_by = case.bootstrapped_by.as_ref().and_then(|of_node| {
        let known = asked(of_node)?;
        // The certificate of the example, of which nothing else is asked.
        extra.entry(CREDENTIAL_ID.to_owned()).or_insert_with(|| vec![credential_id(&"0".repeat(64))]);
        Some(known)
    });
    let asked = set.machine_labels().into_iter();
    let machine = case.provisioned_by.as_ref().map(|MachineCase { kind, provider_id, labels }| ProvisionedDocument {
        kind: kind.as_str().into(),
        name: "example".to_owned(),
        provider_id: provider_id.clone().unwrap_or_default(),
        labels: asked.map(|key| (key.to_owned(), String::new())).chain(labels.clone()).collect(),
        ..ProvisionedDocument::default()
    });
    let extra = (!extra.is_empty()).then(|| json!(extra).to_string());
    let found = machine.into_iter().map(Into::into).collect();
    let machines = MachinesOfNode { found, absence: Absence::Certain, ..MachinesOfNode::default() };
    Ok(Scene {
        node,
        old,
        status,
        username,
        groups,
        extra,
        bootstrapped_by,
        machines,
        also_bootstrapped_by,
        saved,
        pools,
        inventory,
        devices: case.devices.as_deref().map(NodeDevices::given),
        pending_taints,
    })
}

/// What the pools of a case remember.
fn pool_memory(
    set: &PolicySet,
    given: &BTreeMap<String, BTreeMap<String, String>>,
) -> Result<PoolMemory, SimulationError> {
    if let Some(unknown) = given.keys().find(|pool| !may_be_pool(set, pool)) {
        let known = pool_names(set).into_iter().collect::<Vec<_>>().join(", ");
        return Err(SimulationError::new(format!(
            "pools: no policy has a pool named {unknown:?}; the pools are {known}"
        )));
    }
    let labels = |(pool, labels): (&String, &BTreeMap<String, String>)| {
        (pool.clone(), PoolLabels { labels: labels.clone(), ..PoolLabels::default() })
    };
    Ok(PoolMemory { pools: given.iter().map(labels).collect(), ..PoolMemory::default() })
}

/// The answers that a case gives inventories, by name.
fn inventory_answers(
    set: &PolicySet,
    given: &BTreeMap<String, BTreeMap<String, String>>,
) -> Result<InventoryAnswers, SimulationError> {
    let mut answers = InventoryAnswers::default();
    for (name, labels) in given {
        let mut named = set.inventories().filter(|inventory| *inventory.name == **name).peekable();
        if named.peek().is_none() {
            return Err(SimulationError::new(format!("no policy has an inventory named {name:?}")));
        }
        for inventory in named {
            answers = answers.with(&inventory.id, Some(Arc::new(inventory.accept(labels.clone()).0)));
        }
    }
    Ok(answers)
}

fn saved_state(saved: &SavedCase, node: &str) -> Result<SavedState, SimulationError> {
    let saved_taint = |text: &String| serde_json::from_value::<SavedTaint>(taint(text)?).map_err(SimulationError::new);
    Ok(SavedState {
        node_uid: saved.node_uid.clone(),
        authenticated_as: saved.authenticated_as.as_ref().map(|lines| lines.join("\n").into()),
        adopted: (!saved.adopted.is_empty()).then(|| {
            let node_uid = saved.node_uid.clone().unwrap_or_default();
            Box::new(Adopted { node_uid, pools: saved.adopted.clone(), ..Adopted::default() })
        }),
        node_name: node.to_owned(),
        labels: saved.labels.iter().collect(),
        taints: saved.taints.iter().map(saved_taint).collect::<Result<_, _>>()?,
        owned: (!saved.owned_labels.is_empty())
            .then(|| Owned { labels: saved.owned_labels.iter().collect(), ..Owned::default() }),
        ..SavedState::default()
    })
}

fn changed(node: &Json, change: &ChangeCase) -> Result<Json, SimulationError> {
    let mut node = node.clone();
    for (key, value) in &change.labels {
        node["metadata"]["labels"][key] = json!(value);
    }
    for (key, value) in &change.annotations {
        node["metadata"]["annotations"][key] = json!(value);
    }
    if let Some(labels) = node.pointer_mut("/metadata/labels").and_then(Json::as_object_mut) {
        labels.retain(|key, _| !change.remove_labels.contains(key));
    }
    if let Some(taints) = &change.taints {
        node["spec"]["taints"] = taints.iter().map(|text| taint(text)).collect::<Result<Vec<_>, _>>()?.into();
    }
    if let Some(id) = &change.provider_id {
        node["spec"]["providerID"] = json!(id);
    }
    Ok(node)
}

fn differences(expect: &Expectation, simulated: &Simulated) -> Vec<String> {
    let (decision, node) = (&simulated.decision, &simulated.node);
    let mut found = Vec::new();
    let mut differ = |what: String, expected: String, actual: Option<String>| {
        if actual.as_ref() != Some(&expected) {
            found.push(format!("{what}: expected {expected}, got {}", actual.as_deref().unwrap_or("absent")));
        }
    };
    let quoted = |text: &str| format!("{text:?}");
    let listed = |keys: BTreeSet<String>| format!("[{}]", keys.into_iter().collect::<Vec<_>>().join(", "));
    for (key, value) in &expect.labels {
        differ(format!("label {key}"), quoted(value), node["metadata"]["labels"][key].as_str().map(quoted));
    }
    for (key, value) in &expect.annotations {
        let there = node["metadata"]["annotations"][key].as_str();
        differ(format!("annotation {key}"), quoted(value), there.map(quoted));
    }
    let taints = taints(node);
    for taint in &expect.taints {
        let there = short_form::taint(taint).is_ok_and(|taint| taints.contains(&taint_text(&taint)));
        differ(format!("taint {taint}"), quoted("there"), there.then(|| quoted("there")));
    }
    for key in &expect.absent {
        let label = node["metadata"]["labels"].get(key).or_else(|| node["metadata"]["annotations"].get(key));
        let taint = taints.iter().find(|taint| taint.split(['=', ':']).next() == Some(key));
        if let Some(there) = label.and_then(Json::as_str).or_else(|| taint.map(String::as_str)) {
            differ(key.clone(), "absent".to_owned(), Some(quoted(there)));
        }
    }
    if let Some(expected) = &expect.deferred {
        let expected: BTreeSet<String> = expected.iter().cloned().collect();
        let actual: BTreeSet<String> = decision.deferred.iter().flat_map(keys).collect();
        differ("deferred".to_owned(), listed(expected), Some(listed(actual)));
    }
    for (what, expected, actual) in
        [("pending", expect.pending, decision.pending), ("patch", expect.patch, decision.change.is_some())]
    {
        if let Some(expected) = expected {
            differ(what.to_owned(), expected.to_string(), Some(actual.to_string()));
        }
    }
    for text in &expect.notes {
        let notes: Vec<String> = decision.notes.iter().map(ToString::to_string).collect();
        let there = notes.iter().any(|note| note.contains(text));
        differ(
            format!("a note that contains {text:?} among {notes:?}"),
            quoted("there"),
            there.then(|| quoted("there")),
        );
    }
    if let Some(expected) = expect.verdict {
        differ("verdict".to_owned(), quoted(expected.as_str()), Some(quoted(verdict(&simulated.verdict).as_str())));
    }
    if let Some(text) = &expect.message {
        let denial = simulated.verdict.denial();
        let each = simulated.verdict.violations.iter().map(|violation| violation.message.as_str());
        let messages: Vec<&str> = each.chain(denial.as_deref()).collect();
        let there = messages.iter().any(|message| message.contains(text));
        let what = format!("a message that contains {text:?} among {messages:?}");
        differ(what, quoted("there"), there.then(|| quoted("there")));
    }
    found
}

fn verdict(verdict: &Verdict) -> VerdictCase {
    if verdict.denial().is_some() {
        return VerdictCase::Deny;
    }
    match verdict.violations.iter().map(|violation| violation.mode).max() {
        None => VerdictCase::Allow,
        Some(EntryMode::Audit) => VerdictCase::Audit,
        Some(_) => VerdictCase::Warn,
    }
}

/// Every key of a change: labels, annotations, taints.
fn keys(change: &NodeChange) -> Vec<String> {
    let taints = change.taints().keys().map(|id| id.key.to_string());
    change.labels().keys().chain(change.annotations().keys()).cloned().chain(taints).collect()
}
