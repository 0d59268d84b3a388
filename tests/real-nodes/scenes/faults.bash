# shellcheck shell=bash
# Sourced by `trial`: what fails, restarts and goes, while nodes are created.

# has_renewed NODE AFTER: whether its kubelet has renewed its Lease after a time.
has_renewed() {
    local renewed
    renewed=$(kubectl --namespace kube-node-lease get lease "$1" --output=jsonpath='{.spec.renewTime}' 2>/dev/null) || return 1
    awk -v after="$2" -v renewed="$(date --date="$renewed" +%s.%N)" 'BEGIN { exit !(renewed > after) }'
}

kubelet_restart() {
    local began=$EPOCHREALTIME
    stop_kubelet worker-1 KILL
    began=$EPOCHREALTIME
    start_kubelet worker-1
    within 120 'its kubelet works' has_renewed worker-1 "$began"
    seen "$(since "$began") s" 'until the kubelet has renewed its Lease'
    within 120 'worker-1 is Ready' is_ready worker-1
    within 120 'three replicas are ready' all_ready
    ! awk -v after="$began" '$1 > after && $2 == "worker-1"' "$work/events" | grep -vE "$whole" || return 1
    seen 0 'versions of its Node that lack a label'
}

rolling_restart() {
    local missed began=$EPOCHREALTIME
    while_nodes_are_created restart_all
    seen "$missed" "missed, in $(since "$began") s"
    nothing_missed
}

restart_all() {
    kubectl --namespace nodegate rollout restart deployment/nodegate >/dev/null
    kubectl --namespace nodegate rollout status deployment/nodegate --timeout=300s >/dev/null
    within 120 'three replicas are ready' all_ready
}

# process_of POD: as its node sees it.
process_of() {
    local id
    id=$(kubectl --namespace nodegate get pod "$1" --output=jsonpath='{.status.containerStatuses[0].containerID}')
    ctr "$(node_of "$1")" tasks list | awk -v id="${id#containerd://}" '$1 == id { print $2 }'
}

# restarts: how often the containers of nodegate's pods were started again.
restarts() { kubectl --namespace nodegate get pods --selector app.kubernetes.io/name=nodegate --output=jsonpath='{range .items[*]}{.status.containerStatuses[0].restartCount}{"\n"}{end}' | awk '{ sum += $1 } END { print sum + 0 }'; }

kill_program() {
    local missed began=$EPOCHREALTIME
    while_nodes_are_created kill_leader program
    seen "$missed" "missed; three replicas are ready again after $(since "$began") s"
}

kill_shim() {
    local missed began=$EPOCHREALTIME
    while_nodes_are_created kill_leader shim
    seen "$missed" "missed; three replicas are ready again after $(since "$began") s"
}

# kill_leader program|shim: the leader's, and waits for the pod to be there again.
kill_leader() {
    local pod node process before
    pod=$(leader_pod) before=$(restarts)
    node=$(node_of "$pod") process=$(process_of "$pod")
    [[ $1 == program ]] || process=$(on_node "$node" ps -o ppid= -p "$process")
    on_node "$node" kill -KILL "${process// /}"
    within 120 'its container was started again' has_more_restarts "$before"
    within 180 'three replicas are ready' all_ready
}

has_more_restarts() { (($(restarts) > $1)); }

# leader_pod: waits for a leader that is a pod of now.
leader_pod() {
    within 120 'a pod leads' is_led >&2
    leader | cut -d_ -f1
}

is_led() {
    local holder
    holder=$(leader)
    [[ -n $holder ]] && kubectl --namespace nodegate get pod "${holder%%_*}" >/dev/null 2>&1
}

drain() {
    local missed began=$EPOCHREALTIME node
    node=$(node_of "$(leader_pod)")
    while_nodes_are_created drain_node "$node"
    seen "$missed" "missed while the leader's node is drained and until three replicas are ready elsewhere, $(since "$began") s"
    kubectl uncordon "$node" >/dev/null
    # So that both workers have replicas again.
    restart_all
    nothing_missed
}

drain_node() {
    kubectl drain "$1" --ignore-daemonsets --delete-emptydir-data --timeout=300s >/dev/null
    within 180 'three replicas are ready' all_ready
}

