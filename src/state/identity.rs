//! What makes a machine the same machine.

use crate::api::state::SavedState;

/// What tells one machine from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine<'a> {
    /// The node's name.
    pub name: &'a str,
    /// `spec.providerID`, when it is known.
    pub provider_id: Option<&'a str>,
    /// `status.nodeInfo.systemUUID`, when it is known.
    pub system_uuid: Option<&'a str>,
}

/// What saved state is kept for (`--identity`).
///
/// With `name+…` a different machine under an old name gets a fresh record. With an ID alone the record follows a
/// machine through renames, and a kubelet is trusted to say which machine it runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Identity {
    /// The node's name, which is bound to the kubelet's credential.
    #[default]
    #[value(name = "name")]
    Name,
    /// Name and `spec.providerID`.
    #[value(name = "name+providerID")]
    NameAndProviderId,
    /// Name and `status.nodeInfo.systemUUID`.
    #[value(name = "name+systemUUID")]
    NameAndSystemUuid,
    /// `spec.providerID`.
    #[value(name = "providerID")]
    ProviderId,
    /// `status.nodeInfo.systemUUID`.
    #[value(name = "systemUUID")]
    SystemUuid,
}

impl Identity {
    /// The identity of a node as a text, or `None` when it is not known yet.
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

    /// The identity of whatever has this name.
    fn name(node: &str) -> String {
        format!("name={node}")
    }

    /// What a document is found by: its identity, or the name of its node where it has none (it was written with
    /// `--identity name`, or by the label operator).
    pub fn key(state: &SavedState) -> String {
        state.identity.clone().unwrap_or_else(|| Self::name(&state.node_name))
    }

    /// The keys to look a node up by, the best first; none when its identity is not known yet.
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
