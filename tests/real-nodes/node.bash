# shellcheck shell=bash
# Sourced by `trial`: nodes. Each one is a namespace of processes, mounts, names and network, a directory for its disk, and a cgroup.

# power_on NAME: starts a node as its machine does at boot.
power_on() {
    local name=$1 node=$work/nodes/$1 number before
    [[ -d $node ]] || prepare "$name"
    number=$(cat "$node/number")
    rm -f "$node/booted"
    unshare --net --pid --mount --uts --fork --kill-child --mount-proc tests/real-nodes/boot "$name" "$node" >>"$node/boot.log" 2>&1 &
    before=$!
    within 60 "$name has booted" test -e "$node/booted"
    pgrep --parent "$before" >"$node/init"
    connect "$name" "$number"
    on_node "$name" "$NODE_PROGRAMS/bin/containerd" --config "$node/containerd.toml" >>"$node/containerd.log" 2>&1 &
    within 60 "containerd of $name answers" has_containerd "$name"
    if [[ ! -e $node/disk/has-images ]]; then
        local image
        for image in coredns pause; do ctr "$name" images import "$NODE_PROGRAMS/images/$image.tar"; done >/dev/null
        ctr "$name" images import --base-name "$registry/nodegate" "$IMAGE" >/dev/null
        touch "$node/disk/has-images"
    fi
    on_node "$name" "$NODE_PROGRAMS/bin/kube-proxy" --kubeconfig="$work/proxy.kubeconfig" --proxy-mode=nftables --cluster-cidr="$pods" \
        --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0 >>"$node/kube-proxy.log" 2>&1 &
    start_kubelet "$name"
}

# prepare NAME: a new machine.
prepare() {
    local node=$work/nodes/$1
    mkdir -p "$node/disk"
    find "$work/nodes" -mindepth 1 -maxdepth 1 | wc -l >"$node/number"
    make_cgroups "$CGROUP/$1"
    configure "$1"
}

# discard NAME: the machine is gone for good, and its Node with it. Pods leave first: those of a Node that is deleted stay endpoints for a minute.
discard() {
    kubectl drain "$1" --ignore-daemonsets --delete-emptydir-data --force --timeout=300s >/dev/null
    within 180 'three replicas are ready' all_ready
    power_off "$1"
    kubectl delete node "$1" >/dev/null
}

make_cgroups() {
    local hierarchy part file
    for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*/; do
        [[ -e $hierarchy/cgroup.procs ]] || continue
        part=$hierarchy
        for directory in ${1//\// }; do
            part=$part/$directory
            mkdir -p "$part"
            # A cpuset of version 1 is empty at first, and nothing can be in it.
            for file in cpuset.cpus cpuset.mems; do
                [[ ! -e $part/$file || -e $part/cgroup.controllers ]] || cat "$(dirname "$part")/$file" >"$part/$file"
            done
            # In version 2, what a cgroup limits is switched on for those below it.
            for file in cpuset cpu io memory pids; do
                [[ ! -e $part/cgroup.subtree_control ]] || echo "+$file" 2>/dev/null >"$part/cgroup.subtree_control" || true
            done
        done
    done
}

configure() {
    local name=$1 node=$work/nodes/$1 number
    number=$(cat "$node/number")
    mkdir -p "$node/disk/kubelet" "$node/disk/cni/net.d"
    cat >"$node/containerd.toml" <<TOML
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:trial"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "$NODE_PROGRAMS/bin/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$NODE_PROGRAMS/debian.unpacked/usr/lib/cni"
    conf_dir = "/var/lib/cni/net.d"
TOML
    cat >"$node/disk/cni/net.d/pods.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam":
  {"type": "host-local", "ranges": [[{"subnet": "10.244.$number.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
JSON
    cat >"$node/disk/kubelet/config.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: "$pki/ca.crt"}}
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP/$name
failCgroupV1: false
failSwapOn: false
clusterDNS: [$dns_ip]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
# The disk is the machine's, which others fill.
evictionHard: {memory.available: 50Mi}
imageGCHighThresholdPercent: 100
resolvConf: ""
rotateCertificates: true
YAML
}

# connect NAME NUMBER: a cable to the bridge, and the ways to the pods of all nodes.
connect() {
    local name=$1 number=$2 address=172.31.0.$((10 + $2)) peer
    ip link add "node-$number" type veth peer name eth0 netns "$(cat "$work/nodes/$name/init")"
    ip link set "node-$number" master nodes up
    ip route replace "10.244.$number.0/24" via "$address"
    on_node "$name" ip link set lo up
    on_node "$name" ip address add "$address/24" dev eth0
    on_node "$name" ip link set eth0 up
    on_node "$name" ip route add default via "$plane_ip"
    on_node "$name" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
    # All that there may be.
    for peer in {1..20}; do
        ((peer == number)) || on_node "$name" ip route add "10.244.$peer.0/24" via "172.31.0.$((10 + peer))"
    done
}

# on_node NAME COMMAND…
on_node() {
    PATH=$NODE_PROGRAMS/bin:$PATH nsenter --target "$(cat "$work/nodes/$1/init")" --net --pid --mount --uts -- "${@:2}"
}

has_containerd() { ctr "$1" version >/dev/null 2>&1; }

ctr() { on_node "$1" "$NODE_PROGRAMS/bin/ctr" --namespace k8s.io "${@:2}"; }

# kubelet_command NAME: its command line, a word on each line. `nodes/NAME/extra` has further flags.
kubelet_command() {
    local node=$work/nodes/$1
    printf '%s\n' "$NODE_PROGRAMS/bin/kubelet" --config=/var/lib/kubelet/config.yaml --bootstrap-kubeconfig="$work/bootstrap.kubeconfig" \
        --kubeconfig=/var/lib/kubelet/kubeconfig --cert-dir=/var/lib/kubelet/pki --node-ip="172.31.0.$((10 + $(cat "$node/number")))"
    [[ ! -e $node/extra ]] || cat "$node/extra"
}

# start_kubelet NAME: by `nodes/NAME/command` if something else starts it.
start_kubelet() {
    local node=$work/nodes/$1 words
    if [[ -e $node/command ]]; then mapfile -t words <"$node/command"; else mapfile -t words < <(kubelet_command "$1"); fi
    # shellcheck disable=SC2016 # the node's shell expands it
    on_node "$1" sh -c 'echo $$ >/run/kubelet.pid; exec "$@"' sh "${words[@]}" >>"$node/kubelet.log" 2>&1 &
}

# stop_kubelet NAME SIGNAL
stop_kubelet() {
    # shellcheck disable=SC2016 # the node's shell expands it
    on_node "$1" sh -c 'pid=$(cat /run/kubelet.pid); kill -'"$2"' "$pid"; while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done'
}

# power_off NAME: everything on the node is gone at once, and its disk has what was written.
power_off() {
    kill -KILL "$(cat "$work/nodes/$1/init")"
    ip link delete "node-$(cat "$work/nodes/$1/number")" 2>/dev/null || true
}
