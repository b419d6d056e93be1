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
# container: gpumon is then run from there, with chroot.
set -u
gpumon=${GPUMON:-/opt/gpumon/bin/gpumon}

rule=${1:-}
set -- "$gpumon" check
case "$rule" in fail | ready) ;; *) set -- "$@" --maintenance-ok ;; esac
[ -z "${GPUMON_ROOT:-}" ] || set -- chroot "$GPUMON_ROOT" "$@"
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
