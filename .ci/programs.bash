# shellcheck shell=bash
# Sourced by `.ci/run`, `.ci/workflows` and the scripts of `release/`: programs that are installed once, each version into a directory of its own in
# the cache, so that another version never takes its place.

# shellcheck disable=SC2034 # used by who sources this
readonly just=1.59.0 cargo_deny=0.20.2 cargo_fuzz=0.13.2 cargo_auditable=0.7.7 cargo_cyclonedx=0.5.9 zizmor=1.32.0

cache=${NODEGATE_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or NODEGATE_CACHE}/.cache}/nodegate}
[[ $cache == /* ]] || cache=$PWD/$cache

# install_crate CRATE VERSION: compiles a crate and puts its programs on PATH.
install_crate() {
    local root=$cache/$1-$2
    [[ -x $root/bin/$1 ]] || cargo install --locked --version "$2" --root "$root" "$1" >&2
    PATH=$root/bin:$PATH
}

# install_wheel PROJECT VERSION: a program that has its own wheel, into a Python environment, and puts it on PATH. For a crate that takes many minutes to
# compile.
install_wheel() {
    local root=$cache/$1-$2
    if [[ ! -x $root/bin/$1 ]]; then
        rm -rf "$root"
        python3 -m venv "$root"
        "$root/bin/python3" -m pip --quiet --disable-pip-version-check install --only-binary :all: --no-deps "$1==$2" >&2
    fi
    PATH=$root/bin:$PATH
}
