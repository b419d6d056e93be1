#!/bin/sh
# Epilog of slurm.conf, or a part of yours: checks the GPUs of the job that has ended, and writes what is wrong with them to
# the system log with the id of the job, so that the job can be found later. Then it allows the all-reduce again that the
# prolog held off, and removes the job from the job mapping files.
#
# What this does not do:
# - It drains nothing, and never fails, because Slurm would then drain the node. gpumon-healthcheck.sh can drain.
# - It does not prove that the job broke the GPU, only that the GPU was unhealthy when the job ended.
# - It reports what gpumon has detected by then: a verdict that needs time may be raised a minute later.
#
# Settings: those of gpumon-common.sh.
set -u
common=${0%/*}/gpumon-common.sh
if [ ! -r "$common" ]; then # a failure would make Slurm drain the node
    logger -st gpumon-epilog -- "$common is missing: GPUs are not checked"
    exit 0
fi
# shellcheck source-path=SCRIPTDIR source=gpumon-common.sh
. "$common"

map_job end

[ -n "${SLURM_JOB_GPUS:-}${CUDA_VISIBLE_DEVICES:-}" ] || exit 0

run_check --for-job
[ "$code" -eq 0 ] || log "job ${SLURM_JOB_ID:-?} ended: $line (exit code $code)"
probe unhold
exit 0
