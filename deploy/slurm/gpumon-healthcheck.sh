#!/bin/sh
# HealthCheckProgram of slurm.conf: asks gpumon whether this node's GPUs are fit for work, and writes the answer to the
# system log when it is not "ok". With GPUMON_SLURM_DRAIN=fail it also drains the node while a verdict says "fail".
#
# What this does not do:
# - It drains nothing unless told: without GPUMON_SLURM_DRAIN it only writes to the log.
# - It drains for "fail" alone: neither for a warning, nor because gpumon does not run, nor in a maintenance window,
#   in which it resumes nothing either.
# - It touches no node that is drained, draining, down or failing already, and keeps the reason that stands there.
# - It undrains nothing unless told (GPUMON_SLURM_RESUME=yes), and then only what it drained itself: a reason that
#   begins with "gpumon: ". Edit the reason, and the node stays drained.
# - It kills no job: a draining node finishes what runs on it.
# - It never fails: slurmd does not register with the controller before this program has exited 0.
#
# Settings, beside those of gpumon-common.sh:
#   GPUMON_SLURM_DRAIN   no, or fail
#   GPUMON_SLURM_RESUME  no, or yes
set -u
common=${0%/*}/gpumon-common.sh
if [ ! -r "$common" ]; then # to go on without it would fail, and Slurm drain the node
    logger -st gpumon-healthcheck -- "$common is not there: nothing is asked"
    exit 0
fi
# shellcheck source-path=SCRIPTDIR source=gpumon-common.sh
. "$common"

node=${SLURMD_NODENAME:-$(hostname -s)}
own='gpumon: '

# shellcheck disable=SC2119 # the whole node: no argument
ask
[ "$code" -eq 0 ] || say "$line (exit code $code)"

case "$line" in *" [maintenance until "*) exit 0 ;; esac # whoever works on the node knows what is wrong
case "$code ${GPUMON_SLURM_DRAIN:-no} ${GPUMON_SLURM_RESUME:-no}" in
"2 fail "*) wanted=drain ;;
"0 "*" yes") wanted=resume ;;
*) exit 0 ;;
esac

shown=$(timeout 20 scontrol --oneliner show node "$node") || {
    say "cannot ask Slurm about node $node: neither drained nor resumed"
    exit 0
}
# The first of each: a reason may hold the same words.
state=${shown#* State=}
state=${state%% *}
reason=
case "$shown" in
*" Reason="*) reason=${shown#* Reason=} ;;
esac

case "$wanted $state" in
"drain "*DRAIN* | "drain "*DOWN* | "drain "*FAIL* | "drain "*MAINT*)
    ;; # somebody has seen to it
"drain "*)
    words=$(printf '%s%s' "$own" "$line" | cut -c1-200)
    if timeout 20 scontrol update nodename="$node" state=drain reason="$words"; then
        say "node $node drained: $words"
    else
        say "node $node could not be drained"
    fi
    ;;
"resume "*DOWN* | "resume "*FAIL*)
    ;; # not by this program alone
"resume "*DRAIN*)
    case "$reason" in
    "$own"*)
        if timeout 20 scontrol update nodename="$node" state=resume; then
            say "node $node resumed: $line"
        else
            say "node $node could not be resumed"
        fi
        ;;
    esac
    ;;
esac
exit 0
