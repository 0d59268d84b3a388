// A cloud provider for Cluster Autoscaler, whose machines join the cluster as kubelets do.
//
//	provider ADDRESS GROUPS
//
// GROUPS is a JSON file with the node groups; it is read anew each time. A machine of a group creates its Node as the user of its kubelet.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/autoscaler/cluster-autoscaler/cloudprovider"
	"k8s.io/autoscaler/cluster-autoscaler/cloudprovider/externalgrpc/protos"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// group is a node group: how its machines register, and what the cloud says about its next node.
type group struct {
	ID       string            `json:"id"`
	Max      int32             `json:"max"`
	Labels   map[string]string `json:"labels"`
	Template struct {
		Labels map[string]string `json:"labels"`
		Taints []corev1.Taint    `json:"taints"`
	} `json:"template"`
}

type provider struct {
	protos.UnimplementedCloudProviderServer
	file   string
	config *rest.Config
	admin  *kubernetes.Clientset

	mutex    sync.Mutex
	launched int
	machines map[string]map[string]bool
}

const scheme = "fleet://"

func resources() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
}

func (p *provider) groups() ([]group, error) {
	text, err := os.ReadFile(p.file)
	if err != nil {
		return nil, err
	}
	var groups []group
	return groups, json.Unmarshal(text, &groups)
}

func (p *provider) group(id string) (*group, error) {
	groups, err := p.groups()
	for _, one := range groups {
		if one.ID == id {
			return &one, nil
		}
	}
	return nil, fmt.Errorf("no group %q: %v", id, err)
}

func (g *group) node(name string) *corev1.Node {
	labels := map[string]string{corev1.LabelHostname: name}
	for key, value := range g.Labels {
		labels[key] = value
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: scheme + g.ID + "/" + name},
		Status:     corev1.NodeStatus{Capacity: resources(), Allocatable: resources()},
	}
}

// NodeGroups lists all groups.
func (p *provider) NodeGroups(context.Context, *protos.NodeGroupsRequest) (*protos.NodeGroupsResponse, error) {
	groups, err := p.groups()
	found := &protos.NodeGroupsResponse{}
	for _, one := range groups {
		found.NodeGroups = append(found.NodeGroups, &protos.NodeGroup{Id: one.ID, MaxSize: one.Max})
	}
	return found, err
}

// NodeGroupForNode finds the group of a node by its provider ID.
func (p *provider) NodeGroupForNode(_ context.Context, request *protos.NodeGroupForNodeRequest) (*protos.NodeGroupForNodeResponse, error) {
	id, _, _ := strings.Cut(strings.TrimPrefix(request.Node.ProviderID, scheme), "/")
	one, err := p.group(id)
	if err != nil {
		return &protos.NodeGroupForNodeResponse{NodeGroup: &protos.NodeGroup{}}, nil
	}
	return &protos.NodeGroupForNodeResponse{NodeGroup: &protos.NodeGroup{Id: one.ID, MaxSize: one.Max}}, nil
}

// GPULabel is the one of AWS.
func (p *provider) GPULabel(context.Context, *protos.GPULabelRequest) (*protos.GPULabelResponse, error) {
	return &protos.GPULabelResponse{Label: "k8s.amazonaws.com/accelerator"}, nil
}

// GetAvailableGPUTypes has none.
func (p *provider) GetAvailableGPUTypes(context.Context, *protos.GetAvailableGPUTypesRequest) (*protos.GetAvailableGPUTypesResponse, error) {
	return &protos.GetAvailableGPUTypesResponse{}, nil
}

// Cleanup has nothing to do.
func (p *provider) Cleanup(context.Context, *protos.CleanupRequest) (*protos.CleanupResponse, error) {
	return &protos.CleanupResponse{}, nil
}

// Refresh has nothing to do.
func (p *provider) Refresh(context.Context, *protos.RefreshRequest) (*protos.RefreshResponse, error) {
	return &protos.RefreshResponse{}, nil
}

