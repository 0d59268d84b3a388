//! Tags of Auto Scaling groups and scale sets, which tell Cluster Autoscaler the labels and taints of their nodes.

use nodegate_policy::templates::TemplateKey;

/// How tags of a provider say labels and taints (`kubernetes/autoscaler`, `cluster-autoscaler/cloudprovider`).
pub(in crate::cli) struct Tags {
    /// What has tags.
    pub(in crate::cli) kind: &'static str,
    /// What prints them.
    pub(in crate::cli) command: &'static str,
    label: &'static str,
    taint: &'static str,
    /// Whether a key is written with `_` for `/`, and with `~2` for `_`.
    has_no_slashes: bool,
    /// The largest number of characters of a tag's name and of its value.
    limits: (usize, usize),
}

/// Of AWS (`aws/auto_scaling_groups`). Limits: Amazon EC2 Auto Scaling, "Tag naming and usage restrictions".
pub(in crate::cli) const ASG: Tags = Tags {
    kind: "Auto Scaling group",
    command: "aws autoscaling describe-auto-scaling-groups",
    label: "k8s.io/cluster-autoscaler/node-template/label/",
    taint: "k8s.io/cluster-autoscaler/node-template/taint/",
    has_no_slashes: false,
    limits: (128, 256),
};

/// Of Azure (`azure/azure_template.go`). Limits: Azure Resource Manager, "Use tags to organize your Azure resources".
pub(in crate::cli) const VMSS: Tags = Tags {
    kind: "scale set",
    command: "az vmss list",
    label: "k8s.io_cluster-autoscaler_node-template_label_",
    taint: "k8s.io_cluster-autoscaler_node-template_taint_",
    has_no_slashes: true,
    limits: (512, 256),
};

impl Tags {
    /// The tag that says a label or taint.
    pub(super) fn tag(&self, key: &TemplateKey) -> (String, String) {
        let name = match self.has_no_slashes {
            true => key.key.replace('_', "~2").replace('/', "_"),
            false => key.key.clone(),
        };
        match &key.effect {
            None => (format!("{}{name}", self.label), key.value.clone()),
            Some(effect) => (format!("{}{name}", self.taint), format!("{}:{effect}", key.value)),
        }
    }

    /// The key of the label that a tag says.
    pub(in crate::cli) fn label(&self, tag: &str) -> Option<String> {
        tag.strip_prefix(self.label).map(|key| self.key(key))
    }

    /// The key of the taint that a tag says.
    pub(in crate::cli) fn taint(&self, tag: &str) -> Option<String> {
        tag.strip_prefix(self.taint).map(|key| self.key(key))
    }

    fn key(&self, name: &str) -> String {
        if self.has_no_slashes { name.replace('_', "/").replace("~2", "_") } else { name.to_owned() }
    }

    /// Why no tag can say it, whatever else is said of its pool.
    pub(super) fn too_long(&self, key: &TemplateKey) -> Option<String> {
        let (name, value) = self.tag(key);
        let (of_name, of_value) = self.limits;
        if name.chars().count() > of_name {
            return Some(format!("the name of its tag would have more than {of_name} characters"));
        }
        (value.chars().count() > of_value).then(|| format!("its tag would have more than {of_value} characters"))
    }
}
