//! What the sources of the view tell, as plain data.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use nodegate_controller::leader::Held;
use nodegate_policy::api::state::Change;

/// Where news comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// The nodes.
    Nodes,
    /// ConfigMaps in nodegate's namespace: the records of nodes, and what the leader publishes.
    Records,
    /// The events that nodegate publishes.
    Events,
    /// The Lease of the leader.
    Lease,
    /// The pods of nodegate.
    Pods,
    /// The passes that compare all nodes with the policies in force.
    Survey,
}

impl Source {
    /// All of them.
    pub(super) const ALL: [Self; 6] = [Self::Nodes, Self::Records, Self::Events, Self::Lease, Self::Pods, Self::Survey];

    /// What people call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Records => "records",
            Self::Events => "events",
            Self::Lease => "the Lease",
            Self::Pods => "pods",
            Self::Survey => "drift",
        }
    }
}

/// How an object came to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// It was there when everything was listed.
    Listed,
    /// It was added or changed.
    Changed,
}

/// One piece of news.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// A listing begins.
    Begins(Source),
    /// The listing is complete.
    Listed(Source),
    /// The source failed, and is tried again.
    Failed(Source, Failure),
    /// The source may be listed, but not watched, so it is listed again and again.
    NotWatched(Source),
    /// The source may be watched again.
    Watched(Source),
    /// A node as it is now.
    Node(Node),
    /// A node was deleted.
    NodeGone(Arc<str>),
    /// The record of a node as it is now.
    Record(Sight, Record),
    /// A record was deleted.
    RecordGone(String),
    /// What the leader publishes, as it is now.
    Published(Published),
    /// An event that nodegate published.
    Event(Sight, Told),
    /// An event was deleted.
    EventGone(String),
    /// Who holds the Lease; `None` if nobody does.
    Lease(Option<Held>),
    /// How many pods of nodegate are ready, and how many there are.
    Pods(usize, usize),
    /// What a pass over all nodes has found.
    Survey(Survey),
}

/// Why a source failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The user may not read it.
    Denied,
    /// Anything else, in words.
    Other(String),
}

/// What is kept of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) name: Arc<str>,
    /// Its uid.
    pub(super) uid: Box<str>,
    /// When it was created.
    pub(super) created: Option<Timestamp>,
    /// Whether its kubelet is ready.
    pub(super) is_ready: bool,
    /// The key of the pending taint that it has.
    pub(super) pending: Option<Arc<str>>,
}

/// The record of a node.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// The name of its ConfigMap.
    pub(super) config_map: String,
    /// The name of the node.
    pub(super) node: String,
    /// Its history, the newest last.
    pub(super) changes: Vec<Change>,
}

/// What the leader publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) policies: Policies,
    pub(super) withheld: Withheld,
}

/// Which policies are in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Policies {
    /// Nobody has published them.
    #[default]
    Unknown,
    /// What is published cannot be read, for this reason.
    Garbled(String),
    /// Those with these names.
    Named(Vec<String>),
}

/// What the leader does not write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Withheld {
    /// How many keys it does not repair anymore.
    pub(super) left_alone: usize,
    /// Why removals are held back.
    pub(super) held_back: Option<String>,
}

/// An event that nodegate published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// The name of the event.
    pub(super) event: String,
    /// When it happened last, as whoever wrote it says.
    pub(super) time: Timestamp,
    /// What it is about: the name of a node, or `KIND/NAME`.
    pub(super) about: String,
    pub(super) reason: String,
    pub(super) note: String,
    pub(super) is_warning: bool,
}

/// What a pass over all nodes has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// How many nodes differ from what they should have.
    pub(super) drifting: usize,
    /// How many nodes cannot be read, so that it is unknown whether they do.
    pub(super) unreadable: usize,
    /// The first of them by name, with what differs.
    pub(super) drift: Vec<(String, String)>,
    /// Why nodes with the pending taint wait, by node.
    pub(super) waiting: HashMap<String, String>,
}
