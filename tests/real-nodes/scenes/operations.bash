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
    while_nodes_are_created upgrade --values "$work/good.yaml" >>"$work/helm.log"
    seen "$(since "$began") s" 'helm upgrade --wait, with one more policy'
    seen "$missed" missed
    nothing_missed
    within 120 'the new policy has its label' has_label worker-1 rack.example.com/row a
    seen "$(since "$began") s" 'until its label is set'
}

broken_upgrade() {
    local before began=$EPOCHREALTIME
    before=$(pods_of_nodegate)
    rules '{"not a key": a}' >"$work/broken.yaml"
    ! upgrade --values "$work/broken.yaml" >"$work/refused" 2>&1 || { echo 'the upgrade was not refused' >&2; return 1; }
    grep 'not a key' "$work/refused"
    [[ $(pods_of_nodegate) == "$before" ]]
    seen "$(since "$began") s" 'refused with the error of the policy; the same pods go on'
}

pods_of_nodegate() { kubectl --namespace nodegate get pods --selector app.kubernetes.io/name=nodegate,app.kubernetes.io/component!=test --output=name | grep -v -e test -e check; }

# Only new pods cannot start with a broken policy.
unchecked_upgrade() {
    local missed began
    while_nodes_are_created upgrade_unchecked
    seen "$missed" 'missed while a broken policy is in the pods, and a new one does not start with it'
    nothing_missed
    has_label worker-1 rack.example.com/row a
    began=$EPOCHREALTIME
    while_nodes_are_created go_back
    seen "$(since "$began") s" "until three replicas are ready after helm rollback; $missed missed"
    nothing_missed
}

upgrade_unchecked() {
    upgrade --values "$work/broken.yaml" --set policies.checkBeforeUpgrade=false >>"$work/helm.log"
    kubectl --namespace nodegate rollout restart deployment/nodegate >/dev/null
    within 120 'the new pod does not start' has_pod_that_exits
    (($(ready_replicas) == 3))
}

has_pod_that_exits() { kubectl --namespace nodegate get pods --output=jsonpath='{.items[*].status.containerStatuses[0].lastState.terminated.exitCode}' | grep -qw 2; }

# Without a revision, Helm would go back to the upgrade that it refused.
go_back() {
    helm rollback nodegate "$(last_good)" --namespace nodegate >/dev/null
    within 600 'three replicas are ready' all_ready
}

# last_good: the last revision but the present one that came into the cluster.
last_good() { helm history nodegate --namespace nodegate | awk '$0 ~ /superseded/ { revision = $1 } END { print revision }'; }

rollback() {
    local missed began=$EPOCHREALTIME
    while_nodes_are_created helm rollback nodegate 1 --namespace nodegate --wait >/dev/null
    within 120 'three replicas are ready' all_ready
    seen "$(since "$began") s" "helm rollback --wait to the first revision; $missed missed"
    nothing_missed
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
        # No change is told twice.
        awk 'NF > 5 { $1 = ""; if (told[$0]++) { print "twice:" $0; twice = 1 } } END { exit twice }' "$work/history"
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
    local began=$EPOCHREALTIME nodes objects
    "$PROGRAM" cleanup --namespace nodegate --kubeconfig "$KUBECONFIG"
    kubectl -n nodegate scale deployment/nodegate --replicas=0
    kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration nodegate
    "$PROGRAM" cleanup --namespace nodegate --kubeconfig "$KUBECONFIG" --confirm
    helm uninstall nodegate --namespace nodegate
    kubectl delete namespace/nodegate crd/nodepolicies.nodegate.dev
    seen "$(since "$began") s" 'cleanup and helm uninstall'
    # Asked first, because a kubectl that fails leaves nothing to be found.
    nodes=$(kubectl get nodes --output=go-template='{{range .items}}{{.metadata}}{{.spec}}{{"\n"}}{{end}}' | sed 's/managedFields:[^]]*]//')
    ! grep -oE '[^ ]*(hardware.tier|node-role|nvidia|nodegate)[^ ]*' <<<"$nodes" || return 1
    has_label gpu-1 team.owner vision
    seen 0 'labels, annotations and taints of nodegate that are left on nodes; the restored one is there'
    local kinds=clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,mutatingadmissionpolicies
    kinds+=,mutatingadmissionpolicybindings,validatingadmissionpolicies,validatingadmissionpolicybindings,customresourcedefinitions,namespaces
    objects=$(kubectl get "$kinds" --output=name)
    ! grep nodegate <<<"$objects" || return 1
    seen 0 'objects of nodegate that are left in the cluster'
}
