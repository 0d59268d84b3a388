// Karpenter with its kwok provider, whose machines join the cluster as kubelets do.
//
// The provider creates Nodes with Karpenter's own account, and with labels that no kubelet may set. Here each Node is created by the
// user of its kubelet, with the labels that NodeRestriction lets a kubelet set, and with the ID of the machine as extra information, as
// EKS authenticates it.
package main

import (
	"context"
	"strings"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

// allowed are the labels of Kubernetes that kubelets may set (k8s.io/kubernetes/pkg/kubelet/apis/well_known_labels.go).
var allowed = map[string]bool{
	corev1.LabelHostname: true, corev1.LabelArchStable: true, corev1.LabelOSStable: true,
	corev1.LabelInstanceTypeStable: true, corev1.LabelInstanceType: true,
	corev1.LabelTopologyZone: true, corev1.LabelTopologyRegion: true,
	corev1.LabelFailureDomainBetaZone: true, corev1.LabelFailureDomainBetaRegion: true,
}

type kubelets struct {
	client.Client
	config *rest.Config
}

func isRestricted(key string) bool {
	domain, _, found := strings.Cut(key, "/")
	if !found || allowed[key] {
		return false
	}
	in := func(parent string) bool { return domain == parent || strings.HasSuffix(domain, "."+parent) }
	if in("node-restriction.kubernetes.io") {
		return true
	}
	return (in("kubernetes.io") || in("k8s.io")) && !in("kubelet.kubernetes.io") && !in("node.kubernetes.io")
}

// Create lets the kubelet of a Node create it.
func (k kubelets) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	node, ok := object.(*corev1.Node)
	if !ok {
		return k.Client.Create(ctx, object, options...)
	}
	node.Labels = lo.OmitBy(node.Labels, func(key, _ string) bool { return isRestricted(key) })
	config := rest.CopyConfig(k.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:node:" + node.Name,
		Groups:   []string{"system:nodes", "system:authenticated"},
		Extra:    map[string][]string{"sessionname": {node.Name}},
	}
	kubelet, err := client.New(config, client.Options{Scheme: k.Scheme(), Mapper: k.RESTMapper()})
	if err != nil {
		return err
	}
	return kubelet.Create(ctx, node, options...)
}

func main() {
	ctx, op := operator.NewOperator()
	machines := kubelets{op.GetClient(), ctrl.GetConfigOrDie()}
	plain := kwok.NewCloudProvider(ctx, machines, lo.Must(kwok.ConstructInstanceTypes(ctx)))
	provider := overlay.Decorate(plain, op.GetClient(), op.InstanceTypeStore)
	repair := lo.Must(health.NewRepairPolicyMatcher(ctx, provider))
	cluster := state.NewCluster(op.Clock, op.GetClient(), provider, state.WithRepairPolicyMatcher(repair))
	op.WithControllers(ctx, controllers.NewControllers(
		ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, provider, plain, cluster, op.InstanceTypeStore, op.PredictionStore,
	)...).Start(ctx)
}
