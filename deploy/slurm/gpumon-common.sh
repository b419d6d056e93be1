#!/bin/sh
# What gpumon's scripts for Slurm share: they read it from the folder that they are in. Run, it does nothing.
#
#   say TEXT           to the system log under the name of the script, and to standard error
#   ask [ARGUMENT...]  line: what gpumon check says; code: its exit code, and 3 where it says nothing
#   probe ACTION ...   hold: keeps gpumon's all-reduce off the GPUs for this job, and ends one that runs; unhold: lets it
#                      run again. held: 0 when that is so
#
# Settings, from the environment or /etc/default/gpumon-slurm:
#   GPUMON              the command (/opt/gpumon/bin/gpumon)
#   GPUMON_SLURM_CHECK  more arguments for gpumon check, such as: --ignore gpumon_poll_slow
#   GPUMON_SLURM_HOLD   no: the all-reduce is not kept away; else for how long, when no epilog ends it (24h)

# Slurm gives its programs no search path.
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
name=${0##*/}
name=${name%.sh}

say() {
    printf '%s\n' "$1" >&2
    logger -t "$name" -- "$1" 2>/dev/null
    return 0
}

ask() {
    # shellcheck disable=SC2086 # words on purpose
    line=$(timeout 10 "${GPUMON:-/opt/gpumon/bin/gpumon}" check "$@" ${GPUMON_SLURM_CHECK:-})
    code=$?
    case "$line" in
    "GPU "*) ;;
    *) # a command that is not there, does not start or is too old has exit codes of its own
        line="gpumon check gave no answer, and ended with $code"
        code=3
        ;;
    esac
}

probe() {
    held=0
    [ "${GPUMON_SLURM_HOLD:-}" != no ] || return 0
    said=$(timeout 8 "${GPUMON:-/opt/gpumon/bin/gpumon}" probe "$@" --owner "${SLURM_JOB_ID:-}" 2>&1 >/dev/null)
    held=$?
    [ "$held" -eq 0 ] || say "job ${SLURM_JOB_ID:-?}: gpumon probe $1 failed (exit code $held): $said"
}

settings=${GPUMON_SLURM_SETTINGS:-/etc/default/gpumon-slurm}
if [ -r "$settings" ]; then
    # First in a shell of its own: a mistake in it, or an exit, ends that.
    # shellcheck source=/dev/null
    if [ "$(set +u; . "$settings" >/dev/null 2>&1; echo read)" = read ]; then
        set +u
        # shellcheck source=/dev/null
        . "$settings"
        set +e -u # a `set -e` in there would end these scripts at the first bad news
    else
        say "cannot understand $settings: taken for empty"
    fi
fi
