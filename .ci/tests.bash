# shellcheck shell=bash
# Sourced by `.ci/run` and `.ci/full`: which tests each of them runs, and how.

# The tests that take minutes, or need programs that take minutes to build. The gate leaves them out; the full run runs them.
readonly full_tests=(tutorials:: monitoring:: page::a_browser metrics::promtool chart::krew firstboot::exported)
gate_tests=()
for test in "${full_tests[@]}"; do gate_tests+=(--skip "$test"); done

# with_control_plane COMMAND…: runs it where the tests find a control plane, helm and libfaketime.
with_control_plane() {
    local assets tools
    install_faketime
    assets=$(just control-plane | tail -n 1)
    tools=$(just tools helm | tail -n 1)
    KUBEBUILDER_ASSETS=$assets NODEGATE_REQUIRE_CLUSTER=1 PATH=$tools:$assets:$PATH "$@"
}

# run_tests ARGUMENT…: runs tests, all of them even if one fails, and not longer than 40 minutes. Those that failed at a control plane are tried once
# more, each alone, and stand below the table.
run_tests() {
    local output status=0 name failed again=0
    output=$(mktemp)
    timeout --kill-after=30 2400 cargo test --locked --no-fail-fast -- "$@" 2>&1 | tee "$output" || status=$?
    if ((status == 124)); then
        note "the tests were ended after 40 minutes; these had been running for more than one: $(comm -23 \
            <(sed -n 's/^test \(.*\) has been running for over 60 seconds$/\1/p' "$output" | sort) \
            <(sed -n 's/^test \(.*\) \.\.\. .*$/\1/p' "$output" | sort) | paste -sd ' ')"
        return 1
    fi
    ((status != 0)) || return 0
    mapfile -t failed < <(sed -n 's/^test \([^ ]*\).* \.\.\. FAILED$/\1/p' "$output")
    ((${#failed[@]} > 0)) || return "$status"
    for name in "${failed[@]}"; do
        if [[ $name =~ ^(cluster|chart|tutorials|monitoring):: ]] && cargo test --locked --test suite -- --exact "$name"; then
            note "FLAKY, passed at the second try: $name"
        else
            note "FAILED: $name"
            again=1
        fi
    done
    return $again
}
