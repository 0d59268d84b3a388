//! Words that say nothing about whose cluster it is: those of Kubernetes, of platforms, and of the keys of known programs.

use std::collections::HashSet;
use std::sync::LazyLock;

use nodegate_policy::programs;

/// Words in lower case. Add those of another platform here.
const WORDS: &str = "
    node nodes system bootstrap bootstrappers authenticated masters kubeadm default token tokens kubelet kube kubernetes k8s io api
    name namespace requester user username group groups serviceaccount serviceaccounts service account authentication authorization
    credential id x509sha256 jti extra beta alpha dev com net org local localdomain lan internal svc cluster clusters
    noschedule noexecute prefernoschedule internalip externalip internaldns externaldns hostname address
    true false amd64 arm64 x86 linux windows os arch role roles worker workers master control plane controlplane controller
    pool pools nodepool nodepools agentpool agentpools nodegroup nodegroups machine machines machineset machinesets
    machinedeployment nodeclaim provider providers manager region zone zones failure domain topology instance type lifecycle
    capacity spot demand on ondemand template hash version release image
    aws amazon amazonaws arn cn us gov iam sts ec2 eks eksctl asg assumed assume sessionname role session compute managed fargate
    karpenter sh bottlerocket
    gce gcp gke google cloud container preemptible
    azure aks microsoft virtualmachinescalesets virtualmachinescaleset virtualmachines virtualmachine subscriptions
    resourcegroups vmss mc
    openshift ocp rhcos machineconfig machineconfigpool currentconfig coreos red hat enterprise
    talos siderolabs sidero metal k3s rke rke2 rancher cattle k0s k0sproject kops kubespray gardener minikube kind kubemark
    vsphere openstack nova hcloud hetzner digitalocean do linode lke vultr oci oracle oke ibm iks alibaba alibabacloud
    aliyun ack tencent scaleway ovh proxmox harvester kubevirt equinixmetal baremetalhost
    x capi owner kind mhc infrastructure deployment
    gpu gpus cpu memory nvidia amd intel ephemeral storage hugepages gi mi pods attachable volumes hollow
    ubuntu debian flatcar container optimized suse sles opensuse alpine lts server containerd cri cri-o docker crio runc
    f k v metadata labels annotations spec taints status providerid podcidr podcidrs unschedulable
    controllers update apply kubectl label taint attach detach
    eu ap sa ca me af il mx asia europe australia africa america northamerica southamerica central east west north south
    northeast southeast northwest southwest
";

static PUBLIC: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let keys = programs::table().flat_map(|(_, pattern, _)| pattern.split(|c: char| !c.is_alphanumeric()));
    WORDS.split_whitespace().chain(keys).map(str::to_lowercase).filter(|word| !word.is_empty()).collect()
});

/// Whether a word may be in a recording as it is: a known one, a single character, or a small number as versions and zones have.
pub(super) fn is_public(word: &str) -> bool {
    let lower = word.to_lowercase();
    lower.chars().count() == 1 || is_small_number(&lower) || is_number_in_scale_set(&lower) || PUBLIC.contains(&lower)
}

/// `24`, `v1`, `1a`.
fn is_small_number(word: &str) -> bool {
    let number = word.strip_prefix('v').unwrap_or(word);
    let number = number.strip_suffix(|last: char| last.is_ascii_lowercase()).unwrap_or(number);
    (1..=3).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The last word of a node's name on AKS: the number of the machine in its scale set, in base 36.
fn is_number_in_scale_set(word: &str) -> bool {
    let number = word.strip_prefix("vmss").filter(|number| number.len() == 6);
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}
