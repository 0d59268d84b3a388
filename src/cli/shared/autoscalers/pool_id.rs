//! Which pool of nodes, and which objects or groups are about it.

use std::collections::BTreeMap;

use anyhow::bail;

use super::declared::{Declared, Provisioner};
use super::provisioners::NODEPOOL;

/// What makes nodes one pool. Pools of different makers may have the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::cli) struct PoolId {
    pub(in crate::cli) name: String,
    pub(in crate::cli) by: HeldBy,
}

/// What holds the nodes of a pool together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::cli) enum HeldBy {
    /// The label that the user groups by.
    Chosen,
    /// The label of a node group.
    Label(&'static str),
    /// The proof of the pool, and the namespace of the objects of its machines, if it is known.
    Proof { namespace: Option<String> },
}

impl PoolId {
    /// The pool that an object declares.
    pub(in crate::cli) fn of(declared: &Declared) -> Self {
        let by = match declared.provisioner {
            Some(Provisioner::Karpenter) => HeldBy::Label(NODEPOOL),
            Some(Provisioner::ClusterApi) | None => HeldBy::Proof { namespace: declared.cluster.clone() },
        };
        Self { name: declared.pool.clone(), by }
    }

    /// What is declared of it.
    ///
    /// # Errors
    /// Returns an error if groups of several clusters have its name.
    pub(in crate::cli) fn among<'d>(&self, declared: &'d [Declared]) -> anyhow::Result<Vec<&'d Declared>> {
        let found: Vec<&Declared> = declared.iter().filter(|one| self.is(one)).collect();
        let clusters: BTreeMap<&str, &str> =
            found.iter().filter_map(|one| Some((one.cluster.as_deref()?, &*one.told_by))).collect();
        let mut clusters = clusters.iter();
        if let (Some((first, one)), Some((second, other))) = (clusters.next(), clusters.next()) {
            bail!(
                "pool {}: {one} ({first}) and {other} ({second}) have this name, and may be of different clusters; pass --groups FILE with those of one cluster",
                self.name
            );
        }
        Ok(found)
    }

    /// Whether this is about it.
    pub(in crate::cli) fn is(&self, declared: &Declared) -> bool {
        let of_its_maker = match (&self.by, declared.provisioner) {
            (HeldBy::Chosen, _) => true,
            // Cluster API has no label of its own on nodes.
            (HeldBy::Label(_), Some(Provisioner::ClusterApi)) => false,
            (HeldBy::Label(label), made_by) => (*label == NODEPOOL) == (made_by == Some(Provisioner::Karpenter)),
            (HeldBy::Proof { namespace: Some(namespace) }, Some(Provisioner::ClusterApi)) => {
                declared.cluster.as_ref() == Some(namespace)
            }
            (HeldBy::Proof { .. }, _) => true,
        };
        of_its_maker && declared.names().any(|name| name == self.name)
    }

    /// The name, with what tells it from pools of the same name.
    pub(in crate::cli) fn in_full(&self) -> String {
        match &self.by {
            HeldBy::Chosen | HeldBy::Proof { namespace: None } => self.name.clone(),
            HeldBy::Label(label) => format!("{label}={}", self.name),
            HeldBy::Proof { namespace: Some(namespace) } => format!("{namespace}/{}", self.name),
        }
    }
}
