# shellcheck shell=bash
# Sourced by `.ci/full`: a memory cgroup, of version 1 or 2, for what must not take more memory than it has in a pod.

# memory_cgroup BYTES: makes one with this limit and prints its directory. Fails where none can be made.
memory_cgroup() {
    local parent cgroup
    for parent in /sys/fs/cgroup/memory /sys/fs/cgroup /sys/fs/cgroup/unified; do
        cgroup=$parent/nodegate-$$
        mkdir "$cgroup" 2>/dev/null || continue
        if [[ -e $cgroup/memory.limit_in_bytes ]]; then
            # Without the second, what does not fit would be swapped out.
            if echo "$1" >"$cgroup/memory.limit_in_bytes"; then
                echo "$1" 2>/dev/null >"$cgroup/memory.memsw.limit_in_bytes" || true
                printf '%s' "$cgroup"
                return 0
            fi
        elif [[ -e $cgroup/memory.max ]]; then
            if echo "$1" >"$cgroup/memory.max"; then
                echo 0 2>/dev/null >"$cgroup/memory.swap.max" || true
                printf '%s' "$cgroup"
                return 0
            fi
        fi
        rmdir "$cgroup"
    done
    return 1
}

# leave_memory_cgroup DIRECTORY: prints the most memory that was used in it, and removes it. Fails if a process in it was killed because there was no more.
leave_memory_cgroup() {
    local peak='unknown' kills
    if [[ -e $1/memory.limit_in_bytes ]]; then
        peak=$(cat "$1/memory.max_usage_in_bytes")
        kills=$(sed -n 's/^oom_kill //p' "$1/memory.oom_control")
    else
        [[ ! -e $1/memory.peak ]] || peak=$(cat "$1/memory.peak")
        kills=$(sed -n 's/^oom_kill //p' "$1/memory.events")
    fi
    printf 'the most memory in the cgroup: %s bytes; processes killed: %s\n' "$peak" "${kills:-unknown}"
    rmdir "$1"
    [[ ${kills:-0} == 0 ]]
}
