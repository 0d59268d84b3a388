# shellcheck shell=bash
# Sourced by `.ci/run` and `.ci/full`: which tests each of them runs, and how.

# What needs programs that take minutes to build: the full run has them. Of the tests that need a cluster, `.config/nextest.toml` says which.
readonly full_tests=(monitoring:: page::a_browser metrics::promtool firstboot::exported)
gate_tests=()
for test in "${full_tests[@]}"; do gate_tests+=(--skip "$test"); done

# run_with RUN COMMAND…: runs it where the tests find all that RUN (`gate` or `full`) promises them: a control plane, helm and libfaketime at least.
run_with() {
    local run=$1 assets tools
    shift
    install_faketime
    assets=$(just control-plane | tail -n 1)
    tools=$(just tools helm | tail -n 1)
    KUBEBUILDER_ASSETS=$assets NODEGATE_REQUIRE=$run PATH=$tools:$assets:$PATH "$@"
}

# run_tests: runs those that need no cluster. As many wait for something, there are more at once than cores.
run_tests() { RUST_TEST_THREADS=$(($(nproc) + 2)) cargo test --locked --no-fail-fast -- "${gate_tests[@]}"; }

# run_cluster_tests ARGUMENT…: runs tests at control planes, not longer than 40 minutes. The slowest ones, and those that needed another try, stand below
# the table.
run_cluster_tests() {
    local output status=0 line
    output=$(mktemp)
    timeout --kill-after=30 2400 .ci/cluster-tests "$@" 2>&1 | tee "$output" || status=$?
    ((status != 124)) || note "the tests were ended after 40 minutes"
    while read -r line; do note "$line"; done < <(
        echo 'the slowest tests at control planes:'
        sed -n 's/^ *PASS \[ *\([0-9.]*\)s\].* \([a-z_0-9:]*\)$/\1 s \2/p' "$output" | sort -rn | awk 'NR <= 10'
        sed -n '/^ *Summary/,$p' "$output" | grep -E '^ *(FLAKY|FAIL|TIMEOUT|SIG|TRY)' || true
    )
    rm -f "$output"
    return "$status"
}

# package_flags: a flag of Cargo for each package of this repository, one a line.
package_flags() {
    cargo metadata --locked --no-deps --format-version 1 | python3 -c 'import json, sys
for package in json.load(sys.stdin)["packages"]: print("--package=" + package["name"])'
}
