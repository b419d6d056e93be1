#!/bin/sh
# Plug-in for node-problem-detector: runs gpumon check, and exits with the codes of a custom plug-in: 0 ok, 1 problem,
# 2 unknown. The line of gpumon check becomes the message of the condition or event.
#
#   gpumon-npd.sh fail     the condition GpuUnhealthy: a problem if a verdict is "fail"; unknown if the health is unknown
#   gpumon-npd.sh ready    the condition gpumon.io/GPUReady. node-problem-detector makes a condition True if its plug-in exits
#                          with 1, so this one exits with 1 if the GPUs are ready, 0 if a verdict is "fail", 2 if unknown
#   gpumon-npd.sh warn     the event: a problem if the worst verdict is "warn"
#   gpumon-npd.sh unknown  the event: a problem if the health is unknown, as without an agent
#
# What this does not do:
# - It taints, cordons and drains nothing. It sets conditions of the node, on which another program can act
#   (deploy/kubernetes/).
# - It sends no event in a maintenance window. The conditions stay what they are, because pods are no safer then.
#
# GPUMON is the command (/opt/gpumon/bin/gpumon). GPUMON_ROOT is where the host's root is mounted when this runs in a
# container: gpumon is then run from there, with chroot. If the host has no gpumon, because its agent runs in a container (Helm
# chart), this reads the health file of the agent instead, without other programs.
set -u
gpumon=${GPUMON:-/opt/gpumon/bin/gpumon}

# Prints the line and returns the code that gpumon check has for the health file $1 (docs/check.md: stale, maintenance).
# shellcheck disable=SC2317 # called by "$@"
check_file() {
    level='' running='' evaluated='' until='' boot='' reason='' first='' gpu='' now=''
    while IFS= read -r text; do # the agent writes one member a line, indented by its depth
        value=${text#*: }
        value=${value%,}
        value=${value#\"}
        value=${value%\"}
        case "$text" in
        ' "level": '*) level=$value ;;
        ' "boot_id": '*) boot=$value ;;
        ' "evaluated_boottime_seconds": '*) evaluated=${value%%.*} ;;
        '  "running": '*) running=$value ;;
        '  "until_boottime_seconds": '*) until=${value%%.*} ;;
        '   "level": '*) first=$value ;;
        '   "gpu": '*) gpu="GPU $value: " ;;
        '   "reason": '*) [ -n "$reason" ] || [ "$first" != "$level" ] || reason=${gpu#GPU null: }$value ;;
        esac
    done <"$1"
    read -r now _ </proc/uptime
    read -r here </proc/sys/kernel/random/boot_id
    now=${now%%.*}
    case "$evaluated" in '' | 0?* | *[!0-9]* | ???????????*) evaluated=-1000 ;; esac # null before the first evaluation
    case "$until" in '' | *[!0-9]* | ???????????*) until=0 ;; esac
    age=$((now - evaluated)) stale=no
    if [ "$boot" != "$here" ] || [ "$running" != true ] || [ "$age" -gt 30 ] || [ "$age" -lt -1 ]; then stale=yes; fi
    case "$level $stale" in
    "fail "*) code=2 line="GPU FAIL: $reason" ;;
    "warn no") code=1 line="GPU WARN: $reason" ;;
    "ok no") code=0 line="GPU OK: no verdict" ;;
    *) code=3 line="GPU UNKNOWN: the agent has not evaluated its checks recently, see its pod" ;;
    esac
    case "$rule" in
    fail | ready) ;;
    *) [ "$boot" != "$here" ] || [ "$until" -le "$now" ] || code=0 ;; # maintenance
    esac
    printf '%s\n' "$line"
    return "$code"
}

rule=${1:-}
set -- "$gpumon" check
case "$rule" in fail | ready) ;; *) set -- "$@" --maintenance-ok ;; esac
[ -z "${GPUMON_ROOT:-}" ] || set -- chroot "$GPUMON_ROOT" "$@"
file=${GPUMON_ROOT:-}/run/gpumon/health.json
if [ ! -x "${GPUMON_ROOT:-}$gpumon" ] && [ -f "$file" ] && [ -r "$file" ]; then set -- check_file "$file"; fi
line=$("$@")
code=$?
case "$line" in
"GPU "*) ;;
*) # a command that is missing, does not start or is too old has other exit codes
    line="gpumon check printed no result (exit code $code)"
    code=3
    ;;
esac
printf '%s\n' "$line"

case "$rule $code" in
"fail 2" | "ready 0" | "ready 1" | "warn 1") exit 1 ;;
"fail 0" | "fail 1" | "ready 2" | "warn "* | "unknown "[012]) exit 0 ;;
"unknown "*) exit 1 ;; # 3, or gpumon was killed
*) exit 2 ;;
esac
