#!/bin/sh
# Prolog of slurm.conf, or a part of yours: keeps gpumon's own all-reduce off the GPUs until the epilog, then asks gpumon
# about the GPUs of the job that is about to start, and writes the answer to the system log when it is not "ok". With
# GPUMON_SLURM_REFUSE it keeps the job from unfit GPUs. It takes a second or two, and 18 s at most.
#
# What this does not do:
# - It refuses no job unless told: without GPUMON_SLURM_REFUSE it only writes to the log.
# - Refusing is more than it looks: when a prolog exits with anything but 0, Slurm itself drains the node and requeues
#   the job, held unless SchedulerParameters has nohold_on_prolog_fail.
# - It does not look at the job's other nodes, nor at GPUs of other jobs; a job without GPUs is let through unasked.
# - It does not start, stop or reset anything.
#
# Settings, beside those of gpumon-common.sh:
#   GPUMON_SLURM_REFUSE  no; fail: when a verdict says so; unknown: also when nobody can tell, as without an agent, or
#                        whether the all-reduce has left the GPUs
set -u
common=${0%/*}/gpumon-common.sh
if [ ! -r "$common" ]; then # to go on without it would fail, and Slurm drain the node
    logger -st gpumon-prolog -- "$common is not there: nothing is asked"
    exit 0
fi
# shellcheck source-path=SCRIPTDIR source=gpumon-common.sh
. "$common"

[ -n "${SLURM_JOB_GPUS:-}${CUDA_VISIBLE_DEVICES:-}" ] || exit 0

probe hold --ttl "${GPUMON_SLURM_HOLD:-24h}" --reason "Slurm job"
ask --for-job
[ "$code" -eq 0 ] || say "job ${SLURM_JOB_ID:-?}: $line (exit code $code)"

case "${GPUMON_SLURM_REFUSE:-no} $code $held" in
"fail 2 "* | "unknown 2 "* | "unknown 3 "* | "unknown "*" "[!0]*) exit 1 ;;
esac
exit 0