// NodeGroupTargetSize is the number of machines.
func (p *provider) NodeGroupTargetSize(_ context.Context, request *protos.NodeGroupTargetSizeRequest) (*protos.NodeGroupTargetSizeResponse, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return &protos.NodeGroupTargetSizeResponse{TargetSize: int32(len(p.machines[request.Id]))}, nil
}

// NodeGroupIncreaseSize launches machines.
func (p *provider) NodeGroupIncreaseSize(ctx context.Context, request *protos.NodeGroupIncreaseSizeRequest) (*protos.NodeGroupIncreaseSizeResponse, error) {
	of, err := p.group(request.Id)
	if err != nil {
		return nil, err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for range request.Delta {
		name := fmt.Sprintf("%s-%d", of.ID, p.launched)
		p.launched++
		if p.machines[of.ID] == nil {
			p.machines[of.ID] = map[string]bool{}
		}
		p.machines[of.ID][name] = true
		go p.join(of.node(name))
	}
	return &protos.NodeGroupIncreaseSizeResponse{}, nil
}

// join is what the kubelet of a machine does.
func (p *provider) join(node *corev1.Node) {
	config := rest.CopyConfig(p.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:node:" + node.Name,
		Groups:   []string{"system:nodes", "system:authenticated"},
	}
	kubelet, err := kubernetes.NewForConfig(config)
	if err == nil {
		_, err = kubelet.CoreV1().Nodes().Create(context.Background(), node, metav1.CreateOptions{})
	}
	if err != nil {
		log.Printf("%s could not join: %v", node.Name, err)
	}
}

// NodeGroupDeleteNodes ends machines.
func (p *provider) NodeGroupDeleteNodes(ctx context.Context, request *protos.NodeGroupDeleteNodesRequest) (*protos.NodeGroupDeleteNodesResponse, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, node := range request.Nodes {
		delete(p.machines[request.Id], node.Name)
		if err := p.admin.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{}); err != nil {
			log.Printf("%s could not be deleted: %v", node.Name, err)
		}
	}
	return &protos.NodeGroupDeleteNodesResponse{}, nil
}

// NodeGroupDecreaseTargetSize has nothing to take back: machines are launched at once.
func (p *provider) NodeGroupDecreaseTargetSize(context.Context, *protos.NodeGroupDecreaseTargetSizeRequest) (*protos.NodeGroupDecreaseTargetSizeResponse, error) {
	return &protos.NodeGroupDecreaseTargetSizeResponse{}, nil
}

// NodeGroupNodes lists the machines of a group.
func (p *provider) NodeGroupNodes(_ context.Context, request *protos.NodeGroupNodesRequest) (*protos.NodeGroupNodesResponse, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	found := &protos.NodeGroupNodesResponse{}
	running := &protos.InstanceStatus{InstanceState: protos.InstanceStatus_instanceRunning, ErrorInfo: &protos.InstanceErrorInfo{}}
	for name := range p.machines[request.Id] {
		found.Instances = append(found.Instances, &protos.Instance{Id: scheme + request.Id + "/" + name, Status: running})
	}
	return found, nil
}

// NodeGroupTemplateNodeInfo is what the cloud says about the next node of a group.
func (p *provider) NodeGroupTemplateNodeInfo(_ context.Context, request *protos.NodeGroupTemplateNodeInfoRequest) (*protos.NodeGroupTemplateNodeInfoResponse, error) {
	of, err := p.group(request.Id)
	if err != nil {
		return nil, err
	}
	node := of.node(of.ID + "-template")
	for key, value := range of.Template.Labels {
		node.Labels[key] = value
	}
	node.Spec.Taints = of.Template.Taints
	node.Status.Conditions = cloudprovider.BuildReadyConditions()
	text, err := node.Marshal()
	return &protos.NodeGroupTemplateNodeInfoResponse{NodeBytes: text}, err
}

func main() {
	address, file := os.Args[1], os.Args[2]
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	config.QPS, config.Burst = 500, 500
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	protos.RegisterCloudProviderServer(server, &provider{
		file: file, config: config, admin: kubernetes.NewForConfigOrDie(config), machines: map[string]map[string]bool{},
	})
	log.Fatal(server.Serve(listener))
}
