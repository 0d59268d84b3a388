// Command controller-runtime is a webhook as it is written by hand with controller-runtime: it gives each Node that its
// kubelet creates the four labels and the taint that the benchmark's policy gives it.
//
//	controller-runtime --listen 127.0.0.1:9443 --cert-dir DIR
//
// DIR has tls.crt and tls.key. It answers on /mutate and needs no cluster.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9443", "HTTPS address, HOST:PORT")
	certs := flag.String("cert-dir", "certs", "directory of tls.crt and tls.key")
	flag.Parse()
	if err := serve(*listen, *certs); err != nil {
		log.Fatal(err)
	}
}

func serve(listen, certs string) error {
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return err
	}
	server := webhook.NewServer(webhook.Options{Host: host, Port: port, CertDir: certs})
	server.Register("/mutate", &webhook.Admission{Handler: &nodes{admission.NewDecoder(scheme)}})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return server.Start(ctx)
}

// nodes answers reviews of Nodes.
type nodes struct {
	decoder admission.Decoder
}

func (n *nodes) Handle(_ context.Context, request admission.Request) admission.Response {
	node := &corev1.Node{}
	if err := n.decoder.Decode(request, node); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	change(node)
	changed, err := json.Marshal(node)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, changed)
}

// change does what the rules of benches/support/peer.rs do.
func change(node *corev1.Node) {
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	if strings.HasPrefix(node.Name, "bench-") {
		node.Labels["hardware.tier"] = "gold"
		node.Labels["team"] = "platform"
		dedicate(node)
	}
	pool, pooled := node.Labels["pool"]
	if pool == "gpu" {
		node.Labels["accelerator"] = "nvidia-gpu"
	}
	if pooled {
		node.Labels["pooled"] = "true"
	}
}

func dedicate(node *corev1.Node) {
	taint := corev1.Taint{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(other corev1.Taint) bool { return other.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
}
