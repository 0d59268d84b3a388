//! Policy tests: files with the expected effects of policies on nodes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::document::{Origin, PolicyDocument, PolicyError};
use super::pools::MachineKind;
use super::problem::Problem;
use super::schema::{ShapeFault, check, schema_of};
use super::source::{Field, FieldPath, Node, SourceText, Tree, parse_documents};

/// A `PolicyTest` file: policies and cases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyTest {
    /// `nodegate.dev/v1alpha1`.
    pub api_version: String,
    /// `PolicyTest`.
    pub kind: String,
    /// Policy files or directories, relative to this file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
    /// Inline policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Json>,
    /// A directory of flat label files, relative to this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels_dir: Option<String>,
    /// The policies must be refused, with errors that contain all of these texts. Such a file has no cases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect_errors: Vec<String>,
    /// The cases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<Case>,
}

impl PolicyTest {
    /// The tests of the policy in a file.
    pub fn of_file(policy: &str, cases: Vec<Case>) -> Self {
        let (api_version, kind) = ("nodegate.dev/v1alpha1".to_owned(), "PolicyTest".to_owned());
        Self { api_version, kind, policies: vec![policy.to_owned()], cases, ..Self::default() }
    }
}

/// A `PolicyTest` that was read from a file, with the positions of its inline policies.
#[derive(Clone, Debug)]
pub struct TestFile {
    /// The test.
    pub test: PolicyTest,
    origin: Origin,
    text: SourceText,
    policy: Option<Tree>,
    /// The nodes of its cases, and where they are.
    pub(crate) nodes: Vec<(FieldPath, Tree)>,
}

impl TestFile {
    /// Parses every `PolicyTest` of a file. Errors are added to `errors`.
    pub fn parse_all(file: &str, text: &str, errors: &mut Vec<PolicyError>) -> Vec<Self> {
        let (origin, text) = (Origin::File(file.to_owned()), SourceText::from(text));
        match parse_documents(text.as_str()) {
            Ok(trees) => trees.into_iter().filter_map(|tree| Self::from_tree(&origin, &text, tree, errors)).collect(),
            Err(error) => {
                errors.push(PolicyError::of_syntax(&origin, Some(&text), error));
                Vec::new()
            }
        }
    }

    fn from_tree(origin: &Origin, text: &SourceText, mut tree: Tree, errors: &mut Vec<PolicyError>) -> Option<Self> {
        let mut faults = Vec::new();
        check(&mut tree, &schema_of::<PolicyTest>(), &FieldPath::root(), &mut faults);
        let kind = tree.field("kind").filter(|_| tree.text("kind") != Some("PolicyTest"));
        faults.extend(kind.map(|kind| {
            let found = kind.tree.to_json();
            let problem = Problem::new(format!("the kind is {found}"), "write PolicyTest");
            ShapeFault { place: kind.tree.place, path: FieldPath::root().key("kind"), problem }
        }));
        let parsed = serde_json::from_value::<PolicyTest>(tree.to_json());
        if let (Err(error), true) = (&parsed, faults.is_empty()) {
            let problem = error.to_string().into();
            faults.push(ShapeFault { place: tree.place, path: FieldPath::root(), problem });
        }
        let whole = faults.is_empty();
        errors.extend(faults.into_iter().map(|fault| PolicyError {
            place: Some(fault.place),
            entry: case_of(&tree, &fault.path),
            ..PolicyError::in_file(origin, Some(text), fault.path, fault.problem)
        }));
        let policy = tree.field("policy").map(|field| field.tree.clone());
        let nodes = nodes(&tree);
        parsed.ok().filter(|_| whole).map(|test| Self {
            test,
            origin: origin.clone(),
            text: text.clone(),
            policy,
            nodes,
        })
    }

    /// An error about a value of a case.
    pub(crate) fn error(&self, ShapeFault { place, path, problem }: ShapeFault) -> PolicyError {
        PolicyError { place: Some(place), ..PolicyError::in_file(&self.origin, Some(&self.text), path, problem) }
    }

    /// The documents that the file contains in place: a list of them, or the `spec` of one.
    pub(crate) fn inline_policies(&self, errors: &mut Vec<PolicyError>) -> Option<Vec<PolicyDocument>> {
        let policy = self.policy.clone()?;
        let trees = match policy.value {
            Node::List(documents) => documents.into_iter().map(|(_, document)| document).collect(),
            _ => vec![document_with(policy)],
        };
        let read = |tree| PolicyDocument::from_tree(&self.origin, Some(&self.text), tree, errors);
        Some(trees.into_iter().filter_map(read).collect())
    }
}

/// The policy `test` with this spec.
fn document_with(spec: Tree) -> Tree {
    let place = spec.place;
    let tree = |value: Node| Tree { place, value, written: None };
    let field = |key: &str, tree: Tree| Field { key: key.to_owned(), place, tree };
    let text = |text: &str| tree(Node::Scalar(text.into()));
    tree(Node::Mapping(vec![
        field("apiVersion", text("nodegate.dev/v1alpha1")),
        field("kind", text("NodePolicy")),
        field("metadata", tree(Node::Mapping(vec![field("name", text("test"))]))),
        field("spec", spec),
    ]))
}

