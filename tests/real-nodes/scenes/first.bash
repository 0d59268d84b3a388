# shellcheck shell=bash
# Sourced by `trial`: the scenes until nodegate labels the first nodes. The others that come first are in `joins.bash`.

two_nodes() {
    local began=$EPOCHREALTIME name
    for name in worker-1 worker-2; do power_on "$name"; done
    for name in worker-1 worker-2; do within 180 "$name is Ready" is_ready "$name"; done
    seen "$(since "$began") s" 'TLS bootstrap with certificates that the controller manager signed'
    within 180 'CoreDNS is ready' kubectl --namespace kube-system rollout status deployment/coredns --timeout=1s >/dev/null 2>&1
    seen "$(since "$began") s" 'CoreDNS answers'
    seen "$(since "$(first_seen worker-2 .)" "$(first_seen worker-2 ready=True)") s" 'without nodegate, a node is Ready after its CREATE'
}

# As README.md says.
install() {
    local began=$EPOCHREALTIME
    helm install nodegate charts/nodegate --namespace nodegate --create-namespace \
        --set image.repository="$registry/nodegate" --values "$here/values.yaml" >"$work/helm.log"
    within 180 'three replicas are ready' all_ready
    seen "$(since "$began") s" 'three replicas are ready'
    within 60 'the API server calls nodegate' is_called
    echo "$began" >"$work/installed"
    # Which pod asks for the name of the Service is the test's own.
    helm test nodegate --namespace nodegate >>"$work/helm.log"
    seen '' '`helm test` passes'
}

is_called() { kubectl create --dry-run=server --filename - --output=yaml <<<'{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "load-0"}}' | grep -q 'hardware.tier: load'; }

existing_nodes() {
    local began name
    began=$(cat "$work/installed")
    for name in worker-1 worker-2; do within 60 "$name has its labels" was_seen "$name" 'tier=worker role=yes' "$began"; done
    seen "$(since "$began" "$(first_seen worker-2 'tier=worker role=yes')") s" 'both have all labels, counted from `helm install`'
}
