#!/bin/sh
# Prolog of slurm.conf, or a part of yours: holds gpumon's own all-reduce off the GPUs until the epilog, then checks the
# GPUs of the job that is about to start, and writes the result to the system log unless it is "ok". With
# GPUMON_SLURM_REFUSE it keeps the job from unfit GPUs. A job that starts is written to the job mapping files. It takes
# a second or two, 7 s without an agent, and at most 26 s.
#
# What this does not do:
# - It refuses no job by default: without GPUMON_SLURM_REFUSE it only writes to the log.
# - If a prolog does not exit with 0, Slurm itself drains the node and requeues the job, held unless SchedulerParameters
#   has nohold_on_prolog_fail.
# - It does not check the job's other nodes, nor GPUs of other jobs. A job without GPUs is not checked.
# - It does not start, stop or reset anything.
#
# Settings, beside those of gpumon-common.sh:
#   GPUMON_SLURM_REFUSE  no; fail: if a verdict is fail; unknown: also if the health is unknown, as without an agent, or
#                        if the all-reduce may still be on the GPUs
set -u
common=${0%/*}/gpumon-common.sh
if [ ! -r "$common" ]; then # a failure would make Slurm drain the node
    logger -st gpumon-prolog -- "$common is missing: GPUs are not checked"
    exit 0
fi
# shellcheck source-path=SCRIPTDIR source=gpumon-common.sh
. "$common"

[ -n "${SLURM_JOB_GPUS:-}${CUDA_VISIBLE_DEVICES:-}" ] || exit 0

probe hold --for "${GPUMON_SLURM_HOLD:-24h}" --reason "Slurm job"
run_check --for-job
[ "$code" -eq 0 ] || log "job ${SLURM_JOB_ID:-?}: $line (exit code $code)"

case "${GPUMON_SLURM_REFUSE:-no} $code $held" in
"fail 2 "* | "unknown 2 "* | "unknown 3 "* | "unknown "*" "[!0]*) exit 1 ;;
esac
map_job begin
exit 0
