#!/bin/sh
# Epilog of slurm.conf, or a part of yours: asks gpumon about the GPUs of the job that has ended, and writes to the
# system log what is wrong with them, beside the job's number: which job left them so is asked later.
#
# What this does not do:
# - It drains nothing, and never fails: Slurm would drain the node. gpumon-healthcheck.sh does that, when told.
# - It does not say that the job broke the GPU: only that it was so when the job ended.
# - It sees what gpumon had seen by then: a verdict that has to last before it counts may come a minute later.
#
# Settings, from the environment or /etc/default/gpumon-slurm: GPUMON and GPUMON_SLURM_CHECK, as in gpumon-prolog.sh.
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
        logger -t gpumon-epilog -- "cannot understand $settings: taken for empty" 2>/dev/null
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
[ "$code" -eq 0 ] || logger -t gpumon-epilog -- "job ${SLURM_JOB_ID:-?} ended: $line (exit code $code)" 2>/dev/null
exit 0
