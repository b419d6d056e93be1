#!/bin/sh
# probe.scheduler_gate of gpumon on a node of Slurm: checks whether the node is free for an all-reduce of half a minute.
# Exit code: 0 free, 1 not free, 2 Slurm does not answer; the last line states why. gpumon skips its run unless it is 0.
#
# What this does not do:
# - It reserves nothing. If a job starts a moment later, gpumon-prolog.sh ends the run, and the job begins when the GPUs are
#   free.
# - It offers no part of a node: a node with a job on some of its GPUs is not free, whatever probe.allow_partial is.
# - It changes nothing in Slurm, and needs only the right to read its state.
set -u
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
node=${SLURMD_NODENAME:-$(hostname -s)}

record=$(timeout -k 1 5 scontrol --oneliner show node "$node" 2>&1) || {
    echo "Slurm does not report the state of node $node: $record"
    exit 2
}
state=${record#* State=}
state=${state%% *}
case "$state" in
*COMPLETING* | *PLANNED* | *RESERVED* | *MAINT* | *REBOOT* | *POWER* | *NOT_RESPONDING* | *'*'*)
    echo "node $node is $state"
    exit 1
    ;;
IDLE*) ;; # drained or not
*)
    echo "node $node is $state"
    exit 1
    ;;
esac

jobs=$(timeout -k 1 5 squeue --noheader --nodelist="$node" --states=RUNNING,CONFIGURING,COMPLETING,SUSPENDED --format=%A 2>&1) || {
    echo "Slurm does not list the jobs on node $node: $jobs"
    exit 2
}
jobs=$(printf '%s\n' "$jobs" | awk 'NF == 1 { printf "%s%s", sep, $1; sep = " " }') # a line with blanks is a warning
if [ -n "$jobs" ]; then
    echo "jobs on node $node: $jobs"
    exit 1
fi
echo "node $node is $state, and without a job"
