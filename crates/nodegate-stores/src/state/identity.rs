//! How saved state is matched to machines.

use nodegate_policy::api::state::SavedState;

/// The beginning of an identity that has the node's name.
const NAME: &str = "name=";

/// The fields that identify a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine<'a> {
    /// The node's name.
    pub name: &'a str,
    /// `spec.providerID`, if it is known.
    pub provider_id: Option<&'a str>,
    /// `status.nodeInfo.systemUUID`, if it is known.
    pub system_uuid: Option<&'a str>,
}

/// How saved state is matched to nodes (`--identity`).
///
/// With `name+…`, a different machine under an existing name starts with an empty record. With an ID alone, the
/// record follows a machine when its node is renamed, and nodegate trusts the ID that the kubelet reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Identity {
    /// By the node's name, which is bound to the kubelet's credentials
    #[default]
    #[value(name = "name")]
    Name,
    /// By name and `spec.providerID`
    #[value(name = "name+providerID")]
    NameAndProviderId,
    /// By name and `status.nodeInfo.systemUUID`
    #[value(name = "name+systemUUID")]
    NameAndSystemUuid,
    /// By `spec.providerID`
    #[value(name = "providerID")]
    ProviderId,
    /// By `status.nodeInfo.systemUUID`
    #[value(name = "systemUUID")]
    SystemUuid,
}

impl Identity {
    /// The identity of a node, or `None` if it is not known yet.
    pub fn of(self, node: Machine<'_>) -> Option<String> {
        let provider = || node.provider_id.map(|id| format!("providerID={id}"));
        let system = || node.system_uuid.map(|id| format!("systemUUID={id}"));
        let name = Self::name(node.name);
        match self {
            Self::Name => Some(name),
            Self::NameAndProviderId => Some(format!("{name},{}", provider()?)),
            Self::NameAndSystemUuid => Some(format!("{name},{}", system()?)),
            Self::ProviderId => provider(),
            Self::SystemUuid => system(),
        }
    }

    /// The identity that consists of the name only.
    fn name(node: &str) -> String {
        format!("{NAME}{node}")
    }

    /// The key of a document: its identity, or the name of its node if it has none (because it was written with
    /// `--identity name`, or by the label operator).
    pub fn key(state: &SavedState) -> String {
        state.identity.clone().unwrap_or_else(|| Self::name(&state.node_name))
    }

    /// Whether this is the [key](Self::key) of a document.
    pub(super) fn is_key(key: &str, state: &SavedState) -> bool {
        match &state.identity {
            Some(identity) => key == identity,
            None => key.strip_prefix(NAME) == Some(&*state.node_name),
        }
    }

    /// Whether a document is identified by something else than the name of its node alone, so that the node may have another name.
    pub(super) fn is_without_name(state: &SavedState) -> bool {
        state.identity.as_deref().is_some_and(|identity| !identity.starts_with(NAME))
    }

    /// The keys to look a node up by, best first; empty if its identity is not known yet.
    pub(super) fn lookup(self, node: Machine<'_>) -> Vec<String> {
        let Some(own) = self.of(node) else { return Vec::new() };
        let name = Self::name(node.name);
        if own == name { vec![own] } else { vec![own, name] }
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Name => "name",
            Self::NameAndProviderId => "name+providerID",
            Self::NameAndSystemUuid => "name+systemUUID",
            Self::ProviderId => "providerID",
            Self::SystemUuid => "systemUUID",
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_has_its_own_key_and_no_other() {
        let document = |identity: Option<&str>| -> SavedState {
            serde_json::from_value(json!({"nodeName": "n1", "identity": identity})).unwrap()
        };
        let identities = [None, Some("name=n2"), Some("name=n1,systemUUID=C"), Some("systemUUID=C"), Some("n1")];
        let keys = identities.map(|identity| Identity::key(&document(identity)));
        for (own, identity) in identities.into_iter().enumerate() {
            for (at, key) in keys.iter().enumerate() {
                assert_eq!(Identity::is_key(key, &document(identity)), at == own, "{key} {identity:?}");
            }
        }
        assert!(!Identity::is_key("n1", &document(None)) && !Identity::is_key("name=n1x", &document(None)));
    }
}