/// The nodes that the cases write in place.
fn nodes(tree: &Tree) -> Vec<(FieldPath, Tree)> {
    let Some(Node::List(cases)) = tree.field("cases").map(|cases| &cases.tree.value) else { return Vec::new() };
    let node = |(index, case): &(usize, Tree)| {
        let path = FieldPath::root().key("cases").index(*index).key("node");
        Some((path, case.field("node")?.tree.clone()))
    };
    cases.iter().filter_map(node).collect()
}

/// The case that a field is in, by its name.
fn case_of(tree: &Tree, path: &FieldPath) -> Option<String> {
    let Node::List(cases) = &tree.field("cases")?.tree.value else { return None };
    let all = FieldPath::root().key("cases");
    let (_, case) = cases.iter().find(|(index, _)| path.is_within(&all.index(*index)))?;
    Some(format!("case {:?}", case.text("name")?))
}

/// One write to one node, and the expected result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    /// The title, a sentence that says what is expected.
    pub name: String,
    /// The node: a whole Node, or the short form `{name, uid, labels, annotations, taints, providerID, capacity, conditions, nodeInfo}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Json>,
    /// A file with the node, relative to the test file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_file: Option<String>,
    /// The changes of an UPDATE; `node` is then the stored node. Without this field, the write is a CREATE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<ChangeCase>,
    /// `kubelet` (the node's own), `admin`, or a user name. Defaults to `kubelet`.
    #[serde(rename = "as", default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<String>,
    /// Additional groups of the requester.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// What the API server's authenticator adds about the requester: lists of texts by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
    /// Who asked for the certificate of the kubelet that created the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrapped_by: Option<BootstrapCase>,
    /// The provisioner's object that stands for the node's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_by: Option<MachineCase>,
    /// Who else has asked for a certificate for the node's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_bootstrapped_by: Vec<BootstrapCase>,
    /// Whether the write goes to `nodes/status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<bool>,
    /// The saved state of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedCase>,
    /// The labels that the nodes of pools agree on, by the name of the pool (`persist` with `scope: pool`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<String, BTreeMap<String, String>>,
    /// The answers of inventories about the node: for each inventory, by its name, labels. An inventory that is not listed has
    /// not answered.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inventory: BTreeMap<String, BTreeMap<String, String>>,
    /// The devices of the node, as expressions read them (`devices`). Without this field they are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<Json>>,
    /// Whether a controller is running, so that the pending taint may be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// The expected result.
    pub expect: Expectation,
}

/// The changes of a write.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeCase {
    /// Labels to set.
    pub labels: BTreeMap<String, String>,
    /// Labels to remove.
    pub remove_labels: Vec<String>,
    /// Annotations to set.
    pub annotations: BTreeMap<String, String>,
    /// All taints after the write, as `key=value:Effect`.
    #[schemars(extend("x-nodegate" = "taint-text"))]
    pub taints: Option<Vec<String>>,
    /// Provider ID to set.
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
}

/// Who asked for a kubelet's first certificate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BootstrapCase {
    /// The name of the user; of a bootstrap token, `system:bootstrap:` and its ID.
    pub user: String,
    /// The groups of that user.
    pub groups: Vec<String>,
}

/// An object that a provisioner made for the machine of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineCase {
    /// Its kind.
    pub kind: MachineKind,
    /// The provider's ID of the machine.
    #[serde(rename = "providerID", default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Saved state in short form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SavedCase {
    /// Persisted labels.
    pub labels: BTreeMap<String, String>,
    /// Persisted taints, as `key=value:Effect`.
    #[schemars(extend("x-nodegate" = "taint-text"))]
    pub taints: Vec<String>,
    /// Labels that nodegate owns.
    pub owned_labels: BTreeMap<String, String>,
    /// The uid of the node object that it was saved from.
    #[serde(rename = "nodeUID", skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// What the API server authenticated about the kubelet that created that object: lines such as `group=pool:gpu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authenticated_as: Option<Vec<String>>,
    /// The pools that an administrator vouches for, of that object (`nodegate pools adopt`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adopted: Vec<String>,
}

/// The expected result of a write. Omitted fields are not checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Expectation {
    /// Labels of the node after the write.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the node after the write.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Taints of the node after the write, as `key=value:Effect`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-nodegate" = "taint-text"))]
    pub taints: Vec<String>,
    /// Labels, annotations or taint keys that the node does not have after the write.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
    /// Exactly these keys are deferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred: Option<Vec<String>>,
    /// Whether the pending taint is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<bool>,
    /// Whether there is a patch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<bool>,
    /// The verdict of governance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictCase>,
    /// A text that the denial or a warning must contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Texts that the notes of the decision must contain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The verdict of governance on a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum VerdictCase {
    /// No violation.
    Allow,
    /// Allowed with a violation: in mode warn, or overridden by a break-glass subject.
    Warn,
    /// Allowed with a violation in mode audit.
    Audit,
    /// Denied.
    Deny,
}

impl VerdictCase {
    /// As it is written in a test.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Warn => "warn",
            Self::Audit => "audit",
            Self::Deny => "deny",
        }
    }
}
