#!/bin/sh
# Before the files of the package are removed: stops the agent and deletes what after-install.sh wrote. An upgrade keeps both.
set -e
case "$1" in remove | 0) ;; *) exit 0 ;; esac
systemctl disable --quiet gpumon.service gpumon.socket || :
if [ -d /run/systemd/system ]; then systemctl stop gpumon.service gpumon.socket || :; fi
find /opt/gpumon -name __pycache__ -type d -prune -exec rm -r {} +
