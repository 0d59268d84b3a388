# shellcheck shell=bash
# Sourced by `control-plane/build` and `tools/build`: Go programs, pinned by a go.mod next to those scripts, compiled once into
# a cache directory.
#
# The caller defines `compile NAME OUTPUT`, which builds one program with `go_build`.

cache_root=${NODEGATE_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or NODEGATE_CACHE}/.cache}/nodegate}
[[ $cache_root == /* ]] || cache_root=$PWD/$cache_root

# module_version MODULE_DIR MODULE: the version that MODULE_DIR/go.mod requires of MODULE.
module_version() {
    local version
    version=$(awk -v module="$2" '$1 == "require" { $1 = ""; $0 = $0 } $1 == module && $2 ~ /^v/ { print $2; exit }' "$1/go.mod")
    [[ -n $version ]] || die "$1/go.mod does not require $2"
    printf '%s\n' "$version"
}

# digest_of FILE…: a short one, for the name of a directory that depends on what is in these files.
digest_of() { cat "$@" | sha256sum | cut -c1-12; }

# missing_from DIR NAME…: those of the programs that DIR lacks, one a line.
missing_from() {
    local dir=$1 name
    shift
    for name in "$@"; do
        [[ -f $dir/$name && -x $dir/$name ]] || printf '%s\n' "$name"
    done
}

# choose_programs KNOWN… -- ARGUMENT…: sets `print_dir` (true or false) and `programs`, which are the ones named by the
# arguments, in the order in which they are known, or all of them.
choose_programs() {
    local known=() wanted=" " name
    while [[ $1 != -- ]]; do
        known+=("$1")
        shift
    done
    shift
    print_dir=false
    for name in "$@"; do
        case " ${known[*]} " in
            *" $name "*) wanted+="$name " ;;
            *)
                [[ $name == --print-dir ]] || usage_error "unknown argument '$name'" "${known[@]}"
                # shellcheck disable=SC2034 # the caller reads it
                print_dir=true
                ;;
        esac
    done
    programs=()
    for name in "${known[@]}"; do
        if [[ $wanted == " " || $wanted == *" $name "* ]]; then programs+=("$name"); fi
    done
}

# build_into DIR NAME…: compiles what DIR lacks. A program appears in DIR whole or not at all, and of two runs at the same time
# the second waits for the first.
build_into() {
    local dir=$1 name started
    shift
    [[ -n $(missing_from "$dir" "$@") ]] || return 0
    command -v go >/dev/null || die "Go is needed to build $* (see tests/README.md)"
    mkdir -p "$dir"
    exec 9>"$dir.lock"
    if command -v flock >/dev/null && ! flock --nonblock 9; then
        printf 'waiting for another run that builds into %s\n' "$dir" >&2
        flock 9
    fi
    unfinished=$(mktemp -d "$dir.unfinished.XXXXXX")
    trap 'rm -rf "$unfinished"' EXIT
    for name in "$@"; do
        [[ -n $(missing_from "$dir" "$name") ]] || continue
        printf 'building %s … ' "$name" >&2
        started=$SECONDS
        # The lock must not outlive this script in a process that the Go command leaves behind.
        compile "$name" "$unfinished/$name" 9>&-
        mv "$unfinished/$name" "$dir/$name"
        printf '%d s\n' $((SECONDS - started)) >&2
    done
    rm -rf "$unfinished"
    trap - EXIT
    exec 9>&-
}

# go_build MODULE_DIR PACKAGE OUTPUT LDFLAGS [FLAG…]: a static, stripped build for this machine, whatever the environment cross
# compiles for.
go_build() {
    local module=$1 package=$2 output=$3 ldflags=$4
    shift 4
    env -u GOOS -u GOARCH CGO_ENABLED=0 GOWORK=off \
        go -C "$module" build -trimpath -buildvcs=false -ldflags "-s -w $ldflags" "$@" -o "$output" "$package" </dev/null >&2
}

# kubernetes_ldflags VERSION PACKAGE…: what sets the version in these packages. Without it programs of Kubernetes say v0.0.0, which clients take for a server
# too old for them.
kubernetes_ldflags() {
    local major minor package variable
    IFS=. read -r major minor _ <<<"${1#v}"
    for variable in gitVersion="$1" gitMajor="$major" gitMinor="$minor"; do
        for package in "${@:2}"; do printf -- ' -X %s.%s' "$package" "$variable"; done
    done
}

usage_error() {
    local problem=$1
    shift
    printf '%s: %s\nusage: %s [--print-dir] [NAME…], where NAME is one of: %s\n' "$0" "$problem" "$0" "$*" >&2
    exit 2
}

die() {
    printf '%s: %s\n' "$0" "$1" >&2
    exit 1
}
