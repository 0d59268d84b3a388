# shellcheck shell=bash
# Sourced by `trial`: the control plane, beside the nodes' bridge. It is no node.

readonly plane_ip=172.31.0.1 api_server=https://172.31.0.1:6443 services=10.96.0.0/16 dns_ip=10.96.0.10 pods=10.244.0.0/16
readonly admin_token=admin-of-the-trial bootstrap_token=abcdef.0123456789abcdef

# certificate NAME SUBJECT [EXTENSIONS]: a key and a certificate of the cluster's CA.
certificate() {
    openssl req -newkey rsa:2048 -nodes -keyout "$pki/$1.key" -subj "$2" 2>/dev/null |
        openssl x509 -req -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -days 2 -out "$pki/$1.crt" -extfile <(printf '%s\n' "${3-}") 2>/dev/null
}

make_credentials() {
    mkdir -p "$pki"
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$pki/ca.key" -out "$pki/ca.crt" -days 2 -subj /CN=trial 2>/dev/null
    certificate api-server /CN=kube-apiserver "subjectAltName=IP:$plane_ip,IP:10.96.0.1,IP:127.0.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
    certificate to-kubelets /O=system:masters/CN=kube-apiserver-kubelet-client extendedKeyUsage=clientAuth
    openssl genrsa -out "$pki/accounts.key" 2048 2>/dev/null
    printf '%s,%s,%s,"%s"\n' "$admin_token" admin admin system:masters scheduler system:kube-scheduler scheduler '' \
        manager system:kube-controller-manager manager '' proxy system:kube-proxy proxy '' >"$pki/tokens.csv"
    local name
    for name in scheduler manager proxy; do kubeconfig "$name" >"$work/$name.kubeconfig"; done
    kubeconfig "$admin_token" >"$work/admin.kubeconfig"
    kubeconfig "$bootstrap_token" >"$work/bootstrap.kubeconfig"
}

# kubeconfig TOKEN
kubeconfig() {
    printf '{apiVersion: v1, kind: Config, current-context: trial, contexts: [{name: trial, context: {cluster: trial, user: user}}],'
    printf ' clusters: [{name: trial, cluster: {server: "%s", certificate-authority: "%s"}}], users: [{name: user, user: {token: "%s"}}]}\n' \
        "$api_server" "$pki/ca.crt" "$1"
}

make_network() {
    ip link set lo up
    ip link add nodes type bridge
    ip address add "$plane_ip/24" dev nodes
    ip link set nodes up
    # What nodes send each other is no matter of this side.
    echo 0 2>/dev/null >/proc/sys/net/bridge/bridge-nf-call-iptables || true
}

# start NAME COMMAND…: in the background; its log and its process have this name.
start() {
    "${@:2}" >>"$work/$1.log" 2>&1 &
    echo $! >"$work/$1.pid"
    # Else bash tells how it ended.
    disown
}

start_etcd() {
    start etcd etcd --data-dir="$work/etcd" --unsafe-no-fsync --log-level=error --listen-client-urls=http://127.0.0.1:2379 \
        --advertise-client-urls=http://127.0.0.1:2379 --listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 \
        --initial-cluster=default=http://127.0.0.1:2380
}

# The API server finds the endpoints of a webhook's Service itself, as it has no kube-proxy beside it.
start_api_server() {
    start kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address="$plane_ip" --secure-port=6443 \
        --tls-cert-file="$pki/api-server.crt" --tls-private-key-file="$pki/api-server.key" --client-ca-file="$pki/ca.crt" \
        --kubelet-client-certificate="$pki/to-kubelets.crt" --kubelet-client-key="$pki/to-kubelets.key" --kubelet-preferred-address-types=InternalIP \
        --service-account-key-file="$pki/accounts.key" --service-account-signing-key-file="$pki/accounts.key" \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local --service-cluster-ip-range="$services" --token-auth-file="$pki/tokens.csv" \
        --enable-bootstrap-token-auth --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --enable-aggregator-routing \
        --allow-privileged
}

start_controllers() {
    start kube-controller-manager kube-controller-manager --kubeconfig="$work/manager.kubeconfig" --use-service-account-credentials --leader-elect=false \
        --root-ca-file="$pki/ca.crt" --service-account-private-key-file="$pki/accounts.key" --cluster-signing-cert-file="$pki/ca.crt" \
        --cluster-signing-key-file="$pki/ca.key" --controllers='*,bootstrapsigner,tokencleaner' --bind-address=127.0.0.1
    start kube-scheduler kube-scheduler --kubeconfig="$work/scheduler.kubeconfig" --leader-elect=false --bind-address=127.0.0.1
}

start_plane() {
    start_etcd
    start_api_server
    within 180 'the API server is ready' is_api_ready
    start_controllers
}

is_api_ready() { kubectl get --raw /readyz >/dev/null 2>&1; }

# stop_plane: as if its machine lost power.
stop_plane() {
    local name
    for name in kube-scheduler kube-controller-manager kube-apiserver etcd; do
        kill -KILL "$(cat "$work/$name.pid")"
        within 30 "$name has ended" has_ended "$(cat "$work/$name.pid")"
    done
}

# has_ended PROCESS: a process whose first thread has ended may have others, and its sockets.
has_ended() { [[ ! -d /proc/$1 ]]; }
