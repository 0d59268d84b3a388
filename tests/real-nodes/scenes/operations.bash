# shellcheck shell=bash
# Sourced by `trial`: what operators do.

# upgrade FLAG…: as docs/upgrading.md says.
upgrade() {
    helm upgrade nodegate charts/nodegate --namespace nodegate --set image.repository="$registry/nodegate" --values "$here/values.yaml" "$@" --wait
}

# rules LABELS: values with one more policy.
rules() {
    printf '{policies: {files: {racks.yaml: {apiVersion: nodegate.dev/v1alpha1, kind: NodePolicy, metadata: {name: racks}, spec: {rules: [%s]}}}}}\n' \
        "{name: rack, match: {names: [\"worker-*\"]}, labels: $1}"
}

good_upgrade() {
    local missed began=$EPOCHREALTIME
    rules '{rack.example.com/row: a}' >"$work/good.yaml"
    while_nodes_are_created upgrade --values "$work/good.yaml"
    seen "$(since "$began") s" 'helm upgrade --wait, with one more policy'
    seen "$missed" missed
    within 120 'the new policy has its label' has_label worker-1 rack.example.com/row a
    seen "$(since "$began") s" 'until its label is set'
}

broken_upgrade() {
    local pods began=$EPOCHREALTIME
    pods=$(kubectl --namespace nodegate get pods --selector app.kubernetes.io/name=nodegate --output=name | grep -v test)
    rules '{"not a key": a}' >"$work/broken.yaml"
    ! upgrade --values "$work/broken.yaml" >"$work/refused" 2>&1 || { echo 'the upgrade was not refused' >&2; return 1; }
    grep 'not a key' "$work/refused"
    [[ $(kubectl --namespace nodegate get pods --selector app.kubernetes.io/name=nodegate --output=name | grep -v -e test -e check) == "$pods" ]]
    seen "$(since "$began") s" 'helm upgrade with a broken policy is refused with its error; the same pods go on'
}

# The check is left out, so the broken policy comes into the pods.
unchecked_upgrade() {
    local missed began=$EPOCHREALTIME
    while_nodes_are_created upgrade_unchecked
    seen "$missed" 'missed while a broken policy is rolled out unchecked'
    has_label worker-1 rack.example.com/row a
    began=$EPOCHREALTIME
    while_nodes_are_created helm rollback nodegate --namespace nodegate --wait
    within 120 'three replicas are ready' all_ready
    seen "$(since "$began") s" "helm rollback --wait; $missed missed"
}

upgrade_unchecked() {
    ! upgrade --values "$work/broken.yaml" --set policies.checkBeforeUpgrade=false --timeout 60s >"$work/unchecked" 2>&1 ||
        { echo 'a broken policy was rolled out' >&2; return 1; }
    (($(ready_replicas) >= 3))
}

rollback() {
    local missed began=$EPOCHREALTIME first
    first=$(helm history nodegate --namespace nodegate --output=yaml | sed -n 's/.*revision: \(.*\)/\1/p' | sort -n | head -n 1)
    while_nodes_are_created helm rollback nodegate "$first" --namespace nodegate --wait
    within 120 'three replicas are ready' all_ready
    seen "$(since "$began") s" "helm rollback --wait to the first revision; $missed missed"
    within 180 'the label of the withdrawn policy is gone' has_label worker-1 rack.example.com/row ''
    seen "$(since "$began") s" 'until the label of the withdrawn policy is gone'
}

plugin() {
    local began=$EPOCHREALTIME
    mkdir -p "$work/plugins"
    ln -sf "$PROGRAM" "$work/plugins/kubectl-nodegate"
    (
        PATH=$work/plugins:$PATH
        kubectl nodegate explain gpu-1 hardware.tier | tee "$work/explained"
        grep -q fleet "$work/explained"
        kubectl nodegate report | tee "$work/report"
        grep -q 'hardware.tier' "$work/report"
        kubectl nodegate plan
        kubectl nodegate history gpu-1 | tee "$work/history"
        grep -q 'team.owner' "$work/history"
    )
    seen "$(since "$began") s" '`kubectl nodegate` explain, report, plan and history, with kubectl'"'"'s own configuration'
}

idle_memory() {
    local pod id cgroup of
    is_led || leader_pod
    # Freed memory goes back within seconds, and nothing happens meanwhile.
    sleep 30
    for pod in $(kubectl --namespace nodegate get pods --selector app.kubernetes.io/name=nodegate --output=jsonpath='{.items[*].metadata.name}'); do
        id=$(kubectl --namespace nodegate get pod "$pod" --output=jsonpath='{.status.containerStatuses[0].containerID}')
        [[ $pod != *-test ]] || continue
        of=replica
        [[ $(leader) != "$pod"* ]] || of=leader
        cgroup=$(find /sys/fs/cgroup -type d -name "${id#containerd://}" -path '*memory*' -print -quit)
        if [[ -n $cgroup ]]; then
            seen "$(megabytes "$(sed -n 's/^total_rss //p' "$cgroup/memory.stat")")" "anonymous memory of an idle $of; with the pages of its file $(megabytes "$(cat "$cgroup/memory.usage_in_bytes")")"
        else
            cgroup=$(find /sys/fs/cgroup -type d -name "${id#containerd://}" -print -quit)
            seen "$(megabytes "$(sed -n 's/^anon //p' "$cgroup/memory.stat")")" "anonymous memory of an idle $of; with the pages of its file $(megabytes "$(cat "$cgroup/memory.current")")"
        fi
    done
}

megabytes() { awk -v bytes="$1" 'BEGIN { printf "%.1f MB", bytes / 1e6 }'; }

# As docs/guides/uninstall.md says.
uninstall() {
    local began=$EPOCHREALTIME left
    "$PROGRAM" cleanup --namespace nodegate --kubeconfig "$KUBECONFIG"
    kubectl -n nodegate scale deployment/nodegate --replicas=0
    kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration nodegate
    "$PROGRAM" cleanup --namespace nodegate --kubeconfig "$KUBECONFIG" --confirm
    helm uninstall nodegate --namespace nodegate
    kubectl delete namespace/nodegate crd/nodepolicies.nodegate.dev
    seen "$(since "$began") s" 'cleanup and helm uninstall'
    ! kubectl get nodes --output=yaml | grep -E 'hardware.tier|node-role|nvidia|nodegate' || return 1
    has_label gpu-1 team.owner vision
    seen 0 'labels, annotations and taints of nodegate that are left on nodes; the restored one is there'
    left=$(kubectl get clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingadmissionpolicies,mutatingadmissionpolicybindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,priorityclasses,customresourcedefinitions,namespaces --output=name | grep nodegate) || true
    [[ -z $left ]] || { printf 'these are left: %s\n' "$left" >&2; return 1; }
    seen 0 'objects of nodegate that are left in the cluster'
}
