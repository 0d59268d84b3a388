# shellcheck shell=bash
# Sourced by `trial`: waiting, what became of nodes, calls that the API server missed, and the table.

# within SECONDS WHAT COMMAND…: waits until the command succeeds.
within() {
    local seconds=$1 what=$2 end=$((SECONDS + $1))
    shift 2
    until "$@"; do
        ((SECONDS < end)) || { printf 'not within %s s: %s\n' "$seconds" "$what" >&2; return 1; }
        sleep 0.1
    done
}

# since TIME: the seconds since a value of EPOCHREALTIME.
since() { awk -v begin="$1" -v end="${2:-$EPOCHREALTIME}" 'BEGIN { printf "%.1f", end - begin }'; }

# record_nodes: writes a line for each change of a node into $work/events, until the trial ends:
# TIME NAME UID ready=… pending=… tainted=… tier=… role=… owner=…
record_nodes() {
    local line template
    template='{{$l := .metadata.labels}}{{.metadata.name}} {{.metadata.uid}} ready={{range .status.conditions}}{{if eq .type "Ready"}}{{.status}}{{end}}{{end}}'
    template+=' pending={{range .spec.taints}}{{if eq .key "startup-taint.cluster-autoscaler.kubernetes.io/nodegate"}}yes{{end}}{{end}}'
    template+=' tainted={{range .spec.taints}}{{if eq .key "nvidia.com/gpu"}}yes{{end}}{{end}} tier={{with index $l "hardware.tier"}}{{.}}{{end}}'
    template+=' role={{range $k, $v := $l}}{{if or (eq $k "node-role.kubernetes.io/gpu") (eq $k "node-role.kubernetes.io/worker")}}yes{{end}}{{end}}'
    template+=' owner={{with index $l "team.owner"}}{{.}}{{end}}{{"\n"}}'
    # A watch ends with the API server.
    while :; do
        kubectl get nodes --watch --output=go-template="$template" 2>/dev/null || sleep 0.2
    done | while read -r line; do printf '%s %s\n' "$EPOCHREALTIME" "$line"; done >>"$work/events"
}

# first_seen NODE PATTERN [AFTER]: when a node, by its name or uid, was first seen so, after a time.
first_seen() {
    awk -v node="$1" -v pattern="$2" -v after="${3:-0}" '$1 > after && ($2 == node || $3 == node) && $0 ~ pattern { print $1; found = 1; exit } END { exit !found }' "$work/events"
}

# was_seen NODE PATTERN [AFTER]
was_seen() { first_seen "$@" >/dev/null; }

label_of() { kubectl get node "$1" --output=go-template="{{with index .metadata.labels \"$2\"}}{{.}}{{end}}"; }

# has_label NODE KEY VALUE
has_label() { [[ $(label_of "$1" "$2") == "$3" ]]; }

is_ready() { [[ $(kubectl get node "$1" --output=jsonpath='{.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null) == True ]]; }

# ready_replicas: how many of nodegate's pods are ready.
ready_replicas() {
    local count
    count=$(kubectl --namespace nodegate get deployment nodegate --output=jsonpath='{.status.readyReplicas}' 2>/dev/null) || return 1
    printf '%s\n' "${count:-0}"
}

all_ready() { [[ $(ready_replicas) == 3 ]] && kubectl --namespace nodegate rollout status deployment/nodegate --timeout=1s >/dev/null 2>&1; }

leader() { kubectl --namespace nodegate get lease nodegate --output=jsonpath='{.spec.holderIdentity}'; }

# node_of POD
node_of() { kubectl --namespace nodegate get pod "$1" --output=jsonpath='{.spec.nodeName}'; }

# create_nodes: creates nodes as an administrator until $work/stop is there, in dry runs, which call webhooks like all others. Writes a line for each answer:
# whether nodegate set what it should.
create_nodes() {
    local at answer
    for ((at = 1; ; at++)); do
        [[ ! -e $work/stop ]] || return 0
        answer=$(curl --silent --max-time 30 --cacert "$pki/ca.crt" --header "Authorization: Bearer $admin_token" --header 'Content-Type: application/json' \
            --data '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "load-'"$at"'"}}' "$api_server/api/v1/nodes?dryRun=All") || true
        case $answer in
            *'"hardware.tier": "load"'*) echo whole ;;
            *'"kind": "Node"'*) echo missed ;;
            *) printf 'refused: %s\n' "${answer//$'\n'/ }" ;;
        esac
        sleep 0.05
    done >"$work/creations"
}

# while_nodes_are_created COMMAND…: sets `missed` to how many CREATEs went on without nodegate, such as `3 of 200 CREATEs`. None may be refused.
while_nodes_are_created() {
    local creating status
    rm -f "$work/stop"
    create_nodes &
    creating=$!
    set +e
    (
        set -e
        "$@"
    )
    status=$?
    set -e
    touch "$work/stop"
    wait "$creating"
    ! grep refused "$work/creations" || return 1
    missed="$(grep --count missed "$work/creations" || true) of $(wc -l <"$work/creations") CREATEs"
    return "$status"
}

# nothing_missed: where a replica is always there, none may be.
nothing_missed() { [[ $missed == '0 of '* ]] || { printf 'missed: %s\n' "$missed" >&2; return 1; }; }

# seen NUMBER TEXT…: what a scene writes into the table.
seen() { printf '%s | %s\n' "${*:2}" "$1" >>"$work/seen"; }

# scene TITLE FUNCTION: plays it, and keeps its row.
scene() {
    local status=0 started=$SECONDS
    printf '\n==> %s\n' "$1"
    : >"$work/seen"
    # Not behind `if` or `||`, which would switch `set -e` off in it.
    set +e
    (
        set -e
        "$2"
    )
    status=$?
    set -e
    if ((status != 0)); then
        failed=1
        printf '| %s | FAILED | |\n' "$1" >>"$work/table"
        echo "FAILED"
        kubectl get nodes,pods --all-namespaces --output=wide || true
        kubectl get events --all-namespaces --field-selector type=Warning --sort-by .lastTimestamp 2>&1 | tail -n 15
    fi
    while read -r line; do printf '| %s | %s |\n' "$1" "$line"; done <"$work/seen" | tee -a "$work/table"
    printf '(%d s)\n' $((SECONDS - started))
}