power_loss() {
    local missed node began=$EPOCHREALTIME
    node=$(node_of "$(leader_pod)")
    while_nodes_are_created lose_power "$node"
    seen "$missed" "missed until three replicas are ready elsewhere, $(since "$began") s"
    seen "$(cat "$work/led-again") s" 'until another replica leads'
    began=$EPOCHREALTIME
    power_on "$node"
    within 180 "$node is Ready" is_back "$node" "$began"
    within 180 'no pod is left over' has_pods 3
    has_label "$node" hardware.tier worker
    seen "$(since "$began") s" 'after its power is back, the node is Ready and has its labels'
    restart_all
}

lose_power() {
    local holder began=$EPOCHREALTIME
    holder=$(leader)
    power_off "$1"
    within 120 'another replica leads' has_other_leader "$holder"
    since "$began" >"$work/led-again"
    within 400 'the pods have left the node' has_no_ready_pod_on "$1"
    within 300 'three replicas are ready' all_ready
}

has_other_leader() {
    local now
    now=$(leader)
    [[ -n $now && $now != "$1" ]]
}

has_no_ready_pod_on() {
    [[ -z $(kubectl --namespace nodegate get pods --field-selector "spec.nodeName=$1" --selector app.kubernetes.io/name=nodegate \
        --output=jsonpath='{.items[?(@.metadata.deletionTimestamp=="")].metadata.name}{range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{end}' | grep True) ]]
}

has_pods() { [[ $(kubectl --namespace nodegate get pods --selector app.kubernetes.io/name=nodegate --output=name | grep -cv test) == "$1" ]]; }

no_replicas() {
    local began refused
    kubectl --namespace nodegate scale deployment/nodegate --replicas=0 >/dev/null
    within 120 'all pods are gone' has_pods 0
    began=$EPOCHREALTIME
    power_on worker-3
    within 180 'worker-3 is Ready' was_seen worker-3 ready=True "$began"
    seen "$(since "$(first_seen worker-3 .)" "$(first_seen worker-3 ready=True)") s" 'without a replica, a node joins and is Ready'
    forge gpu-1
    seen "$refused" 'writes to labels with a node'"'"'s certificate are refused meanwhile, by the guard'
    began=$EPOCHREALTIME
    kubectl --namespace nodegate scale deployment/nodegate --replicas=3 >/dev/null
    within 120 'worker-3 has its labels' was_seen worker-3 'tier=worker role=yes' "$began"
    seen "$(since "$began" "$(first_seen worker-3 'tier=worker role=yes' "$began")") s" 'from the scaling of 0 to 3 until that node has its labels'
    within 180 'three replicas are ready' all_ready
    discard worker-3
}

cold_start() {
    local began name
    for name in worker-1 worker-2 gpu-1; do power_off "$name"; done
    stop_plane
    began=$EPOCHREALTIME
    start_plane
    seen "$(since "$began") s" 'API server, controllers and scheduler are there'
    # The first one has never joined.
    for name in worker-4 gpu-1 worker-1 worker-2; do power_on "$name"; done
    for name in worker-4 gpu-1 worker-1 worker-2; do within 300 "$name is Ready" is_back "$name" "$began"; done
    grep -m 1 ' worker-4 ' "$work/events" | grep 'tier= role='
    seen "$(since "$began") s" 'all nodes are Ready, also one that had never joined, and found no webhook'
    within 300 'three replicas are ready' have_started "$began"
    seen "$(since "$began") s" 'three replicas are ready'
    within 120 'worker-4 has its labels' was_seen worker-4 "$whole"
    seen "$(since "$began" "$(first_seen worker-4 "$whole")") s" 'the new node has its labels'
    for name in worker-1 worker-2; do has_label "$name" hardware.tier worker; done
    has_label gpu-1 team.owner vision
    discard worker-4
}

# is_back NODE AFTER
is_back() { is_ready "$1" && has_renewed "$1" "$2"; }

# have_started AFTER: whether three replicas are ready that were started after a time. What the API server says at first is from before.
have_started() {
    kubectl --namespace nodegate get pods --selector app.kubernetes.io/name=nodegate \
        --output=jsonpath='{range .items[*]}{.status.containerStatuses[0].ready} {.status.containerStatuses[0].state.running.startedAt}{"\n"}{end}' |
        awk -v after="$(date --utc --date="@${1%.*}" +%FT%TZ)" '$1 == "true" && $2 >= after { count++ } END { exit count != 3 }'
}
