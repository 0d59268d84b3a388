# shellcheck shell=bash
# Sourced by `.ci/run` and `.ci/full`: runs the sections of a script, each timed, and prints a table of them at the end, however it ends.

notes=$(mktemp)
chosen='' names=() results=() times=()

# run_sections FIRST_FAILURE SECTION…: runs functions, as far as they are chosen. FIRST_FAILURE is `stops` or `goes-on`.
run_sections() {
    local first_failure=$1 section started status=0 failed=0
    shift
    trap print_table EXIT
    for section in "$@"; do
        [[ " $chosen " == *" $section "* ]] || continue
        printf '\n==> %s (after %d min %02d s)\n' "$section" $((SECONDS / 60)) $((SECONDS % 60))
        started=$SECONDS names+=("$section")
        # Not behind `if` or `||`, which would switch `set -e` off in it.
        set +e
        (
            set -e
            "$section"
        )
        status=$?
        set -e
        times+=($((SECONDS - started)))
        if ((status == 0)); then
            results+=(passed)
        else
            results+=(FAILED)
            failed=1
            [[ $first_failure != stops ]] || break
        fi
    done
    return $failed
}

print_table() {
    local at
    printf '\n==> Result (after %d min %02d s)\n' $((SECONDS / 60)) $((SECONDS % 60))
    for at in "${!names[@]}"; do
        printf '%-28s %4d s  %s\n' "${names[$at]}" "${times[$at]:-0}" "${results[$at]:-ended before its end}"
    done
    cat "$notes"
    rm -f "$notes"
}

# note TEXT: a line under the table.
note() {
    printf '%s\n' "$1" >>"$notes"
}

# not_run WHAT: of a section, and why: said where it would run, and below the table, where the section has passed.
not_run() {
    printf 'not run: %s\n' "$1"
    note "$section: not run: $1"
}

# choose_sections KNOWN… -- NAME…: sets `chosen` to the sections that are named, or to all of them.
choose_sections() {
    local known=() name
    while [[ $1 != -- ]]; do known+=("$1") && shift; done
    shift
    for name in "$@"; do
        [[ " ${known[*]} " == *" $name "* ]] || { printf '%s: there is no section %s; there are: %s\n' "$0" "$name" "${known[*]}" >&2; exit 2; }
    done
    chosen="${*:-${known[*]}}"
}
