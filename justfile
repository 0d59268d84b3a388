set shell := ["bash", "-euo", "pipefail", "-c"]
# So that a recipe can hand on "$@". What {{ }} puts in is read by Bash: never what comes from outside, such as the name of a tag.
set positional-arguments

# Of the recipes that print how long something takes: `just profile=dev proofs` compiles less and shows the same otherwise
profile := "release"

# List what a contributor needs
[private]
default:
    @just --list --unsorted --group contribute

# List all recipes
[group('contribute')]
all:
    @just --list --unsorted

# Run the tests that need no cluster
[group('contribute')]
test *args:
    cargo test {{ args }}

# Measure which lines of the program tests run, in all packages or as in `just coverage -p nodegate-cel`; `--cluster` adds the tests that need a cluster. Compiles everything once more
coverage *args:
    @.ci/coverage {{ args }}

# Run the tests that need a cluster, or those whose names contain what is given; needs the control plane
[group('contribute')]
cluster-tests *args:
    @.ci/cluster-tests {{ args }}

# Check the format, and every lint as an error
[group('contribute')]
lint:
    cargo fmt --all --check
    cargo fmt --check --manifest-path fuzz/Cargo.toml
    cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml > /dev/null
    # --all-targets leaves out the cluster tests, which are no tests for cargo (test = false)
    cargo clippy --locked --workspace --all-targets -- -D warnings
    cargo clippy --locked --package nodegate --test cluster -- -D warnings

# Check what is depended on: banned crates, licenses, sources (deny.toml), and whether it is used
deny:
    cargo deny --locked check bans licenses sources
    cargo shear

# Look up known vulnerabilities of what is depended on; needs the network
advisories:
    @.ci/advisories

# Check the workflows of .github
workflows:
    @.ci/workflows

# Write the files that are rendered from the code: CRD, manifests, references of the command line, of JSON output and of metrics, the table of reports. Those that helm renders from the chart need helm, or Go to build it
[group('contribute')]
generate: _cli_reference _json_reference _metrics_reference _keys_reference _table_of_reports _table_of_publishers _table_of_values (_render "webhook-config/nodepolicies.yaml" "crd") (_render "charts/nodegate/files/nodepolicies.yaml" "crd") (_render "webhook-config/guard.yaml" "guard --service-account nodegate/nodegate") (_render "webhook-config/webhooks.yaml" "webhooks --service nodegate/nodegate") (_render "webhook-config/webhooks-fail.yaml" "webhooks --service nodegate/nodegate --failure-policy Fail --break-glass-group nodegate:break-glass") _chart_files

# Write also what comes from the API server (the fields of a Node, the functions of its expressions) and from the CEL specification (its conformance tests): needs the control plane, and Go
generate-all: generate _node_fields cel-conformance cel-environment

_node_fields:
    NODEGATE_GENERATE=1 cargo test --quiet --test cluster -- --exact node_fields::expressions_know_the_fields_of_the_api_servers_nodes

_cli_reference:
    NODEGATE_GENERATE=1 cargo test --quiet --test suite -- --exact docs::the_cli_reference_is_what_help_prints

_table_of_publishers:
    NODEGATE_GENERATE=1 cargo test --quiet --test suite -- --exact generated::the_table_of_publishers_has_their_keys

_table_of_values:
    NODEGATE_GENERATE=1 cargo test --quiet --test suite -- --exact chart_values::the_table_of_the_charts_values_has_their_defaults_and_comments

_json_reference:
    NODEGATE_GENERATE=1 cargo test --quiet --test suite -- --exact output::the_page_about_json_output_is_what_the_schemas_say

_chart_files:
    @if ! command -v helm go > /dev/null; then echo 'not written: what helm renders from the chart, because there is neither helm nor Go to build it; a change of the chart or of the definition needs it' >&2; exit; fi; \
    command -v helm > /dev/null || PATH=$(tests/tools/build helm | tail -n 1):$PATH; \
    NODEGATE_GENERATE=1 NODEGATE_REQUIRE=gate cargo test --quiet --test cluster -- --exact chart::snapshots::the_chart_renders_what_is_committed chart::deploy::the_manifests_without_helm_are_what_the_chart_renders

