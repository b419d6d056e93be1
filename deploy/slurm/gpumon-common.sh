#!/bin/sh
# Functions shared by gpumon's scripts for Slurm, which read this file from their own folder. It does nothing by itself.
#
#   log TEXT                 writes to the system log, under the name of the script, and to standard error
#   run_check [ARGUMENT...]  runs gpumon check; sets line (its output) and code (its exit code; 3 if it printed no result)
#   probe ACTION ...         hold: keeps gpumon's all-reduce off the GPUs during this job, and ends one that runs;
#                            unhold: allows it again. Sets held: 0 on success
#   map_job ACTION           begin: writes which GPUs this job holds, in job mapping files; end: removes that
#
# Settings, from the environment or /etc/default/gpumon-slurm:
#   GPUMON              the command (/opt/gpumon/bin/gpumon)
#   GPUMON_SLURM_CHECK  more arguments for gpumon check, such as: --ignore gpumon_poll_slow
#   GPUMON_SLURM_HOLD   how long a job holds its GPUs if no epilog ends it (24h); no: it does not
#   GPUMON_SLURM_MAPPING  directory of the job mapping files (/var/lib/gpumon/job-mapping); no: none are written

# Slurm runs its programs without a search path.
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
name=${0##*/}
name=${name%.sh}

log() {
    printf '%s\n' "$1" >&2
    logger -t "$name" -- "$1" 2>/dev/null
    return 0
}

run_check() {
    # shellcheck disable=SC2086 # split on purpose
    line=$(timeout -k 1 10 "${GPUMON:-/opt/gpumon/bin/gpumon}" check "$@" ${GPUMON_SLURM_CHECK:-})
    code=$?
    case "$line" in
    "GPU "*) ;;
    *) # a command that is missing, does not start or is too old has other exit codes
        line="gpumon check printed no result (exit code $code)"
        code=3
        ;;
    esac
}

probe() {
    held=0
    [ "${GPUMON_SLURM_HOLD:-}" != no ] || return 0
    output=$(timeout -k 1 8 "${GPUMON:-/opt/gpumon/bin/gpumon}" probe "$@" --owner "${SLURM_JOB_ID:-}" 2>&1 >/dev/null)
    held=$?
    [ "$held" -eq 0 ] || log "job ${SLURM_JOB_ID:-?}: gpumon probe $1 failed (exit code $held): $output"
}

map_job() {
    mapping=${GPUMON_SLURM_MAPPING:-/var/lib/gpumon/job-mapping}
    [ "$mapping" != no ] || return 0
    # The side file is there from the beginning of `begin` to the end of `end`: no other job needs the command.
    [ "$1" != end ] || [ -e "$mapping/jobs/${SLURM_JOB_ID:-}.json" ] || return 0
    output=$(timeout -k 1 8 "${GPUMON:-/opt/gpumon/bin/gpumon}" mapping "$1" --directory "$mapping" 2>&1 >/dev/null)
    mapped=$?
    [ "$mapped" -eq 0 ] || log "job ${SLURM_JOB_ID:-?}: gpumon mapping $1 failed (exit code $mapped): $output"
}

settings=${GPUMON_SLURM_SETTINGS:-/etc/default/gpumon-slurm}
if [ -r "$settings" ]; then
    # Try it in another shell first: a mistake in it, or an exit, ends only that shell.
    # shellcheck source=/dev/null
    if [ "$(set +u; . "$settings" >/dev/null 2>&1; echo read)" = read ]; then
        set +u
        # shellcheck source=/dev/null
        . "$settings"
        set +e -u # a `set -e` in it would end these scripts at the first exit code that is not 0
    else
        log "$settings is invalid and is ignored"
    fi
fi
