#!/bin/sh
# Runs a command with less memory than the machine has, so that a model which does not fit is read
# from disk in every pass.
#
#   sh benchmarks/limited.sh 700M COMMAND [ARGUMENT...]
#   DISK=700000000 sh benchmarks/limited.sh ...       and reads at most so many bytes a second
#
# Needs root, and Linux with control groups of either version.  Files that are in the page cache
# already would not count against the limit, so the cache is dropped first; swap is off in the group.
set -eu
[ $# -ge 2 ] || { echo "usage: sh benchmarks/limited.sh BYTES[K|M|G] COMMAND [ARGUMENT...]" >&2; exit 2; }
limit="$1"
shift
name="limited-$$"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    group="/sys/fs/cgroup/$name"
    mkdir "$group"
    echo "$limit" >"$group/memory.max"
    echo 0 >"$group/memory.swap.max"
else
    group="/sys/fs/cgroup/memory/$name"
    mkdir "$group"
    echo "$limit" >"$group/memory.limit_in_bytes"
    echo 0 >"$group/memory.swappiness"
fi
disk="" # the group that limits it, of the first version: its controllers are apart
if [ -n "${DISK:-}" ]; then
    device="$(lsblk -ndo MAJ:MIN "$(findmnt -no SOURCE -T "${DISK_OF:-.}")" | tr -d ' ')"
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        echo "$device rbps=$DISK" >"$group/io.max"
    else
        disk="/sys/fs/cgroup/blkio/$name"
        mkdir "$disk"
        echo "$device $DISK" >"$disk/blkio.throttle.read_bps_device"
    fi
fi
trap 'rmdir "$group" $disk' EXIT
trap : INT # the command stops by itself, and the group can go then
sync
echo 3 >/proc/sys/vm/drop_caches
sh -c 'for g in $0; do echo $$ >"$g/cgroup.procs"; done; exec "$@"' "$group $disk" "$@"
