//! Keys of cloud providers and of their managed Kubernetes services.

use super::Kind::Machine;
use super::Program;

const fn of_a_cloud(
    name: &'static str,
    source: &'static str,
    labels: &'static [&'static str],
    taints: &'static [&'static str],
) -> Program {
    Program { name, kind: Machine, source, labels, annotations: &[], taints }
}

pub(super) const PROGRAMS: &[Program] = &[
    of_a_cloud(
        "EKS",
        "eksctl-io/eksctl pkg/apis/eksctl.io/v1alpha5/types.go, docs.aws.amazon.com/eks (managed node groups)",
        &["alpha.eksctl.io/*", "eks.amazonaws.com/*", "vpc.amazonaws.com/*"],
        &["alpha.eksctl.io/*", "eks.amazonaws.com/*", "vpc.amazonaws.com/*"],
    ),
    of_a_cloud(
        "the AWS cloud controller",
        "kubernetes-sigs/aws-ebs-csi-driver pkg/driver/driver.go, aws/karpenter-provider-aws pkg/apis/v1/labels.go",
        &["k8s.io/cloud-provider-aws", "topology.k8s.aws/*"],
        &["topology.k8s.aws/*"],
    ),
    of_a_cloud(
        "GKE",
        "cloudpilot-ai/karpenter-provider-gcp pkg/apis/v1alpha1/labels.go and pkg/providers/instance, cloud.google.com/kubernetes-engine/docs",
        &["cloud.google.com/*", "iam.gke.io/*", "node.gke.io/*"],
        &["cloud.google.com/*", "iam.gke.io/*", "node.gke.io/*"],
    ),
    of_a_cloud(
        "AKS",
        "Azure/karpenter-provider-azure pkg/apis/v1beta1/labels.go, learn.microsoft.com/azure/aks/use-labels",
        &["agentpool", "kubernetes.azure.com/*", "storageprofile", "storagetier"],
        &["kubernetes.azure.com/*"],
    ),
    of_a_cloud(
        "IBM Cloud Kubernetes Service",
        "cloud.ibm.com/docs/containers (deploying apps to specific worker nodes), kubernetes-sigs/ibm-vpc-block-csi-driver README.md",
        &["ibm-cloud.kubernetes.io/*", "privateVLAN", "publicVLAN", "vpc-block-csi-driver-labels"],
        &[],
    ),
    of_a_cloud(
        "DigitalOcean Kubernetes",
        "docs.digitalocean.com/products/kubernetes/details/managed",
        &["doks.digitalocean.com/*"],
        &["doks.digitalocean.com/*"],
    ),
    of_a_cloud(
        "Alibaba Cloud Container Service",
        "alibabacloud.com/help/en/ack (node labels)",
        &["ack.aliyun.com", "alibabacloud.com/nodepool-id", "node.alibabacloud.com/*"],
        &[],
    ),
    of_a_cloud(
        "Huawei Cloud Container Engine",
        "support.huaweicloud.com/usermanual-cce (managing node labels)",
        &[
            "cce.cloud.com/*",
            "kubernetes.io/availablezone",
            "kubernetes.io/eniquota",
            "node.kubernetes.io/baremetal",
            "node.kubernetes.io/container-engine",
            "node.kubernetes.io/subnetid",
            "os.architecture",
            "os.name",
            "os.version",
        ],
        &[],
    ),
    of_a_cloud(
        "Tencent Kubernetes Engine",
        "cloud.tencent.com/document/product/457 (native nodes), and the TKE API (DescribeClusterInstances)",
        &["cloud.tencent.com/*", "node.tke.cloud.tencent.com/*", "tke.cloud.tencent.com/*"],
        &[],
    ),
    of_a_cloud(
        "Yandex Managed Kubernetes",
        "yandex-cloud/docs managed-kubernetes/operations/node-group/node-label-management.md",
        &["yandex.cloud/*"],
        &[],
    ),
    of_a_cloud(
        "Vultr Kubernetes Engine",
        "docs.vultr.com (Vultr Kubernetes Engine, node pools)",
        &["vke.vultr.com/*"],
        &[],
    ),
    of_a_cloud(
        "OVHcloud Managed Kubernetes",
        "ovh/docs pages/public_cloud/containers_orchestration/managed_kubernetes (GPU applications)",
        &["k8s.ovh.net/*", "node.k8s.ovh/*"],
        &[],
    ),
    of_a_cloud(
        "Linode Kubernetes Engine",
        "techdocs.akamai.com/cloud-computing/docs/lke, linode/linode-cloud-controller-manager",
        &["lke.linode.com/*", "node.k8s.linode.com/*"],
        &[],
    ),
    of_a_cloud(
        "the Oracle cloud controller",
        "oracle/oci-cloud-controller-manager pkg/cloudprovider/providers/oci/node_info_controller.go",
        &["oci.oraclecloud.com/fault-domain", "oci.oraclecloud.com/ip-family-preferred"],
        &[],
    ),
    of_a_cloud(
        "the Hetzner cloud controller",
        "hetznercloud/hcloud-cloud-controller-manager hcloud/instances.go",
        &["instance.hetzner.cloud/*"],
        &[],
    ),
    of_a_cloud(
        "Scaleway Kubernetes Kapsule",
        "www.scaleway.com/en/docs/kubernetes (labels and taints of a pool)",
        &["k8s.scaleway.com/*"],
        &["k8s.scaleway.com/*"],
    ),
];
