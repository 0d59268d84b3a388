# shellcheck shell=bash
# Sourced by `trial`: nodes that join, and what their kubelets may not.

# times NAME [OLD_UID]: waits until a Node of this name, another one than of this uid, is Ready and has everything. Sets `created`, `complete` and `ready` to
# when it was first seen so.
times() {
    local uid
    within 180 "$1 was created" uid_besides "$1" "${2-}" >/dev/null
    uid=$(uid_besides "$1" "${2-}")
    within 180 "$1 is Ready" was_seen "$uid" ready=True
    within 60 "$1 has everything" was_seen "$uid" "$whole"
    created=$(first_seen "$uid" .) complete=$(first_seen "$uid" "$whole") ready=$(first_seen "$uid" ready=True)
}

readonly whole='pending= .*tier=[a-z]+ role=yes'

uid_besides() { awk -v name="$1" -v old="$2" '$2 == name && $3 != old { print $3; found = 1; exit } END { exit !found }' "$work/events"; }

milliseconds() { awk -v begin="$1" -v end="$2" 'BEGIN { printf "%.0f ms", (end - begin) * 1000 }'; }

fresh_join() {
    local created complete ready
    power_on gpu-1
    times gpu-1
    grep -m 1 ' gpu-1 ' "$work/events" | grep 'pending=yes tainted=yes tier=gpu role= ' || { echo 'its CREATE lacks what admission sets' >&2; return 1; }
    seen "$(milliseconds "$created" "$complete")" 'labels and taints are in the CREATE; from there until the role label is set and the pending taint gone'
    seen "$(since "$created" "$ready") s" 'Ready after its CREATE'
}

# as_kubelet NODE PATH MERGE_PATCH: the API server's answer to a write with the node's own certificate, as an HTTP status.
as_kubelet() {
    on_node "$1" curl --silent --output /dev/null --write-out '%{http_code}' --cacert "$pki/ca.crt" --cert /var/lib/kubelet/pki/kubelet-client-current.pem \
        --request PATCH --header 'Content-Type: application/merge-patch+json' --data "$3" "$api_server$2"
}

# forge NODE: writes with its certificate what it may not have, also to worker-1. Sets `refused` to how many of them were refused, such as `9 of 12`.
forge() {
    local before after status path patch count=0 all=0
    before=$(kubectl get nodes "$1" worker-1 --output=jsonpath='{.items[*].metadata.labels}')
    for path in "/api/v1/nodes/$1" "/api/v1/nodes/$1/status" /api/v1/nodes/worker-1; do
        for patch in '{"hardware.tier": "storage"}' '{"hardware.tier": null}' '{"team.owner": "mine"}' '{"node-role.kubernetes.io/control-plane": ""}'; do
            status=$(as_kubelet "$1" "$path" "{\"metadata\": {\"labels\": $patch}}")
            all=$((all + 1))
            if ((status >= 400)); then count=$((count + 1)) && continue; fi
            printf '%s %s: %s\n' "$path" "$patch" "$status"
            [[ $path != */worker-1 ]] || { echo 'a write to the Node of another one is not refused' >&2; return 1; }
        done
    done
    after=$(kubectl get nodes "$1" worker-1 --output=jsonpath='{.items[*].metadata.labels}')
    [[ $before == "$after" ]] || { printf 'labels have changed: %s\n%s\n' "$before" "$after" >&2; return 1; }
    refused="$count of $all"
}

forged_labels() {
    local refused
    forge gpu-1
    seen "$refused" 'writes to labels with the node'"'"'s own certificate are refused, the others are answered without effect'
    [[ $(as_kubelet gpu-1 /api/v1/nodes/gpu-1 '{"metadata": {"labels": {"example.com/rack": "7"}}}') == 200 ]]
    has_label gpu-1 example.com/rack 7
    seen 200 'a label that no policy governs is set'
}

recreated_node() {
    local old created complete ready
    kubectl label node gpu-1 team.owner=vision >/dev/null
    within 60 'the label is saved' is_saved gpu-1 '"team.owner":"vision"'
    # Its kubelet now claims something else.
    echo --node-labels=hardware.tier=storage,team.owner=mine >"$work/nodes/gpu-1/extra"
    old=$(kubectl get node gpu-1 --output=jsonpath='{.metadata.uid}')
    stop_kubelet gpu-1 TERM
    kubectl delete node gpu-1 >/dev/null
    start_kubelet gpu-1
    times gpu-1 "$old"
    grep -m 1 " $(uid_besides gpu-1 "$old") " "$work/events" | grep 'tier=gpu role= owner=vision$'
    seen "$(milliseconds "$created" "$complete")" 'its CREATE has the saved label and not what its kubelet now claims; from there until it has everything'
    rm "$work/nodes/gpu-1/extra"
}

is_saved() { kubectl --namespace nodegate get configmap "node-labels-$1" --output=jsonpath='{.data}' 2>/dev/null | tr -d ' \\\\' | grep -qF "$2"; }

# The unit of a kubelet, and what `nodegate firstboot` makes of it. systemd does not run on these nodes: the command line that it would start is started.
firstboot() {
    local node=$work/nodes/batch-1 began created complete ready
    prepare batch-1
    printf '[Service]\nExecStart=%s\n' "$(kubelet_command batch-1 | paste -sd ' ')" >"$node/kubelet.service"
    "$PROGRAM" firstboot install --print --unit-file "$node/kubelet.service" --helper "$PROGRAM" | tee "$node/drop-in.conf"
    { echo env; echo FIRST_BOOT_ONLY_KUBELET_NODE_EXTRA_LABELS=pool.example.com/name=batch,node-role.kubernetes.io/forbidden=; } >"$node/command"
    sed -n 's/^ExecStart=\([^ ].*\)/\1/p' "$node/drop-in.conf" | tail -n 1 | tr ' ' '\n' >>"$node/command"
    grep -qx firstboot "$node/command"
    power_on batch-1
    times batch-1
    has_label batch-1 pool.example.com/name batch
    grep forbidden "$node/kubelet.log"
    seen "$(milliseconds "$created" "$complete")" 'a kubelet started by the drop-in of `firstboot` registers with its extra label, and what a kubelet may not have is left out; until it has everything'
    kubectl label node batch-1 pool.example.com/name- >/dev/null
    stop_kubelet batch-1 TERM
    began=$EPOCHREALTIME
    start_kubelet batch-1
    within 60 'its kubelet works' has_renewed batch-1 "$began"
    has_label batch-1 pool.example.com/name ''
    seen 0 'labels that its second start adds'
    discard batch-1
}
