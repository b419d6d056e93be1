#!/bin/sh
# Epilog of slurm.conf, or a part of yours: asks gpumon about the GPUs of the job that has ended, and writes to the
# system log what is wrong with them, beside the job's number: which job left them so is asked later. Then it lets the
# all-reduce that the prolog kept away run again.
#
# What this does not do:
# - It drains nothing, and never fails: Slurm would drain the node. gpumon-healthcheck.sh does that, when told.
# - It does not say that the job broke the GPU: only that it was so when the job ended.
# - It sees what gpumon had seen by then: a verdict that has to last before it counts may come a minute later.
#
# Settings: those of gpumon-common.sh.
set -u
common=${0%/*}/gpumon-common.sh
if [ ! -r "$common" ]; then # to go on without it would fail, and Slurm drain the node
    logger -st gpumon-epilog -- "$common is not there: nothing is asked"
    exit 0
fi
# shellcheck source-path=SCRIPTDIR source=gpumon-common.sh
. "$common"

[ -n "${SLURM_JOB_GPUS:-}${CUDA_VISIBLE_DEVICES:-}" ] || exit 0

ask --for-job
[ "$code" -eq 0 ] || say "job ${SLURM_JOB_ID:-?} ended: $line (exit code $code)"
probe unhold
exit 0
