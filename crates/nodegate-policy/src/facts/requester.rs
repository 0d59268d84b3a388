//! Who sends a request.

use crate::facts::json::borrow::Text;
use crate::facts::proof::extra::Extra;

/// Who sends a write.
#[derive(Clone, Debug, Default)]
pub struct Requester<'a> {
    /// The user name.
    pub username: Text<'a>,
    /// The groups.
    pub groups: Vec<Text<'a>>,
    /// The uid, if there is one; only expressions use it.
    pub uid: Option<Text<'a>>,
    /// What the authenticator adds, such as the role of a machine in its cloud; only pools and expressions use it.
    pub extra: Extra<'a>,
}

/// What the user names of kubelets begin with; the name of the node follows.
pub const KUBELET_USER: &str = "system:node:";

impl Requester<'_> {
    /// Whether this is a kubelet: user `system:node:<name>` in group `system:nodes`.
    pub fn is_kubelet(&self) -> bool {
        self.username.starts_with(KUBELET_USER) && self.groups.iter().any(|group| &**group == "system:nodes")
    }

    /// Whether this is the kubelet of the node with this name.
    pub(crate) fn is_kubelet_of(&self, node: &str) -> bool {
        self.is_kubelet() && self.username.strip_prefix(KUBELET_USER) == Some(node)
    }

    /// The service account as `namespace:name`, if it is one.
    pub fn service_account(&self) -> Option<&str> {
        self.username.strip_prefix("system:serviceaccount:")
    }
}
