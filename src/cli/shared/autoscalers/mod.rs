//! What autoscalers expect of the next node of each pool, and what that node will have.

pub(in crate::cli) mod check;
pub(in crate::cli) mod declared;
pub(in crate::cli) mod document;
pub(in crate::cli) mod files;
pub(in crate::cli) mod formats;
pub(in crate::cli) mod groups;
mod pool_id;
pub(in crate::cli) mod provisioners;
mod tags;

/// The words of an autoscaler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum TemplateFormat {
    /// Tags of Auto Scaling groups, for Cluster Autoscaler on AWS
    AsgTags,
    /// Tags of virtual machine scale sets, for Cluster Autoscaler on Azure
    VmssTags,
    /// Annotations of MachineDeployments, for Cluster Autoscaler with Cluster API
    CapiAnnotations,
    /// NodePools of Karpenter, for `kubectl apply --server-side`
    NodepoolPatch,
    /// Flags of Cluster Autoscaler, for labels that differ between the nodes of a pool
    Flags,
}