# Write the definitions (CRDs) of other projects that the tests of the chart apply, of these versions of their Go modules. Flux's HelmRelease is generated from its types
definitions prometheus-operator="v0.85.0" cert-manager="v1.19.1" argo-cd="v3.2.1" source-controller="v1.7.0" helm-controller="v1.3.0" controller-tools="v0.19.0":
    rm -rf target/definitions
    mkdir -p target/definitions
    directory() { go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }; cd target/definitions; \
    cp "$(directory github.com/prometheus-operator/prometheus-operator@{{ prometheus-operator }})"/example/prometheus-operator-crd/*.yaml .; \
    cp "$(directory github.com/cert-manager/cert-manager@{{ cert-manager }})"/deploy/crds/*.yaml .; \
    cp "$(directory github.com/argoproj/argo-cd/v3@{{ argo-cd }})/manifests/crds/application-crd.yaml" argoproj.io_applications.yaml; \
    cp "$(directory github.com/fluxcd/source-controller@{{ source-controller }})"/config/crd/bases/*.yaml .; \
    cp -r "$(directory github.com/fluxcd/helm-controller/api@{{ helm-controller }})" types; \
    chmod -R u+w types; \
    cd types; \
    GOFLAGS=-mod=mod go run sigs.k8s.io/controller-tools/cmd/controller-gen@{{ controller-tools }} crd paths=./v2/... output:crd:dir=..
    NODEGATE_DEFINITIONS=$PWD/target/definitions cargo test --quiet --test cluster -- --exact chart::definitions::the_definitions_of_other_projects_are_those_of_the_kinds_that_the_chart_and_the_examples_use

_metrics_reference:
    NODEGATE_GENERATE=1 cargo test --quiet --test suite -- --exact metrics::the_tables_of_the_reference_are_what_the_code_registers

_keys_reference:
    NODEGATE_GENERATE=1 cargo test --quiet --test suite -- --exact generated::keys_of_programs_are_documented

_table_of_reports:
    NODEGATE_GENERATE=1 cargo test --quiet --test suite -- --exact reports::the_table_of_reports_has_them_all

# Write the CEL specification's conformance tests, of the version that tests/tools/cel-conformance/go.mod pins, as JSON
cel-conformance:
    @mkdir -p target
    go -C tests/tools/cel-conformance run . > target/cel-conformance.jsonl
    @mv target/cel-conformance.jsonl crates/nodegate-cel/src/tests/conformance.jsonl

# Write what an expression of Kubernetes may call, of the version that tests/tools/cel-environment/go.mod pins, as JSON
cel-environment:
    @mkdir -p target
    go -C tests/tools/cel-environment run . > target/cel-environment.jsonl
    @mv target/cel-environment.jsonl crates/nodegate-cel/src/tests/kubernetes.jsonl

# Build the documents as a site with search, in target/book/html
book:
    @docs/book

# Draw the README's picture from what the demo prints
picture:
    cargo run --quiet -- demo --all > target/demo.txt
    awk -f docs/images/demo.awk target/demo.txt > target/demo.svg
    @mv target/demo.svg docs/images/demo.svg

# Take the pictures of the report's page that the guide shows, in headless Chromium
page-pictures:
    NODEGATE_PICTURES=docs/images NODEGATE_BROWSER=$(tests/browser/install) cargo test --quiet --test suite -- --exact page::a_browser_shows_it_in_light_and_dark_on_a_phone_by_keyboard_and_without_faults

# Compare expressions made at random from a seed with the API server's answers
cel-differential seed="20261121":
    NODEGATE_SEED={{ seed }} NODEGATE_EXPRESSIONS=2400 cargo test --test cluster -- --nocapture expressions

# The program that the tests run: `cargo run` would compile everything once more, because tests need other features of dependencies. A failed command must
# not leave an empty file behind.
_render file args:
    @mkdir -p {{ parent_directory(file) }} target
    @cargo test --quiet --no-run --test suite
    "${CARGO_TARGET_DIR:-target}/debug/nodegate" render {{ args }} > target/rendered
    @mv target/rendered {{ file }}

# Build kube-apiserver, etcd and the rest of a control plane for the tests, once, and print where they are
control-plane *names:
    @tests/control-plane/build {{ names }}

# Build helm, promtool, prometheus, ignition-validate and descheduler for the tests, once, and print where they are
tools *names:
    @tests/tools/build {{ names }}

# Start every unit of the table for `firstboot` in a systemd of its own; needs root
systemd:
    tests/systemd/with-user-manager cargo test --test suite -- --exact firstboot::live::a_real_systemd_starts_exactly_the_command_lines_of_the_table

# Break replicas, connections, watches, records, Leases, certificates, clocks, disks, memory, the API server and etcd at random for so many seconds while nodes are written: no write fails, and no label is lost. NODEGATE_OLDER=$(release/older COMMIT) adds the program of the version before
chaos seconds="300" seed="20261123":
    NODEGATE_SEED={{ seed }} NODEGATE_CHAOS_SECONDS={{ seconds }} cargo test --test cluster -- --nocapture --exact faults::chaos::random_faults_lose_no_label_and_stop_no_write

# Keep a server under constant load for so many minutes, at least 12, with nodes and policies that come and go: after the warm-up its memory does not grow
soak minutes="12":
    NODEGATE_SOAK_MINUTES={{ minutes }} cargo test --test cluster -- --nocapture --ignored --exact faults::soak::under_constant_load_memory_does_not_grow_after_the_warm_up

# Let so many nodes of four pools join by each source of proof, a tenth of them forged: no forged one gets anything of another pool, and each is told. Prints how long the honest ones take
proofs joins="1000":
    NODEGATE_JOINS={{ joins }} cargo test --profile {{ profile }} --test cluster -- --nocapture --ignored --exact proofs::a_thousand_joins_by_each_source_give_no_forged_one_anything_of_another_pool

# Let the real Karpenter launch machines for bursts of pods that need what nodegate adds, with nodegate and without it: it launches the same, and disrupts none
autoscalers bursts="2" burst="50":
    NODEGATE_KARPENTER=$(tests/tools/karpenter/build | tail -n 1) NODEGATE_BURSTS={{ bursts }} NODEGATE_BURST={{ burst }} cargo test --profile {{ profile }} --test cluster -- --nocapture --ignored --test-threads 1 karpenter::

# The same with the real Cluster Autoscaler. `checkout` is one of its repository, of the tag cluster-autoscaler-1.36.1: no Go module proxy serves it
cluster-autoscaler checkout bursts="2" burst="50":
    NODEGATE_CLUSTER_AUTOSCALER=$(tests/tools/cluster-autoscaler/build {{ checkout }} | tail -n 1) NODEGATE_BURSTS={{ bursts }} NODEGATE_BURST={{ burst }} cargo test --profile {{ profile }} --test cluster -- --nocapture --ignored --test-threads 1 cluster_autoscaler::

# Let gangs wait with the real Kueue and scheduler while the nodes of four racks join at once, as in the guide about topologies: no pod comes to a node before its place is known
kueue:
    NODEGATE_KUEUE=$(tests/tools/kueue/build | tail -n 1) cargo test --profile {{ profile }} --test cluster -- --nocapture --ignored --test-threads 1 kueue::

# Let a node join with the real Node Readiness Controller and the policy of its guide. `checkout` is one of its repository, 0.5.0 or later: no Go module proxy serves it
node-readiness checkout:
    @mkdir -p target/node-readiness/crds
    CGO_ENABLED=0 GOWORK=off go -C {{ checkout }} build -trimpath -buildvcs=false -o "$PWD/target/node-readiness/node-readiness-controller" ./cmd
    cp {{ checkout }}/config/crd/bases/readiness.node.x-k8s.io_nodereadinessrules.yaml target/node-readiness/crds/
    NODEGATE_NODE_READINESS=$PWD/target/node-readiness cargo test --test cluster -- --nocapture --ignored readiness::

# Install the chart in a cluster of real kubelets, containerd and CoreDNS on this machine, and let nodes join, come again, lose power and start cold. Prints a table; needs root, Go and buildah. Only the scenes that are named after the first ones, if any are
real-nodes *scenes:
    @tests/real-nodes/run {{ scenes }}

# Run the benchmarks
bench *args:
    cargo bench {{ args }}

# Count the instructions and cache lines of a review, and fail if they have risen by more than 2 %; `write` writes crates/nodegate-webhook/benches/instructions.json; needs valgrind
bench-instructions write="":
    {{ if write == "write" { "NODEGATE_GENERATE=1" } else { "" } }} cargo bench --locked --package nodegate-webhook --bench instructions

# Measure nodegate beside others that do the same work; the webhook in Go, and `gatekeeper` and `kyverno` if they are named, are built once (benches/peers/build), which takes minutes for the latter
bench-peers *others:
    benches/peers/build controller-runtime {{ others }}
    cargo bench --bench peers

# Fuzz each target for so many seconds, or `keep` what the last run came upon (tests/README.md)
fuzz seconds="60" *targets:
    @fuzz/run {{ seconds }} {{ targets }}

# Change the code of a package in one place after the other and see whether its tests notice: all mutants or a sample (tests/mutants/README.md)
mutants *args="nodegate-cel":
    @tests/mutants/run {{ args }}

# Show what nodegate does, on this machine, without a cluster
[group('contribute')]
demo *args:
    cargo run --release -- demo {{ args }}

# Make the image of a debug build without a container engine, and start it in an empty root; `just image ''` takes the programs of a release, `just image arm64` compiles for arm64 on amd64
image *of="debug":
    archive=$(release/image {{ of }}) && NODEGATE_IMAGE=$archive cargo test --locked --test suite -- --ignored image::started

# Make a release in dist/: `just release --dry-run` makes all that this machine can make and publishes nothing
release *args:
    @release/run "$@"

# Make a release for this machine's architecture twice, in two directories, as two users (as root) and by two clocks, and compare the digests of all files; `just reproducible --of PROGRAM` compiles nothing
reproducible *args:
    @release/reproducible "$@"

# Sign a release with a key, push it to a registry of its own, and check that the commands of docs/verify-a-release.md verify it and refuse one that was changed; builds cosign once, which takes minutes
signatures:
    @tests/signatures

# Upgrade from an older commit, or from the last release, and go back in a real cluster: its program, with the state that it saved, and a release of its chart; the older program is built once, in the cache
upgrade-test commit="":
    older=$(release/older {{ commit }}) && chart=$(release/older --chart {{ commit }}) && NODEGATE_OLDER=$older NODEGATE_OLDER_CHART=$chart NODEGATE_REQUIRE=gate cargo test --locked --test cluster -- --ignored upgrade

# Install Debian's packages that `just full`, `just image` and `just release` need besides the toolchains; needs root
machine:
    @.ci/machine

# Everything a change has to pass, as CI runs it, or only the sections of .ci/run that are named
[group('contribute')]
ci *sections:
    .ci/run "$@"

# Run the gate's tests so many times, every second time beside busy processes, and list those that ever failed
steady runs="10":
    @.ci/steady {{ runs }}

# What takes too long to be asked of every change, as it runs at night and before a release, or only the sections or parts of .ci/full that are named: `tests`, `builds`, `clusters`
full *sections:
    .ci/full "$@"
