#!/bin/sh
# probe.scheduler_gate of gpumon on a node of Slurm: is the node free for an all-reduce of half a minute? Exit code 0 is
# yes, 1 is no, 2 that Slurm does not answer; the last line says why. gpumon skips its run unless it is 0.
#
# What this does not do:
# - It reserves nothing. A job that starts a moment later is for the prolog: gpumon-prolog.sh ends the run, and lets the
#   job begin when the GPUs are free.
# - It gives no part of a node: one with a job on some of its GPUs is not free, whatever probe.allow_partial says.
# - It changes nothing in Slurm, and needs no right but to read its state.
set -u
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
node=${SLURMD_NODENAME:-$(hostname -s)}

shown=$(timeout 5 scontrol --oneliner show node "$node" 2>&1) || {
    echo "Slurm says nothing of node $node: $shown"
    exit 2
}
state=${shown#* State=}
state=${state%% *}
case "$state" in
*COMPLETING* | *PLANNED* | *RESERVED* | *MAINT* | *REBOOT* | *POWER* | *'*'*)
    echo "node $node is $state"
    exit 1
    ;;
IDLE*) ;; # drained or not
*)
    echo "node $node is $state"
    exit 1
    ;;
esac

jobs=$(timeout 5 squeue --noheader --nodelist="$node" --states=RUNNING,CONFIGURING,COMPLETING,SUSPENDED --format=%A 2>&1) || {
    echo "Slurm says nothing of the jobs on node $node: $jobs"
    exit 2
}
jobs=$(printf '%s\n' "$jobs" | awk 'NF == 1 { printf "%s%s", sep, $1; sep = " " }') # what has blanks is a warning
if [ -n "$jobs" ]; then
    echo "jobs on node $node: $jobs"
    exit 1
fi
echo "node $node is $state, and without a job"
