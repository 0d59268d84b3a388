# shellcheck shell=bash
# Sourced by the scripts of `release/`: what is released, from which sources, and where it goes.

# shellcheck source-path=SCRIPTDIR source=../.ci/programs.bash
source .ci/programs.bash

readonly targets=(x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-apple-darwin aarch64-apple-darwin)
version=$(awk -F '"' '/^\[/ { package = /^\[workspace\.package\]/ } package && /^version = / { print $2; exit }' Cargo.toml)
# All times in artifacts are the commit's, so that the same commit gives the same files.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
# Whoever makes them, files get the same modes, and lists the same order.
umask 022
export LC_ALL=C TZ=UTC0
dist=${NODEGATE_DIST:-$PWD/dist}
mkdir -p "$dist"

# architecture TARGET: its name in images; nothing if no image is made of it.
architecture() {
    case $1 in
        x86_64-*-linux-*) echo amd64 ;;
        aarch64-*-linux-*) echo arm64 ;;
    esac
}

# image_name: where this release's image goes, from $REGISTRY and $REPOSITORY. Registries take lower case only; owners of repositories may have capitals.
image_name() {
    printf '%s/%s\n' "$REGISTRY" "${REPOSITORY,,}"
}

# notes_of VERSION: prints what the changelog says of a version.
notes_of() {
    awk -v version="$1" '/^## / { print_it = ($2 == version); next } print_it' CHANGELOG.md | sed -e '/./,$!d'
}

# deterministic_tar DIRECTORY NAME…: writes these files and directories of DIRECTORY to standard output, the same for the same content, whoever made them
# and when. On macOS, GNU tar is `gtar`.
deterministic_tar() {
    local directory=$1
    shift
    "$(command -v gtar || command -v tar)" -C "$directory" --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --mode=u=rwX,go=rX -cf - "$@"
}

is_target() {
    [[ " ${targets[*]} " == *" $1 "* ]]
}

die() {
    printf 'release: %s\n' "$1" >&2
    exit 1
}
