//! The variables of expressions over nodes, and their fields.

use nodegate_cel::Shape::{Any, Bool, Int, List, Map, Object, Text};
use nodegate_cel::{Fields, Schema, Variable};

use super::{Scope, kubernetes};

static GPU: Fields = Fields::new("GPU", &[("vendor", Text), ("model", Text), ("count", Int), ("source", Text)]);

static IDENTITY: Fields = Fields::new(
    "Identity",
    &[("pool", Text), ("pools", List(&Text)), ("proof", Text), ("instance", Text), ("contradictions", List(&Text))],
);

/// A device as Kubernetes' own expressions over devices see it, with its pool and its name (`k8s.io/dynamic-resource-allocation/cel`).
static DEVICE: Fields = Fields::new(
    "Device",
    &[("driver", Text), ("pool", Text), ("name", Text), ("attributes", Map(&Any)), ("capacity", Map(&Map(&Text)))],
);

/// The fields of `request`.
static REQUEST: Fields = Fields::new(
    "AdmissionRequest",
    &[("operation", Text), ("name", Text), ("subResource", Text), ("dryRun", Bool), ("userInfo", Object(&USER_INFO))],
)
.withholding(NOT_SUPPLIED, REASON);

static USER_INFO: Fields = Fields::new(
    "UserInfo",
    &[("username", Text), ("uid", Text), ("groups", List(&Text)), ("extra", Map(&List(&Text)))],
)
.withholding(NOT_SUPPLIED, REASON);

/// Further fields of Kubernetes' request that nodegate does not supply (`k8s.io/api/admission/v1`).
const NOT_SUPPLIED: &[&str] = &[
    "kind",
    "namespace",
    "object",
    "oldObject",
    "options",
    "requestKind",
    "requestResource",
    "requestSubResource",
    "resource",
    "uid",
];

const REASON: &str = "in Kubernetes, but nodegate does not supply it";

/// Fields that a node always has, because absent ones are added as empty.
const ALWAYS: &[&[&str]] = &[&["metadata", "labels"], &["metadata", "annotations"], &["spec", "taints"]];

static NODE: Schema = Schema {
    variables: &[
        Variable { name: "node", shape: Object(&kubernetes::NODE), nullable: false, always: ALWAYS },
        Variable::new("gpu", Object(&GPU)),
        Variable::new("inventory", Map(&Text)),
        Variable::new("identity", Object(&IDENTITY)),
        Variable::new("devices", List(&Object(&DEVICE))),
    ],
};

static WRITE: Schema = Schema {
    variables: &[
        Variable { name: "object", shape: Object(&kubernetes::NODE), nullable: false, always: ALWAYS },
        // Null when a node is created.
        Variable { name: "oldObject", shape: Object(&kubernetes::NODE), nullable: true, always: &[] },
        Variable::new("request", Object(&REQUEST)),
    ],
};

static ITEM: Schema = Schema { variables: &[Variable::new("item", Any), Variable::new("key", Text)] };

/// The fields of Kubernetes' Node.
pub(crate) static NODE_FIELDS: &Fields = &kubernetes::NODE;

impl Scope {
    /// The variables that an expression of this scope may use.
    pub(super) fn schema(self) -> &'static Schema {
        match self {
            Self::Node => &NODE,
            Self::Write => &WRITE,
            Self::Item => &ITEM,
        }
    }
}
