#!/bin/sh
# HealthCheckProgram of slurm.conf: checks whether this node's GPUs are fit for work (gpumon check), and writes the result
# to the system log unless it is "ok". With GPUMON_SLURM_DRAIN=fail it also drains the node while a verdict is "fail".
#
# What this does not do:
# - It drains nothing by default: without GPUMON_SLURM_DRAIN it only writes to the log.
# - It drains for "fail" alone: not for a warning, and not because gpumon does not run. In a maintenance window it neither
#   drains nor resumes.
# - It does not change a node that is already drained, draining, down or failing, nor its reason.
# - It resumes nothing by default. With GPUMON_SLURM_RESUME=yes it resumes only what it drained itself: nodes whose reason
#   begins with "gpumon: ". A node whose reason is edited stays drained.
# - It ends no job: a draining node finishes its jobs.
# - It never fails: slurmd does not register with the controller before this program has exited 0.
#
# Settings, beside those of gpumon-common.sh:
#   GPUMON_SLURM_DRAIN   no, or fail
#   GPUMON_SLURM_RESUME  no, or yes
set -u
common=${0%/*}/gpumon-common.sh
if [ ! -r "$common" ]; then # a failure would make Slurm drain the node
    logger -st gpumon-healthcheck -- "$common is missing: GPUs are not checked"
    exit 0
fi
# shellcheck source-path=SCRIPTDIR source=gpumon-common.sh
. "$common"

node=${SLURMD_NODENAME:-$(hostname -s)}
own='gpumon: '

# shellcheck disable=SC2119 # the whole node: no argument
run_check
[ "$code" -eq 0 ] || log "$line (exit code $code)"

case "$line" in *" [maintenance until "*) exit 0 ;; esac # the operator works on the node
case "$code ${GPUMON_SLURM_DRAIN:-no} ${GPUMON_SLURM_RESUME:-no}" in
"2 fail "*) change=drain ;;
"0 "*" yes") change=resume ;;
*) exit 0 ;;
esac

record=$(timeout 20 scontrol --oneliner show node "$node") || {
    log "Slurm does not report the state of node $node: neither drained nor resumed"
    exit 0
}
# The first match of each: a reason may contain the same words.
state=${record#* State=}
state=${state%% *}
reason=
case "$record" in
*" Reason="*) reason=${record#* Reason=} ;;
esac

case "$change $state" in
"drain "*DRAIN* | "drain "*DOWN* | "drain "*FAIL* | "drain "*MAINT*)
    ;; # already out of service
"drain "*)
    reason_text=$(printf '%s%s' "$own" "$line" | cut -c1-200)
    if timeout 20 scontrol update nodename="$node" state=drain reason="$reason_text"; then
        log "node $node drained: $reason_text"
    else
        log "node $node could not be drained"
    fi
    ;;
"resume "*DOWN* | "resume "*FAIL*)
    ;; # not only by this program
"resume "*DRAIN*)
    case "$reason" in
    "$own"*)
        if timeout 20 scontrol update nodename="$node" state=resume; then
            log "node $node resumed: $line"
        else
            log "node $node could not be resumed"
        fi
        ;;
    esac
    ;;
esac
exit 0
