#!/bin/sh
# Prolog of slurm.conf, or a part of yours: asks gpumon about the GPUs of the job that is about to start, and writes the
# answer to the system log when it is not "ok". With GPUMON_SLURM_REFUSE it keeps the job from unfit GPUs.
#
# What this does not do:
# - It refuses no job unless told: without GPUMON_SLURM_REFUSE it only writes to the log.
# - Refusing is more than it looks: when a prolog exits with anything but 0, Slurm itself drains the node and requeues
#   the job, held unless SchedulerParameters has nohold_on_prolog_fail.
# - It does not look at the job's other nodes, nor at GPUs of other jobs; a job without GPUs is let through unasked.
# - It does not start, stop or reset anything.
#
# Settings, from the environment or /etc/default/gpumon-slurm:
#   GPUMON               the command (/opt/gpumon/bin/gpumon)
#   GPUMON_SLURM_CHECK   more arguments for gpumon check
#   GPUMON_SLURM_REFUSE  no; fail: when a verdict says so; unknown: also when nobody can tell, as without an agent
set -u
# Slurm gives its programs no search path.
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
settings=${GPUMON_SLURM_SETTINGS:-/etc/default/gpumon-slurm}
if [ -r "$settings" ]; then
    # shellcheck source=/dev/null
    if (set +u; . "$settings"; :) >/dev/null 2>&1; then # first in a shell of its own: a mistake in it ends that
        set +u
        # shellcheck source=/dev/null
        . "$settings"
        set -u
    else
        logger -t gpumon-prolog -- "cannot understand $settings: taken for empty" 2>/dev/null
    fi
fi

[ -n "${SLURM_JOB_GPUS:-}${CUDA_VISIBLE_DEVICES:-}" ] || exit 0

# shellcheck disable=SC2086 # words on purpose
line=$(timeout 10 "${GPUMON:-/opt/gpumon/bin/gpumon}" check --for-job ${GPUMON_SLURM_CHECK:-})
code=$?
case "$line" in
"GPU "*) ;;
*) # a command that is not there, does not start or is too old has exit codes of its own
    line="gpumon check gave no answer, and ended with $code"
    code=3
    ;;
esac
[ "$code" -eq 0 ] || logger -t gpumon-prolog -- "job ${SLURM_JOB_ID:-?}: $line (exit code $code)" 2>/dev/null

case "${GPUMON_SLURM_REFUSE:-no} $code" in
"fail 2" | "unknown 2" | "unknown 3")
    printf '%s\n' "$line" >&2
    exit 1
    ;;
esac
exit 0
