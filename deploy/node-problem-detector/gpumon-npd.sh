#!/bin/sh
# For node-problem-detector: asks gpumon, and answers with the exit codes that a custom plugin has there: 0 well,
# 1 a problem, 2 unknown. The line of `gpumon check` becomes the message of the condition or event.
#
#   gpumon-npd.sh fail     the condition: a problem when a verdict says "fail"; unknown when nobody can tell
#   gpumon-npd.sh warn     the event: a problem when a verdict says "warn"
#   gpumon-npd.sh unknown  the event: a problem when nobody can tell, as when the agent does not run
#
# What this does not do:
# - It taints, cordons and drains nothing: it sets a condition of the node. What follows from that, another program
#   decides (deploy/kubernetes/).
# - It sends no event in a maintenance window. The condition stays what it is: pods are no safer there meanwhile.
#
# GPUMON is the command (/opt/gpumon/bin/gpumon). GPUMON_ROOT is where the host's root is mounted when this runs in a
# container: gpumon is then run from there, with chroot.
set -u
gpumon=${GPUMON:-/opt/gpumon/bin/gpumon}

rule=${1:-}
set -- "$gpumon" check
[ "$rule" = fail ] || set -- "$@" --maintenance-ok
[ -z "${GPUMON_ROOT:-}" ] || set -- chroot "$GPUMON_ROOT" "$@"
line=$("$@")
code=$?
case "$line" in
"GPU "*) ;;
*) # a command that is not there, does not start or is too old has exit codes of its own
    line="gpumon check gave no answer (exit code $code)"
    code=3
    ;;
esac
printf '%s\n' "$line"

case "$rule $code" in
"fail 2" | "warn 1") exit 1 ;;
"fail 0" | "fail 1" | "warn "* | "unknown "[012]) exit 0 ;;
"unknown "*) exit 1 ;; # 3, or gpumon was killed
*) exit 2 ;;
esac
